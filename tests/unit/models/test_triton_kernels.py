"""The kernels of a decoding step, in Triton's interpreter or on a GPU, against torch's operations on a CPU."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from core.model.adapters import AdapterPlan, Adapters
from models import merged_adapters
from models.decoder import Decoder, DecoderConfig, KVCache
from tests.triton_stand_in import DEVICE, Kernel, attend, kernel_module, linear
from tests.unit.models.test_cpu_kernels import CONFIGS, network

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("filled_memory")
HALF = torch.float16  # the interpreter's products have no bfloat16
ROWS, CAPACITY, FILLED = 3, 160, 140
NAMES = {"decoder": ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"), "gpt2": ("c_attn", "c_proj")}


@pytest.fixture(scope="module")
def kernels() -> ModuleType:
    return kernel_module("triton_kernels")


def random_cache(config: DecoderConfig) -> KVCache:
    cache = KVCache(config, ROWS, CAPACITY, torch.device("cpu"), HALF)
    cache.storage.normal_(generator=torch.Generator().manual_seed(1))
    cache.span = FILLED
    return cache


@torch.inference_mode()
def compare(kernels: ModuleType, module: nn.Module, adapters: Adapters | None) -> None:
    """A step of the kernels in half precision, and of torch in float32 on a CPU, on rows at different positions."""
    cache, positions = random_cache(module.config), torch.tensor([7, 128, 139])[:ROWS]  # type: ignore[arg-type]
    hidden = torch.randn(ROWS, 1, 64, generator=torch.Generator().manual_seed(2)).to(HALF)
    wide, watched = random_cache(module.config), frozenset({module.config.layers - 1})  # type: ignore
    wide.storage = wide.storage.float()
    cache.watched = wide.watched = watched if isinstance(module, Decoder) else frozenset()
    with ExitStack() as stack:
        if adapters is not None:
            stack.enter_context(adapters.enabled(True))
            layers: Any = list(filter(merged_adapters.adapted, module.linear_layers))  # type: ignore[arg-type]
            merged_adapters.merge(layers)
            for layer in layers:
                layer.merged_weight = layer.merged_weight.to(DEVICE, HALF)
        wanted = module(hidden.float(), wide, positions[:, None])
        module.to(DEVICE, HALF)
        cache.storage = cache.storage.to(DEVICE)
        found = module._step(kernels, hidden[:, 0].to(DEVICE), cache, positions.to(DEVICE)).cpu()  # type: ignore[operator]
        cache.storage = cache.storage.cpu()
    assert (found.float() - wanted).norm() < 5e-3 * wanted.norm()
    for row, position in enumerate(positions):  # what was written
        written, true = cache.storage[:, :, row, :, position].float(), wide.storage[:, :, row, :, position]
        assert (written - true).norm() < 5e-3 * true.norm()
    wide.storage[:, :, range(ROWS), :, positions] = cache.storage.float()[:, :, range(ROWS), :, positions]
    assert torch.equal(cache.storage.float(), wide.storage)
    for layer, queries in wide.queries.items():
        assert (cache.queries[layer].cpu().float() - queries).norm() < 5e-3 * queries.norm()


@torch.inference_mode()
def test_rows_at_one_position_may_share_its_memory(kernels: ModuleType) -> None:
    """As those of an expanded tensor do."""
    config, found = CONFIGS["decoder"], []
    for position in (torch.tensor([7, 7, 7]), torch.tensor([7]).expand(3)):
        cache = random_cache(config)
        cache.storage = cache.storage.to(DEVICE)
        joined = torch.randn(ROWS, 3 * 64, generator=torch.Generator().manual_seed(3)).to(DEVICE, HALF)
        mixed = kernels.attend(joined, config.heads, None, cache, 0, position.to(DEVICE))
        found.append((mixed.cpu(), cache.storage.cpu()))
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_step_is_that_of_torch(kernels: ModuleType, kind: str) -> None:
    compare(kernels, network(kind), None)


@pytest.mark.parametrize(("kind", "adapter"), [("decoder", "lora"), ("decoder", "dora"), ("decoder", "adalora"),
                                               ("gpt2", "lora")])
def test_what_stands_in_for_them_computes_the_same(kernels: ModuleType, kind: str, adapter: str,
                                                   monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_few_rows", Kernel(linear))
    monkeypatch.setattr(kernels, "_many_rows", Kernel(linear))
    monkeypatch.setattr(kernels, "_attend", Kernel(attend))
    test_adapters_act_as_in_torch(kernels, kind, adapter)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("rows", [1, 2])
def test_a_step_of_few_rows_is_that_of_torch(kernels: ModuleType, kind: str, rows: int,
                                             monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROWS", rows)
    monkeypatch.setattr(kernels, "_few_rows_blocks", lambda width, outputs, gated: (16, 4))  # the interpreter is slow
    if rows == 2:  # and adds every pair of their products alone
        monkeypatch.setitem(CONFIGS, kind, replace(CONFIGS[kind], layers=1))
    compare(kernels, network(kind), None)


@pytest.mark.parametrize("block", [32, 64, 256])
def test_attention_in_blocks_of_any_size_is_that_of_torch(kernels: ModuleType, block: int,
                                                         monkeypatch: pytest.MonkeyPatch) -> None:
    """Positions 7, 128 and 139: before a block's end, at it and after it."""
    monkeypatch.setattr(kernels, "_attend_blocks", lambda programs, span: (block, 4))
    compare(kernels, network("decoder"), None)


@pytest.fixture
def as_bfloat16(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is chosen for bfloat16 is chosen for float16 too."""
    monkeypatch.setattr(kernels, "_WIDE", (torch.bfloat16, HALF))


@pytest.mark.usefixtures("as_bfloat16")
def test_a_norm_after_the_product_is_that_of_torch(kernels: ModuleType) -> None:
    compare(kernels, network("decoder"), None)


@pytest.mark.parametrize(("kind", "adapter"), [("decoder", "lora"), ("decoder", "dora"), ("decoder", "adalora"),
                                               ("gpt2", "lora")])
@pytest.mark.usefixtures("as_bfloat16")
def test_adapters_act_as_in_torch(kernels: ModuleType, kind: str, adapter: str) -> None:
    module = network(kind)
    plan = AdapterPlan(adapter, {name: 4 if name == "q_proj" and adapter != "adalora" else 5  # type: ignore[arg-type]
                                 for name in NAMES[kind]})
    adapters = Adapters.fresh(module, plan, seed=0)
    noise = torch.Generator().manual_seed(3)
    for value in adapters.parameters().values():
        value.data.add_(0.2 * torch.randn(value.shape, generator=noise))
    module.eval()
    compare(kernels, module, adapters)


@pytest.mark.parametrize("rows", [1, 2, 3, 17, 64])
def test_any_number_of_rows_is_computed(kernels: ModuleType, rows: int) -> None:
    torch.manual_seed(rows)
    layer, given = nn.Linear(128, 80).half(), torch.randn(rows, 128).half()
    with torch.inference_mode():
        wanted = layer.float()(given.float()) + given.float()[:, :80]
        layer, on_device = layer.to(DEVICE, HALF), given.to(DEVICE)
        found = kernels.linear(on_device, [layer], residual=on_device[:, :80].contiguous()).cpu()
    assert (found.float() - wanted).norm() < 2e-3 * wanted.norm()


def test_what_cannot_be_computed_is_refused(kernels: ModuleType) -> None:
    half, layers = torch.zeros(2, 1, 128, dtype=HALF), [nn.Linear(128, 128).half()]
    with torch.inference_mode():
        assert kernels.supports(half, 32, layers)
        assert not kernels.supports(torch.zeros(65, 1, 128, dtype=HALF), 32, layers)
        assert not kernels.supports(torch.zeros(2, 2, 128, dtype=HALF), 32, layers)
        assert not kernels.supports(half, 20, layers)
        assert not kernels.supports(half, 32, [nn.Linear(128, 128)])
        assert not kernels.supports(half, 32, [nn.Linear(100, 128).half()])
    assert not kernels.supports(half, 32, layers)  # with gradients


def lost_by_loops(source: str) -> list[str]:
    """Assignments in loops of kernels by which Triton's compiler would not carry a value to the next turn.

    It carries a variable if one turn gives it another value than it has before the loop. Of two variables that begin as
    one value, one that is given the other's has that value still after one turn, and so keeps it in all of them.
    """
    lost = []
    for kernel in ast.walk(ast.parse(source)):
        if not isinstance(kernel, ast.FunctionDef):
            continue
        begun: dict[str, str] = {}  # the name of the value that a variable has, which is its own unless it was copied
        for node in ordered(kernel):
            if isinstance(node, (ast.For, ast.While)) and "static_range" not in ast.unparse(node).split(":")[0]:
                lost += [f"{target} = {value}" for part in ordered(node) for target, value in assigned(part)
                         if isinstance(value, str) and begun.get(target, target) == begun.get(value, value) != target]
            for target, value in assigned(node):
                begun[target] = begun.get(value, value) if isinstance(value, str) else target
    return lost


def ordered(node: ast.AST) -> Iterator[ast.AST]:
    """What is in the node, in the order of the source."""
    for child in ast.iter_child_nodes(node):
        yield child
        yield from ordered(child)


def assigned(node: ast.AST) -> Iterator[tuple[str, str | None]]:
    """Names that are assigned to, and the name of what each is given, None if that is computed."""
    if not isinstance(node, ast.Assign):
        return
    (target,), value = node.targets, node.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple):
        pairs = list(zip(target.elts, value.elts if isinstance(value, ast.Tuple) else [value] * len(target.elts),
                         strict=True))
    for one, given in pairs:
        if isinstance(one, ast.Name):
            yield one.id, given.id if isinstance(given, ast.Name) else None


def test_no_loop_loses_what_moves_from_one_variable_to_another() -> None:
    """The interpreter runs such loops right: BigVGAN's activation, whose window moved so, was noise on a GPU."""
    begin = ("zero = zeros()\n  first, last = zero, zero", "first = zeros()\n  last = zeros()")
    loops = [f"def kernel():\n  {how}\n  for step in range(4):\n    first = last\n    last = last + step"
             for how in begin]
    assert [lost_by_loops(loop) for loop in loops] == [["first = last"], []]
    for path in sorted((Path(__file__).parents[3] / "models").glob("triton_*.py")):
        assert lost_by_loops(path.read_text()) == [], path.name
