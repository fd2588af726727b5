"""The queue of a device. There is no scheduler process: the waiting workers form the queue with file locks.

Each waiting worker holds a locked ticket file whose name sorts by the job's position, and the first one acquires the
device's lock. A job that is not ready for the device lets others pass. If a worker dies, its locks, and with them its
ticket and its device, are released, so the queue survives every restart. A position is a number in a file of the job's
folder. The waiting worker reads it and renames its ticket, so a job is moved by writing that file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal

from config.errors import UserError
from core.jobs import locks
from core.jobs.events import Waiting
from core.jobs.job import NO_DEVICE, Job, load_job
from core.jobs.locks import FileLock
from core.jobs.reporter import ForwardingReporter, Reporter, StopRequested
from core.jobs.state import POSITION_FILE, JobReader, JobState, queue_order, queue_position
from core.jobs.verbs import VERBS
from data.durable_files import write_text

Direction = Literal["first", "earlier", "later", "last"]
_POLL_S = 0.2
_READY_INTERVAL_S = 5.0  # between two checks of whether a job is ready for its device
_MAX_FAILED_CHECKS = 2  # then others may pass; not after the first, as a job that just ended may still hold memory
_NOT_READY = "~"  # prefix of the ticket of a job that is not ready; it sorts after all others
_STATUS_PHRASES: Mapping[str, str] = {"stopped": "was stopped", "failed": "failed", "crashed": "crashed"}


class DependencyFailed(UserError):
    """A job that this one depends on did not finish, or was deleted."""


def wait_for_turn(job: Job, reporter: Reporter,
                  wait_reason: Callable[[], str | None] = lambda: None) -> FileLock | None:
    """Wait for the jobs in `job.after`, then for the device. Returns the device's lock; None without a device.

    `wait_reason` returns why the job cannot begin although it holds the device's lock, for example because another
    program uses the GPU. Until it returns None the job lets those behind it pass, and keeps its position.
    Raises `DependencyFailed` if a job in `after` did not finish or was deleted, and `StopRequested`.
    """

    # The jobs whose results this one needs must still exist, unless it has begun before.
    readers: dict[str, JobReader] = {}
    for name in job.after:
        if name not in job.workspace.list_runs():
            if JobReader(job).state(worker_alive=True).attempt:  # it began once, so its inputs existed
                continue
            raise _deleted_error(name)
        readers[name] = JobReader(load_job(job.workspace, name))

    _wait(reporter, lambda: _pending_dependency(readers))
    if job.device == NO_DEVICE:
        return None

    if readers and VERBS[job.verb].preempted_by:
        time.sleep(2 * _POLL_S)  # another job that waited for the same one joins the queue first, within one poll

    # The ticket is the job's place in the queue; it is removed when the device's lock is held.
    ticket = _Ticket(job, wait_reason)
    try:
        _wait(reporter, ticket.acquire_or_reason)
    finally:
        ticket.release()
    assert ticket.device_lock is not None
    ticket.device_lock.write(job.id)
    return ticket.device_lock


def _wait(reporter: Reporter, wait_reason: Callable[[], str | None]) -> None:
    """Return when `wait_reason()` is None; report each new reason once."""
    reported = ""
    while True:
        if reporter.stop_requested():  # checked first: at a shutdown the job ahead ends too
            raise StopRequested("Stopped while it waited.")
        reason = wait_reason()
        if reason is None:
            return
        if reason != reported:
            reporter.emit(Waiting(reason))
            reported = reason
        time.sleep(_POLL_S)


def _pending_dependency(readers: Mapping[str, JobReader]) -> str | None:
    # The first dependency that did not finish decides.
    for name, reader in readers.items():
        state = reader.state()
        if state.ended and state.status != "finished":
            if state.status == "skipped":  # report the job that failed, not the one in between
                raise DependencyFailed(state.message, state.hint)
            raise DependencyFailed(
                f"{name} {_STATUS_PHRASES[state.status]}, and this job needs what it makes.",
                f"Fix the reported problem and resume {name}: the jobs that depend on it then resume too.")
        if not state.ended and not reader.job.directory.is_dir():
            raise _deleted_error(name)
        if state.status == "created":
            return f"Waiting for {name}, which was not started yet."
        if not state.ended:
            return f"Waiting for {name} to finish."
    return None


def _deleted_error(name: str) -> DependencyFailed:
    return DependencyFailed(f"{name} was deleted, and this job needs what it makes.",
                            "Start that job again, and then this one.")


class _Ticket:
    """The place of a job in the queue of its device, until it has the device's lock."""

    def __init__(self, job: Job, wait_reason: Callable[[], str | None]) -> None:
        self._job, self._wait_reason = job, wait_reason
        self._queue = job.workspace.devices / job.device
        self._queue.mkdir(exist_ok=True)
        self._failed_checks = 0  # checks in a row with the device free and the job not ready for it
        self._reason: str | None = None  # why the last check failed
        self._next_check = 0.0
        self.device_lock: FileLock | None = None

        # Remove tickets whose workers were killed.
        for abandoned in self._queue.glob(f"{_NOT_READY}*"):
            if not locks.is_held(abandoned):
                abandoned.unlink(missing_ok=True)

        name = self._name()
        hidden = self._queue / f".{name}"  # others delete unlocked tickets, so it is locked before they can see it
        lock = FileLock.acquire(hidden)
        assert lock is not None, "only the holder of the job's lock creates its ticket"
        self._lock, self._path = lock, hidden.rename(self._queue / name)

    def acquire_or_reason(self) -> str | None:
        """Acquire the device's lock if it is the job's turn. Returns why the job waits, None if it has the lock."""
        device, name = self._job.device, self._name()
        behind = _NOT_READY if self._failed_checks >= _MAX_FAILED_CHECKS else ""
        # The name follows the job's position, which a person may change, and whether it is ready.
        self._path = self._path.rename(self._queue / f"{behind}{name}")

        # The first job in the queue whose worker is alive has its turn.
        device_path = self._job.workspace.devices / f"{device}.lock"
        job_ahead = self._first_before(name)
        if job_ahead:
            self._failed_checks = 0
            return f"Waiting for {device}: {job_ahead} is ahead in the queue."
        # A job that is not ready checks again after a while, unless the device was taken meanwhile.
        if self._failed_checks and time.monotonic() < self._next_check and not locks.is_held(device_path):
            return self._reason

        lock = FileLock.acquire(device_path, timeout_s=0.0)
        if lock is None:
            self._failed_checks = 0
            return f"Waiting for {device}: {locks.read_holder(device_path) or 'another job'} is using it."

        # The device is free; the job keeps its lock if it is ready.
        try:
            self._reason = self._wait_reason()
        except BaseException:
            lock.release()
            raise
        if self._reason is None:
            self.device_lock = lock
            return None
        lock.release()
        self._failed_checks += 1
        self._next_check = time.monotonic() + _READY_INTERVAL_S
        return self._reason

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        self._lock.release()

    def _name(self) -> str:
        """The name of the ticket, which sorts by position (seconds since 1970 have ten digits until 2286)."""
        return f"{max(0.0, queue_position(self._job)):017.6f} {self._job.id}"

    def _first_before(self, own_name: str) -> str:
        """Id of the first job in the queue whose worker is alive, if it is ahead of `own_name`; else empty."""
        earlier = [entry for entry in os.listdir(self._queue) if not entry.startswith(".") and entry < own_name]
        for name in sorted(earlier):
            if locks.is_held(self._queue / name):
                return name.partition(" ")[2]
            with suppress(FileNotFoundError):
                (self._queue / name).unlink()
        return ""


class PreemptibleReporter(ForwardingReporter):
    """The reporter of a preemptible job: it requests a stop if the next job in the queue preempts this one.

    The worker then moves this job behind that one (`move_behind_preempting`) and waits for its turn again.
    """

    def __init__(self, job: Job, reporter: Reporter) -> None:
        super().__init__(reporter)
        self._job = job

    def stop_requested(self) -> bool:
        return super().stop_requested() or bool(_preempting_positions(self._job))


def move_behind_preempting(job: Job) -> None:
    """Move `job` behind the jobs at the head of its device's queue that preempt it."""
    positions = _preempting_positions(job)
    if positions:
        write_text(job.directory / POSITION_FILE, f"{positions[-1] + 1e-6!r}\n", sync=False)


def _preempting_positions(job: Job) -> list[float]:
    """Positions of the jobs at the head of the queue that preempt `job`, up to the first job that does not.

    Jobs behind that one do not count: `job` would wait for a job that itself waits for `job`.
    """
    queue, positions = job.workspace.devices / job.device, list[float]()
    for name in sorted(entry for entry in os.listdir(queue) if entry[0].isdigit()) if queue.is_dir() else ():
        position, _, other = name.partition(" ")
        if not locks.is_held(queue / name):
            continue
        try:
            if load_job(job.workspace, other).verb not in VERBS[job.verb].preempted_by:
                break
        except UserError:  # it was deleted meanwhile
            continue
        positions.append(float(position))
    return positions


def move_in_queue(states: Sequence[JobState], name: str, direction: Direction) -> None:
    """Move the waiting job `name` among the `states` that wait for the same device.

    Raises `UserError` for a job that does not wait in a queue.
    """
    moved = next((state for state in states if state.id == name), None)
    if moved is None or not moved.alive or moved.has_device or moved.job.device == NO_DEVICE:
        raise UserError(f"{name} does not wait for a device: it is {moved.status if moved else 'unknown'}.",
                        "Only a job that waits in the queue of a device can be moved.")
    # A position is a number, so that a job moves without a change to the others.
    waiting_states = [state for state in queue_order(states) if state.alive and not state.has_device
                      and state.id != name and state.job.device == moved.job.device]
    positions = [queue_position(state.job) for state in waiting_states]
    moved_key = queue_position(moved.job), name
    index = sum((position, state.id) < moved_key for position, state in zip(positions, waiting_states, strict=True))
    last = len(waiting_states)
    target = {"first": 0, "earlier": max(0, index - 1), "later": min(last, index + 1), "last": last}[direction]

    # `positions` does not contain the moved job.
    if target == index:
        return
    if target == 0:
        position = positions[0] - 1
    elif target == last:
        position = positions[-1] + 1
    else:
        position = (positions[target - 1] + positions[target]) / 2
    write_text(moved.job.directory / POSITION_FILE, f"{position!r}\n", sync=False)
