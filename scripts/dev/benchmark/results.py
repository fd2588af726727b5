"""One measured thing, beside the published package and beside what was aimed at."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass

from scripts.dev.benchmark.machine import Machine
from scripts.dev.benchmark.timing import MeasurementStats


@dataclass(frozen=True)
class Bound:
    """A limit on what was measured itself, on the device that it names."""

    value: float
    device: str = "H100"


@dataclass(frozen=True)
class BenchmarkRow:
    """A speed or a size. `package` is the published package at its defaults, measured in turns with ours.

    `times` is how many times the package's speed was aimed at on a processor; `bound` is a limit in `unit`.
    """

    part: str
    what: str
    unit: str
    ours: MeasurementStats
    package: MeasurementStats | None = None
    times: float | None = None
    bound: Bound | None = None
    more_is_better: bool = False
    against: str = "published package"  # what `package` is, where it is something else of ours

    @property
    def ratio(self) -> float | None:
        """How many times as fast as the package, by the medians."""
        if self.package is None:
            return None
        ratio = self.package.median / self.ours.median
        return 1 / ratio if self.more_is_better else ratio

    def verdict(self, device: str) -> str:
        """What came of the aim on the device of this name; empty where there was none."""
        if "cuda" not in device.lower() and self.times is not None:
            return "not measured" if self.ratio is None else _word(self.ratio >= self.times)
        if self.bound is None:
            return ""
        if self.bound.device not in device:
            return "not measured"
        better = self.ours.median >= self.bound.value if self.more_is_better else self.ours.median <= self.bound.value
        return _word(better)


@dataclass(frozen=True)
class Cost:
    """What a faster way costs in accuracy."""

    part: str
    what: str
    value: float
    unit: str
    note: str = ""


@dataclass(frozen=True)
class BenchmarkResults:
    """All of one part."""

    rows: tuple[BenchmarkRow, ...] = ()
    costs: tuple[Cost, ...] = ()


def _word(met: bool) -> str:
    return "met" if met else "MISSED"


def as_json(machine: Machine, settings: Mapping[str, object], found: BenchmarkResults) -> str:
    """Everything, with ratios and verdicts."""
    rows = [{**dataclasses.asdict(row), "ratio": row.ratio, "verdict": row.verdict(machine.device)}
            for row in found.rows]
    costs = [dataclasses.asdict(cost) for cost in found.costs]
    content = {"machine": dataclasses.asdict(machine), **settings, "rows": rows, "costs": costs}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_markdown(machine: Machine, settings: Mapping[str, object], found: BenchmarkResults) -> str:
    """Where it was measured, a table a part, and the errors."""
    lines = [f"Device {machine.device}; {machine.processor}, {machine.cores} cores, {machine.threads} threads, "
             f"{machine.memory_gib} GiB; torch {machine.torch}; commit {machine.commit}; load average at the start "
             f"{machine.load}; {'; '.join(f'{name} {value}' for name, value in settings.items())}.", ""]
    for part in dict.fromkeys(row.part for row in found.rows):
        rows = [row for row in found.rows if row.part == part]
        against = next((row.against for row in rows if row.package), "published package")
        lines += [f"**{part}**", "", f"| | unit | ours | {against} | times as fast | aim | |",
                  "|---|---|---|---|---|---|---|", *(_line(row, machine.device) for row in rows), ""]
    if found.costs:
        lines += ["**What the faster ways cost**", "", "| | | | |", "|---|---|---|---|",
                  *(_cost(cost) for cost in found.costs), ""]
    return "\n".join(lines)


def _line(row: BenchmarkRow, device: str) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    cells = (row.what, row.unit, _spread(row.ours), "" if row.package is None else _spread(row.package), ratio,
             _aim(row), row.verdict(device))
    return f"| {' | '.join(cells)} |"


def _aim(row: BenchmarkRow) -> str:
    aims = [] if row.times is None else [f"{row.times:g} times"]
    if row.bound is not None:
        limit = "at least" if row.more_is_better else "at most"
        aims.append(f"{row.bound.device}: {limit} {_number(row.bound.value)} {row.unit}")
    return ", ".join(aims)


def _cost(cost: Cost) -> str:
    return f"| {cost.part} | {cost.what} | {_number(cost.value)} {cost.unit} | {cost.note} |"


def _spread(spread: MeasurementStats) -> str:
    """The median, and the least and the most where there were several."""
    if spread.count == 1:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.least)} to {_number(spread.most)})"


def _number(value: float) -> str:
    """Three digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
