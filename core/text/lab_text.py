"""The text of a language that a person gives the lab: a file on the machine, or what was pasted. Never loads torch."""

from __future__ import annotations

import hashlib
from pathlib import Path

from config.errors import UserError
from core.workspace import Workspace
from data.durable_files import write_bytes
from data.manifest import read_text

_MOST_BYTES = 20_000_000
_FOLDER = "texts"


def place(workspace: Workspace, text: str) -> Path:
    """Where `keep` puts pasted text."""
    return workspace.path / _FOLDER / f"{hashlib.sha256(_content(text)).hexdigest()[:16]}.txt"


def keep(workspace: Workspace, text: str) -> Path:
    """Write pasted text into the workspace, once; a job names it by its path."""
    path = place(workspace, text)
    try:
        path.parent.mkdir(exist_ok=True)
        if not path.is_file():
            write_bytes(path, _content(text))
    except OSError as error:
        raise UserError(f"{path} could not be written: {error.strerror or error}.", "Free some disk space.") from error
    return path


def _content(text: str) -> bytes:
    return (text.strip() + "\n").encode("utf-8", errors="replace")


def lines(path: str) -> list[str]:
    """Lines of a text file that are not blank; none for no file. `UserError` when it is too large or not UTF-8."""
    if not path:
        return []
    try:
        size = Path(path).stat().st_size
    except OSError as error:
        raise UserError(f"{path} could not be read: {error.strerror}.", "Check path and permissions.") from error
    if size > _MOST_BYTES:
        raise UserError(f"{path} has {size / 1e6:.0f} MB; {_MOST_BYTES / 1e6:.0f} MB are enough for a map.",
                        "Give a part of it.")
    return [line.strip() for line in read_text(Path(path)).splitlines() if line.strip()]
