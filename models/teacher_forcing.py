"""Teacher forcing of a `SpeechNetwork`: samples to batches, batches to losses, logits and hidden states.

Each row is conditioning, text and speech without gaps, padded on the right. Everything that depends on lengths is
computed on the host, so that a GPU never synchronises. Losses are next-token: position i predicts token i + 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.hooks import RemovableHandle

from models.base import Losses, LossOptions, Sample, SampleLogits, TokenLogits
from models.decoder import DecoderLayer
from models.speech_network import SpeechNetwork, SpeechNetworkConfig, padded

Moved = TypeVar("Moved")


@dataclass(frozen=True)
class Targets:
    """The tokens of the losses: positions in the flattened rows (B * L), and the id that each predicts."""

    text_from: torch.Tensor  # (N,)
    text_ids: torch.Tensor  # (N,)
    speech_from: torch.Tensor  # (M,)
    speech_ids: torch.Tensor  # (M,)


@dataclass(frozen=True)
class DropMask:
    """Dropout of a batch's inputs: 0 drops, 1 keeps."""

    text: torch.Tensor  # (B,)
    codes: torch.Tensor  # (B, U + 1); the start token is always kept


@dataclass(frozen=True)
class TeacherForcingBatch:
    """Samples as padded tensors; `embed_rows` gathers the parts of each sample into one row."""

    conditioning: Any  # argument of the network's `embed_conditioning`
    text_ids: torch.Tensor  # (B, T)
    text_lengths: torch.Tensor  # (B,)
    codes: torch.Tensor  # (B, U + 1), start token first
    code_lengths: torch.Tensor  # (B,), start token included
    sources: torch.Tensor  # (B * L,), for each position of the rows its index in the flattened (B * (C + T + U + 1))
    targets: Targets
    drop: DropMask | None = None


def collate(samples: Sequence[Sample], config: SpeechNetworkConfig, device: torch.device,
            options: LossOptions | None = None, seeds: Sequence[int] | None = None) -> TeacherForcingBatch:
    """Pad each part of the samples on the right; the dropout of `options` in a sample depends on its seed alone."""
    text, text_lengths = padded([sample.text_ids for sample in samples])
    codes, code_lengths = padded([np.concatenate([[config.start_speech], s.speech_codes]) for s in samples])
    row_length = int((config.conditioning_length + text_lengths + code_lengths).max())
    targets = _targets(text, text_lengths, codes, code_lengths, config, row_length)
    drop = None
    if options is not None and (options.text_dropout > 0 or options.code_dropout > 0):
        seeds = torch.randint(2**62, (len(samples),)).tolist() if seeds is None else seeds
        drop = _draw_drop_mask(code_lengths, options, seeds)
    conditioning = config.stack_conditioning([sample.conditioning for sample in samples])
    sources = _sources(text, text_lengths, codes, code_lengths, config.conditioning_length, row_length)
    batch = TeacherForcingBatch(conditioning, text, text_lengths, codes, code_lengths, sources, targets, drop)
    return _to_device(batch, device)


def _sources(text: torch.Tensor, text_lengths: torch.Tensor, codes: torch.Tensor, code_lengths: torch.Tensor,
             conditioning: int, row_length: int) -> torch.Tensor:
    """Conditioning, text and speech of each row without the gaps between them; padding repeats the first position."""
    position = torch.arange(row_length)[None]
    speech = conditioning + text_lengths[:, None]
    from_speech = position + text.shape[1] - text_lengths[:, None]
    speech_end = speech + code_lengths[:, None]
    column = torch.where(position < speech, position, torch.where(position < speech_end, from_speech, 0))
    rows = torch.arange(len(text))[:, None] * (conditioning + text.shape[1] + codes.shape[1])
    return (rows + column).flatten()


def _targets(text: torch.Tensor, text_lengths: torch.Tensor, codes: torch.Tensor, code_lengths: torch.Tensor,
             config: SpeechNetworkConfig, row_length: int) -> Targets:
    """Next tokens: every text id but the first, every code, and the stop token after the last code."""
    row, column = (torch.arange(text.shape[1] - 1) < text_lengths[:, None] - 1).nonzero(as_tuple=True)
    text_from, text_ids = row * row_length + config.conditioning_length + column, text[row, column + 1]
    row, column = (torch.arange(codes.shape[1]) < code_lengths[:, None]).nonzero(as_tuple=True)
    following = F.pad(codes, (0, 1))[row, column + 1]
    last = column == code_lengths[row] - 1
    speech_from = row * row_length + config.conditioning_length + text_lengths[row] + column
    return Targets(text_from, text_ids, speech_from, torch.where(last, config.stop_speech, following))


def _draw_drop_mask(code_lengths: torch.Tensor, options: LossOptions, seeds: Sequence[int]) -> DropMask:
    """Drawn sample by sample, so that it does not depend on how samples are batched."""
    text = np.ones(len(code_lengths), np.float32)
    codes = np.ones((len(code_lengths), int(code_lengths.max())), np.float32)
    for index, (length, seed) in enumerate(zip(code_lengths.tolist(), seeds, strict=True)):
        random = np.random.default_rng(seed)
        text[index] = random.random() >= options.text_dropout
        codes[index, 1:length] = random.random(length - 1) >= options.code_dropout * random.random()
    return DropMask(torch.from_numpy(text), torch.from_numpy(codes))


def _to_device(value: Moved, device: torch.device) -> Moved:
    """A dataclass of tensors on `device`; to a GPU from pinned memory, without synchronising."""
    if device.type == "cpu":
        return value
    if isinstance(value, torch.Tensor):
        return value.pin_memory().to(device, non_blocking=True)  # type: ignore[return-value]
    if is_dataclass(value):
        parts = {part.name: _to_device(getattr(value, part.name), device) for part in fields(value)}
        return replace(value, **parts)  # type: ignore[type-var]
    return value


def segment_index(batch: TeacherForcingBatch, conditioning_length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of text (B, T) and speech (B, U + 1) in the rows; those of padding are past the end of the row."""
    device = batch.text_ids.device
    text = torch.arange(batch.text_ids.shape[1], device=device)[None]
    codes = torch.arange(batch.codes.shape[1], device=device)[None]
    width = conditioning_length + batch.text_ids.shape[1] + batch.codes.shape[1]
    text_at = torch.where(text < batch.text_lengths[:, None], conditioning_length + text, width)
    codes_at = torch.where(codes < batch.code_lengths[:, None],
                           conditioning_length + batch.text_lengths[:, None] + codes, width)
    return text_at, codes_at


def embed_rows(network: SpeechNetwork, batch: TeacherForcingBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Embedded rows (B, L, width), and the positions of text and speech in them as from `segment_index`."""
    text_at, codes_at = segment_index(batch, network.config.conditioning_length)
    keep_text, keep_codes = (batch.drop.text, batch.drop.codes) if batch.drop else (None, None)
    conditioning = network.embed_conditioning(batch.conditioning)
    text = network.embed_text(batch.text_ids, keep_text)
    speech = network.embed_speech(batch.codes, keep_codes)
    parts = torch.cat([conditioning, text, speech], 1)  # float32 if any part is
    return parts.flatten(0, 1).index_select(0, batch.sources).unflatten(0, (len(parts), -1)), text_at, codes_at


def losses(network: SpeechNetwork, batch: TeacherForcingBatch, options: LossOptions,
           teacher: TokenLogits | None = None) -> Losses:
    """Sums of next-token cross-entropy over text and speech tokens, the stop token included.

    A teacher that knows fewer text ids gives the others probability 0.
    """
    rows, text_at, codes_at = embed_rows(network, batch)
    heads = network.config.aligned_heads if options.attention else ()
    with GuidedAttention(network.transformer, heads) as guide:
        hidden = network.hidden_states(rows)
        attention = guide.loss(text_at, codes_at, *_uniform_alignment(batch)) if heads else None

    # Only positions with a target go through the heads.
    hidden, targets = hidden.flatten(0, 1), batch.targets
    text_logits = network.text_head(hidden.index_select(0, targets.text_from))
    speech_logits = network.speech_head(hidden.index_select(0, targets.speech_from))
    top1 = (speech_logits.argmax(-1) == targets.speech_ids).sum() if options.count_top1 else None
    return Losses(
        F.cross_entropy(text_logits.float(), targets.text_ids, reduction="sum"), len(targets.text_ids),
        F.cross_entropy(speech_logits.float(), targets.speech_ids, reduction="sum"), len(targets.speech_ids), attention,
        top1, *(() if teacher is None else (_divergence(teacher.text, text_logits),
                                            _divergence(teacher.speech, speech_logits))),
    )


def _divergence(teacher: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Sum of the Kullback-Leibler divergences, in nats, of `logits` (N, V) from a teacher's (N, V or fewer)."""
    log_probabilities = logits.float().log_softmax(-1)[:, :teacher.shape[1]]
    return F.kl_div(log_probabilities, teacher.float().log_softmax(-1), reduction="sum", log_target=True)


@torch.no_grad()
def predictions(network: SpeechNetwork, batch: TeacherForcingBatch, text_ids: int) -> TokenLogits:
    """The logits of `losses`, of the text for the first `text_ids` ids alone."""
    hidden, targets = network.hidden_states(embed_rows(network, batch)[0]).flatten(0, 1), batch.targets
    return TokenLogits(network.text_head(hidden.index_select(0, targets.text_from))[:, :text_ids],
                       network.speech_head(hidden.index_select(0, targets.speech_from)))


def text_hidden_states(network: SpeechNetwork, samples: Sequence[Sample], device: torch.device) -> list[torch.Tensor]:
    """Hidden states (T, width) after the last layer at the text ids of each sample."""
    rows, text_at, _ = embed_rows(network, collate(samples, network.config, device))
    hidden = network.hidden_states(rows)
    return [hidden[index, text_at[index, :len(sample.text_ids)]] for index, sample in enumerate(samples)]


@torch.inference_mode()
def probe(network: SpeechNetwork, sample: Sample, device: torch.device) -> SampleLogits:
    """Teacher-forced logits of one sample: text (T, V) and speech (U + 1, K)."""
    rows, text_at, codes_at = embed_rows(network, collate([sample], network.config, device))
    hidden = network.hidden_states(rows)[0]
    return SampleLogits(network.text_head(hidden[text_at[0]]), network.speech_head(hidden[codes_at[0]]))


def _uniform_alignment(batch: TeacherForcingBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """For each code (B, U + 1) its text position if the text were read at a uniform rate, and its weight."""
    columns = torch.arange(batch.codes.shape[1], device=batch.codes.device)[None]
    centres = (batch.text_lengths[:, None] - 1) * (columns + 0.5) / batch.code_lengths[:, None]
    weights = (columns < batch.code_lengths[:, None]).float()
    return centres, weights if batch.drop is None else weights * batch.drop.text[:, None]


class GuidedAttention:
    """Guided attention loss (Tachibana et al. 2018, arXiv:1710.08969) on heads that follow the text.

    Inside `with`, hooks keep the inputs of the layers of `heads` ((layer, head), ...); `loss` computes their attention
    once more. Training without the loss costs nothing, and layers may be compiled or run twice.
    """

    def __init__(self, decoder: nn.Module, heads: tuple[tuple[int, int], ...], width: float = 2.0) -> None:
        self._heads: dict[int, list[int]] = {}
        for layer, head in heads:
            self._heads.setdefault(layer, []).append(head)
        self._decoder, self._width = decoder, width  # standard deviation in text tokens
        self._inputs: dict[int, tuple] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> GuidedAttention:
        for layer in self._heads:
            def keep(module, inputs, layer=layer) -> None:
                self._inputs[layer] = inputs
            self._hooks.append(self._layer(layer).register_forward_pre_hook(keep))
        return self

    def __exit__(self, *exception: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._inputs.clear()

    def _layer(self, index: int) -> DecoderLayer:
        layer = self._decoder.get_submodule(f"layers.{index}")
        assert isinstance(layer, DecoderLayer)
        return layer

    def loss(self, text_at: torch.Tensor, codes_at: torch.Tensor, centres: torch.Tensor,
             weights: torch.Tensor) -> torch.Tensor:
        """Sum over codes of the negative logarithm of the attention near `centres` (B, U), in text positions.

        `text_at` (B, T) and `codes_at` (B, U) are positions in the rows as from `segment_index`; `weights` (B, U) is 0
        for codes that do not count.
        """
        text_positions = torch.arange(text_at.shape[1], device=text_at.device)
        # The loss is small if attention is near the expected text position.
        near = torch.exp(-(text_positions - centres[..., None]).square() / (2 * self._width**2))
        total = centres.new_zeros(())
        for layer, heads in self._heads.items():
            attention = self._attention(layer, heads)
            last = attention.shape[-1] - 1
            real = (text_at <= last)[:, None, None]  # padding is past the row
            rows = codes_at.clamp(max=last)[:, None, :, None].expand(-1, len(heads), -1, last + 1)
            columns = text_at.clamp(max=last)[:, None, None].expand(-1, len(heads), codes_at.shape[1], -1)
            on_text = attention.gather(2, rows).gather(3, columns) * real
            inside = torch.log((on_text * near[:, None]).sum(-1) + 1e-4)
            total = total - (inside.mean(1) * weights).sum()
        return total / len(self._heads)

    def _attention(self, layer: int, heads: list[int]) -> torch.Tensor:
        """Attention weights (B, heads, L, L)."""
        queries, keys = self._layer(layer).queries_and_keys(*self._inputs[layer][:3])
        queries, keys = queries[:, heads], keys[:, heads]
        scores = (queries @ keys.transpose(-1, -2)).float() / math.sqrt(queries.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(-1)
