"""The recogniser on the phonetic encoder: its languages, and its file beside that of the one that ships."""

from __future__ import annotations

from pathlib import Path

import torch

from models.phonetic_encoder.ctc_head import CTCHead
from models.phonetic_encoder.encoder import FRAME_S, SAMPLE_RATE
from models.tiny.family import RECOGNISER
from models.tiny.model_folder import save_module
from models.tiny.recogniser import TinyRecogniser
from scripts.dev.tiny.pack import PACK
from scripts.dev.tiny.recogniser import phonetic
from scripts.dev.tiny.recogniser.phonetic import PhoneticRecogniserConfig

LANGUAGES, LETTERS = ("en", "fr", "am"), ("a", "b", "c")
SOUND = torch.sin(torch.arange(SAMPLE_RATE) * 0.2) * 0.3  # one second


def save_recogniser(path: Path) -> PhoneticRecogniserConfig:
    """A head with random weights, whose languages differ much."""
    torch.manual_seed(0)
    config = PhoneticRecogniserConfig(LANGUAGES, LETTERS, width=16, blocks=1)
    head = CTCHead(config.head)
    assert head.language is not None
    torch.nn.init.normal_(head.language.weight, std=5.0)
    save_module(path, head, config)
    return config


def test_a_recogniser_on_the_phonetic_encoder_reads_each_language_differently(tmp_path: Path) -> None:
    save_recogniser(tmp_path / "recogniser.safetensors")

    recogniser = phonetic.load(tmp_path / "recogniser.safetensors")

    assert (recogniser.languages, recogniser.letters) == (LANGUAGES, LETTERS)
    rows = {language: recogniser.log_probabilities(SOUND, language) for language in LANGUAGES}
    assert rows["en"].shape == (round(1 / FRAME_S), len(LETTERS) + 1)
    assert torch.allclose(rows["en"].exp().sum(1), torch.ones(len(rows["en"])), atol=1e-5)
    assert not torch.allclose(rows["en"], rows["fr"], atol=0.1)


def test_the_file_that_ships_is_told_from_it() -> None:
    assert type(phonetic.load(PACK / RECOGNISER)) is TinyRecogniser
