"""Folders that are whole or not there: written aside, then renamed."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.errors import UserError


@contextmanager
def written_aside(target: Path) -> Iterator[Path]:
    """A new hidden folder beside `target` that takes its name when the block ends well, and vanishes otherwise.

    `target` must not exist. A failing disk raises `UserError`.
    """
    aside = target.parent / f".{target.name}-{uuid.uuid4().hex[:8]}"
    try:
        aside.mkdir(parents=True)
        yield aside
        for path in aside.rglob("*"):
            if path.is_file():
                flush(path)
        aside.rename(target)
        flush(target.parent)
    except OSError as error:
        raise UserError(
            f"{target} could not be written: {error.strerror or error}.",
            "Free space on the disk or mend its permissions, then continue; nothing that existed was touched.",
        ) from error
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def flush(path: Path) -> None:
    """Let what was written to a file or folder reach the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
