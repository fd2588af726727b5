"""Get a base model into the workspace. Never loads torch.

A family with variants comes from the hub (`core.incoming.fetch`) or from a folder on disk
(`core.incoming.from_folder`). The built-in one is copied from its family's pack: a new model is
written into a folder aside and renamed when whole; one that is there already is checked
against the pack's `SHA256SUMS.json`, and a damaged file is replaced, and said.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

from config.errors import UserError
from config.schema import DownloadOptions
from core.incoming.fetch import Order, from_hub
from core.incoming.from_folder import from_folder
from core.incoming.hub import Hub
from core.jobs.events import Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library.catalog import Family, family, model_name, variant
from core.workspace import Workspace, resolve_inside

SUMS = "SHA256SUMS.json"
_BLOCK = 1 << 20  # bytes
_RESTORE = "Restore it from the repository (git checkout), or make the model anew: python -m scripts.build_tiny."
Report = Callable[[int, str], None]
"""Told of each block: its bytes, and the file it is from."""


def run(options: DownloadOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Put the base model into `models/NAME`; one that is there is verified and mended."""
    wanted = family(options.model)
    if not wanted.available:
        raise UserError(
            f"{wanted.title} cannot be downloaded yet: it comes in a later version of Lisan.",
            "Use the built-in model meanwhile: tiny.",
        )
    chosen = variant(wanted, options.variant) if wanted.variants or options.variant else None
    if chosen is not None:
        order = Order(wanted, chosen, options.save_as or model_name(wanted, chosen), options.revision)
        if options.folder:
            return from_folder(order, Path(options.folder), workspace, reporter)
        return from_hub(order, Hub.from_environment(), workspace, reporter)
    if options.folder or options.save_as:
        raise UserError(f"{wanted.title} ships with Lisan: it needs no folder, and its name is {wanted.name}.",
                        "Leave --folder and --save-as out.")
    return _copy_pack(wanted, workspace, reporter)


def _copy_pack(wanted: Family, workspace: Workspace, reporter: Reporter) -> Result:
    pack = pack_folder(wanted.name)
    sums = read_sums(pack)
    target = resolve_inside(workspace.models, wanted.name)
    total = _total_bytes(pack, sums)
    there = target.is_dir()
    try:
        if there:
            mended = _mend(pack, target, sums, _progress(reporter, total))
        else:
            with stage(reporter, "copy"):
                _copy_whole(pack, target, sums, _progress(reporter, total))
            mended = []
    except OSError as error:
        raise UserError(
            f"{error.filename or target} could not be written: {error.strerror or error}.",
            f"The model needs {total / 1e6:.0f} MB. Free some disk space, then continue.",
        ) from error
    for fault in mended:
        reporter.emit(WarningRaised(f"{fault} It was replaced."))
    outcome = "already there, verified" if there else "copied, verified"
    if mended:
        outcome = f"already there, {len(mended)} damaged files replaced"
    return {"model": wanted.name, "folder": str(target), "files": len(sums), "bytes": total, "outcome": outcome}


def pack_folder(name: str) -> Path:
    """Where the pack that ships with the family `name` lies; the family's code is not imported."""
    spec = importlib.util.find_spec("models")
    assert spec is not None
    assert spec.submodule_search_locations
    folder = Path(next(iter(spec.submodule_search_locations))) / name / "pack"
    if not folder.is_dir():
        raise UserError(f"The files of the built-in model are missing: there is no {folder}.", _RESTORE)
    return folder


def read_sums(pack: Path) -> dict[str, str]:
    """SHA-256 by relative path, from the pack's `SHA256SUMS.json`."""
    path = pack / SUMS
    try:
        sums = {str(name): str(digest) for name, digest in json.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, AttributeError) as error:
        raise UserError(f"The list of the model's files, {path}, could not be read: {error}.", _RESTORE) from error
    for name in sums:
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise UserError(f"{path} names {name!r}, which lies outside of the model.", _RESTORE)
    return sums


def find_fault(folder: Path, name: str, digest: str, pack: Path, report: Report | None = None) -> str | None:
    """What is wrong with the file `name` of a model copied from `pack`, with both sizes; None when it is whole."""
    path = folder / name
    if not path.is_file():
        return f"{path} is missing."
    size, whole = path.stat().st_size, (pack / name).stat().st_size
    if size != whole:
        return f"{path} is {'cut off' if size < whole else 'too long'}: it has {size} bytes, the whole file {whole}."
    if _digest(path, report) != digest:
        return f"{path} is damaged: it has the right {size} bytes, but another content."
    return None


def _mend(pack: Path, target: Path, sums: Mapping[str, str], report: Report) -> list[str]:
    """Replace what is not whole in `target`, each file aside first; the faults found."""
    faults = []
    for name, digest in sums.items():
        fault = find_fault(target, name, digest, pack, report)
        if fault is None:
            continue
        faults.append(fault)
        aside = target / f".{Path(name).name}-{uuid.uuid4().hex[:8]}"
        try:
            _copy_file(pack / name, aside, digest, lambda _bytes, _name: None)
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(aside, target / name)
        finally:
            aside.unlink(missing_ok=True)
    shutil.copyfile(pack / SUMS, target / SUMS)
    return faults


def _copy_whole(pack: Path, target: Path, sums: Mapping[str, str], report: Report) -> None:
    aside = target.parent / f".{target.name}-{uuid.uuid4().hex[:8]}"
    try:
        for name, digest in sums.items():
            _copy_file(pack / name, aside / name, digest, report)
        shutil.copyfile(pack / SUMS, aside / SUMS)
        aside.rename(target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _copy_file(source: Path, target: Path, digest: str, report: Report) -> None:
    """Copy one file, checking the bytes on their way."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hasher = hashlib.sha256()
    with open(source, "rb") as reading, open(target, "wb") as writing:
        while block := reading.read(_BLOCK):
            hasher.update(block)
            writing.write(block)
            report(len(block), source.name)
        writing.flush()
        os.fsync(writing.fileno())
    if hasher.hexdigest() != digest:
        raise UserError(
            f"{source} is damaged or cut off: its {source.stat().st_size} bytes have SHA-256 "
            f"{hasher.hexdigest()[:12]}..., the whole file's begins {digest[:12]}.",
            _RESTORE,
        )


def _digest(path: Path, report: Report | None) -> str:
    hasher = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            hasher.update(block)
            if report:
                report(len(block), path.name)
    return hasher.hexdigest()


def _total_bytes(pack: Path, sums: Mapping[str, str]) -> int:
    absent = [str(pack / name) for name in sums if not (pack / name).is_file()]
    if absent:
        raise UserError(f"Files of the built-in model are missing: {', '.join(absent)}.", _RESTORE)
    return sum((pack / name).stat().st_size for name in sums)


def _progress(reporter: Reporter, total: int) -> Report:
    """Counts blocks into progress, and hears a stop between them."""
    done = 0

    def report(size: int, name: str) -> None:
        nonlocal done
        done += size
        reporter.emit(Progress(done, total, "bytes", name))
        check_stop(reporter, "Stopped before the model was whole; nothing half-written is left.")

    return report
