"""The built-in speech codec: log-mel frames to one stream of codes and back.

Four mel frames become one code (25 per second at 100 frames per second) by finite scalar quantisation (Mentzer et al.
2023, arXiv:2309.15505). Encoder and decoder are ConvNeXt blocks (Liu et al. 2022) at the code rate. The decoder is
conditioned on a speaker embedding of a reference mel. Mel to waveform is done elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from models.convolutions import full_precision

DECODER_PARTS = ("decoder.", "decoder_in.", "decoder_norm.", "decoder_out.", "speaker_in.", "smooth.")
_LOG_MEL_FLOOR = -9.2103  # log(1e-4), of `audio.log_mel`


@dataclass(frozen=True)
class CodecConfig:
    """Sizes of the codec; `codebook_size` is the product of `levels`."""

    n_mels: int = 80
    frames_per_code: int = 4
    width: int = 256
    encoder_blocks: int = 4
    decoder_blocks: int = 5
    levels: tuple[int, ...] = (5, 5, 5, 5, 5)  # odd, so that zero is a level
    speaker_size: int = 32
    mel_mean: float = -5.0  # The corpus's mean of log-mel.
    mel_std: float = 2.8

    @property
    def codebook_size(self) -> int:
        return math.prod(self.levels)

    @property
    def silence(self) -> float:
        """Normalised value of a silent frame (the floor of the log-mel)."""
        return (_LOG_MEL_FLOOR - self.mel_mean) / self.mel_std


def to_log_mel(frames: torch.Tensor, config: CodecConfig) -> torch.Tensor:
    """Normalised frames (B, F, n_mels) to log-mel (B, n_mels, F)."""
    return frames.transpose(1, 2) * config.mel_std + config.mel_mean


class ConvNeXtBlock(nn.Module):
    """ConvNeXt block over (B, U, width); masked positions are set to zero before the convolution.

    With `speaker_size`, a speaker embedding (B, 1, speaker_size) scales and shifts the normalised states.
    """

    def __init__(self, width: int, kernel_size: int = 7, speaker_size: int = 0) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, kernel_size, padding=kernel_size // 2, groups=width)
        self.norm = nn.LayerNorm(width)
        self.modulation = nn.Linear(speaker_size, 2 * width) if speaker_size else None
        self.expand = nn.Linear(width, 3 * width)
        self.contract = nn.Linear(3 * width, width)

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor, speaker: torch.Tensor | None = None) -> torch.Tensor:
        mixed = self.norm(self.depthwise((hidden * mask).transpose(1, 2)).transpose(1, 2))
        if self.modulation is not None and speaker is not None:
            scale, shift = self.modulation(speaker).chunk(2, -1)
            mixed = mixed * (1 + scale) + shift
        return hidden + self.contract(F.gelu(self.expand(mixed), approximate="tanh"))


class Quantizer(nn.Module):
    """Finite scalar quantisation: each of D dimensions rounds to one of `levels[d]` values."""

    sizes: torch.Tensor
    bases: torch.Tensor

    def __init__(self, levels: tuple[int, ...]) -> None:
        super().__init__()
        sizes = torch.tensor(levels)
        bases = torch.cumprod(torch.cat([torch.ones(1, dtype=torch.long), sizes[:-1]]), 0)
        self.register_buffer("sizes", sizes, persistent=False)
        self.register_buffer("bases", bases, persistent=False)

    def quantize(self, latent: torch.Tensor) -> torch.Tensor:
        """Quantize the latent (B, U, D) to values in [-1, 1], with a straight-through gradient."""
        half = (self.sizes - 1) / 2
        bounded = torch.tanh(latent) * half
        return (bounded + (bounded.round() - bounded).detach()) / half

    def to_codes(self, quantized: torch.Tensor) -> torch.Tensor:
        """Quantized values (B, U, D) to codes (B, U)."""
        half = (self.sizes - 1) / 2
        return ((quantized * half).round().long() + half.long()).mul(self.bases).sum(-1)

    def dequantize(self, codes: torch.Tensor) -> torch.Tensor:
        """Codes (B, U) to quantized values (B, U, D)."""
        half = (self.sizes - 1) / 2
        return ((codes[..., None] // self.bases) % self.sizes - half) / half


class SpeakerEncoder(nn.Module):
    """Normalised mel (B, F, n_mels) and mask (B, F, 1) to a unit vector (B, speaker_size)."""

    def __init__(self, n_mels: int, size: int, width: int = 96) -> None:
        super().__init__()
        self.frame = nn.Sequential(nn.Linear(n_mels, width), nn.GELU(), nn.Linear(width, width), nn.GELU())
        self.out = nn.Linear(2 * width, size)

    def forward(self, mel: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.frame(mel) * mask
        count = mask.sum(1).clamp(min=1)
        mean = hidden.sum(1) / count
        variance = ((hidden - mean[:, None]) * mask).square().sum(1) / count
        return F.normalize(self.out(torch.cat([mean, (variance + 1e-5).sqrt()], -1)), dim=-1)


class Codec(nn.Module):
    """`encode` mel to codes, `decode` codes to mel, `embed_speaker` from a reference mel."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        stacked = config.n_mels * config.frames_per_code
        self.speaker_encoder = SpeakerEncoder(config.n_mels, config.speaker_size)
        self.encoder_in = nn.Linear(stacked, config.width)
        self.encoder = nn.ModuleList([ConvNeXtBlock(config.width) for _ in range(config.encoder_blocks)])
        self.encoder_out = nn.Linear(config.width, len(config.levels))
        self.quantizer = Quantizer(config.levels)
        self.decoder_in = nn.Linear(len(config.levels), config.width)
        self.speaker_in = nn.Linear(config.speaker_size, config.width)
        self.decoder = nn.ModuleList([ConvNeXtBlock(config.width) for _ in range(config.decoder_blocks)])
        self.decoder_norm = nn.LayerNorm(config.width)
        self.decoder_out = nn.Linear(config.width, stacked)
        self.smooth = nn.Sequential(
            nn.Conv1d(config.n_mels, 160, 5, padding=2), nn.GELU(), nn.Conv1d(160, config.n_mels, 5, padding=2)
        )

    def normalise(self, mel: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to normalised frames (B, F', n_mels), F' a multiple of `frames_per_code`."""
        frames = (mel.transpose(1, 2) - self.config.mel_mean) / self.config.mel_std
        short = -frames.shape[1] % self.config.frames_per_code
        return F.pad(frames, (0, 0, 0, short), value=self.config.silence)

    def encode_latent(self, frames: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Normalised frames (B, F', n_mels), code mask (B, U, 1) to the latent (B, U, D)."""
        batch, length, _ = frames.shape
        hidden = self.encoder_in(frames.reshape(batch, length // self.config.frames_per_code, -1))
        for block in self.encoder:
            hidden = block(hidden, mask)
        return self.encoder_out(hidden)

    def decode_hidden(self, quantized: torch.Tensor, mask: torch.Tensor,
                      speaker_embedding: torch.Tensor) -> torch.Tensor:
        """Quantized values (B, U, D) to decoder states (B, U, width)."""
        hidden = self.decoder_in(quantized) + self.speaker_in(speaker_embedding)[:, None]
        for block in self.decoder:
            hidden = block(hidden, mask)
        return self.decoder_norm(hidden)

    def predict_frames(self, hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Decoder states (B, U, width) to normalised frames (B, F', n_mels)."""
        batch, length, _ = hidden.shape
        frames = self.decoder_out(hidden).reshape(batch, length * self.config.frames_per_code, -1)
        frame_mask = mask.repeat_interleave(self.config.frames_per_code, 1)
        return frames + self.smooth((frames * frame_mask).transpose(1, 2)).transpose(1, 2)

    def decode_frames(self, quantized: torch.Tensor, mask: torch.Tensor,
                      speaker_embedding: torch.Tensor) -> torch.Tensor:
        """Quantized values (B, U, D), mask (B, U, 1) and speaker (B, speaker_size) to frames (B, F', n_mels)."""
        return self.predict_frames(self.decode_hidden(quantized, mask, speaker_embedding), mask)

    def decoder_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and weights of the decoder, which a run may train on its own recordings."""
        return ((name, value) for name, value in self.named_parameters() if name.startswith(DECODER_PARTS))

    @torch.inference_mode()
    def encode(self, mel: torch.Tensor, frame_lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to codes (B, U), U = ceil(F / frames_per_code).

        Frames past `frame_lengths` (B,) are replaced by silence; codes past the length are masked.
        """
        frames = self.normalise(mel)
        mask = frames.new_ones(frames.shape[0], frames.shape[1] // self.config.frames_per_code, 1)
        if frame_lengths is not None:
            inside = torch.arange(frames.shape[1], device=mel.device)[None] < frame_lengths[:, None]
            frames = torch.where(inside[..., None], frames, torch.full_like(frames, self.config.silence))
            mask = inside[:, :: self.config.frames_per_code, None].to(frames.dtype)
        with full_precision():
            return self.quantizer.to_codes(self.quantizer.quantize(self.encode_latent(frames, mask)))

    @torch.inference_mode()
    def decode(self, codes: torch.Tensor, speaker_embedding: torch.Tensor) -> torch.Tensor:
        """Codes (B, U) and speaker embedding (B, speaker_size) to log-mel (B, n_mels, frames_per_code * U)."""
        mask = torch.ones(*codes.shape, 1, device=codes.device)
        with full_precision():
            frames = self.decode_frames(self.quantizer.dequantize(codes), mask, speaker_embedding)
        return to_log_mel(frames, self.config)

    @torch.inference_mode()
    def embed_speaker(self, mel: torch.Tensor) -> torch.Tensor:
        """Reference log-mel (B, n_mels, F) to a unit vector (B, speaker_size)."""
        frames = self.normalise(mel)
        return self.speaker_encoder(frames, frames.new_ones(*frames.shape[:2], 1))
