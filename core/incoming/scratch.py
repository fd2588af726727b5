"""Folders for what an import makes on its way; gone at its end, and what a killed worker left is cleared away."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from core.jobs.locks import FileLock
from core.workspace import Workspace

_LOCK = "lock"


@contextmanager
def scratch(workspace: Workspace) -> Iterator[Path]:
    """An empty folder on the workspace's disk for as long as the block lasts."""
    home = workspace.cache / "imports"
    home.mkdir(parents=True, exist_ok=True)
    for left in home.iterdir():
        lock = FileLock.take(left / _LOCK, 0.0) if left.is_dir() and (left / _LOCK).exists() else None
        if lock is not None:
            shutil.rmtree(left, ignore_errors=True)
            lock.close()
    folder = home / uuid.uuid4().hex[:12]
    folder.mkdir()
    held = FileLock.take(folder / _LOCK)
    assert held is not None
    try:
        (folder / "content").mkdir()
        yield folder / "content"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        held.close()
