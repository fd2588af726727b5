"""The process that keeps models loaded: `python -m core.speech.resident_process WORKSPACE DEVICE --lock N`.

It does what jobs' workers ask of it (`core.speech.resident`), one after another, and keeps what it
loaded on a shelf. It ends when nobody has asked for as long as the app allows, when the apps
that lived at its start are gone, after an error that no one foresaw (who knows what that left
in memory), or at once when the worker that asked is gone.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from config.errors import UserError
from core import worker
from core.job import pages
from core.job.directory import Job, load
from core.job.journal import Failed, Journal
from core.job.locks import FileLock
from core.job.reporter import JournalReporter
from core.speech import resident
from core.speech.resident import Request, Residence
from core.workspace import Workspace

_POLL_S = 0.05
_LOOK_ROUND_S = 1.0  # how often it asks itself whether to stay


def main(arguments: list[str], verbs: Mapping[str, worker.Verb] | None = None) -> int:
    """Serve until there is no reason to stay; `verbs` takes the place of those that speak (for tests)."""
    parser = argparse.ArgumentParser(
        prog="core.speech.resident_process", description="Keep models loaded between requests.")
    parser.add_argument("workspace", type=Path)
    parser.add_argument("device")
    parser.add_argument("--lock", type=int, required=True, help="descriptor of its lock, taken by who starts it")
    given = parser.parse_args(arguments)
    workspace = Workspace(given.workspace)
    residence = Residence.of(workspace, given.device)
    held = FileLock.inherit(residence.lock, given.lock)  # to the end of the process
    Resident(workspace, residence, verbs or _speaking()).serve()
    held.close()
    return 0


def _speaking() -> Mapping[str, worker.Verb]:
    """The verbs that speak, all with one shelf. Torch is loaded here."""
    from core import compare, synthesize
    from core.speech.model_cache import ModelCache

    model_cache = ModelCache()
    return {"synthesize": partial(synthesize.run, model_cache=model_cache),
            "compare": partial(compare.run, model_cache=model_cache)}


class Resident:
    """Takes requests, and decides whether to stay."""

    def __init__(self, workspace: Workspace, residence: Residence, verbs: Mapping[str, worker.Verb]) -> None:
        self._workspace, self._residence, self._verbs = workspace, residence, verbs
        self._pages = pages.living(workspace)  # an app that starts later may be of another version

    def serve(self) -> None:
        """Do what is asked for, until there is no reason to stay."""
        asked = looked = time.monotonic()
        while True:
            now = time.monotonic()
            if request := resident.take(self._residence):
                if not self._perform(request):
                    return
                asked = looked = time.monotonic()
            elif now - looked >= _LOOK_ROUND_S:
                if now - asked >= pages.keep_s(self._pages):
                    return
                looked = now
            else:
                time.sleep(_POLL_S)

    def _perform(self, request: Request) -> bool:
        """Do the work of one job; whether to stay after it."""
        job = self._job(request)
        if job is None:
            return True
        journal = Journal(job.journal)
        with _watching(request), _output_to(job.log):
            reporter = JournalReporter(journal, job.stop_file.exists)
            ending = worker.outcome(partial(self._verbs[job.verb], job.options(), self._workspace, reporter))
        journal.close()
        request.answer(ending)
        return not (isinstance(ending, Failed) and ending.traceback)

    def _job(self, request: Request) -> Job | None:
        """The job that was asked for; one that cannot be read is answered here."""
        try:
            job = load(self._workspace, request.job)
            job.options()
            return job
        except UserError as error:
            request.answer(Failed(error.message, error.hint))
            return None


@contextmanager
def _watching(request: Request) -> Iterator[None]:
    """End this process as soon as the worker that asked is gone: its job was stopped by force."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_POLL_S):
            if not request.wanted:
                os._exit(worker.STOPPED)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()


@contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Whatever is printed meanwhile, by native code too, goes to the job's log."""
    sys.stdout.flush()
    own = os.dup(1), os.dup(2)
    with open(log, "ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        for saved, descriptor in zip(own, (1, 2), strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
