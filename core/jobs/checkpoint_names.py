"""What of a job outlives its worker: which checkpoints are never deleted, and what a resume begins with.

Nothing is claimed that is not on the disk. Never loads torch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.errors import UserError
from core.jobs.directory import Job
from core.jobs.locks import FileLock
from core.workspace import resolve_inside

CHECKPOINTS, NAMES = "checkpoints", "kept.json"
# They find what they did before.
_GOES_ON = ("prepare", "download", "push", "segment", "transcribe", "align", "revise", "export")
_PATIENCE_S = 10.0


def steps(run: Path) -> list[int]:
    """Steps of the training in the folder `run` that have a checkpoint, ascending."""
    folders = (run / CHECKPOINTS).glob("step-*")
    return sorted(int(path.name.removeprefix("step-")) for path in folders if path.is_dir())


def checkpoint_steps(job: Job) -> list[int]:
    """Steps of a training with a checkpoint, ascending."""
    return steps(job.directory)


def words(job: Job) -> str:
    """What a resume of `job` begins with."""
    if found := checkpoint_steps(job):
        return f"The checkpoint of step {found[-1]} is saved; it goes on from there."
    if job.verb in _GOES_ON:
        return "What was done before is kept; it goes on from there."
    return "Nothing was saved yet; it begins again."


def names(run: Path) -> dict[str, int]:
    """The checkpoints of `run` that were given a name, by it; `UserError` when the list is damaged."""
    path = run / CHECKPOINTS / NAMES
    try:
        return {str(name): int(step) for name, step in json.loads(path.read_text(encoding="utf-8")).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path} could not be read: {error}.",
                        "Delete it, and name the checkpoints again that are to be kept.") from error


def keep(run: Path, step: int, name: str) -> None:
    """Keep the checkpoint of `step` until its name is taken away, also while the run goes on."""
    resolve_inside(run, name)
    with held(run):
        there = steps(run)
        if step not in there:
            raise UserError(f"The run {run.name!r} has no checkpoint of step {step}.",
                            f"There are checkpoints of steps {', '.join(map(str, there)) or '(none)'}.")
        known = names(run)
        if known.get(name, step) != step:
            raise UserError(f"The checkpoint of step {known[name]} has the name {name!r} already.",
                            "Choose another name, or release that one first.")
        _write(run, {**known, name: step})


def release(run: Path, name: str) -> int:
    """Take a checkpoint's name away, so that the run may delete it with its next one; its step."""
    with held(run):
        known = names(run)
        if name not in known:
            raise UserError(f"No checkpoint of {run.name!r} has the name {name!r}.",
                            f"Names that are kept: {', '.join(known) or 'none'}.")
        step = known.pop(name)
        _write(run, known)
    return step


@contextmanager
def held(run: Path) -> Iterator[None]:
    """While it lasts nobody else names or deletes checkpoints of `run`."""
    folder = run / CHECKPOINTS
    if not folder.is_dir():
        raise UserError(f"The run {run.name!r} has no checkpoint yet.", "Let it train to its first checkpoint.")
    lock = FileLock.take(folder / ".names", patience_s=_PATIENCE_S)
    if lock is None:
        raise UserError(f"The checkpoints of {run.name!r} are in use.", "Try again in a moment.")
    try:
        yield
    finally:
        lock.close()


def _write(run: Path, known: dict[str, int]) -> None:
    path = run / CHECKPOINTS / NAMES
    aside = path.with_name(f".writing-{NAMES}")
    try:
        aside.write_text(json.dumps(known, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
        aside.replace(path)
    except OSError as error:
        hint = "Free some space, then try again."
        raise UserError(f"{path} could not be written: {error.strerror}.", hint) from error
