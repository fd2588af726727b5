"""Locks that end with their process: `flock` on a small file.

The lock belongs to the open file, not to the process id, so it survives being handed to a
child process and vanishes when the last holder is killed, however it is killed.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.errors import UserError

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
