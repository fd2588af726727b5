"""What the trainer and the synthesizer ask of a `SpeechLM`, for every family that has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from config.errors import UserError
from models import teacher_forcing
from models.base import (
    Anatomy,
    Generated,
    Losses,
    LossOptions,
    Predictions,
    PreparedVoice,
    Probe,
    Sample,
    Sampling,
    Voice,
)
from models.captured import CapturedStepper
from models.compact import compact
from models.generate import Stepper, buffers, generate, prepare, stream
from models.speech_lm import SpeechLM

ANATOMY = Anatomy(("text_emb.weight", "text_head.weight"), (
    ("text_emb.", "text table"), ("text_head.", "text head"), ("speech_emb.", "speech table"),
    ("speech_head.", "speech head"), ("tfmr.embed_tokens.", "unused"), ("tfmr.", "layers"),
    ("cond_enc.", "conditioning"), ("text_pos_emb.", "positions"), ("speech_pos_emb.", "positions"),
))
"""Of every `SpeechLM`."""


@dataclass
class LanguageModel:
    """See `models.base.SpeechModel`. A text may take `codes_at_least` codes and `codes_a_token` for each of its ids."""

    module: SpeechLM
    prefix_size: int
    device: torch.device
    prompt_length: int
    codes_at_least: int
    codes_a_token: int
    longest_usual_text: int | None = None
    text_tables: tuple[str, ...] = ("text_emb", "text_head")
    adapter_targets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {
        "attention": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj"),
        "heads": ("speech_head",)})
    _stepper: Stepper | None = None

    @property
    def longest_text(self) -> int:
        """See `models.base.SpeechModel`."""
        return self.module.config.text_positions

    @property
    def usual_text(self) -> int:
        """See `models.base.SpeechModel`."""
        return min(self.longest_text, self.longest_usual_text or self.longest_text)

    @property
    def longest_speech(self) -> int:
        """See `models.base.SpeechModel`; the start takes a position."""
        return self.module.config.speech_positions - 1

    def losses(self, samples: Sequence[Sample], options: LossOptions, seeds: Sequence[int] | None = None,
               teacher: Predictions | None = None) -> Losses:
        """See `models.base.SpeechModel`."""
        batch = teacher_forcing.collate(samples, self.module.config, self.device, options, seeds)
        return teacher_forcing.losses(self.module, batch, options, teacher)

    def predictions(self, samples: Sequence[Sample], options: LossOptions,
                    seeds: Sequence[int] | None = None) -> Predictions:
        """See `models.base.SpeechModel`."""
        batch = teacher_forcing.collate(samples, self.module.config, self.device, options, seeds)
        return teacher_forcing.predictions(self.module, batch, self.prefix_size)

    def text_states(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        """See `models.base.SpeechModel`."""
        return teacher_forcing.text_states(self.module, samples, self.device)

    def place(self, name: str) -> tuple[str, int]:
        """See `models.base.SpeechModel`; the tables that some published weights carry unread are `unused`."""
        layers = len(self.module.tfmr.layers)
        if name.startswith("tfmr.layers."):
            return "layers", layers - int(name.split(".")[2])
        if name.startswith(("tfmr.norm.", "speech_head.")):
            return "heads", 0
        return ("unused" if name.startswith("tfmr.") else "embeddings"), layers + 1

    def blocks(self, guided: bool) -> Sequence[nn.Module]:
        """See `models.base.SpeechModel`; the loss on attention asks its layers for queries and keys once more."""
        asked = {layer for layer, _ in self.module.config.aligned_heads} if guided else set()
        return [layer for index, layer in enumerate(self.module.tfmr.layers) if index not in asked]

    def recompute(self, on: bool) -> None:
        """See `models.base.SpeechModel`."""
        self.module.tfmr.recompute = on

    def compile(self) -> None:
        """See `models.base.SpeechModel`."""
        self.module.tfmr.compile_layers()

    def probe(self, sample: Sample) -> Probe:
        """See `models.base.SpeechModel`."""
        return teacher_forcing.probe(self.module, sample, self.device)

    def shrink(self, kind: str) -> int:
        """See `models.base.SpeechModel`."""
        return compact(self.module.tfmr.layers, kind)

    def prepare(self, voice: Voice) -> PreparedVoice:
        """See `models.base.SpeechModel`."""
        return prepare(self.module, voice, self.device)

    def generate(self, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice],
                 sampling: Sampling) -> list[Generated]:
        """See `models.base.SpeechModel`."""
        caps = [self._cap(text) for text in texts]
        stepper = self._stepper_for(len(texts), max(map(len, texts)), max(caps))
        return generate(self.module, texts, voices, sampling, caps, self.device, stepper)

    def stream(self, text: np.ndarray, voice: Voice | PreparedVoice,
               sampling: Sampling) -> Iterator[np.ndarray | Generated]:
        """See `models.base.SpeechModel`."""
        cap = self._cap(text)
        return stream(self.module, text, voice, sampling, cap, self.device, self._stepper_for(1, len(text), cap))

    def _cap(self, text: np.ndarray) -> int:
        """Codes that a text may take; one that is too long raises `UserError`."""
        if len(text) > self.longest_text:
            raise UserError(
                f"A sentence of {len(text)} tokens is longer than the model's {self.longest_text}.",
                "Split it into shorter sentences.",
            )
        return min(self.longest_speech, self.codes_at_least + self.codes_a_token * len(text))

    def _stepper_for(self, texts: int, longest: int, cap: int) -> Stepper | None:
        """On CUDA a captured step, kept for the next texts as long as its buffers are large enough."""
        if self.device.type != "cuda":
            return None
        capacity = buffers(self.module.config, longest, cap)
        if self._stepper is None or not self._stepper.fits(texts, capacity, cap):
            self._stepper = CapturedStepper(self.module, texts, capacity, cap, self.device)
        return self._stepper
