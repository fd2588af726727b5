"""The speaker vector as published, and what is no voice."""

from __future__ import annotations

import pytest
import torch

from config.errors import UserError
from data.acoustics import voice_encoder
from data.acoustics.voice_encoder import VoiceEncoder
from scripts.dev.random_weights import fill
from tests.parity import relative_error
from tests.unit.chatterbox_analysis import LENGTHS, SEED, STATES, clip, reference


@pytest.fixture(scope="module")
def encoder() -> VoiceEncoder:
    module = VoiceEncoder().eval()
    fill(module, SEED)
    return module


@pytest.mark.parametrize("samples", LENGTHS)  # filled up to one window; a last window kept; two left out
def test_vectors_are_those_of_the_published_package(encoder, samples):
    vector = encoder.embed(clip(samples))
    assert relative_error(vector, reference()[f"voice_{samples}"]) < STATES
    assert abs(float(vector.norm()) - 1) < 5e-6


def test_sounds_have_different_vectors(encoder):
    vectors = torch.stack([reference()[f"voice_{samples}"] for samples in LENGTHS])
    assert torch.pdist(vectors).min() > 100 * STATES  # else the comparison above would say little


def test_a_clip_does_not_depend_on_its_neighbours_or_the_batch_size(encoder, monkeypatch):
    clips = [clip(9600), 0.05 * clip(83333, 95.0), clip(50000, 180.0)]
    together = encoder.embed_batch(clips)
    monkeypatch.setattr(voice_encoder, "WINDOWS_PER_BATCH", 2)
    for vector, waveform in zip(together, clips, strict=True):
        assert relative_error(encoder.embed(waveform), vector) < 1e-5


def test_frames_too_few_for_a_window_are_left_out(encoder):
    sound = clip(112000)[16000:90000]  # loud from end to end
    # Four windows and 84, 127 or 128 frames of the next, which is kept from 128 on.
    four, still_four, five = (encoder.embed(sound[:160 * frames]) for frames in (391, 434, 435))
    assert relative_error(still_four, four) < 1e-5
    assert relative_error(five, four) > 1e-4


def test_a_pause_of_zeros_inside_a_clip_does_no_harm(encoder):
    sound = torch.cat([clip(32000), torch.zeros(80000), clip(32000)])
    assert bool(torch.isfinite(encoder.embed(sound)).all())


@pytest.mark.parametrize(("waveform", "message"), [
    (torch.zeros(0), "has 0 samples"),
    (torch.ones(1), "has 1 samples at 16000 Hz; at least 201 are needed"),
    (torch.zeros(32000), "silent"),
    (torch.full((32000,), 3e-5), "silent: its largest sample is 3.0e-05"),
    (torch.full((16000,), float("inf")), "not finite"),
])
def test_what_has_no_voice_is_refused_with_a_way_out(encoder, waveform, message):
    with pytest.raises(UserError, match=message) as caught:
        encoder.embed(waveform)
    assert caught.value.hint
