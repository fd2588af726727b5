"""The built-in vocoder: its excitation, its filters, and sound that has the mel and the pitch it was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from scipy.signal import lfilter
from torchaudio.functional import griffinlim

from core.speech.measures import naturalness, pitch
from data.acoustics import audio
from models.tiny.family import MEL_SETTINGS, Tiny
from models.tiny.vocoder import MelVocoder, MelVocoderConfig

PACK = Path(__file__).resolve().parents[4] / "models" / "tiny" / "pack"
HOP = MEL_SETTINGS.hop_length


@pytest.fixture(scope="module")
def untrained() -> MelVocoder:
    torch.manual_seed(0)
    return MelVocoder(MelVocoderConfig(width=16, blocks=1)).eval()


@pytest.mark.parametrize("hertz", [75.0, 125.0, 220.5])
def test_pulses_have_all_harmonics_at_one_level_and_power_one(untrained: MelVocoder, hertz: float) -> None:
    pulses = untrained.excitation(torch.full((1, 200), hertz))[0][0].double().numpy()
    assert pulses @ pulses / len(pulses) == pytest.approx(1, rel=0.05)
    count = int(MEL_SETTINGS.sample_rate / 2 / hertz)
    times = np.arange(len(pulses)) / MEL_SETTINGS.sample_rate
    window = np.hanning(len(pulses))
    levels = [abs(np.sum(window * pulses * np.exp(-2j * np.pi * hertz * k * times))) for k in range(1, count)]
    between = [abs(np.sum(window * pulses * np.exp(-2j * np.pi * hertz * (k + 0.5) * times))) for k in range(1, count)]
    assert np.ptp(levels) < 0.02 * np.mean(levels)
    assert np.max(between) < 0.01 * np.mean(levels)


def test_noise_is_white_and_both_are_the_same_each_time_and_for_a_longer_text(untrained: MelVocoder) -> None:
    f0 = 120 + 30 * torch.rand(1, 100, generator=torch.Generator().manual_seed(1))
    pulses, noise = untrained.excitation(f0)
    again, longer = untrained.excitation(f0), untrained.excitation(torch.cat([f0, f0], 1))
    assert torch.equal(pulses, again[0])
    assert torch.equal(noise, again[1])
    assert torch.equal(pulses[:, :99 * HOP], longer[0][:, :99 * HOP])
    bands = np.abs(np.fft.rfft(noise[0].numpy()))[1:].reshape(8, -1) ** 2
    assert np.allclose(bands.mean(1) / bands.mean(), 1, atol=0.15)


def test_a_filter_that_is_one_everywhere_changes_nothing(untrained: MelVocoder) -> None:
    signal = torch.randn(2, 41 * HOP, generator=torch.Generator().manual_seed(0))
    flat = torch.ones(2, 40, 513, dtype=torch.complex64)
    assert torch.allclose(untrained.filtered(signal, flat), signal[:, HOP:-HOP], atol=1e-5)


def test_cosines_alone_are_a_filter_of_the_smallest_delay(untrained: MelVocoder) -> None:
    """A resonance has its poles within the circle, and a cepstrum in closed form (Oppenheim and Schafer)."""
    radius, angle, orders = 0.8, 0.7, np.arange(1, 65)
    cepstrum = np.concatenate([[0.0], 2 * radius**orders * np.cos(angle * orders) / orders])
    made = torch.zeros(1, 30, 65) + torch.from_numpy(cepstrum).float()
    spectrum = torch.polar(torch.exp(made @ untrained.cosines), -made[..., 1:] @ untrained.sines)
    signal = torch.randn(1, 31 * HOP, generator=torch.Generator().manual_seed(0))
    wanted = lfilter([1.0], [1.0, -2 * radius * np.cos(angle), radius**2], signal[0].double().numpy())[HOP:-HOP]
    assert np.abs(untrained.filtered(signal, spectrum)[0].numpy() - wanted)[HOP:].max() < 1e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("frames", [1, 2, 4, 40])
def test_any_number_of_frames_can_be_decoded(untrained: MelVocoder, frames: int) -> None:
    noise = torch.randn(1, 40 * HOP, generator=torch.Generator().manual_seed(0))
    mel = audio.log_mel(noise, MEL_SETTINGS)[..., :frames]
    made = untrained.decode(mel)
    assert made.shape == (1, (frames - 1) * HOP)
    assert bool(made.isfinite().all())


def test_the_shipped_vocoder_keeps_the_mel_and_sounds_better_than_griffin_lim() -> None:
    """Of the same mel by torchaudio's fast Griffin-Lim: fewer voiced frames are left, and it is estimated lower."""
    vocoder = Tiny().load_vocoder(PACK, torch.device("cpu")).vocoder
    rows = [json.loads(line) for line in (PACK / "held_out.jsonl").read_text("utf-8").splitlines()]
    voiced, opinions = {"ours": 0, "Griffin-Lim": 0}, {"ours": 0.0, "Griffin-Lim": 0.0}
    for row in [row for row in rows if row["split"] == "combinations"][::8]:
        recording = audio.load(PACK / row["audio"], MEL_SETTINGS.sample_rate)
        mel = audio.log_mel(recording[None], MEL_SETTINGS)
        made = vocoder.decode(mel)
        assert torch.equal(made, vocoder.decode(mel))
        assert made.shape == (1, (mel.shape[2] - 1) * HOP)
        loud = mel[..., :-1] > -6
        assert (audio.log_mel(made, MEL_SETTINGS)[..., :loud.shape[-1]] - mel[..., :-1])[loud].abs().mean() < 0.3
        f0 = pitch(recording, MEL_SETTINGS.sample_rate)
        other = griffinlim(audio.magnitude(mel, MEL_SETTINGS), torch.hann_window(800), 1024, HOP, 800, 1.0, 32, 0.99,
                           None, False)
        for name, sound in (("ours", made[0]), ("Griffin-Lim", other[0])):
            heard = pitch(sound, MEL_SETTINGS.sample_rate)[:len(f0)]
            voiced[name] += int((np.abs(1200 * np.log2(heard / f0[:len(heard)])) < 50).sum())
            opinions[name] += naturalness(sound, MEL_SETTINGS.sample_rate)
    assert voiced["ours"] > voiced["Griffin-Lim"]
    assert opinions["ours"] > opinions["Griffin-Lim"]
