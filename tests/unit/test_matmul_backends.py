"""The layer that oneDNN computes is the plain one to rounding, learns like it, and is taken for it by adapters."""

from __future__ import annotations

import math
import time

import pytest
import torch
from torch import nn

from core.model.adapters import AdapterPlan, Adapters
from models import matmul_backends
from models.matmul_backends import Linear

needs_onednn = pytest.mark.skipif(not matmul_backends._HAS_ONEDNN, reason="this torch has no oneDNN")


def pair(bias: bool) -> tuple[nn.Linear, Linear]:
    torch.manual_seed(0)
    plain, ours = nn.Linear(64, 96, bias=bias), Linear(64, 96, bias=bias)
    ours.load_state_dict(plain.state_dict())
    return plain, ours


@pytest.fixture
def by_onednn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """oneDNN multiplies whatever there is to multiply; the number of rows of each of its products."""
    rows: list[int] = []
    product = matmul_backends.product

    def count(given: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        rows.append(given.numel() // given.shape[-1])
        return product(given, *others)

    monkeypatch.setattr(matmul_backends, "product", count)
    monkeypatch.setattr(matmul_backends, "_SMALL", 1)
    monkeypatch.setattr(matmul_backends, "_torch_is_slow", lambda: True)
    return rows


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 64), (2, 1, 64), (3, 50, 64), (0, 64)])
@torch.inference_mode()
def test_it_is_the_plain_layer_to_rounding(bias: bool, shape: tuple[int, ...], by_onednn: list[int]) -> None:
    plain, ours = pair(bias)
    rows = torch.randn(shape)
    made, wanted = ours(rows), plain(rows)
    assert by_onednn == ([math.prod(shape[:-1])] if rows.numel() else [])
    assert made.shape == wanted.shape
    assert torch.allclose(made, wanted, atol=1e-5)


@needs_onednn
@pytest.mark.parametrize("slow", [True, False])
@torch.inference_mode()
def test_what_torch_multiplies_as_fast_is_left_to_it(
    slow: bool, by_onednn: list[int], monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, ours = pair(False)
    monkeypatch.setattr(matmul_backends, "_torch_is_slow", lambda: slow)
    for rows in (1, 15, 16, 200):
        ours(torch.randn(rows, 64))
    assert by_onednn == ([1, 15, 16, 200] if slow else [16, 200])
    monkeypatch.setattr(matmul_backends, "_SMALL", 64 * 96 * 16 + 1)
    by_onednn.clear()
    for rows in (16, 17):
        ours(torch.randn(rows, 64))
    assert by_onednn == [17]


@needs_onednn
@pytest.mark.parametrize("slow", [True, False])
@torch.inference_mode()
def test_the_slower_of_the_two_is_found(slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of them takes longer than it does, by far more than they differ on any processor."""
    delayed, name = (matmul_backends.F, "linear") if slow else (matmul_backends, "product")

    def late(*given: torch.Tensor) -> torch.Tensor:
        time.sleep(2e-3)
        return given[0]

    monkeypatch.setattr(delayed, name, late)
    assert matmul_backends._torch_is_slow.__wrapped__() is slow


@pytest.mark.skipif(not torch.backends.mkl.is_available(), reason="torch is built without MKL")
@pytest.mark.parametrize("shape", [(64,), (1, 64), (1, 1, 64)])
@torch.inference_mode()
def test_one_row_is_the_first_of_two_by_torch(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    plain, ours = pair(False)
    monkeypatch.setattr(matmul_backends, "_torch_is_slow", lambda: False)
    monkeypatch.setattr(matmul_backends, "_SMALL", 0)
    row, multiplied, product = torch.randn(shape), list[int](), torch.nn.functional.linear

    def count(rows: torch.Tensor, *others: torch.Tensor | None) -> torch.Tensor:
        multiplied.append(len(rows))
        return product(rows, *others)

    monkeypatch.setattr(matmul_backends.F, "linear", count)
    found = ours(row)
    assert multiplied == [2]
    assert torch.equal(found, product(row.reshape(1, -1).expand(2, -1), ours.weight, ours.bias)[0].reshape(found.shape))
    assert torch.equal(found, matmul_backends.linear(row, ours.weight, ours.bias))
    assert found.shape == (*shape[:-1], 96)
    assert torch.allclose(found, plain(row), rtol=1e-5, atol=1e-5)


def test_it_gives_the_plain_gradient() -> None:
    plain, ours = pair(True)
    rows = torch.randn(5, 64)
    for layer in (plain, ours):
        layer(rows).square().sum().backward()
    assert torch.equal(plain.weight.grad, ours.weight.grad)


@torch.inference_mode()
def test_other_types_are_computed_by_torch() -> None:
    _, ours = pair(False)
    ours.double()
    assert ours(torch.randn(2, 64, dtype=torch.float64)).dtype == torch.float64


@pytest.mark.skipif(not matmul_backends.can_pack(torch.bfloat16), reason="oneDNN packs no bfloat16 on this processor")
@pytest.mark.parametrize("rows", [1, 2, 200])
@torch.inference_mode()
def test_packed_weights_give_the_same_product_for_any_number_of_rows(rows: int) -> None:
    weight, given = torch.randn(96, 64).bfloat16(), torch.randn(rows, 64).bfloat16()
    made = matmul_backends.product(given, matmul_backends.pack(weight, 2)).float()
    assert torch.allclose(made, given.float() @ weight.float().T, rtol=1e-2, atol=1e-1)


@pytest.mark.usefixtures("by_onednn")
@torch.inference_mode()
def test_an_adapter_that_is_off_leaves_its_product_to_the_bit() -> None:
    _, ours = pair(False)
    holder, rows = nn.ModuleDict({"q_proj": ours}), torch.randn(7, 64)
    wanted = ours(rows)
    adapters = Adapters.fresh(holder, AdapterPlan("lora", {"q_proj": 4}), 0)
    nn.init.normal_(next(value for name, value in adapters.parameters().items() if "lora_B" in name))
    wrapped = holder["q_proj"]
    assert wrapped is not ours
    assert torch.equal(wrapped(rows), wanted)
    adapters.switch(True)
    assert not torch.allclose(wrapped(rows), wanted)
