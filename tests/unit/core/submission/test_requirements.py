"""What is not there, and not in the making, is refused when it is asked for."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from config.errors import UserError
from config.loading import parse_options
from config.schema import (
    CompareOptions,
    DoctorOptions,
    DownloadOptions,
    EvaluateOptions,
    ExportOptions,
    ExtendOptions,
    Options,
    PackOptions,
    PrepareOptions,
    PushOptions,
    SynthesizeOptions,
    TokenizerOptions,
    TrainOptions,
    TranscribeOptions,
    with_values,
)
from core.jobs.events import Failed, Finished, Journal, Queued
from core.jobs.job import create_job
from core.jobs.locks import FileLock
from core.library.records import (
    EXPORT_RECORD,
    EXTENSION,
    FRONT_END,
    ExportRecord,
    ExtensionRecord,
    Origin,
    write_record,
)
from core.submission import storage
from core.submission.jobs import check_requirements
from core.workspace import Workspace
from tests.browser import scenes
from ui import listen
from ui.page import Page

VERBS = {PrepareOptions: "prepare", TokenizerOptions: "tokenizer", ExtendOptions: "extend", TrainOptions: "train",
         SynthesizeOptions: "synthesize", CompareOptions: "compare", ExportOptions: "export", PushOptions: "push",
         EvaluateOptions: "evaluate", PackOptions: "pack"}


def check(workspace: Workspace, options: Options) -> tuple[str, ...]:
    return check_requirements(workspace, VERBS[type(options)], options)


@pytest.mark.parametrize(("options", "message"), [
    (PrepareOptions(source="/nope/x", dataset="x", language="am"), "There is no source /nope/x"),
    (PrepareOptions(source="demo", model="nosuch"), "There is no base model named 'nosuch'"),
    (TokenizerOptions(dataset="nosuch", tokenizer="new"), "There is no dataset named 'nosuch'"),
    (TokenizerOptions(part="report", tokenizer="nosuch", dataset="neither"), "There is no tokenizer named 'nosuch'"),
    (TokenizerOptions(dataset="mine"), "The tokenizer made of the dataset 'mine' has no name"),
    (ExtendOptions(tokenizer="mine"), "The extension made of the tokenizer 'mine' has no name"),
    (ExtendOptions(tokenizer="nosuch", extension="new"), "There is no tokenizer named 'nosuch'"),
    (TrainOptions(extension="nosuch"), "There is no extension named 'nosuch'"),
    (SynthesizeOptions(voice_model="run:nosuch", text="hello"), "There is no run named 'nosuch'"),
    (SynthesizeOptions(voice_model="nosuch", text="hello"), "'nosuch' is no reference to a model"),
    (CompareOptions(finetuned="export:nosuch"), "There is no export named 'nosuch'"),
    (CompareOptions(finetuned="export:nosuch", texts=(("am", "ሰላም"), ("am", " "))), "One of the texts to compare is"),
    (ExportOptions(run="run:nosuch"), "There is no run named 'nosuch'"),
    (ExportOptions(run="run:nosuch", override=("no_check",)), "There is no check named no_check"),
    (PackOptions(item="base:tiny"), "'base:tiny' is neither an export nor a run"),
    (PushOptions(export="nosuch", repository="me/x"), "There is no export named 'nosuch'"),
    (EvaluateOptions(), "There is nothing to evaluate"),
    (EvaluateOptions(models=("base:tiny", "base:nosuch+romanised")), "There is no base model named 'nosuch'"),
    (EvaluateOptions(models=("codec:nosuch",)), "There is no base model named 'nosuch'"),
    (EvaluateOptions(models=("recordings", "run:nosuch@5")), "There is no run named 'nosuch'"),
    (EvaluateOptions(models=("base:tiny", "folder:/nope")), "There is no folder /nope"),
])
def test_what_is_not_there_is_refused_at_once(workspace: Workspace, options: Options, message: str) -> None:
    (workspace.models / "tiny").mkdir()
    with pytest.raises(UserError, match=message) as caught:
        check(workspace, options)
    assert caught.value.hint


@pytest.mark.parametrize("name", ["", "amharic", "https://huggingface.co/me/x"])
def test_a_push_to_no_repository_is_refused_at_once(workspace: Workspace, name: str) -> None:
    (workspace.exports / "mine").mkdir()
    with pytest.raises(UserError, match=f"'{name}' is not the name of a repository"):
        check(workspace, PushOptions(export="mine", repository=name))
    assert check(workspace, PushOptions(export="mine", repository="me/amharic")) == ()


def test_what_a_living_job_makes_is_waited_for(workspace: Workspace) -> None:
    (workspace.models / "tiny").mkdir()
    (workspace.datasets / "amharic-demo").mkdir()
    extending = create_job(workspace, "extend", ExtendOptions(extension="soon"))
    Journal(extending.journal).append(Queued())
    lock = FileLock.acquire(extending.lock)
    assert lock is not None
    assert check(workspace, TrainOptions(extension="soon")) == (extending.id,)
    lock.release()
    Journal(extending.journal).append(Failed("no"))
    with pytest.raises(UserError, match="no extension named 'soon'"):
        check(workspace, TrainOptions(extension="soon"))


def test_what_is_there_is_not_waited_for(workspace: Workspace) -> None:
    (workspace.models / "tiny").mkdir()
    assert check(workspace, PrepareOptions()) == ()


NAMED = {"dataset": "mine", "language": "sw"}


def test_own_recordings_are_given_a_name_and_a_language() -> None:
    with pytest.raises(UserError, match="dataset: it is empty; give a name.*language: it is empty; give the code"):
        parse_options(PrepareOptions, {"source": "/recordings"})
    for demo in ({}, {"source": "demo", "dataset": "", "language": ""}):
        made = parse_options(PrepareOptions, demo)
        assert (made.dataset, made.language) == ("amharic-demo", "am")


def test_a_name_that_another_dataset_has_is_refused_before_a_clip_is_read(workspace: Workspace, tmp_path: Path) -> None:
    scenes.dataset(workspace, "mine")
    (workspace.models / "tiny").mkdir()
    own = PrepareOptions(source=str(tmp_path), dataset="mine", language="sw")
    with pytest.raises(UserError, match="There already is a dataset named 'mine': 300 clips in Amharic \\(am\\) from"):
        check(workspace, own)
    making = create_job(workspace, "prepare", own.model_copy(update={"dataset": "other"}))
    Journal(making.journal).append(Queued())
    lock = FileLock.acquire(making.lock)
    assert lock is not None
    with pytest.raises(UserError, match="is preparing a dataset named 'other' from another source"):
        check(workspace, PrepareOptions(source="/", dataset="other", language="sw"))
    lock.release()


def test_an_empty_source_is_refused_and_a_relative_one_is_made_absolute() -> None:
    for empty in ("", "  "):
        with pytest.raises(UserError, match="source: it is empty; give `demo`, a folder"):
            parse_options(PrepareOptions, {"source": empty})
    assert parse_options(PrepareOptions, {**NAMED, "source": "my data"}).source == str(Path("my data").absolute())
    for kept in ("demo", "https://example.org/a.zip", "hub:me/speech"):
        assert parse_options(PrepareOptions, {**NAMED, "source": f" {kept}"}).source == kept
    assert parse_options(PrepareOptions, {**NAMED, "source": "hf://datasets/me/speech"}).source == "hub:me/speech"


@pytest.mark.parametrize(("given", "code"), [("EN", "en"), (" am ", "am"), ("pt_BR", "pt-br"), ("zh-Hant", "zh-hant")])
def test_a_language_code_is_made_plain(given: str, code: str) -> None:
    assert parse_options(PrepareOptions, {"language": given}).language == code


@pytest.mark.parametrize("given", ["english", "e", "am/..", "12", "Amharic"])
def test_what_is_no_language_code_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="is no language code") as caught:
        parse_options(PrepareOptions, {"language": given})
    assert {"english": "`en`", "Amharic": "`am`"}.get(given, "such as") in caught.value.message


def test_faults_are_told_without_the_librarys_words() -> None:
    with pytest.raises(UserError) as caught:
        parse_options(TrainOptions, {"warmup": None, "dataset": "../x"})
    assert "Value error" not in caught.value.message
    assert "None" not in caught.value.message
    assert "(nothing was given)" in caught.value.message


@pytest.mark.parametrize("chosen", [
    lambda folder: ("train", parse_options(TrainOptions, {"recogniser": folder})),
    lambda folder: ("transcribe", TranscribeOptions(recogniser=folder)),
], ids=["recogniser", "recogniser"])
def test_a_folder_that_holds_no_recogniser_is_refused_at_once(
        tmp_path: Path, workspace: Workspace, chosen: Callable[[str], tuple[str, Options]]) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="holds no recogniser"):
            check_requirements(workspace, *chosen(str(folder)))


@pytest.fixture
def installed_models(workspace: Workspace) -> Workspace:
    """A base of two languages and one voice, and an export of it that speaks a third; no weights."""
    base, export = workspace.models / "tiny", workspace.exports / "first"
    for folder, languages in ((base, ("en", "fr")), (export / FRONT_END, ("en", "fr", "am"))):
        folder.mkdir(parents=True)
        entries = {code: {"tokenizer": "am.json" if code == "am" else "tokenizer.json"} for code in languages}
        (folder / "front_end.json").write_text(json.dumps({"languages": entries, "base_languages": ["en", "fr"]}))
    (base / "voices").mkdir()
    (base / "voices" / "anna.ogg").touch()
    origin = Origin("tiny", "tiny", "", 10, 10, "")
    write_record(export / EXPORT_RECORD, ExportRecord("first", "r", 5, "rows", "", ("am",), origin, {}, {}))
    return workspace


@pytest.mark.parametrize(("options", "message", "hint"), [
    (SynthesizeOptions(text="ሰላም", language="am"), r"base:tiny does not speak Amharic \(am\)", "en, fr"),
    (SynthesizeOptions(text=" "), "There is no text to synthesize", "--text"),
    (SynthesizeOptions(text="hello", voice="bob"), "'bob' is neither a voice of base:tiny", "anna"),
    (CompareOptions(finetuned="export:first", texts=(("am", "ሰላም"), ("so", "nabad"))),
     r"export:first does not speak Somali \(so\)", "am, en, fr"),
    (CompareOptions(finetuned="export:first", voice="bob"), "'bob' is neither a voice", "anna"),
    (CompareOptions(), "There is no finetuned model to compare with", "run:ID"),
])
def test_what_no_model_speaks_is_refused_at_once(installed_models: Workspace, options: Options, message: str,
                                                 hint: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        check(installed_models, options)
    assert hint in caught.value.hint


def test_what_a_model_speaks_is_not_refused(installed_models: Workspace, tmp_path: Path) -> None:
    (tmp_path / "me.wav").touch()
    for options in (SynthesizeOptions(text="hello", language="fr", voice="anna"),
                    EvaluateOptions(models=("base:tiny+romanised", "codec:tiny", "export:first", "recordings")),
                    SynthesizeOptions(text="ሰላም", language="am", voice_model="export:first"),
                    CompareOptions(finetuned="export:first", texts=(("am", "ሰላም"),), voice=str(tmp_path / "me.wav"))):
        assert check(installed_models, options) == ()


def test_a_name_that_another_tokenizer_or_extension_has_is_refused_before_a_job_is_made(workspace: Workspace) -> None:
    for name in ("one", "two"):
        scenes.dataset(workspace, name)
    (workspace.models / "tiny").mkdir()
    wanted = TokenizerOptions(dataset="one", tokenizer="tiny-am")
    made = create_job(workspace, "tokenizer", wanted)
    journal = Journal(made.journal)
    journal.append(Queued())
    lock = FileLock.acquire(made.lock)
    assert lock is not None
    with pytest.raises(UserError, match=f"{made.id} is making the tokenizer 'tiny-am' with other options"):
        check(workspace, wanted.model_copy(update={"dataset": "two"}))
    lock.release()
    (workspace.tokenizers / "tiny-am").mkdir()
    assert check(workspace, wanted.model_copy(update={"merges": 50})) == ()  # no job is known to have made it
    journal.append(Finished({}))
    assert check(workspace, wanted) == ()  # it is the same
    for change in ({"dataset": "two"}, {"merges": 50}):
        with pytest.raises(UserError, match="already is a tokenizer named 'tiny-am', which was not made with these"):
            check(workspace, wanted.model_copy(update=change))
    origin = Origin("tiny", "tiny", "h", 1, 2, "f")
    extended = ExtendOptions(tokenizer="tiny-am", extension="mine")
    (workspace.extensions / "mine").mkdir()
    write_record(workspace.extensions / "mine" / EXTENSION, ExtensionRecord(
        "mine", "tiny-am", ("am",), extended.initialisation, 0, "h", origin))
    assert check(workspace, extended) == ()
    with pytest.raises(UserError, match="already is an extension named 'mine', which was not made with these options"):
        check(workspace, extended.model_copy(update={"seed": 1}))


def test_text_rules_that_are_not_there_are_refused_with_near_ones(workspace: Workspace) -> None:
    scenes.dataset(workspace, "mine")
    (workspace.models / "tiny").mkdir()
    wanted = TokenizerOptions(dataset="mine", tokenizer="new", rules="amharic")
    with pytest.raises(UserError, match="no text rules named 'amharic'") as caught:
        check(workspace, wanted)
    assert caught.value.hint.startswith("Near: am.")
    with pytest.raises(UserError, match="no text rules named 'klingon'") as caught:
        check(workspace, wanted.model_copy(update={"rules": "klingon"}))
    assert len(caught.value.hint) < 100
    with pytest.raises(UserError, match="for 'ti', the texts are in 'am'"):
        check(workspace, wanted.model_copy(update={"rules": "ti"}))


@pytest.mark.parametrize("options", [
    TrainOptions(extension="tiny-am"), SynthesizeOptions(voice_model="export:first", text="hello"),
    CompareOptions(base="base:chatterbox", finetuned="export:first"),
])
def test_what_loads_a_base_model_that_is_in_the_bin_is_refused_at_once(installed_models: Workspace,
                                                                       options: Options) -> None:
    scenes.dataset(installed_models)
    shutil.copytree(installed_models.models / "tiny", installed_models.models / "chatterbox")
    (installed_models.extensions / "tiny-am").mkdir()
    write_record(installed_models.extensions / "tiny-am" / EXTENSION, ExtensionRecord(
        "tiny-am", "tiny-am", ("am",), "spelling", 0, "", Origin("tiny", "tiny", "", 10, 10, "")))
    assert check(installed_models, options) == ()
    storage.delete(installed_models, storage.parse("model:tiny"))
    with pytest.raises(UserError, match="There is no base model named 'tiny'") as caught:
        check(installed_models, options)
    assert "It is in the bin: Storage tab" in caught.value.hint
    download = create_job(installed_models, "download", DownloadOptions(save_as="tiny"))
    Journal(download.journal).append(Queued())
    lock = FileLock.acquire(download.lock)
    assert lock is not None
    assert check(installed_models, options) == (download.id,)
    lock.release()
    Journal(download.journal).append(Failed("no"))
    assert check_requirements(installed_models, "pack", PackOptions(item="export:first")) == ()


@pytest.mark.parametrize(("family", "refused"), [("tiny", True), ("chatterbox", True), ("indextts2", False)])
def test_adapters_of_a_conditioner_are_refused_at_once_where_a_family_has_no_layers_for_them(
        workspace: Workspace, family: str, refused: bool) -> None:
    scenes.dataset(workspace)
    (workspace.models / family).mkdir()
    (workspace.extensions / "mine").mkdir()
    write_record(workspace.extensions / "mine" / EXTENSION, ExtensionRecord(
        "mine", "mine", ("am",), "mean", 0, "", Origin(family, family, "", 10, 10, "")))
    options = parse_options(TrainOptions, {"extension": "mine", "adapter_rank_conditioner": 8})
    assert check(workspace, with_values(options, {"adapter_rank_conditioner": 0})) == ()
    if not refused:
        assert check(workspace, options) == ()
        return
    with pytest.raises(UserError, match="--adapter-rank-conditioner is 8, but this model's") as caught:
        check(workspace, options)
    assert "--adapter-rank-conditioner" in caught.value.hint


def test_listen_without_a_base_model_says_which_one_is_missing(installed_models: Workspace) -> None:
    storage.delete(installed_models, storage.parse("model:tiny"))
    page = cast(Page, SimpleNamespace(workspace=installed_models, start=partial(
        check_requirements, installed_models)))
    with pytest.raises(UserError, match="There is no base model named 'tiny'"):
        listen._start(page, (), False, True, cast(str, None), "export:first", "am", "ሰላም", "")


def test_an_export_under_a_taken_name_is_refused_at_once(workspace: Workspace) -> None:
    (workspace.exports / "first").mkdir()
    with pytest.raises(UserError, match="already an export named 'first'"):
        check(workspace, ExportOptions(run="run:r", export="first"))
    with pytest.raises(UserError, match="already an export named 'first'"):
        check_requirements(workspace, "doctor", DoctorOptions(part="model", restore="first"))
    with pytest.raises(UserError, match="'base:tiny' is not a run to export"):
        check(workspace, ExportOptions(run="base:tiny", export="second"))


def test_a_name_that_a_living_export_will_take_is_refused_at_once(workspace: Workspace) -> None:
    making = create_job(workspace, "export", ExportOptions(run="run:r", export="second"))
    Journal(making.journal).append(Queued())
    lock = FileLock.acquire(making.lock)
    assert lock is not None
    with pytest.raises(UserError, match=f"{making.id} is making an export named 'second'"):
        check(workspace, ExportOptions(run="run:r", export="second"))
    with pytest.raises(UserError, match="no run named 'r'"):
        check(workspace, ExportOptions(run="run:r", export="third"))
    lock.release()
    Journal(making.journal).append(Failed("no"))
    with pytest.raises(UserError, match="no run named 'r'"):
        check(workspace, ExportOptions(run="run:r", export="second"))
