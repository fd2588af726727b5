"""Locks that end with their process: `flock` on a small file.

The lock belongs to the open file, not to the process id, so it survives being handed to a
child process and vanishes when the last holder is killed, however it is killed.

Each app that runs on a workspace holds a lock on a file of its own. Models stay loaded between jobs only while an app
runs, since only there may somebody ask for more.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from config.errors import UserError
from core.workspace import Workspace

_POLL_S = 0.02


class FileLock:
    """A held lock; `release`, or the end of the process, ends it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path, timeout_s: float = 0.5) -> FileLock | None:
        """The lock on `path`, or None when another holds it for all of `timeout_s`.

        The patience outlasts `is_held`, which takes a shared lock for some microseconds.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return cls(path, descriptor)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
            time.sleep(_POLL_S)

    @classmethod
    def inherit(cls, path: Path, descriptor: int) -> FileLock:
        """The lock that the parent took and passed on as `descriptor`."""
        os.set_inheritable(descriptor, False)
        return cls(path, descriptor)

    def write(self, text: str) -> None:
        """Record who holds the lock; the text is for people and for `read_holder`."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)

    def release(self) -> None:
        """Release this copy. Not `LOCK_UN`: that would also release the copy a child holds."""
        os.close(self.descriptor)


@contextmanager
def locked(path: Path, timeout_s: float, message: str, hint: str) -> Iterator[None]:
    """Hold the lock on `path` meanwhile; `UserError` where another holds it for all of `timeout_s`."""
    lock = FileLock.acquire(path, timeout_s)
    if lock is None:
        raise UserError(message, hint)
    try:
        yield
    finally:
        lock.release()


def is_held(path: Path) -> bool:
    """Whether some process holds the lock on `path` now."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)


def read_holder(path: Path) -> str:
    """What the holder wrote; empty when there is nothing."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def register_app(workspace: Workspace, idle_timeout_s: float, address: str = "") -> FileLock:
    """Record an app at `address`, and how long models may stay loaded; closing the lock ends that.

    Files of apps that have ended are deleted.
    """
    folder = _apps_folder(workspace)
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if not is_held(path):
            with suppress(FileNotFoundError):
                path.unlink()
    lock = FileLock.acquire(folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
    assert lock is not None, "nobody else knows the name"
    lock.write(f"{idle_timeout_s:g} {address}")
    return lock


def running_apps(workspace: Workspace) -> tuple[Path, ...]:
    """The files of the apps that run now."""
    return tuple(path for path in sorted(_apps_folder(workspace).glob("*")) if is_held(path))


def model_idle_timeout_s(apps: tuple[Path, ...]) -> float:
    """How long models stay loaded after a request: the longest that one of `apps` allows, 0 when none runs."""
    texts = [read_holder(path) for path in apps if is_held(path)]
    return max((float(text.split()[0]) for text in texts if text.strip()), default=0.0)


def app_addresses(apps: tuple[Path, ...]) -> tuple[str, ...]:
    """Where `apps` are served, as far as they recorded it."""
    addresses = [read_holder(path).partition(" ")[2].strip() for path in apps]
    return tuple(address for address in addresses if address)


def _apps_folder(workspace: Workspace) -> Path:
    return workspace.devices / "apps"
