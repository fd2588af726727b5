"""Rolling captions are read once; captions that repeat a line because it was said twice keep it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from soundfile import write

from core import prepare
from core.workspace import Workspace
from data.importers.rows import ParsedUtterance, SkippedRow, SourceNote
from data.importers.subtitles import read_subtitles
from tests.unit.outside import RATE, prepared, speech
from tests.unit.small_data import SmallFamily, base

LINE = st.text(st.characters(categories=["Ll"]), min_size=1, max_size=12)
LINES = st.lists(LINE, min_size=3, max_size=8, unique=True)


def clock(seconds: float, mark: str) -> str:
    return f"00:{int(seconds) // 60:02d}:{int(seconds) % 60:02d}{mark}{round(seconds * 1000) % 1000:03d}"


def rolling(lines: list[str], suffix: str, blank: str) -> str:
    """As yt-dlp writes YouTube's captions: a cue with the line before and the new one, then 10 ms of the new one."""
    mark, cues, before = "." if suffix == "vtt" else ",", [], blank
    for number, line in enumerate(lines):
        begin, end = 3.0 * number, 3.0 * number + 2.99
        tagged = f"{line[:1]}<00:00:00.200><c>{line[1:]}</c>" if suffix == "vtt" else line
        cues.append(f"{clock(begin, mark)} --> {clock(end, mark)}\n{before}\n{tagged}\n")
        cues.append(f"{clock(end, mark)} --> {clock(end + 0.01, mark)}\n{line}\n{blank}\n")
        before = line
    numbered = (f"{number}\n{cue}" if suffix == "srt" else cue for number, cue in enumerate(cues, 1))
    return ("WEBVTT\nKind: captions\n\n" if suffix == "vtt" else "") + "\n".join(numbered)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=LINES, suffix=st.sampled_from(["vtt", "srt"]))
def test_each_line_of_rolling_captions_is_read_once(tmp_path: Path, lines: list[str], suffix: str) -> None:
    path = tmp_path / f"talk.{suffix}"
    path.write_text(rolling(lines, suffix, " "), encoding="utf-8")
    items = list(read_subtitles(path, "talk.wav"))
    assert [item.text for item in items if isinstance(item, ParsedUtterance)] == lines
    notes = [item for item in items if isinstance(item, SourceNote)]
    assert len(notes) == 1
    assert f"rolling captions: {2 * len(lines) - 1} lines" in notes[0].reason
    assert not [item for item in items if isinstance(item, SkippedRow) and not isinstance(item, SourceNote)]


def growing(lines: list[str], keep_line_before: bool) -> str:
    """As live captions are saved: each cue shows one more word of its line, and perhaps the line before above it."""
    cues, place, before = [], 0.0, ""
    for line in lines:
        words = line.split()
        for count in range(1, len(words) + 1):
            shown = " ".join(words[:count])
            above = f"{before}\n" if before and keep_line_before else ""
            cues.append(f"{clock(place, '.')} --> {clock(place + 0.5, '.')}\n{above}{shown}\n")
            place += 0.5
        before = line
    return "WEBVTT\n\n" + "\n".join(cues)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lines=st.lists(st.lists(LINE, min_size=3, max_size=5, unique=True).map(" ".join), min_size=3, max_size=5,
                      unique=True), keep_line_before=st.booleans())
def test_captions_that_grow_word_by_word_are_read_once(tmp_path: Path, lines: list[str],
                                                       keep_line_before: bool) -> None:
    (tmp_path / "a.vtt").write_text(growing(lines, keep_line_before), encoding="utf-8")
    items = list(read_subtitles(tmp_path / "a.vtt", "a.wav"))
    utterances = [item for item in items if isinstance(item, ParsedUtterance)]
    assert [item.text for item in utterances] == lines
    place = 0.0
    for item, line in zip(utterances, lines, strict=True):
        assert (item.begin_s, item.end_s) == (place, place + 0.5 * len(line.split()))
        place += 0.5 * len(line.split())
    notes = " ".join(item.reason for item in items if isinstance(item, SourceNote))
    words = sum(len(line.split()) for line in lines)
    assert f"growing captions: {words - len(lines)} cues" in notes


@pytest.mark.parametrize("texts", [["I", "I am", "I am here", "Cat", "Dog"],
                                   ["Alleluia", "Alleluia alleluia", "Go", "Go away", "Stay", "Sing"]])
def test_a_lesson_and_a_song_that_repeat_words_keep_each_cue(tmp_path: Path, texts: list[str]) -> None:
    cues = [f"{clock(2 * number, '.')} --> {clock(2 * number + 2, '.')}\n{text}\n" for number, text in enumerate(texts)]
    (tmp_path / "a.vtt").write_text("WEBVTT\n\n" + "\n".join(cues), encoding="utf-8")
    items = read_subtitles(tmp_path / "a.vtt", "a.wav")
    assert [item.text for item in items if isinstance(item, ParsedUtterance)] == texts


def test_prepare_reads_rolling_captions_once(workspace: Workspace, tmp_path: Path,
                                            monkeypatch: pytest.MonkeyPatch) -> None:
    family = SmallFamily()
    monkeypatch.setattr(prepare, "family", lambda name: family)
    base().save(workspace.models / "tiny")
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "talk.wav", np.concatenate([speech(number)[:3 * RATE] for number in range(6)]), RATE)
    lines = ["a cat sat down", "she looked out", "they went home"]
    (tmp_path / "in" / "talk.vtt").write_text(rolling(lines, "vtt", " "), encoding="utf-8")
    dataset, warnings = prepared(workspace, tmp_path / "in", "sw")
    assert sorted(clip.text for clip in dataset.clips) == sorted(lines)
    assert "rolling captions: 5 lines" in warnings


@pytest.mark.parametrize("lines", [
    ["no", "no", "yes", "yes"], ["a", "b", "b", "c", "c"], ["no", "no no", "go", "well", "stop"],
    ["we", "we go", "home", "now", "a", "b", "c"]])
def test_a_line_that_is_said_twice_stays(tmp_path: Path, lines: list[str]) -> None:
    cues = "\n".join(f"{clock(2.0 * at, '.')} --> {clock(2.0 * at + 2, '.')}\n{line}\n"
                     for at, line in enumerate(lines))
    (tmp_path / "a.vtt").write_text(f"WEBVTT\n\n{cues}", encoding="utf-8")
    items = list(read_subtitles(tmp_path / "a.vtt", "a.wav"))
    assert [item.text for item in items if isinstance(item, ParsedUtterance)] == lines
