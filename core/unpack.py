"""Import an archive that `core.pack` wrote, or that somebody says it wrote. Never loads torch.

The archive is foreign input. Only plain files are read, in the order and with the sizes of its list, and nothing is
compressed, so it cannot grow. Each item is written to a hidden folder, and takes its name when every hash was right.
"""

from __future__ import annotations

import hashlib
import tarfile
import time
from collections.abc import Mapping
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path, PurePosixPath
from typing import IO, Any

from config import confinement, foreign
from config.errors import UserError
from config.schema import UnpackOptions
from core.jobs.events import Plan, Result, Stopped, WarningRaised, append_event
from core.jobs.job import load_job_directory
from core.jobs.reporter import Reporter, size_text, stage
from core.jobs.state import JobReader
from core.jobs.verbs import RUN_VERBS
from core.library import maker_signature, records, verification
from core.library.certificate import CERTIFICATE
from core.library.maker_signature import MakerSignature
from core.library.records import CheckpointRecord
from core.library.verification import Outcome
from core.pack import (
    FORMAT,
    HEADER_BYTES,
    LEFT_OUT,
    MANIFEST,
    MOST_MANIFEST_BYTES,
    PACKED_KINDS,
    SPARE_BYTES,
    Manifest,
    PackedFile,
    item_of,
)
from core.sources.archives import path_inside
from core.sources.downloader import DownloadProgress
from core.submission.storage import Item, parse
from core.workspace import Workspace, resolve_inside
from data import manifest as dataset_manifest
from data.durable_files import BLOCK_BYTES, atomic_directory, hash_file, write_json

_HINT = "Take an archive that was packed by Lisan (python -m scripts pack), or pack and copy it again."
_STOPPED = "Stopped on request: nothing was imported."
_MOST_FILES = 2_000_000
_PLAIN = (tarfile.REGTYPE, tarfile.AREGTYPE)
_MOST_NAME_BYTES = 4096
_MOST_FOLDERS, _MOST_MISSING = 32, 1000  # our own files lie in five


def run(options: UnpackOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Write the items of the archive into the workspace; `UserError` where it is damaged or a name is taken."""
    path, is_file = confinement.open_path(options.archive), False
    # A name may be one that no file can have.
    with suppress(OSError, ValueError):
        is_file = path.is_file()
    if not is_file:
        raise UserError(f"There is no archive {options.archive[:200]!r}.",
                        "Give the path of a TAR file that was packed by Lisan.")

    with open(path, "rb") as archive:
        try:
            manifest = _read_manifest(archive)
            if sum(file.size for file in manifest.files) > path.stat().st_size:
                raise ValueError("its files would be larger than it is")
        except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError, OSError, tarfile.TarError) as error:
            raise _refusal(path, error) from error

        names = _names(manifest, options.save_as)
        existing = [item for item in manifest.items if _is_there(workspace, item, names[item], manifest)]
        new_items = [item for item in manifest.items if item not in existing]
        total = sum(file.size for file in manifest.files if item_of(file.path)[0] in new_items)
        if total + SPARE_BYTES > workspace.free_bytes():
            raise UserError(f"The archive unpacks to {size_text(total)}, and {size_text(workspace.free_bytes())} are "
                            "free.", "Free some disk space: Storage tab, or python -m scripts storage.")

        reporter.emit(Plan((
            f"{', '.join(f'{item.kind}:{names[item]}' for item in new_items)}: {size_text(total)}.",
            *(f"Here already, with the same content: {item.reference}." for item in existing))))
        # An item that others need takes its name before them, and the first item takes its name last.
        with stage(reporter, "unpack"), ExitStack() as stack:
            folders = {item: stack.enter_context(atomic_directory(resolve_inside(_home(workspace, item), names[item])))
                       for item in new_items}
            progress = DownloadProgress(reporter, sum(file.size for file in manifest.files), stopped=_STOPPED)
            try:
                for file in manifest.files:
                    _read_file(archive, file, folders, progress)
                if archive.read(HEADER_BYTES).strip(b"\0"):
                    raise ValueError("it has more data after the last file of its list")
            except (ValueError, FileExistsError, NotADirectoryError, tarfile.TarError) as error:
                raise _refusal(path, error) from error

            # Each item is checked before it takes its name.
            for item, folder in folders.items():
                _check_item(item, folder)
            signature = _check_signature(workspace, options, manifest.items[0], folders)
            if signature is not None and signature.bad:
                reporter.emit(WarningRaised(signature.describe()))

    # The sender may have left out what the items need.
    absent = [name for name in manifest.missing if not parse(name).path(workspace).exists()]
    for name in absent:
        reporter.emit(WarningRaised(f"Not in the archive, and not here: {name}: {manifest.missing[name]}"))
    main = manifest.items[0]
    outcome = _verify(workspace, main, names[main], reporter)
    return {**({"certificate": outcome.value} if outcome else {}),
            **({"signature": signature.describe()} if signature else {}),
            "item": f"{main.kind}:{names[main]}",
            "imported": ", ".join(f"{item.kind}:{names[item]}" for item in new_items),
            "here_already": ", ".join(item.reference for item in existing), "files": len(manifest.files),
            "bytes": total, "missing": ", ".join(absent)}


def _check_signature(workspace: Workspace, options: UnpackOptions, main: Item,
                     folders: Mapping[Item, Path]) -> MakerSignature | None:
    """What the maker's signature says of the export; None for a run. `UserError` unless `signer` signed it."""
    if main.kind != "export":
        if options.signer:
            raise UserError(f"{main.reference} is a run, and only exports are signed by their makers.",
                            "Leave the signer out, or ask for a signed export.")
        return None
    if options.signer:
        return maker_signature.require(workspace, folders[main], options.signer)
    return maker_signature.check(workspace, folders[main])


def _verify(workspace: Workspace, main: Item, name: str, reporter: Reporter) -> Outcome | None:
    """What the certificate says of what was imported, with a warning unless it passed; None if it has none."""
    folder = resolve_inside(_home(workspace, main), name)
    try:
        result = (verification.verify_export if main.kind == "export" else verification.verify_run)(workspace, folder)
    except UserError as error:
        if (folder / CERTIFICATE).exists():
            reporter.emit(WarningRaised(error.message))
        return None
    if result.outcome is not Outcome.PASSED:
        reporter.emit(WarningRaised(f"{result.describe()} {result.hint}"))
    return result.outcome


def _refusal(path: Path, error: Exception) -> UserError:
    reason = f"it is no uncompressed TAR ({error})" if isinstance(error, tarfile.TarError) else error
    return UserError(f"{path.name} is no archive of Lisan, or damaged: {reason}.", _HINT)


def _read_manifest(archive: IO[bytes]) -> Manifest:
    """The list that the archive begins with; `ValueError` for one that is not plausible."""
    name, size = _read_header(archive)
    if name != MANIFEST or size > MOST_MANIFEST_BYTES:
        raise ValueError(f"it begins with {name[:80]!r} instead of {MANIFEST}")
    values: dict[str, Any] = foreign.loads(archive.read(size))
    archive.read(-size % HEADER_BYTES)
    if values["format"] != FORMAT:
        raise ValueError(f"its format is {values['format']!r}, and this version of Lisan reads {FORMAT}")

    try:
        items = tuple(parse(str(reference)) for reference in values["items"])
        absent = {parse(str(name)).reference: str(how)[:500] for name, how in values["missing"].items()}
    except UserError as error:
        raise ValueError(error.message) from error
    files = tuple(PackedFile(str(entry["path"]), int(entry["size"]), str(entry["sha256"])) for entry in values["files"])

    # The list is foreign: each of its statements is checked before a file is written.
    if not items or len(set(items)) < len(items) or items[0].kind not in ("run", "export"):
        raise ValueError("it names no export and no run")
    unknown = [item.reference for item in items if item.kind not in PACKED_KINDS]
    if unknown:
        raise ValueError(f"it brings {unknown[0]!r}, which no archive holds")
    if len(absent) > _MOST_MISSING:
        raise ValueError(f"it names {len(absent)} things that are missing")
    if len(files) > _MOST_FILES or len({file.path for file in files}) < len(files):
        raise ValueError("its list has too many files, or one twice")
    names = {file.path for file in files}
    # A path must be plain, inside an item and in few folders.
    for file in files:
        place = next((str(folder) for folder in PurePosixPath(file.path).parents if str(folder) in names), None)
        if place is not None:
            raise ValueError(f"its list has {file.path[:200]!r}, and {place[:200]!r} as a file, so nothing lies in it")
        reason = path_inside(file.path)
        if isinstance(reason, str) or reason.as_posix() != file.path:
            raise ValueError(f"{file.path[:200]!r} {reason if isinstance(reason, str) else 'is no plain path'}")
        if file.path.count("/") > _MOST_FOLDERS:
            raise ValueError(f"{file.path[:80]!r}... lies in more than {_MOST_FOLDERS} folders")
        item, inside = item_of(file.path)
        if item not in items or inside in LEFT_OUT or file.size < 0:
            raise ValueError(f"{file.path[:200]!r} belongs to nothing that it brings")
    return Manifest(items, files, absent)


def _read_header(archive: IO[bytes]) -> tuple[str, int]:
    """Name and size of the next member, which must be a plain file; a long name comes in a member before it."""
    about = tarfile.TarInfo.frombuf(archive.read(HEADER_BYTES), "utf-8", "strict")
    if about.type == tarfile.GNUTYPE_LONGNAME and 0 <= about.size <= _MOST_NAME_BYTES:
        name = archive.read(about.size + -about.size % HEADER_BYTES)[:about.size].rstrip(b"\0").decode()
        about = tarfile.TarInfo.frombuf(archive.read(HEADER_BYTES), "utf-8", "strict")
        about.name = name
    if about.type not in _PLAIN:
        raise ValueError(f"{about.name[:200]!r} is a link, a device or a folder; only plain files are read")
    if about.size < 0:  # a binary number may be negative, and as much as there is would be read
        raise ValueError(f"{about.name[:200]!r} has {about.size} bytes")
    return about.name, about.size


def _names(manifest: Manifest, save_as: str) -> dict[Item, str]:
    """The name that each item gets in the workspace."""
    names = {item: item.name for item in manifest.items}
    if save_as and save_as != manifest.items[0].name:
        if manifest.items[0].kind == "run":
            raise UserError(f"A run keeps its id, here {manifest.items[0].name!r}: its checkpoints and certificate "
                            "name it.", "Import it without another name; then rename it on the Jobs tab.")
        names[manifest.items[0]] = save_as
    return names


def _home(workspace: Workspace, item: Item) -> Path:
    return item.path(workspace).parent


def _is_there(workspace: Workspace, item: Item, name: str, manifest: Manifest) -> bool:
    """Whether the same is in the workspace already; `UserError` where something else has its name."""
    target = resolve_inside(_home(workspace, item), name)
    if not target.exists():
        return False
    expected: dict[str, PackedFile] = {}
    for file in manifest.files:
        owner, inside = item_of(file.path)
        if owner == item:
            expected[inside] = file

    if item != manifest.items[0] and all(
            (target / inside).is_file() and (target / inside).stat().st_size == file.size
            and hash_file(target / inside) == file.sha256 for inside, file in expected.items()):
        return True
    advice = "Give the export another name (--save-as)" if item.kind == "export" else "Delete that one first (Storage)"
    raise UserError(f"{item.kind.capitalize()} {name!r} is here already"
                    + (", with other content." if item != manifest.items[0] else "."),
                    f"{advice}, then import again; nothing is written over.")


def _read_file(archive: IO[bytes], expected: PackedFile, folders: Mapping[Item, Path],
               progress: DownloadProgress) -> None:
    """Write the next member of the archive, or pass over one that is here already."""

    name, size = _read_header(archive)
    if (name, size) != (expected.path, expected.size):
        raise ValueError(f"{name[:200]!r} of {size} bytes stands where its list has {expected.path!r} of "
                         f"{expected.size}")
    item, inside = item_of(name)
    target = folders[item] / inside if item in folders else None
    if target:
        target.parent.mkdir(parents=True, exist_ok=True)
    digest, remaining = hashlib.sha256(), size
    # An item that is here already is read and hashed, but not written.
    with open(target, "xb") if target else nullcontext() as writing:
        while remaining:
            block = archive.read(min(remaining, BLOCK_BYTES))
            if not block:
                raise ValueError(f"it ends within {name!r}")
            remaining -= len(block)
            digest.update(block)
            if writing:
                writing.write(block)
            progress.add(len(block), name)

    archive.read(-size % HEADER_BYTES)
    if digest.hexdigest() != expected.sha256:
        raise ValueError(f"{name!r} has the SHA-256 {digest.hexdigest()[:12]}..., its list {expected.sha256[:12]}...")


def _check_item(item: Item, folder: Path) -> None:
    """Raise `UserError` where the folder is not what its kind says."""
    match item.kind:
        case "run":
            job = load_job_directory(folder)
            if job.verb not in RUN_VERBS:
                raise UserError(f"{item.reference} is a job of {job.verb!r}, not a training or an import.", _HINT)
            for path in folder.glob(f"checkpoints/step-*/{records.CHECKPOINT}"):
                records.read_record(path, CheckpointRecord)
            # Otherwise the app would resume the run by itself.
            if JobReader(job).state(worker_alive=False).interrupted:
                append_event(job.journal, Stopped("Stopped before it was packed."))
            write_json(folder / verification.IMPORTED, {"imported_at": time.time()})
        case "export":
            records.check_export_files(folder)
            records.read_export_record(folder)
        case "extension":
            records.read_extension(folder)
        case "dataset":
            dataset_manifest.load_card(folder)
        case "model":
            records.read_model_record(folder)
