"""Text that a user gives a form: a file on this machine, or pasted text, which is saved in the workspace."""

from __future__ import annotations

import hashlib
from pathlib import Path

from config import confinement
from config.errors import UserError
from core.workspace import Workspace
from data.durable_files import write_bytes
from data.manifest import read_text

_MAX_BYTES = 20_000_000


def pasted_path(workspace: Workspace, text: str) -> Path:
    """Where `save_pasted` puts pasted text."""
    return workspace.path / "texts" / f"{hashlib.sha256(_content(text)).hexdigest()[:16]}.txt"


def save_pasted(workspace: Workspace, text: str) -> Path:
    """Save pasted text in the workspace, once; a job names it by its path."""
    path = pasted_path(workspace, text)
    try:
        path.parent.mkdir(exist_ok=True)
        if not path.is_file():
            write_bytes(path, _content(text))
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror or error}.", "Free some disk space.") from error
    return path


def _content(text: str) -> bytes:
    return (text.strip() + "\n").encode("utf-8", errors="replace")


def read_lines(path: str) -> list[str]:
    """Lines of a text file that are not blank; none for no file. `UserError` when it is too large or not UTF-8."""
    if not path:
        return []
    opened = confinement.open_path(path)
    try:
        size = opened.stat().st_size
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", "Check path and permissions.") from error
    if size > _MAX_BYTES:
        raise UserError(f"{path} has {size / 1e6:.0f} MB; {_MAX_BYTES / 1e6:.0f} MB are enough for a map.",
                        "Give a part of it.")
    return [line.strip() for line in read_text(opened).splitlines() if line.strip()]
