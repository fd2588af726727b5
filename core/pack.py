"""Pack an export or a run into one archive, which another workspace imports. Never loads torch.

The archive is an uncompressed TAR (weights do not compress). Its first member, `lisan.json`, says what is packed, with
size and SHA-256 of every file, and names what was left out; the files follow in that order, under the folders that they
have in the workspace.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from config import foreign
from config.errors import UserError
from config.schema import PackOptions
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.job import load_job
from core.jobs.reporter import Reporter, pluralize, size_text, stage
from core.jobs.state import JobReader, JobState
from core.library import lineage, verification
from core.library.certificate import CERTIFICATE
from core.library.lineage import Model
from core.library.records import read_export_sums, read_model_record
from core.library.verification import IMPORTED, Outcome
from core.sources.downloader import DownloadProgress
from core.submission import storage
from core.submission.storage import MADE_FROM, Item
from core.workspace import KINDS, Workspace
from data.durable_files import BLOCK_BYTES, atomic_path, hash_file

MANIFEST = "lisan.json"
FORMAT = 1
MOST_MANIFEST_BYTES = foreign.RECORD_BYTES
PACKED_KINDS = ("run", "export", "extension", "dataset", "model")
LEFT_OUT = ("lock", "stop", "queue_position", IMPORTED)
"""Of a run: files that say what its process does and where it came from, not what it made."""
HEADER_BYTES = tarfile.BLOCKSIZE
SPARE_BYTES = 200_000_000  # left free on the disk
_STOPPED = "Stopped on request: no archive was written."


@dataclass(frozen=True)
class PackedFile:
    """One file: its path in the archive and in the workspace, its bytes and their SHA-256."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What `lisan.json` says. The first of `items` is what was asked for; `missing`: reference and how to get it."""

    items: tuple[Item, ...]
    files: tuple[PackedFile, ...]
    missing: Mapping[str, str]

    def to_bytes(self) -> bytes:
        values = {"format": FORMAT, "items": [item.reference for item in self.items], "missing": dict(self.missing),
                  "files": [dataclasses.asdict(file) for file in self.files]}
        return json.dumps(values, ensure_ascii=False, indent=1).encode()


def run(options: PackOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write the archive into the job's folder; returns its name, size and what it names as missing."""
    model = Model.open(workspace, lineage.require_run_or_export(options.item))
    main, states = Item(model.kind, model.name), []
    if main.kind == "run":
        states = [JobReader(load_job(workspace, main.name)).state()]
        if states[0].alive:
            raise UserError(f"The run {main.name!r} is {states[0].status}; its files still change.",
                            "Stop it, or wait until it has ended, and pack it then.")
    items, not_packed = _select(workspace, main, states, options)

    with stage(reporter, "hash"):
        paths = []
        for item in items:
            paths += [(item, path) for path in _files(item.path(workspace), reporter)]
        total = sum(path.stat().st_size for _, path in paths)
        if total + SPARE_BYTES > workspace.free_bytes():
            raise UserError(f"The archive needs {size_text(total)}, and {size_text(workspace.free_bytes())} are free.",
                            "Free some disk space: Storage tab, or python -m scripts storage.")

        # Each byte is read twice: for its hash, and into the archive.
        progress = DownloadProgress(reporter, 2 * total, stopped=_STOPPED)
        files = []
        for _item, path in paths:
            files.append(PackedFile(path.relative_to(workspace.path).as_posix(), path.stat().st_size, hash_file(path)))
            progress.add(files[-1].size, path.name)

    # What is packed must be whole: an export by its list, a run by its certificate.
    for item in items:
        if item.kind == "export":
            _check_export(workspace, item, files)
    outcome = _check_certificate(workspace, main, files, reporter)
    manifest = Manifest(tuple(items), tuple(files), not_packed)
    reporter.emit(Plan((f"{', '.join(item.reference for item in items)}: {pluralize(len(files), 'file')}, "
                        f"{size_text(total)}.", *(f"Not packed: {name}. {how}" for name, how in not_packed.items())),
                       {"files": len(files), "bytes": total}))

    # The archive takes its name when it is whole.
    target = reporter.directory / f"{main.name}.{main.kind}.tar"
    with stage(reporter, "pack"), atomic_path(target) as temporary, open(temporary, "wb") as archive:
        # The list comes first, so that a reader can refuse the archive before it unpacks it.
        content = manifest.to_bytes()
        archive.write(_header(MANIFEST, len(content)) + content + bytes(-len(content) % HEADER_BYTES))
        for file in files:
            _write_file(archive, workspace.path / file.path, file, progress)
        archive.write(bytes(2 * HEADER_BYTES))
        archive.flush()
        os.fsync(archive.fileno())
    return {"archive": target.name, "item": main.reference, "files": len(files), "bytes": target.stat().st_size,
            "packed": ", ".join(item.reference for item in items), "missing": ", ".join(not_packed),
            "path": str(target), **({"certificate": outcome.value} if outcome else {})}


def _check_certificate(workspace: Workspace, main: Item, files: Sequence[PackedFile],
                       reporter: Reporter) -> Outcome | None:
    """What the certificate says of the files; None without one. `UserError` for an export with other files.

    The hashes are those of the files that are packed. Who imports the archive can see that it is of other files, and
    that it was not computed there.
    """
    folder = main.path(workspace)
    if not (folder / CERTIFICATE).exists():
        return None
    hashes = {workspace.path / file.path: file.sha256 for file in files}

    def hash_one(path: Path) -> str:
        return hashes.get(path) or hash_file(path)

    try:
        result = (verification.verify_export if main.kind == "export" else verification.verify_run)(
            workspace, folder, hash_one)
    except UserError as error:
        if main.kind == "export":
            raise
        reporter.emit(WarningRaised(error.message))
        return None
    if main.kind == "export" and result.outcome is Outcome.OTHER_FILES:
        raise UserError(f"{result.describe()} It is not packed.", result.hint)
    if result.outcome is not Outcome.PASSED:
        reporter.emit(WarningRaised(result.describe()))
    if result.texts_note:
        reporter.emit(WarningRaised(result.texts_note))
    return result.outcome


def _check_export(workspace: Workspace, item: Item, files: Sequence[PackedFile]) -> None:
    """Raise `UserError` if a file of the export is not the one that its list of files names."""
    folder = item.path(workspace)
    place = folder.relative_to(workspace.path).as_posix()
    hashes = {file.path.removeprefix(f"{place}/"): file.sha256 for file in files if file.path.startswith(f"{place}/")}
    for name, digest in read_export_sums(folder).items():
        actual = hashes.get(name)
        if actual != digest:
            state = f"has SHA-256 {actual[:12]}, not {digest[:12]}" if actual else "is missing"
            raise UserError(f"{folder / name} {state}: the export {item.name!r} is damaged.",
                            "Export the run again, or restore the file.")


def _select(workspace: Workspace, main: Item, states: Sequence[JobState],
            options: PackOptions) -> tuple[list[Item], dict[str, str]]:
    """What is packed, `main` first, and what is not, with how to get it."""
    needed = [dependency for dependency in storage.find_dependencies(workspace, states) if dependency.how != MADE_FROM]
    items, not_packed = [main], dict[str, str]()
    pending = [main]
    while pending:
        user = pending.pop()
        for item in (dependency.item for dependency in needed if dependency.user == user):
            if item in items or item.reference in not_packed:
                continue
            exists, requested = item.path(workspace).is_dir(), options.model if item.kind == "model" else options.data
            if exists and requested and item.kind in PACKED_KINDS:
                items.append(item)
            else:
                not_packed[item.reference] = _how_to_get(workspace, item)
            pending.append(item)
    return items, not_packed


def _how_to_get(workspace: Workspace, item: Item) -> str:
    match item.kind:
        case "model":
            record = None
            with suppress(UserError):
                record = read_model_record(workspace.model(item.name))
            if record is None:
                return "Get it: python -m scripts download."
            source = f"{record.repository} at {record.revision[:12]}" if record.revision else record.repository
            variant = f" --variant {record.variant}" if record.variant else ""
            return f"Get it ({source}): python -m scripts download --model {record.family}{variant} " \
                   f"--save-as {item.name}."
        case "recogniser":
            return "It is downloaded when it is used."
    return "Without it the run speaks, but cannot resume or be certified again."


def _files(folder: Path, reporter: Reporter) -> Iterator[Path]:
    """Plain files below `folder`, by name; links and what others could not name are left out, hidden ones silently."""
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if any(part.startswith(".") for part in inside.parts) or inside.as_posix() in LEFT_OUT:
            continue
        if path.is_symlink():
            reporter.emit(WarningRaised(f"{path} is a link and is not packed."))
        elif path.is_file():
            _header(path.name, 0)  # another machine must be able to read its name
            yield path


def _write_file(archive: IO[bytes], path: Path, expected: PackedFile, progress: DownloadProgress) -> None:
    archive.write(_header(expected.path, expected.size))
    digest, size = hashlib.sha256(), 0
    with open(path, "rb") as file:
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            size += len(block)
            archive.write(block)
            progress.add(len(block), path.name)
    if (size, digest.hexdigest()) != (expected.size, expected.sha256):
        raise UserError(f"{path} changed while it was packed.", "Wait until no job uses it, then pack again.")
    archive.write(bytes(-size % HEADER_BYTES))


def _header(name: str, size: int) -> bytes:
    about = tarfile.TarInfo(name)
    about.size, about.mode = size, 0o644
    try:
        return about.tobuf(tarfile.GNU_FORMAT, "utf-8", "strict")
    except UnicodeEncodeError as error:
        raise UserError(f"{name!r} is no name that another machine could read.", "Rename that file.") from error


def item_of(path: str) -> tuple[Item, str]:
    """The item that a file of an archive belongs to, and its path in it; `ValueError` where it belongs to none."""
    parts = PurePosixPath(path).parts
    kind = next((kind for kind in PACKED_KINDS if len(parts) > 2 and KINDS[kind] == parts[0]), None)
    if kind is None:
        raise ValueError(f"{path!r} lies in no folder of a workspace")
    return Item(kind, parts[1]), "/".join(parts[2:])
