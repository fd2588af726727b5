"""A place in the queue of a device, kept by the waiting workers themselves. Never loads torch.

There is no scheduler: each waiting worker holds a locked ticket file whose name sorts by the
job's place (`core.jobs.queue`), and the first in line takes the device's lock. A job that is not
ready for the device lets others pass meanwhile. A worker that dies loses its ticket and its
device with its locks, so the queue outlives every restart.
"""

from __future__ import annotations

import math
import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

from config.errors import UserError
from core.jobs import locks
from core.jobs.directory import NO_DEVICE, Job, load
from core.jobs.events import Waiting
from core.jobs.locks import FileLock
from core.jobs.reporter import Reporter, StopRequested
from core.jobs.state import JobReader, JobState

_POLL_S = 0.2
_AGAIN_S = 5.0  # from one look at whether a job is ready to the next
_LOOKS_IN_LINE = 2  # what ended just now may not have given all back: the first look costs no place
_ASIDE = "~"  # before the name of a ticket that sorts behind all others: who has it lets them pass


class DependencyFailed(UserError):
    """A job whose turn cannot come: one before it did not make what it needs."""


def wait_for_turn(job: Job, reporter: Reporter, ready: Callable[[], str] = lambda: "") -> FileLock | None:
    """Wait for the jobs in `job.after`, then for the device; the device's lock, None without a device.

    `ready` says why the job cannot begin although the device is its own, as when another program is at work on it; it
    is asked while the lock is held. Until it says nothing the job lets those behind it pass, and keeps its place.
    Raises `DependencyFailed` when a job in `after` did not finish or was deleted, `StopRequested` when asked to stop.
    """
    readers = {name: _reader(job, name) for name in job.after}
    _poll(reporter, lambda: _first_unfinished(readers))
    if job.device == NO_DEVICE:
        return None
    return _device_lock(job, reporter, ready)


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


def _deleted(name: str) -> DependencyFailed:
    return DependencyFailed(f"{name} was deleted, and this job needs what it makes.",
                    "Start that step again, and then this one.")


def _first_unfinished(readers: Mapping[str, JobReader]) -> str:
    for name, reader in readers.items():
        state = reader.state()
        if state.ended and state.status != "finished":
            if state.status == "skipped":  # the reason is the job that broke the chain, not the one between
                raise DependencyFailed(state.message, state.hint)
            raise DependencyFailed(f"{name} {_PAST[state.status]}, and this job needs what it makes.",
                           f"Mend what it says and continue {name}: what waits for it goes on by itself.")
        if not state.ended and not reader.job.directory.is_dir():
            raise _deleted(name)
        if state.status == "created":
            return f"Waiting for {name}, which was not started yet."
        if not state.ended:
            return f"Waiting for {name} to finish."
    return ""


_PAST: Mapping[str, str] = {"stopped": "was stopped", "failed": "failed", "crashed": "crashed"}


def _device_lock(job: Job, reporter: Reporter, ready: Callable[[], str]) -> FileLock:
    turn = _Turn(job, ready)
    try:
        _poll(reporter, turn.obstacle)
    finally:
        turn.leave()
    assert turn.lock is not None
    turn.lock.write(job.id)
    return turn.lock


class _Turn:
    """A job in the queue of its device, from its ticket to the device's lock."""

    def __init__(self, job: Job, ready: Callable[[], str]) -> None:
        self._job, self._ready = job, ready
        self._queue, self._lock_path = job.workspace.devices / job.device, job.workspace.devices / f"{job.device}.lock"
        self._queue.mkdir(exist_ok=True)
        self._ticket_path, self._ticket = _draw_ticket(job, self._queue)
        self._unready = 0  # looks in a row at which the device was free, and the job not ready for it
        self._reason, self._next_look = "", 0.0
        self.lock: FileLock | None = None

    def obstacle(self) -> str:
        """Why it has to wait still; empty when it has the lock."""
        name, device = _ticket_name(self._job), self._job.device
        aside = _ASIDE if self._unready >= _LOOKS_IN_LINE else ""
        self._ticket_path = self._ticket_path.rename(self._queue / f"{aside}{name}")
        if earlier := _earlier(self._queue, name):
            return self._in_line(f"Waiting for {device}: {earlier} is before it in the queue.")
        if self._unready and time.monotonic() < self._next_look and not locks.is_held(self._lock_path):
            return self._reason
        lock = FileLock.take(self._lock_path, patience_s=0.0)
        if lock is None:
            holder = locks.content(self._lock_path) or "another job"
            return self._in_line(f"Waiting for {device}: {holder} is using it.")
        try:
            self._reason = self._ready()
        except BaseException:
            lock.close()
            raise
        if not self._reason:
            self.lock = lock
            return ""
        lock.close()
        self._unready += 1
        self._next_look = time.monotonic() + _AGAIN_S
        return self._reason

    def _in_line(self, reason: str) -> str:
        self._unready = 0
        return reason

    def leave(self) -> None:
        """Give the ticket back."""
        self._ticket_path.unlink(missing_ok=True)
        self._ticket.close()


def _draw_ticket(job: Job, queue: Path) -> tuple[Path, FileLock]:
    """A ticket that is locked before others can see it; else they would take its owner for dead."""
    name = _ticket_name(job)
    for left in queue.glob(f"{_ASIDE}*"):
        if not locks.is_held(left):
            left.unlink(missing_ok=True)
    aside = queue / f".{name}"
    ticket = FileLock.take(aside)
    assert ticket is not None, "the job's own lock keeps others from drawing its ticket"
    path = queue / name
    os.rename(aside, path)
    return path, ticket


def _ticket_name(job: Job) -> str:
    """It sorts by place. Times since 1970 in microseconds have ten digits before the point until the year 2286."""
    return f"{max(0.0, queue_position(job)):017.6f} {job.id}"


def _earlier(queue: Path, own: str) -> str:
    """Id of the living job that is first in line before `own`; empty when there is none."""
    for name in sorted(entry for entry in os.listdir(queue) if not entry.startswith(".") and entry < own):
        if locks.is_held(queue / name):
            return name.partition(" ")[2]
        with suppress(FileNotFoundError):
            (queue / name).unlink()
    return ""


POSITION_FILE = "place"
Direction = Literal["first", "earlier", "later", "last"]
_APART = 1.0  # between the ends of a queue and what is moved beyond them


def queue_position(job: Job) -> float:
    """Smaller is earlier. What cannot be read as a number counts as never moved."""
    try:
        place = float((job.directory / POSITION_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return job.created
    return place if math.isfinite(place) else job.created


def queue_order(states: Sequence[JobState]) -> list[JobState]:
    """Living jobs in the order in which they have or get their device."""
    return sorted(states, key=lambda state: (not _holds(state), queue_position(state.job), state.id))


def move_in_queue(states: Sequence[JobState], name: str, direction: Direction) -> None:
    """Give the waiting job `name` another place among the `states` that wait for the same device.

    Raises `UserError` for a job that does not wait in a queue.
    """
    moved = next((state for state in states if state.id == name), None)
    if moved is None or not moved.alive or _holds(moved) or moved.job.device == NO_DEVICE:
        raise UserError(f"{name} does not wait for a device: it is {moved.status if moved else 'not there'}.",
                        "Only a job that waits in the queue of a device can be moved.")
    others = [state for state in queue_order(states) if state.alive and not _holds(state) and state.id != name
              and state.job.device == moved.job.device]
    places = [queue_position(state.job) for state in others]
    own = sum((place, state.id) < (queue_position(moved.job), name) for place,
              state in zip(places, others, strict=True))
    last = len(others)
    target = {"first": 0, "earlier": max(0, own - 1), "later": min(last, own + 1), "last": last}[direction]
    if target != own:
        _write(moved.job, _between(places, target))


def _between(places: Sequence[float], target: int) -> float:
    """A place before the one that is number `target` and after the one before it."""
    if target == 0:
        return places[0] - _APART
    if target == len(places):
        return places[-1] + _APART
    return (places[target - 1] + places[target]) / 2


def _holds(state: JobState) -> bool:
    return state.status in ("running", "stopping") and state.started_at is not None


def _write(job: Job, place: float) -> None:
    aside = job.directory / f".{POSITION_FILE}-{uuid.uuid4().hex[:8]}"
    aside.write_text(f"{place!r}\n", encoding="utf-8")
    os.replace(aside, job.directory / POSITION_FILE)
