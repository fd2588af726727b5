"""The built-in recogniser, which measures intelligibility.

It outputs letters (Amharic in Latin spelling, see `data.languages.latin`) by connectionist temporal classification
(Graves et al. 2006), conditioned on the language. Word spaces are not scored: nobody pronounces them.

Convolutions and a bidirectional GRU on a mel, which also output phonemes for sentences whose phonemes are known. It
knows only the synthetic voices of its training; `scripts.dev.tiny.recogniser` trains one for people
(docs/experiments.md).
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from config.errors import UserError
from data.acoustics import audio
from data.languages.latin import romanise
from models.base import RecognitionScore
from models.tiny.model_folder import load_config, load_module


@dataclass(frozen=True)
class RecogniserConfig:
    """The symbols of the network; symbol i + 1 of a head is `letters[i]` or `phonemes[i]`, 0 is blank."""

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
    def log_probabilities(self, waveform: torch.Tensor, language: int) -> torch.Tensor:
        """Waveform (S,) at 16 kHz to letters' log-probabilities (F, letters + 1)."""
        mel = audio.log_mel(waveform[None], audio.MelSettings())
        return self(mel, torch.tensor([language]))[0][0].log_softmax(-1)

    @torch.inference_mode()
    def letters(self, mel: torch.Tensor, language: str) -> str:
        """The transcript of one clip's log-mel (n_mels, F) in letters."""
        return "".join(self._read(mel, language, 0, self.config.letters))

    @torch.inference_mode()
    def phonemes(self, mel: torch.Tensor, language: str) -> list[str]:
        """The transcript of one clip's log-mel (n_mels, F) in phonemes."""
        return self._read(mel, language, 1, self.config.phonemes)

    def _read(self, mel: torch.Tensor, language: str, head: int, symbols: tuple[str, ...]) -> list[str]:
        best = self(mel[None], torch.tensor([self.config.languages.index(language)]))[head][0].argmax(-1)
        return [symbols[label - 1] for label in best.unique_consecutive().tolist() if label]


class TinyRecogniser:
    """See `models.base.CTCRecogniser`; the transcript is the likeliest path."""

    sample_rate = audio.MelSettings.sample_rate
    frame_s = 2 * audio.MelSettings.hop_length / audio.MelSettings.sample_rate

    def __init__(self, network: RecogniserNetwork) -> None:
        self.network = network
        self.languages, self.letters = network.config.languages, network.config.letters

    @classmethod
    def load(cls, path: Path) -> TinyRecogniser:
        """The recogniser in a file; `UserError` if it is damaged."""
        return cls(load_module(path, RecogniserNetwork(load_config(path, RecogniserConfig))))

    def log_probabilities(self, waveform: torch.Tensor, language: str) -> torch.Tensor:
        """See `models.base.CTCRecogniser`."""
        if language not in self.languages:
            raise UserError(f"The recogniser does not know {language!r}.", f"It knows: {', '.join(self.languages)}.")
        return self._read(waveform, self.languages.index(language))

    def _read(self, waveform: torch.Tensor, language: int) -> torch.Tensor:
        return self.network.log_probabilities(waveform, language)

    def normalise(self, text: str, language: str) -> str:
        """See `models.base.CTCRecogniser`."""
        return letters_of(text, language)

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        """See `models.base.CTCRecogniser`."""
        resampled = audio.resample(waveform, sample_rate, self.sample_rate)
        labels = self.log_probabilities(resampled, language).argmax(-1).unique_consecutive().tolist()
        return RecognitionScore.of(letters_of(text, language),
                                   "".join(self.letters[label - 1] for label in labels if label))
