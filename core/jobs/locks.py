"""Locks that end with their process: `flock` on a small file.

A lock belongs to the open file description, not to the process. So a parent can pass it to a child process, and it is
released when its last holder ends, also by SIGKILL.

Each app that runs on a workspace holds a lock on a separate file. Models stay loaded between jobs only while an app
runs, because only an app's users may soon synthesize more.
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
from core.workspace import Workspace, without_locks

_POLL_S = 0.02


class FileLock:
    """A held lock; `release`, or the end of the process, ends it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self.descriptor = descriptor

    @classmethod
    def acquire(cls, path: Path, timeout_s: float = 0.5) -> FileLock | None:
        """The lock on `path`, or None if another process holds it for all of `timeout_s`.

        The default is longer than `is_held`, which holds a shared lock for some microseconds.
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
            except OSError as error:
                os.close(descriptor)
                raise without_locks(path.parent, error) from error
            time.sleep(_POLL_S)

    @classmethod
    def inherit(cls, path: Path, descriptor: int) -> FileLock:
        """The lock that the parent process acquired and passed as `descriptor`."""
        os.set_inheritable(descriptor, False)
        return cls(path, descriptor)

    def write(self, text: str) -> None:
        """Write who holds the lock into its file, for people and for `read_holder`."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, text.encode(), 0)

    def release(self) -> None:
        """Close this copy. Not `LOCK_UN`, which would also release the copy of a child process."""
        os.close(self.descriptor)


@contextmanager
def locked(path: Path, timeout_s: float, message: str, hint: str) -> Iterator[None]:
    """Context that holds the lock on `path`; `UserError` if another process holds it for all of `timeout_s`."""
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
    except OSError as error:
        raise without_locks(path.parent, error) from error
    finally:
        os.close(descriptor)


def read_holder(path: Path) -> str:
    """What the holder wrote into the file; empty if there is nothing."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def register_app(workspace: Workspace, idle_timeout_s: float, address: str = "") -> FileLock:
    """Register an app at `address`, with the time that models may stay loaded, until the returned lock is released.

    Files of apps that have ended are deleted.
    """
    folder = _apps_folder(workspace)
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if not is_held(path):
            with suppress(FileNotFoundError):
                path.unlink()
    lock = FileLock.acquire(folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
    assert lock is not None, "no other process knows the name"
    lock.write(f"{idle_timeout_s:g} {address}")
    return lock


def running_apps(workspace: Workspace) -> tuple[Path, ...]:
    """The lock files of the apps that run now."""
    return tuple(path for path in sorted(_apps_folder(workspace).glob("*")) if is_held(path))


def model_idle_timeout_s(apps: tuple[Path, ...]) -> float:
    """How long models stay loaded after a request: the longest time that one of `apps` allows; 0 if none runs."""
    texts = [read_holder(path) for path in apps if is_held(path)]
    return max((float(text.split()[0]) for text in texts if text.strip()), default=0.0)


def app_addresses(apps: tuple[Path, ...]) -> tuple[str, ...]:
    """The addresses of those `apps` that registered one."""
    addresses = [read_holder(path).partition(" ")[2].strip() for path in apps]
    return tuple(address for address in addresses if address)


def _apps_folder(workspace: Workspace) -> Path:
    return workspace.devices / "apps"
