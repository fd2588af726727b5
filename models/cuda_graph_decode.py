"""CUDA graphs: of prefill and decoding step of `models.generate`, of a flow and its steps, and of a vocoder.

One launch instead of hundreds: on an H100 a code of T3 took 1.4 ms by graphs and 14 without, which is the time of its
launches. A graph of decoding reads a fixed number of cache positions; one is captured for each power of two that the
texts reach and for each state of the adapters. A prefill has a graph for each number of rows and each multiple of 32
positions, from the second text of that length on. Sampling options are tensors that the graph reads, so that new texts
with other options replay the same graph.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, TypeVar, cast

import torch
from torch import nn

from models import merged_adapters
from models.base import PreparedVoice, Sampling, Voice
from models.generate import Stepper, rounded_up
from models.speech_network import SpeechNetwork

_MIN_SPAN = 128
_MAX_PREFILLS = 8  # graphs of a stepper, each with up to 16 MiB of rows and states that no estimate counts
_MAX_PREFILL_POSITIONS = 4096  # All rows together
_WARM_UP_RUNS = 2  # before a capture, in which libraries initialise
GraphKey = tuple[object, ...]
T = TypeVar("T")


def capture(compute: Callable[[], object], restore: Callable[[], object]) -> torch.cuda.CUDAGraph:
    """`compute` as a CUDA graph, after warm-up runs; the tensors that it reads and writes must keep their addresses.

    `restore` undoes a run: two of them in a row could leave the buffers of a text that is at its end.
    """
    stream = _capture_stream(torch.cuda.current_device())
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(_WARM_UP_RUNS):
            compute()
            restore()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        compute()
    return graph


class DelayedGraph:
    """A computation on tensors that keep their addresses, as a graph from the second call on.

    The first call runs as it is, and libraries initialise in it. Results have to be written to tensors that were there
    before the call.
    """

    def __init__(self, pool: Callable[[], Any]) -> None:
        self._pool, self._ran = pool, False
        self._graph: torch.cuda.CUDAGraph | None = None

    @property
    def has_graph(self) -> bool:
        return self._graph is not None

    def __call__(self, compute: Callable[[], object]) -> None:
        """`compute`, which must be the same computation in each call."""
        if not self._ran:
            compute()
            self._ran = True
            return
        if self._graph is None:
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool(), stream=_capture_stream(torch.cuda.current_device())):
                compute()
            self._graph = graph
        self._graph.replay()


class GraphCache:
    """What the calls of a module keep for the next ones on a GPU, by key: graphs, with the buffers that they use.

    The `most` that were used last are kept. The graphs share a memory pool: they are replayed one after another, and
    nothing in the pool is read after a replay. A graph knows weights by their addresses, so everything is dropped when
    one of them has another address or type. A copy of the module has a cache of its own.
    """

    def __init__(self, max_entries: int) -> None:
        self._most = max_entries
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._parameters: list[dict[str, nn.Parameter | None]] = []  # parameters of the module and its parts
        self._weights: list[tuple[int, int, torch.dtype]] = []
        self._pool: Any = None
        self._graphs = weakref.WeakSet[DelayedGraph]()  # graphs of the pool

    def __reduce__(self) -> tuple[type[GraphCache], tuple[int]]:
        return type(self), (self._most,)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """What is kept under `key`, or what `make` returns."""
        if key not in self._kept:
            self._kept[key] = make()
        self._kept.move_to_end(key)
        while len(self._kept) > self._most:
            self._kept.popitem(last=False)
        return cast(T, self._kept[key])

    def graph(self) -> DelayedGraph:
        """A graph in the cache's memory pool, for an object that is kept."""
        # A strong reference would keep models until garbage is collected.
        pool = weakref.WeakMethod(self._pool_handle)

        def handle() -> Any:
            find = pool()
            assert find is not None
            return find()

        graph = DelayedGraph(handle)
        self._graphs.add(graph)
        return graph

    def check_weights(self, module: nn.Module) -> bool:
        """Drop everything if weights of `module` have changed their addresses or types since the last call.

        Returns whether they have; the first call says so too.
        """
        # A walk over all modules takes several times as long as the comparison.
        if not self._parameters:
            self._parameters = [part._parameters for part in module.modules() if part._parameters]
        weights = []
        for part in self._parameters:
            weights += [(id(value), value.data_ptr(), value.dtype) for value in part.values() if value is not None]
        changed = weights != self._weights
        if changed:
            self.clear()
            self._weights = weights
        return changed

    def clear(self) -> None:
        """Drop everything; the memory is free for other tensors."""
        self._kept.clear()
        self._pool = None

    def _pool_handle(self) -> Any:
        """That of the graphs there are: into a pool whose graphs are gone nothing can be captured again."""
        if self._pool is None or not any(graph.has_graph for graph in self._graphs):
            self._pool = torch.cuda.graph_pool_handle()
        return self._pool


@cache
def _capture_stream(device: int) -> torch.cuda.Stream:
    """The one stream of all captures: cuBLAS keeps 32 MiB for each stream that it has seen."""
    return torch.cuda.Stream(device)


class _Prefill:
    """A prefill of one length as a graph, with the tensors that it reads and writes."""

    def __init__(self, rows: torch.Tensor, graph: DelayedGraph) -> None:
        self._rows, self._graph = torch.empty_like(rows), graph
        self._states: torch.Tensor | None = None
        self._queries: dict[int, torch.Tensor] = {}  # Keyed by watched layer

    def states(self, stepper: Stepper, rows: torch.Tensor) -> torch.Tensor:
        """See `Stepper.process`; they are valid until the next text."""
        cache = stepper.cache
        assert cache is not None

        def compute() -> None:
            states = Stepper.process(stepper, self._rows)
            # The first call is not captured, so its results are memory outside of the graphs' pool.
            if self._states is None:
                self._states = torch.empty_like(states)
                self._queries = {layer: torch.empty_like(cache.queries[layer]) for layer in cache.watched}
            self._states.copy_(states)
            for layer, queries in self._queries.items():
                queries.copy_(cache.queries[layer])

        self._rows.copy_(rows)
        self._graph(compute)
        cache.queries.update(self._queries)
        assert self._states is not None
        return self._states


class CUDAGraphStepper(Stepper):
    """A stepper that replays its step, and its prefills, as CUDA graphs."""

    def __init__(self, network: SpeechNetwork, texts: int, capacity: int, max_codes: int, device: torch.device,
                 guided: bool = True) -> None:
        super().__init__(network, texts, rounded_up(capacity), max_codes, device, guided)
        self._graphs: dict[GraphKey, dict[int, torch.cuda.CUDAGraph]] = {}  # keyed by state at capture, and span
        self._of_these_texts: dict[int, torch.cuda.CUDAGraph] = {}
        self._merges: dict[GraphKey, torch.cuda.CUDAGraph] = {}  # keyed by the state of the adapters
        self._merged: list[Any] = []  # tensors that graphs read, which must live as long
        self._prefills = GraphCache(_MAX_PREFILLS)

    def prefill(self, texts: Sequence[torch.Tensor], voices: Sequence[Voice | PreparedVoice],
                sampling: Sampling) -> None:
        """See `Stepper`; the adapters must not be switched before the texts end."""
        super().prefill(texts, voices, sampling)
        sampler = self.sampler
        key = (sampler.uses_guidance, sampler.uses_top_p, sampler.top_k, self.guarded, _adapter_state(self.network))
        self._of_these_texts = self._graphs.setdefault(key, {})

    def process(self, rows: torch.Tensor) -> torch.Tensor:
        """See `Stepper`; of few positions by a graph, as many take longer than their launches."""
        assert self.cache is not None
        if rows.shape[0] * rows.shape[1] > _MAX_PREFILL_POSITIONS:
            return super().process(rows)
        key = (rows.shape, rows.dtype, self.cache.storage.data_ptr(), self.cache.watched, _adapter_state(self.network))
        prefill = self._prefills.get(key, lambda: _Prefill(rows, self._prefills.graph()))
        return prefill.states(self, rows)

    def merge(self, layers: Sequence[nn.Module]) -> None:
        """See `Stepper`."""
        if layers:
            state = _adapter_state(self.network)
            if state not in self._merges:
                self._merges[state] = capture(lambda: merged_adapters.merge(layers), lambda: None)
            self._merges[state].replay()
            self._merged = [layer.merged_weight for layer in layers]

    def advance(self) -> None:
        """Sample the next code of each row and process it."""
        assert self.cache is not None
        span = min(span_for(self.length + 1), self.capacity)
        self.cache.span, self.cache.aligned = span, False
        if span not in self._of_these_texts:
            self._of_these_texts[span] = self._capture()
        self._of_these_texts[span].replay()
        self.length += 1

    def _capture(self) -> torch.cuda.CUDAGraph:
        """The step as a graph; the first replay is the first step."""
        state = self._state()
        saved = [value.clone() for value in state]

        def restore() -> None:
            for value, old in zip(state, saved, strict=True):
                value.copy_(old)

        return capture(self.compute, restore)

    def _state(self) -> Sequence[torch.Tensor]:
        """The tensors that a step changes, but for the cache: the first replay overwrites its next position."""
        return (self.codes, self.steps, self.code_position, self.positions, self.hidden,
                self.sampler.used, *self.guard.state())  # `predicting` is rewritten


def span_for(positions: int) -> int:
    """The smallest power of two that is at least `positions`."""
    return max(_MIN_SPAN, 1 << (positions - 1).bit_length())


def _adapter_state(network: SpeechNetwork) -> tuple[object, ...]:
    """Which adapters are on, and whether the others act by row: a graph keeps the state of its capture."""
    return tuple((bool(layer.disable_adapters), tuple(layer.active_adapters),  # type: ignore[arg-type]
                  len(getattr(layer, "rows_switched", ())))
                 for layer in network.modules() if hasattr(layer, "disable_adapters"))
