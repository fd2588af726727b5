"""The tables of `docs/experiments.md`, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scripts.experiments.measured import Measured, spread
from scripts.experiments.plan import Group

Found = Mapping[str, Sequence[Measured]]
"""Seeds by the name of the trial."""


def section(group: Group, found: Found) -> str:
    """A heading and a table."""
    rows = _heard(group, found) if group.measure == "heard" else _losses(group, found)
    return f"## {group.title}\n\n{_table(rows)}\n"


def _heard(group: Group, found: Found) -> list[Sequence[str]]:
    languages = sorted({code for seeds in found.values() for one in seeds for code in one.heard})
    head = ["trial", "seeds", *(f"{code} after" for code in languages), *(f"{code} before" for code in languages),
            "base tensors as they were", "numbers trained", "processor", "memory"]
    rows: list[Sequence[str]] = [head]
    for trial in group.trials:
        seeds = found.get(trial.name, ())
        if not seeds:
            rows.append([trial.name, "0", *["not measured"] * (len(head) - 2)])
            continue
        rows.append([
            trial.name, str(len(seeds)),
            *(spread([100 * one.heard[code] for one in seeds if code in one.heard], "%") for code in languages),
            *(spread([100 * one.before[code] for one in seeds if code in one.before], "%") for code in languages),
            ", ".join(sorted({one.equal for one in seeds})), "all" if trial.recipe else f"{seeds[0].trained:,}",
            spread([one.cpu_seconds for one in seeds], " s", 0),
            spread([one.peak_bytes / 2**30 for one in seeds], " GiB")])
    return rows


def _losses(group: Group, found: Found) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [["trial", "seeds", *(f"after {step} steps" for step in group.at)]]
    for trial in group.trials:
        seeds = found.get(trial.name, ())
        rows.append([trial.name, str(len(seeds)), *(
            spread([one.losses[step] for one in seeds if step in one.losses], digits=3) for step in group.at)])
    return rows


def _table(rows: Sequence[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
