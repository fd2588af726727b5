"""What stands in `extension.json` and `checkpoint.json`: where new rows come from and belong to. Never loads torch."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from config.errors import UserError

EXTENSION, CHECKPOINT = "extension.json", "checkpoint.json"
ROWS, FRONT_END, ADAPTER, CONFIG = "rows.safetensors", "front_end", "adapter", "config.yaml"
CHANGED = "changed.safetensors"  # tensors of the base that were trained, in `full`
_BLOCK = 1 << 20


@dataclass(frozen=True)
class Origin:
    """The base that rows and adapters belong to, and the front-end that makes their ids."""

    family: str
    model: str  # name in the workspace's `models`
    base_hash: str  # of every tensor of the base language model, see `core.model.prefix.hash_tensors`
    prefix_size: int  # text rows of the base
    size: int  # text rows with the new ones
    fingerprint: str  # of the extended front-end


@dataclass(frozen=True)
class ExtensionRecord:
    """An extended, untrained model."""

    name: str
    tokenizer: str
    languages: tuple[str, ...]  # that the extension brings
    initialisation: str
    seed: int
    rows_hash: str
    origin: Origin
    from_spelling: int | None = None  # new rows that start from base tokens that spell them; None: not counted then


@dataclass(frozen=True)
class CheckpointRecord:
    """A model in training. `frozen_hash` is that of the base while its tensors in the trainer's memory have not moved.

    The trainer may hold them in half precision; they are then compared with what they were after the cast.
    """

    run: str
    step: int
    scope: str
    extension: str
    dataset: str
    rows_hash: str  # of the untrained rows the run began with
    frozen_hash: str
    origin: Origin
    adapter_rank: int | None = None
    recogniser: str = ""  # the chosen recogniser that scored the new language
    recogniser_language: str = ""  # what it calls the language, where that was said
    scored: tuple[str, ...] = ()  # texts whose scores selected the best checkpoint; no final score counts them
    files: dict[str, str] = field(default_factory=dict)  # SHA-256 by path in the folder


Record = TypeVar("Record", ExtensionRecord, CheckpointRecord)


def write(path: Path, record: ExtensionRecord | CheckpointRecord) -> None:
    """Write `record` as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(record), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def read(path: Path, kind: type[Record]) -> Record:
    """The record in `path`; `UserError` when it is missing or damaged."""
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        values["origin"] = Origin(**values["origin"])
        if "languages" in values:
            values["languages"] = tuple(values["languages"])
        if "scored" in values:
            values["scored"] = tuple(values["scored"])
        return kind(**values)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} could not be read: {error}.",
            "The folder was probably cut off or edited; delete it and take another, or make it again.",
        ) from error


def hash_file(path: Path) -> str:
    """SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def hash_files(folder: Path, leave_out: tuple[str, ...] = ()) -> dict[str, str]:
    """SHA-256 of every file under `folder` by its relative path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    named = {path.relative_to(folder).as_posix(): path for path in paths}
    return {name: hash_file(path) for name, path in named.items() if name not in leave_out}


def damage(folder: Path) -> str | None:
    """The first fault of a checkpoint's files in words, None when all are whole."""
    try:
        record = read(folder / CHECKPOINT, CheckpointRecord)
    except UserError as error:
        return error.message
    for name, wanted in record.files.items():
        path = folder / name
        if not path.is_file():
            return f"{path} is missing."
        if hash_file(path) != wanted:
            return f"{path} is damaged: its {path.stat().st_size} bytes are not those that were saved."
    return None
