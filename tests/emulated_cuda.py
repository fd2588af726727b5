"""CUDA for tests on a machine without a GPU: tensors that claim to be on `cuda` and have their values on the CPU.

Inside `emulated_cuda()` the code under test runs as on a GPU: it takes the branches of `device.type == "cuda"`, an
operation on tensors of both devices is refused as torch refuses it, and a tensor reaches the host only through a copy
or a read, which are counted. `torch.cuda.graph` records the operations of its region and replays them on the very
memory that they touched. So what a graph must not do is refused, or gives other values than without graphs:

- reads by the host, copies between the devices and shapes that depend on values, in a captured region;
- memory that was freed after the capture (a tensor that was replaced by a new one);
- results of a captured region that are read after the next replay.

An index out of bounds raises here, also in the warm-up. Where there is a real GPU, nothing is emulated. With `triton`
a step calls Triton's kernels, for which torch's operations stand in (`tests.triton_stand_in`). Not emulated: other
kernels and their rounding, streams, the limits of memory, and torch.compile.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes, return_and_correct_aliasing

from tests.triton_stand_in import Kernel, patch_triton

CUDA, CPU = torch.device("cuda"), torch.device("cpu")
_POOLS = itertools.count()  # of graphs
REAL = torch.cuda.is_available()  # before anything is emulated
aten = torch.ops.aten
_INDEXING = frozenset((aten.index.Tensor, aten.index_put.default, aten.index_put_.default,
                       aten._index_put_impl_.default))
_COPYING = frozenset((aten.copy_.default, aten._to_copy.default, aten.set_.source_Tensor))
_SHAPED_BY_VALUES = frozenset((aten.nonzero.default, aten.masked_select.default, aten._unique2.default,
                               aten.unique_dim.default, aten.repeat_interleave.Tensor))
_WITHOUT_TENSORS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout,
                              torch.memory_format))


class CudaTensor(torch.Tensor):
    """A tensor that says that it is on a GPU; `host` has its values."""

    host: torch.Tensor

    @staticmethod
    def __new__(cls, host: torch.Tensor) -> CudaTensor:
        made: CudaTensor = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, host.shape, strides=host.stride(), storage_offset=host.storage_offset(), dtype=host.dtype,
            device=CUDA, requires_grad=host.requires_grad)
        made.host = host
        return made

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _dispatch(func, args, kwargs or {})

    @property
    def data(self) -> torch.Tensor:
        return self.detach()

    @data.setter
    def data(self, value: CudaTensor) -> None:
        torch.Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.host = value.host

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __repr__(self, **_: object) -> str:
        return f"CudaTensor({self.host!r})"


class _Device(TorchDispatchMode):
    """Brings operations without a tensor on the GPU here too: those that make one, and copies to it."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if _is_composite(func):
            with self:  # its parts, which inference mode does not take apart
                return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs or {})
        return _dispatch(func, args, kwargs or {})


@dataclass
class _Recorded:
    """An operation: arguments as `_Memory`, and what it made."""

    func: Any
    args: Any
    kwargs: dict[str, Any]
    results: list[torch.Tensor]  # on the host, made in the region; empty where the operation writes its arguments
    reads_memory: bool  # a `_Memory` is among the arguments


@dataclass
class _Memory:
    """A tensor that was there before the region: where it is, not the tensor itself, as a graph knows it."""

    storage: Callable[[], torch.UntypedStorage | None]
    dtype: torch.dtype
    layout: tuple[int, torch.Size, tuple[int, ...]]

    def tensor(self) -> torch.Tensor:
        storage = self.storage()
        if storage is None:
            raise AssertionError("a CUDA graph reads or writes memory that was freed after its capture")
        return torch.empty(0, dtype=self.dtype).set_(storage, *self.layout)  # type: ignore[call-overload]


@dataclass
class EmulatedGraph:
    """Stands for `torch.cuda.CUDAGraph`."""

    operations: list[_Recorded] = field(default_factory=list)
    made: weakref.WeakSet[torch.UntypedStorage] = field(default_factory=weakref.WeakSet)
    before: dict[torch.UntypedStorage, torch.UntypedStorage] = field(default_factory=dict)  # copies of what it writes

    def replay(self) -> None:
        """Every operation once more, on the same memory."""
        state.replays += 1
        with _disable_current_modes(), torch.inference_mode():
            for one in self.operations:
                args, kwargs = one.args, one.kwargs
                if one.reads_memory:
                    args, kwargs = _map(_tensor_of, args), _map(_tensor_of, kwargs)
                made = one.func(*args, **kwargs)
                if one.results:
                    for old, new in zip(one.results, _tensors(made), strict=True):
                        old.copy_(new)
            for one in self.operations:  # another graph may use this memory now
                for value in one.results:
                    if value.is_floating_point():
                        value.fill_(torch.nan)


@dataclass
class State:
    """What happened since `emulated_cuda` began."""

    host_reads: int = 0  # values that the host waited for
    replays: int = 0
    captures: int = 0
    kernels: dict[str, Kernel] = field(default_factory=dict)  # Triton's
    capturing: EmulatedGraph | None = None


state = State()


@cache
def _is_composite(func) -> bool:
    """Whether an operation consists of others."""
    has: bool = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return has


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments or results with each tensor or `_Memory` in them changed."""
    kind = type(value)
    if kind in _WITHOUT_TENSORS:
        return value
    if isinstance(value, (torch.Tensor, _Memory)):
        return change(value)
    if kind is tuple or kind is list:
        return kind([_map(change, one) for one in value])
    if kind is dict:
        return {name: _map(change, one) for name, one in value.items()}
    if isinstance(value, tuple | list):
        return kind([_map(change, one) for one in value])
    return value


def _tensors(value: Any) -> list[Any]:
    """The tensors, and each `_Memory`, among arguments or results."""
    kind = type(value)
    if kind in _WITHOUT_TENSORS:
        return []
    if isinstance(value, (torch.Tensor, _Memory)):
        return [value]
    tensors = []
    if isinstance(value, tuple | list):
        for element in value:
            if type(element) not in _WITHOUT_TENSORS:
                tensors += _tensors(element)
    elif isinstance(value, dict):
        for element in value.values():
            tensors += _tensors(element)
    return tensors


def _tensor_of(value: Any) -> torch.Tensor:
    return value.tensor() if isinstance(value, _Memory) else value


def _fused_lstm_cell(input_gates, hidden_gates, cell, input_bias=None, hidden_bias=None):
    """What the kernel of a GPU computes (Hochreiter and Schmidhuber 1997); the third result is for the backward."""
    gates = input_gates + hidden_gates
    if input_bias is not None:
        gates = gates + input_bias + hidden_bias
    entry, forget, candidate, output = gates.chunk(4, -1)
    new = forget.sigmoid() * cell + entry.sigmoid() * candidate.tanh()
    return output.sigmoid() * new.tanh(), new, gates


def _flash_attention(query, key, value, query_offsets, key_offsets, queries, keys, dropout, causal, debug, *,
                     scale=None, seqused_k=None):
    """Of rows (B * F, H, D) that are joined, over the first `seqused_k` (B,) keys of each; (B * F, H, D) first."""
    assert seqused_k is not None
    assert (dropout, causal, debug) == (0, False, False)
    parts = query.unflatten(0, (-1, queries)), key.unflatten(0, (-1, keys)), value.unflatten(0, (-1, keys))
    for offsets, count in ((query_offsets, queries), (key_offsets, keys)):
        assert offsets.tolist() == [row * count for row in range(len(seqused_k) + 1)]
    rows = [torch.nn.functional.scaled_dot_product_attention(one[:, None], other[:, None, :length],
                                                             third[:, None, :length], scale=scale)[:, 0]
            for one, other, third, length in zip(*(part.transpose(1, 2) for part in parts), seqused_k.tolist(),
                                                 strict=True)]
    # NaN where the kernel gives the number of a softmax: no caller reads it
    return torch.stack(rows).transpose(1, 2).flatten(0, 1), *(query.new_full((1,), torch.nan) for _ in range(4))


_SUBSTITUTES = {  # operations that no CPU has
    aten._thnn_fused_lstm_cell.default: _fused_lstm_cell,
    aten._flash_attention_forward.default: _flash_attention,
}


def _host(value: object) -> object:
    return value.host if isinstance(value, CudaTensor) else value


def _wrapped(value: object) -> object:
    return CudaTensor(value) if isinstance(value, torch.Tensor) and not isinstance(value, CudaTensor) else value


def _dispatch(func, args, kwargs):
    """One operation: check the devices, compute on the CPU, and record it where a graph is captured."""
    given = _tensors((args, kwargs))
    on_gpu = [value for value in given if isinstance(value, CudaTensor)]
    target = kwargs.get("device")
    to_gpu = target is not None and torch.device(target).type == "cuda"
    if not on_gpu and not to_gpu and func is not aten.copy_.default:
        return func(*args, **kwargs)
    mixed = [value for value in given if not isinstance(value, CudaTensor) and value.dim()]
    if on_gpu and mixed and func not in _INDEXING and func not in _COPYING:
        raise RuntimeError(f"Expected all tensors to be on the same device: {func} got tensors of shape "
                           f"{[tuple(value.shape) for value in mixed]} on the CPU and others on cuda.")
    if func in _INDEXING and mixed and not isinstance(args[0], CudaTensor):
        raise RuntimeError(f"{func}: indices on cuda for a tensor on the CPU")
    to_host = bool(on_gpu) and ((target is not None and not to_gpu)
                                or (func is aten.copy_.default and not isinstance(args[0], CudaTensor)))
    from_host = (to_gpu and bool(given) and not on_gpu) or (bool(mixed) and not to_host)
    reads = func is aten._local_scalar_dense.default or func in _SHAPED_BY_VALUES or to_host or (
        func in (aten.index.Tensor, aten.index_put_.default) and any(
            isinstance(value, torch.Tensor) and value.dtype in (torch.bool, torch.uint8) for value in args[1]))
    state.host_reads += reads
    graph = state.capturing
    if graph is not None and (reads or from_host):
        raise RuntimeError(f"operation not permitted when stream is capturing: {func}")

    host_args, host_kwargs = _map(_host, (args, kwargs))
    if target is not None:
        host_kwargs["device"] = CPU
    if func is aten._fused_sdp_choice.default:
        return 0  # torch's own products: kernels of a GPU cannot be called here
    if graph is not None:
        _keep_what_is_written(graph, func, host_args, host_kwargs)
    computed = _SUBSTITUTES.get(func, func)
    made = computed(*host_args, **host_kwargs)
    if graph is not None:
        _record(graph, func, computed, host_args, host_kwargs, made)
    if to_host or func is aten._local_scalar_dense.default:
        return args[0] if func is aten.copy_.default else made
    with torch.inference_mode(False):  # a view of a parameter has its version
        wrapped = _map(_wrapped, made)
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if _has_aliases(func) else wrapped


@cache
def _has_aliases(func) -> bool:
    """Whether an operation returns a view or writes an argument."""
    return any(value.alias_info is not None for value in (*func._schema.arguments, *func._schema.returns))


@cache
def _writes(func) -> list[int]:
    """The arguments that an operation writes, by number; those that have to be named are -1."""
    return [index for index, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write]


def _keep_what_is_written(graph: EmulatedGraph, func, args, kwargs) -> None:
    """A capture computes nothing: memory from before it is restored at its end."""
    for index in _writes(func):
        named = func._schema.arguments[index].name
        for value in _tensors(args[index] if index < len(args) else kwargs.get(named)):
            storage = value.untyped_storage()
            if storage not in graph.made and storage not in graph.before:
                graph.before[storage] = storage.clone()


def _record(graph: EmulatedGraph, func, computed, args, kwargs, made) -> None:
    given = {value.untyped_storage() for value in _tensors((args, kwargs))}
    results = _tensors(made)
    fresh = [value for value in results if value.untyped_storage() not in given]
    for value in fresh:
        graph.made.add(value.untyped_storage())
    if results and not fresh and not _writes(func):
        return  # a view: its memory is known
    def memory(value: torch.Tensor) -> torch.Tensor | _Memory:
        if value.untyped_storage() in graph.made:
            return value
        return _Memory(weakref.ref(value.untyped_storage()), value.dtype,
                       (value.storage_offset(), value.shape, value.stride()))

    args, kwargs = _map(memory, args), _map(memory, kwargs)
    reads_memory = any(isinstance(value, _Memory) for value in _tensors((args, kwargs)))
    graph.operations.append(_Recorded(computed, args, kwargs, fresh, reads_memory))


@contextmanager
def _capture(graph: EmulatedGraph, **_: object) -> Iterator[None]:
    state.captures += 1
    state.capturing = graph
    try:
        yield
    finally:
        state.capturing = None
        for storage, old in graph.before.items():
            storage.copy_(old)
        graph.before.clear()


class _Stream:
    """Everything runs in order."""

    def __init__(self, device: int | None = None) -> None:
        pass

    def wait_stream(self, other: _Stream) -> None:
        pass


def _move(module: torch.nn.Module, *args: Any, **kwargs: Any) -> torch.nn.Module:
    """`nn.Module.to`, which cannot exchange a parameter's data for a tensor of another class: parameters are new."""
    device, dtype, *_ = torch._C._nn._parse_to(*args, **kwargs)
    for part in module.modules():
        for name, value in part._parameters.items():
            if value is not None:
                moved = value.detach().to(device or value.device, dtype if value.is_floating_point() else None)
                part._parameters[name] = torch.nn.Parameter(moved, value.requires_grad)
        for name, buffer in part._buffers.items():
            if buffer is not None:
                part._buffers[name] = buffer.to(device or buffer.device, dtype if buffer.is_floating_point() else None)
    return module


@contextmanager
def emulated_cuda(capability: tuple[int, int] = (9, 0), free_bytes: int = 80 * 2**30, *,
                  triton: bool = False) -> Iterator[State]:
    """Context in which `torch.device("cuda")` works; with a real GPU it is that one, and the counts stay 0."""
    state.__init__()  # type: ignore[misc]
    if REAL:
        yield state
        return
    torch._C._ensureCUDADeviceGuardSet()  # both as torch's own FakeTensorMode does
    torch._C._set_only_lift_cpu_tensors(True)
    with pytest.MonkeyPatch.context() as patch, torch.backends.cudnn.flags(enabled=False), _Device():
        for name, value in {
            "_lazy_init": lambda: None, "is_available": lambda: True, "Stream": _Stream, "current_stream": _Stream,
            "stream": lambda stream: nullcontext(), "CUDAGraph": EmulatedGraph, "graph": _capture,
            "get_device_capability": lambda device=None: capability, "synchronize": lambda device=None: None,
            "is_current_stream_capturing": lambda: state.capturing is not None, "device_count": lambda: 1,
            "is_bf16_supported": lambda including_emulation=True: True, "current_device": lambda: 0,
            "empty_cache": lambda: None,
            "graph_pool_handle": lambda: (0, next(_POOLS)),
            "get_rng_state": lambda device=None: torch.get_rng_state(),  # random numbers are those of the CPU
            "set_rng_state": lambda value, device=None: torch.set_rng_state(value),
            "memory_reserved": lambda device=None: 0, "memory_allocated": lambda device=None: 0,
            "mem_get_info": lambda device=None: (free_bytes, 2 * free_bytes),
        }.items():
            patch.setattr(torch.cuda, name, value)
        patch.setattr(torch.Tensor, "pin_memory", lambda value, *_: value)
        patch.setattr("models.decoder.has_triton", lambda device: triton)
        patch.setattr("models.matmul_backends._has_flash_attention", lambda device: capability >= (8, 0))
        if triton:
            state.kernels = patch_triton(patch)
        patch.setattr(torch.nn.Module, "to", _move)
        try:
            yield state
        finally:
            torch._C._set_only_lift_cpu_tensors(False)
