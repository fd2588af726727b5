"""A small network that reads phonetic features as letters, by CTC (Graves et al. 2006).

Two frames of features enter a linear layer together; ConvNeXt blocks (Liu et al. 2022) follow at 25 frames a second,
and a linear layer that writes two frames of letters. That takes half the time of a head at 50 frames a second.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from models import weights
from models.phonetic_encoder.encoder import FEATURES

STACKED = 2  # frames of features that enter together


@dataclass(frozen=True)
class CTCHeadConfig:
    """Sizes of the head; label 0 is the blank, label i + 1 is letter i.

    A head of several `languages` has a vector for each of them, which is added to the first layer's output.
    """

    letters: int
    width: int = 256
    blocks: int = 3
    kernel: int = 9
    dropout: float = 0.1
    languages: int = 1


class ConvNeXtBlock(nn.Module):
    """Depthwise convolution over time, then a residual feed-forward layer."""

    def __init__(self, config: CTCHeadConfig) -> None:
        super().__init__()
        width, self.padding = config.width, config.kernel // 2
        self.convolution = nn.Conv2d(width, width, (1, config.kernel), padding=(0, self.padding), groups=width)
        self.norm = nn.LayerNorm(width)
        self.expand, self.project = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """(B, F, width) to (B, F, width)."""
        # In float32 with the channels last it takes a third of the time of a convolution of one dimension on a CPU.
        with torch.autocast(hidden.device.type, enabled=False):
            rows = hidden.float().transpose(1, 2)[:, :, None].contiguous(memory_format=torch.channels_last)
            mixed = self.convolution(rows)[:, :, 0].transpose(1, 2)
        return hidden + self.dropout(self.project(F.gelu(self.expand(self.norm(mixed)))))


class CTCHead(nn.Module):
    """Features (B, F, 1024) to logits (B, F, letters + 1)."""

    mean: torch.Tensor
    std: torch.Tensor

    def __init__(self, config: CTCHeadConfig) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("mean", torch.zeros(FEATURES))
        self.register_buffer("std", torch.ones(FEATURES))
        self.input = nn.Linear(STACKED * FEATURES, config.width)
        self.language = nn.Embedding(config.languages, config.width) if config.languages > 1 else None
        self.blocks = nn.ModuleList([ConvNeXtBlock(config) for _ in range(config.blocks)])
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.output = nn.Linear(config.width, STACKED * (config.letters + 1))

    @classmethod
    def load(cls, path: Path, letters: int) -> CTCHead:
        """The head in a file, in evaluation mode; `UserError` if it is damaged or has another number of letters."""
        head = cls(CTCHeadConfig(letters))
        weights.load_into(head, weights.read(path), str(path))
        return head.eval()

    def standardise(self, features: torch.Tensor) -> torch.Tensor:
        """Features (..., 1024) with the mean 0 and the standard deviation 1 over the training split."""
        return (features - self.mean) / self.std

    def forward(self, standardised: torch.Tensor, languages: torch.Tensor | None = None) -> torch.Tensor:
        """Standardised features (B, F, 1024), ids of their languages (B,), to logits (B, F, letters + 1)."""
        batch, frames, _ = standardised.shape
        padded = F.pad(standardised, (0, 0, 0, -frames % STACKED))
        hidden = self.input(padded.reshape(batch, padded.shape[1] // STACKED, -1))
        if self.language is not None:
            assert languages is not None
            hidden = hidden + self.language(languages)[:, None]
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.output(self.dropout(self.norm(hidden)))
        return logits.reshape(batch, padded.shape[1], -1)[:, :frames]

    @torch.inference_mode()
    def log_probabilities(self, features: torch.Tensor, language: int = 0) -> torch.Tensor:
        """Log-probabilities (F, letters + 1) on the CPU of features (F, 1024) in a language."""
        rows = self.standardise(features.float().to(self.mean.device))
        return self(rows[None], torch.tensor([language], device=rows.device))[0].float().log_softmax(-1).cpu()
