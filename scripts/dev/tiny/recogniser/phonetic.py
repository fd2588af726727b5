"""A recogniser for several languages on the phonetic encoder, whose file has the weights of its head alone.

It does not ship: see the table in docs/experiments.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from models import weights
from models.phonetic_encoder.ctc_head import CTCHead, CTCHeadConfig
from models.phonetic_encoder.encoder import PhoneticEncoder
from models.tiny.model_folder import load_config, load_module
from models.tiny.recogniser import TinyRecogniser

_OF_THE_SHIPPED_ONE = "phoneme_head.weight"  # a tensor that only `RecogniserNetwork` has


@dataclass(frozen=True)
class PhoneticRecogniserConfig:
    """The languages and letters of the recogniser, and the size of its head; letter i is label i + 1."""

    languages: tuple[str, ...]
    letters: tuple[str, ...]
    width: int = 256
    blocks: int = 3

    @property
    def head(self) -> CTCHeadConfig:
        return CTCHeadConfig(len(self.letters), self.width, self.blocks, languages=len(self.languages))


class PhoneticRecogniser(TinyRecogniser):
    """See `models.base.CTCRecogniser`."""

    def __init__(self, config: PhoneticRecogniserConfig, encoder: PhoneticEncoder, head: CTCHead) -> None:
        self.languages, self.letters = config.languages, config.letters
        self._encoder, self._head = encoder, head

    def _read(self, waveform: torch.Tensor, language: int) -> torch.Tensor:
        return self._head.log_probabilities(self._encoder.encode(waveform), language)


def load(path: Path) -> TinyRecogniser:
    """The recogniser in a file, this one or the one that ships; `UserError` if the file is damaged."""
    if _OF_THE_SHIPPED_ONE in weights.shapes(path):
        return TinyRecogniser.load(path)
    config = load_config(path, PhoneticRecogniserConfig)
    return PhoneticRecogniser(config, PhoneticEncoder.load(), load_module(path, CTCHead(config.head)))
