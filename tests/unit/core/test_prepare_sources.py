"""From what a person names to a dataset: parts are cut, archives unpacked, films heard, sources added."""

from __future__ import annotations

import shlex
import stat
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile
import torch

from config.errors import UserError
from config.schema import PrepareOptions
from core import prepare
from core.jobs.events import Plan
from core.sources import dataset_source
from core.workspace import Workspace
from data import ffmpeg_audio, manifest
from data.acoustics import audio
from data.importers import import_source
from data.manifest import PreparedDataset
from data.sound_files import cut_to_flac
from tests.unit.small_data import AMHARIC, RATE, Recorder, SmallFamily, base, write_clip, write_dataset

SRT = "".join(f"{n + 1}\n00:00:0{n},500 --> 00:00:0{n + 1},250\n{text}\n\n" for n, text in enumerate(AMHARIC))


@pytest.fixture
def ready(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    family = SmallFamily()
    monkeypatch.setattr(prepare, "family", lambda name: family)
    base().save(workspace.models / "tiny")
    return workspace


def imported(workspace: Workspace, source: Path | str, name: str = "d", recorder: Recorder | None = None,
             **more: object) -> PreparedDataset:
    options = PrepareOptions.model_validate({"source": str(source), "dataset": name, "language": "am", "held_out": 0.3,
                                             **more})
    prepare.run(options, workspace, recorder or Recorder())
    return manifest.load(workspace.dataset(name))


def notes(recorder: Recorder) -> str:
    return "\n".join(line for event in recorder.events if isinstance(event, Plan) for line in event.lines)


def noise(path: Path, duration_s: float, subtype: str = "PCM_16") -> np.ndarray:
    samples = np.random.default_rng(0).uniform(-0.5, 0.5, int(duration_s * RATE))
    path.parent.mkdir(parents=True, exist_ok=True)
    soundfile.write(str(path), samples, RATE, subtype=subtype)
    return soundfile.read(str(path), dtype="float32")[0]


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT"])
def test_a_part_has_the_samples_of_its_time_and_the_same_bytes_each_time(tmp_path: Path, subtype: str) -> None:
    whole = noise(tmp_path / "a.wav", 2.0, subtype)
    content, above = cut_to_flac(tmp_path / "a.wav", 0.5, 1.25)
    (tmp_path / "part.flac").write_bytes(content)
    part, rate = audio.read(tmp_path / "part.flac")
    assert rate == RATE
    assert torch.allclose(part, torch.from_numpy(whole[8000:20000]), atol=2**-23 if subtype == "FLOAT" else 0)
    assert (content, above) == (cut_to_flac(tmp_path / "a.wav", 0.5, 1.25)[0], 0)
    with pytest.raises(UserError, match=r"begins at 2 s, and .*a\.wav lasts 2\.0 s"):
        cut_to_flac(tmp_path / "a.wav", 2.0, None)
    with pytest.raises(UserError, match=r"ends at 1188 s, and .*a\.wav lasts 2\.0 s"):
        cut_to_flac(tmp_path / "a.wav", 0.0, 1188.0)


def test_one_recording_and_its_subtitles_become_clips(tmp_path: Path, ready: Workspace) -> None:
    whole = noise(tmp_path / "in" / "talk.wav", 6.0)
    (tmp_path / "in" / "talk.am.srt").write_text(SRT, encoding="utf-8-sig")
    recorder = Recorder()
    dataset = imported(ready, tmp_path / "in", recorder=recorder)
    assert "Recognised as subtitles (SRT)" in notes(recorder)
    assert [clip.id for clip in dataset.clips[:2]] == ["talk-0000500-0001250", "talk-0001500-0002250"]
    assert [clip.text for clip in dataset.clips] == list(AMHARIC[:6])
    for index, clip in enumerate(dataset.clips[:5]):
        samples, _ = audio.read(dataset.audio_path(clip))
        begin = int((index + 0.5) * RATE)
        assert np.array_equal(samples.numpy(), whole[begin:begin + 12000])
    again = imported(ready, tmp_path / "in")
    assert again.card == dataset.card


def test_an_archive_is_imported_and_leaves_nothing_behind(tmp_path: Path, ready: Workspace) -> None:
    source = write_dataset(tmp_path / "in")
    with zipfile.ZipFile(tmp_path / "readings.zip", "w") as archive:
        for path in source.iterdir():
            archive.write(path, f"readings/{path.name}")
        archive.writestr("../../out.txt", "evil")
    recorder = Recorder()
    dataset = imported(ready, tmp_path / "readings.zip", recorder=recorder)
    assert len(dataset.clips) == 6
    assert "out.txt: leads out of the archive" in recorder.warnings
    assert "readings.zip is an archive; it was unpacked." in notes(recorder)
    assert list((ready.cache / "imports").iterdir()) == []
    assert imported(ready, tmp_path / "in").card.fingerprint == dataset.card.fingerprint


def test_a_table_from_elsewhere_may_not_name_files_of_this_machine(tmp_path: Path) -> None:
    outside = write_clip(tmp_path / "outside.wav")
    folder = tmp_path / "in"
    write_clip(folder / "a.wav")
    (folder / "link.wav").symlink_to(outside)
    lines = (f"{outside}|whole", "../outside.wav|up", "link.wav|link", "a.wav|fine")
    (folder / "metadata.csv").write_text("\n".join(lines))
    mine, foreign = import_source(folder), import_source(folder, foreign=True)
    assert [row.text for row in mine.rows] == ["whole", "fine"]
    assert [row.text for row in foreign.rows] == ["fine"]
    said = [entry.reason for entry in foreign.skipped]
    assert "is not in" in said[0]
    assert "leads out of" in said[1]
    assert "is a link to" in said[2]


def test_a_source_is_added_without_touching_what_is_there(tmp_path: Path, ready: Workspace) -> None:
    first = imported(ready, write_dataset(tmp_path / "one", AMHARIC[:4]), "one")
    before = {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    source = write_dataset(tmp_path / "two", (*AMHARIC[:4], *AMHARIC[4:]))
    write_clip(source / "clip0.wav", pitch=990)  # another recording of a text and an id that are there
    recorder = Recorder()
    both = imported(ready, source, "both", recorder, add_to="one")
    assert "3 clips of" in notes(recorder)
    assert "3 were there already" in notes(recorder)
    assert both.clips[:4] == first.clips
    assert [clip.id for clip in both.clips[4:]] == ["clip0-2", "clip4", "clip5"]
    split = {clip.text: clip.split for clip in first.clips}
    assert both.clips[4].split == split[AMHARIC[0]]
    assert before == {path: path.read_bytes() for path in first.folder.rglob("*") if path.is_file()}
    assert imported(ready, source, "both", add_to="one").card == both.card
    with pytest.raises(UserError, match="is in 'both' already"):
        imported(ready, source, "third", add_to="both")


def test_adding_a_prepared_dataset_keeps_its_ids(tmp_path: Path, ready: Workspace) -> None:
    imported(ready, write_dataset(tmp_path / "one", AMHARIC[:3]), "one")
    for index, text in enumerate(AMHARIC[3:]):
        write_clip(tmp_path / "two" / f"two{index}.wav", pitch=700 + index)
        (tmp_path / "two" / f"two{index}.txt").write_text(text)
    two = imported(ready, tmp_path / "two", "two")
    both = imported(ready, two.folder, "both", add_to="one")
    assert [clip.id for clip in both.clips] == ["clip0", "clip1", "clip2", "two0", "two1", "two2"]


def test_a_failed_addition_leaves_everything(tmp_path: Path, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    first = imported(ready, write_dataset(tmp_path / "one", AMHARIC[:4]), "one")
    with pytest.raises(UserError, match="makes a new dataset"):
        imported(ready, write_dataset(tmp_path / "two"), "one", add_to="one")

    def full(source: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(UserError, match="could not be written"):
        imported(ready, tmp_path / "two", "both", add_to="one")
    assert ready.list_datasets() == ["one"]
    assert manifest.load(ready.dataset("one")) == first


def test_most_clips_takes_the_first(tmp_path: Path, ready: Workspace) -> None:
    dataset = imported(ready, write_dataset(tmp_path / "in"), max_clips=3)
    assert [clip.id for clip in dataset.clips] == ["clip0", "clip1", "clip2"]


FAKE = """
import sys
words = sys.argv
source, target = words[words.index("-i") + 1], words[-1]
if b"broken" in open(source[5:], "rb").read():
    sys.exit("file:talk.mp4: no sound\\n")
open(target[5:], "wb").write(open(source[5:], "rb").read()[8:])
"""


@pytest.fixture
def ffmpeg(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that knows one container: eight bytes, then the sound."""
    program = tmp_path / "bin" / "ffmpeg"
    program.parent.mkdir()
    script = tmp_path / "bin" / "fake.py"
    script.write_text(FAKE)
    # A shell between, because the first line of a script cannot name an interpreter whose path has a space.
    program.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {shlex.quote(str(script))} "$@"\n')
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(ffmpeg_audio, "ffmpeg_path", lambda: str(program))
    return program


def film_at(path: Path) -> Path:
    noise(path.with_suffix(".flac"), 6.0)
    path.write_bytes(b"\0\0\0 ftyp" + path.with_suffix(".flac").read_bytes())
    path.with_suffix(".flac").unlink()
    return path


def test_a_film_is_heard_once_and_one_that_cannot_be_is_named(
        tmp_path: Path, ready: Workspace, ffmpeg: Path) -> None:
    film_at(tmp_path / "in" / "talk.mp4")
    (tmp_path / "in" / "mute.mkv").write_bytes(b"broken")
    for name in ("talk.srt", "mute.srt"):
        (tmp_path / "in" / name).write_text(SRT, encoding="utf-8")
    recorder = Recorder()
    dataset = imported(ready, tmp_path / "in", recorder=recorder)
    assert len(dataset.clips) == 6
    assert recorder.warnings.count("ffmpeg could not take the sound out of mute.mkv: talk.mp4: no sound") == 6
    assert imported(ready, tmp_path / "in").card == dataset.card


def test_without_ffmpeg_a_film_is_refused_with_the_way_out(
        tmp_path: Path, ready: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    film_at(tmp_path / "in" / "talk.mp4")
    (tmp_path / "in" / "talk.srt").write_text(SRT, encoding="utf-8")
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match=r"talk\.mp4 needs ffmpeg.*Install ffmpeg"):
        imported(ready, tmp_path / "in")


def test_what_a_killed_import_left_is_cleared_away(tmp_path: Path, ready: Workspace) -> None:
    left = ready.cache / "imports" / "old"
    left.mkdir(parents=True)
    (left / "lock").touch()
    (left / "large").write_bytes(b"x")
    with dataset_source.open_source(str(write_dataset(tmp_path / "in")), "am", ready, Recorder()) as gathered:
        assert not left.exists()
        assert gathered.made.is_dir()
