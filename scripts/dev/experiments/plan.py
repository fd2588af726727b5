"""What is to be tried: groups of trials from `plan.yaml`, each a training with some options changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from config.loading import change_options, parse_options
from config.schema import ExtendOptions, TrainOptions
from core.submission import job_chains

PLAN = Path(__file__).with_name("plan.yaml")


@dataclass(frozen=True)
class ExperimentTrial:
    """One variation. Equal `extend` settings share an extension."""

    group: str
    name: str
    train: Mapping[str, object]
    extend: Mapping[str, object]
    shortened: bool = False  # a trial of the experiments themselves; what it measures is kept apart
    recipe: str = ""  # empty: Lisan's own; "hook": that of `scripts.dev.experiments.broken`

    def extension(self, seed: int) -> ExtendOptions:
        """How the rows are made that this trial trains."""
        demo = job_chains.demo_options("extend", ExtendOptions)
        changed = {**demo.model_dump(), **self.extend, "seed": seed}
        changed["extension"] = f"experiment-{changed['initialisation']}-{seed}"
        return parse_options(ExtendOptions, changed)

    def training(self, seed: int) -> TrainOptions:
        """The demo's training with this trial's changes, on `extension(seed)`."""
        demo = job_chains.demo_options("train", TrainOptions)
        return change_options(demo, {"max_minutes": 0.0, **self.train, "seed": seed,
                                     "extension": self.extension(seed).extension})

    def run(self, seed: int) -> str:
        """Name of the run."""
        return f"{'try' if self.shortened else 'experiment'}-{self.group}-{self.name}-{seed}"


@dataclass(frozen=True)
class TrialGroup:
    """Trials that are compared with one another."""

    name: str
    title: str
    measure: str  # "errors": errors of what is spoken; "losses": held-out loss at some steps
    trials: tuple[ExperimentTrial, ...]
    at: tuple[int, ...] = field(default=())  # steps, for "losses"


def read(steps: int | None = None, path: Path = PLAN) -> tuple[TrialGroup, ...]:
    """All groups; `steps` shortens every training, to try the experiments themselves."""
    groups = yaml.safe_load(path.read_text(encoding="utf-8"))
    return tuple(_group(name, values, steps) for name, values in groups.items())


def _group(name: str, values: Mapping[str, object], steps: int | None) -> TrialGroup:
    trials, common = _mapping(values["trials"]), _mapping(values.get("train", {}))
    length = steps or int(str(values["steps"]))
    evaluated_at = values.get("at", ())
    assert isinstance(evaluated_at, Sequence)

    variants = []
    for trial, changed in trials.items():
        changes = dict(_mapping(changed))
        extend = _mapping(changes.pop("extend", {}))
        # A shortened trial still has a checkpoint.
        every = min(length, int(str(common.get("checkpoint_every", 200))))
        options = {**common, **changes, "steps": length, "checkpoint_every": every}
        variants.append(ExperimentTrial(name, trial, options, extend, steps is not None, str(values.get("recipe", ""))))
    return TrialGroup(name, str(values["title"]), str(values["measure"]), tuple(variants),
                 tuple(step for step in evaluated_at if step <= length))


def _mapping(value: object) -> Mapping[str, object]:
    assert isinstance(value, dict), value
    return value
