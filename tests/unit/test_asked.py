"""What is not there, and not in the making, is refused when it is asked for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from config.errors import UserError
from config.loading import parse_options
from config.schema import (
    CompareOptions,
    ExportOptions,
    ExtendOptions,
    Options,
    PrepareOptions,
    PushOptions,
    SynthesizeOptions,
    TokenizerOptions,
    TrainOptions,
    TranscribeOptions,
)
from core.job import asked
from core.job.directory import create
from core.job.journal import Failed, Journal, Queued
from core.job.locks import FileLock
from core.workspace import Workspace

VERBS = {PrepareOptions: "prepare", TokenizerOptions: "tokenizer", ExtendOptions: "extend", TrainOptions: "train",
         SynthesizeOptions: "synthesize", CompareOptions: "compare", ExportOptions: "export", PushOptions: "push"}


def check(workspace: Workspace, options: Options) -> tuple[str, ...]:
    return asked.check(workspace, VERBS[type(options)], options)


@pytest.mark.parametrize(("options", "message"), [
    (PrepareOptions(source="/nope/x"), "There is no source /nope/x"),
    (PrepareOptions(source="demo", model="nosuch"), "There is no base model named 'nosuch'"),
    (TokenizerOptions(dataset="nosuch"), "There is no dataset named 'nosuch'"),
    (TokenizerOptions(part="report", tokenizer="nosuch", dataset="neither"), "There is no tokenizer named 'nosuch'"),
    (ExtendOptions(tokenizer="nosuch"), "There is no tokenizer named 'nosuch'"),
    (TrainOptions(extension="nosuch"), "There is no extension named 'nosuch'"),
    (SynthesizeOptions(voice_model="run:nosuch"), "There is no run named 'nosuch'"),
    (SynthesizeOptions(voice_model="nosuch"), "'nosuch' names no model"),
    (CompareOptions(finetuned="export:nosuch"), "There is no export named 'nosuch'"),
    (ExportOptions(run="run:nosuch"), "There is no run named 'nosuch'"),
    (PushOptions(export="nosuch"), "There is no export named 'nosuch'"),
])
def test_what_is_not_there_is_refused_at_once(workspace: Workspace, options: Options, message: str) -> None:
    (workspace.models / "tiny").mkdir()
    with pytest.raises(UserError, match=message) as caught:
        check(workspace, options)
    assert caught.value.hint


def test_what_a_living_job_makes_is_waited_for(workspace: Workspace) -> None:
    (workspace.models / "tiny").mkdir()
    (workspace.datasets / "amharic-demo").mkdir()
    extending = create(workspace, "extend", ExtendOptions(extension="soon"))
    Journal(extending.journal).append(Queued())
    lock = FileLock.take(extending.lock)
    assert lock is not None
    assert check(workspace, TrainOptions(extension="soon")) == (extending.id,)
    lock.close()
    Journal(extending.journal).append(Failed("no"))
    with pytest.raises(UserError, match="no extension named 'soon'"):
        check(workspace, TrainOptions(extension="soon"))


def test_what_is_there_is_not_waited_for(workspace: Workspace) -> None:
    (workspace.models / "tiny").mkdir()
    assert check(workspace, PrepareOptions()) == ()


def test_an_empty_source_is_refused_and_a_relative_one_is_made_absolute() -> None:
    for empty in ("", "  "):
        with pytest.raises(UserError, match="source: it is empty; give `demo`, a folder"):
            parse_options(PrepareOptions, {"source": empty})
    assert parse_options(PrepareOptions, {"source": "my data"}).source == str(Path("my data").absolute())
    for kept in ("demo", "https://example.org/a.zip", "hub:me/speech"):
        assert parse_options(PrepareOptions, {"source": f" {kept}"}).source == kept
    assert parse_options(PrepareOptions, {"source": "hf://datasets/me/speech"}).source == "hub:me/speech"


@pytest.mark.parametrize(("given", "code"), [("EN", "en"), (" am ", "am"), ("pt_BR", "pt-br"), ("zh-Hant", "zh-hant")])
def test_a_language_code_is_made_plain(given: str, code: str) -> None:
    assert parse_options(PrepareOptions, {"language": given}).language == code


@pytest.mark.parametrize("given", ["english", "", "e", "am/..", "12", "Amharic"])
def test_what_is_no_language_code_is_refused(given: str) -> None:
    with pytest.raises(UserError, match="is no language code") as caught:
        parse_options(PrepareOptions, {"language": given})
    assert {"english": "`en`", "Amharic": "`am`"}.get(given, "such as") in caught.value.message


def test_faults_are_told_without_the_librarys_words() -> None:
    with pytest.raises(UserError) as caught:
        parse_options(TrainOptions, {"steps": None, "dataset": "../x"})
    assert "Value error" not in caught.value.message
    assert "None" not in caught.value.message
    assert "(nothing was given)" in caught.value.message


@pytest.mark.parametrize("chosen", [
    lambda folder: ("train", TrainOptions(judge=folder)),
    lambda folder: ("transcribe", TranscribeOptions(recogniser=folder)),
], ids=["judge", "recogniser"])
def test_a_folder_that_holds_no_recogniser_is_refused_at_once(
        tmp_path: Path, workspace: Workspace, chosen: Callable[[str], tuple[str, Options]]) -> None:
    for folder in (tmp_path / "none", tmp_path):
        with pytest.raises(UserError, match="holds no recogniser"):
            asked.check(workspace, *chosen(str(folder)))
