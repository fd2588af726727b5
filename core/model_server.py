"""The process that keeps models loaded between jobs: `python -m core.model_server WORKSPACE DEVICE --lock N`.

It runs the verbs that workers request (`core.jobs.model_server_client`), one after another, with one model cache. It
ends after an idle time that the app sets, when the apps that ran at its start have ended, after an unforeseen error
(whose effect on memory is unknown), and at once if the worker that sent the request ends.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config import confinement
from config.errors import UserError
from core.jobs import locks, worker
from core.jobs.events import Event, Failed, Journal, Result, encode
from core.jobs.job import Job, load_job
from core.jobs.locks import FileLock
from core.jobs.model_server_client import ANSWER, REQUEST, TAKEN, ModelServerClient
from core.jobs.reporter import JournalReporter
from core.jobs.verbs import VerbFunction
from core.workspace import Workspace
from data.durable_files import write_bytes

_POLL_S = 0.05
_IDLE_CHECK_S = 1.0  # between two checks of whether to end


def main(arguments: list[str], verbs: Mapping[str, VerbFunction] | None = None) -> int:
    """Serve until the server should end; tests replace `verbs`."""
    parser = argparse.ArgumentParser(prog="core.model_server", description="Keep models loaded between jobs.")
    parser.add_argument("workspace", type=Path)
    parser.add_argument("device")
    parser.add_argument("--lock", type=int, required=True, help="descriptor of its lock, acquired by the parent")
    values = parser.parse_args(arguments)
    # The niceness is inherited from the worker that started the server.
    worker.extend_niceness_to_session()
    client = ModelServerClient(Workspace(values.workspace), values.device)
    lock = FileLock.inherit(client.lock, values.lock)  # held to the end of the process
    ModelServer(client, verbs or _verbs()).serve()
    lock.release()
    return 0


def _verbs() -> Mapping[str, VerbFunction]:
    """The verbs that the model server runs, all with one model cache. Torch is loaded here."""
    from core import compare, synthesize
    from core.speech.model_cache import ModelCache

    model_cache = ModelCache()
    return {"synthesize": partial(synthesize.run, model_cache=model_cache),
            "compare": partial(compare.run, model_cache=model_cache)}


@dataclass(frozen=True)
class SynthesisRequest:
    """A request that the server has taken: `path` is its file, which the worker keeps locked."""

    path: Path
    job: str

    def answer(self, last: Event) -> None:
        """Send the job's last event to the worker."""
        write_bytes(self.path.with_name(self.path.name.replace(TAKEN, ANSWER, 1)), encode(last), sync=False)


class ModelServer:
    """Runs requests, and decides when to end."""

    def __init__(self, client: ModelServerClient, verbs: Mapping[str, VerbFunction]) -> None:
        self._workspace, self._folder, self._verbs = client.workspace, client.folder, verbs
        self._apps = locks.running_apps(client.workspace)  # an app that starts later may have another version

    def serve(self) -> None:
        """Run requests until the server should end."""
        last_request = last_check = time.monotonic()
        while True:
            time_s = time.monotonic()
            request = self._take()
            if request:
                if not self._run(request):
                    return
                last_request = last_check = time.monotonic()
            elif time_s - last_check >= _IDLE_CHECK_S:
                if time_s - last_request >= locks.model_idle_timeout_s(self._apps):
                    return
                last_check = time_s
            else:
                time.sleep(_POLL_S)

    def _take(self) -> SynthesisRequest | None:
        """The waiting request, or None. Requests of workers that ended are deleted."""
        for path in sorted(self._folder.glob(f"{REQUEST}-*")):
            # A request whose lock is free belongs to a worker that has ended.
            if not locks.is_held(path):
                path.unlink(missing_ok=True)
                continue
            with suppress(FileNotFoundError, ValueError):
                request_path = path.rename(path.with_name(path.name.replace(REQUEST, TAKEN, 1)))
                return SynthesisRequest(request_path, str(json.loads(locks.read_holder(request_path))))
        return None

    def _run(self, request: SynthesisRequest) -> bool:
        """Do the work of one job; whether the server may continue after it."""
        try:
            job = load_job(self._workspace, request.job)
            confinement.include(self._workspace.path)
            options = worker.checked_options(job)
        except UserError as error:
            request.answer(Failed(error.message, error.hint))
            return True
        journal = Journal(job.journal)
        with _end_with_worker(request), _output_to(job):
            reporter = JournalReporter(journal, job.stop_file.exists)

            def work() -> Result:
                with confinement.job(self._workspace.path):
                    return self._verbs[job.verb](options, self._workspace, reporter)

            last = worker.terminal_event_of(work)
        journal.close()
        request.answer(last)
        return not (isinstance(last, Failed) and last.traceback)


@contextmanager
def _end_with_worker(request: SynthesisRequest) -> Iterator[None]:
    """Context that ends this process as soon as the worker of the request ends: its job was force-stopped."""
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(_POLL_S):
            if not locks.is_held(request.path):
                os._exit(worker.STOPPED)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@contextmanager
def _output_to(job: Job) -> Iterator[None]:
    """Context in which everything that is printed, also by native code, goes to the job's log."""
    sys.stdout.flush()
    own_descriptors = os.dup(1), os.dup(2)
    with open(job.log, "ab") as file:
        for descriptor in (1, 2):
            os.dup2(file.fileno(), descriptor)
    try:
        yield
    finally:
        sys.stdout.flush()
        for saved, descriptor in zip(own_descriptors, (1, 2), strict=True):
            os.dup2(saved, descriptor)
            os.close(saved)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
