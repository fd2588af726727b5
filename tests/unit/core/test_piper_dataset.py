"""A dataset for Piper holds what a recogniser understood, in the layout that Piper's loader reads."""

from __future__ import annotations

import csv
import io
import os
import sys
import zipfile
from collections import Counter
from pathlib import Path

import pytest
import soundfile
import torch

from config.errors import UserError
from config.schema import Options, PiperDatasetOptions, SynthesizeOptions
from core import piper_dataset
from core.jobs.reporter import StopRequested
from core.submission.jobs import check_requirements
from core.workspace import Workspace
from models.base import RecognitionScore
from scripts import export
from scripts.command import USAGE_ERROR
from tests.trained import RUN, change_checkpoint, trained_world
from tests.worlds import Listener

CLEAR, UNCLEAR, LATER_CLEAR = "ሀለመ", "ሰረቀ", "በተነ"


class FakeRecogniser:
    """Hears one sentence always, one never, and one at the second attempt."""

    languages = ("am",)

    def __init__(self) -> None:
        self.attempts: Counter[str] = Counter()

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        self.attempts[text] += 1
        heard = text == CLEAR or (text == LATER_CLEAR and self.attempts[text] == 2)
        return RecognitionScore.of(text, text if heard else "")


class StoppedAfterABatch(Listener):
    """Asks for a stop as soon as sentences were spoken."""

    def stop_requested(self) -> bool:
        return any(event.unit == "sentences" for event in self.of("progress"))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    return trained_world(tmp_path_factory.mktemp("world") / "workspace")


@pytest.fixture
def recogniser(monkeypatch: pytest.MonkeyPatch) -> FakeRecogniser:
    fake = FakeRecogniser()
    monkeypatch.setattr(piper_dataset, "load_recogniser_or_warn", lambda *_arguments, **_options: fake)
    return fake


def options(path: Path, lines: list[str], **changes: object) -> PiperDatasetOptions:
    (path / "lines.txt").write_text("\n".join(lines), encoding="utf-8")
    return PiperDatasetOptions.model_validate(
        {"voice_model": f"run:{RUN}", "file": str(path / "lines.txt"), "device": "cpu", **changes})


def rows(archive: zipfile.ZipFile, name: str) -> list[list[str]]:
    """The rows of a table as Piper's loader reads them."""
    return list(csv.reader(io.StringIO(archive.read(name).decode()), delimiter="|"))


def test_what_is_not_understood_is_spoken_again_and_then_left_out(
    world: Workspace, recogniser: FakeRecogniser, tmp_path: Path,
) -> None:
    listener = Listener(world.runs / "filtered")
    lines = [CLEAR, "", UNCLEAR, LATER_CLEAR, CLEAR, "hello 日本"]
    result = piper_dataset.run(options(tmp_path, lines, archive=str(tmp_path / "piper.zip")), world, listener)
    assert recogniser.attempts == {CLEAR: 1, LATER_CLEAR: 2, UNCLEAR: 3}
    assert (result["clips"], result["left_out"], result["error"]) == (2, 2, 0.0)

    with zipfile.ZipFile(tmp_path / "piper.zip") as archive:
        assert rows(archive, "metadata.csv") == [["00001", CLEAR, CLEAR], ["00003", LATER_CLEAR, LATER_CLEAR]]
        (second, (number, text, reason)) = rows(archive, "left_out.csv")
        assert second == ["00002", UNCLEAR, "CER 100% at best"]
        assert (number, text) == ("00004", "hello 日本")
        assert "vocabulary" in reason
        assert {name for name in archive.namelist() if name.startswith("wavs/")} == {
            "wavs/00001.wav", "wavs/00003.wav"}
        sound, rate = soundfile.read(io.BytesIO(archive.read("wavs/00001.wav")))
        assert (rate, sound.ndim) == (22_050, 1)
        assert len(sound) > 0
        assert "2 of 4 sentences" in archive.read("README.md").decode()


def test_greedy_decoding_is_not_repeated(world: Workspace, recogniser: FakeRecogniser, tmp_path: Path) -> None:
    settings = options(tmp_path, [CLEAR, UNCLEAR, LATER_CLEAR], sampling={"temperature": 0.0})
    assert piper_dataset.run(settings, world, Listener(world.runs / "greedy"))["left_out"] == 2
    assert recogniser.attempts == {CLEAR: 1, LATER_CLEAR: 1, UNCLEAR: 1}


def test_a_resume_speaks_only_what_is_missing(world: Workspace, recogniser: FakeRecogniser, tmp_path: Path) -> None:
    syllables = "ሀለመሰረቀበተነከ"
    lines = [syllables[index:index + 2] for index in range(9)]
    folder = world.runs / "resumed"
    wanted = options(tmp_path, lines, max_cer=1)
    with pytest.raises(StopRequested, match="after 8 sentences"):
        piper_dataset.run(wanted, world, StoppedAfterABatch(folder))

    # A line that a crash cut off, and a file that is gone, are spoken again.
    (folder / "wavs" / "00002.wav").unlink()
    with (folder / "sentences.jsonl").open("ab") as file:
        file.write('{"number": 9, "text": "ሀ'.encode()[:-1])
    before = {path.name: path.stat().st_mtime_ns for path in (folder / "wavs").iterdir()}
    waves = dict[str, int]()
    listener = Listener(folder)
    emit = listener.emit

    def watched(event: object) -> None:
        for path in (folder / "wavs").iterdir() if (folder / "wavs").is_dir() else ():
            waves[path.name] = path.stat().st_mtime_ns
        emit(event)  # type: ignore[arg-type]

    listener.emit = watched  # type: ignore[method-assign]
    assert piper_dataset.run(wanted, world, listener)["clips"] == 9
    assert {name for name, time_ns in waves.items() if before.get(name) != time_ns} == {"00002.wav", "00009.wav"}


@pytest.mark.parametrize("changed", [False, True])
def test_a_resume_with_another_checkpoint_uses_no_old_sentence(world: Workspace, recogniser: FakeRecogniser,
                                                               tmp_path: Path, changed: bool) -> None:
    syllables = "ሀለመሰረቀበተነከ"
    settings = options(tmp_path, [syllables[index:index + 2] for index in range(9)], max_cer=1)
    folder = world.runs / f"checkpoint-{changed}"
    with pytest.raises(StopRequested, match="after 8 sentences"):
        piper_dataset.run(settings, world, StoppedAfterABatch(folder))
    if changed:
        change_checkpoint(world)
    listener = Listener(folder)
    piper_dataset.run(settings, world, listener)
    plan = " ".join(listener.of("plan")[0].lines)
    assert ("8 sentences were spoken before" in plan) != changed


def test_a_copy_that_fails_loses_no_speech(world: Workspace, recogniser: FakeRecogniser, tmp_path: Path) -> None:
    archive = tmp_path / "disk" / "piper.zip"
    settings = options(tmp_path, [CLEAR, LATER_CLEAR], archive=str(archive))
    with pytest.raises(UserError, match="piper.zip could not be written: No such file"):
        piper_dataset.run(settings, world, Listener(world.runs / "uncopied"))
    attempts = Counter(recogniser.attempts)
    archive.parent.mkdir()
    assert piper_dataset.run(settings, world, Listener(world.runs / "uncopied"))["clips"] == 2
    assert recogniser.attempts == attempts
    assert zipfile.is_zipfile(archive)
    assert not (world.runs / "uncopied" / "wavs").exists()


@pytest.mark.parametrize(("verb", "kind"), [("piper_dataset", PiperDatasetOptions), ("synthesize", SynthesizeOptions)])
def test_an_archive_that_cannot_be_written_is_refused_before_hours_of_work(
    world: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, kind: type[Options],
) -> None:
    settings = {"voice_model": f"run:{RUN}", "language": "am"} | ({"text": CLEAR} if verb == "synthesize" else {})
    with pytest.raises(UserError, match="There is no folder"):
        check_requirements(world, verb, kind.model_validate({**settings, "archive": str(tmp_path / "no" / "a.zip")}))
    written = kind.model_validate({**settings, "archive": str(tmp_path / "a.zip")})
    assert check_requirements(world, verb, written) == ()
    monkeypatch.setattr(os, "access", lambda *_: False)  # a test by root can write everywhere
    with pytest.raises(UserError, match="cannot be written"):
        check_requirements(world, verb, written)


def test_without_a_text_file_the_texts_of_the_dataset_are_spoken(world: Workspace, recogniser: FakeRecogniser) -> None:
    listener = Listener(world.runs / "own")
    result = piper_dataset.run(PiperDatasetOptions(voice_model=f"run:{RUN}", max_cer=1, most=3, device="cpu"), world,
                               listener)
    assert (result["clips"], result["language"], result["error"]) == (3, "am", None)
    assert not recogniser.attempts
    assert any("is little" in event.message for event in listener.of("warning"))


def test_what_cannot_be_made_is_refused_with_a_way_out(
    world: Workspace, recogniser: FakeRecogniser, tmp_path: Path,
) -> None:
    with pytest.raises(UserError, match="None of 1 sentence was kept; the first one: CER 100% at best"):
        piper_dataset.run(options(tmp_path, [UNCLEAR]), world, Listener(world.runs / "none"))
    recogniser.languages = ()
    with pytest.raises(UserError, match="No recogniser measures Amharic") as error:
        piper_dataset.run(options(tmp_path, [CLEAR]), world, Listener(world.runs / "unmeasured"))
    assert "--max-cer 1" in error.value.hint
    with pytest.raises(UserError, match="has no dataset of English"):
        piper_dataset.run(PiperDatasetOptions(voice_model="base:tiny", max_cer=1, device="cpu"), world,
                          Listener(world.runs / "base"))


@pytest.mark.parametrize(("changes", "message"), [
    ({}, "There is no model to make a dataset with"), ({"voice_model": "export:nosuch"}, "no export named 'nosuch'"),
    ({"voice_model": f"run:{RUN}", "language": "sw"}, "does not speak Swahili"),
    ({"voice_model": f"run:{RUN}", "file": "/nosuch.txt"}, "There is no file /nosuch.txt"),
])
def test_wrong_names_are_refused_before_anything_begins(
    world: Workspace, changes: dict[str, str], message: str,
) -> None:
    with pytest.raises(UserError, match=message):
        check_requirements(world, "piper_dataset", PiperDatasetOptions.model_validate(changes))


def test_the_export_command_makes_it_too(world: Workspace, monkeypatch: pytest.MonkeyPatch,
                                         capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["export", "--piper-dataset", "export:nosuch", "--workspace", str(world.path)])
    assert export.main() == USAGE_ERROR
    assert "There is no export named 'nosuch'" in capsys.readouterr().err
