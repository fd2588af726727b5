"""Measures of made recordings, whose right values are known."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from data.acoustics import audio
from data.measures import (
    NO_NOISE_DB,
    Measures,
    bandwidth,
    clipped_share,
    differing_bits,
    frame_powers,
    leading_silence,
    longest_pause,
    measure,
    peak,
    signal_to_noise,
    silence_at_ends,
    sketch,
)

RATES = (8000, 16000, 22050, 48000)


def sine(rate: int, frequency: float, level: float = 1.0, seconds: float = 2.0) -> np.ndarray:
    return (level * np.sin(2 * np.pi * frequency * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def noise(rate: int, level: float, seconds: float, seed: int = 0) -> np.ndarray:
    """White noise whose root mean square is `level`."""
    return (level * np.random.default_rng(seed).standard_normal(int(seconds * rate))).astype(np.float32)


def babble(rate: int, seconds: float = 4.0, seed: int = 0, top_hz: float | None = None) -> np.ndarray:
    """Something that moves like a voice: noise whose spectrum changes each 80 ms, with pauses, up to `top_hz`."""
    chance = np.random.default_rng(seed)
    made = []
    for index in range(int(seconds / 0.08)):
        part = chance.standard_normal(int(0.08 * 48000))
        spectrum = np.fft.rfft(part)
        hz = np.arange(len(spectrum)) / 0.08
        formant = sum(np.exp(-((np.log(hz + 1) - np.log(place)) ** 2) / 0.08) for place in chance.uniform(250, 3300, 2))
        spectrum *= (formant + 0.05) * (index % 6 != 5)
        made.append(np.fft.irfft(spectrum, len(part)))
    waveform = np.concatenate(made)
    if top_hz:
        spectrum = np.fft.rfft(waveform)
        spectrum[np.arange(len(spectrum)) * 48000 / len(waveform) > top_hz] = 0
        waveform = np.fft.irfft(spectrum, len(waveform))
    waveform = 0.5 * waveform / np.abs(waveform).max()
    return audio.resample(torch.from_numpy(waveform.astype(np.float32)), 48000, rate).numpy()


def upsampled(waveform: np.ndarray, source_rate: int, target_rate: int) -> np.ndarray:
    """More samples a second and nothing else: the same spectrum, with nothing above it."""
    spectrum, size = np.fft.rfft(waveform), len(waveform) * target_rate // source_rate
    return (np.fft.irfft(spectrum, size) * target_rate / source_rate).astype(np.float32)


def test_peak_and_clipping_are_counted() -> None:
    wave = sine(16000, 220, level=0.5)
    assert peak(wave) == pytest.approx(0.5, abs=1e-4)
    assert clipped_share(wave) == 0
    loud = np.clip(sine(16000, 220, level=2.0), -1, 1)
    assert clipped_share(loud) == pytest.approx(2 / 3, abs=0.01)  # |sin| > 1/2 for two thirds of the time
    assert clipped_share(0.3 * loud) == pytest.approx(2 / 3, abs=0.01)  # made quieter afterwards
    assert clipped_share(np.zeros(100, np.float32)) == 0


@pytest.mark.parametrize("wanted_db", [0, 10, 20, 35])
def test_signal_to_noise_of_known_mixtures(wanted_db: float) -> None:
    rate = 16000
    voice = noise(rate, 0.1, 6.0)
    voice *= (np.arange(len(voice)) // (rate // 2) % 2 == 0)  # half a second each of voice and pause
    mixed = voice + noise(rate, 0.1 * 10 ** (-wanted_db / 20), 6.0, seed=1)
    assert signal_to_noise(frame_powers(mixed, rate)) == pytest.approx(wanted_db, abs=1.5)


def test_noise_is_not_made_up_where_none_is_heard() -> None:
    rate = 16000
    assert signal_to_noise(frame_powers(sine(rate, 220), rate)) is None  # no pause
    assert signal_to_noise(frame_powers(np.zeros(rate, np.float32), rate)) is None
    beeps = sine(rate, 220) * (np.arange(2 * rate) // (rate // 4) % 2 == 0)
    assert signal_to_noise(frame_powers(beeps, rate)) == NO_NOISE_DB


def test_digital_silence_at_the_ends_does_not_hide_noise() -> None:
    rate = 16000
    voice = noise(rate, 0.1, 4.0) * (np.arange(4 * rate) // (rate // 2) % 2 == 0) + noise(rate, 0.03, 4.0, seed=1)
    padded = np.concatenate([np.zeros(2 * rate), voice, np.zeros(2 * rate)]).astype(np.float32)
    assert signal_to_noise(frame_powers(padded, rate)) == pytest.approx(
        signal_to_noise(frame_powers(voice.astype(np.float32), rate)), abs=1.0)


@pytest.mark.parametrize("hiss", [0.0, 1e-4, 3e-3])
@pytest.mark.parametrize("rate", [16000, 44100])
def test_silence_at_both_ends(rate: int, hiss: float) -> None:
    wave = np.concatenate([np.zeros(int(0.7 * rate)), sine(rate, 300, 0.3, 1.5), np.zeros(int(0.4 * rate))])
    start_s, end_s = silence_at_ends((wave + noise(rate, hiss, len(wave) / rate)[:len(wave)]).astype(np.float32), rate)
    assert (start_s, end_s) == (pytest.approx(0.7, abs=0.03), pytest.approx(0.4, abs=0.03))


def test_a_tap_at_an_end_is_silence_and_a_weak_onset_is_not() -> None:
    rate = 16000
    pause, voice, hiss = np.zeros(rate // 2), sine(rate, 300, 0.3, 1.0), noise(rate, 0.01, 0.12)  # 27 dB below
    tapped = np.concatenate([hiss, pause, voice, pause, hiss]).astype(np.float32)
    assert silence_at_ends(tapped, rate) == (pytest.approx(0.62, abs=0.03), pytest.approx(0.62, abs=0.03))
    fricative = np.concatenate([pause, hiss, np.zeros(rate // 10), voice, pause]).astype(np.float32)
    assert silence_at_ends(fricative, rate)[0] == pytest.approx(0.5, abs=0.03)
    whispered = np.concatenate([noise(rate, 0.01, 0.4), pause, voice]).astype(np.float32)
    assert silence_at_ends(whispered, rate)[0] == 0.0
    loud = np.concatenate([noise(rate, 0.1, 0.12), pause, voice]).astype(np.float32)
    assert silence_at_ends(loud, rate)[0] == 0.0


def test_the_longest_pause_is_between_sounds() -> None:
    rate = 16000
    silence, voice = np.zeros(2 * rate), sine(rate, 300, 0.3, 0.5)
    wave = np.concatenate([silence, voice, np.zeros(int(0.7 * rate)), voice, np.zeros(rate // 5), voice, silence])
    assert longest_pause(wave.astype(np.float32), rate) == pytest.approx(0.7, abs=0.03)
    assert longest_pause(voice, rate) == 0.0
    assert longest_pause(np.zeros(rate, np.float32), rate) == 0.0


def test_the_silence_before_synthesized_speech_ends_with_its_first_sound() -> None:
    rate = 16000
    voice, room = sine(rate, 300, 0.3, 1.0), noise(rate, 0.01, 0.8)  # 27 dB below
    tap = noise(rate, 0.1, 0.04)
    spoken = np.concatenate([room, voice]).astype(np.float32)
    assert leading_silence(spoken, rate) == pytest.approx(0.8, abs=0.03)
    assert leading_silence(np.concatenate([tap, room, voice]).astype(np.float32), rate) == pytest.approx(0.84, abs=0.03)
    assert leading_silence(voice, rate) == 0.0
    assert leading_silence(room.astype(np.float32), rate) == pytest.approx(0.8)  # no voice at all
    assert leading_silence(np.concatenate([np.zeros(10 * rate), voice[:rate // 4]]).astype(np.float32),
                           rate) == pytest.approx(10.0, abs=0.03)
    assert leading_silence(np.zeros(0, np.float32), rate) == 0.0


def test_a_recording_full_of_sound_has_no_silent_ends() -> None:
    assert silence_at_ends(sine(16000, 300), 16000) == (0.0, 0.0)
    assert silence_at_ends(np.zeros(16000, np.float32), 16000) == (1.0, 0.0)


@pytest.mark.parametrize("rate", [16000, 24000, 48000])
def test_upsampled_telephone_sound_is_seen_whatever_its_rate(rate: int) -> None:
    telephone = upsampled(babble(8000), 8000, rate)
    assert bandwidth(telephone, rate) == pytest.approx(4000, rel=0.02)
    assert bandwidth(babble(rate), rate) > 0.95 * rate / 2


def test_bandwidth_is_where_the_sound_ends() -> None:
    assert bandwidth(babble(48000, top_hz=11000), 48000) == pytest.approx(11000, rel=0.02)
    assert bandwidth(np.zeros(16000, np.float32), 16000) == 0


def test_copies_are_alike_and_others_are_not() -> None:
    one, other = babble(16000, seed=1), babble(16000, seed=2)
    first = sketch(one, 16000)
    copy = audio.resample(torch.from_numpy(0.4 * one), 16000, 22050).numpy() + noise(22050, 1e-4, 4.0)[:88200]
    padded = np.concatenate([np.zeros(8000, np.float32), one])
    assert differing_bits(first, sketch(copy.astype(np.float32), 22050)) <= 24
    assert differing_bits(first, sketch(padded, 16000)) <= 24
    assert differing_bits(first, sketch(other, 16000)) > 80


def test_a_recording_in_which_nothing_happens_is_like_no_other() -> None:
    assert sketch(sine(16000, 220), 16000) == ""
    assert sketch(sine(16000, 220, seconds=0.1), 16000) == ""


def test_measures_survive_being_kept() -> None:
    made = measure(babble(16000), 16000)
    assert Measures.from_json(made.to_json()) == made
    assert made.duration_s == 4.0
    assert made.sample_rate == 16000


@given(st.integers(0, 2**32 - 1), st.integers(1, 4000), st.sampled_from(RATES), st.floats(0, 1))
@example(7266, 819, 8000, 1.0)  # one frame of sound
@settings(max_examples=40, deadline=None)
def test_any_recording_can_be_measured(seed: int, samples: int, rate: int, level: float) -> None:
    chance = np.random.default_rng(seed)
    wave = (level * chance.uniform(-1, 1, samples) * (chance.random(samples) < chance.random())).astype(np.float32)
    made = measure(wave, rate)
    assert all(value is None or isinstance(value, str) or np.isfinite(value) for value in asdict(made).values())
    assert 0 <= made.clipped_share <= 1
    assert 0 <= made.bandwidth_hz <= rate / 2 + 1
    assert made.silence_start_s + made.silence_end_s <= made.duration_s + 0.002
