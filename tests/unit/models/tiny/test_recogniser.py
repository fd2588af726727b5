"""The built-in recogniser: how it normalises text, and its file."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from config.errors import UserError
from models.tiny.model_folder import save_module
from models.tiny.recogniser import (
    RecogniserConfig,
    RecogniserNetwork,
    TinyRecogniser,
    letters_of,
)

SAMPLE_RATE = 16_000
LANGUAGES, LETTERS = ("en", "fr", "am"), ("a", "b", "c")
SOUND = torch.sin(torch.arange(SAMPLE_RATE) * 0.2) * 0.3  # one second


def save_recogniser(path: Path) -> None:
    """A small network with random weights."""
    torch.manual_seed(0)
    config = RecogniserConfig(LANGUAGES, LETTERS, ("p", "t"), width=16)
    save_module(path, RecogniserNetwork(config), config)


def test_base_languages_are_spelled_without_spaces_and_marks_of_elision():
    assert letters_of("L'Été à la mer", "fr") == "létéàlamer"


def test_amharic_is_spelled_in_latin_letters_and_homophones_agree():
    assert letters_of("ሰላም ቀለም", "am") == "selamk'elem"
    assert letters_of("ሠላም", "am") == letters_of("ሰላም", "am")
    assert letters_of("ሐኪም", "am") == letters_of("ኀኪም", "am")


def test_the_score_is_that_of_the_likeliest_path(tmp_path: Path) -> None:
    save_recogniser(tmp_path / "recogniser.safetensors")
    recogniser = TinyRecogniser.load(tmp_path / "recogniser.safetensors")
    labels = torch.tensor([0, 1, 1, 0, 1, 3, 3, 0])
    recogniser.network.log_probabilities = lambda waveform, language: torch.eye(4)[labels].log()  # type: ignore

    score = recogniser.score(SOUND, SAMPLE_RATE, "A abc", "en")

    assert (score.reference, score.transcript, score.edits) == ("aabc", "aac", 1)


def test_it_loads_and_scores(tmp_path: Path) -> None:
    save_recogniser(tmp_path / "recogniser.safetensors")

    recogniser = TinyRecogniser.load(tmp_path / "recogniser.safetensors")

    rows = recogniser.log_probabilities(SOUND, "am")
    assert rows.shape[1] == len(LETTERS) + 1
    assert len(rows) == pytest.approx(1 / recogniser.frame_s, abs=1)
    assert torch.allclose(rows.exp().sum(1), torch.ones(len(rows)), atol=1e-5)
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
    with safe_open(path, "pt") as file:
        metadata = file.metadata()
    del tensors["letter_head.weight"]
    save_file(tensors, path, metadata)

    with pytest.raises(UserError, match=str(path)):
        TinyRecogniser.load(path)
