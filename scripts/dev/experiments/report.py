"""`docs/experiments.md`: what was tried, on what, and a table a group, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from scripts.dev.benchmark.machine import Machine
from scripts.dev.experiments.plan import TrialGroup
from scripts.dev.experiments.results import TrialResult, spread

TrialResults = Mapping[str, Sequence[TrialResult]]
"""Seeds by the name of the trial."""


_HEAD = """# Experiments

Made by `python -m scripts.dev.experiments`, on the built-in model and the demo dataset. Each row is the demo's training
with the changes of `scripts/dev/experiments/plan.yaml`. The seed decides the new rows, the order of the clips, and the
dropped text and codes. Values are means over seeds with the sample standard deviation.

- Errors are character error rates (CER) of the built-in recogniser on 40 synthesized held-out sentences a language:
  *after* the training, and *before* it by the base model (for the new language: with untrained rows). The spread is
  that of seeds, not of sentences.
- *Unchanged* counts the base tensors, among those that the scope keeps frozen, that are bit-identical. In `full`
  nearly all of the base is trained.
- *CPU time* is the processor time of the whole job on one thread, including evaluation and certificate; *memory* is its
  peak.
- Losses are of held-out speech of the new language, in nats per code.
"""


def page(machine: Machine, commits: Sequence[str], sections: Sequence[str]) -> str:
    """The whole text; `commits` are those of the trainings."""
    measured_on = (f"Measured on {machine.processor}, {machine.cores} cores, {machine.memory_gib} GiB, "
                   f"torch {machine.torch}; trainings at {', '.join(commits) or 'no known commit'}.")
    return "\n".join([_HEAD, f"{measured_on}\n", *sections])


def section(group: TrialGroup, results: TrialResults) -> str:
    """A heading, the length of the trainings, and a table."""
    rows = _error_rows(group, results) if group.measure == "errors" else _losses(group, results)
    options = group.trials[0].training(0)
    return f"## {group.title}\n\n{options.length.steps} steps of {options.batches.batch_size} clips.\n\n{table(rows)}\n"


def _error_rows(group: TrialGroup, results: TrialResults) -> list[Sequence[str]]:
    languages = sorted({code for seeds in results.values() for run in seeds for code in run.errors})
    head = ["trial", "seeds", *(f"{code} after" for code in languages), *(f"{code} before" for code in languages),
            "unchanged", "trained parameters", "CPU time", "memory"]
    rows: list[Sequence[str]] = [head]
    for trial in group.trials:
        seeds = results.get(trial.name, ())
        if not seeds:
            rows.append([trial.name, "0", *["not measured"] * (len(head) - 2)])
            continue
        rows.append([
            trial.name, str(len(seeds)),
            *(spread([100 * run.errors[code] for run in seeds if code in run.errors], "%") for code in languages),
            *(spread([100 * run.before[code] for run in seeds if code in run.before], "%") for code in languages),
            ", ".join(sorted({run.equal for run in seeds})), "all" if trial.recipe else f"{seeds[0].trained:,}",
            spread([run.cpu_seconds for run in seeds if run.cpu_seconds], " s", 0),
            spread([run.peak_bytes / 2**30 for run in seeds if run.peak_bytes], " GiB")])
    return rows


def _losses(group: TrialGroup, results: TrialResults) -> list[Sequence[str]]:
    rows: list[Sequence[str]] = [["trial", "seeds", *(f"after {step} steps" for step in group.at)]]
    for trial in group.trials:
        seeds = results.get(trial.name, ())
        rows.append([trial.name, str(len(seeds)), *(
            spread([run.losses[step] for run in seeds if step in run.losses], digits=3) for step in group.at)])
    return rows


def table(rows: Sequence[Sequence[str]]) -> str:
    """Markdown; the first row is the head."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
