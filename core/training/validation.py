"""How well a model in training predicts clips that it is not trained on, by language.

Text and speech are measured apart, nothing hidden. In `full` the base languages are measured
too, on clips that no run rehearses; in the other scopes they cannot change.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import torch

from core.model.loading import VoiceModel
from core.model.precision import Precision
from core.training import replay, training_data
from core.training.training_data import TrainingData, Utterance
from models.base import LossOptions, Sample


@dataclass(frozen=True)
class Measured:
    """Means over the held-out clips of a language: nats a token, and the share of codes that were the likeliest."""

    clips: int
    speech_loss: float
    text_loss: float
    accuracy: float

    def numbers(self) -> dict[str, float]:
        """By name, for the journal."""
        return asdict(self)


def samples(voice: VoiceModel, data: TrainingData, probing: Sequence[Utterance]) -> dict[str, list[Sample]]:
    """What is measured, by language, the new one first; `probing` are clips of base languages."""
    length = voice.model.max_prompt_length
    found = {data.language: training_data.measured(data.held_out, data.train, length)}
    if voice.scope == "full":
        for item in replay.probes(probing, length):
            found.setdefault(item.language, []).append(item.sample)
    return found


def measure(voice: VoiceModel, by_language: Mapping[str, Sequence[Sample]], batch_size: int,
            precision: Precision) -> dict[str, Measured]:
    """Each language with its adapters as texts of it need them."""
    found = {}
    for language, some in by_language.items():
        with voice.speaking(language):
            found[language] = _measured(voice, some, batch_size, precision)
    return found


@torch.no_grad()
def _measured(voice: VoiceModel, some: Sequence[Sample], batch_size: int, precision: Precision) -> Measured:
    sums = torch.zeros(3, device=voice.device)
    ordered = sorted(some, key=lambda sample: len(sample.speech_codes))
    for start in range(0, len(ordered), batch_size):
        with precision.autocast():
            losses = voice.model.losses(ordered[start:start + batch_size], LossOptions(count_top1=True))
        assert losses.speech_top1 is not None
        sums = sums + torch.stack([losses.speech_sum, losses.text_sum, losses.speech_top1.float()])
    speech, text, hits = sums.tolist()
    codes, ids = (sum(counts) for counts in zip(*((item.speech_targets, item.text_targets) for item in some),
                                                strict=True))
    return Measured(len(some), speech / codes, text / ids, hits / codes)
