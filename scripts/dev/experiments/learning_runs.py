"""Train one case of the table of outcomes, and add its measurements to the table.

The table, `tests/data/learning_runs.json`, holds measurements of runs that went well and of runs that went wrong, not
weights: the limits of `core.library.learning` were set on it, and a test decides each of its runs again. A workspace
needs the base model, and the dataset and the extension of the case; README in the table says how they were made.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import yaml

from config import foreign
from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions, without_sections
from core import compute, train
from core.jobs.events import Evaluated, Journal, Step, WarningRaised, read_events
from core.jobs.reporter import JournalReporter
from core.library import learning
from core.library.records import CONFIG
from core.workspace import Workspace
from data.durable_files import write_text

JOURNAL = "events.jsonl"
TABLE = Path(__file__).resolve().parents[3] / "tests" / "data" / "learning_runs.json"
_DEMO: Mapping[str, object] = {
    "extension": "tiny-am", "dataset": "amharic-demo", "batch_size": 8, "warmup": 10, "device": "cpu",
    "precision": "float32"}
CASES: Mapping[str, Mapping[str, object]] = {
    "healthy demo": {},
    "whole demo": {"batch_size": 16, "warmup": 30},
    "learning rate 1e-9": {"row_lr": 1e-9, "adapter_lr": 1e-9},
    "shifted texts": {"dataset": "shifted"},
    "noise base": {},  # the workspace has a base model with random weights
    "silent reader": {"dataset": "mboshi", "extension": "tiny-mdw"},
    "trimmed reader": {"dataset": "mboshi-trimmed", "extension": "tiny-mdw"},
    "diverged": {"row_lr": 0.5, "adapter_lr": 0.3, "max_grad_norm": 1000.0, "warmup": 0},
    "full that broke English": {"scope": "full", "replay": 0.0, "layer_lr": 2e-3, "head_lr": 2e-3},
    "rows alone": {"scope": "rows"},
    "full with replay": {"scope": "full"},
}


def main() -> int:
    """Run one case, or read a run that was made elsewhere; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.experiments.learning_runs", description=__doc__)
    parser.add_argument("workspace", type=Path)
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--minutes", type=float, default=4.0, help="time limit of the steps (default: %(default)s)")
    parser.add_argument("--run", help="read this run of the workspace in place of training one")
    parser.add_argument("--out", type=Path, default=TABLE, help="table to add to (default: %(default)s)")
    args = parser.parse_args()
    workspace = Workspace.open(args.workspace)
    if args.run:
        directory, failure = workspace.run(args.run), ""
    else:
        directory, failure = train_case(workspace, args.case, args.seed, args.steps, args.minutes)

    run = read_run(directory, args.case, args.seed, failure)
    add_to_table(args.out, run)
    print(json.dumps({name: run[name] for name in ("case", "seed", "steps", "learning", "outcome")}))
    return 0


def train_case(workspace: Workspace, case: str, seed: int, steps: int, minutes: float) -> tuple[Path, str]:
    """Train a case; the folder of the run, and the message with which it failed."""
    options = parse_options(TrainOptions, {**_DEMO, "steps": steps, "max_minutes": minutes,
                                           "checkpoint_every": max(1, steps), "seed": seed, **CASES[case]})
    directory = workspace.runs / f"{case.replace(' ', '-')}-{seed}-{time.strftime('%H%M%S')}"
    directory.mkdir(parents=True)
    write_text(directory / CONFIG, yaml.safe_dump({"verb": "train", "options": options.model_dump(mode="json")}))
    compute.setup_device("cpu")
    try:
        train.run(options, workspace, JournalReporter(Journal(directory / JOURNAL), lambda: False))
    except UserError as error:
        return directory, error.message
    return directory, ""


def read_run(directory: Path, case: str, seed: int, failure: str = "") -> dict[str, object]:
    """What the table holds of a run."""
    record = learning.read_learning(directory)
    options = without_sections(TrainOptions, foreign.read_yaml(directory / CONFIG)["options"])
    step, total, warnings, validation = 0, 0, [], {}

    for event in read_events(directory / JOURNAL)[0]:
        if isinstance(event, Step):
            step, total = event.step, event.total_steps
        elif isinstance(event, WarningRaised):
            warnings.append({"step": step, "message": event.message})
        elif isinstance(event, Evaluated):
            validation[event.step] = {language: losses["speech_loss"] for language, losses in event.languages.items()}

    final = record.reports[max(record.reports, key=int)] if record.reports else learning.LearningReport(step)
    return {
        "case": case, "seed": seed, "steps": step, "planned_steps": total, "batch_size": options["batch_size"],
        "scope": options["scope"], "dataset": options["dataset"], "failure": failure,
        "learning": final.learning.value, "outcome": learning.describe_report(final),
        "checks": {step_key: asdict(report) for step_key, report in record.reports.items()}, "validation": validation,
        "warnings": warnings,
    }


def add_to_table(path: Path, run: Mapping[str, object]) -> None:
    """Replace the run of the same case and seed in the table, or add it."""
    table = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"runs": []}
    other_runs = [entry for entry in table["runs"] if (entry["case"], entry["seed"]) != (run["case"], run["seed"])]
    table["runs"] = sorted([*other_runs, run], key=lambda entry: (list(CASES).index(entry["case"]), entry["seed"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(table, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
