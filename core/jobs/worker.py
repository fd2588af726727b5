"""The process of one job: `python -m core.jobs.worker RUN_DIRECTORY`.

Two processes share the job's lock. The worker waits for its turn in the queue and then runs the verb. The supervisor,
its parent, only waits for it: if the worker dies without a last event (SIGKILL, a crash in native code, out of memory),
the supervisor writes one. The verb's module imports torch, so it is imported only after the job has its device.
Exit codes: 0 finished, 1 failed, 3 already running, 130 stopped.
"""

from __future__ import annotations

import argparse
import errno
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType

from config import confinement
from config.errors import ErrorKind, UserError
from config.schema import Options, TrainOptions, path_options
from core.jobs import control, locks, model_server_client
from core.jobs.checkpoint_names import resume_point
from core.jobs.events import (
    Event,
    Failed,
    Finished,
    Journal,
    Queued,
    Result,
    Skipped,
    Started,
    Stopped,
    append_event,
)
from core.jobs.gpus import GpuWait
from core.jobs.job import Job, load_job_directory
from core.jobs.locks import FileLock
from core.jobs.model_server_client import ModelServerClient, ModelServerDied
from core.jobs.process_watchdog import ABANDONED_EXIT_CODE
from core.jobs.queue import DependencyFailed, PreemptibleReporter, move_behind_preempting, wait_for_turn
from core.jobs.reporter import JournalReporter, Reporter, StopRequested
from core.jobs.state import JobBoard, JobReader
from core.jobs.verbs import VERBS, VerbFunction, import_work
from core.machine import count_oom_kills, total_memory

FINISHED, FAILED, ALREADY_RUNNING, STOPPED = 0, 1, 3, 130
_NICENESS = 5  # the page has priority over jobs
_PREEMPTIBLE_NICENESS = 10  # added for preemptible jobs, so that jobs without a device have priority over them
_NICENESS_VARIABLE = "LISAN_WORKER_NICENESS"  # Workers that it starts read what it added.
_MEMORY_HINT = "Close other programs and resume it, or start it again with a smaller batch."
_SIGNAL_HINT = {signal.SIGKILL: f"Most often the machine ran out of memory. {_MEMORY_HINT}"}
_CRASH_HINT = "Look at the last lines of the log, then resume it."


def main(arguments: list[str], verbs: Mapping[str, VerbFunction] | None = None,
         model_server_command: Sequence[str] = model_server_client.COMMAND) -> int:
    """Run the job in a background process; tests replace `verbs` and `model_server_command`."""
    parser = argparse.ArgumentParser(prog="core.jobs.worker", description="Run one job of a workspace.")
    parser.add_argument("directory", type=Path, help="the job's directory")
    parser.add_argument("--lock", type=int, help="descriptor of the job's lock, acquired by the parent")
    namespace = parser.parse_args(arguments)
    try:
        job = load_job_directory(namespace.directory)
        lock = (FileLock.inherit(job.lock, namespace.lock) if namespace.lock is not None
                else control.enqueue(job, resuming=control.read_state(job).status != "created"))
    except UserError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return ALREADY_RUNNING if isinstance(error, control.AlreadyRunning) else FAILED

    # A job that another job starts, as a sweep does, inherits that one's niceness, which does not count twice.
    niceness = _NICENESS + (_PREEMPTIBLE_NICENESS if VERBS[job.verb].preempted_by else 0)
    os.nice(max(0, niceness - int(os.environ.get(_NICENESS_VARIABLE, "0"))))
    os.environ[_NICENESS_VARIABLE] = str(niceness)
    extend_niceness_to_session()
    # The model server serves the page's jobs, and runs only while an app does.
    served = verbs is None and VERBS[job.verb].model_server and (
        locks.model_idle_timeout_s(locks.running_apps(job.workspace)) > 0)
    return supervise(job, lock, partial(run_job, verbs=verbs,
                                        model_server_command=model_server_command if served else None))


def extend_niceness_to_session(file: Path = Path("/proc/self/autogroup"), tries: int = 100) -> None:
    """Give the session of this process the niceness of the process, if the session contains no other program.

    With autogroups Linux divides the CPU among sessions first, and niceness counts within a session only
    (sched(7)). The kernel accepts one change in 100 ms from unprivileged users and answers EAGAIN to others. If the
    file does not exist or cannot be written, only the niceness of the process counts.
    """
    if os.getsid(0) != os.getpid():
        return
    with suppress(OSError):
        for _ in range(tries):
            with suppress(BlockingIOError):
                file.write_text(str(os.getpriority(os.PRIO_PROCESS, 0)))
                return
            time.sleep(0.1)


def run_job(job: Job, lock: FileLock, *, listener: Callable[[Event], None] | None = None,
            verbs: Mapping[str, VerbFunction] | None = None, group: int | None = None,
            model_server_command: Sequence[str] | None = None) -> int:
    """Run the job in this process, from its turn in the queue to its last event. Returns the exit code.

    The caller holds `lock` (see `control.enqueue`), which is released here. `listener` gets each event as it is
    written. `group` is the process group that a force stop may kill; None: this process alone. With
    `model_server_command` the model server of the job's device does the work; it is started with this command if it is
    not running.
    """
    try:
        lock.write(f"{os.getpid()} {group or ''}")
        job = JobReader(job).state(worker_alive=True).job  # its device was chosen for this attempt
        journal = Journal(job.journal)
        with _stop_signals(job) as signalled:
            reporter = JournalReporter(journal, lambda: signalled() or job.stop_file.exists(), listener)
            last = terminal_event_of(partial(run_in_turn, job, reporter, verbs, model_server_command))

            # A signal that no person sent means that the machine went down; say where a resume begins.
            if isinstance(last, Stopped):
                last = replace(last, terminated=bool(signalled()) and not job.stopped_by_person())
            if isinstance(last, Failed) and last.traceback:
                last = replace(last, hint=f"{last.hint} {resume_point(job)}")
            elif isinstance(last, Stopped) and last.unsaved:
                last = replace(last, message=f"{last.message} {resume_point(job)}")
            reporter.emit(last)

        journal.close()
        if isinstance(last, Finished) and VERBS[job.verb].removes_uploads:
            remove_imported_uploads(job)
        return STOPPED if isinstance(last, Stopped) else FINISHED if isinstance(last, Finished) else FAILED
    except UserError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")  # the journal could not be written
        return FAILED
    finally:
        lock.release()


def remove_imported_uploads(job: Job) -> None:
    """Delete the uploads that the finished `job` read: its results hold copies. Those that other jobs need stay."""
    home = job.workspace.uploads
    paths = [Path(value) for value in job.settings.values() if isinstance(value, str) and Path(value).is_absolute()]
    folders = {home / path.relative_to(home).parts[0] for path in paths if home in path.parents}
    # Jobs that may still run need the files that they name.
    if folders:
        folders -= JobBoard(job.workspace).needed_paths(job.id)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def terminal_event_of(work: Callable[[], Event | Result]) -> Event:
    """Returns the job's last event after `work`. This is the only place where every exception is caught."""
    try:
        outcome = work()
        return outcome if isinstance(outcome, Event) else Finished(dict(outcome))
    except StopRequested as request:
        return Stopped(str(request) or "Stopped on request.")
    except KeyboardInterrupt:
        return Stopped("Interrupted before the step was finished.", unsaved=True)
    except DependencyFailed as reason:
        return Skipped(reason.message, reason.hint)
    except UserError as error:
        return Failed(error.message, error.hint, exit_code=FAILED, error_kind=error.kind.value)
    except Exception as error:  # noqa: BLE001
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            hint = f"The memory is full. {_MEMORY_HINT}"
        elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "The disk is full. Free some space, then resume it."
        else:
            hint = "This is a bug in Lisan: please report it with the traceback."
        return Failed(f"{type(error).__name__}: {error}", hint, traceback.format_exc(), FAILED)


def run_in_turn(job: Job, reporter: Reporter, verbs: Mapping[str, VerbFunction] | None,
                model_server_command: Sequence[str] | None) -> Event | Result:
    """Wait for the job's turn, then run its verb in this process or in the model server."""
    gpu_wait = GpuWait(job, reporter)
    client = ModelServerClient(job.workspace, job.device)

    def gpu_wait_reason() -> str | None:
        if model_server_command:
            return None
        client.stop()  # its models would take GPU memory that this job needs
        return gpu_wait.reserve_or_reason()

    # A job that is preempted gives its device up, waits behind the other one, and continues.
    preemptible = bool(VERBS[job.verb].preempted_by)
    while True:  # again each time it was preempted
        device = wait_for_turn(job, reporter, gpu_wait_reason)
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        try:
            attempt = JobReader(job).state(worker_alive=True).attempt + 1
            reporter.emit(Started(os.getpid(), attempt))
            if job.device == "cpu":  # the job has not waited for the GPU, so torch must not see it
                os.environ["CUDA_VISIBLE_DEVICES"] = ""

            # In the model server models stay loaded between jobs.
            if model_server_command:
                confinement.include(job.workspace.path)
                checked_options(job)
                return client.run(job, model_server_command)
            verb_reporter = PreemptibleReporter(job, reporter) if preemptible else reporter
            with confinement.job(job.workspace.path):
                # Options are checked before the work is imported, which takes seconds with torch.
                options = checked_options(job)
                run_verb = import_work(job.verb) if verbs is None else verbs[job.verb]
                return run_verb(options, job.workspace, verb_reporter)
        except ModelServerDied as death:
            return _death_event(death.code)
        except StopRequested:
            if not preemptible or reporter.stop_requested():
                raise
            move_behind_preempting(job)
        finally:
            if visible is None:
                os.environ.pop("CUDA_VISIBLE_DEVICES", None)
            else:
                os.environ["CUDA_VISIBLE_DEVICES"] = visible
            torch = sys.modules.get("torch")
            if preemptible and torch and torch.cuda.is_initialized():
                torch.cuda.empty_cache()  # the job that runs next needs it
            if device:
                device.release()


def checked_options(job: Job) -> Options:
    """The job's options; `UserError` if sources are limited and one of its paths leads out of their folders."""
    options = job.options()
    for _name, path in path_options(options):
        confinement.check(path)
    return options


@contextmanager
def _stop_signals(job: Job) -> Iterator[Callable[[], bool]]:
    """Context in which SIGTERM and the first SIGINT request a stop; a second SIGINT raises KeyboardInterrupt.

    Yields a function that returns whether a signal was received.
    """
    received: list[int] = []

    def receive(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and received:
            raise KeyboardInterrupt
        received.append(number)
        with suppress(OSError):  # a full disk must not prevent the stop; the file only informs other processes
            job.request_stop("SIGTERM" if number == signal.SIGTERM else "")

    handlers = {number: signal.signal(number, receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(received)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def supervise(job: Job, lock: FileLock, run_worker: Callable[..., int]) -> int:
    """Run the job in a child process, again if it crashes and has attempts left. Returns the last exit code."""
    group = os.getpgid(0) if os.getsid(0) == os.getpid() else None  # only if the session belongs to this job alone
    try:
        options = job.options()
        attempts = options.job.max_attempts if isinstance(options, TrainOptions) else 1
    except UserError:  # invalid options, which the child reports
        attempts = 1

    # Each attempt is another process, because a crash may leave the device unusable in the old one.
    for attempts_left in range(attempts, 0, -1):
        code = run_attempt(job, partial(run_worker, job, lock, group=group))
        if attempts_left == 1 or not _should_retry(job):
            break
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)  # there is no child to pass signals to until the next attempt
        append_event(job.journal, Queued())
    return code


def _should_retry(job: Job) -> bool:
    """Whether another attempt may help: after a crash or an unforeseen error, not after a `UserError`."""
    state = JobReader(job).state(worker_alive=True)
    unforeseen = state.status == "failed" and (bool(state.traceback) or state.exit_code == ABANDONED_EXIT_CODE)
    return not job.stop_file.exists() and (state.status == "crashed" or unforeseen)


def run_attempt(job: Job, run_worker: Callable[[], int]) -> int:
    """Run the job in a child process, and write its last event if it died without one. Returns the exit code."""
    oom_kills = count_oom_kills()
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            code = run_worker()
        except Exception:  # noqa: BLE001
            traceback.print_exc()  # goes to the log; the supervisor writes the last event
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    # The child receives the signals and stops at the end of its step.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)

    # A journal without a last event: the child was killed.
    if JobReader(job).state(worker_alive=True).alive:
        death = _death_event(code, out_of_memory=count_oom_kills() > oom_kills)
        append_event(job.journal, replace(death, hint=f"{death.hint} {resume_point(job)}"))
    return code if code >= 0 else 128 - code


def _death_event(code: int | None, *, out_of_memory: bool = False) -> Failed:
    """The last event for a process that ended without one; `code` is its exit code, None if unknown.

    `out_of_memory`: the system has killed a process of this control group meanwhile.
    """
    if code == -signal.SIGKILL and out_of_memory:
        limit = total_memory()
        size = f" of {limit / 2**30:.1f} GiB" if limit else ""
        return Failed(f"The worker was killed because the memory{size} was full.", _MEMORY_HINT, exit_code=code)
    if code is None:
        return Failed("The model server ended during the work.", _SIGNAL_HINT[signal.SIGKILL],
                      error_kind=ErrorKind.ENVIRONMENT.value)
    if code < 0:
        number = signal.Signals(-code)
        message = f"The worker was killed by signal {-code} ({number.name})."
        return Failed(message, _SIGNAL_HINT.get(number, _CRASH_HINT), exit_code=code)
    if code == ABANDONED_EXIT_CODE:
        return Failed("Another process of this training ended while the worker waited for it.", _CRASH_HINT,
                      exit_code=code, error_kind=ErrorKind.ENVIRONMENT.value)
    return Failed(f"The worker ended with exit code {code} and gave no reason.", _CRASH_HINT, exit_code=code,
                  error_kind=ErrorKind.ENVIRONMENT.value)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
