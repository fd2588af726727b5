"""The kernels of training against torch's own operations, forward and backward.

Without a GPU they run in Triton's interpreter, whose products have no bfloat16.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from core.model.adapters import AdapterPlan, Adapters
from models import decoder
from models.decoder import Decoder, DecoderConfig, RMSNorm
from models.matmul_backends import Linear
from models.teacher_forcing import GuidedAttention
from tests.emulated_cuda import CUDA, REAL, emulated_cuda
from tests.parity import relative_error
from tests.triton_stand_in import DEVICE, kernel_module, patch_training

pytest.importorskip("triton")
pytestmark = pytest.mark.usefixtures("filled_memory")
DTYPES = (torch.float32, torch.float16, *((torch.bfloat16,) if REAL else ()))
BOUNDS = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}  # torch rounds every operation
KERNELS = ("triton", "stand-in")  # what stands in for them in the emulation of CUDA is compared too


@pytest.fixture(scope="module")
def module() -> ModuleType:
    return kernel_module("triton_training")


@pytest.fixture(params=KERNELS)
def kernels(module: ModuleType, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if request.param == "stand-in":
        patch_training(monkeypatch)
    return module


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    """A leaf that requires a gradient."""
    noise = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=noise).to(DEVICE, dtype).requires_grad_()


def compare(computed: Callable[[], Sequence[torch.Tensor]], wanted: Callable[[], Sequence[torch.Tensor]],
            leaves: Sequence[torch.Tensor], bound: float) -> None:
    """The results and the gradients of `leaves`, which are the same bits a second time."""
    def results_and_gradients(compute: Callable[[], Sequence[torch.Tensor]]) -> list[torch.Tensor]:
        results = compute()
        grads = [random(*result.shape, dtype=result.dtype, seed=9 + index).detach()
                 for index, result in enumerate(results)]
        return [*results, *torch.autograd.grad(results, leaves, grads)]

    found, again, true = map(results_and_gradients, (computed, computed, wanted))
    for one, other, reference in zip(found, again, true, strict=True):
        assert torch.equal(one, other)
        assert (one.dtype, one.shape) == (reference.dtype, reference.shape)
        assert relative_error(one.detach().float(), reference.detach().float()) < bound


@pytest.mark.covering
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 13])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("wide", [False, True], ids=["half residual", "float32 residual"])
def test_a_norm_and_the_addition_before_it(kernels: ModuleType, wide: bool, trained: bool, length: int,
                                           dtype: torch.dtype) -> None:
    """The sum is read after the norm too. The gradient of the weight is a sum over blocks of rows."""
    norm = RMSNorm(48, 1e-5).to(DEVICE, dtype)
    norm.weight.data = random(48, dtype=dtype, seed=3).detach()
    norm.weight.requires_grad_(trained)
    weights = [norm.weight] if trained else []
    hidden = random(2, length, 48, dtype=torch.float32 if wide else dtype)
    branch = random(2, length, 48, dtype=dtype, seed=1)

    def added() -> list[torch.Tensor]:
        return [hidden + branch, norm(hidden + branch)]

    bound = BOUNDS[dtype]
    compare(lambda: kernels.add_norm(hidden, branch, norm), added, [hidden, branch, *weights], bound)
    compare(lambda: kernels.add_norm(hidden, None, norm), lambda: [hidden, norm(hidden)], [hidden, *weights], bound)
    compare(lambda: [kernels.normalise(hidden, None, norm)], lambda: [norm(hidden)], [hidden, *weights], bound)
    compare(lambda: [kernels.normalise(hidden, branch, norm)], lambda: added()[1:], [hidden, branch, *weights], bound)
    compare(lambda: kernels.add_norm(hidden, branch, norm)[:1], lambda: added()[:1], [hidden, branch], bound)

    strided, norm.epsilon = hidden.transpose(0, 1), 0.1
    compare(lambda: kernels.add_norm(strided, branch.transpose(0, 1), norm),
            lambda: [part.transpose(0, 1) for part in added()], [hidden, branch, *weights], bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "size"), [(3, 16), (4, 24), (2, 64)])
@pytest.mark.parametrize("rows", [1, 2], ids=["rotation of all rows", "rotation by row"])
def test_a_rotation(kernels: ModuleType, rows: int, heads: int, size: int, dtype: torch.dtype) -> None:
    config = DecoderConfig(width=heads * size, layers=0, heads=heads, mlp_width=8)
    network = Decoder(config).to(DEVICE)
    positions = torch.stack([torch.arange(5), torch.arange(5) + 7])[:rows].to(DEVICE)
    rotation = tuple(part.to(dtype) for part in network.rotation(positions))
    queries, keys = random(2, 5, config.width, dtype=dtype), random(2, 5, config.width, dtype=dtype, seed=1)

    def wanted() -> list[torch.Tensor]:
        split = (part.unflatten(-1, (heads, size)).transpose(1, 2) for part in (queries, keys))
        return [decoder._rotate(part, rotation) for part in split]

    compare(lambda: kernels.rotate(queries, keys, heads, rotation), wanted, [queries, keys], BOUNDS[dtype])
    found = kernels.rotate(queries, keys, heads, rotation)
    assert all(part.transpose(1, 2).is_contiguous() for part in found)
    joined = torch.stack([queries, keys], 2)  # views of it are not contiguous
    again = kernels.rotate(joined[:, :, 0], joined[:, :, 1], heads, rotation)
    assert all(map(torch.equal, found, again))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 3, 5), (1, 33, 72)])
def test_swiglu(kernels: ModuleType, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate, up = random(*shape, dtype=dtype), random(*shape, dtype=dtype, seed=1)
    with torch.no_grad():
        gate.mul_(6)
        gate[0, 0, :3] = torch.tensor([-200.0, 200.0, 0.0])
    compare(lambda: [kernels.swiglu(gate, up)], lambda: [F.silu(gate) * up], [gate, up], BOUNDS[dtype])
    compare(lambda: [kernels.swiglu(gate.transpose(1, 2), up.transpose(1, 2))],
            lambda: [(F.silu(gate) * up).transpose(1, 2)], [gate, up], BOUNDS[dtype])
    compare(lambda: [kernels.swiglu(gate, gate)], lambda: [F.silu(gate) * gate], [gate], BOUNDS[dtype])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_products_of_the_same_rows(module: ModuleType, dtype: torch.dtype) -> None:
    """Of which some weights are trained, and one result may be without use; a wrapped layer is called itself."""
    layers = [Linear(48, outputs, bias=False).to(DEVICE, dtype) for outputs in (48, 16, 32)]
    layers[1].weight.requires_grad_(False)
    rows, trained = random(2, 5, 48, dtype=dtype), [layers[0].weight, layers[2].weight]

    def wanted() -> list[torch.Tensor]:
        return [layer(rows) for layer in layers]

    compare(lambda: module.linear(rows, layers), wanted, [rows, *trained], BOUNDS[dtype])
    compare(lambda: module.linear(rows, layers)[1:], lambda: wanted()[1:], [rows, trained[1]], BOUNDS[dtype])
    calls: list[nn.Module] = []
    layers[0].register_forward_hook(lambda layer, *_: calls.append(layer))
    compare(lambda: module.linear(rows, layers), wanted, [rows, *trained], BOUNDS[dtype])
    assert len(calls) == 3


def adapted_layers(dtype: torch.dtype, *, rate: float, adapted: Sequence[bool] = (True, False, True),
                   kind: str = "lora") -> list[Any]:
    """Linear layers of 48 inputs, some with an adapter of rank 4 and 6, whose second factor is not zero."""
    layers = nn.ModuleDict({
        f"layer_{index}": Linear(48, 16 * (index + 1), bias=False) for index in range(len(adapted))})
    layers.requires_grad_(False).to(DEVICE, dtype)
    names = [f"layer_{index}" for index, on in enumerate(adapted) if on]
    plan = AdapterPlan(kind, {name: 4 + 2 * index for index, name in enumerate(names)}, rate)  # type: ignore[arg-type]
    adapters = Adapters.fresh(layers, plan, 0)
    for index, value in enumerate(adapters.parameters().values()):
        value.data = random(*value.shape, dtype=value.dtype, seed=20 + index).detach() / 4
    adapters.switch(True)
    layers.to(DEVICE).train()
    return list(layers.values())


def factors_of(layers: Sequence[nn.Module]) -> list[torch.Tensor]:
    return [value for layer in layers for name, value in layer.named_parameters() if ".default." in name]


@pytest.mark.parametrize("precision", ["float32", "autocast"])
@pytest.mark.parametrize("adapted", [(True, False, True), (True, True, True), (True,)], ids=str)
def test_products_with_adapters(module: ModuleType, adapted: Sequence[bool], precision: str) -> None:
    """One result may be without use, and frozen rows have no gradient."""
    half = precision == "autocast"
    layers = adapted_layers(torch.bfloat16 if half else torch.float32, rate=0.0, adapted=adapted)
    context = (lambda: torch.autocast(DEVICE.type, torch.bfloat16)) if half else nullcontext
    rows, factors = random(2, 5, 48, dtype=torch.bfloat16 if half else torch.float32), factors_of(layers)
    bound = 3e-2 if half else 1e-5

    def computed() -> list[torch.Tensor]:
        with context():
            return module.linear(rows, layers)

    def wanted() -> list[torch.Tensor]:
        with context():
            return [layer(rows) for layer in layers]

    calls: list[nn.Module] = []
    hooks = [layer.lora_A["default"].register_forward_hook(lambda layer, *_: calls.append(layer))
             for layer in layers if hasattr(layer, "lora_A")]
    computed()
    assert len(calls) == sum(adapted)  # by a hook the layer is called itself
    for hook in hooks:
        hook.remove()
    compare(computed, wanted, [rows, *factors], bound)
    compare(lambda: computed()[-1:], lambda: wanted()[-1:], [rows, *factors_of(layers[-1:])], bound)
    frozen = rows.detach()
    with context():
        results, reference = module.linear(frozen, layers), [layer(frozen) for layer in layers]
    sums = [torch.stack([*map(weighted_sum, part)]).sum() for part in (results, reference)]
    pairs = [torch.autograd.grad(total, factors) for total in sums]
    assert all(relative_error(one, other) < bound for one, other in zip(*pairs, strict=True))


def test_adapters_of_the_same_rows_share_a_dropout_mask(module: ModuleType) -> None:
    layers, rows = adapted_layers(torch.float32, rate=0.25), random(2, 40, 48)
    dropped = torch.native_dropout(rows.detach().flatten(0, 1), 0.25, True)[1].view(rows.shape)

    def seeded() -> list[torch.Tensor]:
        torch.manual_seed(5)
        return module.linear(rows, layers)

    def wanted() -> list[torch.Tensor]:
        torch.manual_seed(5)
        kept = torch.native_dropout(rows.detach().flatten(0, 1), 0.25, True)[1].view(rows.shape)
        results = []
        for layer in layers:
            result = getattr(layer, "base_layer", layer)(rows)
            if hasattr(layer, "lora_A"):
                factor_a, factor_b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
                result = result + (rows * kept / 0.75) @ factor_a.T @ factor_b.T * layer.scaling["default"]
            results.append(result)
        return results

    assert 0.6 < dropped.float().mean() < 0.9
    compare(seeded, wanted, [rows, *factors_of(layers)], 1e-5)
    for layer in layers:
        layer.eval()
    compare(lambda: module.linear(rows, layers), lambda: [layer(rows) for layer in layers], [rows], 1e-5)


@pytest.mark.parametrize("kind", ["dora", "adalora"])
def test_other_adapters_are_called_themselves(module: ModuleType, kind: str) -> None:
    layers, rows = adapted_layers(torch.float32, rate=0.0, adapted=(True, True), kind=kind), random(2, 5, 48)
    for found, wanted in zip(module.linear(rows, layers), [layer(rows) for layer in layers], strict=True):
        assert torch.equal(found, wanted)
    assert module._product(layers[0]) is None


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("precision", ["float32", "autocast"])
def test_a_decoder_learns_adapters_as_by_torch(module: ModuleType, monkeypatch: pytest.MonkeyPatch, precision: str,
                                               checkpointing: bool) -> None:
    """Their factors are cast together, and no cast outlives the pass."""
    torch.manual_seed(0)
    half = precision == "autocast"
    network = Decoder(DecoderConfig(width=48, layers=2, heads=3, mlp_width=72)).to(DEVICE)
    network.requires_grad_(False).to(torch.bfloat16 if half else torch.float32)
    network.activation_checkpointing = checkpointing
    plan = AdapterPlan("lora", {"q_proj": 4, "v_proj": 4, "o_proj": 4, "gate_proj": 3, "up_proj": 3, "down_proj": 3})
    adapters = Adapters.fresh(network, plan, 0)
    for index, value in enumerate(adapters.parameters().values()):
        value.data = random(*value.shape, seed=20 + index).detach() / 4
    network.to(DEVICE)
    adapters.switch(True)
    hidden = random(2, 7, 48)
    leaves = [hidden, *adapters.parameters().values()]
    casts: list[int] = []
    plain = module._cast_together

    def counted(tensors: Sequence[torch.Tensor], dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        casts.append(len(tensors))
        return plain(tensors, dtype)

    monkeypatch.setattr(module, "_cast_together", counted)

    def states_and_gradients(kernels: ModuleType | None, *, autocast: bool) -> list[torch.Tensor]:
        monkeypatch.setattr(decoder, "training_kernels", lambda value: kernels)
        with torch.autocast(DEVICE.type, torch.bfloat16) if autocast else nullcontext(), adapters.uncast():
            states = network(hidden)
        return [states, *torch.autograd.grad(weighted_sum(states), leaves)]

    found, by_torch = states_and_gradients(module, autocast=half), states_and_gradients(None, autocast=half)
    assert casts == ([len(leaves) - 1] * 2 if half else [])  # forward, and backward
    assert not any(hasattr(layer, "cast_factors") for layer in network.modules())
    assert [value.dtype for value in found] == [value.dtype for value in by_torch]

    # In half precision both round: ours errs no more than torch does.
    network.float()
    exact = states_and_gradients(None, autocast=False)
    errors, torch_errors = ([relative_error(value.detach().float(), true.detach()) for value, true in zip(
        values, exact, strict=True)] for values in (found, by_torch))
    assert sum(errors) <= (1.1 * sum(torch_errors) if half else 1e-5 * len(errors))


def weighted_sum(states: torch.Tensor) -> torch.Tensor:
    """The squares alone, whose sum a norm keeps constant, would have no gradient."""
    return (states.float() * random(*states.shape, seed=5).detach().to(states.device)).sum()


@pytest.mark.covering
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("trained", [False, True], ids=["frozen", "trained"])
@pytest.mark.parametrize("precision", ["float32", "half", "autocast"])
@pytest.mark.parametrize("theta", [None, 10_000.0])
def test_a_decoder_learns_as_by_torch(module: ModuleType, monkeypatch: pytest.MonkeyPatch, theta: float | None,
                                      precision: str, trained: bool, checkpointing: bool) -> None:
    """In half precision, and under autocast with frozen weights in half precision or trained ones in float32.

    The guided attention loss, which computes queries and keys once more, is that of torch too.
    """
    torch.manual_seed(0)
    network = Decoder(DecoderConfig(width=48, layers=2, heads=3, mlp_width=72, rotary_theta=theta)).to(DEVICE)
    network.activation_checkpointing = checkpointing
    network.requires_grad_(trained)
    half = torch.bfloat16 if REAL or precision == "autocast" else torch.float16
    if precision == "half" or (precision == "autocast" and not trained):
        network.to(half)
    hidden = random(2, 7, 48, dtype=half if precision == "half" else torch.float32)
    leaves = [hidden, *network.parameters()] if trained else [hidden]
    text_at, codes_at = (torch.tensor([columns] * 2, device=DEVICE) for columns in ([1, 2], [3, 4, 5, 6]))
    centres = torch.tensor([[0.0, 0.3, 0.6, 1.0]] * 2, device=DEVICE)

    def states_and_gradients(kernels: ModuleType | None) -> list[torch.Tensor]:
        monkeypatch.setattr(decoder, "training_kernels", lambda value: kernels)
        with (torch.autocast(DEVICE.type, torch.bfloat16) if precision == "autocast" else nullcontext(),
              GuidedAttention(network, ((0, 1), (1, 0))) as guide):
            states = network(hidden)
            guided = guide.loss(text_at, codes_at, centres, torch.ones_like(centres))
        return [states, guided, *torch.autograd.grad(weighted_sum(states) + guided, leaves)]

    bound = 1e-4 if precision == "float32" else 5e-3 if half is torch.float16 else 4e-2
    for one, other in zip(states_and_gradients(module), states_and_gradients(None), strict=True):
        assert one.dtype == other.dtype
        assert relative_error(one.detach().float(), other.detach().float()) < bound


@pytest.mark.parametrize("triton", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_they_run_on_a_gpu_without_a_cache(triton: bool, dtype: torch.dtype) -> None:
    """Only a GPU has a backward pass: torch's engine asks its driver for a context."""
    torch.manual_seed(0)
    network = Decoder(DecoderConfig(width=48, layers=2, heads=3, mlp_width=72)).to(dtype)
    hidden = torch.randn(2, 7, 48, dtype=dtype)
    wanted = network(hidden)
    weighted_sum(wanted).backward()
    grads = [value.grad for value in network.parameters()]
    with emulated_cuda(triton=triton) as state:
        network.zero_grad()
        found = network.to(CUDA)(hidden.to(CUDA))
        assert relative_error(found.detach().cpu().float(), wanted.detach().float()) < 3 * BOUNDS[dtype]
        assert {name for name, kernel in state.kernels.items() if kernel.launches} == (
            {"add_norm", "rotate", "swiglu"} if triton and not REAL else set())
        if REAL:
            weighted_sum(found).backward()
            for one, other in zip(network.parameters(), grads, strict=True):
                assert one.grad is not None
                assert other is not None
                assert relative_error(one.grad.cpu().float(), other.float()) < 3 * BOUNDS[dtype]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_layers_last_branch_is_added_in_the_next_norm(module: ModuleType, monkeypatch: pytest.MonkeyPatch,
                                                        checkpointing: bool) -> None:
    """Unless layers are computed twice, where both would be kept."""
    network = Decoder(DecoderConfig(width=48, layers=3, heads=3, mlp_width=72)).to(DEVICE)
    network.activation_checkpointing = checkpointing
    monkeypatch.setattr(decoder, "training_kernels", lambda value: module)
    branches: list[bool] = []
    for layer in network.layers:
        layer.register_forward_pre_hook(lambda _, inputs: branches.append(inputs[1] is not None))
    network(random(2, 7, 48))
    assert branches == ([False] * 3 if checkpointing else [False, True, True])


def test_where_they_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not where torch compiles the layers, on another device or in another type."""
    with emulated_cuda(triton=True):
        there = torch.zeros(1, 2, 48, device=CUDA)
        assert decoder.training_kernels(there) is not None
        assert decoder.training_kernels(there.cpu()) is None
        assert decoder.training_kernels(there.double()) is None
        monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
        assert decoder.training_kernels(there) is None
