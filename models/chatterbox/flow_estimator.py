"""The flow's estimator: the velocity of a noisy mel at a time between 0 and 1, given the encoder's mel and a prompt.

A stack of causal residual convolutions, each followed by four transformer blocks over all frames (layout and
state-dict keys of `flow.decoder.estimator.*` in resemble-ai/chatterbox, MIT; the design is Matcha-TTS's, Mehta et al.
2024, arXiv:2309.03199, on one resolution). Everything runs over (B, F, C): B rows, F frames, C channels.

The residual stream, the norms and the time states stay in float32; `cast_` converts the matrix products.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import nn

from models import decoder
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

    def of_taps(self, taps: torch.Tensor) -> torch.Tensor:
        """Frames by taps (B, F, 3C), see `kernels.normalise`, to (B, F, C')."""
        return F.linear(taps, self.weight.transpose(1, 2).flatten(1), self.bias)

    def order_taps_(self) -> None:
        """Arrange the weights in memory as `of_taps` reads them, so that it does not copy them."""
        with torch.inference_mode(False), torch.no_grad():
            self.weight.data = self.weight.data.transpose(1, 2).contiguous().transpose(1, 2)

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

    @property
    def parts(self) -> tuple[CausalConv, nn.LayerNorm]:
        return cast(CausalConv, self.block["0"]), cast(nn.LayerNorm, self.block["2"])

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
    """Self-attention over all frames; the three projections, published by themselves, are one matrix."""

    def __init__(self, config: FlowEstimatorConfig) -> None:
        super().__init__()
        inner = config.heads * config.head_size
        self.heads = config.heads
        self.to_qkv = Linear(config.width, 3 * inner, bias=False)
        self.to_out = nn.ModuleList([Linear(inner, config.width)])
        self.register_state_dict_post_hook(_split_projections)
        self.register_load_state_dict_pre_hook(_join_projections)

    def forward(self, frames: torch.Tensor, seen: SeenKeys | None) -> torch.Tensor:
        """Frames (B, F, C) -> (B, F, C)."""
        if frames.is_cuda:
            joined = self.to_qkv(frames).chunk(3, -1)
        else:  # the bits of a product may depend on the shape
            joined = tuple(linear(frames, weight) for weight in self.to_qkv.weight.chunk(3))
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in joined)  # (B, H, F, D)
        mixed = attend(query, key, value, seen)
        return self.to_out[0](mixed.transpose(1, 2).flatten(2))


_PROJECTIONS = ("to_q.weight", "to_k.weight", "to_v.weight")


def _split_projections(_: nn.Module, tensors: dict[str, Any], prefix: str, __: object) -> None:
    """The published keys of a state dict."""
    parts = tensors.pop(f"{prefix}to_qkv.weight").chunk(len(_PROJECTIONS))
    tensors.update({prefix + name: part for name, part in zip(_PROJECTIONS, parts, strict=True)})


def _join_projections(_: nn.Module, tensors: dict[str, Any], prefix: str, *__: object) -> None:
    if all(prefix + name in tensors for name in _PROJECTIONS):
        tensors[f"{prefix}to_qkv.weight"] = torch.cat([tensors.pop(prefix + name) for name in _PROJECTIONS])


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
        dtype = self.attn1.to_qkv.weight.dtype
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

        # With padded lengths on a GPU, kernels fuse what lies between the products.
        if seen is not None and len(time) == 1 and decoder.has_triton(inputs.device):
            return self._fused(inputs, time[0], seen)

        first_state, *middle_states, last_state = time[:, :, None].unbind(1)
        down, up = cast(EstimatorStage, self.down_blocks[0]), cast(EstimatorStage, self.up_blocks[0])
        skip = down(inputs, first_state, seen)
        frames = down.final_conv(skip)
        for stage, state in zip(self.mid_blocks, middle_states, strict=True):
            frames = stage(frames, state, seen)
        frames = up.final_conv(up(torch.cat([frames, skip], -1), last_state, seen))
        weight = self.final_proj.weight
        hidden = self.final_block(frames).to(weight.dtype)
        return linear(hidden, weight.squeeze(-1), self.final_proj.bias).float()

    def _fused(self, inputs: torch.Tensor, time: torch.Tensor, seen: SeenKeys) -> torch.Tensor:
        """`forward` with a Triton kernel between the matrix products; time states (stages, width)."""
        from models.triton_vocoder import normalise

        dtype, wide = self.matrix_dtype, torch.float32

        def stage(parts: EstimatorStage, frames: torch.Tensor, added: torch.Tensor | None, state: torch.Tensor
                  ) -> tuple[torch.Tensor, torch.Tensor | None]:
            """A stage on frames + added; the sum of the two that it returns is its result."""
            block = cast(EstimatorResidualBlock, parts[0])
            # Taps are a frame and the two before it, as the causal convolutions read them.
            (conv1, norm), (conv2, second_norm) = block.block1.parts, block.block2.parts
            _, taps = normalise(frames, None, dtype, added=added, taps=True)
            through = F.linear(taps[..., -frames.shape[-1]:].flatten(0, 1), block.res_conv.weight.squeeze(-1),
                               block.res_conv.bias)
            _, taps = normalise(conv1.of_taps(taps), norm, dtype, mish=True, after=state, taps=True)
            _, frames = normalise(conv2.of_taps(taps), second_norm, wide, mish=True, after=through)
            added = None
            for transformer in cast("list[EstimatorTransformer]", parts[1]):
                frames, normed = normalise(frames, transformer.norm1, dtype, added=added)
                frames, normed = normalise(frames, transformer.norm3, dtype, added=transformer.attn1(normed, seen))
                added = transformer.ff(normed)
            return frames, added

        # One stage leads down and one up, with the middle stages between, and a skip around these.
        first_state, *middle_states, last_state = time.unbind()
        down, up = cast(EstimatorStage, self.down_blocks[0]), cast(EstimatorStage, self.up_blocks[0])
        frames, added = stage(down, inputs, None, first_state)
        skip, taps = normalise(frames, None, dtype, added=added, taps=True)
        frames, added = cast(CausalConv, down[2]).of_taps(taps), None
        for parts, state in zip(self.mid_blocks, middle_states, strict=True):
            frames, added = stage(cast(EstimatorStage, parts), frames, added, state)

        # The way up reads the frames of the way down too.
        frames = frames if added is None else frames + added
        frames, added = stage(up, torch.cat([frames, skip], -1), None, last_state)
        _, taps = normalise(frames, None, dtype, added=added, taps=True)
        _, taps = normalise(cast(CausalConv, up[2]).of_taps(taps), None, dtype, taps=True)
        conv, norm = self.final_block.parts
        _, hidden = normalise(conv.of_taps(taps), norm, dtype, mish=True)
        return linear(hidden, self.final_proj.weight.squeeze(-1), self.final_proj.bias).float()

    def order_taps_(self) -> None:
        """See `CausalConv`."""
        for module in self.modules():
            if isinstance(module, CausalConv):
                module.order_taps_()


    @property
    def matrix_dtype(self) -> torch.dtype:
        """Type of the matrix products."""
        return self.final_proj.weight.dtype

    def cast_(self, dtype: torch.dtype) -> None:
        """Convert the matrix products to `dtype`; the residual stream, norms and time states stay in float32."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Conv1d) and not name.startswith("time_mlp") and ".mlp." not in name:
                module.to(dtype)
