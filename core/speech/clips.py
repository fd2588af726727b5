"""One text spoken to files: each segment at once, so that it can be heard, then the whole with its numbers."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from core.jobs.events import AudioChunk, AudioGenerated, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize
from core.speech.speak import Segment, joined
from data.acoustics import audio
from models.base import Verdict

FOLDER = "audio"
_SILENCE_DB = -120.0
_ENDINGS = {
    "limit": "the model did not come to an end, so the speech was cut off",
    "repetition": "the model began to repeat itself, so the speech was ended there",
}


@dataclass(frozen=True)
class Clip:
    """A spoken text. `path` is relative to the job's directory; `seconds` is what the speaking took."""

    waveform: torch.Tensor  # (S,)
    sample_rate: int
    path: str
    segments: int
    seconds: float

    @property
    def duration_s(self) -> float:
        return len(self.waveform) / self.sample_rate

    @property
    def real_time_factor(self) -> float:
        """Seconds of work for a second of speech."""
        return self.seconds / max(self.duration_s, 1e-9)

    @property
    def peak(self) -> float:
        """Largest sample, of 1."""
        return float(self.waveform.abs().max())

    @property
    def level_db(self) -> float:
        """Root mean square in decibels below full scale."""
        power = float(self.waveform.double().square().mean())
        return 10 * math.log10(power) if power > 0 else _SILENCE_DB

    def event(self, side: str, index: int, text: str, language: str, verdict: Verdict | None, spectrogram: str,
              note: str = "", unmeasured: str = "") -> AudioGenerated:
        """What is told of the finished clip."""
        return AudioGenerated(
            side, index, self.path, text, language, round(self.duration_s, 3), round(self.seconds, 3),
            verdict.error if verdict else None, verdict.heard if verdict else "", spectrogram, note,
            unmeasured,
        )

    @property
    def sha256(self) -> str:
        """Of the samples before they are rounded for the file."""
        return hashlib.sha256(self.waveform.contiguous().numpy().tobytes()).hexdigest()


def write(spoken: Iterable[Segment], sample_rate: int, reporter: Reporter, *, side: str, index: int, piece_stem: str,
          stem: str) -> Clip:
    """The segments of a text into `audio/PIECE_STEM-NNN.wav`, one event each, then all of it into `audio/STEM.wav`."""
    (reporter.directory / FOLDER).mkdir(exist_ok=True)
    segments = []
    for number, segment in enumerate(spoken):
        path = f"{FOLDER}/{piece_stem}-{number:03d}.wav"
        audio.save(reporter.directory / path, segment.waveform, sample_rate)
        duration_s = len(segment.waveform) / sample_rate
        reporter.emit(AudioChunk(side, index, number, path, round(duration_s, 3)))
        if segment.ending != "stop":
            reporter.emit(WarningRaised(f"{side}: {_ENDINGS[segment.ending]}: {segment.text!r}."))
        segments.append(segment)
        check_stop(reporter, f"Stopped on request after {pluralize(number + 1, 'segment')}; what was spoken is kept.")
    path = f"{FOLDER}/{stem}.wav"
    whole = joined(segments)
    audio.save(reporter.directory / path, whole, sample_rate)
    return Clip(whole, sample_rate, path, len(segments), sum(segment.seconds for segment in segments))
