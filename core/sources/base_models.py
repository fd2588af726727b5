"""A checkpoint of a base model, from the hub or from a folder, into `models/NAME`. Never loads torch.

Its files may come from several repositories; they make one download, with one total.

A download lies in `models/.NAME.partial` until it is whole: each file under its own name, beside `plan.json`, which
pins the commits and says what each file should be. Any later job resumes it. A folder's files are linked where the
disk allows it, else copied, and never moved or changed. Each file is checked by name and size, and by its hash where
one is known: from the hub, from the `model.json` of a Lisan model, from the cache of `huggingface_hub` (links to blobs
that are named by their hash), or from the metadata that it writes beside a `--local-dir` download.

Files that are not the published ones (`core.library.published`) are accepted only by name. A model that is there
already is verified, and its damaged files are replaced.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path

from config import confinement, foreign
from config.errors import ErrorKind, UserError
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, size_text, stage
from core.library import published
from core.library.catalog import CatalogEntry, ModelVariant, RepositoryPart
from core.library.published import FileCheck, Shapes, UnknownFile
from core.library.records import MODEL_RECORD, ModelRecord, read_model_record, write_record
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
    is_pytorch_file,
    write_json,
)

_SHA256, _SHA1 = re.compile("[0-9a-f]{64}"), re.compile("[0-9a-f]{40}")


@dataclass(frozen=True)
class DownloadRequest:
    """A variant at a revision of its repository, to be stored as `models/NAME`."""

    family: CatalogEntry
    variant: ModelVariant
    name: str
    revision: str = ""  # branch, tag or commit of its own repository; empty is the one that was tested
    home: Path | None = None  # the folder to store it in; None is `models`
    licences: tuple[str, ...] = ()  # names of the licences that were accepted
    accept_unknown: tuple[str, ...] = ()  # files that are accepted although they are not the published ones
    read_shapes: Callable[[Path], Shapes] | None = None  # tensors of a file; None: shapes are not compared

    @property
    def wanted_revision(self) -> str:
        return self.revision or self.variant.parts[0].revision


class UnknownFilesError(UserError):
    """Some files are not the published ones, and were not accepted by name."""

    def __init__(self, title: str, files: Sequence[UnknownFile]) -> None:
        facts = "; ".join(f"{file.path} ({file.reason})" for file in files)
        accepted = " --accept-unknown ".join(file.path for file in files)
        super().__init__(
            f"{'A file is' if len(files) == 1 else f'{len(files)} files are'} not what was published as {title}: "
            f"{facts}.",
            "Get what was published, or another --variant; or accept by name what you know to be a base model "
            f"(--accept-unknown {accepted}; on the page: tick the box that names it). "
            "Certificates then say “unknown base”.")
        self.files = tuple(files)


def download_model(request: DownloadRequest, hub: Hub, workspace: Workspace, reporter: Reporter,
                   retry: RetryPolicy = RetryPolicy()) -> Result:  # noqa: B008  a frozen value
    """Download the model from the hub into `models/NAME`; an existing one is verified and repaired."""
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
            ErrorKind.ENVIRONMENT,
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
            values = foreign.read_json(path)
            files = {str(name): ExpectedFile(**file) for name, file in values.pop("files").items()}
            return cls(**values, files=files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


@dataclass(frozen=True)
class _HubDownload:
    """One download of a variant. `partial` has the incomplete files."""

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
            _require_known(request, published.check_files(
                variant, {path: file.expected for path, file in files.items()}))
            stored_bytes = self._write_plan(commits, files)

        # The plan is announced before the first byte is fetched.
        total = sum(file.expected.size for file in files.values())
        check_disk(self.target.parent, total - stored_bytes, f"{request.family.title} ({variant.title})")
        stored_note = f", of which {size_text(stored_bytes)} are here already" if stored_bytes else ""
        line = (f"{variant.repository} at {commits[variant.repository][:12]} ({request.family.licence}): "
                f"{len(files)} files, {size_text(total)}{stored_note}.")
        self.reporter.emit(Plan((line, *licence_lines(variant)),
                                {"files": len(files), "bytes": total, "bytes_here": stored_bytes}))

        # A file is accepted by its content: names and sizes alone prove nothing.
        fetched = self._download(files)
        check = published.check_files(variant, fetched, lambda path: self.partial / path, request.read_shapes)
        _require_known(request, check)
        companions = {name: commit for name, commit in commits.items() if name != variant.repository}
        record = ModelRecord(request.family.name, variant.name, variant.repository, commits[variant.repository],
                             request.wanted_revision, fetched, companions, licences=request.licences,
                             accepted_unknown=tuple(file.path for file in check.unknown))

        # The folder takes its name when all files are on the disk.
        write_record(self.partial / MODEL_RECORD, record)
        for name in record.files:
            fsync_path(self.partial / name)
        self.partial.rename(self.target)
        for name in (PLAN, LOCK):
            (self.target / name).unlink(missing_ok=True)
        outcome = f"fetched, {check.note if check.unknown else 'verified'}"
        return _result(record, self.target, outcome, total - stored_bytes)

    def repair(self) -> Result:
        """Check each file of the model, and fetch the damaged ones at the commit that the model came from."""
        record, faults = _verify(self.request, self.target, self.reporter)
        if not faults:
            self._write_plan({}, {})
            return _result(record, self.target, "already there, verified", 0)

        # Only the damaged files are fetched again, from the commit that they came from.
        files = {path: self._origin(record, path) for path in faults}
        if not all(file.commit for file in files.values()):
            raise UserError(" ".join(faults.values()),
                            "The model came from a folder: give that again with --folder PATH.")
        self._write_plan({}, files)
        size = sum(file.expected.size for file in files.values())
        check_disk(self.target.parent, size, "The repair of the model")
        self._download(files)
        for path, fault in faults.items():
            (self.target / path).parent.mkdir(parents=True, exist_ok=True)
            os.replace(self.partial / path, self.target / path)
            self.reporter.emit(WarningRaised(f"{fault} It was replaced."))
        self._write_plan({}, {})
        return _result(record, self.target, f"already there, {len(faults)} damaged files replaced", size)

    def _look_up(self) -> tuple[dict[str, RemoteFile], dict[str, str]]:
        """The files by their paths, smallest first, and the commit of each repository.

        The commits are those of an earlier download, if there was one.
        """
        request, plan = self.request, _Plan.read(self.partial / PLAN)
        requested = (request.variant.name, request.wanted_revision)
        pinned = plan.commits if plan and (plan.variant, plan.requested_revision) == requested else {}
        files: dict[str, RemoteFile] = {}
        commits: dict[str, str] = {}

        # A download that was interrupted continues at its commit, even if the repository has moved on.
        for part in request.variant.parts:
            # Files of a companion repository come from its own revision.
            is_pinned = bool(request.revision) and part.repository == request.variant.repository
            revisions = [request.revision] if is_pinned else [part.revision, "main"]
            listing = self._list(part.repository, [pinned.get(part.repository, revisions[0]), *revisions])
            commits[part.repository] = listing.commit
            files |= _first_of_each(part, listing)
        # Some hubs give no hashes.
        for file in files.values():
            if not file.expected.hashed:
                message = f"{self.hub.host} gives no hash of {file.name}; only its size can be checked."
                self.reporter.emit(WarningRaised(message))
        return dict(sorted(files.items(), key=lambda item: item[1].expected.size)), commits

    def _list(self, repository: str, revisions: Sequence[str]) -> RepositoryFiles:
        """The files at the first of `revisions` that the repository has."""
        revision, *later_revisions = dict.fromkeys(revisions)
        try:
            return list_repository(self.hub, repository, revision, self.reporter, self.retry)
        except NoRevision:
            if not later_revisions:
                raise
            self.reporter.emit(WarningRaised(f"{repository} no longer has {revision[:12]}, at which this download "
                                             f"started or was tested; it continues with {later_revisions[0][:12]}, "
                                             "and fetches again what differs."))
            return self._list(repository, later_revisions)

    def _write_plan(self, commits: dict[str, str], files: Mapping[str, RemoteFile]) -> int:
        """Write the plan, and delete other files and files with other content; returns the bytes that stay.

        Without files everything is deleted, the plan too.
        """
        plan_before = _Plan.read(self.partial / PLAN)
        plan_files = plan_before.files if plan_before else {}
        expected_files = {path: file.expected for path, file in files.items()}
        kept_bytes = 0

        # Entries in a folder come before it, so that a folder can be removed once it is empty.
        for entry in sorted(self.partial.rglob("*"), reverse=True):
            path = entry.relative_to(self.partial).as_posix()
            if entry.is_dir():
                with suppress(OSError):  # the folder is not empty
                    entry.rmdir()
            elif path not in (PLAN, LOCK):
                size, expected = entry.stat().st_size, expected_files.get(path)
                if expected is None or plan_files.get(path) != expected or size > expected.size:
                    entry.unlink()
                else:
                    kept_bytes += size

        if files:
            plan = _Plan(self.request.variant.name, self.request.wanted_revision, commits, expected_files)
            write_json(self.partial / PLAN, asdict(plan))
        else:
            (self.partial / PLAN).unlink(missing_ok=True)
        return kept_bytes

    def _download(self, files: Mapping[str, RemoteFile]) -> dict[str, ExpectedFile]:
        """Complete each file in `partial`; their sizes and hashes."""
        hashers = {}
        # Bytes on the disk are hashed once, so that each download continues them.
        stored = {path: file for path, file in files.items() if (self.partial / path).is_file()}
        if stored:
            with stage(self.reporter, "check what is here"):
                size = sum((self.partial / path).stat().st_size for path in stored)
                progress = DownloadProgress(self.reporter, size)
                hashers = {path: hash_with_progress(self.partial / path, file.expected, progress.add)
                            for path, file in stored.items()}
        with stage(self.reporter, "download"):
            progress = DownloadProgress(self.reporter, sum(file.expected.size for file in files.values()),
                                        sum(hasher.size for hasher in hashers.values()))
            downloader = Downloader(self.hub, progress, self.retry)
            fetched = {}
            for path, file in files.items():
                (self.partial / path).parent.mkdir(parents=True, exist_ok=True)
                digest = downloader.download(file, self.partial / path, hashers.get(path))
                fetched[path] = ExpectedFile(file.expected.size, digest)
            return fetched

    def _origin(self, record: ModelRecord, path: str) -> RemoteFile:
        """The published file of the hub behind a file of a model; its commit is empty if it is not known."""
        part, name = self.request.variant.origin(path)
        commit = record.revision if part.repository == record.repository else record.companions.get(part.repository, "")
        return RemoteFile(part.repository, commit, name, record.originals.get(path, record.files[path]))


def licence_lines(chosen: ModelVariant) -> tuple[str, ...]:
    """For each licence that a person accepts, its name, the parts that come under it, and its terms."""
    return tuple(
        f"Licence {licence.name} ({licence.title}, {licence.url}): "
        f"{'; '.join(f'{part.what} ({part.repository})' for part in chosen.parts if part.licence == licence)}. "
        f"{licence.terms}" for licence in chosen.licences)


def _first_of_each(part: RepositoryPart, listing: RepositoryFiles) -> dict[str, RemoteFile]:
    """The files of `part` by path: the first of each choice that the repository has."""
    files = {}
    for names in part.files:
        name = next((name for name in names if name in listing.files), None)
        if name is None:
            raise UserError(
                f"{listing.repository} has no {' or '.join(names)} at {listing.commit[:12]}.",
                "Try another --revision or HF_ENDPOINT, or give a folder with the files (--folder PATH; on the page: "
                "Folder on the Model tab).",
            )
        files[part.path(name)] = listing.file(name)
    return files


def _verify(request: DownloadRequest, target: Path, reporter: Reporter) -> tuple[ModelRecord, dict[str, str]]:
    """The record of the model in `target`, which must be the requested one, and the faults of its files by name."""
    record = read_model_record(target)
    hint = "Take another name with --save-as, or move that folder away."
    if record is None:
        raise UserError(f"{target} is there, but it has no {MODEL_RECORD}: Lisan did not make it.", hint)
    if (record.family, record.variant) != (request.family.name, request.variant.name):
        raise UserError(f"{target} holds {record.family} {record.variant}, not {request.family.name} "
                        f"{request.variant.name}.", hint)
    if record.revision and request.wanted_revision not in (record.requested_revision, record.revision):
        raise UserError(f"{target} is {record.revision[:12]} ({record.requested_revision}) of {record.repository}, "
                        f"not {request.wanted_revision!r}.", hint)
    files = dict(record.files)
    # A job may have been killed before it replaced the published file.
    for path, original in record.originals.items():
        if (target / path).is_file() and (target / path).stat().st_size == original.size:
            files[path] = original
    with stage(reporter, "verify"):
        return record, dict(find_faults(target, files, DownloadProgress(reporter, _size(files)).add))


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
    """A file of the user's folder, with its expected size, hash and commit."""

    name: str  # its path in the model folder
    path: Path  # path of the file itself, behind any link
    expected: ExpectedFile
    commit: str = ""
    link: Path | None = None  # the link, whose name ends as that of the file should; None: same as `path`


def import_model(request: DownloadRequest, folder: Path, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `models/NAME` from the files of `folder`; an existing model is verified and repaired."""
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
        # Linked files take no space; copies need as much as the model.
        if not linked:
            check_disk(target.parent, total, "The copy")
        how = "linked" if linked else "copied"
        reporter.emit(Plan((f"{len(files)} files of {folder}, {size_text(total)}, will be {how}.",
                            *licence_lines(request.variant)), {"files": len(files), "bytes": total}))

        # All files are checked before the first is linked or copied.
        checked = _check_files(files, reporter)
        paths = {file.name: file.link or file.path for file in files}
        check = published.check_files(request.variant, checked, paths.__getitem__, request.read_shapes)
        _require_known(request, check)

        with stage(reporter, how), atomic_directory(target) as temporary:
            progress = DownloadProgress(reporter, total)
            for file in files:
                (temporary / file.name).parent.mkdir(parents=True, exist_ok=True)
                _link_or_copy(file.path, temporary / file.name, progress)
            commit, companions = _commits(request, files)
            record = ModelRecord(request.family.name, request.variant.name, request.variant.repository, commit,
                                 request.wanted_revision, checked, companions, licences=request.licences,
                                 accepted_unknown=tuple(file.path for file in check.unknown))
            write_record(temporary / MODEL_RECORD, record)
        return _result(record, target, f"{how} from {folder}, {_comparison(check, files)}", 0)


def _comparison(check: FileCheck, files: Sequence[_LocalFile]) -> str:
    """With what the files of a folder were compared, in words."""
    if check.unknown:
        return check.note
    bare = [file.name for file in files if file.name in check.unlisted and not file.expected.hashed]
    return f"not verified: no published hash is known of {', '.join(bare)}" if bare else "verified"


def _require_known(request: DownloadRequest, check: FileCheck) -> None:
    """Raise `UnknownFilesError` for the files that are not the published ones, and were not accepted by name."""
    refused = [file for file in check.unknown if file.path not in request.accept_unknown]
    if refused:
        raise UnknownFilesError(f"{request.family.title} ({request.variant.title})", refused)


def _repair_from_folder(request: DownloadRequest, folder: Path, target: Path, reporter: Reporter) -> Result:
    record, faults = _verify(request, target, reporter)
    if not faults:
        return _result(record, target, "already there, verified", 0)
    files = [_LocalFile(path, (_locate(folder, *request.variant.origin(path)) or folder / path).resolve(),
                        record.originals.get(path, record.files[path])) for path in faults]
    absent = [file.name for file in files if not file.path.is_file()]
    if absent:
        raise UserError(" ".join(faults.values()), f"{folder} has no {', '.join(absent)}; give one that has.")

    # Everything is checked before the first file is replaced.
    _check_files(files, reporter)
    for file in files:
        (target / file.name).parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(target / file.name) as temporary:
            _link_or_copy(file.path, temporary, DownloadProgress(reporter, file.expected.size))
        reporter.emit(WarningRaised(f"{faults[file.name]} It was replaced."))
    return _result(record, target, f"already there, {len(faults)} damaged files replaced", 0)


def _find_files(request: DownloadRequest, folder: Path) -> list[_LocalFile]:
    """The variant's files in `folder`; `UserError` names all that are missing."""
    record = read_model_record(folder)
    located, absent = [], []
    for part in request.variant.parts:
        for names in part.files:
            # Published names differ between versions; the first that exists counts.
            paths = [(name, _locate(folder, part, name)) for name in names]
            candidates = [(name, path) for name, path in paths if path]
            if candidates:
                name, path = candidates[0]
                located.append(_describe(folder, part.path(name), path, record))
            else:
                absent.append(" or ".join(part.path(name) for name in names))
    if absent:
        raise UserError(
            f"{folder} has no {', no '.join(absent)}, which {request.family.title} ({request.variant.title}) needs.",
            "Give the folder with all files, or another --variant; or leave --folder out to download them.",
        )
    return located


def _locate(folder: Path, part: RepositoryPart, name: str) -> Path | None:
    """A part's file in a folder that a person gives: at its path, or in a cache of `huggingface_hub` in `hf_cache`.

    Such a cache is what the published code of IndexTTS2 made until 2026.
    """
    cache = folder / "hf_cache" / f"models--{part.repository.replace('/', '--')}" / "snapshots"
    candidates = [folder / part.path(name), *(sorted(cache.glob(f"*/{name}")) if part.path(name) != name else ())]
    return next((path for path in candidates if path.is_file()), None)


def _describe(folder: Path, name: str, link: Path, record: ModelRecord | None) -> _LocalFile:
    """The file `link` for the path `name`, with its size, and its hash and commit if they are known."""
    path = link.resolve()
    if record and name in record.files:
        return _LocalFile(name, path, record.files[name], record.revision, link)
    commit = digest = ""

    # The hub's library writes the commit and the hash beside its downloads.
    with suppress(OSError, ValueError, IndexError):
        metadata = folder / ".cache/huggingface/download" / f"{name}.metadata"
        lines = foreign.read_bytes(metadata, 1 << 16).decode("utf-8").splitlines()
        commit, digest = lines[0].strip(), lines[1].strip()
    if not digest and link.is_symlink() and path.parent.name == "blobs":  # snapshots/COMMIT/NAME -> blobs/HASH
        commit, digest = link.parent.name, path.name
    expected = ExpectedFile(path.stat().st_size, digest if _SHA256.fullmatch(digest) else "",
                            digest if _SHA1.fullmatch(digest) else "")
    return _LocalFile(name, path, expected, commit if _SHA1.fullmatch(commit) else "", link)


def _check_files(files: list[_LocalFile], reporter: Reporter) -> dict[str, ExpectedFile]:
    """Sizes and hashes of the files; `UserError` names the first file that is cut off or has another hash."""
    with stage(reporter, "check"):
        progress = DownloadProgress(reporter, sum(file.expected.size for file in files))
        checked = {}
        for file in files:
            # The source is a descriptor, so the progress names the file itself.
            def add(size: int, _source: str, name: str = file.path.name) -> None:
                progress.add(size, name)

            with confinement.verified(file.path) as source:
                hasher = hash_with_progress(Path(source), file.expected, add)
                fault = hasher.fault() or _format_fault(Path(source), file.name)
            if fault:
                raise UserError(f"{file.path} is damaged: {fault}.", "Get that file again, or download the model.")
            checked[file.name] = ExpectedFile(hasher.size, hasher.sha256)
        return checked


def _format_fault(path: Path, name: str) -> str:
    """How a file contradicts its own format; empty when it does not. Its tensors are not read."""
    try:
        # The file is 8 bytes of length, a header in JSON and the tensors.
        if name.endswith(".safetensors"):
            size = path.stat().st_size
            with open(path, "rb") as file:
                length = int.from_bytes(file.read(8), "little")
                if not 0 < length <= size - 8:
                    return f"its header should have {length} bytes, and the file has {size}"
                header = foreign.parse_json(file.read(length), path)
            # The last tensor ends where the file ends.
            ends = [int(entry["data_offsets"][1]) for key, entry in header.items() if key != "__metadata__"]
            needed = 8 + length + max(ends, default=0)
            return f"it has {size} bytes, and its header says {needed}" if size != needed else ""
        if name.endswith((".pt", ".pth", ".bin")) and not is_pytorch_file(path):
            return "it is no whole PyTorch file"
        if name.endswith(".json"):
            foreign.read_json(path)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"it cannot be read ({type(error).__name__})"
    return ""


def same_disk(path: Path, folder: Path) -> bool:
    """Whether a hard link of `path` can lie in `folder`."""
    return path.stat().st_dev == folder.stat().st_dev


def _link_or_copy(source: Path, target: Path, progress: DownloadProgress) -> None:
    with confinement.verified(source) as opened:
        with suppress(OSError):  # another disk, a disk without links, or a file of another owner
            os.link(source, target)
            # The name may have been given to another file meanwhile.
            if os.path.samestat(os.stat(opened), os.lstat(target)):
                progress.add(os.stat(opened).st_size, target.name)
                return
            target.unlink()
        with open(opened, "rb") as reading, open(target, "wb") as writing:
            while True:
                block = reading.read(BLOCK_BYTES)
                if not block:
                    return
                writing.write(block)
                progress.add(len(block), target.name)


def _commits(request: DownloadRequest, files: list[_LocalFile]) -> tuple[str, dict[str, str]]:
    """The commits of the variant's repository and of the others, if all files from a repository agree on one."""
    commit_of = {}
    for part in request.variant.parts:
        paths = set(map(part.path, chain.from_iterable(part.files)))
        commits = {file.commit for file in files if file.name in paths}
        commit = commits.pop() if len(commits) == 1 else ""
        if commit:
            commit_of[part.repository] = commit
    return commit_of.pop(request.variant.repository, ""), commit_of
