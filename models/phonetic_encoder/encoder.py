"""Phonetic features of speech: the convolutions and the first four layers of Whisper base's encoder.

Whisper (Radford et al. 2022, https://github.com/openai/whisper) learned from 680,000 hours of a hundred languages, so a
small network on its features can learn to read a language that it does not know from minutes of speech. The matrices
are stored as int8 with one scale per row and are multiplied in float32 or bfloat16. Positions are sinusoids, so they
are computed. Speech is encoded in windows of its own length, without padding to 30 seconds.
"""

from __future__ import annotations

import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from data.acoustics import audio
from models import weights

FOLDER = Path(__file__).parent
FILES = ("encoder-1.safetensors", "encoder-2.safetensors")
SAMPLE_RATE = 16000  # Hz
FRAME_S = 0.02  # seconds between two frames of the features
WIDTH, LAYERS, _HEADS, _N_MELS = 512, 4, 8, 80
TAPPED_LAYERS = (2, 4)  # whose outputs are the features, beside each other
FEATURES = len(TAPPED_LAYERS) * WIDTH
_N_FFT, _HOP_LENGTH = 400, 160  # samples
_SAMPLES_PER_FRAME = 2 * _HOP_LENGTH
_WINDOW, _CONTEXT = 600, 50  # frames that are encoded at once, and those at either side of it that are dropped
_MAX_WEIGHT = 127
SCALE = ".scale"  # suffix of the name of a matrix's scales


class EncoderLayer(nn.Module):
    """A pre-norm transformer layer; its names are those of `transformers`."""

    def __init__(self) -> None:
        super().__init__()
        self.self_attn_layer_norm, self.final_layer_norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.k_proj = nn.Linear(WIDTH, WIDTH, bias=False)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, F, width) to (B, F, width)."""
        normed = self.self_attn_layer_norm(hidden)
        query, key, value = (layer(normed).unflatten(-1, (_HEADS, -1)).transpose(1, 2)
                             for layer in (self.q_proj, self.k_proj, self.v_proj))
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        hidden = hidden + self.out_proj(attended)
        return hidden + self.fc2(F.gelu(self.fc1(self.final_layer_norm(hidden))))


class PhoneticEncoder(nn.Module):
    """Waveform at 16 kHz to features of 1,024 numbers, 50 a second."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(_N_MELS, WIDTH, 3, padding=1)
        self.conv2 = nn.Conv1d(WIDTH, WIDTH, 3, stride=2, padding=1)
        self.layers = nn.ModuleList([EncoderLayer() for _ in range(LAYERS)])

    @classmethod
    def load(cls, folder: Path = FOLDER) -> PhoneticEncoder:
        """The shipped encoder, frozen, in evaluation mode."""
        tensors: dict[str, torch.Tensor] = {}
        for name in FILES:
            path = folder / name
            if not path.is_file():
                raise UserError(f"{path} is missing.", "Install Lisan again: the file is part of it.")
            tensors |= weights.read(path)
        with torch.device("meta"):  # initial values are not needed
            encoder = cls()
        weights.load_into(encoder, dequantize(tensors), str(folder))
        return encoder.eval().requires_grad_(False)

    def forward(self, mel: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, 80, 2 F) to features (B, F, 1024)."""
        hidden = F.gelu(self.conv2(F.gelu(self.conv1(mel)))).transpose(1, 2)
        hidden = hidden + sinusoids(hidden.shape[1]).to(hidden)
        outputs = []
        for number, layer in enumerate(self.layers, 1):
            hidden = layer(hidden)
            if number in TAPPED_LAYERS:
                outputs.append(hidden)
        return torch.cat(outputs, dim=-1)

    @torch.inference_mode()
    def encode(self, waveform: torch.Tensor) -> torch.Tensor:
        """Waveform (S,) at 16 kHz to features (F, 1024), F = ceil(S / 320)."""
        frames = max(1, math.ceil(len(waveform) / _SAMPLES_PER_FRAME))
        return self.encode_mel(log_mel(F.pad(waveform, (0, frames * _SAMPLES_PER_FRAME - len(waveform)))))

    @torch.inference_mode()
    def encode_mel(self, mel: torch.Tensor) -> torch.Tensor:
        """Whisper's log-mel (80, 2 F) to features (F, 1024); long ones in overlapping windows."""
        mel, frames = mel.to(self.conv1.weight.device), mel.shape[1] // 2
        features = []
        for start in range(0, frames, _WINDOW):
            end = min(start + _WINDOW, frames)
            # A short remainder is encoded with the window before it.
            if frames - end <= _CONTEXT:
                end = frames

            # Frames near the ends of a window lack context, so they are encoded and dropped.
            start_with_context, end_with_context = max(0, start - _CONTEXT), min(frames, end + _CONTEXT)
            window = self(mel[None, :, 2 * start_with_context:2 * end_with_context])[0]
            features.append(window[start - start_with_context:end - start_with_context])
            if end == frames:
                break
        return torch.cat(features).float()


def sinusoids(length: int) -> torch.Tensor:
    """Positions (length, 512): sines, then cosines, of wavelengths from 2 pi to 20,000 pi."""
    half = WIDTH // 2
    frequencies = torch.exp(-math.log(10_000) / (half - 1) * torch.arange(half))
    angles = torch.arange(length)[:, None] * frequencies
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def log_mel(waveform: torch.Tensor, hop_length: int = _HOP_LENGTH) -> torch.Tensor:
    """Whisper's log-mel of (S,) at 16 kHz: (80, S // hop_length); the lowest values are 8 below the highest."""
    # The reflection at the ends needs these samples.
    short = max(0, _N_FFT // 2 + 1 - len(waveform))
    filters = audio.slaney_filters(SAMPLE_RATE, _N_FFT, _N_MELS, SAMPLE_RATE / 2)
    power = audio.mel_power(F.pad(waveform, (0, short))[None], filters, torch.hann_window(_N_FFT), hop_length)[0]
    levels = power[:, :len(waveform) // hop_length].clamp(min=1e-10).log10()
    return (levels.clamp(min=levels.max() - 8) + 4) / 4


def quantize(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Matrices and kernels as int8 with a float16 scale per row, vectors as float16."""
    quantized = {}
    for name, value in tensors.items():
        if value.ndim == 1:
            quantized[name] = value.half()
            continue
        scale = (value.float().flatten(1).abs().amax(1) / _MAX_WEIGHT).half()
        rows = value.float() / scale.float().view(-1, *[1] * (value.ndim - 1))
        quantized |= {name: rows.round().clamp(-_MAX_WEIGHT, _MAX_WEIGHT).to(torch.int8), f"{name}{SCALE}": scale}
    return quantized


def dequantize(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The inverse of `quantize`, in float32."""
    restored = {}
    for name, value in tensors.items():
        if name.endswith(SCALE):
            continue
        if value.dtype == torch.int8:
            scale = tensors[f"{name}{SCALE}"].float()
            restored[name] = value.float() * scale.view(-1, *[1] * (value.ndim - 1))
        else:
            restored[name] = value.float()
    return restored
