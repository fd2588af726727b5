"""The flow's estimator: the velocity of a noisy mel at a time between 0 and 1, given the encoder's mel and a prompt.

A stack of causal residual convolutions, each followed by four transformer blocks over all frames (layout and
state-dict keys of `flow.decoder.estimator.*` in resemble-ai/chatterbox, MIT; the design is Matcha-TTS's, Mehta et al.
2024, arXiv:2309.03199, on one resolution). Everything runs over (B, F, C): B rows, F frames, C channels.

The residual stream, the norms and the time states stay in float32; `cast_` converts the matrix products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as F
from torch import nn

from models.matmul_backends import Linear, SeenKeys, attend, linear


@dataclass(frozen=True)
class FlowEstimatorConfig:
    """Sizes of the estimator; the defaults are the published ones."""

    n_mels: int = 80
    width: int = 256
    heads: int = 8
    head_size: int = 64
    hidden: int = 1024
    transformers: int = 4  # after each residual block
    mid_blocks: int = 12

    @property
    def inputs(self) -> int:
        """Channels in: noisy mel, encoder's mel, speaker, prompt mel."""
        return 4 * self.n_mels

    @property
    def time_width(self) -> int:
        return 4 * self.width


class CausalConv(nn.Conv1d):
    """Causal convolution of three taps, (B, F, C) -> (B, F, C'); float32 in and out."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs, 3)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        padded = F.pad(frames.to(self.weight.dtype), (0, 0, 2, 0))
        image = padded[:, None].permute(0, 3, 1, 2)  # (B, C, 1, F), channels last in memory: a view
        return F.conv2d(image, self.weight[:, :, None], self.bias)[:, :, 0].transpose(1, 2).float()


class ConvBlock(nn.Module):
    """Causal convolution, layer norm, Mish; float32 in and out."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        # published as a sequence whose entries 1 and 3 only swap axes
        self.block = nn.ModuleDict({"0": CausalConv(inputs, outputs), "2": nn.LayerNorm(outputs)})

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return F.mish(self.block["2"](self.block["0"](frames)))


class EstimatorResidualBlock(nn.Module):
    """Two convolution blocks with the time added between them, and a linear residual connection."""

    def __init__(self, inputs: int, config: FlowEstimatorConfig) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Mish(), Linear(config.time_width, config.width))
        self.block1 = ConvBlock(inputs, config.width)
        self.block2 = ConvBlock(config.width, config.width)
        self.res_conv = nn.Conv1d(inputs, config.width, 1)

    def forward(self, frames: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Frames (B, F, inputs) and `mlp` of the time state, (B or 1, 1, width)."""
        hidden = self.block2(self.block1(frames) + time)
        weight = self.res_conv.weight
        return hidden + linear(frames.to(weight.dtype), weight.squeeze(-1), self.res_conv.bias)


class EstimatorAttention(nn.Module):
    """Self-attention over all frames."""

    def __init__(self, config: FlowEstimatorConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_size
        self.heads = config.heads
        self.to_q = Linear(config.width, inner, bias=False)
        self.to_k = Linear(config.width, inner, bias=False)
        self.to_v = Linear(config.width, inner, bias=False)
        self.to_out = nn.ModuleList([Linear(inner, config.width)])

    def forward(self, frames: torch.Tensor, seen: SeenKeys | None) -> torch.Tensor:
        """Frames (B, F, C) -> (B, F, C)."""
        query, key, value = (
            linear(frames).unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (B, H, F, D)
            for linear in (self.to_q, self.to_k, self.to_v)
        )
        mixed = attend(query, key, value, seen)
        return self.to_out[0](mixed.transpose(1, 2).flatten(2))


class Expand(nn.Module):
    """First half of the feed-forward: linear layer and GELU."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.proj = Linear(width, hidden)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return F.gelu(self.proj(frames))


class EstimatorFeedForward(nn.Module):
    """Two linear layers with GELU between."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        # published with a dropout as entry 1
        self.net = nn.ModuleDict({"0": Expand(width, hidden), "2": Linear(hidden, width)})

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.net["2"](self.net["0"](frames))


class EstimatorTransformer(nn.Module):
    """Attention and feed-forward, each with pre-normalisation and a residual connection."""

    def __init__(self, config: FlowEstimatorConfig) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(config.width)
        self.attn1 = EstimatorAttention(config)
        self.norm3 = nn.LayerNorm(config.width)
        self.ff = EstimatorFeedForward(config.width, config.hidden)

    def forward(self, frames: torch.Tensor, seen: SeenKeys | None) -> torch.Tensor:
        dtype = self.attn1.to_q.weight.dtype
        frames = frames + self.attn1(self.norm1(frames).to(dtype), seen)
        return frames + self.ff(self.norm3(frames).to(dtype))


class TimeEmbedding(nn.Module):
    """Times (N,) in [0, 1] to states (N, 4 * width): sinusoids and two linear layers."""

    def __init__(self, config: FlowEstimatorConfig) -> None:
        super().__init__()
        self.inputs = config.inputs
        self.linear_1 = Linear(config.inputs, config.time_width)
        self.linear_2 = Linear(config.time_width, config.time_width)

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        half = self.inputs // 2
        rates = torch.exp(torch.arange(half, device=times.device).float() * -(math.log(10_000) / (half - 1)))
        angles = 1000 * times.float()[:, None] * rates
        return self.linear_2(F.silu(self.linear_1(torch.cat([angles.sin(), angles.cos()], -1))))


class EstimatorStage(nn.ModuleList):
    """Residual block, transformers and, at both ends of the stack, a convolution; a list as in the published keys."""

    def __init__(self, inputs: int, config: FlowEstimatorConfig, conv: bool) -> None:
        transformers = nn.ModuleList([EstimatorTransformer(config) for _ in range(config.transformers)])
        super().__init__([EstimatorResidualBlock(inputs, config), transformers])
        if conv:
            self.append(CausalConv(config.width, config.width))

    def forward(self, frames: torch.Tensor, time: torch.Tensor, seen: SeenKeys | None) -> torch.Tensor:
        """Frames (B, F, inputs) -> (B, F, width), without the convolution."""
        frames = self[0](frames, time)
        for transformer in cast(nn.ModuleList, self[1]):
            frames = transformer(frames, seen)
        return frames

    def final_conv(self, frames: torch.Tensor) -> torch.Tensor:
        """The convolution after the stage."""
        return self[2](frames)


class FlowEstimator(nn.Module):
    """Velocity of the flow; see the module's docstring."""

    def __init__(self, config: FlowEstimatorConfig) -> None:
        super().__init__()
        self.config = config
        self.time_mlp = TimeEmbedding(config)
        self.down_blocks = nn.ModuleList([EstimatorStage(config.inputs, config, conv=True)])
        self.mid_blocks = nn.ModuleList([EstimatorStage(config.width, config,
                                                        conv=False) for _ in range(config.mid_blocks)])
        self.up_blocks = nn.ModuleList([EstimatorStage(2 * config.width, config, conv=True)])
        self.final_block = ConvBlock(config.width, config.width)
        self.final_proj = nn.Conv1d(config.width, config.n_mels, 1)

    def time_states(self, times: torch.Tensor) -> torch.Tensor:
        """What each stage adds at times (N,): (N, stages, width); computed once for all steps of a schedule."""
        state = self.time_mlp(times)
        stages = [*self.down_blocks, *self.mid_blocks, *self.up_blocks]
        return torch.stack([stage[0].mlp(state) for stage in stages], 1)

    def forward(self, inputs: torch.Tensor, time: torch.Tensor, lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Inputs (B, F, 4 * n_mels) and time states (B or 1, stages, width) -> velocity (B, F, n_mels).

        With `lengths` (B,) int32, on a GPU, the frames after them are padding: the convolutions are causal, and the
        attention does not read them.
        """
        seen = None if lengths is None else SeenKeys.of(lengths, inputs.shape[1], self.matrix_dtype)
        first, *times, last = time[:, :, None].unbind(1)
        down, up = cast(EstimatorStage, self.down_blocks[0]), cast(EstimatorStage, self.up_blocks[0])
        skip = down(inputs, first, seen)
        frames = down.final_conv(skip)
        for stage, state in zip(self.mid_blocks, times, strict=True):
            frames = stage(frames, state, seen)
        frames = up.final_conv(up(torch.cat([frames, skip], -1), last, seen))
        weight = self.final_proj.weight
        hidden = self.final_block(frames).to(weight.dtype)
        return linear(hidden, weight.squeeze(-1), self.final_proj.bias).float()

    @property
    def matrix_dtype(self) -> torch.dtype:
        """Type of the matrix products."""
        return self.final_proj.weight.dtype

    def cast_(self, dtype: torch.dtype) -> None:
        """Convert the matrix products to `dtype`; the residual stream, norms and time states stay in float32."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Conv1d) and not name.startswith("time_mlp") and ".mlp." not in name:
                module.to(dtype)
