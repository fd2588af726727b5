"""Speaker and emotion for the GPT: a conformer and a perceiver over w2v-bert features, and emotion by eight weights.

The architecture and the state-dict keys are those of indextts/gpt/{conformer_encoder,perceiver}.py in
index-tts/index-tts: a conformer without macaron (Gulati et al. 2020) in WeNet's layout, and the perceiver resampler of
lucidrains/naturalspeech2-pytorch. Feature frames come at 50 per second; the conformer halves that.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from config.schema import EMOTIONS
from models.conformer import FeedForward, PositionalAttention
from models.gpt2 import LayerNorm
from models.matmul_backends import Linear

POSITIONS = 5000  # rows of the table `pe`
GROUP_SIZES = (3, 17, 2, 8, 4, 5, 10, 24)  # rows of the banks that belong to each emotion
_BALANCE = (0.9375, 0.875, 1.0, 1.0, 0.9375, 0.9375, 0.6875, 0.5625)  # factors of the published page (infer_v2.py)
_MAX_BALANCED_SUM = 0.8
_GROUP_SIZE = 1 << 20  # numbers that `Subsampling` holds between its layers


@dataclass(frozen=True)
class ConformerConfig:
    """Sizes of a conformer; `bins` are those that its convolution leaves of the features' 1024."""

    width: int = 512
    bins: int = 511
    heads: int = 8
    mlp_width: int = 2048
    blocks: int = 6
    kernel: int = 15


@dataclass(frozen=True)
class PerceiverConfig:
    """Sizes of a perceiver; its attention has `inner` dimensions in heads of 64."""

    latents: int = 32
    width: int = 1280
    context: int = 512
    inner: int = 512
    mlp_width: int = 1706
    layers: int = 2


class RelativeAttention(PositionalAttention):
    """Attention of Transformer-XL (Dai et al. 2019) without the relative shift, as WeNet computes it.

    The score of query i and key j is ((q_i + u) k_j + (q_i + v) p_j) / sqrt(d), where p_j depends on j alone. So it is
    q_i (k_j + p_j) and a bias of the key.
    """

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        """Hidden (B, T, width), table of positions (T, width), keep (B, T) False for padding, to (B, T, width)."""
        queries, keys, values, places = (self.split(layer(rows)) for layer, rows in (
            (self.linear_q, hidden), (self.linear_k, hidden), (self.linear_v, hidden), (self.linear_pos, positions)))
        bias = ((keys * self.pos_bias_u[:, None]).sum(-1) + (places * self.pos_bias_v[:, None]).sum(-1))[:, :, None]
        bias = bias / math.sqrt(queries.shape[-1])  # (B, heads, 1, T)
        if keep is not None:
            bias = bias.masked_fill(~keep[:, None, None], -math.inf)
        mixed = F.scaled_dot_product_attention(queries, keys + places, values, bias.expand(-1, -1, hidden.shape[1], -1))
        return self.linear_out(mixed.transpose(1, 2).flatten(2))


class ConvolutionModule(nn.Module):
    """Pointwise, GLU, depthwise, LayerNorm, SiLU, pointwise over (B, T, width)."""

    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.pointwise_conv1 = nn.Conv1d(width, 2 * width, 1)
        self.depthwise_conv = nn.Conv1d(width, width, kernel, padding=kernel // 2, groups=width)
        self.norm = LayerNorm(width)
        self.pointwise_conv2 = nn.Conv1d(width, width, 1)

    def forward(self, hidden: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        hidden = F.glu(self.pointwise_conv1(hidden.transpose(1, 2)), 1)
        # The depthwise convolution reads zeros beyond the end of a clip.
        if keep is not None:
            hidden = hidden * keep[:, None]
        hidden = self.norm(self.depthwise_conv(hidden).transpose(1, 2))
        return self.pointwise_conv2(F.silu(hidden).transpose(1, 2)).transpose(1, 2)


class ConformerBlock(nn.Module):
    """Attention, convolution and feed-forward with pre-normalisation, and a norm at the end."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.self_attn = RelativeAttention(config.width, config.heads)
        self.feed_forward = FeedForward(config.width, config.mlp_width)
        self.conv_module = ConvolutionModule(config.width, config.kernel)
        self.norm_ff, self.norm_mha = LayerNorm(config.width), LayerNorm(config.width)
        self.norm_conv, self.norm_final = LayerNorm(config.width), LayerNorm(config.width)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        hidden = hidden + self.self_attn(self.norm_mha(hidden), positions, keep)
        hidden = hidden + self.conv_module(self.norm_conv(hidden), keep)
        return self.norm_final(hidden + self.feed_forward(self.norm_ff(hidden)))


class PositionTable(nn.Module):
    """Sines and cosines, interleaved (Vaswani et al. 2017). Published files hold the table; here it is computed."""

    pe: torch.Tensor  # (1, POSITIONS, width)

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width
        self.compute()

    def compute(self) -> None:
        """Compute the table; call it again on a model that was built on the meta device."""
        with torch.device("cpu"):
            rates = torch.exp(torch.arange(0, self.width, 2) * -(math.log(10000.0) / self.width))
            angles = torch.arange(POSITIONS)[:, None] * rates
            table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)[None]
        self.register_buffer("pe", table)


class Subsampling(nn.Module):
    """A 3 x 3 convolution of stride 2 over frames and bins, ReLU, and a linear layer over channels and bins."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.conv = nn.Sequential(nn.Conv2d(1, config.width, 3, 2), nn.ReLU())
        self.out = nn.Sequential(Linear(config.width * config.bins, config.width))
        self.pos_enc = PositionTable(config.width)

    def forward(self, features: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """(B, T, 1024) to (B, T', width), T' = (T - 1) // 2; zero where keep (B, T') is False.

        Between the layers a frame has channels x bins = 261632 numbers, so a group of channels goes through both while
        it is in the processor's cache: 0.82 s of one core for 10 s of sound, against 1.26 s layer by layer.
        """
        conv, out = self.conv[0], self.out[0]
        assert isinstance(conv, nn.Conv2d)
        assert isinstance(out, nn.Linear)
        assert conv.bias is not None

        # A convolution of stride 2 is written as products with the patches that it reads.
        patches = features.unfold(1, 3, 2).unfold(2, 3, 2)  # (B, T', bins, 3, 3), a view
        rows = patches.flatten(0, 1) if keep is None else patches[keep]
        rows = rows.permute(0, 2, 3, 1).flatten(1, 2)  # (N, 9, bins)

        # The channels are computed in groups that fit into the processor's cache.
        bins, step = rows.shape[2], max(1, _GROUP_SIZE // max(1, rows[:, 0].numel()))
        hidden = out.bias.expand(len(rows), -1)
        for start in range(0, conv.out_channels, step):
            kernels, bias = conv.weight[start:start + step].flatten(1), conv.bias[start:start + step, None]
            group = torch.baddbmm(bias, kernels.expand(len(rows), -1, -1), rows).relu_().flatten(1)
            hidden = hidden.addmm(group, out.weight[:, start * bins:start * bins + group.shape[1]].T)

        hidden = hidden * math.sqrt(self.pos_enc.width)

        # Frames that were left out get zeros.
        if keep is None:
            return hidden.unflatten(0, patches.shape[:2])
        return hidden.new_zeros(*keep.shape, hidden.shape[1]).index_put((keep,), hidden)


class Conformer(nn.Module):
    """Features to states at half their rate."""

    def __init__(self, config: ConformerConfig) -> None:
        super().__init__()
        self.embed = Subsampling(config)
        self.encoders = nn.ModuleList([ConformerBlock(config) for _ in range(config.blocks)])
        self.after_norm = LayerNorm(config.width)

    def forward(self, features: torch.Tensor,
                lengths: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Features (B, T, 1024) of at least 3 frames to states (B, T', width), and which of them are no padding.

        `lengths` (B,) are those of the clips in frames; without them no frame is padding.
        """
        keep = None
        if lengths is not None:
            keep = torch.arange((features.shape[1] - 1) // 2, device=features.device) < (lengths[:, None] - 1) // 2
        hidden = self.embed(features, keep)
        positions = self.embed.pos_enc.pe[0, :hidden.shape[1]].to(hidden.dtype)
        for block in self.encoders:
            hidden = block(hidden, positions, keep)
        return self.after_norm(hidden), keep


class PerceiverAttention(nn.Module):
    """Latents read themselves and the context; no biases, no norm in front."""

    def __init__(self, config: PerceiverConfig) -> None:
        super().__init__()
        self.to_q = Linear(config.width, config.inner, bias=False)
        self.to_kv = Linear(config.width, 2 * config.inner, bias=False)
        self.to_out = Linear(config.inner, config.width, bias=False)

    def forward(self, latents: torch.Tensor, context: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        keys_and_values = self.to_kv(torch.cat([latents, context], 1)).chunk(2, -1)
        q, k, v = (x.unflatten(-1, (-1, 64)).transpose(1, 2) for x in (self.to_q(latents), *keys_and_values))
        mask = None if keep is None else F.pad(keep, (latents.shape[1], 0), value=True)[:, None, None]
        return self.to_out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


class GEGLU(nn.Module):
    """The first half times the exact GELU of the second (Shazeer 2020)."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        value, gate = hidden.chunk(2, -1)
        return value * F.gelu(gate)


class RootNorm(nn.Module):
    """x / |x| x sqrt(width) x gamma."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(width))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return F.normalize(hidden, dim=-1) * math.sqrt(hidden.shape[-1]) * self.gamma


class VoicePerceiver(nn.Module):
    """A fixed number of latents that read states (Jaegle et al. 2021)."""

    def __init__(self, config: PerceiverConfig) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(config.latents, config.width) * 0.02)
        self.proj_context = Linear(config.context, config.width)
        self.layers = nn.ModuleList([
            nn.ModuleList([PerceiverAttention(config), nn.Sequential(
                Linear(config.width, 2 * config.mlp_width), GEGLU(), Linear(config.mlp_width, config.width))])
            for _ in range(config.layers)])
        self.norm = RootNorm(config.width)

    def forward(self, states: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        """States (B, T, context) and keep (B, T) to (B, latents, width)."""
        return self.finish(self.last_hidden(states, keep))

    def last_hidden(self, states: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        """The latents (B, latents, width) before the last feed-forward layer, which is all that follows for a clip."""
        context = self.proj_context(states)
        latents = self.latents.expand(len(states), -1, -1)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            attention, feed_forward = layer.children()
            latents = latents + attention(latents, context, keep)
            if number < last:
                latents = latents + feed_forward(latents)
        return latents

    def finish(self, hidden: torch.Tensor) -> torch.Tensor:
        """`last_hidden` to the latents."""
        _attention, feed_forward = self.layers[-1].children()
        return self.norm(hidden + feed_forward(hidden))


@dataclass(frozen=True)
class EmotionBanks:
    """The published `feat1.pt` and `feat2.pt`: voices and emotion vectors in eight groups of `GROUP_SIZES` rows."""

    voices: torch.Tensor  # (73, 192), styles as CAMPPlus gives them
    emotions: torch.Tensor  # (73, width)

    @classmethod
    def of(cls, voices: torch.Tensor, emotions: torch.Tensor, width: int) -> EmotionBanks:
        """The two files' tensors for a GPT of `width`; `UserError` if they do not have one row for each voice."""
        rows = sum(GROUP_SIZES)
        if voices.ndim != 2 or len(voices) != rows or emotions.shape != (rows, width):
            raise UserError(f"The emotion banks have the shapes {tuple(voices.shape)} and {tuple(emotions.shape)}; "
                            f"({rows}, 192) and ({rows}, {width}) are wanted.", "Download feat1.pt and feat2.pt again.")
        return cls(voices.float(), emotions.float())

    def mix(self, weights: Sequence[float], style: torch.Tensor, vector: torch.Tensor) -> torch.Tensor:
        """The emotion vector (width,) of eight weights in the order of `EMOTIONS`, from 0 to 1.

        Of each group it takes the emotion of the voice nearest to `style` (192,) by cosine; what the weights leave of 1
        is the share of `vector` (width,), that of a clip.
        """
        check_emotion_weights(weights)
        nearest = F.cosine_similarity(self.voices, style.float()[None]).split(GROUP_SIZES)
        chosen = torch.stack([group[similarity.argmax()]
                              for group, similarity in zip(self.emotions.split(GROUP_SIZES), nearest, strict=True)])
        share = torch.tensor(list(weights), dtype=chosen.dtype, device=chosen.device)
        return share @ chosen + (1 - share.sum()) * vector.float()


def check_emotion_weights(weights: Sequence[float]) -> None:
    """`UserError` unless there are eight numbers from 0 to 1."""
    if len(weights) != len(EMOTIONS):
        raise UserError(f"An emotion has {len(EMOTIONS)} weights; there are {len(weights)}.",
                        f"Give one each for {', '.join(EMOTIONS)}.")
    for name, weight in zip(EMOTIONS, weights, strict=True):
        if not 0 <= weight <= 1:
            raise UserError(f"The weight of {name} is {weight:g}, and one from 0 to 1 is wanted.", "Change it.")


def balanced_weights(weights: Sequence[float]) -> tuple[float, ...]:
    """Eight weights as the published page scales them: some emotions are toned down, and the sum is at most 0.8."""
    check_emotion_weights(weights)
    scaled = [weight * factor for weight, factor in zip(weights, _BALANCE, strict=True)]
    factor = min(1.0, _MAX_BALANCED_SUM / max(sum(scaled), 1e-9))
    return tuple(weight * factor for weight in scaled)
