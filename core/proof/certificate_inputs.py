"""The input hash of a certificate: where it is the same, the same certificate would be computed again.

The tensors of base and checkpoint are in it by the hashes that loading them checks. Only here are every other file of
the base's folder, the held-out clips, the initial rows of the new language, which the errors are compared with, and the
recogniser that scores it.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from contextlib import suppress
from pathlib import Path

from config.errors import UserError
from core.library import certificate, records
from core.library.certificate import Certificate
from core.library.records import MODEL_RECORD, CheckpointRecord, ExtensionRecord
from core.sources import recognisers
from core.workspace import Workspace
from data import manifest
from data.durable_files import hash_file, hash_tree

_VERSION = 2  # of what `core.proof.certify` computes; a new one makes all certificates out of date
_FOLDER = "certificates"  # in the workspace's cache


def input_hash(workspace: Workspace, folder: Path, device: str, sentences: int) -> str:
    """The hash for the checkpoint in `folder`, computed on a kind of `device` with so many sentences a language."""
    record = records.read_record(folder / records.CHECKPOINT, CheckpointRecord)
    dataset = rows = ""
    with suppress(UserError):
        dataset = manifest.load_card(workspace.dataset(record.dataset)).fingerprint
    with suppress(UserError):
        rows = records.read_record(workspace.extension(record.extension) / records.EXTENSION, ExtensionRecord).rows_hash
    base = hash_tree(workspace.model(record.origin.model))
    recogniser = _recogniser(workspace, record.recogniser)
    values = [_VERSION, device, sentences, dataclasses.asdict(record), dataset, rows, base, recogniser]
    return hashlib.sha256(json.dumps(values, sort_keys=True, ensure_ascii=False).encode()).hexdigest()


def _recogniser(workspace: Workspace, name: str) -> object:
    """The identity of a recogniser: its record, or the state of files that the user has put there."""
    if name in ("", recognisers.BUILT_IN):
        return name
    try:
        folder = Path(name) if Path(name).is_absolute() else recognisers.folder_of(workspace, name, "main")
    except UserError as error:  # its record is damaged, and it scores nothing
        return error.message
    if (folder / MODEL_RECORD).is_file():
        return hash_file(folder / MODEL_RECORD)
    files = sorted(path for path in folder.rglob("*") if path.is_file()) if folder.is_dir() else []
    return [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files]


def find_certificate(workspace: Workspace, run: Path, wanted: str) -> Certificate | None:
    """A certificate with this input hash: the run's own, or one that an export made."""
    for path in (run / certificate.CERTIFICATE, _path(workspace, wanted)):
        with suppress(UserError):
            found = certificate.read(path)
            if found.input_hash == wanted:
                return found
    return None


def store_certificate(workspace: Workspace, made: Certificate) -> None:
    """Store a certificate for the next export of the same; not where its recogniser was unavailable."""
    if not made.input_hash:
        return
    path = _path(workspace, made.input_hash)
    path.parent.mkdir(parents=True, exist_ok=True)
    certificate.write(path, made)


def _path(workspace: Workspace, wanted: str) -> Path:
    return workspace.cache / _FOLDER / f"{wanted}.json"
