"""The flow's encoder: embedded speech codes to states at twice their rate.

A conformer without its convolution module: a look-ahead of three codes, six blocks, a doubling
of the rate, four more blocks; self-attention with relative positions (Dai et al. 2019,
arXiv:1901.02860). Layout and state-dict keys of `flow.encoder.*` in resemble-ai/chatterbox (MIT).
Shapes: B batch, L positions, C width, H heads. Every position sees every other, so states of a
prompt depend on what follows it and cannot be kept from one text to the next.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from models.linear import Linear


@dataclass(frozen=True)
class EncoderConfig:
    """Sizes of the encoder; the defaults are the published ones."""

    width: int = 512
    heads: int = 8
    hidden: int = 2048
    blocks: int = 6
    up_blocks: int = 4
    lookahead: int = 3  # codes a state may look ahead before the first block
    upsampling: int = 2  # frames a code


def relative_positions(length: int, width: int, device: torch.device) -> torch.Tensor:
    """Sinusoids (2 * length - 1, width) of the distances length - 1 down to 1 - length, sine and cosine interleaved."""
    distances = torch.arange(length - 1, -length, -1, device=device, dtype=torch.float32)
    rates = torch.exp(torch.arange(0, width, 2, device=device, dtype=torch.float32) * (-math.log(10_000.0) / width))
    angles = distances[:, None] * rates
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


def by_distance(scores: torch.Tensor) -> torch.Tensor:
    """Scores (B, H, L, 2L - 1) against distances, read as (B, H, L, L) against positions; a view.

    The distance of query i to key j stands in column L - 1 - i + j, which is a row of length L that moves
    left by one from query to query: windows at a stride of 2L - 2 over the flattened scores.
    """
    length = scores.shape[-2]
    return scores.flatten(-2)[..., length - 1 :].unfold(-1, length, max(1, 2 * length - 2))


class RelativeAttention(nn.Module):
    """Self-attention whose scores add a term in the distance of query and key."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linear_q = Linear(width, width)
        self.linear_k = Linear(width, width)
        self.linear_v = Linear(width, width)
        self.linear_out = Linear(width, width)
        self.linear_pos = Linear(width, width, bias=False)
        self.pos_bias_u = nn.Parameter(torch.zeros(heads, width // heads))
        self.pos_bias_v = nn.Parameter(torch.zeros(heads, width // heads))

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, hide: torch.Tensor | None) -> torch.Tensor:
        """Hidden (B, L, C), positions (2L - 1, C), hide (B, 1, 1, L) True on padding -> (B, L, C)."""
        query, key, value = (self._split(linear(hidden)) for linear in (self.linear_q, self.linear_k, self.linear_v))
        distance = self.linear_pos(positions).unflatten(-1, (self.heads, -1)).transpose(0, 1)  # (H, 2L - 1, C / H)
        biased = query + self.pos_bias_v[:, None]
        scores = by_distance(biased @ distance.transpose(-1, -2)) / math.sqrt(query.shape[-1])
        if hide is not None:
            scores = scores.masked_fill(hide, -math.inf)
        mixed = F.scaled_dot_product_attention(query + self.pos_bias_u[:, None], key, value, attn_mask=scores)
        return self.linear_out(mixed.transpose(1, 2).flatten(2))

    def _split(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, L, C) -> (B, H, L, C / H)


class FeedForward(nn.Module):
    """Two linear layers with SiLU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.w_1 = Linear(width, hidden)
        self.w_2 = Linear(hidden, width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.w_2(F.silu(self.w_1(hidden)))


class Block(nn.Module):
    """Attention and feed-forward, each on the normalised stream and added to it."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config.width, config.heads)
        self.feed_forward = FeedForward(config.width, config.hidden)
        self.norm_ff = nn.LayerNorm(config.width, eps=1e-12)
        self.norm_mha = nn.LayerNorm(config.width, eps=1e-12)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, hide: torch.Tensor | None) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.norm_mha(hidden), positions, hide)
        return hidden + self.feed_forward(self.norm_ff(hidden))


class Embed(nn.Module):
    """Linear layer and normalisation, scaled by the root of the width."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out = nn.Sequential(Linear(width, width), nn.LayerNorm(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.out(hidden) * math.sqrt(hidden.shape[-1])


class Lookahead(nn.Module):
    """Residual pair of convolutions: the first sees `lookahead` positions ahead, the second two back."""

    def __init__(self, width: int, lookahead: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(width, width, lookahead + 1)
        self.conv2 = nn.Conv1d(width, width, 3)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        ahead = F.pad(hidden.transpose(1, 2), (0, self.conv1.kernel_size[0] - 1))  # (B, C, L + lookahead)
        mixed = self.conv2(F.pad(F.leaky_relu(self.conv1(ahead)), (2, 0)))
        return hidden + mixed.transpose(1, 2)


class Upsample(nn.Module):
    """Repeats each position and smooths with a convolution over the past."""

    def __init__(self, width: int, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.conv = nn.Conv1d(width, width, 2 * factor + 1)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        repeated = hidden.repeat_interleave(self.factor, 1).transpose(1, 2)  # (B, C, factor * L)
        return self.conv(F.pad(repeated, (2 * self.factor, 0))).transpose(1, 2)


class Encoder(nn.Module):
    """Embedded codes (B, L, C) to states (B, 2L, C)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        self.embed = Embed(config.width)
        self.pre_lookahead_layer = Lookahead(config.width, config.lookahead)
        self.encoders = nn.ModuleList([Block(config) for _ in range(config.blocks)])
        self.up_layer = Upsample(config.width, config.upsampling)
        self.up_embed = Embed(config.width)
        self.up_encoders = nn.ModuleList([Block(config) for _ in range(config.up_blocks)])
        self.after_norm = nn.LayerNorm(config.width)

    def forward(self, embedded: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """`keep` (B, L) is False on padding, which then changes nothing; None: there is none."""
        hidden = self.embed(embedded)
        if keep is not None:  # the look-ahead of the last codes must see zeros, as it does at the end of a row alone
            hidden = hidden * keep[..., None]
        hidden = run(self.encoders, self.pre_lookahead_layer(hidden), keep)
        hidden = self.up_embed(self.up_layer(hidden))
        if keep is not None:
            keep = keep.repeat_interleave(self.config.upsampling, 1)
        return self.after_norm(run(self.up_encoders, hidden, keep))


def run(blocks: nn.ModuleList, hidden: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
    """Hidden (B, L, C) through blocks, with the positions and the mask they share."""
    positions = relative_positions(hidden.shape[1], hidden.shape[2], hidden.device).to(hidden.dtype)
    hide = None if keep is None else ~keep[:, None, None]
    for block in blocks:
        hidden = block(hidden, positions, hide)
    return hidden
