"""Faults leave a clip out, oddities are warned of, and both are named."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from config.errors import UserError
from data.importers import ImportedSource, SkippedRow, SourceRow, import_source
from data.languages.words import words
from data.manifest import HELD_OUT, TRAIN
from data.splits import assign, overlaps
from data.validation import CheckedRow, ValidationFinding, ValidationReport, validate
from tests.unit.small_data import AMHARIC, RATE, write_clip, write_dataset


def row(folder: Path, name: str, text: str = "ሰላም ለሁሉም", **clip: float) -> SourceRow:
    pitch = 100 + 7 * len(list(folder.glob("*.wav")))
    return SourceRow(name, write_clip(folder / f"{name}.wav", pitch=pitch, **clip), text, name)


def kinds(report: ValidationReport) -> dict[str, str]:
    return {finding.where: finding.kind for finding in report.errors}


def test_good_dataset_has_no_errors(tmp_path: Path) -> None:
    rows, report = validate(import_source(write_dataset(tmp_path)), "ethiopic")
    assert (len(rows), report.found, report.kept, report.errors) == (6, 6, 6, ())
    assert report.duration_s == pytest.approx(6.0)


def test_faults_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "text.wav").write_text("this is not a sound file")
    rows = (
        row(tmp_path, "good"), row(tmp_path, "wordless", "።"), row(tmp_path, "short", duration_s=0.1),
        row(tmp_path, "long", duration_s=31.0), row(tmp_path, "quiet", level=0.0),
        SourceRow("text", tmp_path / "text.wav", "ሰላም", "text"),
        SourceRow("again", tmp_path / "good.wav", "ሰላም, ለሁሉም።", "again"),
    )
    kept, report = validate(ImportedSource((SkippedRow("line 9", "no audio is named"), *rows)), "ethiopic")
    assert [entry.row.id for entry in kept] == ["good"]
    assert kinds(report) == {"line 9": "skipped", "wordless": "empty text", "short": "too short", "long": "too long",
                             "quiet": "silent", "text": "not audio", "again": "duplicate"}
    messages = {finding.where: finding.message for finding in report.errors}
    assert "could not be read as audio" in messages["text"]
    assert str(tmp_path / "text.wav") in messages["text"]
    assert messages["wordless"] == "the text '።' of wordless has nothing to speak"
    assert messages["again"] == "the same recording as good"


def test_a_float_recording_beyond_what_a_clip_can_hold_is_named(tmp_path: Path) -> None:
    loud = 0.1 * np.sin(np.arange(3 * RATE) / 9)
    loud[RATE:RATE + 50] = 1.5
    soundfile.write(tmp_path / "loud.wav", loud, RATE, subtype="FLOAT")
    loud[2 * RATE + 100] = np.nan
    soundfile.write(tmp_path / "broken.wav", loud, RATE, subtype="FLOAT")
    rows = (SourceRow("cut", tmp_path / "loud.wav", "ሰላም ለሁሉም", "cut", begin_s=0.5, end_s=2.0),
            SourceRow("whole", tmp_path / "broken.wav", "ሰላም ለሁሉም", "whole"),
            SourceRow("part", tmp_path / "broken.wav", "ሰላም ለሁሉም", "part", begin_s=1.5, end_s=3.0),
            SourceRow("fine", tmp_path / "broken.wav", "ሰላም ለሁሉም", "fine", begin_s=0, end_s=0.9))
    kept, report = validate(ImportedSource(rows), "ethiopic")
    assert [entry.row.id for entry in kept] == ["cut", "fine"]
    assert {one.where: one.message.split(";")[0] for one in report.warnings if one.kind == "clipping"} == {
        "cut": "cut: 50 samples were above full scale, and were cut to it"}
    assert {one.where: one.message.split("holds ")[1] for one in report.errors} == dict.fromkeys(
        ("whole", "part"), "samples that are not finite numbers, the first at 2.01 s")


def test_of_two_texts_for_one_recording_neither_is_said_to_be_the_right_one(tmp_path: Path) -> None:
    rows = (row(tmp_path, "first"), SourceRow("second", tmp_path / "first.wav", "እንደገና", "second"))
    kept, report = validate(ImportedSource(rows), "ethiopic")
    assert [entry.row.id for entry in kept] == ["first"]
    assert report.errors[0].message == "the same recording as first, with another text"
    assert [(one.where, one.kind) for one in report.warnings if "second" in one.message] == [("first", "duplicate")]


def test_dataset_without_usable_audio_is_refused_with_reasons(tmp_path: Path) -> None:
    (tmp_path / "a.wav").write_text("no sound")
    write_clip(tmp_path / "b.wav")
    (tmp_path / "b.wav").write_bytes((tmp_path / "b.wav").read_bytes()[:36])
    rows = [SourceRow(name, tmp_path / f"{name}.wav", "ሰላም", f"{name}.wav") for name in "ab"]
    with pytest.raises(UserError) as caught:
        validate(ImportedSource(tuple(rows)), "ethiopic")
    assert caught.value.message == (
        "The dataset has no usable audio: none of its 2 rows is left (a.wav: could not be read as audio: Format not "
        "recognised; b.wav: could not be read as audio: Error in WAV file. No 'data' chunk marker).")
    assert caught.value.hint


def test_a_long_recording_with_its_text_is_sent_to_the_alignment(tmp_path: Path) -> None:
    write_clip(tmp_path / "talk.wav", duration_s=90.0)
    (tmp_path / "talk.txt").write_text("ሰላም ለሁሉም\n" * 20)
    with pytest.raises(UserError, match=r"talk lasts 90\.0 s, 30 s or less are wanted") as caught:
        validate(import_source(tmp_path), "ethiopic")
    assert "Long recordings on the Data tab, or python -m scripts align" in caught.value.hint


def test_texts_that_are_missing_are_not_blamed_on_the_audio(tmp_path: Path) -> None:
    write_clip(tmp_path / "a.wav")
    with pytest.raises(UserError, match=r"has no text for any of its recordings \(1\)"):
        validate(import_source(tmp_path), "ethiopic")


def test_a_text_that_nobody_could_say_is_left_out(tmp_path: Path) -> None:
    rows = (row(tmp_path, "good"), row(tmp_path, "wrong", "ሀ" * 20_000, duration_s=2.4))
    kept, report = validate(ImportedSource(rows), "ethiopic")
    assert [one.row.id for one in kept] == ["good"]
    assert kinds(report) == {"wrong": "pace"}
    assert "8,333 characters a second, more than is possible" in report.errors[0].message


def test_control_characters_are_named_and_taken_out(tmp_path: Path) -> None:
    rows = (row(tmp_path, "nul", "ሰላም\x00ለሁሉም\x07"), row(tmp_path, "only", "\x00"))
    kept, report = validate(ImportedSource(rows), "ethiopic")
    assert [one.row.text for one in kept] == ["ሰላም ለሁሉም"]
    assert [finding.kind for finding in report.errors] == ["empty text"]
    assert "nul: U+0000, U+0007 in the text; taken out" in [finding.message for finding in report.warnings]


def test_oddities_are_warned_of_and_kept(tmp_path: Path) -> None:
    rows = (row(tmp_path, "loud", level=1.5), row(tmp_path, "slow", "እ", duration_s=4.0),
            row(tmp_path, "digits", "በ 1997 ዓ.ም. 50%"))
    kept, report = validate(ImportedSource(rows), "ethiopic")
    assert len(kept) == 3
    found = {finding.kind: finding.message for finding in report.warnings}
    assert "at full scale" in found["clipping"]
    assert "slow: 0.2 characters a second" in found["pace"]
    assert found["characters"].startswith("1 of ")
    assert "“%” “0” “1” “5” “7” “9”. Choose text rules" in found["characters"]
    assert report.dropped == {".": 2}


def test_combining_marks_are_letters(tmp_path: Path) -> None:
    rows = (row(tmp_path, "a", "नमस्ते दुनिया"), row(tmp_path, "b", "ɛ̀kɔ́ o'o"))
    _, report = validate(ImportedSource(rows), "generic")
    assert "characters" not in {finding.kind for finding in report.warnings}


def test_report_survives_json(tmp_path: Path) -> None:
    _, report = validate(ImportedSource((row(tmp_path, "a"), SkippedRow("b", "gone"))), "ethiopic")
    report = report.with_warnings([ValidationFinding("pace", "“here”", "so\u2028so")])
    report.save(tmp_path / "report.json")
    written = (tmp_path / "report.json").read_text("utf-8")
    assert ValidationReport.from_json(json.loads(written)) == report
    assert '\n  {"kind": "pace", "where": "“here”"' in written  # a finding a line, for people to search


def checked(text: str, split: str = "") -> CheckedRow:
    return CheckedRow(SourceRow(text, Path(text), text, text, split=split), text, 1.0, text)


def test_split_follows_the_text_and_the_seed() -> None:
    rows = [checked(text) for text in (*AMHARIC, *AMHARIC)]
    first = assign(rows, 0.34, seed=1)
    assert first == assign(rows, 0.34, seed=1)
    assert first[:6] == first[6:]
    assert 0 < first.count(HELD_OUT) <= 8
    assert len({assign(rows, 0.34, seed=seed) for seed in range(8)}) > 1
    assert dict(zip(rows, first, strict=True)) == dict(zip(rows[::-1], assign(rows[::-1], 0.34, 1), strict=True))


def test_at_least_one_text_is_held_out_unless_none_is_wanted() -> None:
    rows = [checked(text) for text in AMHARIC]
    assert assign(rows, 0.01, 0).count(HELD_OUT) == 1
    assert assign(rows, 0.0, 0).count(HELD_OUT) == 0
    assert assign(rows[:1], 0.1, 0) == (TRAIN,)


def test_given_splits_are_kept_and_overlaps_named() -> None:
    rows = [checked("a", TRAIN), checked("b", HELD_OUT), checked("b", TRAIN), checked("b"), checked("c")]
    splits = assign(rows, 0.5, 0)
    assert splits == (TRAIN, HELD_OUT, TRAIN, HELD_OUT, TRAIN)
    (found,) = overlaps(rows, splits).items()
    assert (found[0], found[1].message) == (2, "b would be trained on while the text 'b' is held out")


def test_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(UserError, match="All 2 clips are held out") as caught:
        assign([checked("a", HELD_OUT), checked("b", HELD_OUT)], 0.1, 0)
    assert "The source's own split column did it" in caught.value.hint


def text_warnings(tmp_path: Path, texts: list[str], normaliser: str) -> dict[str, str]:
    """The warnings about texts, by kind."""
    rows = []
    for number, text in enumerate(texts):
        soundfile.write(tmp_path / f"{number}.wav", 0.1 * np.sin(np.arange(2 * RATE) / (9 + number)), RATE)
        rows.append(SourceRow(str(number), tmp_path / f"{number}.wav", text, f"line {number + 1}"))
    _, report = validate(ImportedSource(rows), normaliser)
    return {finding.kind: finding.message for finding in report.warnings}


def test_capitals_that_are_letters_are_named(tmp_path: Path) -> None:
    warnings = text_warnings(tmp_path, ["ami bON idiok", "owo bon utom", "mkpOn edi"], "latin")
    assert "2 words have capitals within, such as 'bON'" in warnings["case"]
    assert "'bON' is read as 'bon'" in warnings["case"]
    ordinary = ["The Old Man came", "NATO and the EU met", *[f"nothing is written here {word}" for word in "abcdef"],
                "many more words of ordinary text stand in this line so that one name is rare " * 3 + "McDonald"]
    assert "case" not in text_warnings(tmp_path, ordinary, "latin")


def test_letters_of_unusual_orthographies_stay(tmp_path: Path) -> None:
    assert "case" not in text_warnings(tmp_path, ["wa ábí ngá moyi ω ε ɔ", "bε sεrε ω"], "generic")
    assert words("bε sεrε ωra ŋa ɛ", "generic") == "bε sεrε ωra ŋa ɛ"


def test_several_signs_for_one_apostrophe_are_named(tmp_path: Path) -> None:
    mixed = text_warnings(tmp_path, ["haw aʻi kaʻa", "kaʿa ana"], "generic")["apostrophes"]
    assert "2 signs that look like an apostrophe: ʻ (U+02BB) 2 times, ʿ (U+02BF) 1 times" in mixed
    assert "apostrophes" not in text_warnings(tmp_path, ["oʻzbek go‘zal", "o'zbek goʼzal o`zi"], "uzbek")
