"""w2v-bert 2.0: 16 kHz sound to 50 states of 1024 numbers a second.

A conformer (Gulati et al. 2020) over Kaldi filterbanks with the relative positions of Shaw et al. 2018 and a causal
convolution, trained by Barrault et al. 2023 (Seamless, arXiv:2312.05187). State-dict keys and arithmetic are those of
`Wav2Vec2BertModel` in transformers (Apache 2.0). Written here because IndexTTS2 reads the states after 17 of its 24
layers, because transformers computes the relative positions from a table of (T, T, 64) numbers in each layer, and
because clips can be concatenated instead of padded: matrix products see all frames at once, attention and convolution
see one clip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from data.acoustics import audio
from models import weights
from models.matmul_backends import Linear, linear

SAMPLE_RATE = 16000  # Hz
FRAME_RATE = 50  # states a second
N_MELS = 80
LAYERS = 17  # layers that are used; the published file has 24
LEFT = 64  # frames: keys further to the left share a relative position
FRAMES_PER_BATCH = 4000  # frames of `encode`: 80 s; bounds its memory
MAX_CLIP_S = 60.0  # seconds of one clip in `encode`: attention takes 64 bytes times the square of the frames
_UNUSED = "masked_spec_embed"  # tensor of training


@dataclass(frozen=True)
class W2vBertConfig:
    """Sizes of the model; the defaults are the published ones, with the layers that are used."""

    width: int = 1024
    heads: int = 16
    mlp_width: int = 4096
    layers: int = LAYERS
    kernel: int = 31
    positions: int = LEFT + 9  # relative positions from -LEFT on


@dataclass(frozen=True)
class _Clip:
    """The rows of a clip among concatenated frames; the last one may be masked, and then no other frame reads it."""

    start: int
    end: int
    unmasked: int  # rows that are not masked


class _FeedForward(nn.Module):
    def __init__(self, config: W2vBertConfig) -> None:
        super().__init__()
        self.intermediate_dense = Linear(config.width, config.mlp_width)
        self.output_dense = Linear(config.mlp_width, config.width)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.output_dense(F.silu(self.intermediate_dense(hidden)))


class _Attention(nn.Module):
    """Score of query i and key j: q_i (k_j + e[clip(j - i, -64, 8)]) / sqrt(head size)."""

    def __init__(self, config: W2vBertConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.linear_q = Linear(config.width, config.width)
        self.linear_k = Linear(config.width, config.width)
        self.linear_v = Linear(config.width, config.width)
        self.linear_out = Linear(config.width, config.width)
        self.distance_embedding = nn.Embedding(config.positions, config.width // config.heads)

    def forward(self, hidden: torch.Tensor, clips: Sequence[_Clip], distances: torch.Tensor) -> torch.Tensor:
        """Frames (N, width) of all clips; `distances` (T, T) are the rows of `distance_embedding`."""
        queries, keys, values = (layer(hidden).unflatten(1, (self.heads, -1)).transpose(0, 1)
                                 for layer in (self.linear_q, self.linear_k, self.linear_v))  # (heads, N, head size)
        places = queries @ (self.distance_embedding.weight.T / math.sqrt(queries.shape[-1]))  # (heads, N, positions)
        mixed = torch.empty_like(hidden)
        for clip in clips:
            rows, read = slice(clip.start, clip.end), slice(clip.start, clip.start + clip.unmasked)
            index = distances[:clip.end - clip.start, :clip.unmasked].expand(self.heads, -1, -1)
            bias = places[:, rows].gather(2, index)  # (heads, T, kept)
            attended = F.scaled_dot_product_attention(queries[None, :, rows], keys[None, :, read],
                                                      values[None, :, read], attn_mask=bias[None])
            mixed[rows] = attended[0].transpose(0, 1).flatten(1)
        return self.linear_out(mixed)


class _Convolution(nn.Module):
    """LayerNorm, GLU, a causal depthwise convolution, LayerNorm, SiLU; each clip begins with zeros."""

    def __init__(self, config: W2vBertConfig) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(config.width)
        self.pointwise_conv1 = nn.Conv1d(config.width, 2 * config.width, 1, bias=False)
        self.depthwise_conv = nn.Conv1d(config.width, config.width, config.kernel, groups=config.width, bias=False)
        self.depthwise_layer_norm = nn.LayerNorm(config.width)
        self.pointwise_conv2 = nn.Conv1d(config.width, config.width, 1, bias=False)

    def forward(self, hidden: torch.Tensor, clips: Sequence[_Clip], keep: torch.Tensor) -> torch.Tensor:
        gated = F.glu(linear(self.layer_norm(hidden) * keep, self.pointwise_conv1.weight[..., 0]), 1)  # (N, width)
        padding = self.depthwise_conv.kernel_size[0] - 1
        mixed = torch.cat([self.depthwise_conv(F.pad(gated[clip.start:clip.end].T[None], (padding, 0)))[0].T
                           for clip in clips])
        return linear(F.silu(self.depthwise_layer_norm(mixed)), self.pointwise_conv2.weight[..., 0])


class _Layer(nn.Module):
    def __init__(self, config: W2vBertConfig) -> None:
        super().__init__()
        self.ffn1_layer_norm = nn.LayerNorm(config.width)
        self.ffn1 = _FeedForward(config)
        self.self_attn_layer_norm = nn.LayerNorm(config.width)
        self.self_attn = _Attention(config)
        self.conv_module = _Convolution(config)
        self.ffn2_layer_norm = nn.LayerNorm(config.width)
        self.ffn2 = _FeedForward(config)
        self.final_layer_norm = nn.LayerNorm(config.width)

    def forward(self, hidden: torch.Tensor, clips: Sequence[_Clip], keep: torch.Tensor,
                distances: torch.Tensor) -> torch.Tensor:
        hidden = torch.add(hidden, self.ffn1(self.ffn1_layer_norm(hidden)), alpha=0.5)
        hidden = hidden + self.self_attn(self.self_attn_layer_norm(hidden), clips, distances)
        hidden = hidden + self.conv_module(hidden, clips, keep)
        hidden = torch.add(hidden, self.ffn2(self.ffn2_layer_norm(hidden)), alpha=0.5)
        return self.final_layer_norm(hidden)


class _Projection(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer_norm = nn.LayerNorm(2 * N_MELS)
        self.projection = Linear(2 * N_MELS, width)


class _Encoder(nn.Module):
    def __init__(self, config: W2vBertConfig) -> None:
        super().__init__()
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))


class W2vBert(nn.Module):
    """Filterbank -> states; standardised by `mean` and `std`, which are published in a file of their own."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, config: W2vBertConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or W2vBertConfig()
        self.feature_projection = _Projection(config.width)
        self.encoder = _Encoder(config)
        self.register_buffer("mean", torch.zeros(config.width), persistent=False)
        self.register_buffer("std", torch.ones(config.width), persistent=False)

    def forward(self, filterbanks: Sequence[torch.Tensor], counts: Sequence[int]) -> list[torch.Tensor]:
        """Filterbanks (T, 160) of clips, whose first `counts` frames are not masked, to states (T, width) each."""
        ends = torch.tensor([len(rows) for rows in filterbanks]).cumsum(0).tolist()
        clips = [_Clip(end - len(rows), end, count)
                 for end, rows, count in zip(ends, filterbanks, counts, strict=True)]

        normed = self.feature_projection.layer_norm(torch.cat(list(filterbanks)))
        keep = torch.cat([torch.arange(len(rows), device=normed.device) < count
                          for rows, count in zip(filterbanks, counts, strict=True)])[:, None]
        hidden = self.feature_projection.projection(normed) * keep

        frames = torch.arange(max(map(len, filterbanks)), device=normed.device)
        distances = (frames - frames[:, None]).clamp(-LEFT, self.config.positions - 1 - LEFT) + LEFT
        for layer in self.encoder.layers:
            hidden = layer(hidden, clips, keep, distances)
        return list(hidden.split([len(rows) for rows in filterbanks]))

    @torch.inference_mode()
    def encode(self, waveforms: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Waveforms (S,) at 16 kHz to standardised states (T, width) each, T = ceil(((S - 400) // 160 + 1) / 2).

        Clips are concatenated, so a clip's states depend on the others by rounding alone.
        """
        for waveform in waveforms:
            if len(waveform) > MAX_CLIP_S * SAMPLE_RATE:
                raise UserError(f"The clip has {len(waveform) / SAMPLE_RATE:.1f} s; at most {MAX_CLIP_S:g} s are "
                                "taken.", "Cut it into sentences.")
        inputs = [filterbank(waveform.to(self.mean.device)) for waveform in waveforms]
        states: list[torch.Tensor] = []
        for batch in batches([len(rows) for rows, _ in inputs]):
            hidden = self([inputs[number][0] for number in batch], [inputs[number][1] for number in batch])
            states += [(rows - self.mean) / self.std for rows in hidden]
        return states


def batches(lengths: Sequence[int]) -> Iterator[range]:
    """Runs of clips of `lengths` frames, of at most FRAMES_PER_BATCH together unless one clip has more."""
    start = total = 0
    for number, length in enumerate(lengths):
        if total and total + length > FRAMES_PER_BATCH:
            yield range(start, number)
            start, total = number, 0
        total += length
    if total:
        yield range(start, len(lengths))


def filterbank(waveform: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Waveform (S,) at 16 kHz to (T, 160), two frames of 10 ms in each row, and how many rows are not masked.

    An odd frame is completed with ones, and its row is masked: `SeamlessM4TFeatureExtractor` of transformers. Computed
    in float64 as there: in float32 the quiet bins of a frame differ by 1e-4, for a third of the time.
    """
    # At least two frames are needed: a single one has no variance.
    audio.require_samples(waveform, 560, SAMPLE_RATE)
    frames = audio.kaldi_filterbank(waveform.double() * 2 ** 15, N_MELS)
    frames = ((frames - frames.mean(0)) / (frames.var(0) + 1e-7).sqrt()).float()
    return F.pad(frames, (0, 0, 0, len(frames) % 2), value=1.0).reshape(-1, 2 * N_MELS), len(frames) // 2


def load(path: Path, statistics: Path, device: torch.device) -> W2vBert:
    """The used layers of a published file, the others unread, and the mean and variance of their states."""
    file = weights.LazyWeights.open(path)
    config = config_from_shapes({name: file.shape(name) for name in file.names}, str(path))
    # Later layers are not read at all.
    later = tuple(f"encoder.layers.{layer}." for layer in range(LAYERS, 24))
    used = [name for name in file.names if name != _UNUSED and not name.startswith(later)]
    with torch.device("meta"):
        module = W2vBert(config)
    weights.load_into(module, {name: file.tensor(name) for name in used}, str(path))
    moments = weights.read(statistics)
    for name in ("mean", "var"):
        if name not in moments or moments[name].shape != (config.width,):
            shapes = ", ".join(f"{key} {tuple(value.shape)}" for key, value in moments.items())
            raise UserError(f"{statistics} holds {shapes or 'nothing'}; mean and var of ({config.width},) are wanted.",
                            "Download it again.")
    module.mean, module.std = moments["mean"].float(), moments["var"].float().sqrt()
    return module.eval().to(device)


def config_from_shapes(shapes: Mapping[str, tuple[int, ...]], source: str) -> W2vBertConfig:
    """The configuration of a file's shapes; `UserError` naming `source` if it is no w2v-bert."""
    try:
        width = shapes["feature_projection.projection.weight"][0]
        positions, head = shapes["encoder.layers.0.self_attn.distance_embedding.weight"]
        mlp_width = shapes["encoder.layers.0.ffn1.intermediate_dense.weight"][0]
        kernel = shapes["encoder.layers.0.conv_module.depthwise_conv.weight"][2]
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{source} is no w2v-bert 2.0: it has {len(shapes)} tensors, and not the one for {error}.",
                        "Give the published model.safetensors of facebook/w2v-bert-2.0.") from error
    layers = len({name.split(".")[2] for name in shapes if name.startswith("encoder.layers.")})
    return W2vBertConfig(width, width // head, mlp_width, min(layers, LAYERS), kernel, positions)
