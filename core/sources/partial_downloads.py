"""Folders for incomplete files: downloads that a later job resumes, and temporary files of an import.

Each folder holds a lock while a job works in it. Only the holder of the lock may delete the folder, and it renames it
first: else a job that comes meanwhile would find it half deleted, fill it again, and lose that too. Never loads torch.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from config import foreign
from config.errors import UserError
from core.jobs.locks import FileLock
from core.jobs.reporter import size_text
from core.workspace import Workspace
from data.durable_files import write_json

PLAN, LOCK = "plan.json", "lock"
SPARE_BYTES = 100_000_000  # left for journals and the system
_DELETED = ".gone-"
_LOCK_ATTEMPTS = 5  # attempts on a folder that others delete in the same moment


def check_disk(folder: Path, needed: int, subject: str) -> None:
    """Raise `UserError` with both numbers when `needed` bytes more do not fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise UserError(
            f"{subject} needs {size_text(needed)} more, and {size_text(free)} are free on the disk of {folder}.",
            f"Free {size_text(needed + SPARE_BYTES - free)}, or choose another disk with --workspace.",
        )


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """The hidden folder beside `target` for its parts, locked against other jobs; deleted when nothing is in it."""
    partial = target.with_name(f".{target.name}.partial")
    partial.mkdir(exist_ok=True)
    lock = FileLock.acquire(partial / LOCK)
    if lock is None:
        raise UserError(f"{target.name} is being downloaded by another job.", "Watch that one, or stop it first.")
    try:
        yield partial
    finally:
        lock.release()
        if partial.is_dir() and {path.name for path in partial.iterdir()} <= {LOCK}:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def partial_download(home: Path, request: Mapping[str, str], commit: str, subject: str) -> Iterator[Path]:
    """The folder `home`, locked against other jobs; it is deleted when the block ends well, and else stays.

    `find_started` finds the folder by `request`, and returns `commit`.
    """
    # A job that was killed may have left such folders.
    for leftover in home.parent.glob(f"{_DELETED}*"):
        shutil.rmtree(leftover, ignore_errors=True)
    lock = _lock_folder(home, create=True)
    if lock is None:
        raise UserError(f"{subject} is being fetched by another job.", "Watch that one, or stop it first.")
    try:
        write_json(home / PLAN, {"wanted": dict(request), "commit": commit})
        yield home
        _delete(home)
    finally:
        lock.release()


def discard(home: Path) -> bool:
    """Delete the download of an earlier job; False, with nothing deleted, if a job works on it."""
    lock = _lock_folder(home, create=False)
    if lock is None:
        return False
    try:
        _delete(home)
    finally:
        lock.release()
    return True


def find_started(homes: Path, request: Mapping[str, str]) -> tuple[str, Path] | None:
    """Commit and folder of an earlier job's download of `request`; None without one."""
    for path in sorted(homes.glob(f"*/{PLAN}")):
        try:
            values = foreign.read_json(path)
            if values["wanted"] == dict(request):
                return str(values["commit"]), path.parent
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None


def _lock_folder(home: Path, *, create: bool) -> FileLock | None:
    """The lock of the folder that is at `home` now; None if another job has it, or without a folder."""
    for _ in range(_LOCK_ATTEMPTS):
        if create:
            with suppress(FileExistsError):  # exist_ok raises where the folder is deleted between its two calls
                home.mkdir(parents=True)
        try:
            lock = FileLock.acquire(home / LOCK)
        except FileNotFoundError:  # the folder was deleted just now
            continue
        if lock is None:
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.descriptor), os.stat(home / LOCK)):
                return lock
        # This is the lock of a folder that was deleted while this job waited for it.
        lock.release()
    return None


def _delete(home: Path) -> None:
    # Without a plan, no job resumes what is being deleted.
    (home / PLAN).unlink(missing_ok=True)
    deleted = home.with_name(f"{_DELETED}{uuid.uuid4().hex[:12]}")
    with suppress(OSError):
        os.rename(home, deleted)
        shutil.rmtree(deleted, ignore_errors=True)


@contextmanager
def temporary_folder(workspace: Workspace) -> Iterator[Path]:
    """An empty folder on the workspace's disk for as long as the block lasts; those of killed workers are deleted."""
    home = workspace.cache / "imports"
    home.mkdir(parents=True, exist_ok=True)
    # A folder whose lock is free belongs to a killed worker.
    for leftover in home.iterdir():
        lock = FileLock.acquire(leftover / LOCK, 0.0) if leftover.is_dir() and (leftover / LOCK).exists() else None
        if lock is not None:
            shutil.rmtree(leftover, ignore_errors=True)
            lock.release()
    folder = home / uuid.uuid4().hex[:12]
    folder.mkdir()
    lock = FileLock.acquire(folder / LOCK)
    assert lock is not None, "nobody else knows the name"
    try:
        (folder / "content").mkdir()
        yield folder / "content"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()
