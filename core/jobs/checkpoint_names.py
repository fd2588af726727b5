"""The checkpoints of a run on disk: their steps, the names that pin them, and where a resume starts."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from pathlib import Path

from config import foreign
from config.errors import UserError
from core.jobs.job import Job
from core.jobs.locks import locked
from core.jobs.verbs import VERBS
from core.workspace import resolve_inside
from data.durable_files import write_json

CHECKPOINTS, NAMES = "checkpoints", "names.json"
CHOICE = "choice"
"""The reserved name of the checkpoint that a person chose instead of the best one: `run:ID` refers to it."""
BEST = "best"
"""`run:ID@best` is the best checkpoint, even if a person chose another one."""
_LOCK_TIMEOUT_S = 10.0


def checkpoint_steps(run_dir: Path) -> list[int]:
    """Steps of the training in the folder `run_dir` that have a checkpoint, ascending."""
    # The names of unfinished folders begin with a dot.
    folders = (run_dir / CHECKPOINTS).glob("step-*")
    steps = []
    for path in folders:
        number = path.name.removeprefix("step-")
        if number.isascii() and number.isdigit() and len(number) < 13 and path.is_dir():
            steps.append(int(number))
    return sorted(steps)


def step_folder(step: int) -> str:
    """The name of the folder of the checkpoint of `step`."""
    return f"step-{step:06d}"


def folder_of(run_dir: Path, step: int) -> Path:
    """The folder of the checkpoint of `step`."""
    return run_dir / CHECKPOINTS / step_folder(step)


def resume_point(job: Job) -> str:
    """A sentence about where a resume of `job` starts, from what is on the disk."""
    steps = checkpoint_steps(job.directory)
    if steps:
        return f"It resumes from the checkpoint of step {steps[-1]}."
    if VERBS[job.verb].resumes and job.verb != "train":
        return "It resumes from where it stopped."
    return "Nothing was saved yet; it resumes from the beginning."


def pinned_names(run_dir: Path) -> dict[str, int]:
    """The steps of the pinned checkpoints of the run by name; `UserError` if the list is damaged."""
    if not os.path.lexists(f"{run_dir}/{CHECKPOINTS}/{NAMES}"):  # fast for most of thousands of runs on the page
        return {}
    path = run_dir / CHECKPOINTS / NAMES
    try:
        return {str(name): int(step) for name, step in foreign.read_json(path).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError, ArithmeticError) as error:
        raise UserError(f"{path} could not be read: {foreign.reason_of(error)}.",
                        "Delete it, and pin the checkpoints again.") from error


def pin(run_dir: Path, step: int, name: str) -> None:
    """Name the checkpoint of `step`, so that the run never deletes it."""
    resolve_inside(run_dir, name)
    if name == BEST or name.isdigit():
        raise UserError(f"{name!r} cannot be the name of a checkpoint: run:{run_dir.name}@{name} is "
                        f"{'the best one' if name == BEST else f'that of step {name}'}.", "Take another name.")
    if name == CHOICE:
        raise UserError(f"{name!r} is reserved for the checkpoint that the run refers to.",
                        "Take another name; to use a checkpoint: Listen tab, or python -m scripts pin_checkpoint "
                        "RUN --use STEP.")
    with checkpoint_lock(run_dir):
        _check_step(run_dir, step)
        # A name never moves to another checkpoint: what refers to it would change.
        names = pinned_names(run_dir)
        if names.get(name, step) != step:
            raise UserError(f"The checkpoint of step {names[name]} has the name {name!r} already.",
                            "Choose another name, or unpin that one first.")
        _write(run_dir, {**names, name: step})


def set_choice(run_dir: Path, checkpoint: str) -> None:
    """Let `run:ID` refer to this `checkpoint` (a step or a name; empty: the best), and never delete it."""
    with checkpoint_lock(run_dir):
        # A pinned checkpoint is never deleted, so the choice is a name beside those of people.
        names = pinned_names(run_dir)
        updated = {name: step for name, step in names.items() if name != CHOICE}
        if checkpoint:
            is_step = checkpoint.isascii() and checkpoint.isdigit()
            updated[CHOICE] = names[checkpoint] if checkpoint in names else int(checkpoint) if is_step else -1
            _check_step(run_dir, updated[CHOICE], checkpoint)
        if updated.get(CHOICE) == names.get(CHOICE):
            raise UserError(f"run:{run_dir.name} refers to "
                            f"{f'step {checkpoint}' if checkpoint else 'its best checkpoint'} already.",
                            "Choose another checkpoint.")
        _write(run_dir, updated)


def _check_step(run_dir: Path, step: int, reference: str = "") -> None:
    steps = checkpoint_steps(run_dir)
    if step not in steps:
        raise UserError(f"The run {run_dir.name!r} has no checkpoint of step {reference or step}.",
                        f"There are checkpoints of steps {', '.join(map(str, steps)) or '(none)'}.")


def unpin(run_dir: Path, name: str) -> int:
    """Remove a checkpoint's name, so that the run may delete the checkpoint. Returns its step."""
    with checkpoint_lock(run_dir):
        names = pinned_names(run_dir)
        if name not in names:
            raise UserError(f"No checkpoint of {run_dir.name!r} has the name {name!r}.",
                            f"Pinned checkpoints: {', '.join(names) or 'none'}.")
        step = names.pop(name)
        _write(run_dir, names)
    return step


def checkpoint_lock(run_dir: Path) -> AbstractContextManager[None]:
    """Context in which no other process names or deletes checkpoints of the run."""
    folder = run_dir / CHECKPOINTS
    if not folder.is_dir():
        raise UserError(f"The run {run_dir.name!r} has no checkpoint yet.", "Let it train to its first checkpoint.")
    return locked(folder / ".names", _LOCK_TIMEOUT_S, f"The checkpoints of {run_dir.name!r} are in use.",
                  "Try again in a moment.")


def _write(run_dir: Path, names: dict[str, int]) -> None:
    path = run_dir / CHECKPOINTS / NAMES
    try:
        write_json(path, names)
    except OSError as error:
        hint = "Free some space, then try again."
        raise UserError(f"{path} could not be written: {error.strerror}.", hint) from error
