"""Read, cut, repair, resample and write sound files as numpy arrays, by soundfile and soxr.

The duration of a file is what decodes, not what its header says; what libsndfile does not read to the end is decoded by
ffmpeg. A long recording is read in order in blocks and never sought in, since not every compressed file can be sought
to the sample; memory does not grow with its length. A file that is not audio raises `UserError` naming it.
"""

from __future__ import annotations

import io
import math
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import soundfile
import soxr

from config import confinement
from config.confinement import OutsideSources
from config.errors import UserError
from data import ffmpeg_audio, sound_containers
from data.channels import AUTO, OFFSET_LIMIT, ChannelStatistics, Downmix, Mix
from data.measures import Measures, Samples, gain_to, integrated_loudness
from data.sound_containers import ContainerFacts

VOICE_RATE = 16000  # Hz: of the copy of a recording in which voices are detected, and of its noise
_BLOCK_S = 20.0
_CUT_AS = {"PCM_S8": "int16", "PCM_U8": "int16", "PCM_16": "int16", "PCM_24": "int32", "PCM_32": "int32"}
_ROUNDING_S = 2.0  # seconds by which the last part may exceed its recording: subtitles stay for a while
_APART, _APART_S = 0.01, 0.15  # share and seconds by which two durations may differ; an MP3's encoder adds up to 0.1 s
_DEEP = ("PCM_24", "PCM_32", "FLOAT", "DOUBLE")


@dataclass(frozen=True)
class SoundFinding:
    """What is unusual about a recording; `kind` is a short word for grouping."""

    kind: str
    message: str


@dataclass(frozen=True)
class SoundFacts:
    """A recording as it decodes."""

    sample_rate: int  # Hz
    channels: int
    duration_s: float
    downmix: Downmix
    subtype: str  # libsndfile's, such as "PCM_16"
    stated_s: float | None = None  # stated by the header
    cut_off: bool = False
    by_ffmpeg: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether any program reads the same waveform from the file: the mean of its channels, from start to end."""
        return self.downmix.is_plain and not self.by_ffmpeg

    def findings(self) -> list[SoundFinding]:
        """Findings about the recording for the user."""
        findings, mix = list[SoundFinding](), self.downmix
        channel, other = (index + 1 for index in mix.between)
        used = 1 + int(np.argmax(mix.weights))

        if self.cut_off:
            stated = f", and its header states {self.stated_s:.1f} s" if self.stated_s else ""
            findings.append(SoundFinding("cut off", f"the file is cut off: {self.duration_s:.1f} s decode{stated}"))
        elif self.stated_s is not None and _differ(self.stated_s, self.duration_s):
            message = f"its header states {self.stated_s:.1f} s, and {self.duration_s:.1f} s decode; all of it is read"
            findings.append(SoundFinding("length", message))

        if abs(mix.largest_offset) > OFFSET_LIMIT:
            findings.append(SoundFinding("offset", f"it has a constant offset (DC) of {mix.largest_offset:.1%} of full "
                                      "scale, which is subtracted"))

        # Tell how channels were mixed that are not plain stereo.
        channels = f"channels {channel} and {other}"
        correlation = f"correlation {mix.correlation:.2f}"
        if mix.mix is Mix.INVERTED:
            message = f"{channels} cancel each other ({correlation}); channel {used} is used"
            findings.append(SoundFinding("channels", message))
        elif mix.mix is Mix.OUT_OF_PHASE:
            message = f"{channels} are out of phase ({correlation}); channel {used} is used"
            findings.append(SoundFinding("channels", message))
        elif mix.mix is Mix.DIFFERENT:
            message = (f"{channels} hold different sound ({correlation}), such as two speakers; they are mixed. Choose "
                       "a channel (--channel), or give each as a file with its own text")
            findings.append(SoundFinding("channels", message))
        return findings


@dataclass(frozen=True)
class Sound:
    """A whole recording: waveform (S,) float32 in [-1, 1]; `facts` tell how it was decoded."""

    waveform: np.ndarray
    facts: SoundFacts


def _differ(one_s: float, other_s: float) -> bool:
    return abs(one_s - other_s) > max(_APART_S, _APART * max(one_s, other_s))


def read_samples(path: str | Path | BinaryIO, name: str | Path = "") -> tuple[np.ndarray, int]:
    """A sound file as mono waveform (S,) float32 in [-1, 1], and its sample rate in Hz; `name` is for an open file."""
    if isinstance(path, str | Path):
        sound = read_sound(Path(path))
        return sound.waveform, sound.facts.sample_rate
    try:
        samples, rate = soundfile.read(path, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(name, error) from error
    if samples.shape[0] == 0:
        raise _no_samples(name)
    _require_finite(samples, name, 0, rate)
    statistics = ChannelStatistics(samples.shape[1], rate)
    statistics.add(samples)
    return statistics.downmix().apply(samples), rate


def read_sound(path: Path, longest_s: float = math.inf, channel: str = AUTO) -> Sound:
    """The recording at `path`, or its first `longest_s` seconds; its facts are those of all of it.

    `channel`: see `Downmix.chosen`.
    What libsndfile does not read to its end is decoded by ffmpeg. `UserError` for a file that is not sound, or of which
    only a part can be decoded.
    """
    blocks = list[np.ndarray]()
    facts = _survey(path, blocks, longest_s)

    if not blocks:
        raise _no_samples(path)

    # Later calls need not decode the file again.
    with _facts_lock:
        _facts[_stamp(path)] = facts

    samples = np.concatenate(blocks) if len(blocks) > 1 else blocks[0]
    if longest_s < math.inf:
        samples = samples[:round(longest_s * facts.sample_rate)]
    _require_finite(samples, path, 0, facts.sample_rate)
    facts = _with_channel(facts, channel, path)
    return Sound(facts.downmix.apply(samples), facts)


def examine(path: Path, channel: str = AUTO) -> SoundFacts:
    """The facts of the recording at `path`, which is decoded once from start to end."""
    stamp = _stamp(path)
    with _facts_lock:
        facts = _facts.get(stamp)
    if facts is None:
        facts = _survey(path, None, 0.0)
        with _facts_lock:
            while len(_facts) >= _MOST_FACTS:
                del _facts[next(iter(_facts))]
            _facts[stamp] = facts
    return _with_channel(facts, channel, path)


def _with_channel(facts: SoundFacts, channel: str, path: Path) -> SoundFacts:
    """The facts with the channel that a person chose; `UserError` if the recording does not have it."""
    try:
        return replace(facts, downmix=facts.downmix.chosen(channel))
    except ValueError as error:
        raise UserError(f"{path} cannot be read: {error}.",
                        "Choose auto, mix, or the number of a channel that each recording has.") from error


_MOST_FACTS = 256
_facts: dict[tuple[str, int, int], SoundFacts] = {}
_facts_lock = threading.Lock()


def _stamp(path: Path) -> tuple[str, int, int]:
    """Tells a file's content from another one's."""
    try:
        with confinement.verified(path) as source:
            state = os.stat(source)
    except OutsideSources:
        raise
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return str(path), state.st_mtime_ns, state.st_size


def _survey(path: Path, first_blocks: list[np.ndarray] | None, longest_s: float) -> SoundFacts:
    """Decode all of a recording; its first blocks (S, channels) are appended to `first_blocks`."""
    _stamp(path)

    try:
        container = sound_containers.inspect(path)
    except OSError as error:
        raise _unreadable(path, error) from error

    # libsndfile says of a file without a whole frame that it does not exist.
    if container.kind == "mp3" and container.cut_off and container.present_s is None:
        raise _unreadable(path, ValueError("it ends before its first frame of MP3 does, so it is cut off"))

    # libsndfile is tried first: it is faster than ffmpeg and keeps the sample format.
    fault: UserError | None = None
    facts = None
    if not _needs_ffmpeg(path, container):
        try:
            facts = _decode(path, path, container, first_blocks, longest_s)
        except UserError as error:
            fault = error
            if first_blocks is not None:
                first_blocks.clear()

    # The file holds more sound than libsndfile decoded, by its frames or by its header.
    whole_s = container.present_s if container.present_s is not None else container.stated_s
    is_short = facts is None or (whole_s is not None and facts.duration_s < whole_s and _differ(facts.duration_s,
                                                                                               whole_s))
    if not is_short:
        assert facts is not None
        return facts

    # ffmpeg decodes the rest, if the format is one that it knows.
    if container.kind not in sound_containers.SOUND_KINDS | sound_containers.FILM_KINDS:
        raise fault or _unreadable(path, ValueError("its format is not known"))
    if ffmpeg_audio.ffmpeg_path() is None and not container.files:
        raise fault if fault is not None and whole_s is None else _partly_read(path, facts, container)
    try:
        decoded = _decoded(path)
        if first_blocks is not None:
            first_blocks.clear()
        facts = replace(_decode(decoded, path, container, first_blocks, longest_s), by_ffmpeg=True)
    except UserError as error:
        raise fault or error from error

    # Compare what ffmpeg decoded with the sound in the container and with the duration in the header.
    if container.present_s is not None and facts.duration_s < container.present_s and _differ(
            facts.duration_s, container.present_s):
        raise _partly_read(path, facts, container)
    if container.stated_s is not None and facts.duration_s < container.stated_s and _differ(
            facts.duration_s, container.stated_s):
        facts = replace(facts, cut_off=True)
    return facts


def _needs_ffmpeg(path: Path, container: ContainerFacts) -> bool:
    """Whether libsndfile is not even tried on the file as it is: it would stop early, or not begin."""
    if container.kind in sound_containers.FILM_KINDS:
        return True
    if container.kind == "mp3" and container.present_s is not None and ffmpeg_audio.ffmpeg_path() is not None:
        if not container.is_exact:
            return True
        # Without a header, libsndfile estimates the length from the first frame and reads no further.
        with _opened(path) as file:
            return file.frames / file.samplerate < container.present_s - _APART_S
    if container.files:
        return True  # each of them is read by libsndfile
    return container.chained and container.kind != "wav" and ffmpeg_audio.ffmpeg_path() is not None


def _decode(source: Path, name: Path, container: ContainerFacts, first_blocks: list[np.ndarray] | None,
            longest_s: float) -> SoundFacts:
    """The facts of `source`, which is the recording `name` or its copy decoded by ffmpeg."""
    with _opened(source, name) as file:
        rate, statistics = file.samplerate, ChannelStatistics(file.channels, file.samplerate)
        for block in _raw_blocks(file, _BLOCK_S):
            if first_blocks is not None and statistics.samples < longest_s * rate:
                first_blocks.append(block)
            # One part may be bad while the others are good; the reader of a part refuses values that are not finite.
            statistics.add(block if np.isfinite(block).all() else np.nan_to_num(block, posinf=0.0, neginf=0.0))
        subtype = file.subtype
    duration_s = statistics.samples / rate
    return SoundFacts(rate, statistics.channels, duration_s, statistics.downmix(), subtype, container.stated_s,
                      container.cut_off)


def _raw_blocks(file: soundfile.SoundFile, block_s: float) -> Iterator[np.ndarray]:
    """Blocks (S, channels) float32 to the end of an open file."""
    frames = max(1, round(block_s * file.samplerate))
    while True:
        block = file.read(frames, dtype="float32", always_2d=True)
        if not len(block):
            return
        yield block


@contextmanager
def _opened(path: str | Path, name: str | Path = "") -> Iterator[soundfile.SoundFile]:
    """An open sound file; errors of libsndfile are `UserError` and name `name`, or `path`."""
    try:
        with confinement.verified(path) as source:
            is_wrong = sound_containers.content_of(Path(source)) == "mp3" and not sound_containers.inspect(
                Path(source)).is_exact
            with _QuietFile(source) if is_wrong else soundfile.SoundFile(source) as file:
                yield file
    except (soundfile.SoundFileError, OSError, UnicodeError) as error:  # UnicodeError: a name that is not UTF-8
        raise _unreadable(name or path, error) from error


_decoded_files: dict[tuple[str, int, int], tuple[Path, ExitStack]] = {}
"""By the stamp of a recording its decoded copy, and what deletes it."""
_MOST_DECODED = 3
_decoded_lock = threading.Lock()


def _decoded(path: Path) -> Path:
    """A copy of the recording in a temporary FLAC file that lives with this process, decoded by ffmpeg.

    WAV and FLAC files that were joined are decoded one after the other, without ffmpeg, which ends behind the first.
    """
    stamp = _stamp(path)
    with _decoded_lock:
        if stamp not in _decoded_files:
            # A generator may still read the oldest: its open file stays readable.
            while len(_decoded_files) >= _MOST_DECODED:
                _decoded_files.pop(next(iter(_decoded_files)))[1].close()
            with ExitStack() as stack:
                copy = Path(stack.enter_context(tempfile.NamedTemporaryFile(suffix=".flac")).name)
                stack.enter_context(confinement.temporary_file(copy))
                if files := sound_containers.inspect(path).files:
                    _join(path, files, copy)
                else:
                    ffmpeg_audio.extract_audio(path, copy)
                _decoded_files[stamp] = copy, stack.pop_all()
        return _decoded_files[stamp][0]


class _Part(io.RawIOBase):
    """A range of bytes of an open file, as a file."""

    def __init__(self, file: BinaryIO, begin: int, end: int) -> None:
        super().__init__()
        self._file, self._begin, self._size, self._at = file, begin, end - begin, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, buffer: Any) -> int:
        self._file.seek(self._begin + self._at)
        content = self._file.read(max(0, min(len(buffer), self._size - self._at)))
        buffer[:len(content)] = content
        self._at += len(content)
        return len(content)


def _join(path: Path, files: Sequence[tuple[int, int]], target: Path) -> None:
    """Write the sound of joined files as one FLAC file; `UserError` if they differ in rate or channels."""
    try:
        with confinement.verified(path) as source, open(source, "rb") as stream:
            with soundfile.SoundFile(_Part(stream, *files[0])) as recording:
                rate, channels = recording.samplerate, recording.channels
                subtype = "PCM_24" if recording.subtype in _DEEP else "PCM_16"
            with soundfile.SoundFile(target, "w", rate, channels, subtype, format="FLAC") as joined:
                for number, (begin, end) in enumerate(files, 1):
                    with soundfile.SoundFile(_Part(stream, begin, end)) as part:
                        if (part.samplerate, part.channels) != (rate, channels):
                            raise UserError(
                                f"{path} has {len(files)} recordings one behind another, and number {number} has "
                                f"{part.samplerate} Hz and {part.channels} channels where the first has {rate} Hz and "
                                f"{channels}.", "Give them as single files.")
                        for block in _raw_blocks(part, _BLOCK_S):
                            joined.write(block)
    except (soundfile.SoundFileError, OSError) as error:
        raise _unreadable(path, error) from error


def _readable(path: Path, facts: SoundFacts) -> Path:
    """The file that libsndfile reads to its end."""
    return _decoded(path) if facts.by_ffmpeg else path


_quiet_lock = threading.RLock()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the lines that libmpg123 itself writes to stderr from the terminal.

    Lines of other threads are lost meanwhile, so this is only for MP3 files whose header is wrong.
    """
    with _quiet_lock:
        sys.stderr.flush()
        saved, null = os.dup(2), os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)
            os.close(null)


class _QuietFile(soundfile.SoundFile):
    """An MP3 file whose header is wrong."""

    def __init__(self, path: str) -> None:
        with _quiet():
            super().__init__(path)

    def read(self, *arguments: Any, **options: Any) -> np.ndarray:
        with _quiet():
            return cast("np.ndarray", super().read(*arguments, **options))


def file_duration(path: str | Path) -> float:
    """Duration of a sound file in seconds, as it decodes."""
    return examine(Path(path)).duration_s


def duration_and_rate(path: str | Path) -> tuple[float, int]:
    """Duration in seconds, as it decodes, and sample rate in Hz."""
    facts = examine(Path(path))
    return facts.duration_s, facts.sample_rate


def cut_to_flac(path: str | Path, begin_s: float, end_s: float | None, channel: str = AUTO) -> tuple[bytes, int]:
    """The part of a sound file from `begin_s` to `end_s` (None: its end), as the bytes of a FLAC file.

    The rate stays, and so do the channels if their mean is the waveform, and 16 bits a sample if the file has no more:
    the same part always has the same bytes. The second value is how many samples were above full scale, which FLAC
    cannot hold, and were cut to it.
    """
    facts = examine(Path(path), channel)

    with _opened(_readable(Path(path), facts), path) as file:
        rate, length = file.samplerate, round(facts.duration_s * file.samplerate)
        begin = round(begin_s * rate)
        end = length if end_s is None else min(length, round(end_s * rate))
        # A small excess is rounding; more is an error in the table.
        if begin >= end or (end_s is not None and end_s > facts.duration_s + _ROUNDING_S):
            which = f"begins at {begin_s:g}" if begin >= end else f"ends at {end_s:g}"
            raise UserError(f"The part {which} s, and {path} lasts {facts.duration_s:.1f} s.",
                            "Check that the times belong to this recording, and that they are seconds.")

        # A plain file keeps its sample format; a downmix is computed in float32.
        file.seek(begin)
        exact = _CUT_AS.get(file.subtype, "float32") if facts.downmix.is_plain else "float32"
        samples = file.read(end - begin, dtype=exact, always_2d=True)
        subtype = file.subtype

    if samples.dtype == np.float32:
        _require_finite(samples, path, begin, rate)
    if not facts.downmix.is_plain:
        samples = facts.downmix.apply(samples)
    return _flac_bytes(samples, rate, subtype)


def _flac_bytes(samples: np.ndarray, rate: int, subtype: str) -> tuple[bytes, int]:
    """Samples as the bytes of a FLAC file, and how many of them were above full scale."""
    above = int((np.abs(samples) > 1).sum()) if samples.dtype == np.float32 else 0
    target = io.BytesIO()
    soundfile.write(target, samples, rate, format="FLAC", subtype="PCM_24" if subtype in _DEEP else "PCM_16")
    return target.getvalue(), above


def to_flac(sound: Sound) -> tuple[bytes, int]:
    """A recording as the bytes of a mono FLAC file, and how many samples were above full scale and cut to it."""
    return _flac_bytes(sound.waveform, sound.facts.sample_rate, sound.facts.subtype)


def _require_finite(samples: np.ndarray, name: str | Path, start: int, rate: int) -> None:
    """Refuse samples (S, channels) that are no numbers; the first is number `start` of the file."""
    if not np.isfinite(samples).all():
        first_s = (start + int(np.argmin(np.isfinite(samples).all(axis=1)))) / rate
        raise UserError(f"{name} holds samples that are not finite numbers, the first at {first_s:.2f} s.",
                        "Record or convert it again.")


def _no_samples(name: str | Path) -> UserError:
    return UserError(f"{name} holds no samples.", "Remove the clip or record it again.")


def _partly_read(path: Path, facts: SoundFacts | None, container: ContainerFacts) -> UserError:
    """The refusal of a file that decodes only in part."""
    whole_s = container.present_s if container.present_s is not None else container.stated_s
    decoded_s = 0.0 if facts is None else facts.duration_s
    hint = ("Convert it again from its source." if ffmpeg_audio.ffmpeg_path() is not None
            else f"{ffmpeg_audio.INSTALL.removesuffix(', then do this again.')}, which reads such files.")
    return UserError(f"{path} holds {whole_s or 0:.1f} s of sound, and only {decoded_s:.1f} s of it decode.", hint)


def _unreadable(path: str | Path, error: Exception) -> UserError:
    kind = sound_containers.not_sound(path) if isinstance(path, Path) else ""
    if kind:
        return UserError(f"{path} could not be read as audio: it is {kind}.",
                         "Give the recording itself, as a WAV, FLAC, OGG, Opus or MP3 file.")
    reason = getattr(error, "error_string", "") or getattr(error, "strerror", "") or str(error)  # without a path
    return UserError(
        f"{path} could not be read as audio: {reason.rstrip('.')}.",
        "Give a WAV, FLAC, OGG, Opus or MP3 file; convert others with ffmpeg.",
    )


def write_channel(path: Path, channel: str, target: Path) -> None:
    """Write the chosen channel or mix of a recording as a mono FLAC file, block by block."""
    facts = examine(path, channel)
    subtype = "PCM_24" if facts.subtype in _DEEP else "PCM_16"
    with soundfile.SoundFile(target, "w", facts.sample_rate, 1, subtype, format="FLAC") as file:
        for block in read_blocks(path, channel=channel):
            file.write(block)


def encode_flac(waveform: np.ndarray, sample_rate: int) -> bytes:
    """Waveform (S,) as the bytes of a 24-bit FLAC file, clipped to [-1, 1]."""
    target = io.BytesIO()
    soundfile.write(target, np.clip(waveform, -1, 1), sample_rate, format="FLAC", subtype="PCM_24")
    return target.getvalue()


def read_blocks(path: Path, block_s: float = _BLOCK_S, channel: str = AUTO) -> Iterator[np.ndarray]:
    """A recording in order as mono blocks (S,) float32 at its own rate."""
    facts = examine(path, channel)
    with _opened(_readable(path, facts), path) as file:
        start = 0
        for block in _raw_blocks(file, block_s):
            _require_finite(block, path, start, file.samplerate)
            start += len(block)
            yield facts.downmix.apply(block)


def read_resampled(path: Path, rate: int, block_s: float = _BLOCK_S) -> Iterator[np.ndarray]:
    """A recording in order as mono blocks (S,) float32 at `rate` Hz."""
    source_rate = examine(path).sample_rate
    if source_rate == rate:
        yield from read_blocks(path, block_s)
        return
    stream = soxr.ResampleStream(source_rate, rate, 1, dtype="float32", quality="HQ")
    for block in read_blocks(path, block_s):
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


def read_spans(path: Path, spans: Sequence[tuple[float, float]]) -> Iterator[np.ndarray]:
    """The waveforms (S,) of spans of a recording in seconds, in order and not overlapping, at its own rate."""
    rate = examine(path).sample_rate
    ranges = [(round(begin * rate), round(end * rate)) for begin, end in spans]
    held, start, number = list[np.ndarray](), 0, 0

    for block in read_blocks(path):
        held.append(block)
        end = start + sum(map(len, held))

        # Yield every span that ends inside the blocks held so far.
        while number < len(ranges) and ranges[number][1] <= end:
            joined = np.concatenate(held)
            yield joined[ranges[number][0] - start:ranges[number][1] - start]
            number += 1

        # Drop the blocks that end before the next span.
        keep = ranges[number][0] if number < len(ranges) else end
        while held and start + len(held[0]) <= keep:
            start += len(held.pop(0))
        if number == len(ranges):
            return
    # The last span ends with the recording.
    if number < len(ranges) and held:
        yield np.concatenate(held)[max(0, ranges[number][0] - start):]


@dataclass(frozen=True)
class ClipFormat:
    """Format of a clip cut from a recording: `sample_rate` 0 and `lufs` None keep those of the recording."""

    sample_rate: int = 0
    lufs: float | None = -23.0
    denoise: bool = False


def format_clip(samples: np.ndarray, rate: int, finish: ClipFormat, noise: np.ndarray) -> tuple[np.ndarray, int]:
    """A clip (S,) at `rate` Hz in its final format, and its rate; `noise` at `VOICE_RATE` is the noise profile."""
    if finish.denoise and len(noise) >= VOICE_RATE // 4 and len(samples):
        samples = _without_noise(samples, rate, noise)
    target_rate = finish.sample_rate or rate
    if target_rate != rate:
        samples = soxr.resample(samples, rate, target_rate, quality="VHQ").astype(np.float32)
    return (samples if finish.lufs is None else at_loudness(samples, target_rate, finish.lufs)), target_rate


def write_denoised(path: Path, noise: np.ndarray, target: Path) -> None:
    """A copy of a recording at `VOICE_RATE` without its noise, whose profile is `noise` (S,) at that rate."""
    with soundfile.SoundFile(str(target), "w", VOICE_RATE, 1, "FLOAT", format="WAV") as file:
        for block in read_resampled(path, VOICE_RATE):
            file.write(_without_noise(block, VOICE_RATE, noise) if len(block) else block)


def at_loudness(samples: np.ndarray, rate: int, lufs: float) -> np.ndarray:
    """The clip at this loudness, or as near as its peak allows; silence stays."""
    measured = integrated_loudness(samples, rate)
    if measured is None:
        return samples
    return (samples * gain_to(lufs, measured, float(np.abs(samples).max()))).astype(np.float32)


def _without_noise(samples: np.ndarray, rate: int, noise: np.ndarray) -> np.ndarray:
    import noisereduce  # slow import

    profile = soxr.resample(noise, VOICE_RATE, rate, quality="HQ") if rate != VOICE_RATE else noise
    denoised = noisereduce.reduce_noise(y=samples, sr=rate, y_noise=profile, stationary=True, prop_decrease=0.9)
    return np.asarray(denoised, dtype=np.float32)


EDGE_SILENCE_S = 0.1  # seconds at each end
TRIM, LEVEL = "trim", "level"
_FADE_S = 0.005


def silence_to_trim(silence_start_s: float, silence_end_s: float, duration_s: float) -> tuple[float, float]:
    """Seconds to cut at both ends of a recording of `duration_s`, so that 0.1 s of silence is left at each.

    Whole milliseconds. A recording that is silent throughout keeps all of it.
    """
    if silence_start_s + silence_end_s >= duration_s:
        return 0.0, 0.0
    return (max(0.0, round(silence_start_s - EDGE_SILENCE_S, 3)), max(0.0, round(silence_end_s - EDGE_SILENCE_S, 3)))


def trim(waveform: Samples, sample_rate: int, start_s: float, end_s: float) -> Samples:
    """(S,) without so many seconds at its ends, with fades of 5 ms at the cuts, against clicks."""
    begin = round(start_s * sample_rate)
    end = len(waveform) - round(end_s * sample_rate)
    cut = waveform[begin:end].copy()
    fade = np.linspace(0, 1, max(1, round(_FADE_S * sample_rate)), dtype=np.float32)[:len(cut)]
    if begin:
        cut[:len(fade)] *= fade
    if end < len(waveform):
        cut[len(cut) - len(fade):] *= fade[::-1]
    return cut


def repair(waveform: Samples, sample_rate: int, measures: Measures, fixes: Sequence[str],
           target_lufs: float) -> Samples:
    """(S,) with `fixes` applied: `trim` to 0.1 s of silence at each end, `level` to `target_lufs` or near it."""
    if TRIM in fixes:
        waveform = trim(waveform, sample_rate, *silence_to_trim(measures.silence_start_s, measures.silence_end_s,
                                                                measures.duration_s))
    if LEVEL in fixes and measures.level_lufs is not None:
        waveform = waveform * np.float32(gain_to(target_lufs, measures.level_lufs, float(np.abs(waveform).max())))
    return waveform.astype(np.float32)
