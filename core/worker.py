"""The process of one job: `python -m core.worker RUN_DIRECTORY`.

Two processes share the job's lock. The outer one only waits, so that a death without a word
(a kill, a crash in native code, no memory) is still recorded with its signal; the inner one
waits for its turn and then runs the verb. Torch is imported by the verb's module, that is
after the device is held. Exit codes: 0 finished, 1 failed, 3 already running, 130 stopped.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from config.errors import UserError
from config.schema import TrainOptions
from core import jobs
from core.job import kept, pages
from core.job.directory import Job, load_directory
from core.job.free_gpu import FreeGpu
from core.job.journal import Event, Failed, Finished, Journal, Queued, Result, Skipped, Started, Stopped
from core.job.locks import FileLock
from core.job.queueing import NotBegun, wait_for_turn
from core.job.reporter import JournalReporter, Reporter, StopRequested
from core.speech import resident
from core.training.watching import ALONE
from core.workspace import Workspace

Verb = Callable[[Any, Workspace, Reporter], Result]
"""`run(options, workspace, reporter)`; each verb takes its own class of options."""

MODULES: Mapping[str, str] = {
    "download": "core.download", "prepare": "core.prepare", "tokenizer": "core.vocabulary",
    "extend": "core.extend", "train": "core.train", "preflight": "core.preflight", "synthesize": "core.synthesize",
    "compare": "core.compare", "export": "core.export", "push": "core.push",
    "doctor": "core.doctor", "lab": "core.lab", "revise": "core.revise",
    "segment": "core.segment", "transcribe": "core.transcribe",
    "align": "core.align",
}
FINISHED, FAILED, ALREADY_RUNNING, STOPPED = 0, 1, 3, 130
_NICENESS = 5  # the page answers before the training does
_SIGNAL_HINT = {
    signal.SIGKILL: "Most often the machine ran out of memory. Close other programs and continue it, "
                    "or start it anew with a smaller batch.",
}
_CRASH_HINT = "The log's last lines may say why; then continue it."
_INTERRUPTED = "Interrupted before the step was finished."


def main(arguments: list[str], verbs: Mapping[str, Verb] | None = None,
         speaker: Sequence[str] = resident.COMMAND) -> int:
    """Run the job in a background process; `verbs` and `speaker` take the place of the true ones (for tests)."""
    parser = argparse.ArgumentParser(prog="core.worker", description="Run one job of a workspace.")
    parser.add_argument("directory", type=Path, help="the job's directory")
    parser.add_argument("--lock", type=int, help="descriptor of the job's lock, taken by the parent")
    given = parser.parse_args(arguments)
    try:
        job = load_directory(given.directory)
        lock = FileLock.inherit(job.lock, given.lock) if given.lock is not None else _claim(job)
    except UserError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")
        return ALREADY_RUNNING if isinstance(error, jobs.AlreadyRunning) else FAILED
    os.nice(_NICENESS)
    by_resident = speaker if verbs is None and _has_listener(job) else None
    return _supervise(job, lock, verbs, by_resident)


def _claim(job: Job) -> FileLock:
    return jobs.claim(job, resuming=jobs.state(job).status != "created")


def run(job: Job, lock: FileLock, *, listener: Callable[[Event], None] | None = None,
        verbs: Mapping[str, Verb] | None = None, group: int | None = None,
        by_resident: Sequence[str] | None = None) -> int:
    """Run the job in this process, from its turn in the queue to its last event; the exit code.

    The caller holds `lock` (see `jobs.claim`), which is released here. `listener` hears each
    event as it is written. `group` is the process group that a force stop may kill; None: this process alone.
    `by_resident`: at its turn the work is done by the process that keeps models loaded, started by this command.
    """
    try:
        lock.write(f"{os.getpid()} {group or ''}")
        journal = Journal(job.journal)
        with _stop_signals(job) as signalled:
            reporter = JournalReporter(journal, lambda: signalled() or job.stop_file.exists(), listener)
            ending = outcome(partial(_work, job, reporter, verbs, by_resident))
            reporter.emit(_with_kept(job, ending))
        journal.close()
        return STOPPED if isinstance(ending, Stopped) else FINISHED if isinstance(ending, Finished) else FAILED
    except UserError as error:
        sys.stderr.write(f"{error.message}\n{error.hint}\n")  # the journal itself cannot be written
        return FAILED
    finally:
        lock.close()


def outcome(work: Callable[[], Event | Result]) -> Event:
    """Do the work; the job's last event. The one place where every exception is caught."""
    try:
        done = work()
        return done if isinstance(done, Event) else Finished(dict(done))
    except StopRequested as request:
        return Stopped(str(request) or "Stopped on request.")
    except KeyboardInterrupt:
        return Stopped(_INTERRUPTED)
    except NotBegun as reason:
        return Skipped(reason.message, reason.hint)
    except UserError as error:
        return Failed(error.message, error.hint, exit_code=FAILED)
    except Exception as error:  # noqa: BLE001
        return Failed(f"{type(error).__name__}: {error}", _hint(error), traceback.format_exc(), FAILED)


def _work(job: Job, reporter: Reporter, verbs: Mapping[str, Verb] | None,
          by_resident: Sequence[str] | None) -> Event | Result:
    """Wait for the job's turn, then do its work here, or have it done by who has the models loaded already."""
    free = FreeGpu(job, reporter)

    def ready() -> str:
        if by_resident:
            return ""
        resident.dismiss(job.workspace, job.device)
        return free.obstacle()

    device = wait_for_turn(job, reporter, ready)
    try:
        attempt = jobs.JobReader(job).state(worker_alive=True).attempt + 1
        reporter.emit(Started(os.getpid(), attempt))
        if by_resident:
            return resident.perform(job, by_resident)
        return _verb(job.verb, verbs)(job.options(), job.workspace, reporter)
    except resident.Died as death:
        return _death(death.code)
    finally:
        if device:
            device.close()


def _has_listener(job: Job) -> bool:
    """Whether the job speaks and a page is open, where somebody may ask for more."""
    return job.verb in resident.VERBS and pages.keep_s(pages.living(job.workspace)) > 0


def _verb(name: str, verbs: Mapping[str, Verb] | None) -> Verb:
    if verbs is not None:
        return verbs[name]
    verb: Verb = importlib.import_module(MODULES[name]).run
    return verb


def _hint(error: Exception) -> str:
    """What to do about an error that no one foresaw."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "The memory is full. Close other programs and continue it, or start it anew with a smaller batch."
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "The disk is full. Free some space, then continue it."
    return "This is a fault of Lisan itself: please report it with the traceback."


def _with_kept(job: Job, ending: Event) -> Event:
    """`ending`, with what a resume begins with where the verb itself could not say so."""
    if isinstance(ending, Failed) and ending.traceback:
        return replace(ending, hint=f"{ending.hint} {kept.words(job)}")
    if isinstance(ending, Stopped) and ending.message == _INTERRUPTED:
        return replace(ending, message=f"{ending.message} {kept.words(job)}")
    return ending


@contextmanager
def _stop_signals(job: Job) -> Iterator[Callable[[], bool]]:
    """SIGTERM, and the first SIGINT, ask for a stop; a second SIGINT interrupts. Yields whether one came."""
    asked: list[int] = []

    def ask(number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGINT and asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(OSError):  # the file only tells others; a full disk must not break the stop
            job.stop_file.touch()

    before = {number: signal.signal(number, ask) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _supervise(job: Job, lock: FileLock, verbs: Mapping[str, Verb] | None,
               by_resident: Sequence[str] | None) -> int:
    """Run the job in a child, and again where it crashed and may go on by itself; the exit code of the last time."""
    group = os.getpgid(0) if os.getsid(0) == os.getpid() else None  # a session made for this job alone
    for left in range(_tries(job), 0, -1):
        code = _in_a_child(job, lock, verbs, by_resident, group)
        if left == 1 or not _crashed(job):
            break
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)  # until there is a child again that they are handed to
        journal = Journal(job.journal)
        journal.append(Queued())
        journal.close()
    return code


def _tries(job: Job) -> int:
    try:
        options = job.options()
    except UserError:  # the child says so
        return 1
    return options.max_attempts if isinstance(options, TrainOptions) else 1


def _crashed(job: Job) -> bool:
    """Whether the job ended by what nobody foresaw; what a person must mend would only be refused again."""
    state = jobs.JobReader(job).state(worker_alive=True)
    unforeseen = state.status == "failed" and (bool(state.traceback) or state.exit_code == ALONE)
    return not job.stop_file.exists() and (state.status == "crashed" or unforeseen)


def _in_a_child(job: Job, lock: FileLock, verbs: Mapping[str, Verb] | None, by_resident: Sequence[str] | None,
                group: int | None) -> int:
    """Run the job in a child, and record its death when it cannot do so itself."""
    child = os.fork()
    if child == 0:
        code = FAILED
        try:
            code = run(job, lock, verbs=verbs, group=group, by_resident=by_resident)
        except Exception:  # noqa: BLE001
            traceback.print_exc()  # to the log; the outer process records the death
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _frame: os.kill(child, received))
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if jobs.JobReader(job).state(worker_alive=True).alive:
        _note_death(job, code)
    return code if code >= 0 else 128 - code


def _note_death(job: Job, code: int) -> None:
    """Write the last event of a child that ended with `code` and wrote none."""
    journal = Journal(job.journal)
    death = _death(code)
    journal.append(replace(death, hint=f"{death.hint} {kept.words(job)}"))
    journal.close()


def _death(code: int | None) -> Failed:
    """What is told of a process that ended with `code`, where that is known, before it could say why."""
    if code is None:
        return Failed("The process that speaks ended in the middle of the work.", _SIGNAL_HINT[signal.SIGKILL])
    if code < 0:
        number = signal.Signals(-code)
        message = f"The worker was killed by signal {-code} ({number.name})."
        return Failed(message, _SIGNAL_HINT.get(number, _CRASH_HINT), exit_code=code)
    if code == ALONE:
        return Failed("Another process of this training ended, and the worker was left waiting for it.", _CRASH_HINT,
                      exit_code=code)
    message = f"The worker ended with exit code {code} before it could say why."
    return Failed(message, _CRASH_HINT, exit_code=code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
