"""The speech that the built-in recogniser learns from."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.phonetic_encoder.encoder import FEATURES
from models.tiny.recogniser import letters_of
from scripts.dev.tiny.recogniser import corpus
from scripts.dev.tiny.recogniser.corpus import SpokenText

CLIPS = [SpokenText("wide", language, text) for language, text in
         (("en", "two words"), ("fr", "l'été"), ("am", "ሰላም"), ("en", "more words"), ("en", "the last"))]


class SmallSpeaker:
    """A second of sound for each clip; counts what it speaks."""

    spoken = 0

    def speak(self, clip: SpokenText) -> torch.Tensor:
        self.spoken += 1
        return torch.ones(16000)

    def degrade(self, waveform: torch.Tensor, is_plain: bool, rng: random.Random) -> torch.Tensor:
        return waveform


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SHARD", 2)
    monkeypatch.setattr(corpus, "encode_clip", lambda encoder, waveform: torch.full((50, FEATURES), 0.5).half())


def test_a_corpus_that_was_interrupted_goes_on(tmp_path: Path, encoded: None) -> None:
    speaker = SmallSpeaker()
    list(corpus.write_features(tmp_path, CLIPS, speaker, None))  # type: ignore[arg-type]
    (tmp_path / "001.jsonl").unlink()
    lines = list(corpus.write_features(tmp_path, CLIPS, speaker, None))  # type: ignore[arg-type]

    assert speaker.spoken == len(CLIPS) + 2
    assert [line.split(":")[0] for line in lines] == ["001"]


def test_features_are_read_with_letters_and_language(tmp_path: Path, encoded: None) -> None:
    list(corpus.write_features(tmp_path, CLIPS, SmallSpeaker(), None))  # type: ignore[arg-type]

    read = corpus.read_features([tmp_path])

    spelled = ["".join(read.letters[label - 1] for label in clip.labels) for clip in read.clips]
    assert spelled == [letters_of(clip.text, clip.language) for clip in CLIPS]
    assert [clip.language for clip in read.clips] == [0, 1, 2, 0, 0]
    assert all(clip.features.shape == (50, FEATURES) for clip in read.clips)
    assert read.minutes["wide en"] == pytest.approx(3 / 60)


def test_prose_is_words_alone() -> None:
    for language, letters in (("en", "a-z"), ("fr", "a-zàâçéèêëîïôùûüœ")):
        prose = corpus.read_prose(language)
        assert len(prose) > 1000
        assert all(re.fullmatch(rf"[{letters}' ]+", part) for part in prose)


def test_noise_is_as_many_decibels_below_the_speech() -> None:
    waveform = torch.sin(torch.arange(16000) * 0.3)
    for smoothness in (0.0, 0.9):
        noise = corpus.add_noise(waveform, 20.0, smoothness, torch.Generator().manual_seed(0)) - waveform
        ratio = waveform.square().mean() / noise.square().mean()
        assert 10 * ratio.log10() == pytest.approx(20.0, abs=0.1)


def test_an_echo_follows_the_sound() -> None:
    click = torch.zeros(8000)
    click[100] = 1.0

    echoed = corpus.reverberate(click, 0.2, 0.3, torch.Generator().manual_seed(0))

    assert len(echoed) == len(click)
    assert echoed[:100].abs().max() < 1e-5
    assert echoed[100] == pytest.approx(1.0, abs=1e-4)
    assert echoed[101:].square().sum().sqrt() == pytest.approx(0.3, rel=0.15)
    assert echoed[5000:].abs().max() < 1e-4


def test_recordings_are_used_several_times_and_held_out_ones_never() -> None:
    from scripts.dev.tiny.recogniser.__main__ import split

    recordings = [replace(CLIPS[0], recording=Path(f"{number}.ogg")) for number in range(40)]
    train, held_out = split(recordings)

    assert len(held_out) == 4
    assert set(train) | set(held_out) == set(recordings)
    assert not set(train) & set(held_out)
