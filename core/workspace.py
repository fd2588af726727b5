"""The one folder for all artefacts, and the only place where a name becomes a path. Never loads torch."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError

from config.errors import UserError, join_names
from config.schema import NAME_RULE, NO_NAME, Name

_FOLDERS = ("models", "datasets", "cache", "tokenizers", "extensions", "runs", "exports", "devices")
KINDS: Mapping[str, str] = {
    "model": "models", "dataset": "datasets", "segments": "segments", "tokenizer": "tokenizers",
    "extension": "extensions", "run": "runs", "export": "exports", "recogniser": "recognisers", "voice": "voices",
    "recording": "recordings", "upload": "cache/uploads", "cache": "cache",
}
"""Kinds of what is stored, and the folder of each."""
BIN = ".bin"
"""In each of the folders, for what was deleted and can be restored (`core.submission.storage`)."""
_NAME: TypeAdapter[str] = TypeAdapter(Name)
_GENERATED_ID = re.compile(r"([a-z_]+)-\d{8}-\d{6}-([0-9a-f]{4})")
"""The id of a job to which nobody gave a name: verb, date, time and its short id."""
_SHORT_ID = re.compile(r"[0-9a-f]{4}")
_SHORT_REFERENCE = re.compile(r"\Arun:([0-9a-f]{4})(?=[@+]|\Z)")


def without_locks(folder: Path, error: OSError) -> UserError:
    """The error for a file system on which no file can be locked (`flock`), such as some network disks."""
    return UserError(f"No file in {folder} can be locked: {error.strerror or error}. Lisan locks its jobs' files.",
                     "Choose a folder on a local disk with --workspace.")


def resolve_inside(folder: Path, name: str) -> Path:
    """`folder / name` for a plain name; anything that could leave `folder` raises `UserError`."""
    try:
        checked = _NAME.validate_python(name)
    except ValidationError as error:
        raise UserError(
            f"{name!r} {NO_NAME} in {folder.name}.", f"{NAME_RULE}; no folders.",
        ) from error
    return folder / checked


def free_name(name: str, is_taken: Callable[[str], bool]) -> str:
    """`name`, or that and a number: the first that is not taken."""
    return next(candidate for candidate in chain((name,), (f"{name[:60]}-{number}" for number in count(2)))
                if not is_taken(candidate))


class Reference(NamedTuple):
    """The parts of a reference such as `run:first@400+romanised`; what it does not have is empty."""

    kind: str
    name: str
    checkpoint: str  # a step, or a name that a person gave
    reading: str  # how a language that the model lacks is read

    @classmethod
    def parse(cls, text: str) -> Reference:
        """The parts of any text; whether it names something is found out by who opens it."""
        kind, _, rest = text.partition(":")
        model, _, reading = rest.partition("+")
        name, _, checkpoint = model.partition("@")
        return cls(kind, name, checkpoint, reading)

    @property
    def run(self) -> str:
        """The id of the run that it names, else empty."""
        return self.name if self.kind == "run" else ""


@dataclass(frozen=True)
class Workspace:
    """Paths under one root. `open` makes sure that it can be written."""

    path: Path

    @classmethod
    def open(cls, path: str | Path) -> Workspace:
        """The workspace at `path`, created when missing; `UserError` when it cannot be written."""
        root = Path(path).expanduser().absolute()
        try:
            for folder in _FOLDERS:
                (root / folder).mkdir(parents=True, exist_ok=True)
                # A folder may exist and still refuse files or locks, so both are tried.
                with tempfile.TemporaryFile(dir=root / folder) as probe:
                    probe.write(b"x")
                    try:
                        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    except OSError as error:
                        raise without_locks(root / folder, error) from error
        except OSError as error:
            raise UserError(
                f"The workspace {root} cannot be written: {error.strerror or error}.",
                "Choose a folder of your own with --workspace, or change its permissions or disk space.",
            ) from error
        return cls(root)

    @property
    def models(self) -> Path:
        return self.path / "models"

    @property
    def datasets(self) -> Path:
        return self.path / "datasets"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    @property
    def tokenizers(self) -> Path:
        return self.path / "tokenizers"

    @property
    def extensions(self) -> Path:
        return self.path / "extensions"

    @property
    def runs(self) -> Path:
        return self.path / "runs"

    @property
    def exports(self) -> Path:
        return self.path / "exports"

    @property
    def devices(self) -> Path:
        return self.path / "devices"

    @property
    def voices(self) -> Path:
        """Reference recordings; made with the first."""
        return self.path / "voices"

    @property
    def rules(self) -> Path:
        """A person's own text rules; made with the first."""
        return self.path / "rules"

    @property
    def segments(self) -> Path:
        """Clips cut from long recordings; made with the first."""
        return self.path / "segments"

    @property
    def recognisers(self) -> Path:
        """Speech recognisers of the hub; made with the first."""
        return self.path / "recognisers"

    @property
    def uploads(self) -> Path:
        """What was uploaded to be imported; made with the first, and removed after its import."""
        return self.cache / "uploads"

    def model(self, name: str) -> Path:
        """Folder of the base model `name`, which must be there."""
        return _existing(self.models, name, "base model", "Get it first: Model tab, or python -m scripts download.")

    def dataset(self, name: str) -> Path:
        """Folder of the prepared dataset `name`, which must be there."""
        return _existing(self.datasets, name, "dataset", "Prepare it first: python -m scripts prepare.")

    def segment_folder(self, name: str) -> Path:
        """Folder of the segments `name`, which must be there."""
        return _existing(self.segments, name, "set of segments",
                         "Cut recordings first: Data tab, or python -m scripts segment.")

    def tokenizer(self, name: str) -> Path:
        """Folder of the merged tokenizer `name`, which must be there."""
        return _existing(self.tokenizers, name, "tokenizer",
                         "Make it first: Tokenizer tab, or python -m scripts tokenizer.")

    def extension(self, name: str) -> Path:
        """Folder of the extended model `name`, which must be there."""
        return _existing(self.extensions, name, "extension",
                         "Make it first: Embeddings tab, or python -m scripts extend.")

    def run(self, job_id: str) -> Path:
        """Folder of the job `job_id` (a whole or a short id), which must be there."""
        return _existing(self.runs, self.whole_id(job_id), "run", "Look the id up in the list of jobs.")

    def whole_id(self, job_id: str, *verbs: str) -> str:
        """The id of the job whose generated id ends with the four digits `job_id`; any other id as it is.

        With `verbs` only their jobs count. `UserError` if there are several.
        """
        # An empty list on the page gives None.
        if not job_id or not _SHORT_ID.fullmatch(job_id) or (self.runs / job_id).is_dir():
            return job_id
        generated = filter(None, map(_GENERATED_ID.fullmatch, self.list_runs()))
        ids = [match[0] for match in generated if match[2] == job_id and (not verbs or match[1] in verbs)]
        if len(ids) > 1:
            raise UserError(f"The short id {job_id!r} is that of {join_names(ids)}.", "Give the whole id.")
        return ids[0] if ids else job_id

    def whole_reference(self, reference: str) -> str:
        """`run:ID`, `run:ID@STEP` and the like with the whole id of a run for a short one; others as they are."""
        return reference and _SHORT_REFERENCE.sub(
            lambda short: f"run:{self.whole_id(short[1], 'train', 'import_model')}", reference)

    def export(self, name: str) -> Path:
        """Folder of the export `name`, which must be there."""
        return _existing(self.exports, name, "export", "Make it first: python -m scripts export.")

    def new_export(self, name: str) -> Path:
        """Where an export `name` will be, which must not be there yet."""
        path = resolve_inside(self.exports, name)
        if path.exists():
            raise UserError(f"There is already an export named {name!r} in {self.exports}.",
                            "Choose another name, or delete it first.")
        return path

    def list_models(self) -> list[str]:
        return _names(self.models)

    def list_datasets(self) -> list[str]:
        return _names(self.datasets)

    def list_segments(self) -> list[str]:
        return _names(self.segments)

    def list_recognisers(self) -> list[str]:
        return _names(self.recognisers)

    def list_tokenizers(self) -> list[str]:
        return _names(self.tokenizers)

    def list_extensions(self) -> list[str]:
        return _names(self.extensions)

    def list_runs(self) -> list[str]:
        return _names(self.runs)

    def list_exports(self) -> list[str]:
        return _names(self.exports)

    def free_bytes(self) -> int:
        """Space left on the workspace's disk."""
        return shutil.disk_usage(self.path).free


def _names(folder: Path) -> list[str]:
    """Folders in `folder`, sorted; those that start with a dot are being written."""
    return sorted(entry.name for entry in _folders(folder))


def _folders(folder: Path) -> Iterator[os.DirEntry[str]]:
    if folder.is_dir():
        with os.scandir(folder) as entries:
            yield from (entry for entry in entries if entry.is_dir() and not entry.name.startswith("."))


def _newest(folder: Path) -> list[str]:
    """Folders in `folder`, the one that changed last first."""
    folders = []
    for entry in _folders(folder):
        # The folder was deleted meanwhile.
        with suppress(FileNotFoundError):
            folders.append((-entry.stat().st_mtime_ns, entry.name))
    return [name for _changed, name in sorted(folders)]


def restore_hint(folder: Path, name: str) -> str:
    """How to restore what was deleted from `folder` under this name; empty if nothing was."""
    with suppress(FileNotFoundError):
        if any(entry.partition(".")[2] == name for entry in os.listdir(folder / BIN)):
            kind = next(kind for kind, place in KINDS.items() if place == folder.name)
            return f"It is in the bin: Storage tab, or python -m scripts storage restore {kind}:{name}."
    return ""


def _existing(folder: Path, name: str, kind: str, hint: str) -> Path:
    path = resolve_inside(folder, name)
    if path.is_dir():
        return path
    raise UserError(f"There is no {kind} named {name!r} in {folder} (there: {join_names(_newest(folder))}).",
                    restore_hint(folder, name) or hint)
