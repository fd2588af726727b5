"""Semantic codes and the GPT's hidden states to mel, by flow matching (Lipman et al. 2023, arXiv:2210.02747).

The length regulator brings codec embeddings to the frame rate of the mel, those of the speaker's clip (the prompt) and
those of the text. From noise, Euler steps of equal size follow the estimated velocity to the mel of the text,
conditioned on both, the prompt's mel and a style vector. Classifier-free guidance (Ho and Salimans 2022) adds an
unconditional row. The estimator is a diffusion transformer with skip connections between its halves, followed by a
WaveNet (van den Oord et al. 2016). Layout and state-dict keys of `s2mel.pth` in index-tts/index-tts, the design is
Seed-VC's (Liu 2024, arXiv:2411.09943).

Whatever does not depend on the noisy mel is computed before the loop of steps: the projections of all conditions, and
of the times of all steps. The prompt's frames of the noisy mel are zero and their velocity is not used, so the WaveNet
and the last transformer block compute the text's frames alone, and as many before them as the WaveNet reads.

Shapes: B rows, U codes, P frames of the prompt, F frames of the text, C channels; frames are 86.13 a second.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from models import decoder, weights
from models.cuda_graph_decode import GraphCache
from models.matmul_backends import Linear, SeenKeys, attend, linear

MEL_FRAMES_PER_CODE = 1.72  # published; 86.13 frames and 50 codes a second are 1.7227
GUIDANCE = 0.7  # published
# On CUDA the frames of a text are padded to a multiple, because each length needs its own graph: 1.5 s of sound. Those
# used last are kept.
_FRAMES_UNIT, _KEPT_LENGTHS = 128, 12
PARTS = ("cfm", "length_regulator", "gpt_layer")  # parts of `net` in the published file; the others are of its training
# Tensors of the published file that no computation reads, or that are computed here; the counter's length varies.
_UNUSED = re.compile(
    r"cfm\.estimator\.(x_embedder\.(bias|weight|weight_[gv])|cond_embedder\.weight|content_mask_embedder\.weight"
    r"|input_pos|t_embedder2?\.freqs|transformer\.(freqs_cis|causal_mask))"
    r"|length_regulator\.(mask_token|embedding\.weight)"
)
_UNMERGED = re.compile(r"cfm\.estimator\.transformer\.layers\.(\d+)\.skip_in_linear\.(weight|bias)")
_HEAD_SIZE, _EPSILON = 64, 1e-5
_GIVE = "Give the published s2mel.pth."


@dataclass(frozen=True)
class S2MelConfig:
    """Sizes; the defaults are the published ones."""

    n_mels: int = 80
    width: int = 512
    heads: int = 8
    hidden: int = 1536
    layers: int = 13
    wave_layers: int = 8
    wave_kernel: int = 5
    style: int = 192
    content: int = 1024  # codec embedding
    latent: tuple[int, ...] = (1280, 256, 128)  # widths of `gpt_layer`: GPT's hidden states, and two layers behind
    regulator_layers: int = 4

    @property
    def wave_context(self) -> int:
        """Frames that the WaveNet reads to either side."""
        return self.wave_layers * (self.wave_kernel // 2)


class TimeStates(NamedTuple):
    """What the estimator adds and multiplies at N times."""

    norms: torch.Tensor  # (N, 2 * layers + 1, 2, C): factor and summand of each norm
    wave: torch.Tensor  # (N, wave layers, 2C): bias of each convolution
    final: torch.Tensor  # (N, 2, C): summand and factor of the last norm

    def at(self, step: int) -> TimeStates:
        """One time, without its axis."""
        return TimeStates(self.norms[step], self.wave[step], self.final[step])


class AdaptiveNorm(nn.Module):
    """RMS norm whose factor and summand are a projection of the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.project_layer = nn.Linear(width, 2 * width)
        self.norm = nn.RMSNorm(width, eps=_EPSILON)

    def time_state(self, time: torch.Tensor) -> torch.Tensor:
        """Times (N, C) to (N, 2, C): the norm's own gain is part of the factor."""
        factor, summand = self.project_layer(time).chunk(2, -1)
        return torch.stack([factor * self.norm.weight, summand], 1)


def adaptive_norm(frames: torch.Tensor, added: torch.Tensor | None, time: torch.Tensor,
                  dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames (B, F, C) in float32 plus `added` (B, F, C), and that sum by the state (2, C) of an `AdaptiveNorm`."""
    if decoder.uses_triton(frames):
        from models import triton_vocoder

        return triton_vocoder.adaptive_norm(frames, added, time[0], time[1], _EPSILON, dtype)
    total = frames if added is None else frames + added
    scale = torch.rsqrt(total.square().mean(-1, keepdim=True) + _EPSILON)
    return total, torch.addcmul(time[1], total * scale, time[0]).to(dtype)


class Attention(nn.Module):
    """Self-attention over all frames with rotary positions of neighbouring pairs (Su et al. 2021)."""

    def __init__(self, config: S2MelConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.wqkv = Linear(config.width, 3 * config.width, bias=False)
        self.wo = Linear(config.width, config.width, bias=False)

    def forward(self, frames: torch.Tensor, rotary: torch.Tensor, start: int, seen: SeenKeys | None) -> torch.Tensor:
        """Frames (B, F, C) and rotary (F, D / 2) complex to (B, F - start, C): for the frames from `start` on."""
        rows, length, width = frames.shape
        query, key, value = self.wqkv(frames).view(rows, length, 3, self.heads, -1).unbind(2)
        query, key = rotate(query[:, start:], rotary[start:]), rotate(key, rotary)
        mixed = attend(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), seen)
        return self.wo(mixed.transpose(1, 2).reshape(rows, length - start, width))


def rotary_positions(length: int, head_size: int, device: torch.device) -> torch.Tensor:
    """Angles of positions 0 to length - 1 as complex numbers (length, head_size / 2), base 10000."""
    rates = 10_000 ** (-torch.arange(0, head_size, 2, device=device).float() / head_size)
    angles = torch.arange(length, device=device).float()[:, None] * rates
    return torch.polar(torch.ones_like(angles), angles)


def rotate(heads: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    """Heads (B, F, H, D), whose neighbouring pairs are complex numbers, times rotary (F, D / 2)."""
    if decoder.uses_triton(heads):
        from models import triton_vocoder

        return triton_vocoder.rotate_pairs(heads, rotary)
    pairs = torch.view_as_complex(heads.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotary[:, None]).flatten(-2).to(heads.dtype)


class S2MelFeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: S2MelConfig) -> None:
        super().__init__()
        self.w1 = Linear(config.width, config.hidden, bias=False)
        self.w3 = Linear(config.width, config.hidden, bias=False)
        self.w2 = Linear(config.hidden, config.width, bias=False)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(frames), inplace=True).mul_(self.w3(frames)))


class Block(nn.Module):
    """Attention and feed-forward, each after an adaptive norm; one that `merges` first takes an earlier output."""

    def __init__(self, config: S2MelConfig, merges: bool) -> None:
        super().__init__()
        self.attention = Attention(config)
        self.feed_forward = S2MelFeedForward(config)
        self.ffn_norm = AdaptiveNorm(config.width)
        self.attention_norm = AdaptiveNorm(config.width)
        if merges:
            self.skip_in_linear = Linear(2 * config.width, config.width)

    def forward(self, frames: torch.Tensor, skip: torch.Tensor | None, time: torch.Tensor, rotary: torch.Tensor,
                start: int, seen: SeenKeys | None) -> torch.Tensor:
        """Frames and skip (B, F, C), time (2, 2, C) of both norms, to (B, F - start, C)."""
        dtype = self.attention.wo.weight.dtype
        if skip is not None:
            frames = self.skip_in_linear(torch.cat([frames, skip], -1).to(dtype)).float()
        _, normed = adaptive_norm(frames, None, time[0], dtype)
        frames, normed = adaptive_norm(frames[:, start:], self.attention(normed, rotary, start, seen), time[1], dtype)
        return frames + self.feed_forward(normed)


class Transformer(nn.Module):
    """Blocks with skip connections from the first half to the second, as in a U-net, and a last norm."""

    def __init__(self, config: S2MelConfig) -> None:
        super().__init__()
        self.middle = config.layers // 2
        self.layers = nn.ModuleList([Block(config, merges=layer > self.middle) for layer in range(config.layers)])
        self.norm = AdaptiveNorm(config.width)

    def forward(self, frames: torch.Tensor, time: torch.Tensor, rotary: torch.Tensor, start: int,
                seen: SeenKeys | None) -> torch.Tensor:
        """Frames (B, F, C) and time (2 * layers + 1, 2, C) to (B, F - start, C)."""
        skips: list[torch.Tensor] = []
        last = len(self.layers) - 1
        for index, layer in enumerate(self.layers):
            skip = skips.pop() if index > self.middle else None
            frames = layer(frames, skip, time[2 * index:2 * index + 2], rotary, start if index == last else 0, seen)
            if index < self.middle:
                skips.append(frames)
        return adaptive_norm(frames, None, time[-1], torch.float32)[1]

    def time_state(self, time: torch.Tensor) -> torch.Tensor:
        """Times (N, C) to (N, 2 * layers + 1, 2, C)."""
        norms: list[AdaptiveNorm] = []
        for layer in self.layers:
            norms += [cast(AdaptiveNorm, layer.attention_norm), cast(AdaptiveNorm, layer.ffn_norm)]
        return torch.stack([norm.time_state(time) for norm in (*norms, self.norm)], 1)


class WaveConv(nn.Module):
    """A convolution under its published name, `conv.conv`."""

    def __init__(self, inputs: int, outputs: int, kernel: int) -> None:
        super().__init__()
        self.conv = nn.ModuleDict({"conv": nn.Conv1d(inputs, outputs, kernel)})

    @property
    def weight(self) -> torch.Tensor:
        return cast(nn.Conv1d, self.conv["conv"]).weight

    @property
    def bias(self) -> torch.Tensor:
        bias = cast(nn.Conv1d, self.conv["conv"]).bias
        assert bias is not None
        return bias


class WaveNet(nn.Module):
    """Gated convolutions over (B, F, C), reflected at both ends; each adds to the signal and to the output."""

    def __init__(self, config: S2MelConfig) -> None:
        super().__init__()
        width, layers = config.width, config.wave_layers
        self.in_layers = nn.ModuleList([WaveConv(width, 2 * width, config.wave_kernel) for _ in range(layers)])
        self.res_skip_layers = nn.ModuleList([
            WaveConv(width, 2 * width if layer < layers - 1 else width, 1) for layer in range(layers)
        ])
        self.cond_layer = WaveConv(width, 2 * width * layers, 1)

    def time_state(self, time: torch.Tensor) -> torch.Tensor:
        """Times (N, C) to the biases of the convolutions (N, layers, 2C)."""
        bias = torch.stack([cast(WaveConv, layer).bias for layer in self.in_layers])
        return F.linear(time, self.cond_layer.weight.squeeze(-1), self.cond_layer.bias).unflatten(-1, bias.shape) + bias

    def forward(self, signal: torch.Tensor, time: torch.Tensor, reflected: torch.Tensor | None = None) -> torch.Tensor:
        """(B, F, C) float32, time (layers, 2C), to the same; `reflected` are the frames with their reflections."""
        rows, length, width = signal.shape
        total = None
        convs = [cast(WaveConv, layer) for layer in self.in_layers]
        mixes = [cast(WaveConv, layer) for layer in self.res_skip_layers]

        for layer, (conv, mix) in enumerate(zip(convs, mixes, strict=True)):
            weight = conv.weight
            side = weight.shape[2] // 2

            # A convolution reads its input mirrored at both ends.
            if reflected is not None:
                padded = signal.to(weight.dtype).index_select(1, reflected)
            else:
                padded = signal.new_empty(rows, length + 2 * side, width, dtype=weight.dtype)
                padded[:, side:side + length] = signal
                for step in range(1, side + 1):
                    padded[:, side - step] = padded[:, side + step]
                    padded[:, side + length - 1 + step] = padded[:, side + length - 1 - step]

            # The gated activation of WaveNet; the last part of each mix is a skip.
            image = padded[:, None].permute(0, 3, 1, 2)  # (B, C, 1, F), channels last in memory: a view
            gated = F.conv2d(image, weight[:, :, None], time[layer].to(weight.dtype))[:, :, 0].transpose(1, 2)
            gate = torch.tanh(gated[..., :width]).mul_(torch.sigmoid(gated[..., width:]))
            mixed = linear(gate, mix.weight.squeeze(-1), mix.bias)
            total = mixed[..., -width:].float() if total is None else total.add_(mixed[..., -width:])

            if layer < len(self.in_layers) - 1:
                signal = signal + mixed[..., :width]
        assert total is not None
        return total


class S2MelTimeEmbedding(nn.Module):
    """Times (N,) in [0, 1] to (N, C): sinusoids and two linear layers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))

    def forward(self, times: torch.Tensor) -> torch.Tensor:
        rates = torch.exp(torch.arange(128, device=times.device).float() * (-math.log(10_000) / 128))
        angles = 1000 * times.float()[:, None] * rates
        return self.mlp(torch.cat([angles.cos(), angles.sin()], -1))


class FinalLayer(nn.Module):
    """Layer norm with factor and summand by the time, and a linear layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = Linear(width, width)
        # published as a sequence with SiLU first
        self.adaLN_modulation = nn.ModuleDict({"1": nn.Linear(width, 2 * width)})

    def time_state(self, time: torch.Tensor) -> torch.Tensor:
        """Times (N, C) to (N, 2, C): summand, and factor less 1."""
        return self.adaLN_modulation["1"](F.silu(time)).unflatten(-1, (2, -1))

    def forward(self, frames: torch.Tensor, time: torch.Tensor) -> torch.Tensor:
        """Frames (B, F, C), time (2, C), to (B, F, C)."""
        normalised = F.layer_norm(frames, frames.shape[-1:], 1 + time[1], time[0], eps=1e-6)
        return self.linear(normalised.to(self.linear.weight.dtype))


class Estimator(nn.Module):
    """Velocity of the noisy mel; see the module's docstring."""

    def __init__(self, config: S2MelConfig) -> None:
        super().__init__()
        self.config, width = config, config.width
        self.cond_projection = nn.Linear(width, width)
        self.cond_x_merge_linear = nn.Linear(2 * config.n_mels + width + config.style, width)
        self.t_embedder, self.t_embedder2 = S2MelTimeEmbedding(width), S2MelTimeEmbedding(width)
        self.transformer = Transformer(config)
        self.skip_linear = Linear(width + config.n_mels, width)
        self.conv1 = Linear(width, width)
        self.wavenet = WaveNet(config)
        self.res_projection = Linear(width, width)
        self.final_layer = FinalLayer(width)
        self.conv2 = nn.Conv1d(width, config.n_mels, 1)

    def time_states(self, times: torch.Tensor) -> TimeStates:
        """The states of times (N,): computed once for all steps."""
        embedded = self.t_embedder(times)
        return TimeStates(self.transformer.time_state(embedded), self.wavenet.time_state(self.t_embedder2(times)),
                          self.final_layer.time_state(embedded))

    def conditions(self, condition: torch.Tensor, prompt_mel: torch.Tensor, style: torch.Tensor) -> torch.Tensor:
        """Condition (B, F, C), the prompt's mel (B, P, n_mels) and style (B, 192) to (B, F, C): once for all steps."""
        n_mels, width = self.config.n_mels, self.config.width
        weight = self.cond_x_merge_linear.weight
        _, of_mel, of_condition, of_style = weight.split([n_mels, n_mels, width, self.config.style], 1)
        merged = linear(self.cond_projection(condition), of_condition.contiguous(), self.cond_x_merge_linear.bias)
        merged[:, :prompt_mel.shape[1]] += F.linear(prompt_mel, of_mel)
        return merged + F.linear(style, of_style)[:, None]

    def unconditional(self, length: int) -> torch.Tensor:
        """`conditions` of zeros, (1, length, C)."""
        width, style = self.config.width, self.config.style
        zeros = self.cond_projection.bias.new_zeros
        return self.conditions(zeros(1, 1, width), zeros(1, 0, self.config.n_mels), zeros(1, style)).expand(
            -1, length, -1)

    def forward(self, noisy: torch.Tensor, conditions: torch.Tensor, time: TimeStates, rotary: torch.Tensor,
                lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Velocity (R * B, F, n_mels) of noisy mel (B, F, n_mels), the same for each of R conditions (R * B, P + F, C).

        The first P frames are the prompt's, whose noisy mel is zero. `rotary` is `rotary_positions` of all frames.
        With `lengths` (R * B,) int32, all the same, the frames after them are padding, on a GPU: the attention does not
        read them, and the WaveNet reflects before them.
        """
        n_mels, dtype = self.config.n_mels, self.conv1.weight.dtype
        prompt = conditions.shape[1] - noisy.shape[1]
        context = min(prompt, self.config.wave_context)  # frames of the prompt that the WaveNet reads

        # The first product was split: the part for the conditions is computed once for all steps.
        noisy = noisy.repeat(conditions.shape[0] // noisy.shape[0], 1, 1)
        frames = conditions.clone()
        frames[:, prompt:] += F.linear(noisy, self.cond_x_merge_linear.weight[:, :n_mels])

        seen = reflected = None
        if lengths is not None:
            seen = SeenKeys.of(lengths, conditions.shape[1], dtype)
            reflected = self._reflected(noisy.shape[1] + context, lengths[0] - (prompt - context))

        # The transformer computes only the frames that the WaveNet reads.
        frames = self.transformer(frames, time.norms, rotary, prompt - context, seen)
        # The WaveNet reads some frames of the prompt before those of the noisy mel.
        noisy = F.pad(noisy, (0, 0, context, 0))
        frames = self.skip_linear(torch.cat([frames, noisy], -1).to(dtype))
        waves = self.wavenet(self.conv1(frames).float(), time.wave, reflected)
        final = self.final_layer(waves[:, context:] + self.res_projection(frames[:, context:]), time.final)
        return linear(final, self.conv2.weight.squeeze(-1), self.conv2.bias).float()

    def _reflected(self, frames: int, length: torch.Tensor) -> torch.Tensor:
        """Which of `frames` each input of a convolution is, (frames + 2 * side,), reflected at 0 and at `length` ()."""
        side = self.config.wave_kernel // 2
        index = torch.arange(-side, frames + side, device=length.device).abs()
        return torch.where(index < length, index, 2 * (length - 1) - index).clamp(min=0)

    def cast_(self, dtype: torch.dtype) -> None:
        """Convert the matrix products to `dtype`; the residual stream, norms, times and inputs stay in float32."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Conv1d) and not re.match(
                    r"cond_|t_embedder|wavenet\.cond_layer|.*(project_layer|adaLN_modulation)", name):
                module.to(dtype)


class LengthRegulator(nn.Module):
    """Codec embeddings to the frame rate of the mel: nearest neighbours, then convolutions."""

    def __init__(self, config: S2MelConfig) -> None:
        super().__init__()
        self.content_in_proj = Linear(config.content, config.width)
        layers: list[nn.Module] = []
        for _ in range(config.regulator_layers):
            layers += [nn.Conv1d(config.width, config.width, 3, padding=1), nn.GroupNorm(1, config.width), nn.Mish()]
        self.model = nn.Sequential(*layers, nn.Conv1d(config.width, config.width, 1))

    def forward(self, content: torch.Tensor, frames: int) -> torch.Tensor:
        """(B, U, 1024) to (B, frames, C). Its norm is over all frames: rows of other lengths need their own call."""
        nearest = F.interpolate(self.content_in_proj(content).transpose(1, 2), size=frames, mode="nearest")
        return self.model(nearest).transpose(1, 2)


@dataclass(frozen=True)
class S2MelPrompt:
    """The speaker's clip, ready for many texts."""

    condition: torch.Tensor  # (1, P, C), regulated
    mel: torch.Tensor  # (1, P, n_mels) log-mel
    style: torch.Tensor  # (1, 192)

    def last(self, frames: int) -> S2MelPrompt:
        """The last `frames` frames: shorter is faster and a little less similar to the speaker."""
        start = max(0, self.mel.shape[1] - frames)
        return S2MelPrompt(self.condition[:, start:], self.mel[:, start:], self.style)


class S2Mel(nn.Module):
    """`mel` is the complete computation on what `prompt` and `content` give."""

    def __init__(self, config: S2MelConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or S2MelConfig()
        widths = (*config.latent, config.content)
        self.gpt_layer = nn.Sequential(*(Linear(*pair) for pair in zip(widths, widths[1:], strict=False)))
        self.length_regulator = LengthRegulator(config)
        self.cfm = nn.ModuleDict({"estimator": Estimator(config)})
        self.graphs = GraphCache(_KEPT_LENGTHS)

    @property
    def estimator(self) -> Estimator:
        estimator = self.cfm["estimator"]
        assert isinstance(estimator, Estimator)
        return estimator

    @torch.inference_mode()
    def prompt(self, embedding: torch.Tensor, mel: torch.Tensor, style: torch.Tensor) -> S2MelPrompt:
        """Codec embedding (1, U, 1024), or states in 2.5, log-mel (1, P, n_mels) and style (1, 192) of a clip."""
        return S2MelPrompt(self.length_regulator(embedding, mel.shape[1]), mel, style)

    @torch.inference_mode()
    def content(self, embedding: torch.Tensor, hidden: torch.Tensor | None, frames: int | None = None) -> torch.Tensor:
        """Codec embedding (1, U, 1024) and hidden states (1, U, 1280) of the codes to the condition (1, F, C).

        In 2.5 the embedding is decoded, 50 rows a second, there are no hidden states, and F may be another number.
        """
        content = embedding if hidden is None else embedding + self.gpt_layer(hidden)
        return self.length_regulator(content, max(1, frames or int(MEL_FRAMES_PER_CODE * embedding.shape[1])))

    @torch.inference_mode()
    def mel(self, content: torch.Tensor, prompt: S2MelPrompt, *, steps: int = 25, guidance: float = GUIDANCE,
            noise: torch.Tensor | None = None, generator: torch.Generator | None = None) -> torch.Tensor:
        """Condition (1, F, C) of `content` to log-mel (1, n_mels, F), from `noise` of that shape or of `generator`."""
        estimator, frames = self.estimator, content.shape[1]
        # Noise is drawn frame by frame, so that on a CPU the first frames do not depend on their number.
        if noise is None:
            device = None if generator is None else generator.device
            noise = torch.randn(frames, self.config.n_mels, generator=generator, device=device).t()[None]
        if content.device.type == "cuda":
            return self._replay(content, prompt, steps, guidance, noise)

        noisy = noise.to(content).transpose(1, 2).contiguous()
        conditions = estimator.conditions(torch.cat([prompt.condition, content], 1), prompt.mel, prompt.style)
        length = conditions.shape[1]
        if guidance:
            conditions = torch.cat([conditions, estimator.unconditional(length)])

        states = estimator.time_states(torch.arange(steps, device=content.device) / steps)
        rotary = rotary_positions(length, self.config.width // self.config.heads, content.device)

        # Euler's method, guided by the difference from the unconditional velocity.
        for step in range(steps):
            velocity = estimator(noisy, conditions, states.at(step), rotary)
            if guidance:
                conditional, unconditional = velocity.chunk(2)
                velocity = torch.lerp(unconditional, conditional, 1 + guidance)
            noisy = noisy.add_(velocity, alpha=1 / steps)
        return noisy.transpose(1, 2)

    def _replay(self, content: torch.Tensor, prompt: S2MelPrompt, steps: int, guidance: float,
                noise: torch.Tensor) -> torch.Tensor:
        """`mel` by a kept graph."""
        self.graphs.check_weights(self.estimator)
        frames, prompt_frames = content.shape[1], prompt.mel.shape[1]
        padded = -(-frames // _FRAMES_UNIT) * _FRAMES_UNIT
        states = self.graphs.get(("times", steps), lambda: self.estimator.time_states(
            torch.arange(steps, device=content.device) / steps))
        graph = self.graphs.get((prompt_frames, padded, guidance, steps), lambda: S2MelGraph(
            self, prompt_frames, padded, guidance, steps))
        graph.start(self, torch.cat([prompt.condition, content], 1), prompt, noise)
        for step in range(steps):
            graph.step(self, states.at(step))
        return graph.noisy[:, :frames].transpose(1, 2).clone()


class S2MelGraph:
    """A step of `S2Mel.mel` for one length of the prompt and one padded number of frames, as a CUDA graph."""

    def __init__(self, model: S2Mel, prompt: int, frames: int, guidance: float, steps: int) -> None:
        config, device = model.config, model.estimator.conv2.weight.device
        self._guidance, self._steps = guidance, steps
        rows, length = 2 if guidance else 1, prompt + frames
        self.noisy = torch.zeros(1, frames, config.n_mels, device=device)
        self._conditions = torch.zeros(rows, length, config.width, device=device)
        if guidance:
            self._conditions[1:] = model.estimator.unconditional(length)
        self._lengths = torch.zeros(rows, dtype=torch.int32, device=device)
        self._rotary = rotary_positions(length, config.width // config.heads, device)
        self._time: TimeStates | None = None
        self._graph = model.graphs.graph()

    def start(self, model: S2Mel, condition: torch.Tensor, prompt: S2MelPrompt, noise: torch.Tensor) -> None:
        """Prepare the steps for the condition (1, P + F, C) of prompt and text, from noise (1, n_mels, F)."""
        length = condition.shape[1]
        self._conditions[:1, :length] = model.estimator.conditions(condition, prompt.mel, prompt.style)
        self._lengths.fill_(length)
        start = noise.transpose(1, 2)
        self.noisy.copy_(F.pad(start, (0, 0, 0, self.noisy.shape[1] - start.shape[1])))

    def step(self, model: S2Mel, time: TimeStates) -> None:
        """An Euler step of `noisy`."""
        if self._time is None:
            self._time = TimeStates(*(part.clone() for part in time))
        for part, new_part in zip(self._time, time, strict=True):
            part.copy_(new_part)
        self._graph(lambda: self._compute(model))

    def _compute(self, model: S2Mel) -> None:
        assert self._time is not None
        velocity = model.estimator(self.noisy, self._conditions, self._time, self._rotary, self._lengths)
        if self._guidance:
            conditional, unconditional = velocity.chunk(2)
            velocity = torch.lerp(unconditional, conditional, 1 + self._guidance)
        self.noisy.add_(velocity, alpha=1 / self._steps)


def load(path: Path, device: torch.device, parts: Sequence[str] = PARTS) -> S2Mel:
    """The models `parts` of a published `s2mel.pth`, in evaluation mode."""
    net = weights.read_nested(path).get("net")
    if not isinstance(net, dict) or any(not isinstance(net.get(part), dict) for part in parts):
        raise UserError(f"{path} does not hold the tables {', '.join(parts)} under `net`.", _GIVE)
    tensors: dict[str, torch.Tensor] = {}
    for part in parts:
        tensors |= {f"{part}.{name.removeprefix('module.')}": value for name, value in net[part].items()}
    return from_tensors(tensors, str(path)).to(device)


def from_tensors(tensors: Mapping[str, torch.Tensor], source: str) -> S2Mel:
    """The models of published tensors, named `cfm.estimator...`, loaded strictly; `UserError` naming `source`.

    The sizes are those of the tensors.
    """
    used = used_tensors(tensors, source)
    module = S2Mel(config_from_shapes({name: tuple(value.shape) for name, value in used.items()}, source))
    weights.load_into(module, used, source)
    return module.requires_grad_(False).eval()


def used_tensors(tensors: Mapping[str, torch.Tensor], source: str) -> dict[str, torch.Tensor]:
    """Published tensors under the module's names: weight norm folded, without those that no computation reads."""
    folded = weights.fold_weight_norm({name: value for name, value in tensors.items() if not _UNUSED.fullmatch(name)})
    half = config_from_shapes({name: tuple(value.shape) for name, value in folded.items()}, source).layers // 2

    def is_used(name: str) -> bool:
        match = _UNMERGED.fullmatch(name)
        return match is None or int(match[1]) > half

    return {name: value for name, value in folded.items() if is_used(name)}


def config_from_shapes(shapes: Mapping[str, tuple[int, ...]], source: str) -> S2MelConfig:
    """The configuration of a file's shapes, weight norm folded; `UserError` naming `source` if it is no S2Mel."""
    start = "cfm.estimator."
    try:
        width, merged = shapes[f"{start}cond_x_merge_linear.weight"]
        n_mels = shapes[f"{start}conv2.weight"][0]
        latent = sum(name.startswith("gpt_layer.") and name.endswith(".weight") for name in shapes)
        return S2MelConfig(
            n_mels, width, width // _HEAD_SIZE, shapes[f"{start}transformer.layers.0.feed_forward.w1.weight"][0],
            sum(name.endswith(".attention.wo.weight") for name in shapes),
            sum(".wavenet.in_layers." in name and name.endswith(".weight") for name in shapes),
            shapes[f"{start}wavenet.in_layers.0.conv.conv.weight"][2], merged - 2 * n_mels - width,
            shapes["length_regulator.content_in_proj.weight"][1],
            tuple(shapes[f"gpt_layer.{layer}.weight"][1] for layer in range(latent)),
            sum(name.startswith("length_regulator.model.") and len(shape) == 3 for name, shape in shapes.items()) - 1,
        )
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{source} is no S2Mel: it has {len(shapes)} tensors, and not the one for {error}.",
                        _GIVE) from error
