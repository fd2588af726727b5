"""One causal transformer for every family: RMSNorm, rotary positions, SwiGLU, static key-value cache.

Llama's layout and state-dict keys (Touvron et al. 2023), so published weights load as they
are. It knows nothing of text or speech: vectors in, vectors out. Rows of a batch are
contiguous and padded on the right only; under a causal mask no real position then ever
attends to padding, and no mask is needed in training.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class RotaryScaling:
    """Llama 3's stretching of slow rotary frequencies (Dubey et al. 2024)."""

    factor: float = 8.0
    low: float = 1.0
    high: float = 4.0
    original_positions: int = 8192


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes of the transformer; heads have `width // heads` dimensions."""

    width: int
    layers: int
    heads: int
    mlp_width: int
    epsilon: float = 1e-5
    rotary_theta: float | None = 500_000.0  # None: no rotary positions
    rotary_scaling: RotaryScaling | None = None


class Cache:
    """Keys and values of every layer in fixed storage, (layers, 2, B, heads, capacity, head size)."""

    def __init__(self, config: DecoderConfig, batch: int, capacity: int, device, dtype) -> None:
        head = config.width // config.heads
        self.capacity = capacity
        self.storage = torch.zeros(config.layers, 2, batch, config.heads, capacity, head, device=device, dtype=dtype)

    def write(self, layer: int, keys: torch.Tensor, values: torch.Tensor, positions: torch.Tensor):
        """Store (B, heads, T, head size) at positions (B, T); returns the layer's whole keys and values."""
        stored_keys, stored_values = self.storage[layer]
        index = positions[:, None, :, None].expand_as(keys)
        stored_keys.scatter_(2, index, keys)
        stored_values.scatter_(2, index, values)
        return stored_keys, stored_values


class RMSNorm(nn.Module):
    """Root-mean-square normalisation in float32 (Zhang and Sennrich 2019)."""

    def __init__(self, width: int, epsilon: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.epsilon = epsilon

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        wide = hidden.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.epsilon)
        return self.weight * wide.to(hidden.dtype)


class Attention(nn.Module):
    """Causal self-attention over (B, T, width)."""

    def __init__(self, config: DecoderConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.layer = config.heads, layer
        self.q_proj = nn.Linear(config.width, config.width, bias=False)
        self.k_proj = nn.Linear(config.width, config.width, bias=False)
        self.v_proj = nn.Linear(config.width, config.width, bias=False)
        self.o_proj = nn.Linear(config.width, config.width, bias=False)

    def split(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, T, width) to (B, heads, T, head size)."""
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def queries_and_keys(self, hidden: torch.Tensor, rotation) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries and keys, (B, heads, T, head size)."""
        queries, keys = self.split(self.q_proj(hidden)), self.split(self.k_proj(hidden))
        return (queries, keys) if rotation is None else (_rotate(queries, rotation), _rotate(keys, rotation))

    def forward(self, hidden, rotation, cache: Cache | None, positions, mask) -> torch.Tensor:
        queries, keys = self.queries_and_keys(hidden, rotation)
        values = self.split(self.v_proj(hidden))
        if cache is None:
            mixed = F.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        else:
            keys, values = cache.write(self.layer, keys, values, positions)
            mixed = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
        return self.o_proj(mixed.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.width, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.width, bias=False)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(self.gate_proj(hidden)) * self.up_proj(hidden))


class Layer(nn.Module):
    """Attention and MLP, each normalised before and added after."""

    def __init__(self, config: DecoderConfig, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(config, index)
        self.mlp = MLP(config)
        self.input_layernorm = RMSNorm(config.width, config.epsilon)
        self.post_attention_layernorm = RMSNorm(config.width, config.epsilon)

    def forward(self, hidden, rotation, cache, positions, mask) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.input_layernorm(hidden), rotation, cache, positions, mask)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Decoder(nn.Module):
    """Layers and a last norm. Published checkpoints carry an unused `embed_tokens`, kept to load strictly."""

    frequencies: torch.Tensor

    def __init__(self, config: DecoderConfig, unused_tokens: int = 0) -> None:
        super().__init__()
        self.config = config
        if unused_tokens:
            self.embed_tokens = nn.Embedding(unused_tokens, config.width)
        self.layers = nn.ModuleList([Layer(config, index) for index in range(config.layers)])
        self.norm = RMSNorm(config.width, config.epsilon)
        self.register_buffer("frequencies", _frequencies(config), persistent=False)

    def rotation(self, positions: torch.Tensor):
        """Cosines and sines for positions (B, T) or (1, T), each (B, 1, T, head size); None without rotary."""
        if self.config.rotary_theta is None:
            return None
        angles = positions[:, None, :, None].float() * self.frequencies
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()

    def forward(self, hidden: torch.Tensor, cache: Cache | None = None,
                positions: torch.Tensor | None = None) -> torch.Tensor:
        """(B, T, width) to (B, T, width). With a cache, `positions` (B, T) says where each vector stands in its row."""
        if positions is None:
            positions = torch.arange(hidden.shape[1], device=hidden.device)[None].expand(hidden.shape[0], -1)
        mask = None
        if cache is not None:
            mask = torch.arange(cache.capacity, device=hidden.device) <= positions[:, None, :, None]
        rotation = self.rotation(positions)
        if rotation is not None:
            rotation = tuple(part.to(hidden.dtype) for part in rotation)
        for layer in self.layers:
            hidden = layer(hidden, rotation, cache, positions, mask)
        return self.norm(hidden)


def _rotate(vectors: torch.Tensor, rotation) -> torch.Tensor:
    cosines, sines = rotation
    first, second = vectors.chunk(2, -1)
    return vectors * cosines + torch.cat([-second, first], -1) * sines


def _frequencies(config: DecoderConfig) -> torch.Tensor:
    """Rotary frequencies (head size / 2,) in radians a position."""
    head = config.width // config.heads
    theta = config.rotary_theta or 1.0
    plain = 1.0 / theta ** (torch.arange(0, head, 2, dtype=torch.float32) / head)
    scaling = config.rotary_scaling
    if scaling is None:
        return plain
    turns = scaling.original_positions * plain / (2 * math.pi)
    blend = ((turns - scaling.low) / (scaling.high - scaling.low)).clamp(0, 1)
    return plain * (blend + (1 - blend) / scaling.factor)
