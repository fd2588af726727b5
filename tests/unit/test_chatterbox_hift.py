"""The vocoder: equal to the published package, its excitation, its spectrum."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from models.chatterbox.hift import STFT, ExcitationNoise, HarmonicSource, HiFT, HiFTConfig
from scripts.dev.random_weights import fill
from tests.parity import relative_error
from tests.reference.synthesis_inputs import VOCODER_SEED, VocoderInputs

REFERENCE = Path(__file__).parents[1] / "reference" / "chatterbox" / "synthesis.safetensors"
PUBLISHED_KEYS = "a75160fe347428cca1df94f63bb77ac04dcb82f2661256267c2b9b684041ca4c"  # of sorted "key shape" lines
SMALL = HiFTConfig(n_mels=8, channels=32, f0_channels=16)


def made(config: HiFTConfig, seed: int) -> HiFT:
    vocoder = HiFT(config).eval()
    fill(vocoder, seed, "mel2wav.")
    return vocoder


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@torch.inference_mode()
def test_pitch_excitation_and_waveform_are_as_published():
    vocoder, given, wanted = made(HiFTConfig(), VOCODER_SEED), VocoderInputs.made(VOCODER_SEED), load_file(REFERENCE)
    vocoder.fold_weight_norm()
    assert not [key for key in vocoder.state_dict() if "original" in key]
    excitation = vocoder.m_source(given.f0, ExcitationNoise(given.offsets, torch.zeros(480 * given.f0.shape[1])))
    assert relative_error(vocoder.f0(given.mel), wanted["vocoder.f0"]) < 1e-4
    assert relative_error(excitation[:, 0], wanted["vocoder.excitation"]) < 1e-3
    assert relative_error(vocoder.decode(given.mel, given.source), wanted["vocoder.waveform"]) < 1e-3


def test_keys_and_shapes_are_the_published_ones():
    with torch.device("meta"):
        tensors = HiFT().state_dict()
    lines = sorted(f"{key} {tuple(value.shape)}" for key, value in tensors.items())
    assert len(lines) == 328
    assert hashlib.sha256("\n".join(lines).encode()).hexdigest() == PUBLISHED_KEYS


def test_folding_changes_nothing_that_is_heard():
    vocoder, mel = made(SMALL, 1), torch.randn(1, 8, 9, generator=seeded(0))
    before = vocoder.waveform(mel, seeded(1))
    vocoder.fold_weight_norm()
    assert torch.allclose(vocoder.waveform(mel, seeded(1)), before, atol=1e-6)


def test_a_frame_is_480_samples_and_the_seed_decides():
    vocoder, mel = made(SMALL, 2), torch.randn(1, 8, 7, generator=seeded(0))
    first, second, third = (vocoder.waveform(mel, seeded(seed)) for seed in (3, 3, 4))
    assert first.shape == (1, 480 * 7)
    assert first.abs().max() <= 0.99
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_a_row_does_not_depend_on_its_neighbours():
    vocoder, mel = made(SMALL, 3), torch.randn(3, 8, 10, generator=seeded(0))
    together = vocoder.waveform(mel, seeded(5))
    for row in range(3):
        assert torch.allclose(vocoder.waveform(mel[row : row + 1], seeded(5))[0], together[row], atol=1e-5)


def excite(f0: torch.Tensor, seed: int = 0) -> torch.Tensor:
    source = HarmonicSource(8, 24_000, 480)
    torch.nn.init.zeros_(source.l_linear.bias)
    source.l_linear.weight.data = torch.tensor([[1.0, *[0.0] * 8]])
    with torch.inference_mode():
        return source(f0, ExcitationNoise.draw(9, 480 * f0.shape[1], seeded(seed)))[0, 0]


def test_a_voiced_excitation_turns_at_the_pitch():
    waveform = excite(torch.full((1, 50), 200.0))
    spectrum = torch.fft.rfft(waveform).abs()
    assert spectrum.argmax().item() == 200  # one second: a bin is a hertz
    assert waveform.abs().max() < 0.12


def test_an_unvoiced_excitation_is_noise_of_a_third():
    waveform = excite(torch.zeros(1, 50))
    assert waveform.std().item() == pytest.approx(0.1 / 3, rel=0.05)
    assert torch.fft.rfft(waveform).abs().max() < 30


def test_an_excitation_goes_on_where_it_stopped():
    source, f0 = HarmonicSource(8, 24_000, 480).eval(), 120 + 80 * torch.rand(2, 9, generator=seeded(1))
    noise = ExcitationNoise.draw(9, 480 * 9, seeded(2))
    with torch.inference_mode():
        whole = source(f0, noise)
        first = source(f0[:, :4], ExcitationNoise(noise.offsets, noise.samples[: 480 * 4]))
        phase = source.final_phase(f0[:, :4])
        second = source(f0[:, 4:], ExcitationNoise(noise.offsets, noise.samples[480 * 4 :]), phase)
    assert torch.allclose(torch.cat([first, second], -1), whole, atol=1e-4)


def test_more_samples_keep_the_first_ones():
    short, long = ExcitationNoise.draw(9, 480, seeded(3)), ExcitationNoise.draw(9, 48_000, seeded(3))
    assert torch.equal(short.offsets, long.offsets)
    assert torch.equal(short.samples, long.samples[:480])


def test_the_spectrum_is_torchs_and_inverts():
    waveform, spectrum = torch.randn(2, 480, generator=seeded(0)), STFT(16, 4)
    found = spectrum(waveform)
    wanted = torch.stft(waveform, 16, 4, 16, torch.hann_window(16), return_complex=True)
    assert torch.allclose(found[:, :9, 0], wanted.real, atol=1e-5)
    assert torch.allclose(found[:, 9:, 0], wanted.imag, atol=1e-5)
    back = spectrum.inverse(wanted.abs()[:, :, None], wanted.angle()[:, :, None])
    assert torch.allclose(back, waveform, atol=1e-5)
