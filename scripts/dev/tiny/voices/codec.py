"""A codec for the voices of people: log-mel frames to one stream of codes and back.

Four mel frames become one code (25 per second at 100 frames per second) by finite scalar quantisation (Mentzer et al.
2023, arXiv:2309.15505). The encoder is a stack of ConvNeXt blocks (Liu et al. 2022) at the code rate, on phonetic
states and prosody (`ContentEncoder`) or, as in the weights of this folder, on the mel. The decoder has such blocks at
the code rate, then at the frame rate; a speaker embedding of a reference scales and shifts each of them (FiLM, Perez et
al. 2018, arXiv:1709.07871). Mel to waveform is done by `models.tiny.vocoder`.

It differs from the codec that ships (`models.tiny.codec`) in its data, its losses and its speaker path;
docs/experiments.md says what it reaches. Encoder and decoder are two files, because a run may train its own decoder on
the recordings of one reader: codes keep their meaning as long as the encoder stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from data.acoustics.audio import MelSettings, log_mel
from models.convolutions import full_precision
from models.phonetic_encoder.encoder import PhoneticEncoder
from models.phonetic_encoder.encoder import log_mel as whisper_log_mel
from models.tiny import codec as shipped
from models.tiny.codec import ConvNeXtBlock, Quantizer, to_log_mel
from models.tiny.model_folder import load_config, load_module, save_module
from models.tiny.vocoder import MelVocoder, MelVocoderConfig
from scripts.dev.tiny.voices.features import FEATURES, FRAMES_PER_CODE, SpeechFeatures

WEIGHTS = Path(__file__).parent / "weights"
ENCODER, DECODER = "codec_encoder.safetensors", "codec_decoder.safetensors"
CRITIC = "critic.safetensors"  # discriminator of the training
LEVEL = 0.1  # root mean square of the speech that the codec hears and makes, -20 dB below full scale
_QUIET = 10 ** (-35 / 10)  # power below the loudest frames at which a frame is a pause, for the level


@dataclass(frozen=True)
class CodecConfig(shipped.CodecConfig):
    """Sizes of the codec, which is larger than the one that ships."""

    width: int = 288  # at the code rate
    encoder_blocks: int = 6
    decoder_blocks: int = 4
    frame_width: int = 192  # of the decoder at the frame rate
    frame_blocks: int = 4
    speaker_size: int = 160
    speaker_width: int = 160
    phonetic: bool = False  # The encoder takes `SpeechFeatures` instead of the mel.


def normalise_level(waveform: torch.Tensor, frame_length: int = 400) -> torch.Tensor:
    """Scale waveform (S,) so that its speech has the root mean square `LEVEL`; silence is returned as it is.

    Speech is every frame at most 35 dB below the loudest tenth of the frames, so pauses do not count.
    """
    frames = F.pad(waveform, (0, -len(waveform) % frame_length)).view(-1, frame_length)
    powers = frames.square().mean(1)
    loudest = torch.quantile(powers, 0.9)
    speech = powers[powers >= loudest * _QUIET]
    power = speech.mean() if speech.numel() else loudest
    return waveform * (LEVEL / power.sqrt()) if power > 1e-12 else waveform


class SpeakerEncoder(nn.Module):
    """Normalised mel (B, F, n_mels) and mask (B, F, 1) to a unit vector (B, speaker_size)."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        width = config.speaker_width
        self.frame_in = nn.Linear(config.n_mels, width)
        self.blocks = nn.ModuleList([ConvNeXtBlock(width), ConvNeXtBlock(width)])
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(2 * width, config.speaker_size)

    def forward(self, mel: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.frame_in(mel)
        for block in self.blocks:
            hidden = block(hidden, mask)

        # Mean and standard deviation over time do not depend on the order of the words.
        hidden = self.norm(hidden).float() * mask
        count = mask.sum(1).clamp(min=1)
        mean = hidden.sum(1) / count
        variance = ((hidden - mean[:, None]) * mask).square().sum(1) / count
        return F.normalize(self.out(torch.cat([mean, (variance + 1e-5).sqrt()], -1)).float(), dim=-1)


class CodecEncoder(nn.Module):
    """Normalised mel frames to quantized codes, and to a speaker embedding."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer = Quantizer(config.levels)
        self.speaker_encoder = SpeakerEncoder(config)
        self.frames_in = nn.Linear(config.n_mels * config.frames_per_code, config.width)
        self.blocks = nn.ModuleList([ConvNeXtBlock(config.width) for _ in range(config.encoder_blocks)])
        self.norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, len(config.levels))

    def forward(self, frames: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Normalised frames (B, F', n_mels), code mask (B, U, 1) to quantized values (B, U, D)."""
        batch, length, _ = frames.shape
        hidden = self.frames_in(frames.reshape(batch, length // self.config.frames_per_code, -1))
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.quantizer.quantize(self.out(self.norm(hidden)).float())


class ContentEncoder(nn.Module):
    """Standardised `SpeechFeatures` to quantized codes, and mel frames to a speaker embedding."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.quantizer = Quantizer(config.levels)
        self.speaker_encoder = SpeakerEncoder(config)
        self.vocoder = MelVocoder(MelVocoderConfig())  # a copy for its pitch, so that a new vocoder changes no code
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("std", torch.ones(FEATURES))
        self.features_in = nn.Linear(FEATURES, config.width)
        self.blocks = nn.ModuleList([ConvNeXtBlock(config.width) for _ in range(config.encoder_blocks)])
        self.norm = nn.LayerNorm(config.width)
        self.out = nn.Linear(config.width, len(config.levels))

    def content_parameters(self) -> Iterator[nn.Parameter]:
        """The weights that make codes of features."""
        for module in (self.features_in, self.blocks, self.norm, self.out):
            yield from module.parameters()

    def standardise(self, features: torch.Tensor) -> torch.Tensor:
        """Features (..., FEATURES) with the mean 0 and the standard deviation 1 over the training's recordings."""
        return (features - self.mean) / self.std

    def forward(self, features: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Standardised features (B, U, FEATURES), mask (B, U, 1) to quantized values (B, U, D)."""
        hidden = self.features_in(features)
        for block in self.blocks:
            hidden = block(hidden, mask)
        return self.quantizer.quantize(self.out(self.norm(hidden)).float())


class CodecDecoder(nn.Module):
    """Quantized codes and a speaker embedding to normalised mel frames."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.codes_in = nn.Linear(len(config.levels), config.width)
        self.blocks = nn.ModuleList([ConvNeXtBlock(config.width, speaker_size=config.speaker_size)
                                     for _ in range(config.decoder_blocks)])
        self.up = nn.Linear(config.width, config.frame_width * config.frames_per_code)
        self.frame_blocks = nn.ModuleList([ConvNeXtBlock(config.frame_width, speaker_size=config.speaker_size)
                                           for _ in range(config.frame_blocks)])
        self.norm = nn.LayerNorm(config.frame_width)
        self.out = nn.Linear(config.frame_width, config.n_mels)

    def forward(self, quantized: torch.Tensor, mask: torch.Tensor, speaker_embedding: torch.Tensor) -> torch.Tensor:
        """Quantized values (B, U, D), mask (B, U, 1), speaker (B, speaker_size) to frames (B, F', n_mels)."""
        batch, length, _ = quantized.shape
        speaker = speaker_embedding[:, None] * math.sqrt(self.config.speaker_size)  # about one in each dimension
        hidden = self.codes_in(quantized)
        for block in self.blocks:
            hidden = block(hidden, mask, speaker)

        frames = self.up(hidden).reshape(batch, length * self.config.frames_per_code, -1)
        frame_mask = mask.repeat_interleave(self.config.frames_per_code, 1)
        for block in self.frame_blocks:
            frames = block(frames, frame_mask, speaker)
        return self.out(self.norm(frames)).float()


class Codec(nn.Module):
    """`encode` mel to codes, `decode` codes to mel, `embed_speaker` from a reference mel."""

    def __init__(self, config: CodecConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder: CodecEncoder | ContentEncoder
        self.encoder = ContentEncoder(config) if config.phonetic else CodecEncoder(config)
        self.extractor = (SpeechFeatures(PhoneticEncoder.load(), self.encoder.vocoder)
                         if isinstance(self.encoder, ContentEncoder) else None)
        self.decoder = CodecDecoder(config)

    @classmethod
    def load(cls, folder: Path = WEIGHTS) -> Codec:
        """The codec in `folder`, in evaluation mode."""
        codec = cls(load_config(folder / ENCODER, CodecConfig))
        load_module(folder / ENCODER, codec.encoder)
        load_module(folder / DECODER, codec.decoder)
        return codec.eval()

    def save(self, folder: Path) -> None:
        """Write encoder and decoder in half precision into `folder`."""
        save_module(folder / ENCODER, self.encoder, self.config)
        save_module(folder / DECODER, self.decoder, self.config)

    @property
    def quantizer(self) -> Quantizer:
        return self.encoder.quantizer

    def normalise(self, mel: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to normalised frames (B, F', n_mels), F' a multiple of `frames_per_code`."""
        frames = (mel.transpose(1, 2) - self.config.mel_mean) / self.config.mel_std
        short = -frames.shape[1] % self.config.frames_per_code
        return F.pad(frames, (0, 0, 0, short), value=self.config.silence)

    def decode_frames(self, quantized: torch.Tensor, mask: torch.Tensor,
                      speaker_embedding: torch.Tensor) -> torch.Tensor:
        """Quantized values (B, U, D), mask (B, U, 1) and speaker (B, speaker_size) to frames (B, F', n_mels)."""
        return self.decoder(quantized, mask, speaker_embedding)

    def decoder_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Names and weights of the decoder."""
        return ((f"decoder.{name}", value) for name, value in self.decoder.named_parameters())

    @torch.inference_mode()
    def encode(self, mel: torch.Tensor, frame_lengths: torch.Tensor | None = None) -> torch.Tensor:
        """Log-mel (B, n_mels, F) to codes (B, U), U = ceil(F / frames_per_code).

        Frames past `frame_lengths` (B,) are replaced by silence; codes past the length are masked.
        """
        assert isinstance(self.encoder, CodecEncoder)
        frames = self.normalise(mel)
        mask = frames.new_ones(frames.shape[0], frames.shape[1] // self.config.frames_per_code, 1)
        if frame_lengths is not None:
            inside = torch.arange(frames.shape[1], device=mel.device)[None] < frame_lengths[:, None]
            frames = torch.where(inside[..., None], frames, torch.full_like(frames, self.config.silence))
            mask = inside[:, :: self.config.frames_per_code, None].to(frames.dtype)
        with full_precision():
            return self.quantizer.to_codes(self.encoder(frames, mask))

    @torch.inference_mode()
    def encode_waveform(self, waveform: torch.Tensor) -> torch.Tensor:
        """Waveform (S,) at 16 kHz, as loud as `normalise_level` makes it, to codes (1, U), U = ceil(S / 640)."""
        if self.extractor is None:
            return self.encode(log_mel(waveform[None], MelSettings()))
        features = self.features(waveform)[None]
        with full_precision():
            return self.quantizer.to_codes(self.encoder(features, features.new_ones(1, features.shape[1], 1)))

    def features(self, waveform: torch.Tensor) -> torch.Tensor:
        """Standardised features (U, FEATURES) of a waveform (S,), for a codec that hears them."""
        assert self.extractor is not None
        assert isinstance(self.encoder, ContentEncoder)
        settings = MelSettings()
        padded = F.pad(waveform, (0, -len(waveform) % (FRAMES_PER_CODE * settings.hop_length)))
        mel = log_mel(padded[None], settings)[0, :, : len(padded) // settings.hop_length]
        return self.encoder.standardise(self.extractor(mel, whisper_log_mel(padded))[0])

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
        with full_precision():
            return self.encoder.speaker_encoder(frames, frames.new_ones(*frames.shape[:2], 1))
