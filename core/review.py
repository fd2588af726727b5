"""What a person decides about the clips of a dataset.

Decisions are lines that are added to `review.jsonl` beside the manifest; the last one about a clip counts, and none is
ever taken out. The dataset itself stays as it is: the verb `revise` writes another one, whose `excluded.jsonl` names
what was left out and why, so that it can be taken in again. Never loads torch.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from config.errors import UserError
from core.dataset.clip_index import ClipIndex
from core.workspace import Workspace
from data import manifest
from data.manifest import Clip
from data.mending import KEPT_SILENCE_S, LEVEL, TRIM

DRAFT_FILE, EXCLUDED_FILE = "review.jsonl", "excluded.jsonl"
FIXES: Mapping[str, str] = {"silence": TRIM, "level": LEVEL}
"""Kinds of findings that can be mended in the recording itself, and how."""


@dataclass(frozen=True)
class Decision:
    """About one clip: whether it is in, with which text (None: as it is), why it is out, and what is mended in it."""

    id: str
    included: bool = True
    text: str | None = None
    reason: str = ""
    fixes: tuple[str, ...] = ()  # of `data.mending`


def decisions(workspace: Workspace, name: str) -> dict[str, Decision]:
    """What was decided about clips of the dataset `name`, by id."""
    path = workspace.dataset(name) / DRAFT_FILE
    if not path.is_file():
        return {}
    return {str(row["id"]): Decision(**{**row, "fixes": tuple(row.get("fixes", ()))}) for row in _whole_lines(path)}


def _whole_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The decisions in a file, but for one that was cut off while it was written."""
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
        with suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and "id" in row:
                yield row


def decide(workspace: Workspace, name: str, made: Iterable[Decision]) -> None:
    """Add decisions; a text without a word in it raises `UserError`."""
    given = list(made)
    for one in given:
        if one.text is not None and not any(map(str.isalnum, one.text)):
            raise UserError(f"The text {one.text!r} of {one.id} has nothing to speak.",
                            "Write what is said, or exclude the clip.")
    lines = "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in given)
    path = workspace.dataset(name) / DRAFT_FILE
    torn = path.is_file() and path.read_bytes()[-1:] not in (b"", b"\n")
    with open(path, "a", encoding="utf-8") as file:
        file.write("\n" * torn + lines)
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
    there = decisions(workspace, name)
    out = [replace(there.get(one, Decision(one)), included=False, reason=reason)
           for one in ids if there.get(one, Decision(one)).included]
    decide(workspace, name, out)
    return len(out)


def exclude_kind(workspace: Workspace, name: str, kind: str) -> int:
    """Take out every clip with a finding of `kind`; how many were not out already."""
    index = index_of(workspace, name)
    return exclude(workspace, name, (one.clip.id for one in index.page(0, index.count(kind), kind)), kind)


def fix_kind(workspace: Workspace, name: str, kind: str) -> int:
    """Have every clip with a finding of `kind` mended; how many were not to be already. `UserError`: it cannot be."""
    fix, there, index = FIXES.get(kind, ""), decisions(workspace, name), index_of(workspace, name)
    if not fix:
        raise UserError(f"What is found as {kind!r} cannot be mended in the recording.",
                        f"Exclude these clips, or keep them. {', '.join(FIXES)} can be mended.")
    made = [there.get(one.clip.id, Decision(one.clip.id)) for one in index.page(0, index.count(kind), kind)]
    made = [replace(one, fixes=(*one.fixes, fix)) for one in made if fix not in one.fixes]
    decide(workspace, name, made)
    return len(made)


def undo_kind(workspace: Workspace, name: str, kind: str) -> int:
    """Take back what was decided about all clips with a finding of `kind` at once; about how many."""
    fix = FIXES.get(kind, "")
    undone = [replace(one, included=one.included or one.reason == kind, reason="" if one.reason == kind else one.reason,
                      fixes=tuple(each for each in one.fixes if each != fix))
              for one in decisions(workspace, name).values() if one.reason == kind or (fix and fix in one.fixes)]
    decide(workspace, name, undone)
    return len(undone)


def what_fix_does(kind: str, count: int, level_lufs: float | None) -> str:
    """In words, what mending `count` clips with a finding of `kind` would do; empty where it cannot be mended."""
    clips = f"{count:,} clip{'s' if count != 1 else ''}"
    if FIXES.get(kind) == TRIM:
        return f"Cut the silence at the ends of {clips} down to {KEPT_SILENCE_S:g} s."
    if FIXES.get(kind) == LEVEL and level_lufs is not None:
        return f"Set {clips} to {level_lufs:.0f} LUFS, the median of the dataset, or as near as fits without clipping."
    return ""


def excluded(folder: Path) -> list[tuple[Clip, str]]:
    """What a reviewed dataset leaves out, each with the reason."""
    path = folder / EXCLUDED_FILE
    rows = [row for _, row in manifest.read_json_lines(path)] if path.is_file() else []
    return [(Clip(**row["clip"]), str(row["reason"])) for row in rows]
