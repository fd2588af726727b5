"""The vocoder: equal to the published package, its excitation, its spectrum."""

from __future__ import annotations

import hashlib
import weakref
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from models.chatterbox.codec import ChatterboxVocoder
from models.chatterbox.hift import STFT, ExcitationNoise, HarmonicSource, HiFT, HiFTConfig
from models.chatterbox.streaming import StreamingVocoder
from models.cuda_graph_decode import GraphCache
from scripts.dev.random_weights import fill
from tests.emulated_cuda import CUDA, REAL, emulated_cuda
from tests.parity import relative_error
from tests.reference.synthesis_inputs import VOCODER_SEED, VocoderInputs

REFERENCE = Path(__file__).parents[3] / "reference" / "chatterbox" / "synthesis.safetensors"
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


LENGTHS = (40, 63, 1, 64, 2, 65, 40)  # 64 frames hold all but the last but one


def voiced(seed: int) -> HiFT:
    """A small vocoder whose excitation has sines."""
    vocoder = made(SMALL, seed)
    vocoder.fold_weight_norm()
    vocoder.f0_predictor.classifier.bias.data.fill_(150.0)
    return vocoder


def mels(rows: int = 1) -> list[torch.Tensor]:
    return [torch.randn(rows, 8, length, generator=seeded(length)) for length in LENGTHS]


def assert_equal_to_the_end(found: torch.Tensor, wanted: torch.Tensor, bound: float = 1e-5) -> None:
    """Altogether, and in the last samples, where what is left of padding would be."""
    assert found.shape == wanted.shape
    assert relative_error(found, wanted) < bound
    assert relative_error(found[:, -480:], wanted[:, -480:]) < bound
    assert relative_error(found[:, -8:], wanted[:, -8:]) < 10 * bound


@pytest.mark.parametrize("rows", [1, 2])
def test_padding_of_a_kept_graph_reaches_no_sample(rows: int) -> None:
    plain = voiced(6)
    sources = [plain.source(plain.f0(mel), seeded(1)) for mel in mels(rows)]
    wanted = [plain.decode(mel, source) for mel, source in zip(mels(rows), sources, strict=True)]
    with emulated_cuda(triton=True) as state:
        vocoder, captures = deepcopy(plain).to(CUDA), []
        for mel, source, whole in zip(mels(rows), sources, wanted, strict=True):
            assert_equal_to_the_end(vocoder.decode(mel.to(CUDA), source.to(CUDA)).cpu(), whole)
            captures.append(state.captures)
    assert REAL or captures == [0, 1, 1, 1, 1, 1, 1]


def test_padding_of_a_kept_graph_reaches_no_pitch() -> None:
    plain = voiced(7)
    with emulated_cuda(triton=True) as state:
        vocoder = deepcopy(plain).to(CUDA)
        for mel in mels():
            assert_equal_to_the_end(vocoder.f0(mel.to(CUDA)).cpu() - 150, plain.f0(mel) - 150, 1e-4)
    assert REAL or state.captures == 1


def test_a_waveform_by_a_kept_graph_is_that_of_the_cpu() -> None:
    plain = voiced(8)
    generators = seeded(1), seeded(1)
    with emulated_cuda(triton=True) as state:
        vocoder = deepcopy(plain).to(CUDA)
        for mel in mels():
            # rounding moves the phases
            assert_equal_to_the_end(vocoder.waveform(mel.to(CUDA), generators[0]).cpu(),
                                    plain.waveform(mel, generators[1]), 1e-3)
    assert torch.equal(*(generator.get_state() for generator in generators))
    assert REAL or (state.captures, state.replays) == (1, 5)


def test_without_triton_nothing_is_padded() -> None:
    plain, mel = voiced(9), mels()[0]
    wanted = plain.waveform(mel, seeded(1))
    with emulated_cuda() as state:
        vocoder = deepcopy(plain).to(CUDA)
        for _ in range(2):
            assert relative_error(vocoder.waveform(mel.to(CUDA), seeded(1)).cpu(), wanted) < 1e-3
        assert REAL or state.captures == len(vocoder.graphs) == 0


def test_new_weights_and_freeing_drop_the_graphs() -> None:
    plain, mel = voiced(10), mels()[0]
    wanted = plain.waveform(mel, seeded(1))
    with emulated_cuda(triton=True) as state:
        vocoder = deepcopy(plain).to(CUDA)

        def found() -> torch.Tensor:
            return vocoder.waveform(mel.to(CUDA), seeded(1)).cpu()

        def kept() -> weakref.ref[torch.Tensor]:
            return weakref.ref(next(iter(vocoder.graphs._kept.values()))._waveform)

        assert all(relative_error(found(), wanted) < 1e-3 for _ in range(3))
        before = kept()
        models = SimpleNamespace(flow=SimpleNamespace(graphs=GraphCache(1)), mel2wav=vocoder)
        ChatterboxVocoder(models).free_buffers()  # type: ignore[arg-type]
        assert before() is None
        assert all(relative_error(found(), wanted) < 1e-3 for _ in range(2))
        assert REAL or state.captures == 2
        before = kept()
        vocoder.conv_post.weight = torch.nn.Parameter(0 * vocoder.conv_post.weight.detach())
        assert relative_error(found(), wanted) > 0.05
        assert before() is None


def test_a_stream_by_kept_graphs_is_that_of_the_cpu() -> None:
    plain, mel = voiced(11), torch.randn(1, 8, 90, generator=seeded(4))

    def stream(vocoder: HiFT, mel: torch.Tensor) -> torch.Tensor:
        pieces = StreamingVocoder(vocoder, 5)
        chunks = [pieces.chunk(mel[..., :until + 14], 0, until) for until in (10, 11, 40, 70)]
        return torch.cat([*chunks, pieces.chunk(mel, 0, 90, last=True)])

    wanted = stream(plain, mel)
    with emulated_cuda(triton=True):
        assert relative_error(stream(deepcopy(plain).to(CUDA), mel.to(CUDA)).cpu(), wanted) < 1e-3
