"""What the app does unattended, after a countdown that a person can cancel.

It resumes the jobs that were alive when the machine went down, and runs a command when the queue is empty.
"""

from __future__ import annotations

import logging
import shlex
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from config.errors import UserError
from core.jobs import checkpoint_names, control
from core.jobs.job import Job, gpu_is_visible, load_job
from core.jobs.locks import FileLock
from core.jobs.state import POSITION_FILE, RESUMABLE, JobReader, JobState, queue_position
from core.workspace import Workspace
from data.durable_files import write_text

MAX_RESTARTS = 3
"""So often a job is resumed without a new checkpoint in between; the job itself may bring the machine down."""
_DEVICES = ("cpu", "cuda")
_HOLDER = "the app, which resumes jobs,"  # shown by waiting jobs as the holder of their device
_POLL_S = 0.05
_QUEUED_TIMEOUT_S = 60.0
_LOG = logging.getLogger("lisan.unattended")


class Countdown:
    """Calls `action` once, in a separate thread, after `seconds`; earlier with `act`, never after `cancel`."""

    def __init__(self, seconds: float, action: Callable[[], object]) -> None:
        self._action, self._guard = action, threading.Lock()
        self._deadline: float | None = time.monotonic() + seconds
        self._timer = threading.Timer(seconds, self.act)
        self._timer.daemon = True
        self._timer.start()

    def seconds_left(self) -> float | None:
        """The time left; None if the action has begun or was cancelled."""
        deadline = self._deadline
        return None if deadline is None else max(0.0, deadline - time.monotonic())

    def cancel(self) -> bool:
        """Whether this call ended the countdown."""
        self._timer.cancel()
        with self._guard:
            pending, self._deadline = self._deadline is not None, None
        return pending

    def act(self) -> None:
        """Call the action now, unless it was called or cancelled."""
        if self.cancel():
            try:
                self._action()
            except Exception:  # the top of a thread: it would not be reported otherwise
                _LOG.exception("an action of the app failed")
                raise


@dataclass(frozen=True)
class InterruptedJobs:
    """Jobs that were alive when the machine went down, in the order in which they were created.

    `withheld` are those that the app does not resume, each with the reason; a person may.
    """

    jobs: tuple[JobState, ...]
    withheld: tuple[tuple[JobState, str], ...] = ()


def find_interrupted(states: Sequence[JobState]) -> InterruptedJobs:
    """The interrupted jobs of `states`, and those that were skipped because one of them did not finish."""
    resumable: dict[str, JobState] = {}
    withheld: dict[str, tuple[JobState, str]] = {}
    for state in sorted(states, key=lambda job_state: (job_state.job.created, job_state.id)):
        needed = set(state.job.after)
        # Skipped jobs depend on an interrupted one, and run after it.
        if not (state.interrupted or (state.status == "skipped" and needed & (resumable.keys() | withheld.keys()))):
            continue
        # A job whose input is withheld cannot run either.
        withheld_input = next((name for name in state.job.after if name in withheld), "")
        if withheld_input:
            withheld[state.id] = state, f"It needs {withheld_input}."
        elif state.restarts >= MAX_RESTARTS:
            withheld[state.id] = state, (f"It ended with the machine {MAX_RESTARTS} times and saved nothing: it may "
                                         "be the reason that the machine goes down.")
        elif state.job.device == "cuda" and not gpu_is_visible():
            withheld[state.id] = state, "It was queued for a GPU, and this machine has none."
        else:
            resumable[state.id] = state
    return InterruptedJobs(tuple(resumable.values()), tuple(withheld.values()))


def resume_interrupted(workspace: Workspace, states: Sequence[JobState], *,
                       command: Sequence[str] = control.WORKER_COMMAND) -> list[Job]:
    """Resume `states` (see `find_interrupted`), each on the device that is chosen now. Returns the resumed jobs.

    Their processes start in any order, so all devices are locked until all jobs are in the queue. A job that had its
    device comes before those that waited.
    """
    positions = [queue_position(state.job) for state in states]
    # While a device is locked, no job can take it before all are in its queue.
    locks = [FileLock.acquire(workspace.devices / f"{device}.lock", timeout_s=0.0) for device in _DEVICES]
    held = [lock for lock in locks if lock]
    for lock in held:
        lock.write(_HOLDER)

    resumed: list[Job] = []
    try:
        for state in states:
            if state.started_at is not None and min(positions) < queue_position(state.job):
                write_text(state.job.directory / POSITION_FILE, f"{min(positions) - 1!r}\n", sync=False)
            with suppress(control.AlreadyRunning):  # another app of this workspace has resumed it
                control.resume(state.job, command=command, restart=True)
                resumed.append(state.job)

        # A job that is no longer `queued` has its place in the queue.
        readers = [JobReader(job) for job in resumed]
        deadline = time.monotonic() + _QUEUED_TIMEOUT_S
        while any(reader.state().status == "queued" for reader in readers) and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    finally:
        for lock in held:
            lock.release()
    return resumed


def decline(states: Sequence[JobState]) -> None:
    """Record that a person does not want `states` to be resumed, so that later starts do not offer it again."""
    for state in states:
        control.note_stopped(state.job, "The machine went down, and a person declined the resume.", RESUMABLE)


class RestartOffer:
    """The interrupted jobs of a workspace at the start of an app, and the countdown to their resume."""

    def __init__(self, workspace: Workspace, states: Sequence[JobState], *,
                 command: Sequence[str] = control.WORKER_COMMAND) -> None:
        self.workspace, self._command = workspace, command
        self.interrupted = find_interrupted(states)
        self.countdown: Countdown | None = None
        self.resumed: tuple[tuple[JobState, str], ...] = ()
        """The jobs that were resumed, in their earlier states, with the point where each starts (empty: it waited)."""

    def begin(self, seconds: float) -> None:
        """Start the countdown, if there is something to resume."""
        if self.interrupted.jobs:
            self.countdown = Countdown(seconds, self._resume)

    def seconds_left(self) -> float | None:
        return self.countdown.seconds_left() if self.countdown else None

    def accept(self) -> None:
        """Resume now."""
        if self.countdown:
            self.countdown.act()

    def decline(self) -> None:
        """Leave the jobs as they are."""
        if self.countdown and self.countdown.cancel():
            decline(self.interrupted.jobs)

    def _resume(self) -> None:
        # If file locks are not shared with another machine, only the journal shows that a job runs there.
        still = [state for state in self.interrupted.jobs if _unchanged(state)]
        points = [checkpoint_names.resume_point(state.job) if state.started_at is not None else "" for state in still]
        resumed = {job.id for job in resume_interrupted(self.workspace, still, command=self._command)}
        self.resumed = tuple((state, point) for state, point in zip(still, points, strict=True) if state.id in resumed)


def _unchanged(state: JobState) -> bool:
    """Whether nothing was written to the job's journal since `state` was read."""
    with suppress(UserError):
        return JobReader(load_job(state.job.workspace, state.id)).state().ended_at == state.ended_at
    return False


class IdleCommand:
    """Runs a command of the user each time the queue becomes empty, after a countdown.

    The page and the terminal announce it. A new job cancels the countdown. The command does not run in a shell.
    """

    def __init__(self, command: str, seconds: float, alive: Callable[[], bool],
                 announce: Callable[[str], object]) -> None:
        try:
            self.words = shlex.split(command)
        except ValueError as error:
            raise UserError(f"The command {command!r} cannot be read: {error}.", "Close its quotes.") from error
        if not self.words:
            raise UserError("The command for an empty queue has no words.", "Such as --when-idle 'my-stop-script'.")
        self.text, self._seconds, self._alive, self._announce = command, seconds, alive, announce
        self.countdown: Countdown | None = None
        self._worked = False  # whether a job was alive since the last countdown

    def seconds_left(self) -> float | None:
        return self.countdown.seconds_left() if self.countdown else None

    def cancel(self) -> None:
        if self.countdown and self.countdown.cancel():
            self._announce(f"The queue is empty; {self.text} was cancelled.")

    def watch(self, interval_s: float = 1.0) -> None:
        """Check the queue regularly in a separate thread."""
        def look() -> None:
            while True:
                self.look()
                time.sleep(interval_s)

        threading.Thread(target=look, name="watch the queue", daemon=True).start()

    def look(self) -> None:
        """Begin the countdown if the queue has become empty; cancel it if a job is alive."""
        if self._alive():
            self._worked = True
            if self.countdown:
                self.countdown.cancel()
        elif self._worked:
            self._worked = False
            self.countdown = Countdown(self._seconds, self._run)
            self._announce(f"The queue is empty: {self.text} runs in {self._seconds:.0f} s. The page can cancel it.")

    def _run(self) -> None:
        self._announce(f"The queue is empty: running {self.text}")
        try:
            subprocess.Popen(self.words, stdin=subprocess.DEVNULL, start_new_session=True)
        except OSError as error:
            self._announce(f"{self.text} could not be started: {error.strerror}.")
