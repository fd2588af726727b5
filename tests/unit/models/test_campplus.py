"""The timbre vector as published, and what has none."""

from __future__ import annotations

import pytest
import torch

from config.errors import UserError
from models.campplus import MIN_SAMPLES, CAMPPlus
from scripts.dev.random_weights import fill
from tests.parity import relative_error
from tests.unit.chatterbox_analysis import LENGTHS, SEED, STATES, clip, reference


@pytest.fixture(scope="module")
def speaker_encoder() -> CAMPPlus:
    module = CAMPPlus().eval()
    fill(module, SEED, "speaker_encoder.")
    return module


@pytest.mark.parametrize("samples", LENGTHS)  # from part of one segment to six of them
def test_vectors_are_those_of_the_published_package(speaker_encoder, samples):
    assert relative_error(speaker_encoder.embed(clip(samples)), reference()[f"timbre_{samples}"]) < STATES


def test_sounds_have_different_vectors():
    vectors = torch.stack([reference()[f"timbre_{samples}"] for samples in LENGTHS])
    assert torch.pdist(vectors).min() > 100 * STATES * vectors.abs().max()


def test_loudness_hardly_matters(speaker_encoder):
    noise = torch.randn(31999, generator=torch.Generator().manual_seed(0))
    sound = clip(31999) + 0.01 * noise  # no band so quiet that the logarithm's floor is reached
    assert relative_error(speaker_encoder.embed(0.25 * sound), speaker_encoder.embed(sound)) < 1e-2


def test_embedding_leaves_the_model_as_it_is(speaker_encoder):
    before = {key: value.clone() for key, value in speaker_encoder.state_dict().items()}
    speaker_encoder.embed(clip(9600))
    assert all(torch.equal(value, before[key]) for key, value in speaker_encoder.state_dict().items())
    speaker_encoder.train()
    with pytest.raises(AssertionError, match="eval"):
        speaker_encoder.embed(clip(9600))
    speaker_encoder.eval()


def test_the_shortest_clip_has_a_vector(speaker_encoder):
    assert bool(torch.isfinite(speaker_encoder.embed(clip(8 * MIN_SAMPLES)[-MIN_SAMPLES:])).all())


@pytest.mark.parametrize(("waveform", "message"), [
    (torch.ones(1), "has 1 samples at 16000 Hz; at least 720 are needed"),
    (torch.zeros(16000), "silent"),
    (torch.full((16000,), float("nan")), "not finite"),
])
def test_what_has_no_timbre_is_refused_with_a_way_out(speaker_encoder, waveform, message):
    with pytest.raises(UserError, match=message) as caught:
        speaker_encoder.embed(waveform)
    assert caught.value.hint
