"""The unknown files of a refused download, kept beside its job: the page offers to accept them. Never loads torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from config import foreign
from core.library.published import UnknownFile
from data.durable_files import write_json

UNKNOWN_FILES = "unknown_files.json"


def write(folder: Path, files: Sequence[UnknownFile]) -> None:
    """Write the files that were refused into the folder of the job."""
    write_json(folder / UNKNOWN_FILES, [dataclasses.asdict(file) for file in files])


def read(folder: Path) -> tuple[UnknownFile, ...]:
    """What `write` wrote; none if the job refused no file."""
    try:
        return tuple(UnknownFile(str(file["path"]), str(file["reason"]))
                     for file in foreign.read_json(folder / UNKNOWN_FILES))
    except (OSError, ValueError, KeyError, TypeError):
        return ()
