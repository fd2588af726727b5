"""What an upload holds is known before its import: amount, clips to play, and what is odd about it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pytest
import soundfile

from config.errors import UserError
from core.sources import source_assessment

RATE, CLIPS = 16_000, 40


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 clips of 4 s with a second of silence at each end; every fourth text has a digit."""
    folder = tmp_path_factory.mktemp("upload")
    (folder / "wavs").mkdir()
    lines = []
    random = np.random.default_rng(0)
    for number in range(CLIPS):
        sound = np.zeros(6 * RATE, np.float32)
        sound[RATE:-RATE] = 0.2 * random.standard_normal(4 * RATE).clip(-3, 3).astype(np.float32)
        soundfile.write(folder / "wavs" / f"c{number:02d}.wav", sound, RATE)
        lines.append(f"c{number:02d}|Sannu duniya{' 3' if number % 4 == 0 else ''}{' ƙ' if number == 7 else ''}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder


def packed(recordings: Path, path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for file in sorted(recordings.rglob("*.*")):
            archive.write(file, file.relative_to(recordings))
    return path


@pytest.mark.parametrize("is_archive", [False, True])
def test_an_upload_is_assessed_before_its_import(recordings: Path, tmp_path: Path, is_archive: bool) -> None:
    source = packed(recordings, tmp_path / "mine.zip") if is_archive else recordings
    found = source_assessment.assess(str(source), "ha", tmp_path / "played")
    assert found is not None
    assert (found.clips, found.is_whole, found.measured) == (CLIPS, True, source_assessment.MEASURED)
    assert found.duration_s == pytest.approx(6.0 * CLIPS)
    assert found.silent_edges == found.measured
    assert found.with_digits == CLIPS // 4
    assert found.rare_characters == ("ƙ",)
    assert (found.quiet, found.unreadable, found.speakers) == (0, 0, 1)
    assert len(found.played) == source_assessment.PLAYED
    for clip in found.played:
        waveform, rate = soundfile.read(tmp_path / "played" / clip.path)
        assert (rate, len(waveform)) == (RATE, 6 * RATE)
        assert clip.text.startswith("Sannu")


def test_quiet_recordings_are_counted(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for number in range(3):
        soundfile.write(tmp_path / f"{number}.wav", 0.001 * random.standard_normal(4 * RATE).astype(np.float32), RATE)
        (tmp_path / f"{number}.txt").write_text("Sannu duniya", encoding="utf-8")
    found = source_assessment.assess(str(tmp_path), "ha", tmp_path / "played")
    assert found is not None
    assert (found.quiet, found.silent_edges) == (3, 0)


def test_clips_for_a_measurement_are_of_one_speaker(recordings: Path, tmp_path: Path) -> None:
    clips = source_assessment.sample_clips(str(recordings), "ha", 5, tmp_path)
    assert len({clip.path for clip in clips}) == 5
    assert {clip.speaker for clip in clips} == {"speaker"}


def test_a_source_without_clips_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("nothing", encoding="utf-8")
    with pytest.raises(UserError):
        source_assessment.sample_clips(str(tmp_path), "ha", 3, tmp_path / "out")
