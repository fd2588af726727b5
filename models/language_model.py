"""Implements the protocol `models.base.LanguageModel` with the network `models.speech_network.T3`.

Losses and logits come from `models.teacher_forcing`, decoding from `models.generate`.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from config.errors import UserError
from models import generate, merged_adapters, teacher_forcing
from models.base import (
    Features,
    Generated,
    Losses,
    LossOptions,
    PreparedVoice,
    Sample,
    SampleLogits,
    Sampling,
    TensorLayout,
    TokenLogits,
    Vocoder,
    Voice,
)
from models.continuous_batch import ContinuousBatch
from models.cuda_graph_decode import CUDAGraphStepper
from models.generate import Stepper
from models.speech_network import T3, quantize_decoding_

TENSOR_LAYOUT = TensorLayout(("text_emb.weight", "text_head.weight"), (
    ("text_emb.", "text table"), ("text_head.", "text head"), ("speech_emb.", "speech table"),
    ("speech_head.", "speech head"), ("tfmr.embed_tokens.", "unused"), ("tfmr.", "layers"),
    ("cond_enc.", "conditioning"), ("text_pos_emb.", "positions"), ("speech_pos_emb.", "positions"),
))
"""The tensors of every `T3`."""


@dataclass
class TransformerLanguageModel:
    """Implements `models.base.LanguageModel` over the network `module`; methods are documented there.

    Its conditioning is `speaker_embedding` (D,) float32 and `prompt_codes` (P,), which may be empty. The codes of a
    text are limited to `base_code_limit` and `codes_per_token` for each of its ids.
    """

    module: T3
    prefix_size: int
    device: torch.device
    max_prompt_length: int
    base_code_limit: int
    codes_per_token: int
    max_preferred_text_length: int | None = None
    text_tables: tuple[str, ...] = TENSOR_LAYOUT.text_tables
    language_table: str = ""
    adapter_targets: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: {
        "attention": ("q_proj", "k_proj", "v_proj", "o_proj"), "mlp": ("gate_proj", "up_proj", "down_proj"),
        "heads": ("speech_head",)})
    _steppers: dict[tuple[int, bool], Stepper] = field(default_factory=dict)  # keyed by number of texts and guidance

    @property
    def max_text_length(self) -> int:
        return self.module.config.text_positions

    @property
    def preferred_max_text_length(self) -> int:
        return min(self.max_text_length, self.max_preferred_text_length or self.max_text_length)

    @property
    def max_speech_length(self) -> int:
        return self.module.config.max_codes

    def sample_conditioning(self, target: Mapping[str, np.ndarray], prompt: Mapping[str, np.ndarray],
                            rng: random.Random) -> Mapping[str, np.ndarray]:
        """See `models.base.LanguageModel`; that of the prompt, cut to `max_prompt_length` codes."""
        return {**prompt, "prompt_codes": prompt["prompt_codes"][:self.max_prompt_length].astype(np.int64)}

    def assign_languages(self, tags: Sequence[int]) -> None:
        """See `models.base.LanguageModel`; there is no table of languages."""

    def speaker_embedding(self, conditioning: Mapping[str, np.ndarray]) -> np.ndarray:
        return conditioning["speaker_embedding"]

    def probe_features(self, voice: Voice | None) -> Features:
        """See `models.base.LanguageModel`; the codes of the voice's prompt, or codes from a fixed seed."""
        if voice is not None:
            return Features(voice.conditioning["prompt_codes"].astype(np.uint16), voice.conditioning)
        config, noise = self.module.config, np.random.default_rng(0)
        codes = noise.integers(0, config.start_speech, min(self.max_prompt_length, config.max_codes)).astype(np.uint16)
        speaker = noise.standard_normal(config.speaker_size).astype(np.float32)
        return Features(codes, {"speaker_embedding": speaker / np.linalg.norm(speaker), "prompt_codes": codes})

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
        """See `models.base.LanguageModel`; tables that published weights carry without a use are `unused`."""
        layers = len(self.module.transformer.layers)
        if name.startswith("tfmr.layers."):
            return "layers", layers - int(name.split(".")[2])
        if name.startswith(("tfmr.norm.", "speech_head.")):
            return "heads", 0
        return ("unused" if name.startswith("tfmr.") else "embeddings"), layers + 1

    def shardable_layers(self, attention_loss: bool) -> Sequence[nn.Module]:
        """See `models.base.LanguageModel`; the attention loss computes queries and keys of its layers once more."""
        guided = {layer for layer, _ in self.module.config.aligned_heads} if attention_loss else set()
        return [layer for index, layer in enumerate(self.module.transformer.layers) if index not in guided]

    def set_activation_checkpointing(self, enabled: bool) -> None:
        self.module.transformer.activation_checkpointing = enabled

    def compile(self) -> None:
        self.module.transformer.compile_layers()

    def quantize_(self, kind: str) -> int:
        return quantize_decoding_(self.module, kind)

    def prepare(self, voice: Voice) -> PreparedVoice:
        return generate.prepare_voice(self.module, voice, self.device)

    def generate(self, texts: Sequence[np.ndarray], voices: Sequence[Voice | PreparedVoice], sampling: Sampling,
                 vocoder: Vocoder | None = None) -> list[Generated]:
        limits = [self.code_limit(len(text)) for text in texts]
        stepper = self._stepper_for(len(texts), max(map(len, texts)), sampling)
        return generate.generate(self.module, texts, voices, sampling, limits, self.device, stepper, vocoder)

    def stream(self, text: np.ndarray, voice: Voice | PreparedVoice, sampling: Sampling,
               vocoder: Vocoder | None = None) -> Iterator[np.ndarray | Generated]:
        limit = self.code_limit(len(text))
        stepper = self._stepper_for(1, len(text), sampling)
        return generate.stream(self.module, text, voice, sampling, limit, self.device, stepper, vocoder)

    def continuous_batch(self, vocoder: Vocoder | None = None) -> ContinuousBatch:
        return ContinuousBatch(self.module, self.device, vocoder)

    def decode_bytes(self, text_length: int, sampling: Sampling) -> int:
        """See `models.base.LanguageModel`; with guidance a text has two rows."""
        decoder, parameter = self.module.config.decoder, next(self.module.transformer.parameters())
        positions = self._capacity(text_length)
        # Buffers have few sizes there, see `CUDAGraphStepper`.
        if self.device.type == "cuda":
            positions = generate.rounded_up(positions)
        rows = 2 if generate.is_guided(self.module, sampling) else 1
        cache_type = generate.cache_type(self.module, parameter)
        cache = rows * decoder.layers * 2 * decoder.width * positions * cache_type.itemsize
        states = self.max_speech_length * decoder.width * parameter.itemsize if self.module.keeps_hidden_states else 0
        return cache + states

    @property
    def merges_adapters(self) -> bool:
        """See `models.base.LanguageModel`."""
        return generate.merges_adapters(self.module, self.device)

    def bytes_to_merge(self) -> int:
        """See `models.base.LanguageModel`."""
        if not self.merges_adapters:
            return 0
        # Only the layers that a step reads are merged; adapters of a conditioner are not.
        transformer: Any = self.module.transformer
        return merged_adapters.bytes_to_allocate([*transformer.linear_layers, self.module.speech_head])

    def has_buffers(self, texts: int, text_length: int, sampling: Sampling) -> bool:
        """See `models.base.LanguageModel`."""
        stepper = self._steppers.get((texts, generate.is_guided(self.module, sampling)))
        return stepper is not None and self._capacity(text_length) <= stepper.capacity

    def free_buffers(self) -> None:
        self._steppers.clear()
        merged_adapters.free(self.module)

    def code_limit(self, text_length: int) -> int:
        """The largest number of codes for a text of so many ids; `UserError` if it is too long for the model."""
        if text_length > self.max_text_length:
            raise UserError(
                f"A sentence of {text_length} tokens is longer than the model's {self.max_text_length}.",
                "Split it into shorter sentences.",
            )
        return min(self.max_speech_length, self.base_code_limit + self.codes_per_token * text_length)

    def _capacity(self, text_length: int) -> int:
        """Cache positions for a text of so many ids and as many codes as it may have."""
        return generate.cache_capacity(self.module.config, text_length, self.code_limit(text_length))

    def _stepper_for(self, texts: int, text_length: int, sampling: Sampling) -> Stepper | None:
        """On CUDA a stepper with CUDA graphs for so many texts, reused as long as its buffers are large enough."""
        if self.device.type != "cuda":
            return None
        guided = generate.is_guided(self.module, sampling)
        if not self.has_buffers(texts, text_length, sampling):
            # The smaller stepper is freed before the larger one is made.
            self._steppers.pop((texts, guided), None)
            self._steppers[texts, guided] = CUDAGraphStepper(self.module, texts, self._capacity(text_length),
                                                             self.max_speech_length, self.device, guided)
        return self._steppers[texts, guided]
