"""Start, resume, stop and watch jobs, from the page or the command line.

A job runs in a separate process and session, so it survives a closed tab and a restarted app. The process that starts a
job acquires its lock and passes the lock to the worker. So no second start can succeed, and the job never looks dead.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from config.errors import UserError
from config.schema import TrainOptions, option_fields
from core.jobs import checkpoint_names, locks
from core.jobs.events import Queued, Renamed, Stopped, append_event
from core.jobs.job import Job, choose_device, rewrite_options
from core.jobs.locks import FileLock
from core.jobs.state import STATUS_TITLES, JobReader, JobState, Status

_ROOT = Path(__file__).resolve().parents[2]
WORKER_COMMAND = (sys.executable, "-m", "core.jobs.worker")
_POLL_S = 0.1
_MAX_NAME = 64  # characters
_WORKER_EXIT_S = 20.0  # the longest time from a worker's last event to its exit; certificates run at a low priority


class AlreadyRunning(UserError):
    """A second start of a job whose worker is alive."""


def read_state(job: Job) -> JobState:
    """The state of `job` now, from its whole journal. To read it repeatedly, keep a `JobReader` or `JobBoard`."""
    return JobReader(job).state()


def start(job: Job, *, command: Sequence[str] = WORKER_COMMAND) -> None:
    """Start a worker on a job that has not run yet. Returns at once; a second start raises `UserError`."""
    _spawn(job, enqueue(job), command)


def resume(job: Job, *, command: Sequence[str] = WORKER_COMMAND, restart: bool = False,
           changes: Mapping[str, object] | None = None) -> None:
    """Start a worker on a job that was stopped, failed or crashed; `restart`: the app does it, not a person.

    `changes`: options of a training that are to differ from here on, see `config.resume_options`.
    """
    _spawn(job, enqueue(job, resuming=True, restart=restart, changes=changes), command)


def use_checkpoint(job: Job, checkpoint: str) -> None:
    """Let `run:ID` of a finished training refer to its `checkpoint` (a step or a name; empty: the best)."""
    require_finished(job)
    checkpoint_names.set_choice(job.directory, checkpoint)


def require_finished(job: Job) -> None:
    """Raise `UserError` unless `job` is a finished training, whose checkpoint can be selected."""
    state = read_state(job)
    if job.verb != "train" or state.status != "finished":
        raise UserError(f"{job.id} is {STATUS_TITLES[state.status]}: a checkpoint can be selected for a finished "
                        "training only.",
                        f"Let it finish. Any checkpoint can be used as run:{job.id}@STEP meanwhile.")


def resume_with_dependents(job: Job, states: Sequence[JobState], *, command: Sequence[str] = WORKER_COMMAND,
                           changes: Mapping[str, object] | None = None) -> list[Job]:
    """Resume `job`, and the jobs of `states` that did not start because they depend on it. Returns all resumed jobs.

    The dependent jobs wait in the queue until their inputs exist. Their states are read again, because `states` may be
    older than the events that skipped them.
    """
    resume(job, command=command, changes=changes)
    resumed = [job]
    # In the order of creation, so that jobs that depend on dependents follow.
    for dependent in sorted((state.job for state in states), key=lambda candidate: (candidate.created, candidate.id)):
        if {resumed_job.id for resumed_job in resumed} & set(dependent.after):
            state = read_state(dependent)
            if state.status == "skipped" or (state.resumable and state.started_at is None):
                resume(dependent, command=command)
                resumed.append(dependent)
    return resumed


def enqueue(job: Job, *, resuming: bool = False, restart: bool = False,
            changes: Mapping[str, object] | None = None) -> FileLock:
    """Acquire the job's lock for a worker, and append `Queued` to the journal, with the device that is chosen now.

    `changes`: see `resume`; the options of `job` itself are those from before.

    Raises `AlreadyRunning` if its worker is alive, and `UserError` if it has run before and this is no resume.
    """
    # The holder of the lock is the only writer of the journal.
    lock = FileLock.acquire(job.lock)
    until = time.monotonic() + _WORKER_EXIT_S
    while lock is None and resuming and time.monotonic() < until and JobReader(job).state().resumable:
        time.sleep(0.05)  # the old worker has written its last event and is about to exit
        lock = FileLock.acquire(job.lock)
    if lock is None:
        raise AlreadyRunning(f"{job.id} is already running.", "Watch it in the list of jobs, or stop it first.")

    # With the lock held, the state cannot change any more.
    try:
        state = JobReader(job).state(worker_alive=False)
        if resuming and not state.resumable:
            raise UserError(
                f"{job.id} cannot be resumed: it is {STATUS_TITLES[state.status]}.",
                "Only a job that was stopped, failed or crashed can be resumed; start a new one"
                + (f", for example from its weights: --init-from run:{job.id}; on the page: "
                   f"{option_fields(TrainOptions)['init_from'].title} on the Train tab. Or return to an earlier "
                   f"checkpoint of it: --resume {job.id}@STEP."
                   if job.verb == "train" and state.status == "finished" else "."),
            )
        if not resuming and state.status != "created":
            raise UserError(f"{job.id} has already run: it is {STATUS_TITLES[state.status]}.",
                            "Resume it, or start a new one.")

        job, changed = rewrite_options(job, changes) if changes else (job, ())
        lock.write("")
        job.stop_file.unlink(missing_ok=True)
        append_event(job.journal, Queued(choose_device(job.verb, job.settings), restart, changed))
    except BaseException:
        lock.release()
        raise
    return lock


def rename(job: Job, name: str) -> str:
    """Set the display name of `job`. Returns it without spaces at its ends. The id, which others refer to, stays.

    An empty name removes the display name. `UserError` if it is not a single line of up to 64 characters.
    """
    name = name.strip()
    if len(name) > _MAX_NAME or not name.isprintable():
        raise UserError(f"{name[:80]!r} cannot be the name of a job.",
                        f"Use one line of up to {_MAX_NAME} printable characters.")
    append_event(job.journal, Renamed(name))
    return name


def stop(job: Job) -> None:
    """Ask the job to finish its step, save and end. Does nothing if the job is not alive."""
    if read_state(job).alive:
        job.request_stop()


def force_stop(job: Job, *, grace_s: float = 2.0, timeout_s: float = 10.0) -> None:
    """End the job's process group: SIGTERM, then SIGKILL after `grace_s`.

    Signals go only to the process that the lock file names, and only while the lock is held.
    """
    job.request_stop()
    # After the first signal the worker may still save; the second cannot be ignored.
    if _send_signal(job, signal.SIGTERM) and not _wait_for_exit(job, grace_s):
        _send_signal(job, signal.SIGKILL)
        if not _wait_for_exit(job, timeout_s):
            raise UserError(
                f"{job.id} did not end within {timeout_s:g} s of being killed.",
                f"Look at process {locks.read_holder(job.lock).strip() or '(unknown)'} with `ps`.",
            )

    note_stopped(job, f"Stopped by force. {checkpoint_names.resume_point(job)}", ("crashed",))


def wait(job: Job, timeout_s: float | None = None) -> JobState:
    """The state of `job` when it has ended, or after `timeout_s`."""
    reader = JobReader(job)
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        state = reader.state()
        if state.ended or (deadline is not None and time.monotonic() >= deadline):
            return state
        time.sleep(_POLL_S)


def log_tail(job: Job, max_bytes: int = 8192) -> str:
    """The last whole lines of the job's log, at most `max_bytes` of it."""
    try:
        # A workspace may come from somebody else, and its links must not show other files.
        if not job.log.resolve().is_relative_to(job.directory.resolve()):
            return "The log is a link to a file outside the job's folder; it is not shown."
        if job.log.exists() and not job.log.is_file():
            return "The log is not a regular file; it is not shown."
        with open(job.log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            tail = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    except (OSError, RuntimeError) as error:
        return f"The log cannot be read: {error}."
    return tail if size <= max_bytes else tail.partition("\n")[2]


def _spawn(job: Job, lock: FileLock, command: Sequence[str]) -> None:
    process = start_process(f"The worker of {job.id}", [*command, str(job.directory)], lock, job.log)
    lock.release()
    threading.Thread(target=process.wait, name=f"reap {job.id}", daemon=True).start()


def start_process(title: str, command: Sequence[str], lock: FileLock, log: Path) -> subprocess.Popen[bytes]:
    """Start `command` in a separate session with a copy of `lock`, its output appended to `log`.

    If it cannot be started, the lock is released and `UserError` raised.
    """
    words = [*command, "--lock", str(lock.descriptor)]
    try:
        with open(log, "ab") as output:
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=_ROOT,
                                    start_new_session=True, pass_fds=(lock.descriptor,),
                                    env={**os.environ, "PYTHONUNBUFFERED": "1"})
    except OSError as error:
        lock.release()
        raise UserError(f"{title} could not be started: {shlex.join(words)}: {error.strerror}.",
                        "Free some memory or disk space, then resume the job.") from error


def _send_signal(job: Job, number: signal.Signals) -> bool:
    """Send `number` to the worker, or to its whole process group if it has its own. False if no process is there."""
    if not locks.is_held(job.lock):
        return False
    # The group includes the ranks of a training; a worker without its own group may share one with other programs.
    pid, _, group = locks.read_holder(job.lock).partition(" ")
    if not pid.isdigit():
        raise UserError(f"{job.id} is starting.", "Try again in a second.")
    try:
        if group.strip().isdigit():
            os.killpg(int(group), number)
        else:
            os.kill(int(pid), number)
    except ProcessLookupError:
        return False
    return True


def _wait_for_exit(job: Job, timeout_s: float) -> bool:
    """Whether the worker released its lock within `timeout_s`."""
    deadline = time.monotonic() + timeout_s
    while locks.is_held(job.lock):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S / 2)
    return True


def note_stopped(job: Job, message: str, statuses: Sequence[Status]) -> None:
    """Append `Stopped` for a worker that has ended with one of `statuses`, under the job's lock, as its only writer.

    Nothing is written if the job runs again.
    """
    lock = FileLock.acquire(job.lock)
    if lock is None:
        return
    try:
        if JobReader(job).state(worker_alive=False).status in statuses:
            append_event(job.journal, Stopped(message))
    finally:
        lock.release()
