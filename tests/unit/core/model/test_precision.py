"""Half precision only where the hardware has it, whatever torch says it can emulate."""

from __future__ import annotations

import pytest
import torch

from config.errors import UserError
from core import compute
from core.model import precision
from core.model.precision import Precision
from tests.emulated_cuda import emulated_cuda


@pytest.mark.parametrize(("capability", "wanted"), [
    ((6, 1), torch.float32), ((7, 5), torch.float16), ((8, 0), torch.bfloat16), ((9, 0), torch.bfloat16)])
def test_a_card_is_asked_for_its_capability(monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int],
                                            wanted: torch.dtype) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda: True)
    assert precision.decide("auto", torch.device("cuda")).dtype is wanted


@pytest.mark.parametrize(("features", "wanted"), [
    ({}, torch.float32), ({"avx512_bf16": True}, torch.bfloat16), ({"amx_bf16": True}, torch.bfloat16)])
def test_a_processor_is_asked_for_its_features(monkeypatch: pytest.MonkeyPatch, features: dict[str, bool],
                                               wanted: torch.dtype) -> None:
    monkeypatch.setattr(compute, "cpu_capabilities", lambda: features)
    assert precision.decide("auto", torch.device("cpu")).dtype is wanted


def test_emulation_is_refused_and_float32_is_always_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "cpu_capabilities", dict)
    with pytest.raises(UserError, match="no bfloat16 on this device: the processor has neither avx512_bf16") as caught:
        precision.decide("bfloat16", torch.device("cpu"))
    assert caught.value.hint == "Choose the precision `auto` or `float32`."
    assert precision.decide("float32", torch.device("cpu")).dtype is torch.float32
    with pytest.raises(UserError, match="no float16 on this device"):
        precision.decide("float16", torch.device("cpu"))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(UserError, match="no bfloat16 on this device: compute capability 7.5") as caught:
        precision.decide("bfloat16", torch.device("cuda"))
    assert caught.value.hint == "Choose the precision `auto` or `float16` or `float32`."


@pytest.mark.parametrize(("system", "capability", "wanted"), [
    ("linux", "AVX2", True), ("linux", "AVX512", True), ("linux", "DEFAULT", False), ("linux", "SVE256", False),
    ("darwin", "AVX2", False), ("win32", "AVX512", False)])
def test_bfloat16_weights_are_read_fast_where_that_was_measured(
    system: str, capability: str, wanted: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    assert compute.reads_bfloat16_fast() is wanted


def test_only_float16_scales_its_loss() -> None:
    scaled = [Precision("cpu", dtype, "").scaler().is_enabled()
              for dtype in (torch.float32, torch.bfloat16, torch.float16)]
    assert scaled == [False, False, True]


def test_a_cast_spares_what_is_trained_and_what_is_no_number_or_not_saved() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    module.register_buffer("computed", torch.ones(2), persistent=False)
    Precision("cpu", torch.bfloat16, "").cast(module, {"0.bias"})
    kinds = {name: value.dtype for name, value in module.state_dict().items()}
    assert kinds.pop("0.bias") is torch.float32
    assert kinds.pop("1.num_batches_tracked") is torch.int64
    assert set(kinds.values()) == {torch.bfloat16}
    assert module.get_buffer("computed").dtype is torch.float32


def test_a_missing_card_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as without_card:
        without_card.setattr(torch.cuda, "is_available", lambda: False)
        with pytest.raises(UserError, match="no CUDA device"):
            compute.setup_device("cuda")
    with emulated_cuda():
        assert compute.setup_device("auto") == torch.device("cuda")
        assert not torch.are_deterministic_algorithms_enabled()  # they slow every write to the cache of keys
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert compute.setup_device("auto") == torch.device("cpu")
    assert torch.are_deterministic_algorithms_enabled()
