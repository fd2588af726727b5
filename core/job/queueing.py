"""A place in the queue of a device, kept by the waiting workers themselves. Never loads torch.

There is no scheduler: each waiting worker holds a locked ticket file whose name sorts by the
job's place (`core.job.places`), and the first in line takes the device's lock. A worker that dies
loses its ticket and its device with its locks, so the queue outlives every restart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from config.errors import UserError
from core.job import locks
from core.job.directory import NO_DEVICE, Job, load
from core.job.journal import Waiting
from core.job.locks import FileLock
from core.job.places import place_of
from core.job.reader import JobReader
from core.job.reporter import Reporter, StopRequested

_POLL_S = 0.2


class NotBegun(UserError):
    """A job whose turn cannot come: one before it did not make what it needs."""


def wait_for_turn(job: Job, reporter: Reporter) -> FileLock | None:
    """Wait for the jobs in `job.after`, then for the device; the device's lock, None without a device.

    Raises `NotBegun` when a job in `after` did not finish or was deleted, `StopRequested` when asked to stop.
    """
    readers = {name: _reader(job, name) for name in job.after}
    _poll(reporter, lambda: _first_unfinished(readers))
    if job.device == NO_DEVICE:
        return None
    return _device_lock(job, reporter)


def _poll(reporter: Reporter, obstacle: Callable[[], str]) -> None:
    """Return when `obstacle()` is empty; say each new reason once."""
    said = ""
    while reason := obstacle():
        if reason != said:
            reporter.emit(Waiting(reason))
            said = reason
        if reporter.stop_requested():
            raise StopRequested("Stopped while it waited.")
        time.sleep(_POLL_S)


def _reader(job: Job, name: str) -> JobReader:
    if name not in job.workspace.list_runs():
        raise _deleted(name)
    return JobReader(load(job.workspace, name))


def _deleted(name: str) -> NotBegun:
    return NotBegun(f"{name} was deleted, and this job needs what it makes.",
                    "Start that step again, and then this one.")


def _first_unfinished(readers: Mapping[str, JobReader]) -> str:
    for name, reader in readers.items():
        state = reader.state()
        if state.ended and state.status != "finished":
            if state.status == "skipped":  # the reason is the job that broke the chain, not the one between
                raise NotBegun(state.message, state.hint)
            raise NotBegun(f"{name} {_PAST[state.status]}, and this job needs what it makes.",
                           f"Mend what it says and resume {name}: what waits for it goes on by itself.")
        if not state.ended and not reader.job.directory.is_dir():
            raise _deleted(name)
        if state.status == "created":
            return f"Waiting for {name}, which was not started yet."
        if not state.ended:
            return f"Waiting for {name} to finish."
    return ""


_PAST: Mapping[str, str] = {"stopped": "was stopped", "failed": "failed", "crashed": "crashed"}


def _device_lock(job: Job, reporter: Reporter) -> FileLock:
    queue = job.workspace.devices / job.device
    lock_path = job.workspace.devices / f"{job.device}.lock"
    queue.mkdir(exist_ok=True)
    ticket_path, ticket = _draw_ticket(job, queue)
    taken: list[FileLock] = []

    def obstacle() -> str:
        nonlocal ticket_path
        ticket_path = ticket_path.rename(queue / _ticket_name(job))
        if earlier := _earlier(queue, ticket_path.name):
            return f"Waiting for {job.device}: {earlier} is before it in the queue."
        if lock := FileLock.take(lock_path, patience_s=0.0):
            taken.append(lock)
            return ""
        return f"Waiting for {job.device}: {locks.content(lock_path) or 'another job'} is using it."

    try:
        _poll(reporter, obstacle)
    finally:
        ticket_path.unlink(missing_ok=True)
        ticket.close()
    taken[0].write(job.id)
    return taken[0]


def _draw_ticket(job: Job, queue: Path) -> tuple[Path, FileLock]:
    """A ticket that is locked before others can see it; else they would take its owner for dead."""
    name = _ticket_name(job)
    aside = queue / f".{name}"
    ticket = FileLock.take(aside)
    assert ticket is not None, "the job's own lock keeps others from drawing its ticket"
    path = queue / name
    os.rename(aside, path)
    return path, ticket


def _ticket_name(job: Job) -> str:
    """It sorts by place. Times since 1970 in microseconds have ten digits before the point until the year 2286."""
    return f"{max(0.0, place_of(job)):017.6f} {job.id}"


def _earlier(queue: Path, own: str) -> str:
    """Id of the living job that is first in line before `own`; empty when there is none."""
    for name in sorted(entry for entry in os.listdir(queue) if not entry.startswith(".") and entry < own):
        if locks.is_held(queue / name):
            return name.partition(" ")[2]
        with suppress(FileNotFoundError):
            (queue / name).unlink()
    return ""
