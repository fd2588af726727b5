"""Which pages of a workspace are open for business: each app holds a lock while it lives. Never loads torch.

What is kept loaded between requests is kept for somebody who may ask again. A workspace
without a living app has nobody, so nothing stays.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from core.jobs import locks
from core.jobs.locks import FileLock
from core.workspace import Workspace


def announce(workspace: Workspace, keep_s: float, address: str = "") -> FileLock:
    """Say that an app lives at `address`, and how long models may stay loaded; closing the lock takes it back.

    What apps that are gone left behind is cleared away.
    """
    folder = _folder(workspace)
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if not locks.is_held(path):
            with suppress(FileNotFoundError):
                path.unlink()
    lock = FileLock.take(folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
    assert lock is not None, "nobody else knows the name"
    lock.write(f"{keep_s:g} {address}")
    return lock


def living(workspace: Workspace) -> tuple[Path, ...]:
    """The apps that live now."""
    folder = _folder(workspace)
    return tuple(path for path in sorted(folder.iterdir()) if locks.is_held(path)) if folder.is_dir() else ()


def keep_s(pages: tuple[Path, ...]) -> float:
    """How long models stay loaded after a request: what the most patient of `pages` allows, 0 when none lives."""
    said = [locks.content(path) for path in pages if locks.is_held(path)]
    return max((float(text.split()[0]) for text in said if text.strip()), default=0.0)


def addresses(pages: tuple[Path, ...]) -> tuple[str, ...]:
    """Where `pages` are served, as far as they said."""
    said = [locks.content(path).partition(" ")[2].strip() for path in pages]
    return tuple(address for address in said if address)


def _folder(workspace: Workspace) -> Path:
    return workspace.devices / "pages"
