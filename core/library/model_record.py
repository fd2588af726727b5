"""What `model.json` says of a base model in the workspace, and whether its files are those. Never loads torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from config.errors import UserError

RECORD = "model.json"
BLOCK = 1 << 20  # bytes
Report = Callable[[int, str], None]
"""Told of each block that was read: its bytes, and the file it is from."""


@dataclass(frozen=True)
class Expected:
    """What a file should be. The hub gives `sha256` of large files and git's SHA-1 (`blob`) of small ones."""

    size: int
    sha256: str = ""
    blob: str = ""

    @property
    def hashed(self) -> bool:
        return bool(self.sha256 or self.blob)


class Hasher:
    """The hashes of a file as its blocks go by."""

    def __init__(self, expected: Expected) -> None:
        self.expected = expected
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._blob = hashlib.sha1(b"blob %d\0" % expected.size, usedforsecurity=False) if expected.blob else None

    def update(self, block: bytes) -> None:
        self.size += len(block)
        self._sha256.update(block)
        if self._blob:
            self._blob.update(block)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def fault(self) -> str:
        """How what went by differs from what was expected, with both values; empty when it does not."""
        wanted = self.expected
        if self.size != wanted.size:
            return f"it has {self.size} bytes, the whole file {wanted.size}"
        if wanted.sha256 and self.sha256 != wanted.sha256:
            return f"its SHA-256 begins {self.sha256[:12]}, that of the whole file {wanted.sha256[:12]}"
        if self._blob and self._blob.hexdigest() != wanted.blob:
            return f"its git hash begins {self._blob.hexdigest()[:12]}, that of the whole file {wanted.blob[:12]}"
        return ""


@dataclass(frozen=True)
class ModelRecord:
    """A base model that came from the hub or from a folder.

    `revision` is the commit, empty where a folder does not tell it; `asked` is what was asked for.
    """

    family: str
    variant: str
    repository: str
    revision: str
    asked: str
    files: dict[str, Expected]
    companions: dict[str, str] = field(default_factory=dict)  # commit by repository, where files came from others too


def write_record(folder: Path, record: ModelRecord) -> None:
    """Write `model.json`."""
    values = dataclasses.asdict(record)
    values["files"] = {name: {"size": file.size, "sha256": file.sha256} for name, file in record.files.items()}
    (folder / RECORD).write_text(json.dumps(values, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def read_record(folder: Path) -> ModelRecord | None:
    """What `folder` says of itself, None when it has no `model.json`; `UserError` when that is damaged."""
    path = folder / RECORD
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        files = {str(name): Expected(int(file["size"]), str(file["sha256"]))
                 for name, file in values.pop("files").items()}
        record = ModelRecord(**values, files=files)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"{path} could not be read: {error!r}.", "Move the folder away, and get the model again.",
        ) from error
    for name in record.files:
        check_name(name, path)
    return record


def check_name(name: str, where: object) -> None:
    """Raise `UserError` when `name`, which stands in `where`, is not a plain path inside of a folder."""
    parts = PurePosixPath(name).parts
    if not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name:
        raise UserError(
            f"{where} names {name!r}, which lies outside of the model.", "Do not use it: it was tampered with.",
        )


def hash_file(path: Path, expected: Expected, report: Report | None = None) -> Hasher:
    """The hashes of `path`, whole as it is."""
    hasher = Hasher(expected)
    with open(path, "rb") as file:
        while block := file.read(BLOCK):
            hasher.update(block)
            if report:
                report(len(block), path.name)
    return hasher


def find_faults(folder: Path, files: Mapping[str, Expected], report: Report | None = None) -> dict[str, str]:
    """What is wrong with each damaged file of `folder`, in words with both sizes, by its name."""
    faults = {}
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            faults[name] = f"{path} is missing."
        elif (size := path.stat().st_size) != expected.size:
            word = "cut off" if size < expected.size else "too long"
            faults[name] = f"{path} is {word}: it has {size} bytes, the whole file {expected.size}."
        elif fault := hash_file(path, expected, report).fault():
            faults[name] = f"{path} is damaged: {fault}."
    return faults
