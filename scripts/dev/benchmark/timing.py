"""Times that can be trusted: warm, repeated, taken in turns, told with their spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Measure = Callable[[], float]
"""Does the work once and gives what it took, in the unit of its row."""


@dataclass(frozen=True)
class MeasurementStats:
    """The middle of some measurements, the least and the most of them, and how many they were."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> MeasurementStats:
        """The spread of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """What `work` takes, until the device is done."""
    wait(device)
    began = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - began


def wait(device: torch.device) -> None:
    """Until all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_interleaved(measures: Mapping[str, Measure], repeats: int) -> dict[str, MeasurementStats]:
    """Each measured once to warm up, then `repeats` times, one after the other: what disturbs one disturbs all."""
    for measure in measures.values():
        measure()
    taken: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            taken[name].append(measure())
    return {name: MeasurementStats.of(values) for name, values in taken.items()}
