"""A checkpoint of a base model, from the hub or from a folder, into `models/NAME`. Never loads torch.

A download lies in `models/.NAME.partial` until it is whole: each file under its own name, beside `plan.json`, which
pins the commits and says what each file should be. Any later job resumes it. A folder's files are linked where the
disk allows it, else copied, and never moved or changed. Each file is checked by name and size, and by its hash where
one is known: from the hub, from the `model.json` of a Lisan model, from the cache of `huggingface_hub` (links to blobs
that are named by their hash), or from the metadata that it writes beside a `--local-dir` download.

A model that is there already is verified, and its damaged files are replaced.
"""

from __future__ import annotations

import json
import os
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from config.errors import UserError
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, size_text, stage
from core.library.catalog import CatalogEntry, ModelVariant, RepositoryPart
from core.library.records import MODEL_RECORD, ModelRecord, read_model_record, write_model_record
from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy, list_repository
from core.sources.hub import Hub, NoRevision, RemoteFile, RepositoryFiles
from core.sources.partial_downloads import LOCK, PLAN, check_disk, partial_folder
from core.workspace import Workspace, resolve_inside
from data.durable_files import (
    BLOCK_BYTES,
    ExpectedFile,
    atomic_directory,
    atomic_path,
    find_faults,
    fsync_path,
    hash_with_progress,
    write_json,
)

_SHA256, _SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class DownloadRequest:
    """A variant at a revision of its repository, to be stored as `models/NAME`."""

    family: CatalogEntry
    variant: ModelVariant
    name: str
    revision: str = "main"  # branch, tag or commit
    home: Path | None = None  # the folder to store it in; None is `models`


def download_model(request: DownloadRequest, hub: Hub, workspace: Workspace, reporter: Reporter,
                   retry: RetryPolicy = RetryPolicy()) -> Result:  # noqa: B008  a frozen value
    """Put the model of the hub into `models/NAME`; one that is there is verified and repaired."""
    target = resolve_inside(request.home or workspace.models, request.name)
    try:
        with partial_folder(target) as partial:
            download = _HubDownload(request, target, partial, hub, reporter, retry)
            return download.repair() if target.is_dir() else download.fetch_all()
    except OSError as error:
        raise UserError(
            f"{error.filename or target} could not be written: {error.strerror or error} "
            f"({size_text(workspace.free_bytes())} are free on that disk).",
            "Free some disk space, then continue; what was downloaded is kept.",
        ) from error


@dataclass(frozen=True)
class _Plan:
    """The files of a download, and their commits by repository."""

    variant: str
    requested_revision: str
    commits: dict[str, str]
    files: dict[str, ExpectedFile]

    @classmethod
    def read(cls, path: Path) -> _Plan | None:
        """The plan of an earlier download; None when there is none that can be read."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            files = {str(name): ExpectedFile(**file) for name, file in values.pop("files").items()}
            return cls(**values, files=files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class _HubDownload:
    """One download of a variant. `partial` holds what is not whole yet."""

    request: DownloadRequest
    target: Path
    partial: Path
    hub: Hub
    reporter: Reporter
    retry: RetryPolicy

    def fetch_all(self) -> Result:
        """Download every file, then give the folder its name."""
        request, variant = self.request, self.request.variant
        with stage(self.reporter, "look up"):
            files, commits = self._look_up()
            here = self._write_plan(commits, files)
        total = sum(file.expected.size for file in files)
        check_disk(self.target.parent, total - here, f"{request.family.title} ({variant.title})")
        kept = f", of which {size_text(here)} are here already" if here else ""
        line = (f"{variant.repository} at {commits[variant.repository][:12]} ({request.family.licence}): "
                f"{len(files)} files, {size_text(total)}{kept}.")
        self.reporter.emit(Plan((line,), {"files": len(files), "bytes": total, "bytes_here": here}))
        fetched = self._download(files)
        companions = {name: commit for name, commit in commits.items() if name != variant.repository}
        record = ModelRecord(request.family.name, variant.name, variant.repository, commits[variant.repository],
                             request.revision, fetched, companions)
        write_model_record(self.partial, record)
        for name in record.files:
            fsync_path(self.partial / name)
        self.partial.rename(self.target)
        for name in (PLAN, LOCK):
            (self.target / name).unlink(missing_ok=True)
        return _result(record, self.target, "fetched, verified", total - here)

    def repair(self) -> Result:
        """Check each file of the model, and fetch the damaged ones at the commit that the model came from."""
        record, faults = _verify(self.request, self.target, self.reporter)
        if not faults:
            self._write_plan({}, [])
            return _result(record, self.target, "already there, verified", 0)
        files = [self._origin(record, name) for name in faults]
        if not all(file.commit for file in files):
            raise UserError(" ".join(faults.values()),
                            "The model came from a folder: give that again with --folder PATH.")
        self._write_plan({}, files)
        size = sum(file.expected.size for file in files)
        check_disk(self.target.parent, size, "The repair of the model")
        self._download(files)
        for name, fault in faults.items():
            os.replace(self.partial / name, self.target / name)
            self.reporter.emit(WarningRaised(f"{fault} It was replaced."))
        self._write_plan({}, [])
        return _result(record, self.target, f"already there, {len(faults)} damaged files replaced", size)

    def _look_up(self) -> tuple[list[RemoteFile], dict[str, str]]:
        """The files, smallest first, and the commit of each repository: that of an earlier download, if any."""
        request, before = self.request, _Plan.read(self.partial / PLAN)
        wanted = (request.variant.name, request.revision)
        pinned = before.commits if before and (before.variant, before.requested_revision) == wanted else {}
        files: list[RemoteFile] = []
        commits: dict[str, str] = {}
        for part in request.variant.parts:
            newest = request.revision if part.repository == request.variant.repository else "main"
            found = self._list(part.repository, pinned.get(part.repository, newest), newest)
            commits[part.repository] = found.commit
            files += _first_of_each(part, found)
        for file in files:
            if not file.expected.hashed:
                message = f"{self.hub.host} gives no hash of {file.name}; only its size can be checked."
                self.reporter.emit(WarningRaised(message))
        return sorted(files, key=lambda file: file.expected.size), commits

    def _list(self, repository: str, revision: str, newest: str) -> RepositoryFiles:
        try:
            return list_repository(self.hub, repository, revision, self.reporter, self.retry)
        except NoRevision:
            if revision == newest:
                raise
            self.reporter.emit(WarningRaised(f"{repository} no longer has {revision[:12]}, at which this download "
                                             f"started; "
                                             f"it continues with {newest}, and fetches again what differs."))
            return list_repository(self.hub, repository, newest, self.reporter, self.retry)

    def _write_plan(self, commits: dict[str, str], files: list[RemoteFile]) -> int:
        """Write the plan, and delete what is there of other files or other content; the bytes that stay.

        Without files everything is deleted, the plan too.
        """
        before = _Plan.read(self.partial / PLAN)
        known = before.files if before else {}
        wanted = {file.name: file.expected for file in files}
        here = 0
        for path in self.partial.iterdir():
            if path.name in (PLAN, LOCK):
                continue
            size, expected = path.stat().st_size, wanted.get(path.name)
            if expected is None or known.get(path.name) != expected or size > expected.size:
                path.unlink()
            else:
                here += size
        if files:
            plan = _Plan(self.request.variant.name, self.request.revision, commits, wanted)
            write_json(self.partial / PLAN, asdict(plan))
        else:
            (self.partial / PLAN).unlink(missing_ok=True)
        return here

    def _download(self, files: list[RemoteFile]) -> dict[str, ExpectedFile]:
        """Complete each file in `partial`; their sizes and hashes."""
        hashers = {}
        if there := [file for file in files if (self.partial / file.name).is_file()]:
            with stage(self.reporter, "check what is here"):
                size = sum((self.partial / file.name).stat().st_size for file in there)
                progress = DownloadProgress(self.reporter, size)
                hashers = {file.name: hash_with_progress(self.partial / file.name, file.expected, progress.add)
                           for file in there}
        with stage(self.reporter, "download"):
            progress = DownloadProgress(self.reporter, sum(file.expected.size for file in files),
                                        sum(hasher.size for hasher in hashers.values()))
            downloader = Downloader(self.hub, progress, self.retry)
            return {file.name: ExpectedFile(file.expected.size, downloader.download(
                        file, self.partial / file.name, hashers.get(file.name)))
                    for file in files}

    def _origin(self, record: ModelRecord, name: str) -> RemoteFile:
        """Where the file `name` of a model came from; the commit is empty where that is not known."""
        repository = next((part.repository for part in self.request.variant.parts
                           if any(name in names for names in part.files)), record.repository)
        commit = record.revision if repository == record.repository else record.companions.get(repository, "")
        return RemoteFile(repository, commit, name, record.files[name])


def _first_of_each(part: RepositoryPart, found: RepositoryFiles) -> Iterator[RemoteFile]:
    """The files of `part`: of each choice the first that the repository has."""
    for names in part.files:
        name = next((name for name in names if name in found.files), None)
        if name is None:
            raise UserError(
                f"{found.repository} has no {' or '.join(names)} at {found.commit[:12]}.",
                "Try another --revision or HF_ENDPOINT, or give a folder with the files (--folder PATH; on the page: "
                "Model).",
            )
        yield found.file(name)


def _verify(request: DownloadRequest, target: Path, reporter: Reporter) -> tuple[ModelRecord, dict[str, str]]:
    """The record of the model in `target`, which must be the requested one, and the faults of its files by name."""
    record = read_model_record(target)
    hint = "Take another name with --save-as, or move that folder away."
    if record is None:
        raise UserError(f"{target} is there, but it has no {MODEL_RECORD}: Lisan did not make it.", hint)
    if (record.family, record.variant) != (request.family.name, request.variant.name):
        raise UserError(f"{target} holds {record.family} {record.variant}, not {request.family.name} "
                        f"{request.variant.name}.", hint)
    if record.revision and request.revision not in (record.requested_revision, record.revision):
        raise UserError(f"{target} is {record.revision[:12]} ({record.requested_revision}) of {record.repository}, "
                        f"not {request.revision!r}.", hint)
    with stage(reporter, "verify"):
        return record, dict(find_faults(target, record.files, DownloadProgress(reporter, _size(record.files)).add))


def _size(files: Mapping[str, ExpectedFile]) -> int:
    return sum(file.size for file in files.values())


def _result(record: ModelRecord, target: Path, outcome: str, fetched: int) -> Result:
    return {
        "model": target.name, "family": record.family, "variant": record.variant, "revision": record.revision,
        "folder": str(target), "files": len(record.files), "bytes": _size(record.files), "bytes_fetched": fetched,
        "outcome": outcome,
    }


@dataclass(frozen=True)
class _LocalFile:
    """A file of the given folder, and what is known of it."""

    name: str
    path: Path  # of the file itself, behind any link
    expected: ExpectedFile
    commit: str = ""


def import_model(request: DownloadRequest, folder: Path, workspace: Workspace, reporter: Reporter) -> Result:
    """Put the model into `models/NAME` from the files of `folder`; one that is there is verified and repaired."""
    folder = folder.expanduser().absolute()
    target = resolve_inside(workspace.models, request.name)
    if not folder.is_dir():
        raise UserError(f"There is no folder {folder}.", "Give the folder that holds the files, without a file's name.")
    with partial_folder(target):
        if target.is_dir():
            return _repair_from_folder(request, folder, target, reporter)
        files = _find_files(request, folder)
        linked = all(same_disk(file.path, target.parent) for file in files)
        total = sum(file.expected.size for file in files)
        if not linked:
            check_disk(target.parent, total, "The copy")
        how = "linked" if linked else "copied"
        reporter.emit(Plan((f"{len(files)} files of {folder}, {size_text(total)}, will be {how}.",),
                           {"files": len(files), "bytes": total}))
        checked = _check_files(files, reporter)
        with stage(reporter, how), atomic_directory(target) as temporary:
            progress = DownloadProgress(reporter, total)
            for file in files:
                _link_or_copy(file.path, temporary / file.name, progress)
            commit, companions = _commits(request, files)
            record = ModelRecord(request.family.name, request.variant.name, request.variant.repository, commit,
                                 request.revision, checked, companions)
            write_model_record(temporary, record)
        return _result(record, target, f"{how} from {folder}, verified", 0)


def _repair_from_folder(request: DownloadRequest, folder: Path, target: Path, reporter: Reporter) -> Result:
    record, faults = _verify(request, target, reporter)
    if not faults:
        return _result(record, target, "already there, verified", 0)
    files = [_LocalFile(name, (folder / name).resolve(), record.files[name]) for name in faults]
    if absent := [file.name for file in files if not file.path.is_file()]:
        raise UserError(" ".join(faults.values()), f"{folder} has no {', '.join(absent)}; give one that has.")
    _check_files(files, reporter)
    for file in files:
        with atomic_path(target / file.name) as temporary:
            _link_or_copy(file.path, temporary, DownloadProgress(reporter, file.expected.size))
        reporter.emit(WarningRaised(f"{faults[file.name]} It was replaced."))
    return _result(record, target, f"already there, {len(faults)} damaged files replaced", 0)


def _find_files(request: DownloadRequest, folder: Path) -> list[_LocalFile]:
    """The variant's files in `folder`; `UserError` names all that are missing."""
    choices = [names for part in request.variant.parts for names in part.files]
    found = [next((name for name in names if (folder / name).is_file()), None) for names in choices]
    if missing := [" or ".join(names) for names, name in zip(choices, found, strict=True) if name is None]:
        raise UserError(
            f"{folder} has no {', no '.join(missing)}, which {request.family.title} ({request.variant.title}) needs.",
            "Give the folder with all files, or another --variant; or leave --folder out to download them.",
        )
    record = read_model_record(folder)
    return [_describe(folder, name, record) for name in found if name is not None]


def _describe(folder: Path, name: str, record: ModelRecord | None) -> _LocalFile:
    """The file `name` of `folder` with the size, hash and commit that are known of it."""
    given, path = folder / name, (folder / name).resolve()
    if record and name in record.files:
        return _LocalFile(name, path, record.files[name], record.revision)
    commit = digest = ""
    with suppress(OSError, UnicodeDecodeError, IndexError):  # what `huggingface_hub` writes beside its downloads
        lines = (folder / ".cache/huggingface/download" / f"{name}.metadata").read_text(encoding="utf-8").splitlines()
        commit, digest = lines[0].strip(), lines[1].strip()
    if not digest and given.is_symlink() and path.parent.name == "blobs":  # snapshots/COMMIT/NAME -> blobs/HASH
        commit, digest = given.parent.name, path.name
    expected = ExpectedFile(path.stat().st_size, digest if _SHA256.fullmatch(digest) else "",
                            digest if _SHA1.fullmatch(digest) else "")
    return _LocalFile(name, path, expected, commit if _SHA1.fullmatch(commit) else "")


def _check_files(files: list[_LocalFile], reporter: Reporter) -> dict[str, ExpectedFile]:
    """Sizes and hashes of the files; `UserError` names the first that is cut off or not what is known of it."""
    with stage(reporter, "check"):
        progress = DownloadProgress(reporter, sum(file.expected.size for file in files))
        checked = {}
        for file in files:
            hasher = hash_with_progress(file.path, file.expected, progress.add)
            if fault := hasher.fault() or _format_fault(file.path, file.name):
                raise UserError(f"{file.path} is damaged: {fault}.", "Get that file again, or download the model.")
            checked[file.name] = ExpectedFile(hasher.size, hasher.sha256)
        return checked


def _format_fault(path: Path, name: str) -> str:
    """How a file contradicts its own format; empty when it does not. Its tensors are not read."""
    try:
        if name.endswith(".safetensors"):  # 8 bytes of length, the header, the tensors
            size = path.stat().st_size
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 0 < length <= size - 8:
                    return f"its header should have {length} bytes, and the file has {size}"
                header = json.loads(file.read(length))
            ends = [int(entry["data_offsets"][1]) for key, entry in header.items() if key != "__metadata__"]
            whole = 8 + length + max(ends, default=0)
            return f"it has {size} bytes, and its header says {whole}" if size != whole else ""
        if name.endswith(".pt") and not zipfile.is_zipfile(path):
            return "it is no whole zip archive, as weights in a .pt file are"
        if name.endswith(".json"):
            json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return ""


def same_disk(path: Path, folder: Path) -> bool:
    """Whether a hard link of `path` can lie in `folder`."""
    return path.stat().st_dev == folder.stat().st_dev


def _link_or_copy(source: Path, target: Path, progress: DownloadProgress) -> None:
    try:
        os.link(source, target)
        progress.add(source.stat().st_size, target.name)
    except OSError:  # another disk, a disk without links, or a file of another owner
        with open(source, "rb") as reading, open(target, "wb") as writing:
            while block := reading.read(BLOCK_BYTES):
                writing.write(block)
                progress.add(len(block), target.name)


def _commits(request: DownloadRequest, files: list[_LocalFile]) -> tuple[str, dict[str, str]]:
    """The commit of the variant's own repository and those of others, where all files from it agree on one."""
    found = {}
    for part in request.variant.parts:
        names = {name for choice in part.files for name in choice}
        commits = {file.commit for file in files if file.name in names}
        if len(commits) == 1 and (commit := commits.pop()):
            found[part.repository] = commit
    return found.pop(request.variant.repository, ""), found
