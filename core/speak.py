"""Text to sound with any voice model, one piece after another, so that the first can be heard while the next is made.

The pieces of one text do not depend on what was spoken before it, so the same text, voice
and seed give the same audio. It does not know files, jobs or judges.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from config.errors import UserError
from config.schema import SamplingOptions
from core.loading import VoiceModel
from data import audio
from data.reading import pieces_of
from data.sentences import Ending, Piece, halve
from models.base import Sampling, Voice

PAUSES_S: dict[Ending, float] = {"sentence": 0.25, "phrase": 0.12, "word": 0.04}
_FADE_S = 0.005  # at both ends of a piece, against clicks
_SHORTEST_REFERENCE_S, _LONGEST_REFERENCE_S = 0.5, 30.0
_LOUDEST = 0.99  # of full scale; louder would be clipped in a file
_SILENT_PEAK = 1e-3  # -60 dB of full scale


@dataclass(frozen=True)
class Segment:
    """A spoken piece with the pause after it, and how long it took. `cut`: the model did not come to an end."""

    text: str
    waveform: torch.Tensor  # (S,) on the CPU
    seconds: float
    cut: bool = False


class Speaker:
    """One voice model with one voice. `longest` is how many text ids it is given at once, by language."""

    def __init__(self, model: VoiceModel, voice: str, longest: dict[str, int] | None = None) -> None:
        self.model = model
        self.voice = find_voice(model, voice)
        self._longest = longest or {}
        self._vocoder = model.family.vocoder(model.base_folder, model.device)

    @property
    def sample_rate(self) -> int:
        return self._vocoder.sample_rate

    def pieces(self, text: str, language: str) -> list[Piece]:
        """What `say` will speak, one after another; `UserError` when the text cannot be spoken."""
        most = self.model.model.longest_text
        limit = min(self._longest.get(language, most), most)
        return pieces_of(text, language, self.model.front_end, limit, most)

    def say(self, text: str, language: str, options: SamplingOptions) -> Iterator[Segment]:
        """Segments of `text`, each as soon as it is made. The last one has no pause after it."""
        sampling = Sampling(**options.model_dump())
        waiting = self.pieces(text, language)
        made = 0
        while waiting:
            piece = waiting.pop(0)
            began = time.perf_counter()
            codes = self._codes(piece.text, language, replace(sampling, seed=sampling.seed + made))
            cut = len(codes) >= self.model.model.longest_speech
            if cut and (halves := halve(piece.text)) is not None:
                # Slow speech can need more codes than there are positions: say it in two breaths.
                waiting[:0] = [halves[0], Piece(halves[1], piece.ending)]
                continue
            made += 1
            pause_s = PAUSES_S[piece.ending] if waiting else 0.0
            waveform = self._sound(codes, pause_s)
            yield Segment(piece.text, waveform, time.perf_counter() - began, cut)

    def _codes(self, text: str, language: str, sampling: Sampling) -> np.ndarray:
        ids = self.model.front_end.encode(text, language)
        with self.model.speaking(language):
            return self.model.model.generate([ids], [self.voice], sampling)[0]

    def _sound(self, codes: np.ndarray, pause_s: float) -> torch.Tensor:
        waveform = self._vocoder.decode(codes, self.voice).float().cpu()
        length = min(int(_FADE_S * self.sample_rate), len(waveform) // 2)
        if length:
            ramp = torch.linspace(0, 1, length)
            waveform = waveform.clone()
            waveform[:length] *= ramp
            waveform[-length:] *= ramp.flip(0)
        loudest = float(waveform.abs().max()) if len(waveform) else 0.0
        waveform = waveform * min(1.0, _LOUDEST / max(loudest, 1e-9))
        return torch.cat([waveform, torch.zeros(round(pause_s * self.sample_rate))])


def joined(segments: Sequence[Segment]) -> torch.Tensor:
    """The whole waveform (S,)."""
    return torch.cat([segment.waveform for segment in segments])


def find_voice(model: VoiceModel, name: str) -> Voice:
    """The model's voice called `name`, or the one heard in the recording at the path `name`."""
    voices = model.family.voices(model.base_folder)
    if name in voices:
        return voices[name]
    path = Path(name).expanduser()
    if not name or not path.is_file():
        raise UserError(
            f"{name!r} is neither a voice of the model nor a recording.",
            f"Its voices: {', '.join(voices)}. A reference recording is given by its path.",
        )
    extractor = model.family.extractor(model.base_folder, model.device)
    features = extractor.extract(_reference(path, extractor.sample_rate))
    codes = features.speech_codes[:model.model.prompt_length].astype(np.int64)
    return Voice(features.speaker_embedding, codes)


def _reference(path: Path, sample_rate: int) -> torch.Tensor:
    """A reference recording (S,), checked; what follows its first 30 s is not used."""
    waveform = audio.load(path, sample_rate)[:int(_LONGEST_REFERENCE_S * sample_rate)]
    duration_s = len(waveform) / sample_rate
    if duration_s < _SHORTEST_REFERENCE_S:
        raise UserError(
            f"The reference recording {path} lasts {duration_s:.2f} s; at least {_SHORTEST_REFERENCE_S} s are needed.",
            "Give a few seconds of clear speech by one person.",
        )
    if not bool(torch.isfinite(waveform).all()):
        raise UserError(f"The reference recording {path} holds samples that are no numbers.", "Convert it again.")
    peak = float(waveform.abs().max())
    if peak < _SILENT_PEAK:
        raise UserError(
            f"The reference recording {path} is silent: its peak is {peak:.5f} of full scale.",
            "Give a few seconds of clear speech by one person.",
        )
    return waveform
