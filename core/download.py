"""Get a base model into the workspace.

A family with variants comes from the hub or from a folder on disk (`core.sources.base_models`), once the licences of
its parts are accepted by name, and so are files that are not the published ones. A file that was published with an
optimizer's state is then written again without it, which loads torch; the record keeps the size and hash of the
published one. At last the model is probed (`core.proof.base_probe`): a file that is whole may still be noise.

The built-in model is copied from its family's pack. One that is there already is checked against the pack's
`SHA256SUMS.json`, and a damaged file is replaced with a warning.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from config import confinement
from config.errors import ErrorKind, UserError
from config.schema import DownloadOptions
from core.jobs.events import Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, stage
from core.library.catalog import (
    RESTORE_HINT,
    SUMS,
    CatalogEntry,
    find_entry,
    model_name,
    pack_folder,
    require_licences,
    variant,
)
from core.library.published import Shapes
from core.library.records import MODEL_RECORD, BaseProbe, read_model_record, write_record
from core.sources import unknown_files
from core.sources.base_models import DownloadRequest, UnknownFilesError, download_model, import_model
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
    fsync_path,
    hash_file,
    read_sums,
    write_bytes,
)


def run(options: DownloadOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Put the base model into `models/NAME`; one that is there is verified and repaired."""
    entry = find_entry(options.model)
    chosen = variant(entry, options.variant) if entry.variants or options.variant else None

    if chosen is not None:
        name = options.save_as or model_name(entry, chosen)
        target = resolve_inside(workspace.models, name)
        earlier_record = read_model_record(target) if target.is_dir() else None
        require_licences(entry, chosen, (*options.accept_licence, *(earlier_record.licences if earlier_record else ())))
        request = DownloadRequest(entry, chosen, name, options.revision,
                                  licences=tuple(licence.name for licence in chosen.licences),
                                  accept_unknown=options.accept_unknown, read_shapes=partial(_read_shapes, entry.name))

        try:
            if options.folder:
                result = import_model(request, confinement.open_path(options.folder), workspace, reporter)
            else:
                result = download_model(request, Hub.from_environment(), workspace, reporter)
        except UnknownFilesError as error:
            # The page offers to accept these files.
            unknown_files.write(reporter.directory, error.files)
            raise

        # The model never reads an optimizer's state, so it is not kept.
        try:
            saved = _strip(target, chosen.stripped, reporter)
        except UserError:
            # The folder was a wrong one; the files that were given stay where they are.
            if options.folder and earlier_record is None:
                shutil.rmtree(target)
            raise
        result = {**result, "bytes": int(result["bytes"] or 0) - saved} if saved else result
        return {**result, **_probe(workspace, target, options.probe, reporter)}
    if options.folder or options.save_as:
        raise UserError(f"{entry.title} ships with Lisan: it needs no folder, and its name is {entry.name}.",
                        "Leave --folder and --save-as out.")
    return _copy_pack(entry, workspace, reporter)


def _read_shapes(family_name: str, path: Path) -> Shapes:
    """The shapes of the tensors in a file of a family."""
    from models.registry import family  # torch takes seconds to load

    weights = family(family_name).open_weights(path)
    return {name: weights.shape(name) for name in weights.names}


def _probe(workspace: Workspace, target: Path, requested: bool, reporter: Reporter) -> Result:
    """Probe a new base model, and record what was measured; one that was probed before keeps its result."""
    record = read_model_record(target)
    assert record is not None, "it was written with the model"
    if record.probe is None or record.probe.outcome == "not probed":
        if requested:
            # torch takes seconds to load.
            from core.proof.base_probe import probe_base

            with stage(reporter, "probe"):
                probe = probe_base(workspace, target.name, reporter)
        else:
            probe = BaseProbe("not probed", "not probed: turned off (--no-probe)")
        record = replace(record, probe=probe)
        write_record(target / MODEL_RECORD, record)
    assert record.probe is not None
    if record.probe.outcome == "broken":
        reporter.emit(WarningRaised(f"{target.name} is {record.probe.words}"))
    return {"probe": record.probe.words, "probe_outcome": record.probe.outcome}


def _strip(target: Path, names: Sequence[str], reporter: Reporter) -> int:
    """Write the files `names` again without what the model never reads; the bytes that this saves.

    The record is written first: it knows the published file and the stripped one, so that a job that is killed between
    the two steps leaves a model whose next check passes.
    """
    saved = 0
    for name in names:
        record = read_model_record(target)
        assert record is not None, "it was written with the model"
        path, temporary = target / name, target / f".{name}.stripped"
        original = record.originals.get(name, record.files[name])
        if path.stat().st_size != original.size:
            # The file is stripped already.
            continue
        # torch takes seconds to load.
        from models.registry import family

        try:
            with stage(reporter, "strip"):
                if not family(record.family).strip_file(path, temporary):
                    continue
                fsync_path(temporary)
                stripped = ExpectedFile(temporary.stat().st_size, hash_file(temporary))
                write_record(target / MODEL_RECORD, replace(record, files={**record.files, name: stripped},
                                                            originals={**record.originals, name: original}))
                os.replace(temporary, path)
                saved += original.size - stripped.size
        except OSError as error:
            raise UserError(f"{path} could not be written again without its optimizer state: "
                            f"{error.strerror or error}.",
                            "Free some disk space, then try again; the files that came stay as they are.") from error
        finally:
            temporary.unlink(missing_ok=True)
    return saved


def _copy_pack(entry: CatalogEntry, workspace: Workspace, reporter: Reporter) -> Result:
    """Copy the pack to `models/NAME`, or replace what is damaged there."""
    pack, target = pack_folder(entry.name), resolve_inside(workspace.models, entry.name)
    sums = read_sums(pack / SUMS, RESTORE_HINT)
    absent = [str(pack / name) for name in sums if not (pack / name).is_file()]
    if absent:
        raise UserError(f"Files of the built-in model are missing: {', '.join(absent)}.", RESTORE_HINT)

    # Progress counts bytes, whether they are copied or only checked.
    files = {name: ExpectedFile((pack / name).stat().st_size, digest) for name, digest in sums.items()}
    total, done_bytes = sum(file.size for file in files.values()), 0
    disk_hint = f"The model needs {total / 1e6:.0f} MB. Free some disk space, then continue."

    def on_block(size: int, name: str) -> None:
        nonlocal done_bytes
        done_bytes += size
        reporter.emit(Progress(done_bytes, total, "bytes", name))
        check_stop(reporter, "Stopped before the model was whole; nothing half-written is left.")

    # A model that exists is checked file by file, and only damaged files are replaced.
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
            raise UserError(f"{target} could not be written: {error.strerror or error}.", disk_hint,
                            ErrorKind.ENVIRONMENT) from error
        outcome = f"already there, {len(faults)} damaged files replaced"
    return {"model": entry.name, "folder": str(target), "files": len(sums), "bytes": total, "outcome": outcome}


def _copy_file(source: Path, target: Path, expected: ExpectedFile, on_block: BlockCallback) -> None:
    """Copy one file, checking the bytes that are written."""
    target.parent.mkdir(parents=True, exist_ok=True)
    hasher = FileHasher(expected)
    with open(source, "rb") as reading, open(target, "wb") as writing:
        while block := reading.read(BLOCK_BYTES):
            hasher.update(block)
            writing.write(block)
            on_block(len(block), source.name)
    fault = hasher.fault()
    if fault:
        raise UserError(f"{source} is damaged or cut off: {fault}.", RESTORE_HINT)
