"""Start, resume, stop and watch jobs, from the page or the command line.

A job runs in a process and session of its own, which no closed tab and no restarted app can end. Whoever starts it
takes its lock and passes it on to the worker, so at no moment could a second start succeed or the job look dead.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from config.errors import UserError
from config.schema import TrainOptions
from core.jobs import checkpoint_names, locks
from core.jobs.directory import Job, choose_device
from core.jobs.events import Queued, Renamed, Stopped, append_event
from core.jobs.locks import FileLock
from core.jobs.state import JobReader, JobState, Status

_ROOT = Path(__file__).resolve().parents[2]
WORKER_COMMAND = (sys.executable, "-m", "core.jobs.worker")
_POLL_S = 0.1
_MOST_NAME = 64  # letters
_WORKER_ENDS_S = 20.0  # at most, between its last event and its end; a certificate runs at a low priority


class AlreadyRunning(UserError):
    """A second start of a job whose worker lives."""


def read_state(job: Job) -> JobState:
    """The state of `job` now, from its whole journal. For repeated asking keep a `JobReader` or `JobBoard`."""
    return JobReader(job).state()


def start(job: Job, *, command: Sequence[str] = WORKER_COMMAND) -> None:
    """Start a worker on a job that has not run yet. Returns at once; a second start raises `UserError`."""
    _spawn(job, enqueue(job), command)


def resume(job: Job, *, command: Sequence[str] = WORKER_COMMAND, restart: bool = False) -> None:
    """Start a worker again on a job that was stopped, failed or crashed; `restart`: without a person's request."""
    _spawn(job, enqueue(job, resuming=True, restart=restart), command)


def use_checkpoint(job: Job, wanted: str) -> None:
    """Let a finished training stand for its checkpoint `wanted` (a step, a name; empty: the best), not proven yet."""
    now = read_state(job)
    if job.verb != "train" or now.status != "finished":
        raise UserError(f"{job.id} is {now.status}: only a finished training stands for a checkpoint of your choice.",
                        f"Let it finish. Any checkpoint can be used as run:{job.id}@STEP meanwhile.")
    checkpoint_names.choose(job.directory, wanted)


def resume_with_dependents(job: Job, states: Sequence[JobState], *,
                           command: Sequence[str] = WORKER_COMMAND) -> list[Job]:
    """Resume `job`, and those of `states` that never started because it, or one that depends on it, did not finish.

    All resumed jobs; the dependent ones wait in the queue until what they need is made. Their own states are read anew:
    a page that has just shown the stop may not know yet that they were skipped.
    """
    resume(job, command=command)
    resumed = [job]
    for dependent in sorted((state.job for state in states), key=lambda one: (one.created, one.id)):
        if {one.id for one in resumed} & set(dependent.after):
            state = read_state(dependent)
            if state.status == "skipped" or (state.resumable and state.started_at is None):
                resume(dependent, command=command)
                resumed.append(dependent)
    return resumed


def enqueue(job: Job, *, resuming: bool = False, restart: bool = False) -> FileLock:
    """Take the job's lock for a worker, and append `Queued` to the journal, with the device that is chosen now.

    Raises `AlreadyRunning` when its worker lives, `UserError` when it has run and this is no resume.
    """
    lock = FileLock.acquire(job.lock)
    until = time.monotonic() + _WORKER_ENDS_S
    while lock is None and resuming and time.monotonic() < until and JobReader(job).state().resumable:
        time.sleep(0.05)  # its worker has written that it ended, and still closes its files
        lock = FileLock.acquire(job.lock)
    if lock is None:
        raise AlreadyRunning(f"{job.id} is already running.", "Watch it in the list of jobs, or stop it first.")
    try:
        now = JobReader(job).state(worker_alive=False)
        if resuming and not now.resumable:
            raise UserError(
                f"{job.id} cannot be resumed: it is {now.status}.",
                "Only a run that was stopped, failed or crashed can be resumed; start a new one"
                + (f", from its weights if you like: --init-from run:{job.id} (on the Train tab: "
                   f"{TrainOptions.model_fields['init_from'].title})."
                   if job.verb == "train" and now.status == "finished" else "."),
            )
        if not resuming and now.status != "created":
            raise UserError(f"{job.id} has already run: it is {now.status}.", "Resume it, or start a new one.")
        lock.write("")
        job.stop_file.unlink(missing_ok=True)
        append_event(job.journal, Queued(choose_device(job.verb, job.settings), restart))
    except BaseException:
        lock.release()
        raise
    return lock


def rename(job: Job, name: str) -> str:
    """Give `job` a name to be shown by; the name as it stands. Its id, which others refer to, stays.

    An empty name removes the last one. `UserError` for one that is no single line of up to 64 letters.
    """
    name = name.strip()
    if len(name) > _MOST_NAME or not name.isprintable():
        raise UserError(f"{name[:80]!r} cannot be the name of a job.",
                        f"Use one line of up to {_MOST_NAME} letters, digits, spaces and signs.")
    append_event(job.journal, Renamed(name))
    return name


def stop(job: Job) -> None:
    """Ask the job to finish its step, save and end. A job that does not run is left as it is."""
    if read_state(job).alive:
        job.stop()


def force_stop(job: Job, *, grace_s: float = 2.0, timeout_s: float = 10.0) -> None:
    """End the job's process group: SIGTERM, then SIGKILL after `grace_s`.

    Only the process that the lock names is touched, and only while the lock is held.
    """
    job.stop()
    if _signal(job, signal.SIGTERM) and not _gone(job, grace_s):
        _signal(job, signal.SIGKILL)
        if not _gone(job, timeout_s):
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
        now = reader.state()
        if now.ended or (deadline is not None and time.monotonic() >= deadline):
            return now
        time.sleep(_POLL_S)


def log_tail(job: Job, max_bytes: int = 8192) -> str:
    """The last whole lines of the job's log, at most `max_bytes` of it."""
    try:
        if not job.log.resolve().is_relative_to(job.directory.resolve()):
            return "The log is a link that leads out of the job's folder; it is not followed."
        if job.log.exists() and not job.log.is_file():
            return "The log is no file."
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

    Where it cannot be started the lock is released.
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


def _signal(job: Job, number: signal.Signals) -> bool:
    """Send `number` to the worker, and to its group when the group is its own. False when nobody is there."""
    if not locks.is_held(job.lock):
        return False
    pid, _, group = locks.read_holder(job.lock).partition(" ")
    if not pid.isdigit():
        raise UserError(f"{job.id} is only just starting.", "Try again in a second.")
    try:
        if group.strip().isdigit():
            os.killpg(int(group), number)
        else:
            os.kill(int(pid), number)
    except ProcessLookupError:
        return False
    return True


def _gone(job: Job, timeout_s: float) -> bool:
    deadline = time.monotonic() + timeout_s
    while locks.is_held(job.lock):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S / 2)
    return True


def note_stopped(job: Job, message: str, statuses: Sequence[Status]) -> None:
    """Record for a worker that has ended, with one of `statuses`, that `job` was stopped.

    Its lock makes this the only writer; a job that lives again is left as it is.
    """
    lock = FileLock.acquire(job.lock)
    if lock is None:
        return
    try:
        if JobReader(job).state(worker_alive=False).status in statuses:
            append_event(job.journal, Stopped(message))
    finally:
        lock.release()
