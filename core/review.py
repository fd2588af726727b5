"""What a person decides about the clips of a dataset, and the new version of it that comes of that.

Decisions are lines that are added to `review.jsonl` beside the manifest; the last one about a clip counts, and none is
ever taken out. The dataset itself stays as it is: `save_version` writes another one, with the same recordings, whose
`excluded.jsonl` names what was left out and why, so that it can be taken in again. Never loads torch.
"""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from config.errors import UserError
from core.dataset.clip_index import ClipIndex, MeasureStore, build
from core.library.aside import written_aside
from core.text import text_rules
from core.workspace import Workspace, resolve_inside
from data import manifest
from data.clip_findings import Spoken
from data.manifest import TRAIN, Clip, Dataset
from data.normalise import Reading
from data.splits import Sides

DRAFT_FILE, EXCLUDED_FILE, REPORT_FILE = "review.jsonl", "excluded.jsonl", "report.json"


@dataclass(frozen=True)
class Decision:
    """About one clip: whether it is in, with which text (None: as it is), and why it is out."""

    id: str
    included: bool = True
    text: str | None = None
    reason: str = ""


@dataclass(frozen=True)
class Version:
    """A dataset that was written, and what differs from the one it was made of."""

    name: str
    clips: int
    excluded: tuple[str, ...]  # ids that were taken out now
    included: tuple[str, ...]  # ids that were out and are in again
    changed: tuple[str, ...]  # ids with another text
    folder: Path


def decisions(workspace: Workspace, name: str) -> dict[str, Decision]:
    """What was decided about clips of the dataset `name`, by id."""
    path = workspace.dataset(name) / DRAFT_FILE
    if not path.is_file():
        return {}
    return {str(row["id"]): Decision(**row) for _, row in manifest.read_json_lines(path)}


def decide(workspace: Workspace, name: str, made: Iterable[Decision]) -> None:
    """Add decisions; a text without a word in it raises `UserError`."""
    given = list(made)
    for one in given:
        if one.text is not None and not any(map(str.isalnum, one.text)):
            raise UserError(f"The text {one.text!r} of {one.id} has nothing to speak.",
                            "Write what is said, or exclude the clip.")
    lines = "".join(json.dumps(asdict(one), ensure_ascii=False) + "\n" for one in given)
    with open(workspace.dataset(name) / DRAFT_FILE, "a", encoding="utf-8") as file:
        file.write(lines)
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


def excluded(folder: Path) -> list[tuple[Clip, str]]:
    """What a reviewed dataset leaves out, each with the reason."""
    path = folder / EXCLUDED_FILE
    rows = [row for _, row in manifest.read_json_lines(path)] if path.is_file() else []
    return [(Clip(**row["clip"]), str(row["reason"])) for row in rows]


def save_version(workspace: Workspace, name: str, new: str) -> Version:
    """Write the dataset `new` as `name` is with what was decided. `name` stays as it is."""
    dataset = manifest.load(workspace.dataset(name))
    target = resolve_inside(workspace.datasets, new)
    if target.exists():
        raise UserError(f"There already is a dataset named {new!r}.", "Choose another name: none is written over.")
    made, out = decisions(workspace, name), excluded(dataset.folder)
    known = {clip.id for clip in dataset.clips} | {clip.id for clip, _ in out}
    if strange := sorted(set(made) - known):
        raise UserError(f"{dataset.folder / DRAFT_FILE} names clips that {name!r} does not have: {strange[:3]}.",
                        "Take these lines out of the file.")
    index = ClipIndex(workspace, dataset.card.fingerprint)
    about = index.about()
    reading = text_rules.reading(workspace, about["rules"], dataset.card.language, about["normaliser"])
    clips, left_out, version = _apply(dataset, out, made, reading, target)
    _check(version, clips, name)
    card = manifest.make_card(new, dataset.card.language, dataset.card.source, clips, dataset.card.licence)
    card = replace(card, reviewed=name, split=dataset.card.split)
    with written_aside(target) as folder:
        (folder / "audio").mkdir()
        for clip in (*clips, *(clip for clip, _ in left_out)):
            _link(dataset.audio_path(clip), folder / clip.audio)
        manifest.save(folder, card, clips)
        lines = (json.dumps({"clip": asdict(clip), "reason": reason}, ensure_ascii=False) + "\n"
                 for clip, reason in left_out)
        (folder / EXCLUDED_FILE).write_text("".join(lines), encoding="utf-8")
        report = _report(dataset, version, clips, left_out, reading)
        (folder / REPORT_FILE).write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    _index(workspace, manifest.load(target), index, reading, {**about, "dataset": new})
    return version


def _apply(dataset: Dataset, out: list[tuple[Clip, str]], made: Mapping[str, Decision], reading: Reading,
           target: Path) -> tuple[tuple[Clip, ...], list[tuple[Clip, str]], Version]:
    """The clips that are in, those that are out with the reason, and what differs."""
    reasons = {clip.id: reason for clip, reason in out}
    kept: list[Clip] = []
    left_out: list[tuple[Clip, str]] = []
    changed, now_out, now_in = [], [], []
    for clip in (*dataset.clips, *(clip for clip, _ in out)):
        one = made.get(clip.id, Decision(clip.id, included=clip.id not in reasons))
        if one.text is not None and one.text != clip.text:
            clip = replace(clip, text=one.text)
            changed.append(clip.id)
        if one.included:
            kept.append(clip)
            now_in += [clip.id] if clip.id in reasons else []
        else:
            left_out.append((clip, one.reason or reasons.get(clip.id, "by hand")))
            now_out += [] if clip.id in reasons else [clip.id]
    clips, overlapping = _on_sides(kept, {*changed, *now_in}, reading)
    now_out += [clip.id for clip, _ in overlapping]
    left_out += overlapping
    return clips, left_out, Version(target.name, len(clips), tuple(now_out), tuple(now_in), tuple(changed), target)


def _on_sides(kept: Sequence[Clip], moved: set[str], reading: Reading) -> tuple[tuple[Clip, ...],
                                                                                list[tuple[Clip, str]]]:
    """The clips, those of `moved` on the side of their text; and those whose text and recording are on two sides."""
    if not moved:
        return tuple(kept), []
    known = ((clip, reading.normal(clip.text)) for clip in kept if clip.id not in moved)
    of = dict(Sides.gather(known, by_speaker=False).of)
    clips: list[Clip] = []
    out: list[tuple[Clip, str]] = []
    for clip in kept:
        if clip.id in moved:
            marks = [("text", reading.normal(clip.text)), *([("recording", clip.source)] if clip.source else [])]
            sides = {of[mark] for mark in marks if mark in of}
            if len(sides) > 1:
                out.append((clip, "overlap: its text stands on the other side of the split than its recording"))
                continue
            clip = replace(clip, split=next(iter(sides), clip.split))
            of |= dict.fromkeys(marks, clip.split)
        clips.append(clip)
    return tuple(clips), out


def _check(version: Version, clips: tuple[Clip, ...], name: str) -> None:
    if not (version.excluded or version.included or version.changed):
        raise UserError(f"Nothing was decided about {name!r} that differs from it.",
                        "Exclude a clip or write a text anew first.")
    if not any(clip.split == TRAIN for clip in clips):
        raise UserError(f"Without the {len(version.excluded)} excluded clips nothing is left to train on.",
                        "Include some again.")


def _link(source: Path, target: Path) -> None:
    """The recording in another folder too, without another copy where the disk can do that."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _report(dataset: Dataset, version: Version, clips: tuple[Clip, ...], left_out: list[tuple[Clip, str]],
            reading: Reading) -> dict[str, object]:
    """The report of the dataset with what was left out by hand among its errors."""
    path = dataset.folder / REPORT_FILE
    values: dict[str, Any] = {"found": len(dataset.clips), "errors": [], "warnings": [], "dropped": {}}
    values |= json.loads(path.read_text("utf-8")) if path.is_file() else {}
    errors = [one for one in values["errors"] if one["kind"] != "excluded"]
    errors += [{"kind": "excluded", "where": clip.id, "message": f"excluded: {reason}"} for clip, reason in left_out]
    note = (f"Reviewed from {dataset.card.name}: {len(version.excluded)} clips excluded, {len(version.included)} "
            f"included again, {len(version.changed)} texts written anew; {len(left_out)} are out in all.")
    characters = Counter(character for clip in clips for character in reading.normal(clip.text))
    return {**values, "kept": len(clips), "errors": errors, "notes": [*values.get("notes", ()), note],
            "duration_s": round(sum(clip.duration_s for clip in clips), 3),
            "characters": dict(sorted(characters.items()))}


def _index(workspace: Workspace, dataset: Dataset, old: ClipIndex, reading: Reading, about: Mapping[str, str]) -> None:
    """Judge the new version: measures are there already, texts are read anew where they changed."""
    measures = MeasureStore(workspace).load(clip.sha256 for clip in dataset.clips)
    before = {one.clip.id: one for one in old.all()}
    spoken = []
    for clip in dataset.clips:
        there = before.get(clip.id)
        text = there.spoken if there and there.clip.text == clip.text else reading.normal(clip.text)
        over = next((one.message for one in there.findings if one.kind == "too long"), "") if there else ""
        spoken.append(Spoken(clip.id, text, clip.speaker, measures.get(clip.sha256), over=over))
    build(workspace, dataset, spoken, about)
