"""Benchmark results: rows with ratios and targets, as JSON for programs and as Markdown for people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from scripts.dev.benchmark.machine import Machine
from scripts.dev.benchmark.timing import MeasurementStats

PUBLISHED = "published package"


@dataclass(frozen=True)
class Bound:
    """An absolute target on a GPU of one of these kinds."""

    value: float
    devices: tuple[str, ...] = ("H100", "H200")


@dataclass(frozen=True)
class BenchmarkRow:
    """A speed or a size. `package` is that of the published package at its defaults, measured interleaved with ours.

    `times` is the target ratio to the package on a CPU; `bound` is an absolute target in `unit`.
    """

    part: str
    what: str
    unit: str
    ours: MeasurementStats
    package: MeasurementStats | None = None
    times: float | None = None
    bound: Bound | None = None
    more_is_better: bool = False
    against: str = PUBLISHED  # meaning of `package`, if it is a variant of ours
    equal_sizes: bool = True  # whether both have models of equal sizes; otherwise there is neither a ratio nor a target

    @property
    def ratio(self) -> float | None:
        """Speed relative to the package, by the medians."""
        if self.package is None or not self.equal_sizes:
            return None
        ratio = self.package.median / self.ours.median
        return 1 / ratio if self.more_is_better else ratio

    def target_status(self, device: str) -> str:
        """Whether the target was met on this device; empty without a target."""
        if not self.equal_sizes:
            return ""
        if "cuda" not in device.lower() and self.times is not None:
            return "not measured" if self.ratio is None else _word(self.ratio >= self.times)
        if self.bound is None:
            return ""
        if not any(kind in device for kind in self.bound.devices):
            return "not measured"
        better = self.ours.median >= self.bound.value if self.more_is_better else self.ours.median <= self.bound.value
        return _word(better)


@dataclass(frozen=True)
class Cost:
    """The loss of accuracy of a faster variant."""

    part: str
    what: str
    value: float
    unit: str
    note: str = ""


def decibels(true: torch.Tensor, measured: torch.Tensor) -> float:
    """Signal-to-noise ratio in dB; 200 for equal tensors, far beyond what float32 resolves, as JSON has no infinity."""
    signal, noise = true.double().norm(), (measured.double() - true.double()).norm()
    return 20 * float(torch.log10(signal / torch.maximum(noise, signal * 1e-10)))


@dataclass(frozen=True)
class BenchmarkResults:
    """The results of one part."""

    rows: tuple[BenchmarkRow, ...] = ()
    costs: tuple[Cost, ...] = ()


def _word(met: bool) -> str:
    return "met" if met else "missed"


def as_json(machine: Machine, settings: Mapping[str, object], benchmark: BenchmarkResults) -> str:
    """All results, with ratios and whether targets were met."""
    # Ratios and targets are stored too, so that a reader needs no formula.
    rows = [{**dataclasses.asdict(row), "ratio": row.ratio, "target": row.target_status(machine.device)}
            for row in benchmark.rows]
    costs = [dataclasses.asdict(cost) for cost in benchmark.costs]
    content = {"machine": dataclasses.asdict(machine), **settings, "rows": rows, "costs": costs}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_markdown(machine: Machine, settings: Mapping[str, object], benchmark: BenchmarkResults) -> str:
    """The machine, a table per part, and the losses of accuracy."""
    lines = [f"Device {machine.device}; {machine.processor}, {machine.cores} cores, {machine.threads} threads, "
             f"{machine.memory_gib} GiB; torch {machine.torch}; commit {machine.commit}; load average at the start "
             f"{machine.load}; {'; '.join(f'{name} {value}' for name, value in settings.items())}.", ""]
    for part in dict.fromkeys(row.part for row in benchmark.rows):
        rows = [row for row in benchmark.rows if row.part == part]
        opponent = next((row.against for row in rows if row.package), PUBLISHED)
        if not all(row.equal_sizes for row in rows):
            lines += [f"Ours are narrow models, those of the {PUBLISHED} are not: there is no ratio.", ""]
        lines += [f"**{part}**", "", f"| | unit | ours | {opponent} | speed-up | target | |",
                  "|---|---|---|---|---|---|---|", *(_line(row, machine.device) for row in rows), ""]
    if benchmark.costs:
        lines += ["**Accuracy of the faster modes**", "", "| | | | |", "|---|---|---|---|",
                  *(_cost(cost) for cost in benchmark.costs), ""]
    return "\n".join(lines)


def _line(row: BenchmarkRow, device: str) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    cells = (row.what, row.unit, _spread(row.ours), "" if row.package is None else _spread(row.package), ratio,
             _target(row), row.target_status(device))
    return f"| {' | '.join(cells)} |"


def _target(row: BenchmarkRow) -> str:
    if not row.equal_sizes:
        return ""
    targets = [] if row.times is None else [f"{row.times:g} times"]
    if row.bound is not None:
        limit = "at least" if row.more_is_better else "at most"
        targets.append(f"{' or '.join(row.bound.devices)}: {limit} {_number(row.bound.value)} {row.unit}")
    return ", ".join(targets)


def _cost(cost: Cost) -> str:
    return f"| {cost.part} | {cost.what} | {_number(cost.value)} {cost.unit} | {cost.note} |"


def _spread(spread: MeasurementStats) -> str:
    """The median, and the range of several measurements."""
    if spread.count == 1:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.least)} to {_number(spread.most)})"


def _number(value: float) -> str:
    """Three significant digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
