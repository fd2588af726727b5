"""A family's variant from the hub into `models/NAME`, whole or not there. Never loads torch.

What has come lies in `models/.NAME.partial`, each file under its own name and as long as it
got, beside `plan.json`: the commits that the download is pinned to and what each file should
be. A later try, by whatever job, takes up from there. A model that is there already is
checked, and its damaged files are fetched anew at the commit it came from.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from config.errors import UserError
from core.job.journal import Plan, Result, Warned
from core.job.locks import FileLock
from core.job.reporter import Reporter, size_text, stage
from core.library.catalog import ModelFamily, ModelVariant, RepositoryPart
from core.library.records import MODEL_RECORD, ModelRecord, read_model_record, write_model_record
from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy, call_with_retries
from core.sources.hub import Hub, NoRevision, RemoteFile, RepositoryFiles
from core.workspace import Workspace, resolve_inside
from data.durable_files import BLOCK_BYTES, ExpectedFile, FileHasher, atomic_directory, find_faults, hash_with_progress

PLAN, LOCK = "plan.json", "lock"
SPARE_BYTES = 100_000_000  # left for journals and the system


@dataclass(frozen=True)
class ModelRequest:
    """What is wanted: a variant at a revision of its own repository, as `models/NAME`."""

    family: ModelFamily
    variant: ModelVariant
    name: str
    asked: str = "main"
    home: Path | None = None  # where it is to lie; None is `models`


def download_model(order: ModelRequest, hub: Hub, workspace: Workspace, reporter: Reporter,
             patience: RetryPolicy = RetryPolicy()) -> Result:  # noqa: B008  a frozen value
    """Put the model into `models/NAME`; one that is there is verified and mended."""
    target = resolve_inside(order.home or workspace.models, order.name)
    try:
        with partial_folder(target) as aside:
            if target.is_dir():
                return _repair(order, target, aside, hub, reporter, patience)
            return _get_whole(order, target, aside, hub, reporter, patience)
    except OSError as error:
        raise UserError(
            f"{error.filename or target} could not be written: {error.strerror or error} "
            f"({size_text(workspace.free_bytes())} are free on that disk).",
            "Free some disk space, then continue; what has come is kept.",
        ) from error


@contextmanager
def partial_folder(target: Path) -> Iterator[Path]:
    """The folder beside `target` for what has come, held against other jobs; removed when nothing is in it."""
    aside = target.with_name(f".{target.name}.partial")
    aside.mkdir(exist_ok=True)
    lock = FileLock.take(aside / LOCK)
    if lock is None:
        raise UserError(f"{target.name} is being downloaded by another job.", "Watch that one, or stop it first.")
    try:
        yield aside
    finally:
        lock.close()
        if aside.is_dir() and {path.name for path in aside.iterdir()} <= {LOCK}:
            shutil.rmtree(aside, ignore_errors=True)


def check_disk(folder: Path, needed: int, what: str) -> None:
    """Raise `UserError` with both numbers when `needed` bytes more do not fit on the disk of `folder`."""
    free = shutil.disk_usage(folder).free
    if needed + SPARE_BYTES > free:
        raise UserError(
            f"{what} needs {size_text(needed)} more, and {size_text(free)} are free on the disk of {folder}.",
            f"Free {size_text(needed + SPARE_BYTES - free)}, or choose another disk with --workspace.",
        )


def check_is(order: ModelRequest, target: Path) -> ModelRecord:
    """The record of the model in `target`, which must be what is wanted."""
    record = read_model_record(target)
    hint = "Take another name with --save-as, or move that folder away."
    if record is None:
        raise UserError(f"{target} is there, but it has no {MODEL_RECORD}: Lisan did not make it.", hint)
    if (record.family, record.variant) != (order.family.name, order.variant.name):
        raise UserError(f"{target} holds {record.family} {record.variant}, not {order.family.name} "
                        f"{order.variant.name}.", hint)
    if record.revision and order.asked not in (record.asked, record.revision):
        raise UserError(f"{target} is {record.revision[:12]} ({record.asked}) of {record.repository}, "
                        f"not {order.asked!r}.", hint)
    return record


@dataclass(frozen=True)
class _Plan:
    """What to fetch, and from which commits."""

    variant: str
    asked: str
    commits: dict[str, str]
    files: dict[str, ExpectedFile]

    def write(self, path: Path) -> None:
        aside = path.with_name(f".{path.name}")
        aside.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(aside, path)

    @classmethod
    def read(cls, path: Path) -> _Plan | None:
        """The plan of an earlier try; None when there is none that can be read."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            files = {str(name): ExpectedFile(**file) for name, file in values.pop("files").items()}
            return cls(**values, files=files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _get_whole(order: ModelRequest, target: Path, aside: Path, hub: Hub, reporter: Reporter,
               patience: RetryPolicy) -> Result:
    with stage(reporter, "look up"):
        before = _Plan.read(aside / PLAN)
        files, commits = _look_up(order, before, hub, reporter, patience)
        plan = _Plan(order.variant.name, order.asked, commits, {file.name: file.expected for file in files})
        _keep(aside, before.files if before else {}, plan.files)
        plan.write(aside / PLAN)
    here = sum((aside / name).stat().st_size for name in plan.files if (aside / name).is_file())
    total = sum(file.expected.size for file in files)
    check_disk(target.parent, total - here, f"{order.family.title} ({order.variant.title})")
    reporter.emit(_announce(order, files, total, here))
    found = _fetch_all(files, aside, hub, reporter, patience)
    own = order.variant.repository
    record = ModelRecord(order.family.name, order.variant.name, own, commits[own], order.asked, found,
                         {name: commit for name, commit in commits.items() if name != own})
    _take_name(aside, target, record)
    return result(record, target, "fetched, verified", total - here)


def _announce(order: ModelRequest, files: list[RemoteFile], total: int, here: int) -> Plan:
    own = order.variant.repository
    commit = next(file.commit for file in files if file.repository == own)
    kept = f", of which {size_text(here)} are here already" if here else ""
    line = f"{own} at {commit[:12]} ({order.family.licence}): {len(files)} files, {size_text(total)}{kept}."
    return Plan((line,), {"files": len(files), "bytes": total, "bytes_here": here})


def _look_up(order: ModelRequest, before: _Plan | None, hub: Hub, reporter: Reporter,
             patience: RetryPolicy) -> tuple[list[RemoteFile], dict[str, str]]:
    """The wanted files, smallest first, and the commit of each repository: that of an earlier try, if there was one."""
    pinned = before.commits if before and (before.variant, before.asked) == (order.variant.name, order.asked) else {}
    files: list[RemoteFile] = []
    commits: dict[str, str] = {}
    for part in order.variant.parts:
        newest = order.asked if part.repository == order.variant.repository else "main"
        listing = _list(part.repository, pinned.get(part.repository, newest), newest, hub, reporter, patience)
        commits[part.repository] = listing.commit
        files += _chosen(part, listing)
    for file in files:
        if not file.expected.hashed:
            reporter.emit(Warned(f"{hub.host} tells no hash of {file.name}; only its size can be checked."))
    return sorted(files, key=lambda file: file.expected.size), commits


def _list(repository: str, revision: str, newest: str, hub: Hub, reporter: Reporter,
          patience: RetryPolicy) -> RepositoryFiles:
    try:
        return call_with_retries(lambda: hub.list(repository, revision, patience.stall_s), reporter, patience,
                                 repository)
    except NoRevision:
        if revision == newest:
            raise
        reporter.emit(Warned(f"{repository} has no {revision[:12]} any more, with which this download began; "
                             f"it goes on with {newest}, and fetches anew what differs."))
        return call_with_retries(lambda: hub.list(repository, newest, patience.stall_s), reporter, patience, repository)


def _chosen(part: RepositoryPart, listing: RepositoryFiles) -> Iterator[RemoteFile]:
    """The files of `part`: of each choice the first that the repository has."""
    for names in part.files:
        name = next((name for name in names if name in listing.files), None)
        if name is None:
            raise UserError(
                f"{listing.repository} has no {' or '.join(names)} at {listing.commit[:12]}.",
                "Try another --revision or HF_ENDPOINT, or give a folder with the files (--folder PATH; on the page: "
                "Model).",
            )
        yield RemoteFile(listing.repository, listing.commit, name, listing.files[name])


def _keep(aside: Path, before: Mapping[str, ExpectedFile], files: Mapping[str, ExpectedFile]) -> None:
    """Throw away what is there of files that are another content now, or that nobody wants."""
    for path in aside.iterdir():
        wanted = files.get(path.name)
        if path.name not in (PLAN, LOCK) and (
                wanted is None or before.get(path.name) != wanted or path.stat().st_size > wanted.size):
            path.unlink()


def _empty(aside: Path) -> None:
    """Throw all away."""
    _keep(aside, {}, {})
    (aside / PLAN).unlink(missing_ok=True)


def _fetch_all(files: list[RemoteFile], aside: Path, hub: Hub, reporter: Reporter,
               patience: RetryPolicy) -> dict[str, ExpectedFile]:
    """Complete each file in `aside`; what they are."""
    begun = _hash_what_is_there(files, aside, reporter)
    with stage(reporter, "download"):
        total = sum(file.expected.size for file in files)
        fetcher = Downloader(hub, DownloadProgress(reporter, total, sum(hasher.size for hasher in begun.values())),
                          patience)
        return {file.name: ExpectedFile(file.expected.size,
                                        fetcher.fetch(file, aside / file.name, begun.get(file.name)))
                for file in files}


def _hash_what_is_there(files: list[RemoteFile], aside: Path, reporter: Reporter) -> dict[str, FileHasher]:
    there = [file for file in files if (aside / file.name).is_file()]
    if not there:
        return {}
    with stage(reporter, "check what is here"):
        meter = DownloadProgress(reporter, sum((aside / file.name).stat().st_size for file in there))
        return {file.name: hash_with_progress(aside / file.name, file.expected, meter.add) for file in there}


def _repair(order: ModelRequest, target: Path, aside: Path, hub: Hub, reporter: Reporter,
            patience: RetryPolicy) -> Result:
    """Check each file of `target`, and fetch those that are damaged at the commit that the model came from."""
    record = check_is(order, target)
    with stage(reporter, "verify"):
        faults = find_faults(target, record.files, DownloadProgress(reporter, total_bytes(record)).add)
    if not faults:
        _empty(aside)
        return result(record, target, "already there, verified", 0)
    files = [_origin(order, record, name) for name in faults]
    if not all(file.commit for file in files):
        raise UserError(" ".join(faults.values()), "The model came from a folder: give that again with --folder PATH.")
    _keep(aside, before.files if (before := _Plan.read(aside / PLAN)) else {},
          wanted := {file.name: file.expected for file in files})
    _Plan(order.variant.name, order.asked, {}, wanted).write(aside / PLAN)
    check_disk(target.parent, sum(file.expected.size for file in files), "Mending the model")
    _fetch_all(files, aside, hub, reporter, patience)
    for name, fault in faults.items():
        os.replace(aside / name, target / name)
        reporter.emit(Warned(f"{fault} It was replaced."))
    _empty(aside)
    fetched = sum(file.expected.size for file in files)
    return result(record, target, f"already there, {len(faults)} damaged files replaced", fetched)


def _origin(order: ModelRequest, record: ModelRecord, name: str) -> RemoteFile:
    """Where the file `name` of a model came from; the commit is empty where that is not known."""
    repository = next((part.repository for part in order.variant.parts
                       if any(name in names for names in part.files)), record.repository)
    commit = record.revision if repository == record.repository else record.companions.get(repository, "")
    return RemoteFile(repository, commit, name, record.files[name])


def _take_name(aside: Path, target: Path, record: ModelRecord) -> None:
    """Turn the whole set in `aside` into the model."""
    write_model_record(aside, record)
    for name in (*record.files, MODEL_RECORD):
        descriptor = os.open(aside / name, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    aside.rename(target)
    for name in (PLAN, LOCK):
        (target / name).unlink(missing_ok=True)


def total_bytes(record: ModelRecord) -> int:
    """The size of all files together."""
    return sum(file.size for file in record.files.values())


def result(record: ModelRecord, target: Path, outcome: str, fetched: int) -> Result:
    """What the job hands back."""
    return {
        "model": target.name, "family": record.family, "variant": record.variant, "revision": record.revision,
        "folder": str(target), "files": len(record.files), "bytes": total_bytes(record), "bytes_fetched": fetched,
        "outcome": outcome,
    }


_SHA256, _SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class _Source:
    """A file of the folder, and what is known of it."""

    name: str
    path: Path  # of the file itself, behind any link
    expected: ExpectedFile
    commit: str = ""


def import_model(order: ModelRequest, folder: Path, workspace: Workspace, reporter: Reporter) -> Result:
    """Put the model into `models/NAME` from the files of `folder`; one that is there is verified and mended."""
    folder = folder.expanduser().absolute()
    target = resolve_inside(workspace.models, order.name)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Give the folder that holds the files, without a file's name.")
    with partial_folder(target):
        if target.is_dir():
            return _repair_from_folder(order, folder, target, reporter)
        sources = _find(order, folder)
        linked = all(_same_disk(source.path, target.parent) for source in sources)
        total = sum(source.expected.size for source in sources)
        if not linked:
            check_disk(target.parent, total, "The copy")
        how = "linked" if linked else "copied"
        reporter.emit(Plan((f"{len(sources)} files of {folder}, {size_text(total)}, will be {how}.",),
                           {"files": len(sources), "bytes": total}))
        files = _check(sources, reporter)
        with stage(reporter, how), atomic_directory(target) as aside:
            meter = DownloadProgress(reporter, total)
            for source in sources:
                _link_or_copy(source.path, aside / source.name, meter)
            own, companions = _commits(order, sources)
            record = ModelRecord(order.family.name, order.variant.name, order.variant.repository, own, order.asked,
                                 files, companions)
            write_model_record(aside, record)
        return result(record, target, f"{how} from {folder}, verified", 0)


def _repair_from_folder(order: ModelRequest, folder: Path, target: Path, reporter: Reporter) -> Result:
    record = check_is(order, target)
    with stage(reporter, "verify"):
        faults = find_faults(target, record.files, DownloadProgress(reporter, total_bytes(record)).add)
    if not faults:
        return result(record, target, "already there, verified", 0)
    sources = [_Source(name, (folder / name).resolve(), record.files[name]) for name in faults]
    if absent := [source.name for source in sources if not source.path.is_file()]:
        raise UserError(" ".join(faults.values()), f"{folder} has no {', '.join(absent)}; give one that has.")
    _check(sources, reporter)
    for source in sources:
        aside = target / f".{source.name}"
        aside.unlink(missing_ok=True)
        _link_or_copy(source.path, aside, DownloadProgress(reporter, source.expected.size))
        os.replace(aside, target / source.name)
        reporter.emit(Warned(f"{faults[source.name]} It was replaced."))
    return result(record, target, f"already there, {len(faults)} damaged files replaced", 0)


def _find(order: ModelRequest, folder: Path) -> list[_Source]:
    """The variant's files in `folder`; `UserError` names all that are missing."""
    choices = [names for part in order.variant.parts for names in part.files]
    found = [next((name for name in names if (folder / name).is_file()), None) for names in choices]
    if missing := [" or ".join(names) for names, name in zip(choices, found, strict=True) if name is None]:
        raise UserError(
            f"{folder} has no {', no '.join(missing)}, which {order.family.title} ({order.variant.title}) needs.",
            "Give the folder with all files, or another --variant; or leave --folder out to download them.",
        )
    record = read_model_record(folder)
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
    return _Source(name, path, ExpectedFile(size, sha256, blob), commit if _SHA1.fullmatch(commit) else "")


def _noted(folder: Path, name: str) -> tuple[str, str]:
    """Commit and hash that `huggingface_hub` noted when it downloaded into a folder; empty when it did not."""
    try:
        lines = (folder / ".cache/huggingface/download" / f"{name}.metadata").read_text(encoding="utf-8").splitlines()
        return lines[0].strip(), lines[1].strip()
    except (OSError, UnicodeDecodeError, IndexError):
        return "", ""


def _check(sources: list[_Source], reporter: Reporter) -> dict[str, ExpectedFile]:
    """What the files are; `UserError` names the first that is cut off or not what is known of it."""
    with stage(reporter, "check"):
        meter = DownloadProgress(reporter, sum(source.expected.size for source in sources))
        files = {}
        for source in sources:
            hasher = hash_with_progress(source.path, source.expected, meter.add)
            if fault := hasher.fault() or _cut_off(source.path, source.name):
                raise UserError(f"{source.path} is damaged: {fault}.", "Get that file again, or download the model.")
            files[source.name] = ExpectedFile(hasher.size, hasher.sha256)
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


def _link_or_copy(source: Path, target: Path, meter: DownloadProgress) -> None:
    try:
        os.link(source, target)
        meter.add(source.stat().st_size, target.name)
    except OSError:  # another disk, a disk without links, or a file of another owner
        with open(source, "rb") as reading, open(target, "wb") as writing:
            while block := reading.read(BLOCK_BYTES):
                writing.write(block)
                meter.add(len(block), target.name)


def _commits(order: ModelRequest, sources: list[_Source]) -> tuple[str, dict[str, str]]:
    """The commit of the variant's own repository and those of others, where all files from it agree on one."""
    found = {}
    for part in order.variant.parts:
        names = {name for choice in part.files for name in choice}
        commits = {source.commit for source in sources if source.name in names}
        if len(commits) == 1 and (commit := commits.pop()):
            found[part.repository] = commit
    return found.pop(order.variant.repository, ""), found
