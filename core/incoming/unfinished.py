"""Folders for what an import fetches: kept when it stops or fails, and gone when it is whole. Never loads torch."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from config.errors import UserError
from core.job.locks import FileLock

_PLAN, _LOCK = "plan.json", "lock"


@contextmanager
def unfinished(home: Path, wanted: Mapping[str, str], commit: str, what: str) -> Iterator[Path]:
    """The folder `home`, held against other jobs; it is deleted when the block ends well.

    `wanted` is what was asked for, and `commit` what it was at that time, for `begun`.
    """
    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock.take(home / _LOCK)
    if lock is not None and not (home / _LOCK).exists():  # who held it was done, and took the folder away
        lock.close()
        lock = None
    if lock is None:
        raise UserError(f"{what} is being fetched by another job.", "Watch that one, or stop it first.")
    try:
        aside = home / f".{_PLAN}"
        aside.write_text(json.dumps({"wanted": dict(wanted), "commit": commit}) + "\n", encoding="utf-8")
        os.replace(aside, home / _PLAN)
        yield home
        shutil.rmtree(home, ignore_errors=True)
    finally:
        lock.close()


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
