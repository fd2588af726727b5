"""Long recordings in blocks: heard once for voices, read once more for the clips. Memory does not grow with the length.

A recording is read in order and never sought in, since not every compressed file can be sought in to the sample. Clips
are resampled once, from the recording's own rate, by soxr; what hears for voices gets its own copy at 16 kHz.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
import soxr

from config.errors import UserError
from data.loudness import gain_to, integrated_loudness
from data.voice_activity import FRAME, RATE, VoiceActivityDetector

_BLOCK_S = 20.0
_NOISE_S = 5.0  # of what is no voice that is kept, to know the noise by
_NO_VOICE = 0.1  # probability below which a frame is none
SecondsCallback = Callable[[float], None]
"""Told how many seconds of a recording are done."""


def duration_and_rate(path: Path) -> tuple[float, int]:
    """Seconds and sample rate in Hz that the head of a recording tells."""
    try:
        info = soundfile.info(str(path))
    except (soundfile.SoundFileError, OSError, UnicodeError) as error:  # the last: a name that is no UTF-8
        raise _unreadable(path, error) from error
    return float(info.duration), int(info.samplerate)


def read_blocks(path: Path, block_s: float = _BLOCK_S) -> Iterator[np.ndarray]:
    """A recording in order, as mono blocks (S,) float32 at its own rate."""
    try:
        with soundfile.SoundFile(str(path)) as file:
            frames = max(1, round(block_s * file.samplerate))
            while len(block := file.read(frames, dtype="float32", always_2d=True)):
                yield block.mean(axis=1)
    except (soundfile.SoundFileError, OSError, UnicodeError) as error:
        raise _unreadable(path, error) from error


def read_resampled(path: Path, rate: int, block_s: float = _BLOCK_S) -> Iterator[np.ndarray]:
    """A recording in order, as mono blocks (S,) float32 at `rate` Hz."""
    _, own = duration_and_rate(path)
    if own == rate:
        yield from read_blocks(path, block_s)
        return
    stream = soxr.ResampleStream(own, rate, 1, dtype="float32", quality="HQ")
    for block in read_blocks(path, block_s):
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


@dataclass(frozen=True)
class VoiceTrack:
    """What was heard of a recording: one value a frame of 32 ms, and some of its noise."""

    probabilities: np.ndarray  # (N,) of a voice
    levels: np.ndarray  # (N,) root mean square
    total_s: float
    noise: np.ndarray  # (S,) float32 at 16 kHz, at most 5 s; empty where a voice is all the time


def detect_voice(path: Path, heard: SecondsCallback = lambda seconds: None) -> VoiceTrack:
    """Listen to a whole recording for voices."""
    activity = VoiceActivityDetector()
    probabilities, levels, noise = [], [], list[np.ndarray]()
    waiting, done, quiet = np.zeros(0, np.float32), 0, 0
    for block in read_resampled(path, RATE):
        found = activity.push(block)
        waiting = np.concatenate([waiting, block])
        frames = waiting[:len(found) * FRAME].reshape(-1, FRAME)
        waiting = waiting[len(found) * FRAME:]
        probabilities.append(found)
        levels.append(np.sqrt(np.square(frames).mean(1)))
        if quiet < _NOISE_S * RATE:
            still = frames[_far_from(found >= _NO_VOICE)].reshape(-1)[:int(_NOISE_S * RATE) - quiet]
            noise.append(still.copy())
            quiet += len(still)
        done += len(block)
        heard(done / RATE)
    probabilities.append(activity.finish())
    if len(probabilities[-1]):
        levels.append(np.sqrt(np.square(waiting).mean(keepdims=True)))
    if done == 0:
        raise UserError(f"{path} holds no samples.", "Remove it or record it again.")
    return VoiceTrack(np.concatenate(probabilities), np.concatenate(levels), done / RATE, np.concatenate(noise))


def _far_from(voice: np.ndarray) -> np.ndarray:
    """Frames that have none of `voice` (N,) among the four on either side: a word's end is no noise."""
    around = np.convolve(voice, np.ones(9), mode="same") if len(voice) >= 9 else np.ones(len(voice))
    return around < 0.5


def read_spans(path: Path, spans: Sequence[tuple[float, float]]) -> Iterator[np.ndarray]:
    """The parts (S,) of a recording from and to these seconds, in order and apart, at its own rate."""
    _, rate = duration_and_rate(path)
    wanted = [(round(begin * rate), round(end * rate)) for begin, end in spans]
    held, start, number = list[np.ndarray](), 0, 0
    for block in read_blocks(path):
        held.append(block)
        end = start + sum(map(len, held))
        while number < len(wanted) and wanted[number][1] <= end:
            joined = np.concatenate(held)
            yield joined[wanted[number][0] - start:wanted[number][1] - start]
            number += 1
        keep = wanted[number][0] if number < len(wanted) else end
        while held and start + len(held[0]) <= keep:
            start += len(held.pop(0))
        if number == len(wanted):
            return
    if number < len(wanted) and held:  # the head told more than there is, or the last ends with the recording
        yield np.concatenate(held)[max(0, wanted[number][0] - start):]


def _unreadable(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} could not be read as audio: {str(error).rstrip('.')}.",
                     "Give a WAV, FLAC, OGG, Opus or MP3 file; convert others with ffmpeg.")


@dataclass(frozen=True)
class ClipFormat:
    """`sample_rate` 0 keeps the recording's own; `lufs` None the loudness it has."""

    sample_rate: int = 0
    lufs: float | None = -23.0
    denoise: bool = False


def format_clip(samples: np.ndarray, rate: int, finish: ClipFormat, noise: np.ndarray) -> tuple[np.ndarray, int]:
    """A clip (S,) at `rate` Hz, and `noise` at 16 kHz, to the clip as it is kept, and its rate."""
    if finish.denoise and len(noise) >= RATE // 4 and len(samples):
        samples = _without_noise(samples, rate, noise)
    wanted = finish.sample_rate or rate
    if wanted != rate:
        samples = soxr.resample(samples, rate, wanted, quality="VHQ").astype(np.float32)
    return (samples if finish.lufs is None else at_loudness(samples, wanted, finish.lufs)), wanted


def at_loudness(samples: np.ndarray, rate: int, lufs: float) -> np.ndarray:
    """The clip at this loudness, or as near as its peak allows: it is never clipped. Silence stays."""
    measured = integrated_loudness(samples, rate)
    if measured is None:
        return samples
    return (samples * gain_to(lufs, measured, float(np.abs(samples).max()))).astype(np.float32)


def _without_noise(samples: np.ndarray, rate: int, noise: np.ndarray) -> np.ndarray:
    import noisereduce  # slow to load, and seldom asked for

    sound = soxr.resample(noise, RATE, rate, quality="HQ") if rate != RATE else noise
    made = noisereduce.reduce_noise(y=samples, sr=rate, y_noise=sound, stationary=True, prop_decrease=0.9)
    return np.asarray(made, dtype=np.float32)
