"""The flow's estimator as CUDA graphs: one launch per step instead of nine hundred. Not yet measured on a GPU.

A graph has fixed shapes: frames are padded to a multiple of 64 (1.28 s), which attention masks. Texts of similar
length replay the same graph, with any number of steps, guidance and prompt.
"""

from __future__ import annotations

import torch

from models.chatterbox.flow_estimator import FlowEstimator
from models.cuda_graph_decode import capture

PADDING = 64  # frames
MAX_GRAPHS = 16  # the oldest is dropped first


class _Graph:
    """The graph of one shape, and the tensors that it reads and writes."""

    def __init__(self, estimator: FlowEstimator, rows: int, frames: int, time: torch.Tensor) -> None:
        self.inputs = time.new_zeros(rows, frames, estimator.config.inputs)
        self.time = torch.zeros_like(time)
        self.keep = torch.ones(rows, frames, dtype=torch.bool, device=time.device)
        self.velocity = time.new_zeros(rows, frames, estimator.config.n_mels)
        self.graph = capture(lambda: self.velocity.copy_(estimator(self.inputs, self.time, self.keep)))


class CUDAGraphEstimator:
    """A `FlowEstimator` that replays graphs; a result is valid until the next call."""

    def __init__(self, estimator: FlowEstimator) -> None:
        self._estimator = estimator
        self._graphs: dict[tuple[int, int], _Graph] = {}

    def __call__(self, inputs: torch.Tensor, time: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Inputs (B, F, 4 * n_mels), time states (1, stages, width), keep (B, F) -> velocity (B, F, n_mels)."""
        rows, frames = inputs.shape[:2]
        graph = self._graph_for(rows, -(-frames // PADDING) * PADDING, time)
        graph.inputs[:, :frames] = inputs
        graph.time.copy_(time)
        graph.keep[:, :frames] = True if keep is None else keep
        graph.keep[:, frames:] = False
        graph.graph.replay()
        return graph.velocity[:, :frames]

    def _graph_for(self, rows: int, frames: int, time: torch.Tensor) -> _Graph:
        shape = (rows, frames)
        if shape not in self._graphs:
            if len(self._graphs) == MAX_GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[shape] = _Graph(self._estimator, rows, frames, time)
        return self._graphs[shape]
