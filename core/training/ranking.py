"""Which checkpoints of a run are the best, and which are deleted."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from config.errors import UserError
from core.jobs import checkpoint_names

_BEST, _ASIDE = "best.json", ".writing-"


@dataclass(frozen=True)
class Ranking:
    """What is known of the checkpoints: the best by `measure` (lower is better), and every value so far."""

    measure: str = ""
    best: int | None = None
    values: dict[int, float] = field(default_factory=dict)

    def with_value(self, step: int, value: float) -> Ranking:
        """This ranking after `step` was measured; of equal ones the later is better."""
        return replace(self, values={**self.values, step: value})._settled()

    def up_to(self, step: int) -> Ranking:
        """This ranking without what was measured after `step`, for a run that goes back to it."""
        return replace(self, values={known: value for known, value in self.values.items() if known <= step})._settled()

    def among(self, steps: list[int]) -> Ranking:
        """This ranking with the best of `steps` alone."""
        values = {step: value for step, value in self.values.items() if step in steps}
        return replace(replace(self, values=values)._settled(), values=self.values)

    def _settled(self) -> Ranking:
        best = min(self.values, key=lambda known: (self.values[known], -known), default=None)
        return replace(self, best=best)


def read(run: Path) -> Ranking:
    """The ranking of the run's checkpoints; an empty one when none was measured."""
    path = run / checkpoint_names.CHECKPOINTS / _BEST
    if not path.is_file():
        return Ranking()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {int(step): float(value) for step, value in values["values"].items()}
        return Ranking(str(values["measure"]), values["best"], known)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "Delete it and continue the run: the last checkpoint is measured again."
        raise UserError(f"{path} is damaged: {error!r}.", hint) from error


def write(run: Path, ranking: Ranking) -> None:
    """Replace `best.json` at once."""
    path = run / checkpoint_names.CHECKPOINTS / _BEST
    aside = path.with_name(f"{_ASIDE}{_BEST}")
    try:
        with open(aside, "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(ranking), indent=1))
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        hint = "Free some space, then continue the run."
        raise UserError(f"{path} could not be written: {error.strerror}.", hint) from error


def prune(run: Path, last: int, best: int | None) -> None:
    """Delete all checkpoints but the `last` ones, the best, and those that have a name.

    A folder loses its own name first, so that no half of one is ever left.
    """
    with checkpoint_names.checkpoint_lock(run):
        there = checkpoint_names.checkpoint_steps(run)
        keep = {*there[-last:], *checkpoint_names.pinned_names(run).values(), best}
        for step in there:
            if step not in keep:
                folder = run / checkpoint_names.CHECKPOINTS
                doomed = folder / f"{_ASIDE}deleting-{step}"
                (folder / f"step-{step:06d}").rename(doomed)
                shutil.rmtree(doomed)
