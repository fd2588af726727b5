"""With `--sources`, no record, row or value names a file outside, and no answer tells what exists there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import gradio as gr
import numpy as np
import pytest
import soundfile
import yaml
from pydantic import ValidationError

from config import confinement, foreign
from config.errors import UserError
from config.schema import (
    EvaluateOptions,
    PackOptions,
    TrainingEvaluationOptions,
    TrainOptions,
    in_sections,
    without_sections,
)
from core import pack
from core.dataset import original_recordings
from core.jobs.job import load_job
from core.jobs.state import JobBoard, JobReader
from core.library import artefacts, reference_voices
from core.library.lineage import Model
from core.sources import allowed, base_models, dataset_source, source_preview
from core.sources.downloader import DownloadProgress
from core.submission import job_subjects, storage
from core.text import manuscript
from core.workspace import Workspace
from data import manifest, sound_files
from data.importers.rows import COLUMNS, RecordingLookup, leads_out
from tests.hostile import foreign_workspace
from tests.unit.hub_model import Recorder
from ui import records
from ui.live import guarded

SECRET = "a sentence that nobody here may read"
HERE, MISSING = "canary", "canarz"  # names that are as like to any other


@pytest.fixture
def workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A confined workspace with an artefact of each kind, beside a folder `secret` that looks like one of each."""
    workspace = foreign_workspace.build(tmp_path / "workspace")
    secret = tmp_path / "secret"
    for folder in ("voices", "audio", "front_end"):
        (secret / folder).mkdir(parents=True)
    row = {"id": "a", "audio": "audio/a.wav", "text": SECRET, "language": "am", "split": "train", "duration_s": 5.0,
           "speaker": SECRET, "sha256": "0"}
    lines = [json.dumps(row), json.dumps({**row, "split": "held_out"})]
    (secret / "manifest.jsonl").write_text("\n".join(lines))
    (secret / "dataset.yaml").write_text(yaml.safe_dump({"language": SECRET, "clips": 5, "licence": SECRET}))
    (secret / "report.json").write_text(json.dumps({"language": SECRET}))
    (secret / f"{HERE}.txt").write_text(SECRET)
    for path in (secret / f"{HERE}.wav", secret / "audio" / "a.wav", secret / "voices" / f"{SECRET}.wav"):
        soundfile.write(path, np.full(80_000, 0.1, np.float32), 16_000)
    (tmp_path / "allowed").mkdir()
    monkeypatch.chdir(tmp_path / "allowed")
    monkeypatch.setenv(confinement.VARIABLE, "")
    confinement.limit(workspace.path, [str(tmp_path / "allowed")])
    yield workspace
    confinement._PINS.close()
    confinement._WORKSPACES.clear()


NAMES: dict[str, Callable[[Path], str]] = {
    "up": lambda root: "../../secret", "absolute": lambda root: f"{root}/secret",
    "down and up": lambda root: "clips/../../../secret", "the process": lambda root: f"/proc/self/root{root}/secret",
}


def imported_run(workspace: Workspace, **options: object) -> str:
    """A run whose `config.yaml` has these options, as others may have packed it."""
    path = workspace.runs / foreign_workspace.RUN / "config.yaml"
    values = yaml.safe_load(path.read_text())
    values["options"] = in_sections(TrainOptions, {**without_sections(TrainOptions, values["options"]), **options})
    path.write_text(yaml.safe_dump(values))
    return foreign_workspace.RUN


@pytest.mark.parametrize("way", NAMES)
def test_no_name_in_a_record_reads_a_folder_outside(way: str, workspace: Workspace, tmp_path: Path) -> None:
    name = NAMES[way](tmp_path)
    run = imported_run(workspace, dataset=name, extension=name)
    state = JobReader(load_job(workspace, run)).state()
    with pytest.raises(UserError):
        Model.open(workspace, f"base:{name}")
    seen = [job_subjects.subject(state), records.dataset(workspace, name), records.held_out_texts(workspace, name),
            original_recordings.original_recording(workspace, name, SECRET),
            artefacts.languages_of_dataset(workspace, name), reference_voices.list_speakers(workspace.datasets / name)]
    folder = workspace.exports / foreign_workspace.EXPORT
    values = json.loads((folder / "export.json").read_text())
    values |= {"dataset": name, "origin": values["origin"] | {"model": name}}
    (folder / "export.json").write_text(json.dumps(values))
    export = Model(workspace, f"export:{foreign_workspace.EXPORT}", "export", foreign_workspace.EXPORT, folder)
    seen += [export.speakers(), export.voices]
    shown = repr(seen)
    assert SECRET not in shown


@pytest.mark.parametrize("way", ["up", *(pytest.param(way, marks=pytest.mark.slow) for way in list(NAMES)[1:])])
@pytest.mark.parametrize("option", ["dataset", "extension"])
def test_no_folder_outside_is_packed_with_a_run_that_names_it(option: str, way: str, workspace: Workspace,
                                                             tmp_path: Path) -> None:
    (tmp_path / "secret" / "extension.json").write_text("{}")
    run = imported_run(workspace, **{option: NAMES[way](tmp_path)})
    reporter = Recorder(workspace.runs / "packing")
    reporter.directory.mkdir()
    result = pack.run(PackOptions(item=f"run:{run}", data=True, model=True), workspace, reporter)
    assert SECRET.encode() not in (reporter.directory / str(result["archive"])).read_bytes()
    assert "secret" not in f"{result['packed']} {result['missing']}"
    assert all("/" not in dependency.item.name
               for dependency in storage.find_dependencies(workspace, JobBoard(workspace).states()))


def test_a_folder_whose_path_would_be_read_as_two_is_no_source(workspace: Workspace, tmp_path: Path) -> None:
    folder = tmp_path / "allowed:" / "secret"
    folder.mkdir(parents=True)
    with pytest.raises(UserError, match="two folders"):
        confinement.limit(workspace.path, [str(folder)])


def test_an_item_whose_name_is_a_path_has_no_place(workspace: Workspace, tmp_path: Path) -> None:
    for name in ("../../secret", f"{tmp_path}/secret", "..", "", ".bin"):
        with pytest.raises(UserError, match="names nothing that is stored"):
            storage.Item("dataset", name).path(workspace)


READERS: dict[str, Callable[[Path], object]] = {
    "text": foreign.read_text, "JSON": foreign.read_json, "YAML": foreign.read_yaml,
    "a sound": lambda path: sound_files.read_sound(path), "its duration": lambda path: sound_files.file_duration(path),
    "a dataset": lambda path: manifest.load_card(path.parent),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("way", ["up", "absolute"])
def test_a_reader_refuses_a_name_outside_in_the_same_words_whether_it_exists(reader: str, way: str,
                                                                            workspace: Workspace,
                                                                            tmp_path: Path) -> None:
    answers = list[str]()
    for name in ("dataset.yaml", "dataset.yamm") if reader != "a dataset" else ("dataset.yaml",):
        folder = workspace.datasets / "../../secret" if way == "up" else tmp_path / "secret"
        with pytest.raises(UserError) as refusal:
            READERS[reader](folder / name)
        assert SECRET not in str(refusal.value)
        answers.append(refusal.value.message.replace("yamm", "yaml"))
    assert len(set(answers)) == 1


def test_the_apps_own_files_and_its_temporary_ones_stay_readable(workspace: Workspace, tmp_path: Path) -> None:
    assert foreign.read_bytes(Path(__file__).parents[2] / "data" / "probe_sentences.jsonl")
    with confinement.temporary_folder() as folder:
        (folder / "a.txt").write_text("mine")
        assert foreign.read_text(folder / "a.txt") == "mine"
    other = tmp_path / "other.txt"
    other.write_text("mine")
    with pytest.raises(UserError, match="may be read"):
        foreign.read_text(other)


TABLES: dict[str, tuple[str, Callable[[str], str]]] = {
    "CSV": ("metadata.csv", lambda name: f"file,text\n{name},hello\ngood.wav,more\n"),
    "JSON lines": ("clips.jsonl", lambda name: "".join(
        json.dumps({"audio": audio, "text": "hello"}) + "\n" for audio in (name, "good.wav"))),
    "a list": ("list.txt", lambda name: f"{name}|hello\ngood.wav|more\n"),
    "no header": ("pairs.csv", lambda name: f"{name},hello there\ngood.wav,some more\n"),
    "swapped": ("metadata.csv", lambda name: f"file,text\nhello,{name}\ngood.wav,more\n"),
    "FLEURS": ("train.tsv", lambda name: f"1\t{name}\tHello\thello\th\t100\tMALE\n"),
    "GPT-SoVITS": ("x/asr.list", lambda name: f"{name}|a|zh|hello there\n{name}|b|zh|more of it\n"),
    "Kaldi": ("wav.scp", lambda name: f"a {name}\n"),
    "STM": ("a.stm", lambda name: f"{name} 1 spk 0.0 1.0 <o> hello\n"),
}
FORMS: dict[str, Callable[[Path, str], str]] = {
    "up": lambda root, name: f"../../secret/{name}.wav", "absolute": lambda root, name: f"{root}/secret/{name}.wav",
    "down and up": lambda root, name: f"audio/../../../secret/{name}.wav",
    "further up": lambda root, name: f"../../../secret/{name}.wav",
    "the process": lambda root, name: f"/proc/self/root{root}/secret/{name}.wav",
}


def told(source: Path, workspace: Workspace) -> str:
    """What the preview and the import of a source say."""
    answers = []
    try:
        answers += source_preview.preview(str(source), "am")
        with dataset_source.open_source(str(source), "am", workspace, Recorder(workspace.path)) as opened:
            imported = dataset_source.read_rows(opened, "am", Recorder(workspace.path))
            answers += [imported.form, *map(repr, imported)]
    except UserError as error:
        answers.append(error.message)
    return "\n".join(answers)


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("form", ["up", *(pytest.param(form, marks=pytest.mark.slow) for form in list(FORMS)[1:])])
def test_a_row_does_not_tell_whether_a_file_outside_exists(form: str, table: str, workspace: Workspace,
                                                          tmp_path: Path) -> None:
    folder = tmp_path / "allowed" / "source"
    for inside in ("audio/train", "train", "sph", "wav", "x"):
        (folder / inside).mkdir(parents=True)
    soundfile.write(folder / "good.wav", np.full(8000, 0.1, np.float32), 8000)
    (folder / "text").write_text("a hello\n")
    path, content = folder / TABLES[table][0], TABLES[table][1]
    answers = []
    for name in (HERE, MISSING):
        path.write_text(content(FORMS[form](tmp_path, name)))
        answers.append((told(folder, workspace) + told(path, workspace)).replace(name, "NAME"))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("column", [COLUMNS["audio"][0], *(
    pytest.param(column, marks=pytest.mark.slow) for column in COLUMNS["audio"][1:])])
def test_no_column_of_recordings_tells_whether_a_file_outside_exists(column: str, workspace: Workspace,
                                                                    tmp_path: Path) -> None:
    folder = tmp_path / "allowed" / "source"
    folder.mkdir()
    soundfile.write(folder / "good.wav", np.full(8000, 0.1, np.float32), 8000)
    answers = []
    for name in (HERE, MISSING):
        (folder / "metadata.csv").write_text(
            f"{column},text\n../../secret/{name}.wav,a\n{tmp_path}/secret/{name}.wav,b\ngood.wav,c\n")
        answers.append(told(folder, workspace).replace(name, "NAME"))
    assert answers[0] == answers[1]


def test_a_lookup_finds_what_climbs_and_stays_inside(tmp_path: Path) -> None:
    (tmp_path / "wavs").mkdir()
    (tmp_path / "clips").mkdir()
    soundfile.write(tmp_path / "clips" / "a.wav", np.zeros(80, np.float32), 8000)
    assert RecordingLookup(tmp_path, foreign=True).find("../clips/a.wav") == tmp_path / "wavs" / ".." / "clips/a.wav"
    assert [leads_out(path) for path in ("a/../b", "../a", "a/../../b", "/a", "..\\a", "..a", "")] == [
        False, True, True, True, True, False, False]


@pytest.mark.parametrize("form", [
    "{root}/secret/{name}.txt", "../secret/{name}.txt", "./../secret/{name}.txt", "x/../../secret/{name}.txt",
    "~/{name}", "folder:{root}/secret/{name}", "hub:../secret/{name}", " {root}/secret/{name}.txt\n",
    "~nobody-{name}/a"])
def test_a_value_of_the_page_does_not_tell_whether_a_path_exists(form: str, workspace: Workspace,
                                                                tmp_path: Path) -> None:
    answers = []
    for name in (HERE, MISSING):
        with pytest.raises(UserError) as refusal:
            allowed.check_value(form.format(root=tmp_path, name=name))
        answers.append(refusal.value.message.replace(name, "NAME"))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("text", ["and/or", "a word", "1/2", "...", ".. and so on", "a/b/c.d", "~5 minutes",
                                  "what/is.this\n/etc/passwd", "one/two"])
def test_an_ordinary_word_is_a_value_of_the_page(text: str, workspace: Workspace) -> None:
    allowed.check_value(text)


def test_a_text_of_several_lines_is_never_taken_for_a_path(workspace: Workspace) -> None:
    events = list[tuple[object, ...]]()

    def note(*values: object) -> list[object]:
        events.append(values)
        return [None]

    with gr.Blocks():
        text, path = gr.Textbox(lines=3), gr.Textbox()
    run = guarded(note, 1, workspace, [text, path])
    run("/etc/hostname is a file", "a")
    assert events == [("/etc/hostname is a file", "a")]
    assert "may be read" in str(run("a", "/etc/hostname"))


def test_what_the_page_opens_is_closed_behind_its_action(workspace: Workspace, tmp_path: Path) -> None:
    path = tmp_path / "allowed" / "words.txt"
    path.write_text("US -> you ess\n")
    run = guarded(lambda value: [manuscript.read_pronunciations(value)], 1, workspace)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        assert run(str(path)) == {"US": "you ess"}
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("language", ["x/../../secret", "/etc", "..\\x", "a\0b"])
def test_a_recognisers_language_is_no_path(language: str) -> None:
    for kind in (EvaluateOptions, TrainingEvaluationOptions):
        with pytest.raises(ValidationError, match="no name of a language"):
            kind(recogniser_language=language)


def test_a_model_file_exchanged_for_a_link_is_not_taken(workspace: Workspace, tmp_path: Path) -> None:
    source, target = tmp_path / "allowed" / "config.yaml", workspace.models / "config.yaml"
    source.symlink_to(tmp_path / "secret" / f"{HERE}.txt")
    progress = DownloadProgress(Recorder(workspace.path), 1)
    with pytest.raises(UserError, match="may be read"):
        base_models._link_or_copy(source, target, progress)
    assert not target.exists()
    source.unlink()
    source.write_text("mine")
    base_models._link_or_copy(source, target, progress)
    assert target.read_text() == "mine"


def test_a_recording_of_the_workspace_that_is_a_link_out_is_not_read(workspace: Workspace, tmp_path: Path) -> None:
    workspace.voices.mkdir()
    (workspace.voices / "mine.wav").symlink_to(tmp_path / "secret" / f"{HERE}.wav")
    (workspace.voices / "none.wav").symlink_to(tmp_path / "secret" / f"{MISSING}.wav")
    with pytest.raises(UserError, match="may be read"):
        reference_voices.read_recording(workspace.voices / "mine.wav")
    assert [path.name for path in reference_voices.list_recordings(workspace)] == ["mine.wav"]


def test_a_relative_word_tells_nothing_of_the_apps_folder(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "allowed" / "owner" / "name").mkdir(parents=True)
    (tmp_path / "allowed" / "voice.wav").write_bytes(b"")
    options = EvaluateOptions(models=("base:tiny",), recogniser="owner/name", voices=("voice.wav",))
    assert (options.recogniser, options.voices) == ("owner/name", ("voice.wav",))
