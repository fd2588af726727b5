"""A loss that asks some heads to look, while a code is spoken, near the text being spoken.

After Tachibana et al. 2018 (arXiv:1710.08969), on heads that follow the text. It listens to
what enters whole layers, from outside: training without it costs nothing, and layers may be
compiled or run twice.
"""

from __future__ import annotations

import math

import torch
from torch.utils.hooks import RemovableHandle

from models.decoder import Decoder, Layer


class GuidedAttention:
    """Inside `with`, keeps what enters the layers of `heads` ((layer, head), ...); `loss` reads it once."""

    def __init__(self, decoder: Decoder, heads: tuple[tuple[int, int], ...], width: float = 2.0) -> None:
        self._heads: dict[int, list[int]] = {}
        for layer, head in heads:
            self._heads.setdefault(layer, []).append(head)
        self._decoder, self._width = decoder, width  # the width in text tokens
        self._seen: dict[int, tuple] = {}
        self._hooks: list[RemovableHandle] = []

    def __enter__(self) -> GuidedAttention:
        for layer in self._heads:
            def keep(module, inputs, layer=layer) -> None:
                self._seen[layer] = inputs
            self._hooks.append(self._layer(layer).register_forward_pre_hook(keep))
        return self

    def __exit__(self, *exception: object) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks.clear()
        self._seen.clear()

    def _layer(self, index: int) -> Layer:
        layer = self._decoder.layers[index]
        assert isinstance(layer, Layer)
        return layer

    def loss(self, text_at: torch.Tensor, codes_at: torch.Tensor, centres: torch.Tensor,
             weights: torch.Tensor) -> torch.Tensor:
        """Sum over codes of the negative logarithm of the attention near centres (B, U).

        Text stands at `text_at` (B, T) of its row and codes at `codes_at` (B, U), as from
        `teacher_forcing.segment_index`; `weights` (B, U) is 0 for codes that do not count.
        """
        places = torch.arange(text_at.shape[1], device=text_at.device)
        near = torch.exp(-(places - centres[..., None]).square() / (2 * self._width**2))
        total = centres.new_zeros(())
        for layer, heads in self._heads.items():
            attention = self._weights(layer, heads)
            last = attention.shape[-1] - 1
            real = (text_at <= last)[:, None, None]  # padding points past the row
            rows = codes_at.clamp(max=last)[:, None, :, None].expand(-1, len(heads), -1, last + 1)
            columns = text_at.clamp(max=last)[:, None, None].expand(-1, len(heads), codes_at.shape[1], -1)
            looked = attention.gather(2, rows).gather(3, columns) * real
            inside = torch.log((looked * near[:, None]).sum(-1) + 1e-4)
            total = total - (inside.mean(1) * weights).sum()
        return total / len(self._heads)

    def _weights(self, layer: int, heads: list[int]) -> torch.Tensor:
        block, (hidden, rotation) = self._layer(layer), self._seen[layer][:2]
        queries, keys = block.self_attn.queries_and_keys(block.input_layernorm(hidden), rotation)
        queries, keys = queries[:, heads], keys[:, heads]
        scores = (queries @ keys.transpose(-1, -2)).float() / math.sqrt(queries.shape[-1])
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        return scores.masked_fill(future, -torch.inf).softmax(-1)
