"""What is written of segments is what is read, whatever characters texts and file names hold."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import soundfile
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from core.library.segments import TABLE, SegmentClip, read_clips, write_clips
from core.transcribe import Transcript, TranscriptFile
from data.importers import import_source

ENDS = "\u2028\u2029\x85\x0b\x0c\x1c\r\n"  # of lines, to Python
whole = st.characters(exclude_categories=["Cs"])
words = st.text(st.one_of(whole, st.sampled_from(ENDS)), max_size=12)
names = st.text(st.one_of(whole, st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)), max_size=12)
pieces = st.builds(SegmentClip, st.just("a-0"), st.just("audio/a.flac"), st.just(0.0), st.just(1.5), names,
                   st.just(3.25),
                   st.just(4.75), names, st.booleans(), words, st.one_of(st.none(), st.floats(0, 1)), words)
few = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
PIECE = SegmentClip("a-0", "audio/a.flac", 0.0, 1.5, "a.wav", 3.25, 4.75)


@few
@given(st.lists(pieces, max_size=4))
@example([replace(PIECE, text="one\u2028two"), replace(PIECE, recording="talk\udcff.wav")])
def test_pieces_are_read_as_they_were_written(tmp_path: Path, given_pieces: list[SegmentClip]) -> None:
    write_clips(tmp_path / TABLE, given_pieces)
    assert read_clips(tmp_path / TABLE) == tuple(given_pieces)


@few
@given(words.filter(str.strip))
def test_transcripts_are_read_as_they_were_written(tmp_path: Path, text: str) -> None:
    found = TranscriptFile(tmp_path / "found.jsonl")
    found.add({"a": Transcript(text, 0.5), "b": Transcript("more", 1.0)})
    assert found.load() == {"a": Transcript(text, 0.5), "b": Transcript("more", 1.0)}


def test_a_table_with_odd_line_ends_is_imported_whole(tmp_path: Path) -> None:
    (tmp_path / "audio").mkdir()
    soundfile.write(str(tmp_path / "audio/a.flac"), [0.1] * 800, 800)
    write_clips(tmp_path / TABLE, [replace(PIECE, id=f"a-{number}", text=text, recording="a\udcff.wav")
                                    for number, text in enumerate(("one\u2028two", "three\x85four"))])
    assert [row.text for row in import_source(tmp_path).rows] == ["one\u2028two", "three\x85four"]
