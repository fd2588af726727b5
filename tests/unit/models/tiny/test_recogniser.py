"""The built-in recogniser: how it normalises text, and its file, of either kind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from config.errors import UserError
from models.phonetic_encoder.ctc_head import CTCHead
from models.phonetic_encoder.encoder import FRAME_S, SAMPLE_RATE
from models.tiny.model_folder import save_module
from models.tiny.recogniser import (
    PhoneticRecogniserConfig,
    RecogniserConfig,
    RecogniserNetwork,
    TinyRecogniser,
    letters_of,
)

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


def test_base_languages_are_spelled_without_spaces_and_marks_of_elision():
    assert letters_of("L'Été à la mer", "fr") == "létéàlamer"


def test_amharic_is_spelled_in_latin_letters_and_homophones_agree():
    assert letters_of("ሰላም ቀለም", "am") == "selamk'elem"
    assert letters_of("ሠላም", "am") == letters_of("ሰላም", "am")
    assert letters_of("ሐኪም", "am") == letters_of("ኀኪም", "am")


def test_a_recogniser_on_the_phonetic_encoder_reads_each_language_differently(tmp_path: Path) -> None:
    save_recogniser(tmp_path / "recogniser.safetensors")

    recogniser = TinyRecogniser.load(tmp_path / "recogniser.safetensors")

    assert (recogniser.languages, recogniser.letters) == (LANGUAGES, LETTERS)
    rows = {language: recogniser.log_probabilities(SOUND, language) for language in LANGUAGES}
    assert rows["en"].shape == (round(1 / FRAME_S), len(LETTERS) + 1)
    assert torch.allclose(rows["en"].exp().sum(1), torch.ones(len(rows["en"])), atol=1e-5)
    assert not torch.allclose(rows["en"], rows["fr"], atol=0.1)


def test_the_score_is_that_of_the_likeliest_path(tmp_path: Path) -> None:
    save_recogniser(tmp_path / "recogniser.safetensors")
    recogniser = TinyRecogniser.load(tmp_path / "recogniser.safetensors")
    labels = torch.tensor([0, 1, 1, 0, 1, 3, 3, 0])
    recogniser.network.log_probabilities = lambda waveform, language: torch.eye(4)[labels].log()  # type: ignore

    score = recogniser.score(SOUND, SAMPLE_RATE, "A abc", "en")

    assert (score.reference, score.transcript, score.edits) == ("aabc", "aac", 1)


def test_a_recogniser_on_the_mel_loads_and_scores(tmp_path: Path) -> None:
    config = RecogniserConfig(LANGUAGES, LETTERS, ("p", "t"), width=16)
    save_module(tmp_path / "recogniser.safetensors", RecogniserNetwork(config), config)

    recogniser = TinyRecogniser.load(tmp_path / "recogniser.safetensors")

    assert recogniser.log_probabilities(SOUND, "am").shape[1] == len(LETTERS) + 1
    assert recogniser.score(SOUND, SAMPLE_RATE, "abc", "fr").reference == "abc"


def test_a_language_that_it_does_not_know_is_named(tmp_path: Path) -> None:
    save_recogniser(tmp_path / "recogniser.safetensors")

    with pytest.raises(UserError, match="does not know 'sw'") as caught:
        TinyRecogniser.load(tmp_path / "recogniser.safetensors").score(SOUND, SAMPLE_RATE, "abc", "sw")

    assert "en, fr, am" in caught.value.hint


def test_a_file_without_a_layer_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "recogniser.safetensors"
    save_recogniser(path)
    tensors = load_file(path)
    del tensors["input.weight"]
    save_file(tensors, path, {"config": '{"languages": ["en", "fr", "am"], "letters": ["a", "b", "c"], "width": 16, '
                                        '"blocks": 1}'})

    with pytest.raises(UserError, match=str(path)):
        TinyRecogniser.load(path)
