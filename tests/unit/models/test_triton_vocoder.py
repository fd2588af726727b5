"""The Triton kernels of the flow and the vocoder, in Triton's interpreter or on a GPU, and what stands in for them."""

from __future__ import annotations

from copy import deepcopy
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from models.chatterbox.hift import HiFT, HiFTConfig, Snake
from models.convolutions import full_precision
from models.indextts2 import s2mel
from models.indextts2.bigvgan import FIRST_TAPS, AntiAliasedSnake, BigVGAN, BigVGANConfig
from scripts.dev.random_weights import fill
from tests.emulated_cuda import CUDA, emulated_cuda
from tests.parity import relative_error
from tests.triton_stand_in import DEVICE, Kernel, anti_aliased_snake, kernel_module, normalise, rotate_pairs, snake

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("filled_memory")


@pytest.fixture(params=["kernel", "stand-in"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = kernel_module("triton_vocoder")
    if request.param == "stand-in":
        monkeypatch.setattr(module, "_normalise", Kernel(normalise))
        monkeypatch.setattr(module, "_rotate_pairs", Kernel(rotate_pairs))
        monkeypatch.setattr(module, "_snake", Kernel(snake))
        monkeypatch.setattr(module, "_anti_aliased_snake", Kernel(anti_aliased_snake))
    return module


@pytest.mark.parametrize("width", [24, 64])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@torch.inference_mode()
def test_sums_norms_and_taps_are_those_of_torch(kernels: ModuleType, dtype: torch.dtype, length: int,
                                                width: int) -> None:
    noise = torch.Generator().manual_seed(length)
    rows, added, whole = (4 * torch.randn(3, 2, length, width, generator=noise)).unbind()
    state, norm = torch.randn(width, generator=noise), nn.LayerNorm(width)
    norm.weight.normal_(generator=noise)
    norm.bias.normal_(generator=noise)
    bound = 1e-5 if dtype is torch.float32 else 2e-3
    rows, added, whole, state, norm = (part.to(DEVICE) for part in (rows, added, whole, state, norm))

    total, made = kernels.normalise(rows, norm, dtype, added=added.to(dtype))
    assert relative_error(total, rows + added.to(dtype)) < 1e-6
    assert made.dtype == dtype
    assert relative_error(made.float(), norm(total)) < bound

    sideways = rows.transpose(1, 2).contiguous().transpose(1, 2)
    total, made = kernels.normalise(sideways, norm, dtype, added=added)
    assert relative_error(total, rows + added) < 1e-6
    assert relative_error(made.float(), norm(total)) < bound

    for after in (state, whole):
        total, made = kernels.normalise(rows.to(dtype), norm, torch.float32, mish=True, after=after)
        assert total.dtype == dtype
        assert relative_error(made, F.mish(norm(total.float())) + after) < 1e-5

    _, made = kernels.normalise(10 * rows, None, dtype, mish=True, taps=True)
    wanted = F.pad(F.mish(10 * rows), (0, 0, 2, 0)).unfold(1, 3, 1).transpose(2, 3).flatten(2)
    assert relative_error(made.float(), wanted) < bound
    assert not made[:, 0, :2 * width].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("first", [0, 2])
@torch.inference_mode()
def test_an_adaptive_norm_with_its_sum_is_that_of_torch(kernels: ModuleType, first: int, dtype: torch.dtype) -> None:
    """Of all frames, and of those after the first ones."""
    noise = torch.Generator().manual_seed(first)
    frames, whole = (4 * torch.randn(2, 2, 5, 24, generator=noise)).unbind()
    added, time = whole[:, first:].to(dtype), torch.randn(2, 24, generator=noise)
    for branch in (None, added):
        part = frames[:, first:]
        wanted = s2mel.adaptive_norm(part, branch, time, dtype)
        found = kernels.adaptive_norm(part.to(DEVICE), None if branch is None else branch.to(DEVICE),
                                      *time.to(DEVICE), s2mel._EPSILON, dtype)
        assert found[1].dtype == dtype
        assert relative_error(found[0].cpu(), wanted[0]) < 1e-6
        assert relative_error(found[1].cpu().float(), wanted[1].float()) < (1e-5 if dtype is torch.float32 else 2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("heads", "size"), [(3, 8), (4, 6)])
@pytest.mark.parametrize("first", [0, 2])
@torch.inference_mode()
def test_a_rotation_of_pairs_is_that_of_torch(kernels: ModuleType, first: int, heads: int, size: int,
                                              dtype: torch.dtype) -> None:
    """Of queries that lie beside keys and values, all of them or those after the first frames."""
    noise = torch.Generator().manual_seed(heads)
    queries = torch.randn(2, 5, 3, heads, size, generator=noise).to(dtype)[:, first:, 0]
    rotary = s2mel.rotary_positions(5, size, torch.device("cpu"))[first:]
    found = kernels.rotate_pairs(queries.to(DEVICE), rotary.to(DEVICE)).cpu()
    wanted = s2mel.rotate(queries, rotary)
    assert (found.dtype, found.is_contiguous()) == (dtype, True)
    assert relative_error(found.float(), wanted.float()) < (1e-6 if dtype is torch.float32 else 1e-3)


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@torch.inference_mode()
def test_a_snake_is_that_of_torch(kernels: ModuleType, memory: torch.memory_format) -> None:
    signal = 3 * torch.randn(2, 24, 1, 77, generator=torch.Generator().manual_seed(1))
    module = Snake(24)
    module.alpha.normal_(1, 0.3, generator=torch.Generator().manual_seed(2))
    signal = signal.contiguous(memory_format=memory)
    found = kernels.snake(signal.to(DEVICE), module.alpha.to(DEVICE)).cpu()
    assert found.stride() == signal.stride()
    assert relative_error(found, module(signal)) < 1e-6


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("length", [0, 1, 60, 77, 80])
@torch.inference_mode()
def test_a_snake_is_zero_after_the_end(kernels: ModuleType, length: int, memory: torch.memory_format) -> None:
    signal = 3 * torch.randn(2, 24, 1, 77, generator=torch.Generator().manual_seed(1)).contiguous(memory_format=memory)
    signal[..., length:] = torch.nan
    module = Snake(24)
    end = torch.tensor(length, dtype=torch.int32, device=DEVICE)
    found = kernels.snake(signal.to(DEVICE), module.alpha.to(DEVICE), end).cpu()
    assert found.stride() == signal.stride()
    assert not found[..., length:].any()
    assert torch.allclose(found[..., :length], module(signal[..., :length]), atol=1e-5)


@torch.inference_mode()
def test_the_vocoder_sounds_as_on_the_cpu() -> None:
    plain = HiFT(HiFTConfig(n_mels=8, channels=32, f0_channels=16)).eval()
    fill(plain, 2, "mel2wav.")
    plain.fold_weight_norm()
    mel = torch.randn(1, 8, 6, generator=torch.Generator().manual_seed(1))
    source = plain.source(plain.f0(mel), torch.Generator().manual_seed(2))
    with emulated_cuda(triton=True):
        found = deepcopy(plain).to(CUDA).decode(mel.to(CUDA), source.to(CUDA)).cpu()
    assert relative_error(found, plain.decode(mel, source)) < 1e-4


@pytest.mark.parametrize("length", [1, 7, 12])
@torch.inference_mode()
def test_padding_reaches_no_sample_of_the_vocoder(kernels: ModuleType, length: int,
                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    plain = HiFT(HiFTConfig(n_mels=8, channels=32, f0_channels=16)).eval()
    fill(plain, 2, "mel2wav.")
    plain.fold_weight_norm()
    mel, source = (torch.randn(1, *shape, generator=torch.Generator().manual_seed(1))
                   for shape in ((8, length), (1, 480 * length)))
    wanted = plain.decode(mel, source)
    monkeypatch.setattr(Snake, "forward", lambda snake, signal, end: kernels.snake(signal, snake.alpha, end))
    missing = 12 - length
    padded = F.pad(mel, (0, missing)).to(DEVICE), F.pad(source, (0, 480 * missing), value=1).to(DEVICE)
    with full_precision():
        found = plain.to(DEVICE)._decode(*padded, torch.tensor(length, device=DEVICE)).cpu()
    assert relative_error(found[:, :480 * length], wanted) < 1e-5


@pytest.mark.covering
@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("channels", [6, 24, 200])
@pytest.mark.parametrize("length", [1, 3, 16, 77])
@torch.inference_mode()
def test_an_anti_aliased_snake_is_that_of_torch(kernels: ModuleType, length: int, channels: int,
                                                memory: torch.memory_format) -> None:
    noise = torch.Generator().manual_seed(length)
    signal = 3 * torch.randn(2, channels, 1, length, generator=noise).contiguous(memory_format=memory)
    module = AntiAliasedSnake(channels)
    for value in module.act.parameters():
        value.normal_(0, 0.5, generator=noise)
    module.compute_filters()
    given = signal, module.act["alpha"], module.act["beta"]
    found = kernels.anti_aliased_snake(*(part.to(DEVICE) for part in given), FIRST_TAPS)
    assert relative_error(found.cpu(), module(signal)) < 1e-5


@torch.inference_mode()
def test_bigvgan_takes_it_on_a_gpu() -> None:
    vocoder = BigVGAN(BigVGANConfig(n_mels=8, channels=32, upsample_rates=(4, 2))).requires_grad_(False).eval()
    fill(vocoder, 1, "bigvgan.")
    for part in vocoder.modules():
        if isinstance(part, AntiAliasedSnake):
            part.compute_filters()
    mel = torch.randn(1, 8, 12, generator=torch.Generator().manual_seed(0))
    wanted = vocoder.waveform(mel)
    with emulated_cuda(triton=True) as state:
        found = vocoder.to(CUDA).waveform(mel.to(CUDA)).cpu()
        kernel = state.kernels.get("anti_aliased_snake")
        assert kernel is None or kernel.launches == 2 * 3 * 6 + 1
    assert relative_error(found, wanted) < 1e-4
