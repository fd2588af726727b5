"""Implements the protocol `models.base.SpeechModel` with the network `models.speech_lm.SpeechLM`.

Losses and logits come from `models.teacher_forcing`, decoding from `models.generate`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import nn

from config.errors import UserError
from models import generate, teacher_forcing
from models.base import (
    Generated,
    Losses,
    LossOptions,
    PreparedVoice,
    Sample,
    SampleLogits,
    Sampling,
    TensorLayout,
    TokenLogits,
    Voice,
)
from models.cuda_graph_decode import CUDAGraphStepper
from models.generate import Stepper
from models.quantize import quantize_
from models.speech_lm import SpeechLM

TENSOR_LAYOUT = TensorLayout(("text_emb.weight", "text_head.weight"), (
    ("text_emb.", "text table"), ("text_head.", "text head"), ("speech_emb.", "speech table"),
    ("speech_head.", "speech head"), ("tfmr.embed_tokens.", "unused"), ("tfmr.", "layers"),
    ("cond_enc.", "conditioning"), ("text_pos_emb.", "positions"), ("speech_pos_emb.", "positions"),
))
"""Of every `SpeechLM`."""


@dataclass
class LanguageModel:
    """Implements `models.base.SpeechModel`, whose docstrings hold here; `module` is the network.

    The codes of a text are limited to `base_code_limit` and `codes_per_token` for each of its ids.
    """

    module: SpeechLM
    prefix_size: int
    device: torch.device
    max_prompt_length: int
    base_code_limit: int
    codes_per_token: int
    max_preferred_text_length: int | None = None
    text_tables: tuple[str, ...] = ("text_emb", "text_head")
    adapter_targets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {
        "attention": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj"),
        "heads": ("speech_head",)})
    _stepper: Stepper | None = None

    @property
    def max_text_length(self) -> int:
        return self.module.config.text_positions

    @property
    def preferred_max_text_length(self) -> int:
        return min(self.max_text_length, self.max_preferred_text_length or self.max_text_length)

    @property
    def max_speech_length(self) -> int:
        """See `models.base.SpeechModel`; the start token takes a position."""
        return self.module.config.speech_positions - 1

    def losses(self, samples: Sequence[Sample], options: LossOptions, seeds: Sequence[int] | None = None,
               teacher: TokenLogits | None = None) -> Losses:
        batch = teacher_forcing.collate(samples, self.module.config, self.device, options, seeds)
        return teacher_forcing.losses(self.module, batch, options, teacher)

    def predictions(self, samples: Sequence[Sample], options: LossOptions,
                    seeds: Sequence[int] | None = None) -> TokenLogits:
        batch = teacher_forcing.collate(samples, self.module.config, self.device, options, seeds)
        return teacher_forcing.predictions(self.module, batch, self.prefix_size)

    def text_hidden_states(self, samples: Sequence[Sample]) -> list[torch.Tensor]:
        return teacher_forcing.text_hidden_states(self.module, samples, self.device)

    def probe(self, sample: Sample) -> SampleLogits:
        return teacher_forcing.probe(self.module, sample, self.device)

    def parameter_group(self, name: str) -> tuple[str, int]:
        """See `models.base.SpeechModel`; tables that published weights carry without a use are `unused`."""
        layers = len(self.module.tfmr.layers)
        if name.startswith("tfmr.layers."):
            return "layers", layers - int(name.split(".")[2])
        if name.startswith(("tfmr.norm.", "speech_head.")):
            return "heads", 0
        return ("unused" if name.startswith("tfmr.") else "embeddings"), layers + 1

    def shardable_layers(self, attention_loss: bool) -> Sequence[nn.Module]:
        """See `models.base.SpeechModel`; the attention loss computes queries and keys of its layers once more."""
        guided = {layer for layer, _ in self.module.config.aligned_heads} if attention_loss else set()
        return [layer for index, layer in enumerate(self.module.tfmr.layers) if index not in guided]

    def set_activation_checkpointing(self, enabled: bool) -> None:
        self.module.tfmr.activation_checkpointing = enabled

    def compile(self) -> None:
        self.module.tfmr.compile_layers()

    def quantize_(self, kind: str) -> int:
        return quantize_(self.module.tfmr.layers, kind)

    def prepare(self, voice: Voice) -> PreparedVoice:
        return generate.prepare_voice(self.module, voice, self.device)

    def generate(self, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice],
                 sampling: Sampling) -> list[Generated]:
        limits = [self._code_limit(text) for text in texts]
        stepper = self._stepper_for(len(texts), max(map(len, texts)), max(limits))
        return generate.generate(self.module, texts, voices, sampling, limits, self.device, stepper)

    def stream(self, text: np.ndarray, voice: Voice | PreparedVoice,
               sampling: Sampling) -> Iterator[np.ndarray | Generated]:
        limit = self._code_limit(text)
        stepper = self._stepper_for(1, len(text), limit)
        return generate.stream(self.module, text, voice, sampling, limit, self.device, stepper)

    def _code_limit(self, text: np.ndarray) -> int:
        """The largest number of codes for a text; `UserError` if the text is too long for the model."""
        if len(text) > self.max_text_length:
            raise UserError(
                f"A sentence of {len(text)} tokens is longer than the model's {self.max_text_length}.",
                "Split it into shorter sentences.",
            )
        return min(self.max_speech_length, self.base_code_limit + self.codes_per_token * len(text))

    def _stepper_for(self, texts: int, text_length: int, max_codes: int) -> Stepper | None:
        """On CUDA a stepper with CUDA graphs, reused as long as its buffers are large enough."""
        if self.device.type != "cuda":
            return None
        capacity = generate.cache_capacity(self.module.config, text_length, max_codes)
        if self._stepper is None or not self._stepper.fits(texts, capacity, max_codes):
            self._stepper = CUDAGraphStepper(self.module, texts, capacity, max_codes, self.device)
        return self._stepper
