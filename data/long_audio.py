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
from data.voice_activity import FRAME, RATE, VoiceActivity

_BLOCK_S = 20.0
_NOISE_S = 5.0  # of what is no voice that is kept, to know the noise by
_NO_VOICE = 0.1  # probability below which a frame is none
Heard = Callable[[float], None]
"""Told how many seconds of a recording are done."""


def length(path: Path) -> tuple[float, int]:
    """Seconds and sample rate in Hz that the head of a recording tells."""
    try:
        info = soundfile.info(str(path))
    except (soundfile.SoundFileError, OSError, UnicodeError) as error:  # the last: a name that is no UTF-8
        raise _unreadable(path, error) from error
    return float(info.duration), int(info.samplerate)


def blocks(path: Path, block_s: float = _BLOCK_S) -> Iterator[np.ndarray]:
    """A recording in order, as mono blocks (S,) float32 at its own rate."""
    try:
        with soundfile.SoundFile(str(path)) as file:
            frames = max(1, round(block_s * file.samplerate))
            while len(block := file.read(frames, dtype="float32", always_2d=True)):
                yield block.mean(axis=1)
    except (soundfile.SoundFileError, OSError, UnicodeError) as error:
        raise _unreadable(path, error) from error


def resampled(path: Path, rate: int, block_s: float = _BLOCK_S) -> Iterator[np.ndarray]:
    """A recording in order, as mono blocks (S,) float32 at `rate` Hz."""
    _, own = length(path)
    if own == rate:
        yield from blocks(path, block_s)
        return
    stream = soxr.ResampleStream(own, rate, 1, dtype="float32", quality="HQ")
    for block in blocks(path, block_s):
        yield stream.resample_chunk(block)
    yield stream.resample_chunk(np.zeros(0, np.float32), last=True)


@dataclass(frozen=True)
class Voiced:
    """What was heard of a recording: one value a frame of 32 ms, and some of its noise."""

    probabilities: np.ndarray  # (N,) of a voice
    levels: np.ndarray  # (N,) root mean square
    total_s: float
    noise: np.ndarray  # (S,) float32 at 16 kHz, at most 5 s; empty where a voice is all the time


def hear(path: Path, heard: Heard = lambda seconds: None) -> Voiced:
    """Listen to a whole recording for voices."""
    activity = VoiceActivity()
    probabilities, levels, noise = [], [], list[np.ndarray]()
    waiting, done, quiet = np.zeros(0, np.float32), 0, 0
    for block in resampled(path, RATE):
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
    return Voiced(np.concatenate(probabilities), np.concatenate(levels), done / RATE, np.concatenate(noise))


def _far_from(voice: np.ndarray) -> np.ndarray:
    """Frames that have none of `voice` (N,) among the four on either side: a word's end is no noise."""
    around = np.convolve(voice, np.ones(9), mode="same") if len(voice) >= 9 else np.ones(len(voice))
    return around < 0.5


def pieces(path: Path, spans: Sequence[tuple[float, float]]) -> Iterator[np.ndarray]:
    """The parts (S,) of a recording from and to these seconds, in order and apart, at its own rate."""
    _, rate = length(path)
    wanted = [(round(begin * rate), round(end * rate)) for begin, end in spans]
    held, start, number = list[np.ndarray](), 0, 0
    for block in blocks(path):
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

