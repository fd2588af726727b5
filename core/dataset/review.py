"""The user's decisions about the clips of a dataset.

Decisions are appended as lines to `review.jsonl` beside the manifest; the last one about a clip counts, and none is
ever removed. The dataset itself stays as it is: the verb `revise` writes another one, whose `excluded.jsonl` names the
excluded clips and the reasons, so that they can be included again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Literal

from config.errors import UserError
from config.foreign import cached_by_file
from core.dataset.clip_index import ClipIndex
from core.jobs.locks import locked
from core.sources import source_preview
from core.workspace import Workspace
from data import manifest
from data.clip_findings import EDGES, ERROR, SAME_SOUND, TWO_TEXTS
from data.durable_files import append_text
from data.manifest import ManifestClip
from data.sound_files import EDGE_SILENCE_S, LEVEL, TRIM
from data.text_match import TextMatch as TextMatch

DRAFT_FILE, EXCLUDED_FILE = "review.jsonl", "excluded.jsonl"
_LOCK_FILE, _LOCK_TIMEOUT_S = ".review.lock", 10.0
FIXES: Mapping[str, str] = {EDGES: TRIM, "level": LEVEL}
"""Kinds of findings that can be repaired in the recording itself, and how."""
BEFORE_EXCLUDING: Mapping[str, str] = {
    TWO_TEXTS: "All clips with that sound go, the right one too. To keep it, exclude the others one by one.",
    SAME_SOUND: "The first clip of each sound stays.",
}
"""What the user should know before excluding all clips with a kind of finding."""


@dataclass(frozen=True)
class ReviewDecision:
    """About one clip: whether it is included, its text (None: unchanged), why it is excluded, and how to repair it."""

    id: str
    included: bool = True
    text: str | None = None
    reason: str = ""
    fixes: tuple[str, ...] = ()  # names of repairs in `data.sound_files`


class ReviewDecisions(dict[str, ReviewDecision]):
    """The last decision about each clip, by id; read-only."""

    @cached_property
    def excluded(self) -> Counter[str]:
        """How many clips are excluded, by the reason."""
        return Counter(decision.reason for decision in self.values() if not decision.included)

    @cached_property
    def mended(self) -> Counter[str]:
        """How many clips have each repair."""
        return Counter(chain.from_iterable(decision.fixes for decision in self.values()))

    @cached_property
    def clips_to_fix(self) -> int:
        return sum(bool(decision.fixes) and decision.included for decision in self.values())

    @cached_property
    def texts(self) -> int:
        """How many transcripts are edited."""
        return sum(decision.text is not None for decision in self.values())


def read_decisions(workspace: Workspace, name: str) -> ReviewDecisions:
    """The decisions about clips of the dataset `name`, by id; read again when the file changes."""
    return _drafts(workspace.dataset(name) / DRAFT_FILE).read()


class _Draft:
    """The decisions in a file. Only new lines are read, since 50,000 of them take most of a second."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()
        self._state: tuple[int, int, int] | None = None
        self._content, self._read = b"", ReviewDecisions()

    def read(self) -> ReviewDecisions:
        with self._lock:
            try:
                about = self._path.stat()
            except FileNotFoundError:
                self._state, self._content, self._read = None, b"", ReviewDecisions()
                return self._read
            state = (about.st_ino, about.st_mtime_ns, about.st_size)
            if state != self._state:

                # Only lines that were appended since are parsed. A line that is still being written is read next time.
                content = self._path.read_bytes()
                already_read = len(self._content) if content.startswith(self._content) else 0
                complete_bytes = content.rfind(b"\n") + 1
                earlier = self._read if already_read else ReviewDecisions()
                self._read = ReviewDecisions({**earlier, **_parse(content[already_read:])})
                self._state, self._content = state, content[:complete_bytes]
            return self._read


_drafts = lru_cache(maxsize=8)(_Draft)


def _parse(content: bytes) -> dict[str, ReviewDecision]:
    """The decisions in whole lines; one that was cut off is ignored."""
    decisions = {}
    for line in content.decode("utf-8", "replace").split("\n"):
        with suppress(ValueError, TypeError):
            row = json.loads(line)
            if isinstance(row, dict) and "id" in row:
                decisions[str(row["id"])] = ReviewDecision(**{**row, "fixes": tuple(row.get("fixes", ()))})
    return decisions


def snapshot(workspace: Workspace, name: str) -> tuple[bytes, ReviewDecisions]:
    """The file of the decisions about `name` as it is now, and the decisions in it."""
    path = workspace.dataset(name) / DRAFT_FILE
    content = path.read_bytes() if path.is_file() else b""
    return content, ReviewDecisions(_parse(content))


def decide(workspace: Workspace, name: str, decisions: Iterable[ReviewDecision]) -> None:
    """Add decisions; a text without a word in it raises `UserError`."""
    with _locked(workspace, name):
        _add(workspace.dataset(name) / DRAFT_FILE, list(decisions))


def update_decisions(workspace: Workspace, name: str, ids: Iterable[str],
                     update: Callable[[ReviewDecision], ReviewDecision],
                     default: Callable[[str], ReviewDecision] = ReviewDecision) -> int:
    """Update the decisions about clips under a lock; how many changed.

    `default`: the decision about a clip that has none yet.
    """
    with _locked(workspace, name):
        decisions = read_decisions(workspace, name)
        current = [decisions.get(clip) or default(clip) for clip in dict.fromkeys(ids)]
        updated = [(old, update(old)) for old in current]
        changed = [new for old, new in updated if new != old]
        _add(workspace.dataset(name) / DRAFT_FILE, changed)
    return len(changed)


def _locked(workspace: Workspace, name: str) -> AbstractContextManager[None]:
    return locked(workspace.dataset(name) / _LOCK_FILE, _LOCK_TIMEOUT_S,
                  f"Others have been deciding about {name!r} for {_LOCK_TIMEOUT_S:g} s.", "Try again.")


def _add(path: Path, decisions: Sequence[ReviewDecision]) -> None:
    for decision in decisions:
        if decision.text is not None and not any(map(str.isalnum, decision.text)):
            raise UserError(f"The text {decision.text!r} of {decision.id} has nothing to speak.",
                            "Write what is spoken, or exclude the clip.")
    lines = "".join(json.dumps(asdict(decision), ensure_ascii=False) + "\n" for decision in decisions)
    append_text(path, lines)


def index_of(workspace: Workspace, name: str) -> ClipIndex:
    """The clips of the dataset `name`, the worst first; `UserError` if they were never measured."""
    return ClipIndex(workspace, manifest.load_card(workspace.dataset(name)).fingerprint)


def text_match_of(workspace: Workspace, name: str) -> TextMatch | None:
    """Whether the texts of the dataset `name` belong to its clips; None if that was never measured, or cannot be read.

    A finding of the import comes first, since only there the order of the table is known, with the rows that were left
    out. A review may have corrected texts, so a reviewed dataset has only what was measured on its own clips.
    """
    folder = workspace.dataset(name)
    try:
        card = manifest.load_card(folder)
    except UserError:  # it is being made, or is damaged, which the job that needs it reports
        return None
    report = None if card.reviewed else source_preview.read_report(folder)
    if report is not None and report.text_match is not None and report.text_match.is_finding:
        return report.text_match
    measured = ClipIndex(workspace, card.fingerprint).text_match() if ClipIndex.exists(
        workspace, card.fingerprint) else None
    return measured or (report.text_match if report is not None else None)


def check_texts_match(workspace: Workspace, name: str, action: Literal["warn", "stop"]) -> str:
    """The warning before a training on the dataset `name`; empty if its texts match, or nothing is known.

    `UserError` for `stop`, if it is proven that the texts belong to other clips.
    """
    match = text_match_of(workspace, name)
    if match is None or not match.is_finding:
        return ""
    message = f"The dataset {name!r}: {match.message}"
    if action == "stop" and match.is_proven:
        raise UserError(message, f"{match.hint} A training on it would learn wrong pairs; to start it all the same, "
                                 "choose `warn` under “Texts that do not match” on the Train tab "
                                 "(--mismatch-action warn).")
    return f"{message} {match.hint}"


def is_in(workspace: Workspace, name: str, clip: str) -> bool:
    """Whether a clip is in the dataset, or was excluded before; `UserError` when it is neither."""
    if index_of(workspace, name).clip(clip) is not None:
        return True
    if any(excluded_clip.id == clip for excluded_clip, _ in excluded(workspace.dataset(name))):
        return False
    raise UserError(f"{name!r} has no clip {clip!r}.", "Look its id up in the table.")


def exclude(workspace: Workspace, name: str, ids: Iterable[str], reason: str) -> int:
    """Exclude clips from the next version; how many were not excluded already."""
    def exclude_one(decision: ReviewDecision) -> ReviewDecision:
        return replace(decision, included=False, reason=reason) if decision.included else decision

    return update_decisions(workspace, name, ids, exclude_one)


def exclude_kind(workspace: Workspace, name: str, kind: str, *, errors_only: bool = False) -> int:
    """Exclude every clip with a finding of `kind`, or only with errors; returns the number of newly excluded clips."""
    return exclude(workspace, name, _with(workspace, name, kind, errors_only=errors_only), kind)


def fix_kind(workspace: Workspace, name: str, kind: str) -> int:
    """Repair every clip with a finding of `kind` in the next version; how many are new. `UserError`: it cannot be."""
    fix = FIXES.get(kind, "")
    if not fix:
        raise UserError(f"The finding {kind!r} cannot be repaired in the recording.",
                        f"Exclude these clips, or keep them. {', '.join(FIXES)} can be repaired.")

    def add_fix(decision: ReviewDecision) -> ReviewDecision:
        return decision if fix in decision.fixes else replace(decision, fixes=(*decision.fixes, fix))

    return update_decisions(workspace, name, _with(workspace, name, kind), add_fix)


def _with(workspace: Workspace, name: str, kind: str, *, errors_only: bool = False) -> list[str]:
    """The clips with a finding of `kind`."""
    index = index_of(workspace, name)
    clips = index.page(0, index.count(kind), kind)
    if errors_only:
        clips = [indexed for indexed in clips
                 if any((finding.kind, finding.level) == (kind, ERROR) for finding in indexed.findings)]
    return [indexed.clip.id for indexed in clips]


def undo_kind(workspace: Workspace, name: str, kind: str) -> int:
    """Undo the decisions that were made about all clips with a finding of `kind` at once; how many clips changed."""
    fix = FIXES.get(kind, "")

    def undone(decision: ReviewDecision) -> ReviewDecision:
        is_from_kind = not decision.included and decision.reason == kind
        return replace(decision, included=decision.included or is_from_kind,
                       reason="" if is_from_kind else decision.reason,
                       fixes=tuple(fix_name for fix_name in decision.fixes if fix_name != fix))

    return update_decisions(workspace, name, list(read_decisions(workspace, name)), undone)


def describe_fix(kind: str, count: int, level_lufs: float | None) -> str:
    """The effect of a repair of `count` clips with a finding of `kind`; empty if no repair exists."""
    clips = f"{count:,} clip{'s' if count != 1 else ''}"
    if FIXES.get(kind) == TRIM:
        return f"Cut the silence at the ends of {clips} down to {EDGE_SILENCE_S:g} s."
    if FIXES.get(kind) == LEVEL and level_lufs is not None:
        return f"Set {clips} to {level_lufs:.0f} LUFS, the median of the dataset, or as near as fits without clipping."
    return ""


def excluded(folder: Path) -> Sequence[tuple[ManifestClip, str]]:
    """The clips that a reviewed dataset excludes, each with the reason."""
    path = folder / EXCLUDED_FILE
    return _excluded(path) if path.exists() else ()


@cached_by_file(8)
def _excluded(path: Path) -> tuple[tuple[ManifestClip, str], ...]:
    return tuple((ManifestClip(**row["clip"]), str(row["reason"])) for _, row in manifest.read_json_lines(path))
