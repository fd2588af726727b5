"""The files of an audiobook, read back with ffprobe and ffmpeg."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
from PIL import Image

from config.errors import UserError
from core.speech import audiobook
from core.speech.audiobook import AudioChapter, BookLabels, Cue, SentenceAudio
from data.importers import subtitles
from data.measures import integrated_loudness

RATE = 16000
LABELS = BookLabels("The Boat; or = what #1\\?", ("Ada Reed", "Bo Ek"), "am")
needs_ffmpeg = pytest.mark.skipif(not (shutil.which("ffmpeg") and shutil.which("ffprobe")), reason="needs ffmpeg")


def clip(folder: Path, name: str, seconds: float, pause_s: float, level: float = 0.05, text: str = "") -> SentenceAudio:
    """A hum whose pitch and level move as those of a voice."""
    time = np.arange(round(seconds * RATE)) / RATE
    wave = np.sin(2 * np.pi * 180 * time) + 0.6 * np.sin(2 * np.pi * 900 * time)
    samples = (level * wave * (0.3 + np.abs(np.sin(2 * np.pi * 3 * time)))).astype(np.float32)
    path = folder / f"{name}.flac"
    soundfile.write(path, samples, RATE, subtype="PCM_16")
    return SentenceAudio(path, len(samples), round(pause_s * RATE), text or name)


def probe(path: Path, *what: str) -> dict:
    command = ["ffprobe", "-v", "error", "-of", "json", *what, str(path)]
    return json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout)


def loudness(path: Path) -> float:
    command = ["ffmpeg", "-nostdin", "-v", "error", "-i", str(path), "-f", "f32le", "-ac", "1", "-ar", "48000",
               "pipe:1"]
    samples = np.frombuffer(subprocess.run(command, capture_output=True, check=True).stdout, "<f4")
    value = integrated_loudness(samples.copy(), 48000)
    assert value is not None
    return value


def picture(side: int = 40, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGBA" if kind == "PNG" else "RGB", (side, side), "teal").save(buffer, kind)
    return buffer.getvalue()


@pytest.fixture
def chapters(tmp_path: Path) -> list[AudioChapter]:
    titles = ("Chapter 1. Rain", "ምዕራፍ ሁለት = #;\\ [CHAPTER]", "3")
    return [AudioChapter(title, (clip(tmp_path, f"{number}a", 1.2345, 0.25), clip(tmp_path, f"{number}b", 0.7, 2.0)))
            for number, title in enumerate(titles)]


@needs_ffmpeg
def test_ffprobe_agrees_with_the_chapters(tmp_path: Path, chapters: list[AudioChapter]) -> None:
    path = tmp_path / "book.m4b"
    audiobook.write_m4b(path, chapters, LABELS, RATE)
    shown = probe(path, "-show_chapters", "-show_format", "-show_streams")
    assert [chapter["tags"]["title"] for chapter in shown["chapters"]] == [chapter.title for chapter in chapters]
    length_s = chapters[0].samples / RATE
    starts = [float(chapter["start_time"]) for chapter in shown["chapters"]]
    ends = [float(chapter["end_time"]) for chapter in shown["chapters"]]
    assert starts == pytest.approx([0, length_s, 2 * length_s], abs=0.001)
    assert starts[1:] == ends[:-1]
    assert float(shown["format"]["duration"]) == pytest.approx(3 * length_s, abs=0.05)
    assert shown["format"]["tags"]["title"] == LABELS.title
    assert shown["format"]["tags"]["artist"] == "Ada Reed, Bo Ek"
    assert shown["format"]["tags"]["major_brand"] == "M4B "
    assert shown["streams"][0]["codec_name"] == "aac"
    assert shown["streams"][0]["tags"]["language"] == "amh"


@needs_ffmpeg
@pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP"])
def test_the_cover_is_in_the_file(tmp_path: Path, chapters: list[AudioChapter], kind: str) -> None:
    path = tmp_path / "book.m4b"
    labels = BookLabels("The Boat", (), "en", audiobook.jpeg_cover(picture(kind=kind)))
    audiobook.write_m4b(path, chapters, labels, RATE)
    covers = [stream for stream in probe(path, "-show_streams")["streams"] if stream["disposition"]["attached_pic"]]
    assert [(cover["codec_name"], cover["width"]) for cover in covers] == [("mjpeg", 40)]
    assert len(probe(path, "-show_chapters")["chapters"]) == len(chapters)


@pytest.mark.parametrize("content", [b"", b"<svg/>", b"\x89PNG\r\n\x1a\n" + b"\0" * 50, picture()[:60], b"GIF89a"])
def test_a_cover_that_cannot_be_read_is_refused_in_a_sentence(content: bytes) -> None:
    if not content:
        assert audiobook.jpeg_cover(content) == b""
        return
    with pytest.raises(UserError, match="cover cannot be read"):
        audiobook.jpeg_cover(content)


def test_a_cover_is_made_smaller() -> None:
    with Image.open(io.BytesIO(audiobook.jpeg_cover(picture(3000, "JPEG")))) as image:
        assert image.size == (1400, 1400)


@needs_ffmpeg
def test_mp3_of_a_chapter(tmp_path: Path, chapters: list[AudioChapter]) -> None:
    path = tmp_path / "1.mp3"
    audiobook.write_mp3(path, chapters[1], 2, 3, LABELS, RATE)
    shown = probe(path, "-show_format")["format"]
    assert float(shown["duration"]) == pytest.approx(chapters[1].samples / RATE, abs=0.1)
    assert (shown["tags"]["title"], shown["tags"]["track"]) == (chapters[1].title, "2/3")


@needs_ffmpeg
@pytest.mark.parametrize("level", [0.004, 0.05, 0.4])
def test_chapters_have_the_wanted_loudness(tmp_path: Path, level: float) -> None:
    chapter = AudioChapter("A", (clip(tmp_path, "a", 6.0, 0.3, level), clip(tmp_path, "b", 5.0, 2.0, level / 2)))
    measured = integrated_loudness(soundfile.read(chapter.clips[0].path, dtype="float32")[0], RATE)
    assert measured is not None
    levelled = audiobook.with_loudness(chapter, -18.0, measured, RATE)
    audiobook.write_m4b(tmp_path / "a.m4b", [levelled], LABELS, RATE)
    audiobook.write_mp3(tmp_path / "a.mp3", levelled, 1, 1, LABELS, RATE)
    assert loudness(tmp_path / "a.m4b") == pytest.approx(-18.0, abs=0.5)
    assert loudness(tmp_path / "a.mp3") == pytest.approx(-18.0, abs=0.5)


@needs_ffmpeg
def test_chapter_times_beyond_32_bits(tmp_path: Path) -> None:
    """The marks lie after 2^31 and 2^32 samples, and after as many milliseconds; the sound itself is short."""
    short = clip(tmp_path, "a", 0.5, 0.0)
    hours = (0, 40, 80, 300, 700, 1200)  # at 16 kHz, 2^31 samples are 37 hours; 2^31 ms are 596 hours, 2^32 1193
    lengths = [(end - start) * 3600 * RATE for start, end in pairwise((*hours, 1201))]
    chapters = [AudioChapter(f"{hour} h", (SentenceAudio(short.path, length, 0, ""),))
                for hour, length in zip(hours, lengths, strict=True)]
    metadata = audiobook.chapter_metadata(chapters, LABELS, RATE)
    assert [int(line[6:]) for line in metadata.splitlines() if line.startswith("START=")] == [
        hour * 3_600_000 for hour in hours]
    (tmp_path / "chapters.txt").write_text(metadata)
    path = tmp_path / "long.m4b"
    subprocess.run(["ffmpeg", "-nostdin", "-v", "error", "-i", str(short.path), "-i", str(tmp_path / "chapters.txt"),
                    "-map", "0:a", "-map_chapters", "1", "-c:a", "aac", "-f", "ipod", str(path)], check=True)
    starts = [float(chapter["start_time"]) for chapter in probe(path, "-show_chapters")["chapters"]]
    assert starts == [hour * 3600.0 for hour in hours]


def test_a_millisecond_is_not_lost_in_a_long_book() -> None:
    assert audiobook.milliseconds(2**40 + 11, 24000) == round((2**40 + 11) / 24)
    assert audiobook.milliseconds(0, 24000) == 0


def test_subtitles_have_the_times_of_the_audio(tmp_path: Path) -> None:
    chapters = [
        AudioChapter("1", (clip(tmp_path, "a", 1.0, 0.5, text="It rained --> on & <b>on</b>."),
                           clip(tmp_path, "b", 2.0, 1.0, text="It\nstopped."))),
        AudioChapter("2", (SentenceAudio(tmp_path / "a.flac", 16000, 0, "Two words",
                                         (("Two", 0.1, 0.4), ("words", 0.5, 0.9))),)),
    ]
    cues = audiobook.sentence_cues(chapters, RATE)
    assert [(cue.start_s, cue.end_s) for cue in cues] == [(0.0, 1.0), (1.5, 3.5), (4.5, 5.5)]
    words = audiobook.word_cues(chapters, RATE)
    assert words[2:] == [Cue(4.6, 4.9, "Two"), Cue(5.0, 5.4, "words")]

    srt, vtt = audiobook.write_subtitles(tmp_path, "book", cues)
    assert "00:00:01,500 --> 00:00:03,500\nIt stopped." in srt.read_text()
    assert "It rained --&gt; on &amp; &lt;b&gt;on&lt;/b&gt;." in vtt.read_text()
    for path in (srt, vtt):
        assert len(list(subtitles.read_subtitles(path, "book.m4b"))) == 3


def test_subtitles_of_more_than_a_hundred_hours(tmp_path: Path) -> None:
    srt, _ = audiobook.write_subtitles(tmp_path, "book", [Cue(400_000.002, 400_001.25, "Late.")])
    assert "111:06:40,002 --> 111:06:41,250" in srt.read_text()


@pytest.mark.parametrize(("title", "stem"), [
    ("Chapter 1. Rain", "Chapter-1-Rain"), ("../../etc/passwd", "etc-passwd"), ("-rf /", "rf"), ("", "chapter"),
    ("ምዕራፍ ፩", "ምዕራፍ-፩"), ("...", "chapter"), ("a\0b\nc", "a-b-c"), ("é" * 200, "é" * 50), ("CON:|?*", "CON"),
])
def test_names_of_files(title: str, stem: str) -> None:
    assert audiobook.file_stem(title, "chapter") == stem


def test_without_ffmpeg_there_is_a_sentence(tmp_path: Path, chapters: list[AudioChapter], monkeypatch) -> None:
    monkeypatch.setattr(audiobook, "ffmpeg_path", lambda: None)
    with pytest.raises(UserError, match="ffmpeg, which is not on this machine"):
        audiobook.write_m4b(tmp_path / "a.m4b", chapters, LABELS, RATE)
    assert not (tmp_path / "a.m4b").exists()


@needs_ffmpeg
def test_a_failing_ffmpeg_is_quoted_and_leaves_no_file(tmp_path: Path, chapters: list[AudioChapter],
                                                         monkeypatch) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text("#!/bin/sh\necho 'Unknown encoder aac' >&2\nexit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(audiobook, "ffmpeg_path", lambda: str(program))
    with pytest.raises(UserError, match="Unknown encoder aac"):
        audiobook.write_m4b(tmp_path / "a.m4b", chapters, LABELS, RATE)
    assert not list(tmp_path.glob("*.m4b"))


@needs_ffmpeg
def test_a_sentence_that_was_cut_off_on_the_disk_is_named(tmp_path: Path) -> None:
    broken = clip(tmp_path, "a", 1.0, 0.0)
    chapter = AudioChapter("1", (SentenceAudio(broken.path, broken.samples + 5, 0, "a"),))
    with pytest.raises(UserError, match=r"a\.flac has 16000 samples"):
        audiobook.write_m4b(tmp_path / "a.m4b", [chapter], LABELS, RATE)
