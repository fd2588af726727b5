"""One meter for clips that are cut, judged and mended, and what a clip may be made."""

from __future__ import annotations

import warnings

import numpy as np
import pyloudnorm
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.measures import PEAK_CEILING, gain_to, integrated_loudness, measure
from data.sound_files import LEVEL, at_loudness, repair

RATES = (8000, 16000, 22050, 24000, 44100, 48000)


def sine(rate: int, level: float = 1.0, seconds: float = 2.0) -> np.ndarray:
    return (level * np.sin(2 * np.pi * 997 * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def voice(rate: int, blocks: int, seed: int, more: int = 0) -> np.ndarray:
    """Noise of changing level with pauses, of so many whole blocks and some samples more."""
    chance = np.random.default_rng(seed)
    size = round((0.4 + 0.1 * (blocks - 1)) * rate) + more
    levels = np.repeat(chance.choice([0.0, 0.003, 0.05, 0.2], 1 + size // (rate // 10)), rate // 10)[:size]
    return (np.resize(levels, size) * chance.standard_normal(size)).astype(np.float32)


@pytest.mark.parametrize("rate", RATES)
def test_a_full_scale_sine_is_at_minus_3_lufs(rate: int) -> None:
    # BS.1770-4: 0 dB FS at 997 Hz in one channel reads -3.01 LKFS.
    assert integrated_loudness(sine(rate), rate) == pytest.approx(-3.01, abs=0.05)
    assert integrated_loudness(sine(rate, 0.1), rate) == pytest.approx(-23.01, abs=0.05)
    assert integrated_loudness(sine(rate, 0.1, 0.25), rate) == pytest.approx(-23.01, abs=0.3)  # one block


def test_pauses_do_not_lower_the_level_and_silence_has_none() -> None:
    paused = np.concatenate([sine(16000, 0.1, 4), np.zeros(16000 * 8, np.float32)])
    assert integrated_loudness(paused, 16000) == pytest.approx(-23.0, abs=0.3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for samples in (0, 1, 2, 100, 6399, 6400, 16000):
            assert integrated_loudness(np.zeros(samples, np.float32), 16000) is None


@settings(max_examples=40, deadline=None)
@given(rate=st.sampled_from(RATES), blocks=st.integers(1, 40), seed=st.integers(0, 99), share=st.floats(0.0, 0.95))
def test_it_reads_what_pyloudnorm_reads_of_whole_blocks(rate: int, blocks: int, seed: int, share: float) -> None:
    whole = voice(rate, blocks, seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = pyloudnorm.Meter(rate, filter_class="DeMan").integrated_loudness(
            np.pad(whole.astype(np.float64), (0, 1)))  # its blocks may end within a sample
    found = integrated_loudness(whole, rate)
    assert found == pytest.approx(wanted, abs=1e-3) if wanted > -70 else found is None
    more = np.concatenate([whole, np.ones(int(share * 0.1 * rate), np.float32)])  # no whole block
    assert integrated_loudness(more, rate) == found


@given(rate=st.sampled_from(RATES), size=st.integers(1, 30000))
def test_a_clip_of_any_length_has_a_level(rate: int, size: int) -> None:
    found = integrated_loudness(0.1 * np.sign(np.sin(np.arange(size) + 0.5)).astype(np.float32), rate)
    assert found is None or np.isfinite(found)
    assert found is not None or size < 0.05 * rate


@pytest.mark.parametrize("seconds", [0.2, 0.39, 1.0, 3.03])
def test_what_is_cut_judged_and_mended_goes_by_the_same_meter_and_peak(seconds: float) -> None:
    clip = (voice(16000, 60, 3)[:int(seconds * 16000)] * 0.3).astype(np.float32)
    measured = measure(clip, 16000)
    exact = integrated_loudness(clip, 16000)
    assert exact is not None
    assert measured.level_lufs == round(exact, 1)
    for lufs in (-40.0, -23.0, -2.0):
        cut, mended = at_loudness(clip, 16000, lufs), repair(clip, 16000, measured, (LEVEL,), lufs)
        assert np.allclose(cut, mended, rtol=0.006)  # a measure is kept to a tenth of a decibel
        assert np.abs(cut).max() <= PEAK_CEILING * (1 + 1e-6)
        assert np.abs(mended).max() <= PEAK_CEILING * (1 + 1e-6)


def test_a_gain_goes_as_far_as_the_peak_allows() -> None:
    assert gain_to(-23.0, -29.0, 0.1) == pytest.approx(10 ** (6 / 20))
    assert gain_to(-3.0, -29.0, 0.5) == pytest.approx(PEAK_CEILING / 0.5)
    assert gain_to(-3.0, -29.0, 0.95) == 1.0  # it is louder already than a clip is made, and stays
    assert gain_to(-33.0, -29.0, 0.95) == pytest.approx(10 ** (-4 / 20))
    assert gain_to(-23.0, -29.0, 0.0) == 1.0
