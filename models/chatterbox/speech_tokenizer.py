"""Speech to codes: 25 a second, 6561 of them, from 16 kHz sound.

The tokenizer of CosyVoice 2 ("S3TokenizerV2"; Du et al. 2024, arXiv:2412.10117): log-mel, two convolutions that halve
the rate each, six transformer blocks whose values also pass through a depthwise convolution over time (an FSMN memory,
Zhang et al. 2018), and finite scalar quantisation (Mentzer et al. 2023) to eight digits of three levels. State-dict
keys are those of `tokenizer.*` in the published S3Gen files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from data.acoustics import audio
from models.matmul_backends import Linear

SAMPLE_RATE = 16000  # Hz
N_FFT, HOP_LENGTH = 400, 160  # samples: 100 frames a second
INPUT_FRAMES_PER_CODE = 4
LEVELS, DIGITS = 3, 8  # LEVELS ** DIGITS = 6561 codes
WINDOW, OVERLAP = 3000, 400  # frames; longer clips are encoded in windows of 30 s that share 4 s
FRAMES_PER_BATCH = 8 * WINDOW  # padding included; bounds the memory of `encode`
MAX_PADDING = 0.1  # share of a row in a batch: padding costs as much time as sound


@dataclass(frozen=True)
class SpeechTokenizerConfig:
    """Sizes of the encoder; the defaults are the published ones."""

    n_mels: int = 128
    width: int = 1280
    heads: int = 20
    layers: int = 6
    fsmn_kernel_size: int = 31  # codes that the depthwise convolution spans


class SpeechTokenizer(nn.Module):
    """Waveform -> log-mel -> states -> codes."""

    _mel_filters: torch.Tensor
    window: torch.Tensor

    def __init__(self, config: SpeechTokenizerConfig | None = None) -> None:
        super().__init__()
        config = config or SpeechTokenizerConfig()
        # Some published files have these two, with exactly these values, and some do not.
        self.register_buffer("_mel_filters", audio.slaney_filters(SAMPLE_RATE, N_FFT, config.n_mels, 8000.0).clone())
        self.register_buffer("window", torch.hann_window(N_FFT))
        self.encoder = _Encoder(config)
        self.quantizer = _Quantizer(config.width)

    @torch.inference_mode()
    def log_mel(self, waveforms: torch.Tensor) -> torch.Tensor:
        """Waveforms (B, S) at 16 kHz to log-mel (B, n_mels, F), F = S // 160, as Whisper scales it.

        The logarithm is to base 10 and cut 8 below the largest value of the same row.
        """
        for row in waveforms:
            audio.require_samples(row, N_FFT // 2 + 1, SAMPLE_RATE)
        # The power's last frame, centred on the end, is left out.
        mel = audio.mel_power(waveforms, self._mel_filters, self.window, HOP_LENGTH)[..., :-1]
        mel = mel.clamp_(min=1e-10).log10_()
        return torch.maximum(mel, mel.amax((1, 2), keepdim=True) - 8).add_(4).div_(4)

    @torch.inference_mode()
    def hidden(self, mel: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) with `lengths` (B,) frames to states (B, ceil(F / 4), width), zero past each length.

        One pass with full attention: memory and time grow with F squared.
        """
        states: torch.Tensor = self.encoder(mel, lengths)
        return states

    @torch.inference_mode()
    def codes(self, mel: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """Log-mel (B, n_mels, F) with `lengths` (B,) frames to codes (B, ceil(F / 4)) int64, zero past each length."""
        keep = _mask(_halved(_halved(lengths)), -(-mel.shape[-1] // INPUT_FRAMES_PER_CODE))
        codes: torch.Tensor = self.quantizer(self.hidden(mel, lengths))
        return codes * keep

    @torch.inference_mode()
    def encode(self, waveforms: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Waveforms (S,) at 16 kHz to codes (U,) int64 each, U = ceil((S // 160) / 4).

        Pieces of similar length are batched, padding masked, so that a clip's codes do not depend on the other clips. A
        clip of more than 30 s is cut into windows; of the 4 s that two windows share, each gives the nearer half.
        """
        mels = [self.log_mel(waveform[None].to(self.window.device))[0] for waveform in waveforms]
        pieces: list[_Piece] = []
        for clip, mel in enumerate(mels):
            pieces += _windows(clip, mel.shape[1])

        encoded: dict[_Piece, torch.Tensor] = {}
        for batch in _batches(pieces):
            lengths = torch.tensor([piece.frames for piece in batch], device=self.window.device)
            # Pieces are padded to the longest of their batch.
            mel = mels[0].new_zeros(len(batch), mels[0].shape[0], int(lengths.max()))
            for row, piece in zip(mel, batch, strict=True):
                row[:, :piece.frames] = mels[piece.clip][:, piece.start:piece.start + piece.frames]
            for piece, codes in zip(batch, self.codes(mel, lengths), strict=True):
                encoded[piece] = codes[piece.first_code:piece.last_code]

        # The codes of a clip's windows are joined.
        codes_of: list[list[torch.Tensor]] = [[] for _ in mels]
        for piece in pieces:
            codes_of[piece.clip].append(encoded[piece])
        return list(map(torch.cat, codes_of))


@dataclass(frozen=True)
class _Piece:
    """Frames [start, start + frames) of a clip, and the range of their codes to use, [first_code, last_code)."""

    clip: int
    start: int
    frames: int
    first_code: int
    last_code: int


def _windows(clip: int, frames: int) -> list[_Piece]:
    """The pieces of a clip of `frames`: windows of WINDOW, one every WINDOW - OVERLAP, until one reaches the end.

    The published code starts one more window at the last OVERLAP frames, but drops its codes and some of those before
    it: up to 2 s at the end of the clip are lost. Elsewhere the codes are the same.
    """
    stride, half = WINDOW - OVERLAP, OVERLAP // 2 // INPUT_FRAMES_PER_CODE
    starts = range(0, max(frames - OVERLAP, 1), stride)
    pieces = []
    for start in starts:
        length = min(WINDOW, frames - start)
        dropped_at_end = half if start + length < frames else 0
        last = -(-length // INPUT_FRAMES_PER_CODE) - dropped_at_end
        pieces.append(_Piece(clip, start, length, half if start > 0 else 0, last))
    return pieces


def _batches(pieces: list[_Piece]) -> list[list[_Piece]]:
    """Pieces of similar length together, at most FRAMES_PER_BATCH frames a batch once padded, longest first."""
    batches: list[list[_Piece]] = []
    longest = 0
    for piece in sorted(pieces, key=lambda piece: -piece.frames):
        if (not batches or piece.frames < (1 - MAX_PADDING) * longest
                or (len(batches[-1]) + 1) * longest > FRAMES_PER_BATCH):
            batches.append([])
            longest = piece.frames
        batches[-1].append(piece)
    return batches


def _mask(lengths: torch.Tensor, size: int) -> torch.Tensor:
    """(B, size) bool, True within each of `lengths` (B,)."""
    return torch.arange(size, device=lengths.device) < lengths[:, None]


def _halved(lengths: torch.Tensor) -> torch.Tensor:
    """Lengths after a convolution of kernel 3, stride 2 and padding 1."""
    return (lengths + 1) // 2


class _Encoder(nn.Module):
    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        self.conv1 = nn.Conv1d(config.n_mels, config.width, 3, stride=2, padding=1)
        self.conv2 = nn.Conv1d(config.width, config.width, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList(_Block(config) for _ in range(config.layers))
        self.head_width = config.width // config.heads

    def forward(self, mel: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        """(B, n_mels, F) to (B, ceil(F / 4), width)."""
        # Without padding, attention is faster without a mask.
        padded = bool((lengths < mel.shape[-1]).any())
        x = mel
        for conv in (self.conv1, self.conv2):
            # Padding is zeroed before each convolution, like the end of a clip.
            if padded:
                x = x * _mask(lengths, x.shape[-1])[:, None]
            x = F.gelu(conv(x))  # (B, width, half the frames)
            lengths = _halved(lengths)
        x = x.transpose(1, 2)  # (B, U, width)
        keep = _mask(lengths, x.shape[1]) if padded else None
        rotary = _rotary(x.shape[1], self.head_width, x)
        for block in self.blocks:
            x = block(x, rotary, keep)
        return x if keep is None else x * keep[..., None]


class _Block(nn.Module):
    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        width = config.width
        self.attn = _Attention(config)
        self.attn_ln = nn.LayerNorm(width)
        self.mlp = nn.Sequential(Linear(width, 4 * width), nn.GELU(), Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, rotary: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        x = x + self.attn(self.attn_ln(x), rotary, keep)
        return x + self.mlp(self.mlp_ln(x))


class _Attention(nn.Module):
    """Self-attention with rotary positions, plus a memory: the values and their depthwise convolution over time."""

    def __init__(self, config: SpeechTokenizerConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.query = Linear(width, width)
        self.key = Linear(width, width, bias=False)
        self.value = Linear(width, width)
        self.out = Linear(width, width)
        self.fsmn_block = nn.Conv1d(width, width, config.fsmn_kernel_size, groups=width, bias=False)

    def forward(self, x: torch.Tensor, rotary: torch.Tensor, keep: torch.Tensor | None) -> torch.Tensor:
        query, key, value = self.query(x), self.key(x), self.value(x)  # (B, U, width)
        attended = F.scaled_dot_product_attention(
            _rotate(self._split(query), rotary), _rotate(self._split(key), rotary), self._split(value),
            attn_mask=None if keep is None else keep[:, None, None],  # (B, 1, 1, U)
        )  # (B, H, U, width / H)
        projected: torch.Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return projected + self._memory(value if keep is None else value * keep[..., None])

    def _memory(self, value: torch.Tensor) -> torch.Tensor:
        """(B, U, width) plus its depthwise convolution over time.

        Computed on an image of height 1 with channels last, the memory layout of `value`: on a CPU 20 times as fast as
        `fsmn_block(value.transpose(1, 2))`, which was a tenth of the encoder's time.
        """
        weight = self.fsmn_block.weight[:, :, None]  # (width, 1, 1, fsmn_kernel_size)
        image = value[:, None].permute(0, 3, 1, 2)  # (B, width, 1, U)
        around = F.conv2d(image, weight, padding=(0, weight.shape[-1] // 2), groups=len(weight))
        return value + around[:, :, 0].transpose(1, 2)

    def _split(self, x: torch.Tensor) -> torch.Tensor:
        """(B, U, width) to (B, H, U, width / H)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


def _rotary(length: int, width: int, like: torch.Tensor) -> torch.Tensor:
    """Cosines and sines of positions 0 to `length` - 1, (2, length, width), base 10000 (Su et al. 2021)."""
    frequencies = 10000.0 ** -(torch.arange(0, width, 2, device=like.device).float() / width)
    angles = torch.outer(torch.arange(length, device=like.device).float(), frequencies).repeat(1, 2)
    return torch.stack([angles.cos(), angles.sin()]).to(like.dtype)


def _rotate(x: torch.Tensor, rotary: torch.Tensor) -> torch.Tensor:
    first_half, second_half = x.chunk(2, dim=-1)
    return x * rotary[0] + torch.cat([-second_half, first_half], dim=-1) * rotary[1]


class _Quantizer(nn.Module):
    """States (..., width) to codes (...): eight numbers in (-1, 1), each rounded to one of three levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._codebook = nn.ModuleDict({"project_down": Linear(width, DIGITS)})

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        # 0.999 is in the published model: the outer bounds are never reached.
        digits = (self._codebook["project_down"](states).float().tanh() * 0.999).round() + LEVELS // 2
        powers = LEVELS ** torch.arange(DIGITS, device=states.device)
        return (digits.long() * powers).sum(-1)
