"""Semantic codec: w2v-bert states to codes of a book of 8192 and back, 50 a second, or 25 in IndexTTS 2.5.

The encoder and the quantiser of MaskGCT's RepCodec (Wang et al. 2024, arXiv:2409.00750; Amphion, MIT): ConvNeXt blocks
as in Vocos (Siuzdak 2023, arXiv:2306.00814), and a book of eight numbers a row searched by cosine (Yu et al. 2022,
arXiv:2110.04627). State-dict keys are those of amphion/MaskGCT; the decoder, which IndexTTS2 does not use, is not read.
IndexTTS 2.5 has a RepCodec of its own at half the rate: a convolution of stride 2 and GELU come before the encoder, and
S2Mel takes what decoder, repetition and a convolution make of the codes. Its decoding half is published (the package
indextts25-inference 0.2.0, `codec/models.py`); its encoding half is that of Amphion's RepCodec with `downsample_scale`
2, whose other half is the published one. A file without it speaks, and prepares no dataset.
Frames of several clips are concatenated, and each convolution sees one clip.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from models import weights
from models.matmul_backends import Linear, linear

_DECODER = "decoder."
_USED_IN_2_5 = ("down.", "encoder.", "decoder.", "up.", "quantizer.quantizers.0.")
_UNDER = ("model",)  # key under which the file of 2.5 holds the state dict


@dataclass(frozen=True)
class SemanticCodecConfig:
    """Sizes of the codec; the defaults are the published ones."""

    features: int = 1024
    width: int = 384
    mlp_width: int = 2048
    layers: int = 12
    codes: int = 8192
    code_size: int = 8
    halved: bool = False  # codes at half the rate of the states
    encodes: bool = True  # the file has the encoding half


class _ConvNeXt(nn.Module):
    def __init__(self, config: SemanticCodecConfig) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(config.width))
        self.dwconv = nn.Conv1d(config.width, config.width, 7, padding=3, groups=config.width)
        self.norm = nn.LayerNorm(config.width, eps=1e-6)
        self.pwconv1 = Linear(config.width, config.mlp_width)
        self.pwconv2 = Linear(config.mlp_width, config.width)

    def forward(self, hidden: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        mixed = self.norm(_convolve(self.dwconv, hidden, lengths))
        return hidden + self.gamma * self.pwconv2(F.gelu(self.pwconv1(mixed)))


class _Backbone(nn.Module):
    def __init__(self, config: SemanticCodecConfig) -> None:
        super().__init__()
        self.embed = nn.Conv1d(config.features, config.width, 7, padding=3)
        self.norm = nn.LayerNorm(config.width, eps=1e-6)
        self.convnext = nn.ModuleList(_ConvNeXt(config) for _ in range(config.layers))
        self.final_layer_norm = nn.LayerNorm(config.width, eps=1e-6)

    def forward(self, states: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        hidden = self.norm(_convolve(self.embed, states, lengths))
        for block in self.convnext:
            hidden = block(hidden, lengths)
        return self.final_layer_norm(hidden)


def _convolve(layer: nn.Conv1d, rows: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """A convolution over each clip of concatenated frames (N, channels)."""
    return torch.cat([layer(clip.T[None])[0].T for clip in rows.split(list(lengths))])


class _WeightNormConv(nn.Module):
    """A 1x1 convolution with torch's old weight norm: weight_g (n, 1, 1) times the direction of weight_v (n, m, 1)."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(outputs))
        self.weight_g = nn.Parameter(torch.ones(outputs, 1, 1))
        self.weight_v = nn.Parameter(torch.ones(outputs, inputs, 1))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        weight = self.weight_v * (self.weight_g / self.weight_v.norm(dim=(1, 2), keepdim=True))
        return linear(rows, weight[..., 0], self.bias)


class _Quantizer(nn.Module):
    def __init__(self, config: SemanticCodecConfig) -> None:
        super().__init__()
        if config.encodes:
            self.in_project = _WeightNormConv(config.features, config.code_size)
        self.out_project = _WeightNormConv(config.code_size, config.features)
        self.codebook = nn.Embedding(config.codes, config.code_size)


class SemanticCodec(nn.Module):
    """States -> codes -> embeddings of codes. `source` names the file in messages."""

    def __init__(self, config: SemanticCodecConfig | None = None, source: str = "The semantic codec") -> None:
        super().__init__()
        config = config or SemanticCodecConfig()
        self.quantizer = nn.ModuleDict({"quantizers": nn.ModuleList([_Quantizer(config)])})
        self.config, self.source = config, source
        if config.encodes:
            self.encoder = nn.Sequential(_Backbone(config), Linear(config.width, config.features))
            if config.halved:
                self.down = nn.Conv1d(config.features, config.features, 3, stride=2, padding=1)
        if config.halved:
            self.decoder = nn.Sequential(_Backbone(config), Linear(config.width, config.features))
            self.up = nn.Conv1d(config.features, config.features, 3, padding=1)

    def encode_states(self, states: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
        """Concatenated states (N, features) of clips of `lengths` frames to what is quantised, (N, features)."""
        hidden: torch.Tensor = self.encoder[1](self.encoder[0](states, lengths))
        return hidden

    @torch.inference_mode()
    def encode(self, clips: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Standardised w2v-bert states (T, features) of clips to codes (T,) int64 each: the row of nearest cosine.

        Raises `UserError` if the file has no encoding half.
        """
        if not self.config.encodes:
            raise UserError(f"{self.source} has the half of the codec that speaks, and not the encoder that turns "
                            "recordings into codes.",
                            "The model can speak with it. To prepare a dataset, give a codec.pth with the tensors "
                            "encoder.*, down.* and quantizer.quantizers.0.in_project.*.")
        lengths, states = [len(clip) for clip in clips], torch.cat(list(clips))
        # 2.5 halves the rate before it encodes.
        if self.config.halved:
            states = F.gelu(_convolve(self.down, states, lengths))
            lengths = [(length + 1) // 2 for length in lengths]
        quantizer = self._quantizer
        latent = quantizer.in_project(self.encode_states(states, lengths))
        codes = linear(latent, F.normalize(quantizer.codebook.weight)).argmax(-1)
        return list(codes.split(lengths))

    @torch.inference_mode()
    def embed(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes (1, U) to what S2Mel takes of them: the row as it is, projected, (1, U, features).

        At half the rate this is decoded to states, (1, 2 U, features).
        """
        quantizer = self._quantizer
        embedded: torch.Tensor = quantizer.out_project(quantizer.codebook(codes))
        if not self.config.halved:
            return embedded
        decoded = self.decoder[1](self.decoder[0](embedded[0], [embedded.shape[1]]))
        return self.up(decoded.repeat_interleave(2, 0).T[None]).transpose(1, 2)

    @property
    def _quantizer(self) -> _Quantizer:
        quantizer = self.quantizer.get_submodule("quantizers.0")
        assert isinstance(quantizer, _Quantizer)
        return quantizer


def load(path: Path, device: torch.device) -> SemanticCodec:
    """The codec of a published file; at 50 codes a second without its decoder."""
    tensors = weights.read(path, _UNDER)
    config = config_from_shapes({name: tuple(value.shape) for name, value in tensors.items()}, str(path))
    with torch.device("meta"):
        module = SemanticCodec(config, str(path))
    used = {name: value for name, value in tensors.items()
            if (name.startswith(_USED_IN_2_5) if config.halved else not name.startswith(_DECODER))}
    if not config.encodes:
        used = {name: value for name, value in used.items() if name in module.state_dict()}
    weights.load_into(module, used, str(path))
    return module.eval().to(device)


def config_from_shapes(shapes: Mapping[str, tuple[int, ...]], source: str) -> SemanticCodecConfig:
    """The configuration of a file's shapes; `UserError` naming `source` if it is no semantic codec.

    At half the rate the decoding half alone will do. A file with a part of the other half is taken for a damaged one.
    """
    halved = "up.weight" in shapes
    encodes = not halved or any(name.startswith(("encoder.", "down.")) for name in shapes)
    half = "encoder" if encodes else "decoder"
    try:
        width, features, _ = shapes[f"{half}.0.embed.weight"]
        mlp_width = shapes[f"{half}.0.convnext.0.pwconv1.weight"][0]
        codes, code_size = shapes["quantizer.quantizers.0.codebook.weight"]
    except (KeyError, ValueError, IndexError) as error:
        raise UserError(f"{source} is no semantic codec: it has {len(shapes)} tensors, and not the one for {error}.",
                        "Give semantic_codec/model.safetensors of amphion/MaskGCT, or codec.pth of IndexTTS 2.5."
                        ) from error
    layers = len({name.split(".")[3] for name in shapes if name.startswith(f"{half}.0.convnext.")})
    return SemanticCodecConfig(features, width, mlp_width, layers, codes, code_size, halved, encodes)
