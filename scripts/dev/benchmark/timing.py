"""Repeated measurements after a warm-up, interleaved between variants, with median and range."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

Measure = Callable[[], float]
"""Does the work once and returns its cost, in the unit of its row."""


@dataclass(frozen=True)
class MeasurementStats:
    """Median, minimum, maximum and count of some measurements."""

    median: float
    least: float
    most: float
    count: int

    @classmethod
    def of(cls, values: Sequence[float]) -> MeasurementStats:
        """The statistics of at least one value."""
        return cls(statistics.median(values), min(values), max(values), len(values))


def seconds(work: Callable[[], object], device: torch.device) -> float:
    """The duration of `work` in seconds, until the device has finished."""
    wait(device)
    start = time.perf_counter()
    work()
    wait(device)
    return time.perf_counter() - start


def wait(device: torch.device) -> None:
    """Synchronise with the device."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_interleaved(measures: Mapping[str, Measure], repeats: int) -> dict[str, MeasurementStats]:
    """Run each once to warm up, then all of them `repeats` times in rotation, so that disturbances affect all alike."""
    for measure in measures.values():
        measure()
    times: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(repeats):
        for name, measure in measures.items():
            times[name].append(measure())
    return {name: MeasurementStats.of(values) for name, values in times.items()}
