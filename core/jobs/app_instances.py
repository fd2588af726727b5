"""The apps that run on a workspace: each holds a lock on a separate file while it runs.

Models stay loaded between jobs only while an app runs, since only there may somebody ask for more.
"""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path

from core.jobs import locks
from core.jobs.locks import FileLock
from core.workspace import Workspace


def register_app(workspace: Workspace, idle_timeout_s: float, address: str = "") -> FileLock:
    """Record an app at `address`, and how long models may stay loaded; closing the lock ends that.

    Files of apps that have ended are deleted.
    """
    folder = _folder(workspace)
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        if not locks.is_held(path):
            with suppress(FileNotFoundError):
                path.unlink()
    lock = FileLock.acquire(folder / f"{os.getpid()}-{uuid.uuid4().hex[:8]}")
    assert lock is not None, "nobody else knows the name"
    lock.write(f"{idle_timeout_s:g} {address}")
    return lock


def running_apps(workspace: Workspace) -> tuple[Path, ...]:
    """The files of the apps that run now."""
    return tuple(path for path in sorted(_folder(workspace).glob("*")) if locks.is_held(path))


def model_idle_timeout_s(apps: tuple[Path, ...]) -> float:
    """How long models stay loaded after a request: the longest that one of `apps` allows, 0 when none runs."""
    texts = [locks.read_holder(path) for path in apps if locks.is_held(path)]
    return max((float(text.split()[0]) for text in texts if text.strip()), default=0.0)


def app_addresses(apps: tuple[Path, ...]) -> tuple[str, ...]:
    """Where `apps` are served, as far as they recorded it."""
    addresses = [locks.read_holder(path).partition(" ")[2].strip() for path in apps]
    return tuple(address for address in addresses if address)


def _folder(workspace: Workspace) -> Path:
    return workspace.devices / "apps"
