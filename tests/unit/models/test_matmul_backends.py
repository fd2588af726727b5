"""The layer that oneDNN computes is the plain one to rounding, learns like it, and is taken for it by adapters."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from core.model.adapters import AdapterPlan, Adapters
from models import cpu_loops, matmul_backends
from models.matmul_backends import Linear

needs_onednn = pytest.mark.skipif(not matmul_backends._HAS_ONEDNN, reason="this torch has no oneDNN")


def pair(bias: bool) -> tuple[nn.Linear, Linear]:
    torch.manual_seed(0)
    plain, ours = nn.Linear(64, 96, bias=bias), Linear(64, 96, bias=bias)
    ours.load_state_dict(plain.state_dict())
    return plain, ours


@pytest.fixture
def backends(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """No product is too small; the backend of each, and the number of its rows."""
    found: list[tuple[str, int]] = []

    def count(name: str, plain):
        def counted(given: torch.Tensor, *others):
            found.append((name, given.numel() // given.shape[-1]))
            return plain(given, *others)

        return counted

    monkeypatch.setattr(matmul_backends, "product", count("oneDNN", matmul_backends.product))
    monkeypatch.setattr(cpu_loops, "multiply", count("loops", cpu_loops.multiply))
    monkeypatch.setattr(matmul_backends, "_SMALL", 1)
    return found


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 1, 64), (15, 64), (16, 64), (47, 64), (48, 64), (3, 50, 64),
                                   (0, 64)])
@torch.inference_mode()
def test_it_is_the_plain_layer_to_rounding(bias: bool, shape: tuple[int, ...], backends: list[tuple[str, int]]) -> None:
    plain, ours = pair(bias)
    rows = torch.randn(shape)
    made, wanted = ours(rows), plain(rows)
    count = math.prod(shape[:-1])
    few = 48 if matmul_backends._HAS_AVX512 else 16
    assert backends == ([("loops" if count < few else "oneDNN", count)] if count else [])
    assert made.shape == wanted.shape
    assert torch.allclose(made, wanted, atol=1e-5)
    assert torch.equal(made, matmul_backends.linear(rows, ours.weight, ours.bias))


@needs_onednn
@torch.inference_mode()
def test_weights_with_fewer_outputs_than_their_width_meet_fifteen_rows_in_the_loops(
    backends: list[tuple[str, int]],
) -> None:
    for rows in (15, 16):
        matmul_backends.linear(torch.randn(rows, 96), torch.randn(64, 96))
    assert backends == [("loops", 15), ("oneDNN", 16)]


@pytest.mark.skipif(not matmul_backends._HAS_AVX512, reason="without AVX-512 the shape is no matter")
@torch.inference_mode()
def test_square_weights_meet_47_rows_in_the_loops(backends: list[tuple[str, int]]) -> None:
    for rows in (47, 48):
        matmul_backends.linear(torch.randn(rows, 64), torch.randn(64, 64))
    assert backends == [("loops", 47), ("oneDNN", 48)]


@pytest.mark.parametrize("rows", [(2, 64), (64, 2)])
@torch.inference_mode()
def test_what_the_loops_cannot_read_is_left_to_torch(rows: tuple[int, int], backends: list[tuple[str, int]]) -> None:
    weight = torch.randn(64, 96).t() if rows[1] == 64 else torch.randn(96, 2)
    given = torch.randn(rows)[:15]
    assert torch.equal(matmul_backends.linear(given, weight), torch.nn.functional.linear(given, weight))
    assert not backends
    with pytest.raises(RuntimeError):  # torch says what is wrong with the shapes
        matmul_backends.linear(torch.randn(2, 32), torch.randn(96, 64))


@torch.inference_mode()
def test_small_products_are_left_to_torch(backends: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    _, ours = pair(False)
    monkeypatch.setattr(matmul_backends, "_SMALL", 64 * 96 * 2 + 1)
    for rows in (1, 2, 3):
        ours(torch.randn(rows, 64))
    assert backends == [("loops", 3)]


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


@pytest.mark.usefixtures("backends")
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
