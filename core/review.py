"""What a person decides about the clips of a dataset.

Decisions are lines that are added to `review.jsonl` beside the manifest; the last one about a clip counts, and none is
ever taken out. The dataset itself stays as it is: the verb `revise` writes another one, whose `excluded.jsonl` names
what was left out and why, so that it can be taken in again. Never loads torch.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from threading import Lock

from config.errors import UserError
from core.dataset.clip_index import ClipIndex
from core.jobs.locks import FileLock
from core.workspace import Workspace
from data import manifest
from data.clip_findings import ERROR, SAME_SOUND, TWO_TEXTS
from data.manifest import Clip
from data.mending import KEPT_SILENCE_S, LEVEL, TRIM

DRAFT_FILE, EXCLUDED_FILE = "review.jsonl", "excluded.jsonl"
_LOCK_FILE, _PATIENCE_S = ".review.lock", 10.0
FIXES: Mapping[str, str] = {"silence": TRIM, "level": LEVEL}
"""Kinds of findings that can be mended in the recording itself, and how."""
BEFORE_EXCLUDING: Mapping[str, str] = {
    TWO_TEXTS: "All clips with that sound go, the right one too. To keep it, exclude the others one by one.",
    SAME_SOUND: "The first clip of each sound stays.",
}
"""What a person should know before all clips with a kind of finding are left out."""


@dataclass(frozen=True)
class Decision:
    """About one clip: whether it is in, with which text (None: as it is), why it is out, and what is mended in it."""

    id: str
    included: bool = True
    text: str | None = None
    reason: str = ""
    fixes: tuple[str, ...] = ()  # of `data.mending`


class Decisions(dict[str, Decision]):
    """The last decision about each clip, by id; not to be changed."""

    @cached_property
    def excluded(self) -> Counter[str]:
        """How many are out, by the reason."""
        return Counter(one.reason for one in self.values() if not one.included)

    @cached_property
    def mended(self) -> Counter[str]:
        """How many have each mending."""
        return Counter(fix for one in self.values() for fix in one.fixes)

    @cached_property
    def to_mend(self) -> int:
        return sum(bool(one.fixes) and one.included for one in self.values())

    @cached_property
    def texts(self) -> int:
        """How many texts are written anew."""
        return sum(one.text is not None for one in self.values())


def decisions(workspace: Workspace, name: str) -> Decisions:
    """What was decided about clips of the dataset `name`, by id; read again where the file has changed."""
    return _draft(workspace.dataset(name) / DRAFT_FILE).read()


class _Draft:
    """The decisions in a file, of which only new lines are read: 50,000 of them take most of a second."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        self._state: tuple[int, int, int] | None = None
        self._content, self._read = b"", Decisions()

    def read(self) -> Decisions:
        with self._lock:
            try:
                about = self._path.stat()
            except FileNotFoundError:
                self._state, self._content, self._read = None, b"", Decisions()
                return self._read
            state = (about.st_ino, about.st_mtime_ns, about.st_size)
            if state != self._state:
                content = self._path.read_bytes()
                known = len(self._content) if content.startswith(self._content) else 0
                whole = content.rfind(b"\n") + 1
                before = self._read if known else Decisions()
                self._read = Decisions({**before, **_decided(content[known:])})
                self._state, self._content = state, content[:whole]
            return self._read


@lru_cache(maxsize=8)
def _draft(path: Path) -> _Draft:
    return _Draft(path)


def _decided(content: bytes) -> dict[str, Decision]:
    """The decisions in lines, but for one that was cut off while it was written."""
    found = {}
    for line in content.decode("utf-8", "replace").split("\n"):
        with suppress(ValueError, TypeError):
            row = json.loads(line)
            if isinstance(row, dict) and "id" in row:
                found[str(row["id"])] = Decision(**{**row, "fixes": tuple(row.get("fixes", ()))})
    return found


def snapshot(workspace: Workspace, name: str) -> tuple[bytes, Decisions]:
    """The file of the decisions about `name` as it is now, and what it says."""
    path = workspace.dataset(name) / DRAFT_FILE
    content = path.read_bytes() if path.is_file() else b""
    return content, Decisions(_decided(content))


def decide(workspace: Workspace, name: str, made: Iterable[Decision]) -> None:
    """Add decisions; a text without a word in it raises `UserError`."""
    with _deciding(workspace, name):
        _add(workspace.dataset(name) / DRAFT_FILE, list(made))


def change(workspace: Workspace, name: str, ids: Iterable[str], how: Callable[[Decision], Decision],
           first: Callable[[str], Decision] = Decision) -> int:
    """Decide anew about clips, from what is decided now, while nobody else does; how many that changes.

    `first`: what stands for a clip about which nothing was decided yet.
    """
    with _deciding(workspace, name):
        there = decisions(workspace, name)
        before = [there.get(one) or first(one) for one in dict.fromkeys(ids)]
        made = [how(one) for one in before]
        changed = [one for one, old in zip(made, before, strict=True) if one != old]
        _add(workspace.dataset(name) / DRAFT_FILE, changed)
    return len(changed)


@contextmanager
def _deciding(workspace: Workspace, name: str) -> Iterator[None]:
    lock = FileLock.take(workspace.dataset(name) / _LOCK_FILE, _PATIENCE_S)
    if lock is None:
        raise UserError(f"Others have been deciding about {name!r} for {_PATIENCE_S:g} s.", "Try again.")
    try:
        yield
    finally:
        lock.close()


def _add(path: Path, made: Sequence[Decision]) -> None:
    for one in made:
        if one.text is not None and not any(map(str.isalnum, one.text)):
            raise UserError(f"The text {one.text!r} of {one.id} has nothing to speak.",
                            "Write what is said, or exclude the clip.")
    lines = "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in made)
    torn = path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")
    with open(path, "ab") as file:
        file.write(("\n" * torn + lines).encode("utf-8", "replace"))
        file.flush()
        os.fsync(file.fileno())


def index_of(workspace: Workspace, name: str) -> ClipIndex:
    """The clips of the dataset `name`, the worst first; `UserError` where they were never measured."""
    return ClipIndex(workspace, manifest.load_card(workspace.dataset(name)).fingerprint)


def is_in(workspace: Workspace, name: str, clip: str) -> bool:
    """Whether a clip is in the dataset or was left out before; `UserError` when it is neither."""
    if index_of(workspace, name).clip(clip) is not None:
        return True
    if any(there.id == clip for there, _ in excluded(workspace.dataset(name))):
        return False
    raise UserError(f"{name!r} has no clip {clip!r}.", "Look its id up in the table.")


def exclude(workspace: Workspace, name: str, ids: Iterable[str], reason: str) -> int:
    """Take clips out of the next version; how many were not out already."""
    return change(workspace, name, ids,
                  lambda one: replace(one, included=False, reason=reason) if one.included else one)


def exclude_kind(workspace: Workspace, name: str, kind: str, *, errors_only: bool = False) -> int:
    """Take out every clip with a finding of `kind`, or those where it is an error; how many were not out already."""
    return exclude(workspace, name, _with(workspace, name, kind, errors_only=errors_only), kind)


def fix_kind(workspace: Workspace, name: str, kind: str) -> int:
    """Have every clip with a finding of `kind` mended; how many were not to be already. `UserError`: it cannot be."""
    fix = FIXES.get(kind, "")
    if not fix:
        raise UserError(f"What is found as {kind!r} cannot be mended in the recording.",
                        f"Exclude these clips, or keep them. {', '.join(FIXES)} can be mended.")
    return change(workspace, name, _with(workspace, name, kind),
                  lambda one: one if fix in one.fixes else replace(one, fixes=(*one.fixes, fix)))


def _with(workspace: Workspace, name: str, kind: str, *, errors_only: bool = False) -> list[str]:
    """The clips with a finding of `kind`."""
    index = index_of(workspace, name)
    return [one.clip.id for one in index.page(0, index.count(kind), kind)
            if not errors_only or any((each.kind, each.level) == (kind, ERROR) for each in one.findings)]


def undo_kind(workspace: Workspace, name: str, kind: str) -> int:
    """Take back what was decided about all clips with a finding of `kind` at once; about how many."""
    fix = FIXES.get(kind, "")

    def undone(one: Decision) -> Decision:
        mine = not one.included and one.reason == kind
        return replace(one, included=one.included or mine, reason="" if mine else one.reason,
                       fixes=tuple(each for each in one.fixes if each != fix))

    return change(workspace, name, list(decisions(workspace, name)), undone)


def what_fix_does(kind: str, count: int, level_lufs: float | None) -> str:
    """In words, what mending `count` clips with a finding of `kind` would do; empty where it cannot be mended."""
    clips = f"{count:,} clip{'s' if count != 1 else ''}"
    if FIXES.get(kind) == TRIM:
        return f"Cut the silence at the ends of {clips} down to {KEPT_SILENCE_S:g} s."
    if FIXES.get(kind) == LEVEL and level_lufs is not None:
        return f"Set {clips} to {level_lufs:.0f} LUFS, the median of the dataset, or as near as fits without clipping."
    return ""


def excluded(folder: Path) -> Sequence[tuple[Clip, str]]:
    """What a reviewed dataset leaves out, each with the reason."""
    path = folder / EXCLUDED_FILE
    try:
        about = path.stat()
    except FileNotFoundError:
        return ()
    return _excluded(path, about.st_ino, about.st_mtime_ns)


@lru_cache(maxsize=8)
def _excluded(path: Path, inode: int, changed_ns: int) -> tuple[tuple[Clip, str], ...]:
    return tuple((Clip(**row["clip"]), str(row["reason"])) for _, row in manifest.read_json_lines(path))
