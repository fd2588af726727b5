"""A family's variant from a folder on this machine into `models/NAME`. Never loads torch.

The files are linked where the disk allows it, copied otherwise, and never moved or changed.
Each is checked by name and size, and by its hash where one is known: from the `model.json`
of a Lisan model, from the cache of `huggingface_hub` (whose files are links to blobs named
by hash), or from the notes that it leaves beside a `--local-dir` download.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from dataclasses import dataclass
from pathlib import Path

from config.errors import UserError
from core.incoming.fetch import Order, check_disk, check_is, partial_folder, result, total_bytes
from core.incoming.transfer import Meter
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, size_text, stage
from core.library.aside import written_aside
from core.library.model_record import BLOCK, Expected, ModelRecord, find_faults, hash_file, read_record, write_record
from core.workspace import Workspace, resolve_inside

_SHA256, _SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class _Source:
    """A file of the folder, and what is known of it."""

    name: str
    path: Path  # of the file itself, behind any link
    expected: Expected
    commit: str = ""


def from_folder(order: Order, folder: Path, workspace: Workspace, reporter: Reporter) -> Result:
    """Put the model into `models/NAME` from the files of `folder`; one that is there is verified and mended."""
    folder = folder.expanduser().absolute()
    target = resolve_inside(workspace.models, order.name)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Give the folder that holds the files, without a file's name.")
    with partial_folder(target):
        if target.is_dir():
            return _mend(order, folder, target, reporter)
        sources = _find(order, folder)
        linked = all(_same_disk(source.path, target.parent) for source in sources)
        total = sum(source.expected.size for source in sources)
        if not linked:
            check_disk(target.parent, total, "The copy")
        how = "linked" if linked else "copied"
        reporter.emit(Plan((f"{len(sources)} files of {folder}, {size_text(total)}, will be {how}.",),
                           {"files": len(sources), "bytes": total}))
        files = _check(sources, reporter)
        with stage(reporter, how), written_aside(target) as aside:
            meter = Meter(reporter, total)
            for source in sources:
                _link_or_copy(source.path, aside / source.name, meter)
            own, companions = _commits(order, sources)
            record = ModelRecord(order.family.name, order.variant.name, order.variant.repository, own, order.asked,
                                 files, companions)
            write_record(aside, record)
        return result(record, target, f"{how} from {folder}, verified", 0)


def _mend(order: Order, folder: Path, target: Path, reporter: Reporter) -> Result:
    record = check_is(order, target)
    with stage(reporter, "verify"):
        faults = find_faults(target, record.files, Meter(reporter, total_bytes(record)).add)
    if not faults:
        return result(record, target, "already there, verified", 0)
    sources = [_Source(name, (folder / name).resolve(), record.files[name]) for name in faults]
    if absent := [source.name for source in sources if not source.path.is_file()]:
        raise UserError(" ".join(faults.values()), f"{folder} has no {', '.join(absent)}; give one that has.")
    _check(sources, reporter)
    for source in sources:
        aside = target / f".{source.name}"
        aside.unlink(missing_ok=True)
        _link_or_copy(source.path, aside, Meter(reporter, source.expected.size))
        os.replace(aside, target / source.name)
        reporter.emit(WarningRaised(f"{faults[source.name]} It was replaced."))
    return result(record, target, f"already there, {len(faults)} damaged files replaced", 0)


def _find(order: Order, folder: Path) -> list[_Source]:
    """The variant's files in `folder`; `UserError` names all that are missing."""
    choices = [names for part in order.variant.parts for names in part.files]
    found = [next((name for name in names if (folder / name).is_file()), None) for names in choices]
    if missing := [" or ".join(names) for names, name in zip(choices, found, strict=True) if name is None]:
        raise UserError(
            f"{folder} has no {', no '.join(missing)}, which {order.family.title} ({order.variant.title}) needs.",
            "Give the folder with all files, or another --variant; or leave --folder out to download them.",
        )
    record = read_record(folder)
    return [_source(folder, name, record) for name in found if name is not None]


def _source(folder: Path, name: str, record: ModelRecord | None) -> _Source:
    given, path = folder / name, (folder / name).resolve()
    size = path.stat().st_size
    if record and name in record.files:
        return _Source(name, path, record.files[name], record.revision)
    commit, known = _noted(folder, name)
    if not known and given.is_symlink() and path.parent.name == "blobs":  # .../snapshots/COMMIT/NAME -> .../blobs/HASH
        commit, known = given.parent.name, path.name
    sha256 = known if _SHA256.fullmatch(known) else ""
    blob = known if _SHA1.fullmatch(known) else ""
    return _Source(name, path, Expected(size, sha256, blob), commit if _SHA1.fullmatch(commit) else "")


def _noted(folder: Path, name: str) -> tuple[str, str]:
    """Commit and hash that `huggingface_hub` noted when it downloaded into a folder; empty when it did not."""
    try:
        lines = (folder / ".cache/huggingface/download" / f"{name}.metadata").read_text(encoding="utf-8").splitlines()
        return lines[0].strip(), lines[1].strip()
    except (OSError, UnicodeDecodeError, IndexError):
        return "", ""


def _check(sources: list[_Source], reporter: Reporter) -> dict[str, Expected]:
    """What the files are; `UserError` names the first that is cut off or not what is known of it."""
    with stage(reporter, "check"):
        meter = Meter(reporter, sum(source.expected.size for source in sources))
        files = {}
        for source in sources:
            hasher = hash_file(source.path, source.expected, meter.add)
            if fault := hasher.fault() or _cut_off(source.path, source.name):
                raise UserError(f"{source.path} is damaged: {fault}.", "Get that file again, or download the model.")
            files[source.name] = Expected(hasher.size, hasher.sha256)
        return files


def _cut_off(path: Path, name: str) -> str:
    """How a file contradicts its own kind, in words; empty when it does not. Its tensors are not looked at."""
    try:
        if name.endswith(".safetensors"):
            return _safetensors_fault(path)
        if name.endswith(".pt") and not zipfile.is_zipfile(path):
            return "it is no whole zip archive, as weights in a .pt file are"
        if name.endswith(".json"):
            json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return ""


def _safetensors_fault(path: Path) -> str:
    """Whether the file is as long as its header says: 8 bytes of length, the header, the tensors."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if not 0 < length <= size - 8:
            return f"its header should have {length} bytes, and the file has {size}"
        header = json.loads(file.read(length))
    ends = [int(entry["data_offsets"][1]) for name, entry in header.items() if name != "__metadata__"]
    whole = 8 + length + max(ends, default=0)
    return f"it has {size} bytes, and its header says {whole}" if size != whole else ""


def _same_disk(path: Path, folder: Path) -> bool:
    return path.stat().st_dev == folder.stat().st_dev


def _link_or_copy(source: Path, target: Path, meter: Meter) -> None:
    try:
        os.link(source, target)
        meter.add(source.stat().st_size, target.name)
    except OSError:  # another disk, a disk without links, or a file of another owner
        with open(source, "rb") as reading, open(target, "wb") as writing:
            while block := reading.read(BLOCK):
                writing.write(block)
                meter.add(len(block), target.name)


def _commits(order: Order, sources: list[_Source]) -> tuple[str, dict[str, str]]:
    """The commit of the variant's own repository and those of others, where all files from it agree on one."""
    found = {}
    for part in order.variant.parts:
        names = {name for choice in part.files for name in choice}
        commits = {source.commit for source in sources if source.name in names}
        if len(commits) == 1 and (commit := commits.pop()):
            found[part.repository] = commit
    return found.pop(order.variant.repository, ""), found
