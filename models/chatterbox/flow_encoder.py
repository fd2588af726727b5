"""The flow's encoder: embedded speech codes to states at twice their rate.

A conformer without its convolution module: a look-ahead of three codes, six blocks, a doubling
of the rate, four more blocks; self-attention with relative positions (Dai et al. 2019,
arXiv:1901.02860). Layout and state-dict keys of `flow.encoder.*` in resemble-ai/chatterbox (MIT).
Shapes: B batch, L positions, C width, H heads. Attention is not causal: the states of a prompt depend on the
codes after it and cannot be cached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from models.conformer import FeedForward, PositionalAttention
from models.matmul_backends import Linear

MEL_FRAMES_PER_CODE = 2


@dataclass(frozen=True)
class FlowEncoderConfig:
    """Sizes of the encoder; the defaults are the published ones."""

    width: int = 512
    heads: int = 8
    hidden: int = 2048
    blocks: int = 6
    up_blocks: int = 4
    lookahead: int = 3  # codes, of the convolution before the first block


def relative_positions(length: int, width: int, device: torch.device) -> torch.Tensor:
    """Sinusoids (2 * length - 1, width) of the distances length - 1 down to 1 - length, sine and cosine interleaved."""
    distances = torch.arange(length - 1, -length, -1, device=device, dtype=torch.float32)
    rates = torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float32) * (-math.log(10_000.0) / width))
    angles = distances[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def shift_relative(scores: torch.Tensor) -> torch.Tensor:
    """Scores (B, H, L, 2L - 1) by distance as a view (B, H, L, L) by position.

    The distance of query i to key j is in column L - 1 - i + j: for each query a row of length L that moves left
    by one, so windows at a stride of 2L - 2 over the flattened scores.
    """
    length = scores.shape[-2]
    return scores.flatten(-2)[..., length - 1 :].unfold(-1, length, max(1, 2 * length - 2))


class EncoderAttention(PositionalAttention):
    """Self-attention with relative positions."""

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Hidden (B, L, C), positions (2L - 1, C) -> (B, L, C); `mask` (B, 1, 1, L) is added to the scores."""
        query, key, value = (self.split(linear(hidden)) for linear in (self.linear_q, self.linear_k, self.linear_v))
        distance = self.split(self.linear_pos(positions))  # (H, 2L - 1, C / H)
        biased = query + self.pos_bias_v[:, None]
        scores, scale = shift_relative(biased @ distance.transpose(-1, -2)), math.sqrt(query.shape[-1])
        scores = scores / scale if mask is None else torch.add(mask, scores, alpha=1 / scale)
        mixed = F.scaled_dot_product_attention(query + self.pos_bias_u[:, None], key, value, attn_mask=scores)
        return self.linear_out(mixed.transpose(1, 2).flatten(2))


class EncoderBlock(nn.Module):
    """Attention and feed-forward, each with pre-normalisation and a residual connection."""

    def __init__(self, config: FlowEncoderConfig) -> None:
        super().__init__()
        self.self_attn = EncoderAttention(config.width, config.heads)
        self.feed_forward = FeedForward(config.width, config.hidden)
        self.norm_ff = nn.LayerNorm(config.width, eps=1e-12)
        self.norm_mha = nn.LayerNorm(config.width, eps=1e-12)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.norm_mha(hidden), positions, mask)
        return hidden + self.feed_forward(self.norm_ff(hidden))


class EncoderEmbedding(nn.Module):
    """Linear layer and normalisation, scaled by the square root of the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Sequential(Linear(width, width), nn.LayerNorm(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.out(hidden) * math.sqrt(hidden.shape[-1])


class EncoderLookahead(nn.Module):
    """Residual pair of convolutions: the first reads `lookahead` positions ahead, the second two back."""

    def __init__(self, width: int, lookahead: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, lookahead + 1)
        self.conv2 = nn.Conv1d(width, width, 3)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        ahead = F.pad(hidden.transpose(1, 2), (0, self.conv1.kernel_size[0] - 1))  # (B, C, L + lookahead)
        mixed = self.conv2(F.pad(F.leaky_relu(self.conv1(ahead)), (2, 0)))
        return hidden + mixed.transpose(1, 2)


class EncoderUpsample(nn.Module):
    """Repeats each position and applies a causal convolution."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv1d(width, width, 2 * factor + 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        repeated = hidden.repeat_interleave(self.factor, 1).transpose(1, 2)  # (B, C, factor * L)
        return self.conv(F.pad(repeated, (2 * self.factor, 0))).transpose(1, 2)


class FlowEncoder(nn.Module):
    """Embedded codes (B, L, C) to states (B, 2L, C).

    With `lengths` (B,), in states, what comes after them is padding, and no state before reads it.
    """

    def __init__(self, config: FlowEncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = EncoderEmbedding(config.width)
        self.pre_lookahead_layer = EncoderLookahead(config.width, config.lookahead)
        self.encoders = nn.ModuleList([EncoderBlock(config) for _ in range(config.blocks)])
        self.up_layer = EncoderUpsample(config.width, MEL_FRAMES_PER_CODE)
        self.up_embed = EncoderEmbedding(config.width)
        self.up_encoders = nn.ModuleList([EncoderBlock(config) for _ in range(config.up_blocks)])
        self.after_norm = nn.LayerNorm(config.width)

    def forward(self, embedded: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        hidden, mask, up_mask = self.embed(embedded), None, None
        if lengths is not None:
            # Padding is masked in the attention at both rates.
            rate, count = self.up_layer.factor, embedded.shape[1]
            unseen = torch.arange(rate * count, device=lengths.device) >= lengths[:, None, None, None]
            up_mask = torch.zeros_like(unseen, dtype=hidden.dtype).masked_fill_(unseen, -torch.inf)
            mask = up_mask[..., ::rate]
            hidden = hidden.masked_fill(unseen[:, 0, 0, ::rate, None], 0)  # zeros, like the padding of the look-ahead
        hidden = _run(self.encoders, self.pre_lookahead_layer(hidden), mask)
        hidden = self.up_embed(self.up_layer(hidden))
        return self.after_norm(_run(self.up_encoders, hidden, up_mask))


def _run(blocks: nn.ModuleList, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Hidden (B, L, C) through blocks that share positions."""
    positions = relative_positions(hidden.shape[1], hidden.shape[2], hidden.device).to(hidden.dtype)
    for block in blocks:
        hidden = block(hidden, positions, mask)
    return hidden
