"""The Triton kernel of the flow's estimator, in Triton's interpreter, and what stands in for it."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.parity import relative_error
from tests.triton_stand_in import Kernel, normalise

pytest.importorskip("triton")


@pytest.fixture(params=["kernel", "stand-in"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    from triton import knobs

    if not knobs.runtime.interpret:
        pytest.skip("the kernels are compiled here, and tests/contract/test_cuda.py tries them")
    module = importlib.import_module("models.chatterbox.flow_kernels")
    if request.param == "stand-in":
        monkeypatch.setattr(module, "_normalise", Kernel(normalise))
    return module


@pytest.mark.parametrize("width", [24, 64])
@pytest.mark.parametrize("length", [1, 2, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@torch.inference_mode()
def test_it_computes_what_torch_does(kernels: ModuleType, dtype: torch.dtype, length: int, width: int) -> None:
    noise = torch.Generator().manual_seed(length)
    rows, added, whole = (4 * torch.randn(3, 2, length, width, generator=noise)).unbind()
    state, norm = torch.randn(width, generator=noise), nn.LayerNorm(width)
    norm.weight.normal_(generator=noise)
    norm.bias.normal_(generator=noise)
    bound = 1e-5 if dtype is torch.float32 else 2e-3

    total, made = kernels.normalise(rows, norm, dtype, added=added.to(dtype))
    assert relative_error(total, rows + added.to(dtype)) < 1e-6
    assert made.dtype == dtype
    assert relative_error(made.float(), norm(total)) < bound

    for after in (state, whole):
        total, made = kernels.normalise(rows.to(dtype), norm, torch.float32, mish=True, after=after)
        assert total.dtype == dtype
        assert relative_error(made, F.mish(norm(total.float())) + after) < 1e-5

    _, made = kernels.normalise(10 * rows, None, dtype, mish=True, taps=True)
    wanted = F.pad(F.mish(10 * rows), (0, 0, 2, 0)).unfold(1, 3, 1).transpose(2, 3).flatten(2)
    assert relative_error(made.float(), wanted) < bound
    assert not made[:, 0, :2 * width].any()
