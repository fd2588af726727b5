"""The step of `models.generate` as CUDA graphs: one launch a code instead of hundreds. Not yet measured on a GPU.

A graph looks at a fixed number of cache positions; one is captured for each power of two
that the texts reach, and for each way the layers are switched. Controls are tensors that
the graph reads, so new texts with other controls replay the same graph.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.generate import Stepper
from models.speech_lm import SpeechLM

_SMALLEST_SPAN = 128
_WARM_UP = 2  # runs before a capture, in which libraries set themselves up
Shape = tuple[int, bool, bool, tuple[object, ...]]


class CapturedStepper(Stepper):
    """A stepper whose step is replayed."""

    def __init__(self, model: SpeechLM, texts: int, capacity: int, longest: int, device: torch.device) -> None:
        rounded = span_for(capacity)
        super().__init__(model, texts, rounded, longest, device)
        self._graphs: dict[Shape, torch.cuda.CUDAGraph] = {}

    def advance(self) -> None:
        """Choose every row's next code and read it."""
        assert self.cache is not None
        self.cache.span, self.cache.level = span_for(self.deepest + 1), False
        shape = (self.cache.span, self.sampler.guided, self.sampler.truncates, _switches(self.model))
        if shape not in self._graphs:
            self._graphs[shape] = self._captured()
        self._graphs[shape].replay()
        self.deepest += 1

    def _captured(self) -> torch.cuda.CUDAGraph:
        """The step as a graph; the state is afterwards what it was, so that the first replay is the first step."""
        held = self._state()
        before = [value.clone() for value in held]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(_WARM_UP):
                self.compute()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.compute()
        for value, old in zip(held, before, strict=True):
            value.copy_(old)
        return graph

    def _state(self) -> Sequence[torch.Tensor]:
        """What a step changes, but for the cache, whose next position the first replay writes over."""
        return (self.codes, self.step, self.positions, self.hidden, self.sampler.used)


def span_for(positions: int) -> int:
    """The smallest power of two of at least `positions`."""
    return max(_SMALLEST_SPAN, 1 << (positions - 1).bit_length())


def _switches(model: SpeechLM) -> tuple[object, ...]:
    """Which adapters are off, and in which rows they act where the others are on.

    A graph holds the way through the layers as it was when it was captured.
    """
    return tuple((bool(layer.disable_adapters), getattr(layer, "rows_switched", None))
                 for layer in model.modules() if hasattr(layer, "disable_adapters"))
