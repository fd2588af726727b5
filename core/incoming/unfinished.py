"""Folders for what an import fetches: kept when it stops or fails, and gone when it is whole. Never loads torch.

Only who holds the lock in such a folder may take it away, and it is renamed before it is deleted: else a job that comes
meanwhile would find it half there, fill it again, and lose that too.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from config.errors import UserError
from core.jobs.locks import FileLock

_PLAN, _LOCK, _GONE = "plan.json", "lock", ".gone-"
_TRIES = 5  # to hold a folder that others take away in the same moment


@contextmanager
def unfinished(home: Path, wanted: Mapping[str, str], commit: str, what: str) -> Iterator[Path]:
    """The folder `home`, held against other jobs; it is deleted when the block ends well.

    `wanted` is what was asked for, and `commit` what it was at that time, for `begun`.
    """
    for left in home.parent.glob(f"{_GONE}*"):  # of a job that was killed
        shutil.rmtree(left, ignore_errors=True)
    lock = _held(home, make=True)
    if lock is None:
        raise UserError(f"{what} is being fetched by another job.", "Watch that one, or stop it first.")
    try:
        aside = home / f".{_PLAN}"
        aside.write_text(json.dumps({"wanted": dict(wanted), "commit": commit}) + "\n", encoding="utf-8")
        os.replace(aside, home / _PLAN)
        yield home
        _delete(home)
    finally:
        lock.close()


def give_up(home: Path) -> bool:
    """Delete what an earlier job fetched; False where a job is at work on it, and nothing is touched."""
    lock = _held(home, make=False)
    if lock is None:
        return False
    try:
        _delete(home)
    finally:
        lock.close()
    return True


def _held(home: Path, *, make: bool) -> FileLock | None:
    """The lock of the folder as it stands there now; None where another job has it, or there is no folder to take."""
    for _try in range(_TRIES):
        if make:
            home.mkdir(parents=True, exist_ok=True)
        try:
            lock = FileLock.take(home / _LOCK)
        except FileNotFoundError:  # it was taken away just now
            continue
        if lock is None:
            return None
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock.descriptor), os.stat(home / _LOCK)):
                return lock
        lock.close()  # that of a folder which was taken away while this one waited
    return None


def _delete(home: Path) -> None:
    (home / _PLAN).unlink(missing_ok=True)  # so that no job takes up from what is going
    gone = home.with_name(f"{_GONE}{uuid.uuid4().hex[:12]}")
    with suppress(OSError):
        os.rename(home, gone)
        shutil.rmtree(gone, ignore_errors=True)


def begun(homes: Path, wanted: Mapping[str, str]) -> tuple[str, Path] | None:
    """The commit at which an earlier job began to fetch what is wanted, and where that lies; None where none did."""
    for path in sorted(homes.glob(f"*/{_PLAN}")):
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            if values["wanted"] == dict(wanted):
                return str(values["commit"]), path.parent
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return None
