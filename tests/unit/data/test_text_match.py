"""Texts that belong to other clips are found by the lengths alone; texts that match give no alarm."""

from __future__ import annotations

import dataclasses
import math
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest

from config.errors import UserError
from core.dataset import review
from core.workspace import Workspace
from data import manifest
from data.importers import ImportedSource, SkippedRow, SourceRow, import_source
from data.manifest import ManifestClip
from data.sound_files import read_samples
from data.text_match import MatchKind, TextMatch, match_texts, text_length
from data.validation import ValidationReport, validate
from tests.unit.small_data import write_clip

HUMAN = os.environ.get("LISAN_HUMAN", "")
CORPORA = ("hausa-f", "hausa-m", "mboshi-abiayi", "mboshi-kouarata", "kiswahili", "griko", "twi-cv", "ibibio",
           "asterisk-ru")


def lengths_and_durations(clips: int, seed: int = 0, noise: float = 0.18) -> tuple[np.ndarray, np.ndarray]:
    """Letters of sentences, and the time to speak them at 14 a second, with a pace that varies."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(10, 90, clips).astype(float)
    return lengths, lengths / 14 * np.exp(generator.normal(0, noise, clips)) + 0.2


def test_text_length_counts_what_is_spoken() -> None:
    assert text_length("ሰላም፣ ለሁሉም! 12") == 9
    assert text_length("ńdɛ́") == len("ńdɛ́".replace(" ", ""))  # combining marks too
    assert text_length("... ።") == 0


@pytest.mark.parametrize("clips", [30, 80, 1000])
def test_matching_texts_are_no_finding(clips: int) -> None:
    for seed in range(20):
        match = match_texts(*(lengths_and_durations(clips, seed)), lengths_and_durations(clips, seed)[1])
        assert match.kind is MatchKind.MATCHES
        assert match.low < match.correlation < match.high
        assert (match.message, match.hint) == ("", "")


@pytest.mark.parametrize("offset", [-3, -2, -1, 1, 2, 3])
@pytest.mark.parametrize("cyclic", [True, False], ids=["cyclic", "dropped"])
def test_shifted_texts_are_found_with_their_offset(offset: int, cyclic: bool) -> None:
    for seed in range(10):
        lengths, durations = lengths_and_durations(40, seed)
        texts = np.roll(lengths, offset)
        if not cyclic:  # the text that left the table at one end is lost
            texts[:max(0, offset)] = np.nan
            texts[len(texts) + min(0, offset):] = np.nan
        match = match_texts(texts, durations, durations)
        assert (match.kind, match.offset, match.first_row) == (MatchKind.SHIFTED, offset, 0)
        assert match.better > 0.8 > match.correlation


def test_the_message_says_where_the_text_stands_and_what_to_do() -> None:
    lengths, durations = lengths_and_durations(40)
    match = match_texts(np.roll(lengths, 1), durations, durations)
    assert match.message.startswith("The texts match when shifted by one row: the text of each recording stands one "
                                    "row below it.")
    assert match.hint.startswith("Move the texts one row up")
    up = match_texts(np.roll(lengths, -2), durations, durations)
    assert "stands two rows above it" in up.message
    assert up.hint.startswith("Move the texts two rows down")


def test_a_row_that_was_lost_inside_the_table_is_found() -> None:
    lengths, durations = lengths_and_durations(200)
    match = match_texts(np.delete(lengths, 120), durations[:-1], durations[:-1])
    assert (match.kind, match.offset) == (MatchKind.SHIFTED, -1)
    assert abs(match.first_row - 121) <= 5
    assert f"from row {match.first_row}" in match.message


def test_texts_of_other_clips_are_unrelated_without_a_proof_of_whose_they_are() -> None:
    lengths, durations = lengths_and_durations(80)
    match = match_texts(np.random.default_rng(1).permutation(lengths), durations, durations)
    assert match.kind is MatchKind.UNRELATED
    assert not match.is_proven
    assert match.message


def test_few_clips_and_equal_lengths_are_not_measured() -> None:
    lengths, durations = lengths_and_durations(12)
    shuffled = np.random.default_rng(1).permutation(lengths)
    assert match_texts(shuffled, durations, durations).kind is MatchKind.NOT_MEASURED
    equal = np.full(60, 2.0)
    assert match_texts(lengths_and_durations(60)[0], equal, equal).kind is MatchKind.NOT_MEASURED
    assert match_texts([], [], []).kind is MatchKind.NOT_MEASURED


def test_speech_without_the_silent_ends_counts_where_it_fits_better() -> None:
    lengths, speech = lengths_and_durations(60, noise=0.05)
    silence = np.random.default_rng(2).uniform(0, 12, 60)
    assert match_texts(lengths, speech + silence, speech + silence).correlation < 0.6
    assert match_texts(lengths, speech + silence, speech).correlation > 0.9


def test_another_column_that_matches_is_named() -> None:
    lengths, durations = lengths_and_durations(60)
    translation = np.random.default_rng(3).permutation(lengths)
    match = match_texts(translation, durations, durations, {"sentence_mdw": lengths, "notes": np.ones(60)})
    assert (match.kind, match.column) == (MatchKind.OTHER_COLUMN, "sentence_mdw")
    assert "'sentence_mdw'" in match.message


def test_a_match_survives_json() -> None:
    lengths, durations = lengths_and_durations(40)
    match = match_texts(np.roll(lengths, 1), durations, durations)
    assert TextMatch.from_json(match.to_json()) == match


def test_the_import_measures_in_the_order_of_the_table_with_the_rows_that_it_leaves_out(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    durations = generator.uniform(0.6, 4.0, 40)
    entries: list[SourceRow | SkippedRow] = []
    for number, duration_s in enumerate(durations):
        where = f"line {number + 1}"
        text = "ሰ" * max(2, round(10 * durations[(number - 1) % 40]))  # of the row above
        if number % 4 == 3:
            entries.append(SkippedRow(where, "the audio is not there"))
        else:
            audio = write_clip(tmp_path / f"{number}.wav", duration_s=float(duration_s), pitch=200 + 9 * number)
            entries.append(SourceRow(f"clip{number}", audio, text, where))
    _, report = validate(ImportedSource(entries), "ethiopic")
    assert report.text_match is not None
    assert (report.text_match.kind, report.text_match.offset) == (MatchKind.SHIFTED, 1)


@pytest.mark.skipif(not HUMAN, reason="LISAN_HUMAN names no folder of human recordings")
@pytest.mark.long
@pytest.mark.parametrize("corpus", CORPORA)
def test_people_give_no_false_alarm_and_their_shifted_texts_are_found(corpus: str, tmp_path: Path) -> None:
    with tarfile.open(Path(HUMAN) / f"{corpus}.tar") as archive:
        archive.extractall(tmp_path, filter="data")
    lines = (tmp_path / "metadata.csv").read_text(encoding="utf-8").splitlines()
    rows = [line.partition("|")[::2] for line in lines if "|" in line]
    lengths = [text_length(text) for _, text in rows]
    durations = [len(samples) / rate for samples, rate in (read_samples(tmp_path / name) for name, _ in rows)]

    assert match_texts(lengths, durations, durations).kind is MatchKind.MATCHES
    for offset in (1, 2, 3, -1, -2, -3):
        match = match_texts(np.roll(lengths, offset), durations, durations)
        assert (match.kind, match.offset) == (MatchKind.SHIFTED, offset)


def test_rows_without_a_text_or_a_duration_are_left_out() -> None:
    lengths, durations = lengths_and_durations(60)
    lengths[::7], durations[::5] = math.nan, math.nan
    match = match_texts(lengths, durations, durations)
    assert match.kind is MatchKind.MATCHES
    assert match.clips == int((np.isfinite(lengths) & np.isfinite(durations)).sum())


def test_the_import_names_the_column_that_matches(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    durations = generator.uniform(0.6, 4.0, 40)
    lines = ["file,text,transcription_mdw,speaker"]
    for number, duration_s in enumerate(durations):
        write_clip(tmp_path / f"{number}.wav", duration_s=float(duration_s), pitch=200 + 9 * number)
        lines.append(f"{number}.wav,{'ab' * int(generator.integers(3, 20))},{'a' * max(2, round(10 * duration_s))},ann")
    (tmp_path / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    _, report = validate(import_source(tmp_path), "latin")
    assert report.text_match is not None
    assert (report.text_match.kind, report.text_match.column) == (MatchKind.OTHER_COLUMN, "transcription_mdw")


def test_swapped_columns_of_recording_and_text_are_named(tmp_path: Path) -> None:
    for number in range(3):
        write_clip(tmp_path / f"{number}.wav", pitch=200 + 9 * number)
    (tmp_path / "metadata.csv").write_text("file,text\none two,0.wav\nthree,1.wav\nfour,2.wav\n", encoding="utf-8")
    skipped = [entry.reason for entry in import_source(tmp_path) if isinstance(entry, SkippedRow)]
    assert len(skipped) == 3
    assert all("the columns of recording and text are swapped" in reason for reason in skipped)


def dataset_with(workspace: Workspace, match: TextMatch, reviewed: str = "") -> None:
    """A dataset `d` whose import found `match`."""
    folder = workspace.datasets / "d"
    folder.mkdir(parents=True)
    clips = [ManifestClip("a", "a.wav", "one", "am", "train", 1.0, "ann", "0")]
    card = manifest.make_card("d", "am", "test", clips)
    manifest.save(folder, dataclasses.replace(card, reviewed=reviewed), clips)
    ValidationReport(1, 1, 1.0, {}, {}, (), (), text_match=match).save(folder / "report.json")


def test_a_training_on_shifted_texts_warns_or_is_stopped(tmp_path: Path) -> None:
    lengths, durations = lengths_and_durations(40)
    workspace = Workspace.open(tmp_path)
    dataset_with(workspace, match_texts(np.roll(lengths, 2), durations, durations))
    warning = review.check_texts_match(workspace, "d", "warn")
    assert warning.startswith("The dataset 'd': The texts match when shifted by two rows")
    with pytest.raises(UserError, match="shifted by two rows"):
        review.check_texts_match(workspace, "d", "stop")


def test_unrelated_texts_only_warn_and_a_reviewed_dataset_measures_itself(tmp_path: Path) -> None:
    lengths, durations = lengths_and_durations(80)
    mixed = match_texts(np.random.default_rng(1).permutation(lengths), durations, durations)
    workspace = Workspace.open(tmp_path / "mixed")
    dataset_with(workspace, mixed)
    assert "may not belong together" in review.check_texts_match(workspace, "d", "stop")
    corrected = Workspace.open(tmp_path / "corrected")
    dataset_with(corrected, mixed, reviewed="before")
    assert review.check_texts_match(corrected, "d", "stop") == ""
