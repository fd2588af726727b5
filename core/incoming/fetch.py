"""A family's variant from the hub into `models/NAME`, whole or not there. Never loads torch.

What has come lies in `models/.NAME.partial`, each file under its own name and as long as it
got, beside `plan.json`: the commits that the download is pinned to and what each file should
be. A later try, by whatever job, takes up from there. A model that is there already is
checked, and its damaged files are fetched anew at the commit it came from.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from config.errors import UserError
from core.incoming.hub import Hub, Listing, NoRevision, RemoteFile
from core.incoming.transfer import Fetcher, Meter, Patience, ask
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.locks import FileLock
from core.jobs.reporter import Reporter, size_text, stage
from core.library.catalog import Family, Part, Variant
from core.library.model_record import (
    RECORD,
    Expected,
    Hasher,
    ModelRecord,
    find_faults,
    hash_file,
    read_record,
    write_record,
)
from core.workspace import Workspace, resolve_inside

PLAN, LOCK = "plan.json", "lock"
SPARE_BYTES = 100_000_000  # left for journals and the system


@dataclass(frozen=True)
class Order:
    """What is wanted: a variant at a revision of its own repository, as `models/NAME`."""

    family: Family
    variant: Variant
    name: str
    asked: str = "main"
    home: Path | None = None  # where it is to lie; None is `models`


def from_hub(order: Order, hub: Hub, workspace: Workspace, reporter: Reporter,
             patience: Patience = Patience()) -> Result:  # noqa: B008  a frozen value
    """Put the model into `models/NAME`; one that is there is verified and mended."""
    target = resolve_inside(order.home or workspace.models, order.name)
    try:
        with partial_folder(target) as aside:
            if target.is_dir():
                return _mend(order, target, aside, hub, reporter, patience)
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


def check_is(order: Order, target: Path) -> ModelRecord:
    """The record of the model in `target`, which must be what is wanted."""
    record = read_record(target)
    hint = "Take another name with --save-as, or move that folder away."
    if record is None:
        raise UserError(f"{target} is there, but it has no {RECORD}: Lisan did not make it.", hint)
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
    files: dict[str, Expected]

    def write(self, path: Path) -> None:
        aside = path.with_name(f".{path.name}")
        aside.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")
        os.replace(aside, path)

    @classmethod
    def read(cls, path: Path) -> _Plan | None:
        """The plan of an earlier try; None when there is none that can be read."""
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
            files = {str(name): Expected(**file) for name, file in values.pop("files").items()}
            return cls(**values, files=files)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


def _get_whole(order: Order, target: Path, aside: Path, hub: Hub, reporter: Reporter, patience: Patience) -> Result:
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


def _announce(order: Order, files: list[RemoteFile], total: int, here: int) -> Plan:
    own = order.variant.repository
    commit = next(file.commit for file in files if file.repository == own)
    kept = f", of which {size_text(here)} are here already" if here else ""
    line = f"{own} at {commit[:12]} ({order.family.licence}): {len(files)} files, {size_text(total)}{kept}."
    return Plan((line,), {"files": len(files), "bytes": total, "bytes_here": here})


def _look_up(order: Order, before: _Plan | None, hub: Hub, reporter: Reporter,
             patience: Patience) -> tuple[list[RemoteFile], dict[str, str]]:
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
            reporter.emit(WarningRaised(f"{hub.host} tells no hash of {file.name}; only its size can be checked."))
    return sorted(files, key=lambda file: file.expected.size), commits


def _list(repository: str, revision: str, newest: str, hub: Hub, reporter: Reporter, patience: Patience) -> Listing:
    try:
        return ask(lambda: hub.list(repository, revision, patience.stall_s), reporter, patience, repository)
    except NoRevision:
        if revision == newest:
            raise
        reporter.emit(WarningRaised(f"{repository} has no {revision[:12]} any more, with which this download began; "
                             f"it goes on with {newest}, and fetches anew what differs."))
        return ask(lambda: hub.list(repository, newest, patience.stall_s), reporter, patience, repository)


def _chosen(part: Part, listing: Listing) -> Iterator[RemoteFile]:
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


def _keep(aside: Path, before: Mapping[str, Expected], files: Mapping[str, Expected]) -> None:
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
               patience: Patience) -> dict[str, Expected]:
    """Complete each file in `aside`; what they are."""
    begun = _hash_what_is_there(files, aside, reporter)
    with stage(reporter, "download"):
        total = sum(file.expected.size for file in files)
        fetcher = Fetcher(hub, Meter(reporter, total, sum(hasher.size for hasher in begun.values())), patience)
        return {file.name: Expected(file.expected.size, fetcher.fetch(file, aside / file.name, begun.get(file.name)))
                for file in files}


def _hash_what_is_there(files: list[RemoteFile], aside: Path, reporter: Reporter) -> dict[str, Hasher]:
    there = [file for file in files if (aside / file.name).is_file()]
    if not there:
        return {}
    with stage(reporter, "check what is here"):
        meter = Meter(reporter, sum((aside / file.name).stat().st_size for file in there))
        return {file.name: hash_file(aside / file.name, file.expected, meter.add) for file in there}


def _mend(order: Order, target: Path, aside: Path, hub: Hub, reporter: Reporter, patience: Patience) -> Result:
    """Check each file of `target`, and fetch those that are damaged at the commit that the model came from."""
    record = check_is(order, target)
    with stage(reporter, "verify"):
        faults = find_faults(target, record.files, Meter(reporter, total_bytes(record)).add)
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
        reporter.emit(WarningRaised(f"{fault} It was replaced."))
    _empty(aside)
    fetched = sum(file.expected.size for file in files)
    return result(record, target, f"already there, {len(faults)} damaged files replaced", fetched)


def _origin(order: Order, record: ModelRecord, name: str) -> RemoteFile:
    """Where the file `name` of a model came from; the commit is empty where that is not known."""
    repository = next((part.repository for part in order.variant.parts
                       if any(name in names for names in part.files)), record.repository)
    commit = record.revision if repository == record.repository else record.companions.get(repository, "")
    return RemoteFile(repository, commit, name, record.files[name])


def _take_name(aside: Path, target: Path, record: ModelRecord) -> None:
    """Turn the whole set in `aside` into the model."""
    write_record(aside, record)
    for name in (*record.files, RECORD):
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
