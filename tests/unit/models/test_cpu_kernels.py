"""A decoding step on a CPU in few operations, against the modules' own forward passes."""

from __future__ import annotations

import math
from contextlib import ExitStack

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from core.model.adapters import AdapterPlan, Adapters
from models import cpu_kernels, matmul_backends
from models.decoder import Decoder, DecoderConfig, KVCache, RotaryScaling, step_kernels
from models.gpt2 import GPT2
from models.quantize import quantize_

ROWS, CAPACITY, FILLED = 4, 40, 30
CONFIGS = {
    "decoder": DecoderConfig(64, 2, 2, 128, rotary_scaling=RotaryScaling()),
    "gpt2": DecoderConfig(64, 2, 2, 128, rotary_theta=None),
}
WRAPPED = {"decoder": ("k_proj", "o_proj", "gate_proj"), "gpt2": ("c_attn", "c_fc")}


def network(kind: str) -> nn.Module:
    torch.manual_seed(0)
    made = Decoder(CONFIGS[kind]) if kind == "decoder" else GPT2(CONFIGS[kind])
    for value in made.parameters():
        nn.init.normal_(value, 1.0 if value.ndim == 1 else 0.0, 0.1)
    return made.requires_grad_(False).eval()


def convert(module: nn.Module, weights: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`widened`: bfloat16 on a processor that does not multiply it."""
    if weights == "widened":
        monkeypatch.setattr(matmul_backends, "_multiplies_bfloat16", lambda: False)
    if weights != "float32":
        quantize_(module, "int8" if weights == "int8" else "bfloat16", "layers" if isinstance(module, Decoder) else "h")


def step(module: nn.Module, aligned: bool, rows: int = ROWS,
         stored: torch.dtype = torch.float32) -> tuple[torch.Tensor, KVCache]:
    """The states after a step on rows at the last position of the cache, or at different ones, and the cache."""
    cache = KVCache(module.config, rows, CAPACITY, torch.device("cpu"), stored)  # type: ignore[arg-type]
    cache.storage.normal_(generator=torch.Generator().manual_seed(1))
    cache.span, cache.aligned, cache.watched = FILLED, aligned, frozenset({1})
    positions = torch.full((rows, 1), FILLED - 1) if aligned else torch.tensor([[7], [29], [0], [12]])
    hidden = torch.randn(rows, 1, 64, generator=torch.Generator().manual_seed(2))
    with torch.inference_mode():
        return module(hidden, cache, positions), cache


def assert_as_the_modules(module: nn.Module, monkeypatch: pytest.MonkeyPatch, aligned: bool, bound: float) -> None:
    found, cache = step(module, aligned)
    with monkeypatch.context() as patch:
        for name in ("decoder", "gpt2"):
            patch.setattr(f"models.{name}.step_kernels", lambda *_: None)
        wanted, true = step(module, aligned)
    assert (found - wanted).norm() < bound * wanted.norm()
    assert (cache.storage - true.storage).norm() < bound * true.storage.norm()
    if isinstance(module, Decoder):  # GPT-2's queries are not watched
        assert (cache.queries[1] - true.queries[1]).norm() < bound * true.queries[1].norm()


@pytest.mark.parametrize("aligned", [True, False])
@pytest.mark.parametrize("size", ["as it is", "large enough for the loops"])
@pytest.mark.parametrize("weights", ["float32", "bfloat16", "widened", "int8"])
@pytest.mark.parametrize("kind", CONFIGS)
def test_a_step_is_that_of_the_modules(
    kind: str, weights: str, size: str, aligned: bool, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if size != "as it is":
        monkeypatch.setattr(matmul_backends, "_SMALL", 0)
    module = network(kind)
    convert(module, weights, monkeypatch)
    assert_as_the_modules(module, monkeypatch, aligned, 1e-2 if weights == "bfloat16" else 2e-4)


@pytest.mark.parametrize("rows", [3, 4])
@pytest.mark.parametrize("kind", CONFIGS)
def test_bfloat16_takes_the_loops_for_fewer_than_four_rows_and_a_cache_of_its_type(
    kind: str, rows: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matmul_backends, "_SMALL", 0)
    module, products = network(kind), []
    quantize_(module, "bfloat16", "layers" if kind == "decoder" else "h")
    monkeypatch.setattr("models.quantize.product",
                        lambda *given: products.append(given) or matmul_backends.product(*given))
    found, cache = step(module, True, rows, torch.bfloat16)
    assert bool(products) == (rows == 4 and matmul_backends.can_pack(torch.bfloat16))
    with monkeypatch.context() as patch:
        for name in ("decoder", "gpt2"):
            patch.setattr(f"models.{name}.step_kernels", lambda *_: None)
        wanted, true = step(module, True, rows, torch.bfloat16)
    assert (found - wanted).norm() < 1e-2 * wanted.norm()
    assert (cache.storage.float() - true.storage.float()).norm() < 1e-2 * true.storage.float().norm()


@pytest.mark.parametrize("rows", [None, [True, False]], ids=["all rows", "some rows"])
@pytest.mark.parametrize("weights", ["float32", "widened", "int8"])
@pytest.mark.parametrize(("kind", "adapter"), [("decoder", "lora"), ("decoder", "dora"), ("decoder", "adalora"),
                                               ("gpt2", "lora")])
def test_layers_with_adapters_are_called_as_they_are(
    kind: str, adapter: str, weights: str, rows: list[bool] | None, monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = network(kind)
    adapters = Adapters.fresh(module, AdapterPlan(adapter, dict.fromkeys(WRAPPED[kind], 4)), seed=0)  # type: ignore[arg-type]
    noise = torch.Generator().manual_seed(3)
    for value in adapters.parameters().values():
        value.data.add_(0.2 * torch.randn(value.shape, generator=noise))
    module.eval()
    plain, _ = step(module, True)
    with adapters.enabled(True):
        step(module, True)  # DoRA's norms, which need the weights as they were
    convert(module, weights, monkeypatch)
    with ExitStack() as stack:
        stack.enter_context(adapters.enabled(True) if rows is None else adapters.enabled_for_rows(rows))
        assert_as_the_modules(module, monkeypatch, True, 2e-4)
        adapted, _ = step(module, True)
    changed = (adapted - plain).flatten(1).norm(dim=1) > 0.05 * plain.flatten(1).norm(dim=1)
    assert changed.tolist() == (rows or [True, True]) * (ROWS // 2)


@pytest.mark.parametrize("size", ["as it is", "large enough for the loops"])
@pytest.mark.parametrize("weights", ["float32", "widened", "int8"])
@pytest.mark.parametrize(("kind", "adapter"), [("decoder", "lora"), ("decoder", "dora"), ("gpt2", "lora")])
def test_rows_without_adapters_are_bit_identical_with_the_model_that_has_none(
    kind: str, adapter: str, weights: str, size: str, monkeypatch: pytest.MonkeyPatch,
) -> None:
    if size != "as it is":
        monkeypatch.setattr(matmul_backends, "_SMALL", 0)
    module, adapted = network(kind), network(kind)
    adapters = Adapters.fresh(adapted, AdapterPlan(adapter, dict.fromkeys(WRAPPED[kind], 4)), seed=0)  # type: ignore[arg-type]
    for value in adapters.parameters().values():
        value.data.add_(0.2)
    adapted.eval()
    with adapters.enabled(True):
        step(adapted, True)  # DoRA's norms, which need the weights as they were
    for each in (module, adapted):
        convert(each, weights, monkeypatch)
    wanted, stored = step(module, True)
    for rows in ([False] * ROWS, [True, False, False, True]):
        with adapters.enabled_for_rows(rows):
            found, cache = step(adapted, True)
        same = ~torch.tensor(rows)
        assert torch.equal(found[same], wanted[same])
        assert torch.equal(cache.storage[:, :, same], stored.storage[:, :, same])
        assert not any(torch.equal(found[row], wanted[row]) for row in range(ROWS) if rows[row])


@torch.inference_mode()
def test_a_row_of_zeros_stays_one() -> None:
    module = network("decoder")
    quantize_(module, "int8", "layers")
    made = cpu_kernels.linear(torch.zeros(2, 64), [module.layers[0].self_attn.o_proj])  # type: ignore[index, union-attr]
    assert torch.equal(made, torch.zeros(2, 64))


@torch.inference_mode()
def test_large_numbers_are_those_of_torch_and_nan_stays_in_its_row() -> None:
    torch.manual_seed(0)
    gate, up = nn.Linear(4, 64, bias=False), nn.Linear(4, 64, bias=False)
    rows = torch.tensor([1.0, 30.0, 1e4, 1e12, math.nan, 0.0])[:, None] * torch.randn(1, 4)
    wanted = F.silu(gate(rows)) * up(rows)
    mlp = nn.ModuleDict({"gate_proj": gate, "up_proj": up})
    quantize_(mlp, "int8")
    found = cpu_kernels.linear(rows, [mlp["gate_proj"], mlp["up_proj"]], activation="swiglu")
    assert found[4].isnan().all()
    for row in (0, 1, 2, 3, 5):
        assert (found[row] - wanted[row]).norm() <= 2e-2 * wanted[row].norm()


@torch.inference_mode()
def test_gelu_is_that_of_torch_at_any_size() -> None:
    layer = nn.Linear(1, 401)
    nn.init.constant_(layer.weight, 0.0)
    layer.bias.copy_(torch.linspace(-20, 20, 401))
    module = nn.ModuleDict({"c_fc": layer})
    quantize_(module, "int8")
    found = cpu_kernels.linear(torch.ones(2, 1), [module["c_fc"]], activation="gelu")
    assert torch.allclose(found[0], F.gelu(layer.bias, approximate="tanh"), rtol=1e-5, atol=1e-6)


def test_training_and_prefills_are_left_to_the_modules() -> None:
    module = network("decoder")
    with torch.inference_mode():
        assert step_kernels(torch.zeros(2, 1, 64), module) is cpu_kernels
        assert step_kernels(torch.zeros(2, 3, 64), module) is None
        assert step_kernels(torch.zeros(2, 1, 64, dtype=torch.bfloat16), module) is None
    assert step_kernels(torch.zeros(2, 1, 64), module) is None
