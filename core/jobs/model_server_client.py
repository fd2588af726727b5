"""The worker's side of the model server, a process that keeps models loaded between jobs.

There is at most one for each device of a workspace. A job's worker waits for its turn as ever, and then, holding the
device, leaves a request; the server runs the verb and answers with the job's last event. Since only the holder of the
device sends requests, the server has one at a time, and whoever gets the device for other work may end the server.

A request is a small file that the worker keeps locked, and the server holds a separate lock, so that each notices
the other's death at once, however it dies. `core.model_server` is the other end.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from config.errors import UserError
from core.jobs import control, locks
from core.jobs.events import Event, decode
from core.jobs.job import Job
from core.jobs.locks import FileLock
from core.workspace import Workspace

REQUEST, TAKEN, ANSWER = "request", "taken", "answer"
"""Prefixes of the files of a request, each with the request's token behind it."""
COMMAND = (sys.executable, "-m", "core.model_server")
_POLL_S = 0.03
_STARTS = 2  # a server may be about to end when a request comes; one that never takes a request is broken
_EXIT_TIMEOUT_S = 5.0


class ModelServerDied(Exception):
    """The server ended during the work; `code` is its exit code, below 0 a signal, None if unknown."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class ModelServerClient:
    """The model server of a device, whether it runs or not. To use it the caller must hold the device's lock."""

    workspace: Workspace
    device: str

    @property
    def folder(self) -> Path:
        return self.workspace.devices / f"{self.device}.model_server"

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def running(self) -> bool:
        return locks.is_held(self.lock)

    def run(self, job: Job, command: Sequence[str] = COMMAND) -> Event:
        """Let the server run `job`, and start it with `command` if it is not running. Returns the job's last event.

        Raises `ModelServerDied` if the server ends before it answers.
        """
        self.folder.mkdir(exist_ok=True)
        # Remove the files of clients that were killed.
        for leftover in (*self.folder.glob(f"{TAKEN}-*"), *self.folder.glob(f"{ANSWER}-*")):
            leftover.unlink(missing_ok=True)

        # The lock on the request tells the server that the client is alive.
        token = uuid.uuid4().hex[:12]
        request, accepted, answer = (self.folder / f"{name}-{token}" for name in (REQUEST, TAKEN, ANSWER))
        hidden = self.folder / f".{request.name}"
        lock = FileLock.acquire(hidden)
        assert lock is not None, "no other process knows the name"
        try:
            lock.write(json.dumps(job.id))
            hidden.rename(request)  # locked before it can be seen
            return self._wait_for(answer, request, command)
        finally:
            lock.release()
            for path in (request, accepted, answer):
                path.unlink(missing_ok=True)

    def stop(self) -> None:
        """End the server, to free its memory. It is idle, because the caller holds the device's lock."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not self.running:
                return
            pid = locks.read_holder(self.lock).strip()
            if pid.isdigit():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), number)

            deadline = time.monotonic() + _EXIT_TIMEOUT_S
            while self.running and time.monotonic() < deadline:
                time.sleep(_POLL_S)
        if self.running:
            raise UserError(
                f"The model server of {self.device} does not end, so its memory is not free.",
                f"Look at process {locks.read_holder(self.lock).strip() or '(unknown)'} with `ps`.",
            )

    def _wait_for(self, answer: Path, request: Path, command: Sequence[str]) -> Event:
        started: list[subprocess.Popen[bytes]] = []
        while True:
            running = self.running  # checked before the answer is read, because a server answers before it ends
            with suppress(FileNotFoundError):
                return decode(answer.read_bytes())
            # A request that was taken is not repeated: its job may be the reason that the server died.
            if not running:
                if not request.exists() or len(started) == _STARTS:
                    raise ModelServerDied(started[-1].wait() if started else None)
                process = self._start(command)
                if process:
                    started.append(process)
            time.sleep(_POLL_S)

    def _start(self, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
        """Start a new server, which inherits its lock. Returns None while an old one, about to end, holds it."""
        lock = FileLock.acquire(self.lock)
        if lock is None:
            return None
        lock.write("")  # without the old process id, which another process may have by now: `stop` would kill it
        log = self.folder / "output.log"
        log.unlink(missing_ok=True)
        # The server inherits the lock, so there is no moment without a holder.
        words = [*command, str(self.workspace.path), self.device]
        process = control.start_process("The model server", words, lock, log)
        lock.write(str(process.pid))
        lock.release()
        return process
