"""The flow's estimator as CUDA graphs: one launch a step instead of nine hundred. Not yet measured on a GPU.

A graph has fixed shapes, so frames are padded to a multiple of 64 (1.28 s), which attention does not see; texts of
like length replay the same graph, with any number of steps, guidance and prompt.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from models.chatterbox.flow_estimator import Estimator

SPAN = 64  # frames
MOST = 16  # graphs kept; the oldest goes first
_WARM_UP = 2  # runs before a capture, in which libraries set themselves up


def captured(compute: Callable[[], object]) -> Callable[[], object]:
    """`compute` as a CUDA graph; what it reads and writes must stay where it is."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(_WARM_UP):
            compute()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        compute()
    return graph.replay


class _Recording:
    """One shape: the tensors that its graph reads and writes."""

    def __init__(self, estimator: Estimator, rows: int, span: int, time: torch.Tensor) -> None:
        self.inputs = time.new_zeros(rows, span, estimator.config.inputs)
        self.time = torch.zeros_like(time)
        self.keep = torch.ones(rows, span, dtype=torch.bool, device=time.device)
        self.velocity = time.new_zeros(rows, span, estimator.config.n_mels)
        self.replay = captured(lambda: self.velocity.copy_(estimator(self.inputs, self.time, self.keep)))


class RecordedEstimator:
    """Called as the estimator is; a velocity holds until the next call."""

    def __init__(self, estimator: Estimator) -> None:
        self._estimator = estimator
        self._recordings: dict[tuple[int, int], _Recording] = {}

    def __call__(self, inputs: torch.Tensor, time: torch.Tensor, keep: torch.Tensor | None = None) -> torch.Tensor:
        """Inputs (B, F, 4 * n_mels), time states (1, stages, width), keep (B, F) -> velocity (B, F, n_mels)."""
        rows, frames = inputs.shape[:2]
        recording = self._recording(rows, -(-frames // SPAN) * SPAN, time)
        recording.inputs[:, :frames] = inputs
        recording.time.copy_(time)
        recording.keep[:, :frames] = True if keep is None else keep
        recording.keep[:, frames:] = False
        recording.replay()
        return recording.velocity[:, :frames]

    def _recording(self, rows: int, span: int, time: torch.Tensor) -> _Recording:
        shape = (rows, span)
        if shape not in self._recordings:
            if len(self._recordings) == MOST:
                del self._recordings[next(iter(self._recordings))]
            self._recordings[shape] = _Recording(self._estimator, rows, span, time)
        return self._recordings[shape]
