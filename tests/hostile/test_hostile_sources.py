"""With `--sources`, nothing outside of the folders is opened, whatever a path is spelled like or exchanged for."""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from config import confinement, foreign
from config.errors import UserError
from config.loading import parse_options
from config.schema import (
    AlignOptions,
    CompareTokenizersOptions,
    DoctorOptions,
    EvaluateOptions,
    Options,
    PathOption,
    PrepareOptions,
    SynthesizeOptions,
    TrainOptions,
    UnpackOptions,
    path_options,
)
from core import synthesize
from core.jobs import worker
from core.jobs.job import Job, create_job
from core.jobs.locks import FileLock
from core.jobs.verbs import VERBS
from core.sources import allowed, dataset_source, recognisers, source_preview
from core.submission.jobs import check_requirements
from core.text import pasted_text
from core.workspace import Workspace
from data import ffmpeg_audio, sound_files, validation
from data.importers import SkippedRow, SourceRow
from tests.unit.hub_model import Recorder

SECRET_TEXT = "am\tthe secret sentence\n"


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A confined workspace; `tmp_path` has a folder that may be read, and a secret one."""
    workspace = Workspace.open(tmp_path / "workspace")
    for name in ("allowed", "secret"):
        folder = tmp_path / name
        folder.mkdir()
        soundfile.write(folder / f"{name}1.wav", np.full(8000, 0.1, np.float32), 8000)
        (folder / f"{name}1.txt").write_text(f"a text of {name}\n")
        (folder / "eval.txt").write_text(SECRET_TEXT)
        (folder / "tokenizer.json").write_text("{}")
    (tmp_path / "allowed" / "inner").mkdir()
    monkeypatch.chdir(tmp_path / "allowed" / "inner")
    monkeypatch.setenv(confinement.VARIABLE, "")
    confinement.limit(workspace.path, [str(tmp_path / "allowed")])
    yield workspace
    confinement._PINS.close()
    confinement._WORKSPACES.clear()


@pytest.fixture
def secret_opens(tmp_path: Path) -> Iterator[list[str]]:
    """Files below the secret folder that Python opened during a test."""
    seen: list[str] = []
    watching = [True]

    def watch(event: str, arguments: tuple[object, ...]) -> None:
        if watching and event == "open" and isinstance(arguments[0], str | bytes) and not (
                isinstance(arguments[2], int) and arguments[2] & os.O_PATH):  # it reads nothing
            real = os.path.realpath(os.fsdecode(arguments[0]))
            if real.startswith(f"{tmp_path}/secret"):
                seen.append(real)

    sys.addaudithook(watch)  # a hook cannot be removed
    yield seen
    watching.clear()


Spell = Callable[[Path, str], str]
"""How to write the path of the secret `name` in the folder that holds both folders."""
SPELLINGS: dict[str, Spell] = {
    "plain": lambda root, name: f"{root}/secret/{name}",
    "5,000 spaces": lambda root, name: " " * 5000 + f"{root}/secret/{name}",
    "spaces behind": lambda root, name: f"{root}/secret/{name}" + " " * 5000,
    "line ends around": lambda root, name: f"\n\t{root}/secret/{name}\n",
    "5,000 slashes": lambda root, name: "/" * 5000 + f"{root}/secret/{name}",
    "2,000 dots": lambda root, name: "/." * 2500 + f"{root}/secret/{name}",
    "a few dots": lambda root, name: f"{root}/./secret//{name}",
    "out of the folder": lambda root, name: f"{root}/allowed/../secret/{name}",
    "out of an inner folder": lambda root, name: f"{root}/allowed/inner/../../secret/{name}",
    "relative": lambda root, name: f"../../secret/{name}",
    "relative with a dot": lambda root, name: f"./../../secret/{name}",
    "a folder that is not there": lambda root, name: f"{root}/allowed/none/../../secret/{name}",
    "a link to the file": lambda root, name: f"{root}/allowed/link-file-{name}",
    "a link to the folder": lambda root, name: f"{root}/allowed/link-folder/{name}",
    "a link to a link": lambda root, name: f"{root}/allowed/link-link/{name}",
    "a relative link": lambda root, name: f"{root}/allowed/link-relative/{name}",
    "the root of the process": lambda root, name: f"/proc/self/root{root}/secret/{name}",
    "the folder of the process": lambda root, name: f"/proc/self/cwd/../../secret/{name}",
    "the root of a thread": lambda root, name: f"/proc/thread-self/root{root}/secret/{name}",
    "a missing file": lambda root, name: f"{root}/secret/missing-{name}",
    "a folder with a like name": lambda root, name: f"{root}/allowed-not/{name}",
    "the folder above": lambda root, name: f"{root}",
    "the root": lambda root, name: "/",
    "a device": lambda root, name: "/dev/zero",
    "the environment": lambda root, name: "/proc/self/environ",
}
QUICK_SPELLINGS = ("5,000 spaces", "relative", "a link to the folder", "the root of the process")


def spell(way: str, root: Path, name: str) -> str:
    links = {f"link-file-{name}": root / "secret" / name, "link-folder": root / "secret",
             "link-link": root / "allowed" / "link-folder", "link-relative": Path("../secret")}
    for link, target in links.items():
        (root / "allowed" / link).unlink(missing_ok=True)
        if link in SPELLINGS[way](root, name):
            (root / "allowed" / link).symlink_to(target)
            if link == "link-link":
                (root / "allowed" / "link-folder").unlink(missing_ok=True)
                (root / "allowed" / "link-folder").symlink_to(root / "secret")
    (root / "allowed-not").mkdir(exist_ok=True)
    return SPELLINGS[way](root, name)


def marked_options(kind: type[Options]) -> Iterator[tuple[tuple[str, ...], PathOption, bool]]:
    """The place of every option of kind path, its marker, and whether it takes several."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
            for inner, marker, several in marked_options(field.annotation):
                yield (name, *inner), marker, several
        for marker in field.metadata:
            if isinstance(marker, PathOption):
                yield (name,), marker, str(field.annotation).startswith("tuple")


PATHS = [(verb, place, marker, several) for verb, entry in VERBS.items()
         for place, marker, several in marked_options(entry.options)]
REQUIRED = {"segments": "a", "language": "sw", "dataset": "a", "source": "demo"}


def job_with(workspace: Workspace, verb: str, place: tuple[str, ...], value: object) -> Job:
    """A job whose configuration has `value` at `place`, as the page or an imported run may have written it."""
    kind = VERBS[verb].options
    values: dict[str, object] = {name: given for name, given in REQUIRED.items() if name in kind.model_fields}
    if verb == "import_model":
        values["base"] = "tiny"
    if verb in ("segment", "align"):
        values["source"] = str(workspace.path)
    inner = value
    for name in reversed(place[1:]):
        inner = {name: inner}
    values[place[0]] = inner
    return Job(workspace.runs / "one", verb, "cpu", (), 1.0, values)


def test_every_option_that_opens_a_path_is_marked():
    words = ("path", "file", "folder", "recording")
    harmless = {"voice_model", "base", "finetuned", "item", "speakers", "lines", "max_clips", "text", "language",
                "split_disjoint_by", "evaluation_metrics", "count", "validation_disjoint_by", "recogniser_language",
                "rules", "replay_datasets", "flow_prompt_s", "emotion", "held_out", "licence", "add_to", "init_from",
                "emotion_strength", "sample_rate", "tracker", "dataset", "model", "happy", "watermark", "lufs",
                "evaluation", "restore", "accept_unknown", "run", "channel", "signer", "shard",
                "variant_noise", "denoise", "any_script", "byte_fallback", "duration_s"}
    for verb, entry in VERBS.items():
        marked = {place[-1] for _verb, place, _marker, _several in PATHS if _verb == verb}
        waiting: list[type[Options]] = [entry.options]
        while waiting:
            for name, field in waiting.pop().model_fields.items():
                if isinstance(field.annotation, type) and issubclass(field.annotation, Options):
                    waiting.append(field.annotation)
                elif "str" in str(field.annotation) and any(
                        word in f"{name} {field.title} {field.description}".lower() for word in words):
                    assert name in marked or name in harmless, f"{verb}: {name}"
    assert len(PATHS) >= 25


@pytest.mark.parametrize(("verb", "place", "marker", "several"), PATHS,
                         ids=[f"{verb}-{'.'.join(place)}" for verb, place, _, _ in PATHS])
def test_a_path_option_of_a_verb_opens_only_what_is_inside(
    verb: str, place: tuple[str, ...], marker: PathOption, several: bool, workspace: Workspace, tmp_path: Path,
) -> None:
    for way in SPELLINGS:
        for name in ("eval.txt", "."):
            spelled = spell(way, tmp_path, name)
            for value in {f"{marker.prefix}{spelled}", f"hub:{spelled}" if place[-1] == "recogniser" else spelled}:
                job = job_with(workspace, verb, place, [value] if several else value)
                try:
                    paths = [path for _name, path in path_options(worker.checked_options(job))]
                except UserError:
                    continue
                for path in paths:  # what it was read as lies inside
                    assert confinement._may_be_read(os.path.realpath(path)), (way, value, path)
                assert paths or not os.path.exists(os.path.expanduser(spelled.strip())) or "/" not in spelled, way
    for inside in (tmp_path / "allowed" / "eval.txt", workspace.path / "cache"):
        value = f"{marker.prefix}{inside}"
        options = worker.checked_options(job_with(workspace, verb, place, [value] if several else value))
        assert str(inside) in [path for _name, path in path_options(options)]


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.sampled_from(["..", ".", "", "allowed", "secret", "inner", "eval.txt", "link", "~", " ",
                                       "workspace", "cache", "missing", "\u202e"]), min_size=1, max_size=12),
       absolute=st.booleans())
def test_what_is_opened_lies_inside_whatever_the_path(parts: list[str], absolute: bool, workspace: Workspace,
                                                      tmp_path: Path) -> None:
    link = tmp_path / "allowed" / "link"
    if not link.is_symlink():
        link.symlink_to(tmp_path / "secret")
    path = "/".join(parts)
    path = f"{tmp_path}/{path}" if absolute else path
    try:
        with confinement.opened(path) as opened:
            real = os.path.realpath(opened)
    except UserError:
        return
    assert Path(real).is_relative_to(tmp_path / "allowed") or Path(real).is_relative_to(workspace.path)


OPTIONS_OF_THE_PAGE: dict[str, Callable[[str], tuple[str, Options]]] = {
    "prepare": lambda path: ("prepare", PrepareOptions(source=path, dataset="a", language="sw")),
    "evaluate, folder": lambda path: ("evaluate", EvaluateOptions(models=("base:tiny", f"folder:{path}"))),
    "evaluate, sentences": lambda path: ("evaluate", EvaluateOptions(models=("base:tiny",), sentences=path)),
    "evaluate, voices": lambda path: ("evaluate", EvaluateOptions(models=("base:tiny",), voices=(path,))),
    "evaluate, recogniser": lambda path: ("evaluate", EvaluateOptions(models=("base:tiny",),
                                                                      recogniser=f"hub:{path}")),
    "train, texts": lambda path: ("train", parse_options(TrainOptions, {"evaluation_texts": path})),
    "train, replay": lambda path: ("train", parse_options(TrainOptions, {"replay_texts": path})),
    "synthesize, file": lambda path: ("synthesize", SynthesizeOptions(file=path)),
    "synthesize, voice": lambda path: ("synthesize", SynthesizeOptions(text="a", voice=path)),
    "synthesize, archive": lambda path: ("synthesize", SynthesizeOptions(text="a", archive=f"{path}/a.zip")),
    "unpack": lambda path: ("unpack", UnpackOptions(archive=path)),
    "doctor": lambda path: ("doctor", DoctorOptions(part="model", base="tiny", checkpoint=path)),
    "align": lambda path: ("align", AlignOptions(source=path, segments="a", language="sw")),
    "lab": lambda path: ("compare_tokenizers", CompareTokenizersOptions(text=path)),
}


@pytest.mark.parametrize("kind", OPTIONS_OF_THE_PAGE)
@pytest.mark.parametrize("way", ["plain", *(pytest.param(way, marks=pytest.mark.slow) for way in (
    "relative", "a link to the file", "a missing file", "the root of the process"))])
def test_the_page_refuses_in_the_same_words_whether_the_path_exists(kind: str, way: str, workspace: Workspace,
                                                                   tmp_path: Path) -> None:
    verb, options = OPTIONS_OF_THE_PAGE[kind](spell(way, tmp_path, "eval.txt"))
    with pytest.raises(UserError, match="may be read"):
        check_requirements(workspace, verb, options)


@pytest.mark.parametrize("verb", [verb for verb in VERBS if any(verb == one for one, *_ in PATHS)])
def test_a_job_that_was_written_by_others_does_not_begin(verb: str, workspace: Workspace, tmp_path: Path) -> None:
    _verb, place, marker, several = next(path for path in PATHS if path[0] == verb)
    value = f"{marker.prefix}{tmp_path}/secret/eval.txt"
    settings_of_others = job_with(workspace, verb, place, [value] if several else value).settings
    job = create_job(workspace, verb, parse_options(VERBS[verb].options, settings_of_others), job_id="imported")
    lock = FileLock.acquire(job.lock)
    assert lock is not None
    called: list[Options] = []

    def run(options: Options, _workspace: Workspace, _reporter: object) -> dict[str, object]:
        called.append(options)
        return {}

    assert worker.run_job(job, lock, verbs={verb: run}) == worker.FAILED
    assert not called
    assert "may be read" in job.journal.read_text(encoding="utf-8")


VALUES: dict[str, Callable[[Path], object]] = {
    "a list": lambda root: ["base:tiny", f"folder:{root}/secret"], "in a list": lambda root: [[f"{root}/secret"]],
    "a folder of sounds": lambda root: f"folder:{root}/secret", "a hub's": lambda root: f"hub:{root}/secret",
    "spaces": lambda root: " " * 5000 + f"{root}/secret", "slashes": lambda root: "/" * 5000 + f"{root}/secret",
    "dots": lambda root: "/." * 3000 + f"{root}/secret", "relative": lambda root: "../../secret",
    "a link": lambda root: f"{root}/allowed/link", "home": lambda root: "~", "a tuple": lambda root: ("/etc",),
}


@pytest.mark.parametrize("kind", VALUES)
def test_a_value_of_the_page_is_refused_before_it_is_parsed(kind: str, workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError):
        allowed.check_value(VALUES[kind](tmp_path))
    for fine in ("a word", "one/two", "a" * 5000, f"{tmp_path}/allowed", [f"{tmp_path}/allowed"], None, 5, [1], "",
                 "https://example.org/" + "a" * 5000, "a text\n" * 2000):
        allowed.check_value(fine)


def rows(workspace: Workspace, source: Path | str) -> tuple[list[SourceRow], list[SkippedRow]]:
    with dataset_source.open_source(str(source), "am", workspace, Recorder(workspace.path)) as opened:
        entries = list(dataset_source.read_rows(opened, "am", Recorder(workspace.path)))
        for entry in entries:
            if isinstance(entry, SourceRow):
                validation.store_row(entry)
    return ([entry for entry in entries if isinstance(entry, SourceRow)],
            [entry for entry in entries if isinstance(entry, SkippedRow)])


TABLES: dict[str, Callable[[Path, str], str]] = {
    "metadata.csv": lambda root, name: f"file,text\n{name},x\n",
    "metadata.tsv": lambda root, name: f"file\ttext\n{name}\tx\n",
    "list.txt": lambda root, name: f"{name}|x\n",
    "clips.jsonl": lambda root, name: f'{{"audio": "{name}", "text": "x"}}\n',
    "clips.json": lambda root, name: f'[{{"audio": "{name}", "text": "x"}}]',
}
NAMES_OUTSIDE: dict[str, Callable[[Path], str]] = {
    "absolute": lambda root: f"{root}/secret/secret1.wav", "up": lambda root: "../secret/secret1.wav",
    "up from an upload": lambda root: "../../../../secret/secret1.wav", "the process": lambda root:
        f"/proc/self/root{root}/secret/secret1.wav", "a link": lambda root: "link.wav",
    "through a folder": lambda root: "linked/secret1.wav", "a scheme": lambda root: f"file://{root}/secret/secret1.wav",
}


@pytest.mark.parametrize("table", [table if table == "metadata.csv" else pytest.param(table, marks=pytest.mark.slow)
                                   for table in TABLES])
@pytest.mark.parametrize("name", NAMES_OUTSIDE)
@pytest.mark.parametrize("place", ["allowed/inner", "workspace/cache/incoming/hash", *(
    pytest.param(place, marks=pytest.mark.slow) for place in ("workspace/cache/uploads/one", "workspace/datasets/d"))])
def test_no_row_of_a_table_names_a_recording_outside(table: str, name: str, place: str, workspace: Workspace,
                                                     tmp_path: Path, secret_opens: list[str]) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    (folder / table).write_text(TABLES[table](tmp_path, NAMES_OUTSIDE[name](tmp_path)))
    if name == "a link":
        (folder / "link.wav").symlink_to(tmp_path / "secret" / "secret1.wav")
    if name == "through a folder":
        (folder / "linked").symlink_to(tmp_path / "secret")
    for source in (folder / table, folder):
        try:
            found, _skipped = rows(workspace, source)
        except UserError:
            continue
        assert not found
    assert not secret_opens


def test_a_table_of_the_workspace_is_foreign_without_sources_too(workspace: Workspace, tmp_path: Path,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(confinement.VARIABLE)
    folder = workspace.cache / "incoming" / "hash"
    folder.mkdir(parents=True)
    (folder / "list.csv").write_text(f"file,text\n{tmp_path}/secret/secret1.wav,x\n")
    found, skipped = rows(workspace, folder / "list.csv")
    assert not found
    assert len(skipped) == 1
    (tmp_path / "mine.csv").write_text(f"file,text\n{tmp_path}/secret/secret1.wav,x\n")
    assert len(rows(workspace, tmp_path / "mine.csv")[0]) == 1  # the author of the table could read it


def test_a_link_exchanged_while_the_job_waits_is_refused(workspace: Workspace, tmp_path: Path) -> None:
    link = tmp_path / "allowed" / "now"
    (tmp_path / "allowed" / "clips").mkdir()
    soundfile.write(tmp_path / "allowed" / "clips" / "a.wav", np.zeros(8000, np.float32), 8000)
    (tmp_path / "allowed" / "clips" / "a.txt").write_text("a text")
    link.symlink_to(tmp_path / "allowed" / "clips")
    worker.checked_options(job_with(workspace, "prepare", ("source",), str(link)))
    assert len(rows(workspace, link)[0]) == 1
    link.unlink()
    link.symlink_to(tmp_path / "secret")
    with pytest.raises(UserError, match="may be read"):
        rows(workspace, link)


def exchange(path: Path, target: Path) -> None:
    path.unlink()
    path.symlink_to(target)


def test_a_file_exchanged_after_it_was_opened_stays_the_file_that_was_checked(workspace: Workspace,
                                                                             tmp_path: Path) -> None:
    path, secret = tmp_path / "allowed" / "lines.txt", tmp_path / "secret" / "eval.txt"
    path.write_text("mine")
    with confinement.job(workspace.path):
        opened = confinement.open_path(path)
        exchange(path, secret)
        assert foreign.read_text(opened) == "mine"
        assert opened.name == "lines.txt"
    assert not opened.exists()


READERS: dict[str, Callable[[Path, Path], object]] = {
    "samples": lambda path, made: sound_files.read_samples(path),
    "duration": lambda path, made: sound_files.duration_and_rate(path),
    "blocks": lambda path, made: list(sound_files.read_blocks(path)),
    "spans": lambda path, made: list(sound_files.read_spans(path, [(0.0, 0.5)])),
    "a part": lambda path, made: sound_files.cut_to_flac(path, 0.0, 0.5),
    "bytes": lambda path, made: validation.store_row(SourceRow("a", path, "x", "1")),
    "text": lambda path, made: foreign.read_text(path),
    "a film": lambda path, made: ffmpeg_audio.extract_audio(path, made / "a.flac"),
    "the lab's text": lambda path, made: pasted_text.read_lines(str(path)),
    "a text to speak": lambda path, made: synthesize.read_texts(SynthesizeOptions(file=str(path))),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_recording_exchanged_for_a_link_while_the_job_runs_is_not_read(reader: str, workspace: Workspace,
                                                                        tmp_path: Path) -> None:
    path = tmp_path / "allowed" / "allowed1.wav"
    exchange(path, tmp_path / "secret" / "secret1.wav")
    with pytest.raises(UserError, match="may be read"):
        READERS[reader](path, tmp_path)


def test_an_archive_exchanged_for_a_link_is_not_unpacked(workspace: Workspace, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "secret" / "a.zip", "w") as archive:
        archive.writestr("a.txt", "secret")
    (tmp_path / "allowed" / "a.zip").symlink_to(tmp_path / "secret" / "a.zip")
    with pytest.raises(UserError, match="may be read"):
        rows(workspace, tmp_path / "allowed" / "a.zip")


@pytest.mark.parametrize("way", QUICK_SPELLINGS)
def test_the_preview_of_a_source_tells_nothing_of_a_secret_folder(way: str, workspace: Workspace, tmp_path: Path,
                                                                 secret_opens: list[str]) -> None:
    with pytest.raises(UserError) as refusal:
        source_preview.preview(spell(way, tmp_path, ".").strip(), "am")
    assert "may be read" in str(refusal.value) or "leads out" in str(refusal.value)
    assert not secret_opens


@pytest.mark.parametrize("way", ["plain", "a link to the folder", "a missing file"])
def test_a_recogniser_of_a_record_is_not_loaded_from_outside(way: str, workspace: Workspace, tmp_path: Path,
                                                            secret_opens: list[str]) -> None:
    (tmp_path / "secret" / "config.json").write_text("{}")
    secret_opens.clear()
    path = spell(way, tmp_path, ".")
    for load in (lambda: recognisers.locate(workspace, path),
                 lambda: recognisers.ensure_recogniser(path, "main", (), workspace, Recorder(workspace.path))):
        with pytest.raises(UserError, match="may be read|leads out"):
            load()
    assert not secret_opens


def test_an_error_names_the_path_that_was_given(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "allowed" / "empty.txt"
    path.write_text("")
    with pytest.raises(UserError) as refusal, confinement.job(workspace.path):
        synthesize.read_texts(SynthesizeOptions(file=str(path)))
    assert str(path) in refusal.value.message
    assert "lisan-source" not in refusal.value.message


def test_an_artefact_on_another_disk_stays_readable(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a.txt").write_text("x")
    (workspace.models / "large").symlink_to(tmp_path / "disk")
    confinement.check(workspace.models / "large" / "a.txt")
    assert foreign.read_text(workspace.models / "large" / "a.txt") == "x"
    (tmp_path / "allowed" / "link").symlink_to(tmp_path / "secret")
    with pytest.raises(UserError):
        confinement.check(tmp_path / "allowed" / "link" / "eval.txt")
