"""What was found, as JSON for programs and as Markdown for people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping

from scripts.benchmark.machine import Machine
from scripts.benchmark.rows import Cost, Found, Row
from scripts.benchmark.timing import Spread


def as_json(machine: Machine, settings: Mapping[str, object], found: Found) -> str:
    """Everything, with ratios and verdicts."""
    rows = [{**dataclasses.asdict(row), "ratio": row.ratio, "result": row.result(machine.device)}
            for row in found.rows]
    costs = [dataclasses.asdict(cost) for cost in found.costs]
    content = {"machine": dataclasses.asdict(machine), **settings, "rows": rows, "costs": costs}
    return json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


def as_markdown(machine: Machine, settings: Mapping[str, object], found: Found) -> str:
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


def _line(row: Row, device: str) -> str:
    ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
    cells = (row.what, row.unit, _spread(row.ours), "" if row.package is None else _spread(row.package), ratio,
             _aim(row), row.result(device))
    return f"| {' | '.join(cells)} |"


def _aim(row: Row) -> str:
    aims = [] if row.times is None else [f"{row.times:g} times"]
    if row.bound is not None:
        limit = "at least" if row.more_is_better else "at most"
        aims.append(f"{row.bound.device}: {limit} {_number(row.bound.value)} {row.unit}")
    return ", ".join(aims)


def _cost(cost: Cost) -> str:
    return f"| {cost.part} | {cost.what} | {_number(cost.value)} {cost.unit} | {cost.note} |"


def _spread(spread: Spread) -> str:
    """The median, and the least and the most where there were several."""
    if spread.count == 1:
        return _number(spread.median)
    return f"{_number(spread.median)} ({_number(spread.least)} to {_number(spread.most)})"


def _number(value: float) -> str:
    """Three digits."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}"
