"""Get a base model into the workspace. Never loads torch.

A family with variants comes from the hub or from a folder on disk (`core.sources.base_models`). The built-in model is
copied from its family's pack. One that is there already is checked against the pack's `SHA256SUMS.json`, and a damaged
file is replaced with a warning.
"""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

from config.errors import UserError
from config.schema import DownloadOptions
from core.jobs.events import Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library.catalog import CatalogEntry, find_entry, model_name, variant
from core.sources.base_models import DownloadRequest, download_model, import_model
from core.sources.hub import Hub
from core.workspace import Workspace, resolve_inside
from data.durable_files import (
    BLOCK_BYTES,
    BlockCallback,
    ExpectedFile,
    FileHasher,
    atomic_directory,
    atomic_path,
    find_faults,
    read_sums,
    write_bytes,
)

SUMS = "SHA256SUMS.json"
RESTORE_HINT = "Restore it from the repository (git checkout), or make the model again: python -m scripts.dev.tiny."


def run(options: DownloadOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Put the base model into `models/NAME`; one that is there is verified and repaired."""
    wanted = find_entry(options.model)
    chosen = variant(wanted, options.variant) if wanted.variants or options.variant else None
    if chosen is not None:
        request = DownloadRequest(wanted, chosen, options.save_as or model_name(wanted, chosen), options.revision)
        if options.folder:
            return import_model(request, Path(options.folder), workspace, reporter)
        return download_model(request, Hub.from_environment(), workspace, reporter)
    if options.folder or options.save_as:
        raise UserError(f"{wanted.title} ships with Lisan: it needs no folder, and its name is {wanted.name}.",
                        "Leave --folder and --save-as out.")
    return _copy_pack(wanted, workspace, reporter)


def _copy_pack(wanted: CatalogEntry, workspace: Workspace, reporter: Reporter) -> Result:
    """Copy the pack to `models/NAME`, or replace what is damaged there."""
    pack, target = pack_folder(wanted.name), resolve_inside(workspace.models, wanted.name)
    sums = read_sums(pack / SUMS, RESTORE_HINT)
    if absent := [str(pack / name) for name in sums if not (pack / name).is_file()]:
        raise UserError(f"Files of the built-in model are missing: {', '.join(absent)}.", RESTORE_HINT)
    files = {name: ExpectedFile((pack / name).stat().st_size, digest) for name, digest in sums.items()}
    total, done = sum(file.size for file in files.values()), 0
    disk_hint = f"The model needs {total / 1e6:.0f} MB. Free some disk space, then continue."

    def on_block(size: int, name: str) -> None:
        nonlocal done
        done += size
        reporter.emit(Progress(done, total, "bytes", name))
        check_stop(reporter, "Stopped before the model was whole; nothing half-written is left.")

    outcome = "already there, verified"
    if not target.is_dir():
        with stage(reporter, "copy"), atomic_directory(target, disk_hint) as folder:
            for name, expected in files.items():
                _copy_file(pack / name, folder / name, expected, on_block)
            shutil.copyfile(pack / SUMS, folder / SUMS)
        outcome = "copied, verified"
    elif faults := dict(find_faults(target, files, on_block)):
        try:
            for name, fault in faults.items():
                (target / name).parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(target / name) as temporary:
                    _copy_file(pack / name, temporary, files[name], lambda _size, _name: None)
                reporter.emit(WarningRaised(f"{fault} It was replaced."))
            write_bytes(target / SUMS, (pack / SUMS).read_bytes())
        except OSError as error:
            raise UserError(f"{target} could not be written: {error.strerror or error}.", disk_hint) from error
        outcome = f"already there, {len(faults)} damaged files replaced"
    return {"model": wanted.name, "folder": str(target), "files": len(sums), "bytes": total, "outcome": outcome}


def pack_folder(name: str) -> Path:
    """Where the pack that ships with the family `name` lies; the family's code is not imported."""
    spec = importlib.util.find_spec("models")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations))) / name / "pack"
    if not folder.is_dir():
        raise UserError(f"The files of the built-in model are missing: there is no {folder}.", RESTORE_HINT)
    return folder


def _copy_file(source: Path, target: Path, expected: ExpectedFile, on_block: BlockCallback) -> None:
    """Copy one file, checking the bytes that are written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hasher = FileHasher(expected)
    with open(source, "rb") as reading, open(target, "wb") as writing:
        while block := reading.read(BLOCK_BYTES):
            hasher.update(block)
            writing.write(block)
            on_block(len(block), source.name)
    if fault := hasher.fault():
        raise UserError(f"{source} is damaged or cut off: {fault}.", RESTORE_HINT)
