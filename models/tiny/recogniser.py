"""The built-in recogniser, which measures intelligibility.

Connectionist temporal classification (Graves et al. 2006) over convolutions and a bidirectional GRU, conditioned on the
language. It outputs letters (Amharic in Latin spelling, see `data.languages.latin`) and, for sentences whose phonemes
are known, phonemes. Word spaces are not scored: nobody pronounces them. It knows only the synthetic voices of
its training.
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from data.languages.latin import romanise


@dataclass(frozen=True)
class RecogniserConfig:
    """The symbols of the recogniser; symbol i + 1 of a head is `letters[i]` or `phonemes[i]`, 0 is blank."""

    languages: tuple[str, ...]
    letters: tuple[str, ...]
    phonemes: tuple[str, ...]
    n_mels: int = 80
    width: int = 192
    mel_mean: float = -5.0
    mel_std: float = 2.8


def letters_of(text: str, language: str) -> str:
    """The letters of `text` as the recogniser spells them: no spaces, no case; Amharic romanised."""
    text = unicodedata.normalize("NFC", text).lower()
    if language == "am":
        return "".join(c for c in romanise(text) if c.isalpha() or c == "'")
    return "".join(c for c in text if c.isalpha())


class RecogniserNetwork(nn.Module):
    """Log-mel (B, n_mels, F) to letter and phoneme logits at half the frame rate."""

    def __init__(self, config: RecogniserConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.language = nn.Embedding(len(config.languages), config.n_mels)
        sizes = ((config.n_mels, 2), (width, 1), (width, 1))
        self.convolutions = nn.ModuleList([nn.Conv1d(n, width, 5, stride, padding=2) for n, stride in sizes])
        self.norms = nn.ModuleList([nn.LayerNorm(width) for _ in sizes])
        self.gru = nn.GRU(width, width, num_layers=2, batch_first=True, bidirectional=True, dropout=0.1)
        self.letter_head = nn.Linear(2 * width, len(config.letters) + 1)
        self.phoneme_head = nn.Linear(2 * width, len(config.phonemes) + 1)

    def forward(self, mel: torch.Tensor, language: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mel (B, n_mels, F), language ids (B,) to logits (B, F / 2, letters), (B, F / 2, phonemes)."""
        hidden = (mel - self.config.mel_mean) / self.config.mel_std + self.language(language)[:, :, None]
        for index, (convolution, norm) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            mixed = F.gelu(norm(convolution(hidden).transpose(1, 2)).transpose(1, 2))
            hidden = mixed if index == 0 else hidden + mixed
        states = self.gru(hidden.transpose(1, 2))[0]
        return self.letter_head(states), self.phoneme_head(states)

    @torch.inference_mode()
    def log_probabilities(self, mel: torch.Tensor, language: str) -> torch.Tensor:
        """Log-mel (B, n_mels, F) of one language to letters' log-probabilities (B, F / 2, letters + 1)."""
        ids = torch.full((len(mel),), self.config.languages.index(language), device=mel.device)
        return self(mel, ids)[0].log_softmax(-1)

    @torch.inference_mode()
    def letters(self, mel: torch.Tensor, language: str) -> str:
        """The transcript of one clip's log-mel (n_mels, F) in letters."""
        return "".join(self._read(mel, language, 0, self.config.letters))

    @torch.inference_mode()
    def phonemes(self, mel: torch.Tensor, language: str) -> list[str]:
        """The transcript of one clip's log-mel (n_mels, F) in phonemes."""
        return self._read(mel, language, 1, self.config.phonemes)

    def _read(self, mel: torch.Tensor, language: str, head: int, symbols: tuple[str, ...]) -> list[str]:
        ids = torch.tensor([self.config.languages.index(language)], device=mel.device)
        best = self(mel[None], ids)[head][0].argmax(-1).tolist()
        return [symbols[c - 1] for i, c in enumerate(best) if c and (i == 0 or best[i - 1] != c)]
