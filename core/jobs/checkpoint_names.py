"""The checkpoints of a run on disk: their steps, the names that pin them, and where a resume starts."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from config import foreign
from config.errors import UserError
from core.jobs.directory import Job
from core.jobs.locks import locked
from core.jobs.verbs import VERBS
from core.workspace import resolve_inside
from data.durable_files import write_json

CHECKPOINTS, NAMES = "checkpoints", "names.json"
CHOICE = "choice"
"""The name of the checkpoint that a person chose in the place of the best one: it is what `run:ID` stands for."""
BEST = "best"
"""`run:ID@best` is the best checkpoint, whatever was chosen."""
_PATIENCE_S = 10.0


def checkpoint_steps(run: Path) -> list[int]:
    """Steps of the training in the folder `run` that have a checkpoint, ascending."""
    folders = (run / CHECKPOINTS).glob("step-*")
    return sorted(int(number) for path in folders if (number := path.name.removeprefix("step-")).isascii()
                  and number.isdigit() and len(number) < 13 and path.is_dir())


def resume_point(job: Job) -> str:
    """Where a resume of `job` starts, for people; only what is on the disk counts."""
    if steps := checkpoint_steps(job.directory):
        return f"It resumes from the checkpoint of step {steps[-1]}."
    if VERBS[job.verb].resumes and job.verb != "train":
        return "It resumes from what was done before."
    return "Nothing was saved yet; it resumes from the beginning."


def pinned_names(run: Path) -> dict[str, int]:
    """The checkpoints of `run` that were given a name, by it; `UserError` when the list is damaged."""
    if not os.path.lexists(f"{run}/{CHECKPOINTS}/{NAMES}"):  # as most; a page asks this of thousands
        return {}
    path = run / CHECKPOINTS / NAMES
    try:
        return {str(name): int(step) for name, step in foreign.read_json(path).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError, ArithmeticError) as error:
        raise UserError(f"{path} could not be read: {foreign.reason_of(error)}.",
                        "Delete it, and pin the checkpoints again.") from error


def pin(run: Path, step: int, name: str) -> None:
    """Name the checkpoint of `step`, so that the run never deletes it."""
    resolve_inside(run, name)
    if name == BEST or name.isdigit():
        raise UserError(f"{name!r} cannot be the name of a checkpoint: run:{run.name}@{name} is "
                        f"{'the best one' if name == BEST else f'that of step {name}'}.", "Take another name.")
    if name == CHOICE:
        raise UserError(f"{name!r} is the name of the checkpoint that the run stands for.",
                        "Take another name; to use a checkpoint: Listen tab, or pin_checkpoint RUN --use STEP.")
    with checkpoint_lock(run):
        _check_step(run, step)
        names = pinned_names(run)
        if names.get(name, step) != step:
            raise UserError(f"The checkpoint of step {names[name]} has the name {name!r} already.",
                            "Choose another name, or unpin that one first.")
        _write(run, {**names, name: step})


def choose(run: Path, wanted: str) -> None:
    """Let the run stand for its checkpoint of this step or name, which it then never deletes; empty: for the best."""
    with checkpoint_lock(run):
        names = pinned_names(run)
        kept = {name: step for name, step in names.items() if name != CHOICE}
        if wanted:
            kept[CHOICE] = names[wanted] if wanted in names else int(wanted) if wanted.isascii() and wanted.isdigit() \
                else -1
            _check_step(run, kept[CHOICE], wanted)
        if kept.get(CHOICE) == names.get(CHOICE):
            raise UserError(f"The run {run.name!r} stands for {f'step {wanted}' if wanted else 'its best checkpoint'} "
                            "already.", "Choose another checkpoint.")
        _write(run, kept)


def _check_step(run: Path, step: int, wanted: str = "") -> None:
    steps = checkpoint_steps(run)
    if step not in steps:
        raise UserError(f"The run {run.name!r} has no checkpoint of step {wanted or step}.",
                        f"There are checkpoints of steps {', '.join(map(str, steps)) or '(none)'}.")


def unpin(run: Path, name: str) -> int:
    """Remove a checkpoint's name, so that the run may delete it with its next one; its step."""
    with checkpoint_lock(run):
        names = pinned_names(run)
        if name not in names:
            raise UserError(f"No checkpoint of {run.name!r} has the name {name!r}.",
                            f"Pinned checkpoints: {', '.join(names) or 'none'}.")
        step = names.pop(name)
        _write(run, names)
    return step


def checkpoint_lock(run: Path) -> AbstractContextManager[None]:
    """Meanwhile nobody else names or deletes checkpoints of `run`."""
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        raise UserError(f"The run {run.name!r} has no checkpoint yet.", "Let it train to its first checkpoint.")
    return locked(folder / ".names", _PATIENCE_S, f"The checkpoints of {run.name!r} are in use.",
                  "Try again in a moment.")


def _write(run: Path, names: dict[str, int]) -> None:
    path = run / CHECKPOINTS / NAMES
    try:
        write_json(path, names)
    except OSError as error:
        hint = "Free some space, then try again."
        raise UserError(f"{path} could not be written: {error.strerror}.", hint) from error
