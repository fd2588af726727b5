"""The process that keeps models loaded between requests to speak, as the jobs' own workers see it. Never loads torch.

There is at most one for each device of a workspace. A job's worker waits for its turn as ever,
and then, holding the device, has the resident do the work: it leaves a request, and the
resident answers with the job's last event. Since only the holder of the device asks, the
resident has one request at a time, and whoever gets the device for other work may end it.

A request is a small file that the worker keeps locked, and the resident holds a lock of its
own, so that each sees the other's death at once, however it dies. `core.model_server` is
the other end.
"""

from __future__ import annotations

import json
import os
import shlex
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
from core.jobs import locks
from core.jobs.directory import Job
from core.jobs.events import Event, decode, encode
from core.jobs.locks import FileLock
from core.workspace import Workspace

VERBS = ("synthesize", "compare")
COMMAND = (sys.executable, "-m", "core.model_server")
_ROOT = Path(__file__).resolve().parents[2]
_ASKED, _TAKEN, _ANSWERED = "request", "taken", "answer"
_POLL_S = 0.03
_STARTS = 2  # a resident may be on its way out when it is asked; one that never takes a request is broken
_PATIENCE_S = 5.0


class Died(Exception):
    """The resident ended in the middle of the work; `code` is its exit code where it is known, below 0 a signal."""

    def __init__(self, code: int | None) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True)
class Residence:
    """Where the resident of a device is reached."""

    folder: Path

    @classmethod
    def of(cls, workspace: Workspace, device: str) -> Residence:
        return cls(workspace.devices / f"{device}.speaker")

    @property
    def lock(self) -> Path:
        return self.folder / "lock"

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def occupied(self) -> bool:
        return locks.is_held(self.lock)


@dataclass(frozen=True)
class Request:
    """A request in the resident's hands."""

    residence: Residence
    token: str
    job: str

    @property
    def wanted(self) -> bool:
        """Whether the worker that asked still lives."""
        return locks.is_held(self.residence.folder / f"{_TAKEN}-{self.token}")

    def answer(self, ending: Event) -> None:
        """Tell the worker how it ended."""
        path = self.residence.folder / f"{_ANSWERED}-{self.token}"
        aside = path.with_name("." + path.name)
        aside.write_bytes(encode(ending))
        aside.rename(path)


def take(residence: Residence) -> Request | None:
    """The request that waits, now taken; None when there is none. What dead workers left is cleared away."""
    for path in sorted(residence.folder.glob(f"{_ASKED}-*")):
        token = path.name.partition("-")[2]
        if not locks.is_held(path):
            path.unlink(missing_ok=True)
            continue
        with suppress(FileNotFoundError, ValueError):
            taken = path.with_name(f"{_TAKEN}-{token}")
            path.rename(taken)
            return Request(residence, token, str(json.loads(locks.content(taken))))
    return None


def perform(job: Job, command: Sequence[str] = COMMAND) -> Event:
    """Have the resident of the job's device do its work, started by `command` when there is none; its last event.

    The caller holds the device. Raises `Died` when the resident ends before it answers.
    """
    residence = Residence.of(job.workspace, job.device)
    residence.folder.mkdir(exist_ok=True)
    for left in (*residence.folder.glob(f"{_TAKEN}-*"), *residence.folder.glob(f"{_ANSWERED}-*")):
        left.unlink(missing_ok=True)
    asked = _Asked(residence, job)
    try:
        return _answer(asked, job, command)
    finally:
        asked.close()


def dismiss(workspace: Workspace, device: str) -> None:
    """End the resident of `device`, so that its memory is free. The caller holds the device, so it is idle."""
    residence = Residence.of(workspace, device)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not residence.occupied:
            return
        pid = locks.content(residence.lock).strip()
        if pid.isdigit():
            with suppress(ProcessLookupError):
                os.kill(int(pid), number)
        deadline = time.monotonic() + _PATIENCE_S
        while residence.occupied and time.monotonic() < deadline:
            time.sleep(_POLL_S)
    if residence.occupied:
        raise UserError(
            f"The process that keeps models loaded on {device} does not end, and its memory is wanted.",
            f"Look at process {locks.content(residence.lock).strip() or '(unknown)'} with `ps`.",
        )


class _Asked:
    """A worker's request, from its own side."""

    def __init__(self, residence: Residence, job: Job) -> None:
        self.residence, self.token = residence, uuid.uuid4().hex[:12]
        aside = self._path(f".{_ASKED}")
        lock = FileLock.take(aside)
        assert lock is not None, "nobody else knows the name"
        self._lock = lock
        lock.write(json.dumps(job.id))
        aside.rename(self._path(_ASKED))  # locked before it can be seen

    @property
    def waits(self) -> bool:
        """Whether no resident has taken it yet."""
        return self._path(_ASKED).exists()

    def answer(self) -> Event | None:
        try:
            return decode(self._path(_ANSWERED).read_bytes())
        except FileNotFoundError:
            return None

    def close(self) -> None:
        self._lock.close()
        for name in (_ASKED, _TAKEN, _ANSWERED):
            self._path(name).unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self.residence.folder / f"{name}-{self.token}"


def _answer(asked: _Asked, job: Job, command: Sequence[str]) -> Event:
    started: list[subprocess.Popen[bytes]] = []
    while True:
        if ending := asked.answer():
            return ending
        if not asked.residence.occupied:
            if ending := asked.answer():  # it may have come between asking and looking
                return ending
            if not asked.waits or len(started) == _STARTS:
                raise Died(started[-1].wait() if started else None)
            if process := _start(asked.residence, job, command):
                started.append(process)
        time.sleep(_POLL_S)


def _start(residence: Residence, job: Job, command: Sequence[str]) -> subprocess.Popen[bytes] | None:
    """A new resident, which inherits its lock; None when an old one is only just going."""
    lock = FileLock.take(residence.lock)
    if lock is None:
        return None
    words = [*command, str(job.workspace.path), job.device, "--lock", str(lock.descriptor)]
    try:
        with open(residence.log, "wb") as log:
            process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=_ROOT, start_new_session=True,
                pass_fds=(lock.descriptor,), env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        lock.write(str(process.pid))
    except OSError as error:
        raise UserError(
            f"The process that speaks could not be started: {shlex.join(words)}: {error.strerror}.",
            "Free some memory or disk space, then continue the job.",
        ) from error
    finally:
        lock.close()
    return process
