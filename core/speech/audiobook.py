"""The files of an audiobook: M4B with chapter marks and cover, MP3 per chapter, subtitles with the times of its audio.

Times are counted in samples and written in milliseconds, as integers of any size. ffmpeg gets the samples through a
pipe, so no file of the whole book lies on the disk beside its result. Titles reach ffmpeg in a file or as one argument,
never through a shell.
"""

from __future__ import annotations

import io
import re
import subprocess
import tempfile
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import langcodes
import numpy as np
import soundfile
from PIL import Image, UnidentifiedImageError

from config.errors import UserError
from data.durable_files import atomic_path, write_text
from data.ffmpeg_audio import ffmpeg_path
from data.measures import PEAK_CEILING, Samples

AAC_BITRATE = MP3_BITRATE = "64k"
_COVER_SIDE = 1400  # pixels
_COVER_PIXELS = 60_000_000
_COVER_FORMATS = ("JPEG", "PNG", "GIF", "WEBP")
_SPECIAL = re.compile(r"([=;#\\])")
_NAME_BYTES = 100
# The limiter only acts on peaks that the gain would clip.
_LIMITER = f"alimiter=limit={PEAK_CEILING:.3f}:level=disabled:attack=5:release=50"
_LAME_SCALE = 0.95  # LAME lowers its input so far at this bit rate (measured: 0.47 dB at 64 kbit/s, ffmpeg 5.1)
_LOUDNESS_PASSES, _LOUDNESS_TOLERANCE, _MOST_CORRECTION_DB = 4, 0.1, 6.0  # LU
_SILENT_LUFS = -70.0
_INTEGRATED = re.compile(r"lavfi\.r128\.I=(-?[0-9.]+)")


@dataclass(frozen=True)
class SentenceAudio:
    """The speech of a sentence in a sound file, and the silence after it, in samples."""

    path: Path
    samples: int
    pause: int
    text: str
    words: tuple[tuple[str, float, float], ...] = ()  # word, begin and end in seconds


@dataclass(frozen=True)
class AudioChapter:
    """A chapter as clips; `gain` is the factor that brings it to the wanted loudness."""

    title: str
    clips: tuple[SentenceAudio, ...]
    gain: float = 1.0

    @property
    def samples(self) -> int:
        return sum(clip.samples + clip.pause for clip in self.clips)


@dataclass(frozen=True)
class BookLabels:
    """What players show."""

    title: str
    authors: tuple[str, ...]
    language: str
    cover: bytes = b""  # JPEG


@dataclass(frozen=True)
class Cue:
    """A line of subtitles, in seconds of the whole book."""

    start_s: float
    end_s: float
    text: str


def jpeg_cover(picture: bytes) -> bytes:
    """The picture of a cover as JPEG of at most 1,400 pixels a side; `UserError` for one that cannot be read."""
    if not picture:
        return b""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(io.BytesIO(picture), formats=_COVER_FORMATS) as image:
                if image.width * image.height > _COVER_PIXELS:
                    raise ValueError(f"it has {image.width} x {image.height} pixels")
                image.thumbnail((_COVER_SIDE, _COVER_SIDE))
                encoded = io.BytesIO()
                image.convert("RGB").save(encoded, "JPEG", quality=88)
                return encoded.getvalue()
    except (UnidentifiedImageError, Image.DecompressionBombError, Image.DecompressionBombWarning, OSError, ValueError,
            SyntaxError, MemoryError, EOFError) as error:
        raise UserError(f"The picture of the cover cannot be read: {str(error)[:200].rstrip('.')}.",
                        "The audiobook is made without a cover.") from error


def file_stem(title: str, fallback: str) -> str:
    """A name of a file from a title: letters and digits of any script, with hyphens between them."""
    letters = "".join(letter if letter.isalnum() or unicodedata.category(letter) in ("Mn", "Mc") else "-"
                      for letter in unicodedata.normalize("NFC", title))
    stem = re.sub("-+", "-", letters).strip("-")
    return stem.encode()[:_NAME_BYTES].decode(errors="ignore").strip("-") or fallback


def chapter_metadata(chapters: Sequence[AudioChapter], labels: BookLabels, sample_rate: int) -> str:
    """The text of an FFMETADATA file. A chapter ends where the next one begins, to the millisecond."""
    lines = [";FFMETADATA1", f"title={_escaped(labels.title)}", f"album={_escaped(labels.title)}"]
    if labels.authors:
        lines.append(f"artist={_escaped(', '.join(labels.authors))}")
    lines.append("genre=Audiobook")
    place = 0
    for chapter in chapters:
        end = place + chapter.samples
        lines += ["[CHAPTER]", "TIMEBASE=1/1000", f"START={milliseconds(place, sample_rate)}",
                  f"END={milliseconds(end, sample_rate)}", f"title={_escaped(chapter.title)}"]
        place = end
    return "\n".join(lines) + "\n"


def milliseconds(samples: int, sample_rate: int) -> int:
    """The time of a sample, rounded, in integers: no float loses a millisecond in a long book."""
    return (2 * samples * 1000 + sample_rate) // (2 * sample_rate)


def _iso639_2(code: str) -> str:
    """The code of three letters that MP4 has for a track; `und` for a language without one."""
    try:
        return langcodes.get(code).to_alpha3()
    except (LookupError, ValueError):
        return "und"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))


def write_m4b(target: Path, chapters: Sequence[AudioChapter], labels: BookLabels, sample_rate: int,
              check: Callable[[], None] = lambda: None) -> None:
    """Write the whole book in AAC, with chapter marks and the cover."""
    with tempfile.TemporaryDirectory(prefix="lisan-book-") as folder:
        metadata, cover = Path(folder) / "chapters.txt", Path(folder) / "cover.jpg"
        metadata.write_text(chapter_metadata(chapters, labels, sample_rate), encoding="utf-8")
        inputs = ["-f", "ffmetadata", "-i", f"file:{metadata}"]
        maps = ["-map", "0:a", "-map_metadata", "1", "-map_chapters", "1",
                "-metadata:s:a:0", f"language={_iso639_2(labels.language)}"]
        if labels.cover:
            cover.write_bytes(labels.cover)
            inputs += ["-f", "jpeg_pipe", "-i", f"file:{cover}"]
            maps += ["-map", "2:v", "-c:v", "copy", "-disposition:v", "attached_pic"]
        _encode(target, chapters, sample_rate, inputs,
                [*maps, "-af", _LIMITER, "-c:a", "aac", "-b:a", AAC_BITRATE, "-brand", "M4B ",
                 "-movflags", "+faststart", "-f", "ipod"], check)


def write_mp3(target: Path, chapter: AudioChapter, number: int, count: int, labels: BookLabels, sample_rate: int,
              check: Callable[[], None] = lambda: None) -> None:
    """Write a chapter as MP3 with title, author and number."""
    tags = {"title": chapter.title, "album": labels.title, "artist": ", ".join(labels.authors),
            "track": f"{number}/{count}", "genre": "Audiobook"}
    arguments: list[str] = []
    for name, value in tags.items():
        arguments += ["-metadata", f"{name}={' '.join(value.split())}"]
    _encode(target, [chapter], sample_rate, [],
            ["-map", "0:a", *arguments, "-af", f"{_LIMITER},volume={1 / _LAME_SCALE:.4f}", "-c:a", "libmp3lame",
             "-b:a", MP3_BITRATE, "-id3v2_version", "3", "-f", "mp3"],
            check)


def with_loudness(chapter: AudioChapter, lufs: float, measured: float, sample_rate: int,
                  check: Callable[[], None] = lambda: None) -> AudioChapter:
    """The chapter with the gain that brings it to `lufs` behind the limiter.

    `measured` is its loudness now. The limiter takes some of the gain, so its output is measured (BS.1770, by ffmpeg)
    and the rest added.
    """
    gain_db = lufs - measured
    for _ in range(_LOUDNESS_PASSES):
        limited = replace(chapter, gain=10 ** (gain_db / 20))
        with tempfile.TemporaryFile() as output:
            _run_ffmpeg(chapter.title, [limited], sample_rate,
                        ["-af", f"{_LIMITER},ebur128=metadata=1,ametadata=mode=print:key=lavfi.r128.I:file=-", "-f",
                         "null", "-"], output, check)
            output.seek(max(0, output.seek(0, io.SEEK_END) - 4096))
            values = _INTEGRATED.findall(output.read().decode(errors="replace"))
        # Less than 0.4 s, or silence, has no loudness.
        if not values or float(values[-1]) <= _SILENT_LUFS:
            return limited
        missing_db = lufs - float(values[-1])
        if abs(missing_db) <= _LOUDNESS_TOLERANCE:
            return limited
        gain_db += min(missing_db, _MOST_CORRECTION_DB)
    return replace(chapter, gain=10 ** (gain_db / 20))


def _encode(target: Path, chapters: Sequence[AudioChapter], sample_rate: int, inputs: Sequence[str],
            outputs: Sequence[str], check: Callable[[], None]) -> None:
    with atomic_path(target) as temporary, tempfile.TemporaryFile() as output:
        _run_ffmpeg(target.name, chapters, sample_rate,
                    [*inputs, *outputs, f"file:{temporary}"], output, check)


def _run_ffmpeg(name: str, chapters: Sequence[AudioChapter], sample_rate: int, arguments: Sequence[str],
                output: IO[bytes], check: Callable[[], None]) -> None:
    """Send the samples to ffmpeg; `UserError` with its last message if it fails."""
    program = ffmpeg_path()
    if program is None:
        raise UserError("An audiobook is written by ffmpeg, which is not on this machine.",
                        "Install ffmpeg, then continue.")

    # The protocols that ffmpeg may use are limited to its pipe and to files: it opens no address.
    command = [program, "-nostdin", "-v", "error", "-y", "-protocol_whitelist", "file,pipe", "-f", "f32le",
               "-ar", str(sample_rate), "-ac", "1", "-i", "pipe:0", *arguments]
    with (tempfile.TemporaryFile() as messages,
          subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=messages) as process):
        assert process.stdin is not None
        try:
            for samples in _samples(chapters, sample_rate):
                process.stdin.write(samples.astype("<f4").tobytes())
                check()
            process.stdin.close()
            process.wait()
        except BrokenPipeError:
            # It ended early; its message says why.
            process.wait()
        finally:
            if process.poll() is None:
                process.kill()
        messages.seek(0)
        lines = messages.read().decode(errors="replace").strip().splitlines()
    if process.returncode:
        reason = (lines or [f"status {process.returncode}"])[-1][:300].rstrip(".")
        raise UserError(f"ffmpeg could not write {name[:100]}: {reason}.",
                        "Check that the disk has space, and that ffmpeg has the encoders aac and libmp3lame; then "
                        "continue.")


def _samples(chapters: Sequence[AudioChapter], sample_rate: int) -> Iterator[Samples]:
    """The speech of each sentence and the pause after it."""
    for chapter in chapters:
        for clip in chapter.clips:
            samples, rate = soundfile.read(str(clip.path), dtype="float32")
            if rate != sample_rate or len(samples) != clip.samples:
                raise UserError(f"{clip.path} has {len(samples)} samples at {rate} Hz; it was written with "
                                f"{clip.samples} at {sample_rate}.", "Delete this file, then continue: the sentence is "
                                "synthesized again.")
            yield samples * np.float32(chapter.gain)
            yield np.zeros(clip.pause, np.float32)


def sentence_cues(chapters: Sequence[AudioChapter], sample_rate: int) -> list[Cue]:
    """A cue for each sentence."""
    cues: list[Cue] = []
    place = 0
    for chapter in chapters:
        for clip in chapter.clips:
            cues.append(Cue(place / sample_rate, (place + clip.samples) / sample_rate, clip.text))
            place += clip.samples + clip.pause
    return cues


def word_cues(chapters: Sequence[AudioChapter], sample_rate: int) -> list[Cue]:
    """A cue for each word that has a time; a sentence without word times is one cue."""
    cues: list[Cue] = []
    place = 0
    for chapter in chapters:
        for clip in chapter.clips:
            start_s = place / sample_rate
            if clip.words:
                cues += [Cue(start_s + begin_s, start_s + end_s, word) for word, begin_s, end_s in clip.words]
            else:
                cues.append(Cue(start_s, (place + clip.samples) / sample_rate, clip.text))
            place += clip.samples + clip.pause
    return cues


def write_subtitles(folder: Path, stem: str, cues: Sequence[Cue]) -> list[Path]:
    """Write `STEM.srt` and `STEM.vtt`; their paths."""
    srt: list[str] = []
    vtt = ["WEBVTT", ""]
    for number, cue in enumerate(cues, 1):
        text = " ".join(cue.text.split())
        arrow_free = text.replace("-->", "→")
        srt += [str(number), f"{cue_time(cue.start_s, ',')} --> {cue_time(cue.end_s, ',')}", arrow_free, ""]
        escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
        vtt += [f"{cue_time(cue.start_s, '.')} --> {cue_time(cue.end_s, '.')}", escaped, ""]
    paths = [folder / f"{stem}.srt", folder / f"{stem}.vtt"]
    for path, lines in zip(paths, (srt, vtt), strict=True):
        write_text(path, "\n".join(lines))
    return paths


def cue_time(seconds: float, mark: str = ".") -> str:
    """Such as `01:02:03.456`; `mark`: between seconds and milliseconds."""
    total = round(seconds * 1000)
    return f"{total // 3_600_000:02d}:{total // 60_000 % 60:02d}:{total // 1000 % 60:02d}{mark}{total % 1000:03d}"
