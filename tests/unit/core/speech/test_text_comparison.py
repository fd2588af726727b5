"""A recogniser that understands the voices marks clips with another's text; one that does not marks none."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch

from core.speech import text_comparison
from core.speech.text_comparison import compare_texts
from data.acoustics import audio
from data.manifest import ManifestClip, PreparedDataset, make_card
from models.base import RecognitionScore
from tests.unit.small_data import RATE

LETTERS = "abcdefgh"
FRAME = 160  # samples


@dataclass
class ToneRecogniser:
    """Hears the letter that a frame's level spells; a deaf one hears every letter alike."""

    deaf: bool = False
    languages: tuple[str, ...] = ("am",)
    letters: tuple[str, ...] = tuple(LETTERS)
    sample_rate: int = RATE
    frame_s: float = FRAME / RATE
    heard: list[int] = field(default_factory=list)

    def log_probabilities(self, waveform: torch.Tensor, language: str) -> torch.Tensor:
        self.heard.append(len(waveform))
        levels = waveform[:len(waveform) // FRAME * FRAME].reshape(-1, FRAME).abs().mean(1)
        symbols = (levels * 10).round().long().clamp(0, len(LETTERS))
        logits = torch.nn.functional.one_hot(symbols, len(LETTERS) + 1).float() * (0.0 if self.deaf else 6.0)
        return logits.log_softmax(-1)

    def normalise(self, text: str, language: str) -> str:
        return text.replace(" ", "")

    def score(self, waveform: torch.Tensor, sample_rate: int, text: str, language: str) -> RecognitionScore:
        raise NotImplementedError


def spoken(text: str) -> torch.Tensor:
    """Three frames of the level of each letter, and one of silence behind it."""
    levels = [level for letter in text for level in [(LETTERS.index(letter) + 1) / 10] * 3 + [0.0]]
    signs = np.where(np.arange(FRAME * len(levels)) % 2, -1, 1)  # without an offset, as a voice has none
    return torch.tensor(np.repeat(levels, FRAME) * signs, dtype=torch.float32)


def dataset_of(folder: Path, texts: list[str]) -> PreparedDataset:
    clips = []
    for number, text in enumerate(texts):
        audio.save(folder / f"{number}.wav", spoken(text), RATE)
        clips.append(ManifestClip(f"clip{number}", f"{number}.wav", text, "am", "train", 1.0, "ann", str(number)))
    return PreparedDataset(folder, make_card("d", "am", "test", clips), clips)


@pytest.fixture
def texts() -> list[str]:
    generator = np.random.default_rng(0)
    return ["".join(generator.choice(list(LETTERS), 12)) for _ in range(24)]


def test_matching_texts_are_the_likeliest(tmp_path: Path, texts: list[str]) -> None:
    comparison = compare_texts(dataset_of(tmp_path, texts), texts, ToneRecogniser(), "am")
    assert (comparison.clips, comparison.own, comparison.messages, comparison.warning) == (24, 24, {}, "")


def test_two_swapped_texts_are_named_with_whose_they_are(tmp_path: Path, texts: list[str]) -> None:
    given = list(texts)
    given[5], given[6] = given[6], given[5]
    comparison = compare_texts(dataset_of(tmp_path, texts), given, ToneRecogniser(), "am")
    assert sorted(comparison.messages) == ["clip5", "clip6"]
    assert "the text of clip6" in comparison.messages["clip5"]
    assert "In 2 of 24 clips" in comparison.warning


def test_shifted_texts_are_reported_with_the_offset(tmp_path: Path, texts: list[str]) -> None:
    comparison = compare_texts(dataset_of(tmp_path, texts), texts[-2:] + texts[:-2], ToneRecogniser(), "am")
    assert comparison.offset == 2
    assert "stands 2 clips after the own one" in comparison.warning
    assert len(comparison.messages) >= 22


def test_a_recogniser_that_understands_nothing_marks_no_clip(tmp_path: Path, texts: list[str]) -> None:
    mixed = compare_texts(dataset_of(tmp_path, texts), texts[::-1], ToneRecogniser(), "am")
    assert (mixed.is_informative, mixed.messages) == (False, {})
    assert "It marks no clip." in mixed.warning
    deaf = compare_texts(dataset_of(tmp_path, texts), texts, ToneRecogniser(deaf=True), "am")
    assert deaf.messages == {}


def test_a_large_dataset_is_sampled_until_a_text_does_not_fit(tmp_path: Path, texts: list[str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_comparison, "_MAX_WITHOUT_SAMPLE", 10)
    monkeypatch.setattr(text_comparison, "_SAMPLE", 6)
    dataset, recogniser = dataset_of(tmp_path, texts), ToneRecogniser()
    assert compare_texts(dataset, texts, recogniser, "am").clips == len(recogniser.heard) == 6
    assert compare_texts(dataset, texts, ToneRecogniser(), "am", thorough=True).clips == 24
    given = [texts[1], texts[0], *texts[2:]]  # the first clip is in the sample
    assert sorted(compare_texts(dataset, given, ToneRecogniser(), "am").messages) == ["clip0", "clip1"]


def test_a_recording_that_cannot_be_read_is_left_out(tmp_path: Path, texts: list[str]) -> None:
    dataset = dataset_of(tmp_path, texts)
    (tmp_path / "3.wav").write_bytes(b"no sound")
    assert compare_texts(dataset, texts, ToneRecogniser(), "am").clips == 23
