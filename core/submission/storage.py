"""What the workspace holds: sizes, what depends on what, and a bin for what is deleted. Never loads torch.

A deletion is one rename, from `datasets/NAME` to `datasets/.bin/STAMP.NAME`: it happened or it did not, whatever is
killed, and the bin of a folder that is a link to another disk lies on that disk. Emptying removes for good.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from config.errors import UserError, join_names
from core.dataset.languages import split_names
from core.jobs import checkpoint_names
from core.jobs.events import Stopped, append_event
from core.jobs.job import load_job
from core.jobs.locks import FileLock, locked
from core.jobs.state import JobBoard, JobReader, JobState
from core.jobs.verbs import RUN_VERBS, VERBS
from core.library import certificate, checkpoints, learning, records
from core.library.records import CheckpointRecord, ExportRecord, Origin
from core.sources import recognisers
from core.submission import requirements
from core.workspace import BIN, KINDS, Reference, Workspace
from data.durable_files import fsync_path

NEEDS, RESUMES, MADE_FROM = "needs it", "needs it to resume and for its certificate", "was made from it"
"""How an item may depend on another; what was made from another item holds a copy and works without it."""
CHECKPOINT = "checkpoint"
"""The kind of one checkpoint of a run, `run:ID@STEP`; its bin is in the run's folder, and goes with the run."""
_CHECKPOINT_NAME = re.compile(r"([^@/]+)@(\d{1,12})")
_UPLOADS = Path(KINDS["upload"]).name
_EMPTYING = ".emptying-"
_STAMP_FORMAT, _STAMP_PARTS = "%Y%m%d-%H%M%S", 2  # then nanoseconds
_LOCK_TIMEOUT_S = 10.0
_BLOCK = 512  # bytes, of `st_blocks` (stat(2))
_REFERENCES = {"base": "model", "codec": "model", "run": "run", "export": "export", "extension": "extension",
               "segments": "segments"}


@dataclass(frozen=True)
class Item:
    """One folder or file of the workspace that can be deleted by itself."""

    kind: str
    name: str

    @property
    def reference(self) -> str:
        return f"{'run' if self.kind == CHECKPOINT else self.kind}:{self.name}"

    @property
    def run(self) -> str:
        """Of a checkpoint the id of its run; else empty."""
        return self.name.partition("@")[0] if self.kind == CHECKPOINT else ""

    def folder(self, workspace: Workspace) -> Path:
        """The folder that holds it, and the bin for it."""
        if self.kind == CHECKPOINT:
            return workspace.runs / self.run / checkpoint_names.CHECKPOINTS
        return workspace.path / KINDS[self.kind]

    def path(self, workspace: Workspace) -> Path:
        """Where it lies; `UserError` if its name, which a record of others may state, is no name of an entry."""
        if not _is_entry(self.name):
            raise UserError(f"{self.reference[:200]!r} names nothing that is stored: {self.name[:200]!r} is a path.",
                            "The record that names it was tampered with: do not use it.")
        if self.kind == CHECKPOINT:
            return checkpoint_names.folder_of(workspace.runs / self.run, int(self.name.partition("@")[2]))
        return self.folder(workspace) / self.name


@dataclass(frozen=True)
class BinEntry:
    """A deleted item; `stamp` tells it from others of its name."""

    item: Item
    stamp: str  # YYYYMMDD-HHMMSS-nanoseconds, local time

    @property
    def reference(self) -> str:
        return f"{self.item.reference}@{self.stamp}"

    @property
    def deleted(self) -> float:
        """When, in seconds since 1970."""
        return time.mktime(time.strptime(self.stamp.rpartition("-")[0], _STAMP_FORMAT))

    def path(self, workspace: Workspace) -> Path:
        return self.item.folder(workspace) / BIN / f"{self.stamp}.{self.item.path(workspace).name}"


@dataclass(frozen=True)
class Usage:
    """What files take on the disk, in bytes as `du` counts them: blocks, and a file with several links once."""

    size: int = 0
    # The part of it that removing the item frees: files that have no other link.
    freed: int = 0
    changed: float = 0.0  # when the newest entry directly in it changed, seconds since 1970


@dataclass(frozen=True)
class Dependency:
    """`user` depends on `item` in the way `how` says."""

    user: Item
    item: Item
    how: str


@dataclass(frozen=True)
class Inventory:
    """Everything in the workspace at one moment."""

    items: Mapping[Item, Usage]
    deleted: Mapping[BinEntry, Usage]
    total: int  # bytes; what several items share counts once
    dependencies: Sequence[Dependency]
    seconds: float  # time that measuring took
    by_item: Mapping[Item, Sequence[Dependency]] = field(init=False)

    def __post_init__(self) -> None:
        dependents = defaultdict(list)
        for dependency in self.dependencies:
            dependents[dependency.item].append(dependency)
        object.__setattr__(self, "by_item", dependents)


def parse(reference: str) -> Item:
    """The item that `KIND:NAME` names; `UserError` where it is none. Whether it is there is not looked at."""
    kind, _, name = reference.partition(":")
    kind = "model" if kind == "base" else kind
    if kind == "run" and _CHECKPOINT_NAME.fullmatch(name) and not name.startswith("."):
        return Item(CHECKPOINT, name)
    if kind not in KINDS or not _is_entry(name) or (kind, name) == ("cache", _UPLOADS):
        raise UserError(f"{reference!r} names nothing that is stored.",
                        f"Write KIND:NAME, such as run:first, or run:first@400 for one checkpoint of a run. The kinds: "
                        f"{', '.join(KINDS)}.")
    return Item(kind, name)


def _is_entry(name: str) -> bool:
    """Whether `name` can be that of an entry of a folder, other than the bin."""
    return bool(name) and "/" not in name and "\0" not in name and name not in (".", "..", BIN)


def list_items(workspace: Workspace) -> Iterator[Item]:
    """All items, by kind and name. Names that begin with a dot are unfinished work of a job, or its remains."""
    for kind, folder in KINDS.items():
        for name in sorted(_names(workspace.path / folder)):
            if (kind, name) != ("cache", _UPLOADS):
                yield Item(kind, name)


def list_deleted(workspace: Workspace) -> list[BinEntry]:
    """What is in the bin, the last deleted first."""
    entries = []
    for kind, run, folder in _bins(workspace):
        for entry in _names(folder):
            stamp, _, name = entry.partition(".")
            if kind == CHECKPOINT:
                step = name.removeprefix("step-")
                name = f"{run}@{int(step)}" if step.isascii() and step.isdigit() and len(step) < 13 else ""
            if not name or stamp.count("-") != _STAMP_PARTS:
                continue
            # What has a stamp that is no time, or a name that no item has, was put there by others, and stays.
            with suppress(ValueError, OverflowError, UserError):
                deleted = BinEntry(Item(kind, name), stamp)
                if deleted.deleted and deleted.path(workspace).name == entry:
                    entries.append(deleted)
    return sorted(entries, key=lambda entry: entry.stamp, reverse=True)


def take_inventory(workspace: Workspace, states: Sequence[JobState] | None = None) -> Inventory:
    """Measure everything, and find what depends on what. Takes about a second for 100,000 files."""
    began = time.monotonic()
    seen: set[tuple[int, int]] = set()
    total = 0

    def measured(path: Path) -> Usage:
        nonlocal total
        usage, unseen = _measure(path, seen)
        total += unseen
        return usage

    items = {item: measured(item.path(workspace)) for item in list_items(workspace)}
    # Deleted checkpoints lie in the folder of their run, which is measured already.
    deleted = {entry: _measure(entry.path(workspace), set())[0] if entry.item.run else measured(entry.path(workspace))
               for entry in list_deleted(workspace)}
    known_states = JobBoard(workspace).states() if states is None else states
    return Inventory(items, deleted, total, find_dependencies(workspace, known_states), time.monotonic() - began)


def measure_checkpoint(workspace: Workspace, item: Item) -> Usage | None:
    """What one checkpoint takes, which an inventory counts with its run; None if it does not exist."""
    path = item.path(workspace)
    return _measure(path, set())[0] if path.is_dir() else None


def _measure(path: Path, seen: set[tuple[int, int]]) -> tuple[Usage, int]:
    """What `path` takes, and how much of that is not among the files with several links in `seen`, which grows."""
    try:
        about = path.lstat()
    except OSError:
        return Usage(), 0

    files, size, changed = [], 0, about.st_mtime
    if stat.S_ISDIR(about.st_mode):
        for folder, status in _walk(str(path)):
            if stat.S_ISDIR(status.st_mode):
                size += status.st_blocks * _BLOCK
            else:
                files.append(status)
            if folder == str(path):
                changed = max(changed, status.st_mtime)
        size += about.st_blocks * _BLOCK
    else:
        files.append(about)

    # A file with several links takes space once, and frees it only with its last link.
    links: dict[tuple[int, int], list[int]] = {}  # count of links, count of those here, bytes
    for file in files:
        if file.st_nlink == 1:
            size += file.st_blocks * _BLOCK
        else:
            links.setdefault((file.st_dev, file.st_ino), [file.st_nlink, 0, file.st_blocks * _BLOCK])[1] += 1

    unseen = freed = size
    for key, (link_count, here_count, count) in links.items():
        size += count
        freed += count if here_count == link_count else 0
        unseen += 0 if key in seen else count
        seen.add(key)
    return Usage(size, freed, changed), unseen


def _walk(top: str) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below `top`, with its folder, links not followed; what vanishes or may not be read is left out."""
    pending = [top]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as entries:
                children = list(entries)
        except OSError:
            continue
        for entry in children:
            with suppress(OSError):
                yield folder, entry.stat(follow_symlinks=False)
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)


def find_dependencies(workspace: Workspace, states: Sequence[JobState]) -> list[Dependency]:
    """What each extension, training, export and job that speaks depends on. A damaged record says nothing.

    Neither does a name in a record that is a path: what others wrote names nothing outside of the workspace.
    """
    dependencies: list[Dependency] = []
    # The base model of each extension.
    models: dict[str, str] = {}
    for name in workspace.list_extensions():
        with suppress(UserError):
            record = records.read_extension(workspace.extension(name))
            user, models[name] = Item("extension", name), record.origin.model
            dependencies.append(Dependency(user, Item("model", record.origin.model), NEEDS))
            # An imported finetune has no tokenizer of the workspace.
            if record.tokenizer:
                dependencies.append(Dependency(user, Item("tokenizer", record.tokenizer), MADE_FROM))
            dependencies += _of_earlier_trainings(user, record.origin)

    for name in workspace.list_exports():
        with suppress(UserError):
            exported = records.read_export_record(workspace.exports / name)
            dependencies += _of_export(Item("export", name), exported)

    # Jobs that speak used the held-out clips of the model's dataset.
    datasets = {f"run:{state.id}": str(state.job.settings.get("dataset", "")) for state in states
                if state.verb in RUN_VERBS}
    datasets |= {link.user.reference: link.item.name for link in dependencies if link.user.kind == "export"
                 and link.item.kind == "dataset"}

    for state in states:
        if state.verb in RUN_VERBS:
            dependencies += _of_training(state, models)
        elif state.verb in ("compare", "synthesize", "evaluate"):
            dependencies += _of_speech(state, datasets)
    return [dependency for dependency in dependencies if _is_entry(dependency.item.name)]


def _of_speech(state: JobState, datasets: Mapping[str, str]) -> Iterator[Dependency]:
    """What a comparison, a synthesis or an evaluation took its models, sentences and recordings from."""
    user, settings = Item("run", state.id), state.job.settings
    several = settings.get("models")
    names = [settings.get("base"), settings.get("finetuned"), settings.get("voice_model"),
             *(several if isinstance(several, list | tuple) else ())]
    references = [Reference.parse(str(name or "")) for name in names]
    models = {f"{kind}:{name}" for kind, name, *_ in references if kind in ("base", "run", "export")}
    used = {str(settings.get("dataset") or ""), *(datasets.get(name, "") for name in models)} - {""}
    for reference in sorted(models | {f"dataset:{name}" for name in used}):
        with suppress(UserError):
            yield Dependency(user, parse(reference), MADE_FROM)


def _of_export(user: Item, record: ExportRecord) -> Iterator[Dependency]:
    yield Dependency(user, Item("model", record.origin.model), MADE_FROM)
    yield Dependency(user, Item("run", record.run), MADE_FROM)
    if record.dataset:
        yield Dependency(user, Item("dataset", record.dataset), MADE_FROM)
    yield from _of_earlier_trainings(user, record.origin)


def _of_earlier_trainings(user: Item, origin: Origin) -> Iterator[Dependency]:
    for training in origin.earlier_trainings:
        with suppress(UserError):
            yield Dependency(user, parse(training.source.partition("@")[0]), MADE_FROM)


def _of_training(state: JobState, models: Mapping[str, str]) -> Iterator[Dependency]:
    user, settings = Item("run", state.id), state.job.settings
    # An import makes an extension of its own name.
    own_name = state.id if state.verb == "import_model" else ""
    extension, scope = str(settings.get("extension", own_name)), settings.get("scope")
    model = models.get(extension, "")
    # If the extension is gone, a checkpoint still names its model.
    if not model:
        for checkpoint in reversed(state.checkpoints):
            with suppress(UserError):
                path = state.job.directory / checkpoint.path / records.CHECKPOINT
                model = records.read_record(path, CheckpointRecord).origin.model
                break
    if model:
        yield Dependency(user, Item("model", model), NEEDS)

    # A resumed training reads its data again; only scope `full` replays datasets.
    replayed = split_names(str(settings.get("replay_datasets", ""))) if scope == "full" else []
    for kind, name in (("extension", extension), *(("dataset", data) for data in (settings.get("dataset"), *replayed))):
        if name:
            yield Dependency(user, Item(kind, str(name)), RESUMES)
    recogniser = str(settings.get("recogniser") or "")
    if "/" in recogniser and not recogniser.startswith("/"):
        yield Dependency(user, Item("recogniser", recognisers.folder_name(recogniser)), RESUMES)
    start = str(settings.get("init_from") or "")
    if start:
        with suppress(UserError):
            yield Dependency(user, parse(start.partition("@")[0]), MADE_FROM)


def in_use(workspace: Workspace, states: Sequence[JobState],
           dependencies: Sequence[Dependency] | None = None) -> dict[Item, str]:
    """Items that living jobs read, write or wait for, and all that those need; with the id of such a job."""
    living = [state for state in states if state.alive]
    if not living:
        return {}
    needed = defaultdict(list)
    for dependency in find_dependencies(workspace, states) if dependencies is None else dependencies:
        if dependency.how != MADE_FROM:
            needed[dependency.user].append(dependency.item)
    users: dict[Item, str] = {}
    for state in living:
        pending = [Item("run", state.id), *(Item("run", name) for name in state.job.after), *_named(workspace, state)]
        while pending:
            item = pending.pop()
            if item not in users:
                users[item] = state.id
                pending += needed[item]
    return users


def _named(workspace: Workspace, state: JobState) -> Iterator[Item]:
    """What the options of a job name: needs, what it makes, references in any option, paths in the workspace."""
    verb, settings = VERBS[state.verb], state.job.settings

    # The options name artefacts by kind.
    with suppress(UserError):
        for need in requirements.needs(state.verb, state.job.options()):
            if need.kind == "recogniser":
                yield Item("recogniser", recognisers.folder_name(need.name))
            else:
                kind = "segments" if need.kind == "transcripts" else need.kind
                if kind in KINDS and ":" not in need.name:
                    yield Item(kind, need.name)
                # The name may also be one of a model to build upon.
                if need.field == "model" and need.name not in workspace.list_models():
                    yield from (Item(other, need.name) for other in ("export", "run"))

    # What the job makes is in use before it exists.
    for name, kind in verb.makes.items():
        value = settings.get(name)
        if value:
            yield Item("segments" if kind == "transcripts" else kind, str(value))

    # Any option may hold a reference or a path in the workspace.
    for text in _texts(settings.values()):
        reference = Reference.parse(text)
        if reference.kind in _REFERENCES and reference.name and "/" not in text:
            yield Item(_REFERENCES[reference.kind], reference.name)
        elif text.startswith(f"{workspace.path}/"):
            inside = text.removeprefix(f"{workspace.path}/")
            for kind, folder in KINDS.items():
                if inside.startswith(f"{folder}/"):
                    yield Item(kind, inside.removeprefix(f"{folder}/").partition("/")[0])


def _texts(values: Iterable[object]) -> Iterator[str]:
    for value in values:
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            yield from _texts(value.values())
        elif isinstance(value, list | tuple):
            yield from _texts(value)


def delete(workspace: Workspace, item: Item, board: JobBoard | None = None,
           dependencies: Sequence[Dependency] | None = None) -> BinEntry:
    """Move `item` into the bin; `UserError` if it does not exist or a job that is alive uses it.

    `dependencies`: the result of `find_dependencies`, if several items are deleted; the jobs' states are read again.
    """
    board = board or JobBoard(workspace)
    with _guard(workspace):
        path = item.path(workspace)
        if path.name not in _names(path.parent):
            present = ([f"{item.run}@{step}" for step in checkpoint_names.checkpoint_steps(workspace.runs / item.run)]
                       if item.run else [stored.name for stored in list_items(workspace) if stored.kind == item.kind])
            raise UserError(f"There is no {item.kind} named {item.name!r} in {path.parent} "
                            f"(there: {join_names(present)}).",
                            "List what is stored: Storage tab, or python -m scripts storage list.")
        if item.run:
            _check_unpinned(workspace, item)
        earlier_states = board.states()
        check_unused(workspace, item, earlier_states, dependencies)

        # A run that is being written cannot move, so its lock is acquired for the move.
        run_dir = workspace.runs / item.run if item.run else path
        lock = None
        if item.kind in ("run", CHECKPOINT) and run_dir.is_dir():
            lock = FileLock.acquire(run_dir / "lock")
            if lock is None:
                raise _used(item, run_dir.name)
        try:
            entry = _move_to_bin(workspace, item)
        finally:
            if lock:
                lock.release()

        # A job may have been queued between the check and the move: then the item goes back.
        try:
            after = board.states()
            if {state.id for state in after if state.alive} - {state.id for state in earlier_states if state.alive}:
                # A job was queued meanwhile.
                check_unused(workspace, item, after)
        except UserError:
            _move(entry.path(workspace), path)
            raise
        if item.run:
            checkpoints.rank_existing(run_dir)
        return entry


def _move_to_bin(workspace: Workspace, item: Item) -> BinEntry:
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    entry = BinEntry(item, f"{time.strftime(_STAMP_FORMAT, time.localtime(seconds))}-{nanoseconds:09d}")
    entry.path(workspace).parent.mkdir(exist_ok=True)
    _move(item.path(workspace), entry.path(workspace))
    return entry


def _check_unpinned(workspace: Workspace, item: Item) -> None:
    """Raise `UserError` if the checkpoint `item` was pinned or chosen: it stays until that is undone."""
    for name, step in checkpoint_names.pinned_names(workspace.runs / item.run).items():
        if item.name != f"{item.run}@{step}":
            continue
        if name == checkpoint_names.CHOICE:
            raise UserError(f"{item.reference} is the checkpoint that you chose for run:{item.run}.",
                            f"Choose another one first: python -m scripts pin_checkpoint {item.run} --use STEP.")
        raise UserError(f"{item.reference} is pinned as {name!r}.", "Unpin it first, then delete it.")


def return_to_checkpoint(workspace: Workspace, run: str, step: int, board: JobBoard | None = None) -> list[BinEntry]:
    """Let the training `run` resume from its checkpoint of `step`: later checkpoints go to the bin.

    A certificate and reports of later steps are removed, because the steps are computed again. `UserError` if a job
    uses the run, or a later checkpoint is pinned; nothing is changed then.
    """
    run_dir, item = workspace.run(run), Item("run", run)
    state = JobReader(load_job(workspace, run)).state()
    if state.status in ("created", "skipped"):
        raise UserError(f"{run} has not run yet.", "Start it.")
    with _guard(workspace):
        check_unused(workspace, item, (board or JobBoard(workspace)).states())
        lock = FileLock.acquire(run_dir / "lock")
        if lock is None:
            raise _used(item, run)
        try:
            later = [Item(CHECKPOINT, f"{run}@{other}") for other in checkpoint_names.checkpoint_steps(run_dir)
                     if other > step]
            for checkpoint in later:
                _check_unpinned(workspace, checkpoint)

            # From the last one back, so that a kill leaves a run that resumes from the last that is there.
            entries = [_move_to_bin(workspace, checkpoint) for checkpoint in reversed(later)]
            ranking = checkpoints.read_ranking(run_dir).up_to(step)
            checkpoints.write_ranking(run_dir, ranking.with_best_of(checkpoint_names.checkpoint_steps(run_dir)))
            learning.write_learning(run_dir, learning.read_learning(run_dir).up_to(step))
            # There may be no certificate, or a damaged one.
            with suppress(UserError):
                if certificate.read(run_dir / certificate.CERTIFICATE).step > step:
                    (run_dir / certificate.CERTIFICATE).unlink()
            append_event(state.job.journal, Stopped(f"Returned to the checkpoint of step {step}."))
        finally:
            lock.release()
    return entries


def check_unused(workspace: Workspace, item: Item, states: Sequence[JobState],
                 dependencies: Sequence[Dependency] | None = None) -> None:
    """Raise `UserError` where a living job uses `item`; caches, uploads in transit and remains serve any job."""
    used = in_use(workspace, states, dependencies)
    subject = Item("run", item.run) if item.run else item
    if subject in used:
        raise _used(item, used[subject])
    if used and (item.kind == "cache" or item.name.startswith(".")):
        raise _used(item, next(iter(used.values())))


def _used(item: Item, job: str) -> UserError:
    return UserError(f"{item.reference} is in use: the job {job} runs or waits and needs it.",
                     "Stop that job, or wait until it has ended; then delete.")


def restore(workspace: Workspace, reference: str) -> Item:
    """Take `KIND:NAME` (the one that was deleted last) or `KIND:NAME@STAMP` out of the bin, to where it was."""
    with _guard(workspace):
        entry = find_deleted(workspace, reference)
        target = entry.item.path(workspace)
        if os.path.lexists(target):
            raise UserError(f"{entry.item.kind.capitalize()} {entry.item.name!r} is there again; nothing is written "
                            "over.",
                            f"Delete that one first ({entry.item.reference}), then restore {entry.reference}.")
        target.parent.mkdir(exist_ok=True)
        _move(entry.path(workspace), target)
        if entry.item.run:
            checkpoints.rank_existing(workspace.runs / entry.item.run)
        return entry.item


def find_deleted(workspace: Workspace, reference: str) -> BinEntry:
    """The entry of the bin that `KIND:NAME` or `KIND:NAME@STAMP` names; `UserError` where there is none."""
    entries = list_deleted(workspace)
    for entry in entries:
        if reference in (entry.reference, entry.item.reference):
            return entry
    raise UserError(f"{reference!r} is not in the bin (there: {join_names([item.reference for item in entries])}).",
                    "List it: Storage tab, or python -m scripts storage list.")


def empty_bin(workspace: Workspace, reference: str = "") -> int:
    """Remove for good one entry, or all; the number of entries.

    An entry is renamed first, so that a half of it can never be restored; remains of a killed emptying are removed.
    """
    with _guard(workspace):
        entries = [find_deleted(workspace, reference)] if reference else list_deleted(workspace)
        for entry in entries:
            path = entry.path(workspace)
            path.rename(path.with_name(f"{_EMPTYING}{path.name}"))
    failed: list[OSError] = []
    for _kind, _run, folder in _bins(workspace):
        for name in _names(folder):
            path = folder / name
            if name.startswith(_EMPTYING):
                # Only a link itself is removed, not its target.
                try:
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                except OSError as error:
                    failed.append(error)
    if failed:
        raise UserError(f"The bin could not be emptied: {failed[0]}.",
                        "Change the permissions of that file, then empty the bin again.")
    return len(entries)


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError as error:
        raise UserError(f"{source} could not be moved to {target}: {error.strerror or error}.",
                        "Change the permissions of these folders; nothing was changed.") from error
    for folder in (source.parent, target.parent):
        fsync_path(folder)


def _bins(workspace: Workspace) -> Iterator[tuple[str, str, Path]]:
    """Each bin: the kind of its items, of checkpoints the id of their run, and its folder."""
    for kind, folder in KINDS.items():
        yield kind, "", workspace.path / folder / BIN
    for run in _names(workspace.runs):
        saved = workspace.runs / run / checkpoint_names.CHECKPOINTS
        if not saved.is_symlink():  # a run that others made may name any place
            yield CHECKPOINT, run, saved / BIN


def _names(folder: Path) -> list[str]:
    """Names in `folder` but that of its bin; none where it is not there."""
    try:
        return [name for name in os.listdir(folder) if name != BIN]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _guard(workspace: Workspace) -> AbstractContextManager[None]:
    return locked(workspace.path / ".storage.lock", _LOCK_TIMEOUT_S, "Something else is being deleted or restored.",
                  "Try again in a moment.")
