"""Write a reviewed version of a dataset: what was decided about its clips (`core.review`) is done in another one.

The dataset that was reviewed stays as it is. Recordings are linked; one that is mended is written anew, and the old one
lies beside it in `originals`. Features and measures of what is new are made at once.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from config.errors import UserError
from config.schema import ReviseOptions
from core import compute, review
from core.dataset import token_fit
from core.dataset.clip_index import ClipIndex, Judged, MeasureStore, build
from core.dataset.recordings import write_audio
from core.dataset.token_fit import NO_TOKENIZER, TokenFit
from core.jobs.events import Result
from core.jobs.reporter import Reporter, stage
from core.library.aside import written_aside
from core.library.catalog import family_of
from core.prepare import extract_features
from core.review import Decision
from core.text import text_rules
from core.workspace import Workspace, resolve_inside
from data import augmentation, manifest
from data.clip_findings import Spoken
from data.kept import in_parts
from data.manifest import HELD_OUT, TRAIN, Clip, Dataset
from data.normalise import Reading
from data.splits import Sides
from models.registry import family

DECIDED_FILE, REPORT_FILE = "decided.jsonl", "report.json"
_JUDGED_AT_ONCE = 256
_WORDS = {TRAIN: "trained on", HELD_OUT: "held out"}


@dataclass(frozen=True)
class Version:
    """A dataset that was written, and what differs from the one it was made of."""

    name: str
    clips: int
    excluded: tuple[str, ...]  # ids that were taken out now
    included: tuple[str, ...]  # ids that were out and are in again
    changed: tuple[str, ...]  # ids with another text
    mended: tuple[str, ...]  # ids with another recording
    folder: Path


def run(options: ReviseOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `datasets/SAVE_AS` of `datasets/DATASET`, with its features; hands back the counts."""
    told: Result = {}
    with stage(reporter, "version"):
        if _begun(options, workspace):
            index_version(workspace, options.dataset, options.save_as)
        else:
            told = _counts(save_version(workspace, options.dataset, options.save_as, reporter))
        dataset = manifest.load(workspace.dataset(options.save_as))
    with stage(reporter, "features"):
        chosen = family(family_of(workspace, options.model))
        extractor = chosen.extractor(workspace.model(options.model), compute.prepare(options.device))
        failed = extract_features(dataset, extractor, workspace, reporter, augmentation.load(dataset.folder))
    return {"dataset": options.save_as, "clips": len(dataset.clips), **told, "features": len(dataset.clips) - failed,
            "features_failed": failed, "clips_with_findings": review.index_of(workspace, options.save_as).faulty(),
            "folder": str(dataset.folder)}


def _begun(options: ReviseOptions, workspace: Workspace) -> bool:
    """Whether the version was written already, by the same decisions, and only what follows is to be made.

    One that was cut short before its clips were sorted is gone on with, whatever was decided since.
    """
    target = resolve_inside(workspace.datasets, options.save_as)
    done = target / DECIDED_FILE
    if not done.is_file() or manifest.load_card(target).reviewed != options.dataset:
        return False
    asked, _ = review.snapshot(workspace, options.dataset)
    written = done.read_bytes()
    return asked == written or (asked.startswith(written) and not _indexed(workspace, target))


def _indexed(workspace: Workspace, folder: Path) -> bool:
    return ClipIndex.exists(workspace, manifest.load_card(folder).fingerprint)


def _counts(version: Version) -> Result:
    return {"excluded": len(version.excluded), "included_again": len(version.included),
            "texts_anew": len(version.changed), "mended": len(version.mended)}


def save_version(workspace: Workspace, name: str, new: str, reporter: Reporter) -> Version:
    """Write the dataset `new` as `name` is with what was decided. `name` stays as it is."""
    dataset = manifest.load(workspace.dataset(name))
    target = resolve_inside(workspace.datasets, new)
    if target.exists():
        raise UserError(f"There already is a dataset named {new!r}.", "Choose another name: none is written over.")
    (decided, made), out = review.snapshot(workspace, name), review.excluded(dataset.folder)
    known = {clip.id for clip in dataset.clips} | {clip.id for clip, _ in out}
    if strange := sorted(set(made) - known):
        raise UserError(f"{dataset.folder / review.DRAFT_FILE} names clips that {name!r} does not have: {strange[:3]}.",
                        "Take these lines out of the file.")
    reading = _reading(workspace, dataset)
    clips, left_out, version = _apply(dataset, out, made, reading, target)
    _check(version, clips, name)
    with written_aside(target) as folder:
        clips, mended = write_audio(dataset, clips, left_out, made, folder, workspace, reporter)
        version = replace(version, mended=mended)
        _check(version, clips, name)
        card = manifest.make_card(new, dataset.card.language, dataset.card.source, clips, dataset.card.licence)
        manifest.save(folder, replace(card, reviewed=name, split=dataset.card.split), clips)
        (folder / DECIDED_FILE).write_bytes(decided)
        if (recipe := augmentation.load(dataset.folder)) is not None:
            augmentation.save(folder, recipe)  # of the same recordings: their variants are in the cache
        lines = (json.dumps({"clip": asdict(clip), "reason": reason}, ensure_ascii=False) + "\n"
                 for clip, reason in left_out)
        (folder / review.EXCLUDED_FILE).write_text("".join(lines), encoding="utf-8")
        report = _report(dataset, version, clips, left_out, reading)
        (folder / REPORT_FILE).write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    index_version(workspace, name, new)
    return version


def _reading(workspace: Workspace, dataset: Dataset) -> Reading:
    """How the texts of a dataset were read when its clips were judged."""
    about = ClipIndex(workspace, dataset.card.fingerprint).about()
    return text_rules.reading(workspace, about["rules"], dataset.card.language, about["normaliser"])


def _apply(dataset: Dataset, out: Sequence[tuple[Clip, str]], made: Mapping[str, Decision], reading: Reading,
           target: Path) -> tuple[tuple[Clip, ...], list[tuple[Clip, str]], Version]:
    """The clips that are in, those that are out with the reason, and what differs."""
    reasons = {clip.id: reason for clip, reason in out}
    kept: list[Clip] = []
    left_out: list[tuple[Clip, str]] = []
    changed, now_out, now_in = [], [], []
    mended = []
    for clip in (*dataset.clips, *(clip for clip, _ in out)):
        one = made.get(clip.id, Decision(clip.id, included=clip.id not in reasons))
        if one.text is not None and one.text != clip.text:
            clip = replace(clip, text=one.text)
            changed.append(clip.id)
        if one.included:
            kept.append(clip)
            mended += [clip.id] if one.fixes else []
            now_in += [clip.id] if clip.id in reasons else []
        else:
            left_out.append((clip, one.reason or reasons.get(clip.id, "by hand")))
            now_out += [] if clip.id in reasons else [clip.id]
    clips, overlapping = _on_sides(kept, {*changed, *now_in}, reading, dataset.card.by_speaker)
    now_out += [clip.id for clip, _ in overlapping]
    left_out += overlapping
    version = Version(target.name, len(clips), tuple(now_out), tuple(now_in), tuple(changed), tuple(mended), target)
    return clips, left_out, version


def _on_sides(kept: Sequence[Clip], moved: set[str], reading: Reading,
              by_speaker: bool) -> tuple[tuple[Clip, ...], list[tuple[Clip, str]]]:
    """The clips, those of `moved` on the side of what they are tied to; and those that are tied to both sides."""
    if not moved:
        return tuple(kept), []
    stay = [clip for clip in kept if clip.id not in moved]
    by_speaker = by_speaker and not _both_sides({(clip.speaker, clip.split) for clip in stay})
    there = _sides(stay, reading, by_speaker)
    clips: list[Clip] = []
    out: list[tuple[Clip, str]] = []
    for clip in kept:
        if clip.id in moved:
            marks = [("text", reading.normal(clip.text)), *([("recording", clip.source)] if clip.source else []),
                     *([("speaker", clip.speaker)] if by_speaker else [])]
            found = {kind: side for kind, value in marks if (side := there.side((kind, value))) is not None}
            if len(set(found.values())) > 1:
                what = " and ".join(f"its {kind} is {_WORDS[side]}" for kind, side in found.items())
                out.append((clip, f"overlap: {what}"))
                continue
            clip = replace(clip, split=next(iter(found.values()), clip.split))
            for mark in marks:
                there.put(mark, clip.split)
        clips.append(clip)
    return tuple(clips), out


def _both_sides(speakers: set[tuple[str, str]]) -> bool:
    """Whether a speaker is trained on and held out, which only the source's own split does."""
    return len({name for name, _ in speakers}) < len(speakers)


def _sides(clips: Sequence[Clip], reading: Reading, by_speaker: bool) -> Sides:
    """Where texts, recordings and, if asked, speakers are."""
    there = Sides()
    for clip in clips:
        there.put(("text", reading.normal(clip.text)), clip.split)
        if clip.source:
            there.put(("recording", clip.source), clip.split)
        if by_speaker:
            there.put(("speaker", clip.speaker), clip.split)
    return there


def _check(version: Version, clips: tuple[Clip, ...], name: str) -> None:
    if not (version.excluded or version.included or version.changed or version.mended):
        raise UserError(f"Nothing was decided about {name!r} that differs from it.",
                        "Exclude a clip, mend one or write a text anew first.")
    if not any(clip.split == TRAIN for clip in clips):
        raise UserError(f"Without the {len(version.excluded)} excluded clips nothing is left to train on.",
                        "Include some again.")


def _report(dataset: Dataset, version: Version, clips: tuple[Clip, ...], left_out: list[tuple[Clip, str]],
            reading: Reading) -> dict[str, object]:
    """The report of the dataset with what was left out by hand among its errors."""
    path = dataset.folder / REPORT_FILE
    values: dict[str, Any] = {"found": len(dataset.clips), "errors": [], "warnings": [], "dropped": {}}
    values |= json.loads(path.read_text("utf-8")) if path.is_file() else {}
    errors = [one for one in values["errors"] if one["kind"] != "excluded"]
    errors += [{"kind": "excluded", "where": clip.id, "message": f"excluded: {reason}"} for clip, reason in left_out]
    note = (f"Reviewed from {dataset.card.name}: {len(version.excluded)} clips excluded, {len(version.included)} "
            f"included again, {len(version.changed)} texts written anew, {len(version.mended)} recordings mended; "
            f"{len(left_out)} are out in all.")
    characters = Counter(character for clip in clips for character in reading.normal(clip.text))
    return {**values, "kept": len(clips), "errors": errors, "notes": [*values.get("notes", ()), note],
            "duration_s": round(sum(clip.duration_s for clip in clips), 3),
            "characters": dict(sorted(characters.items()))}


def index_version(workspace: Workspace, name: str, new: str) -> None:
    """Judge the clips of `new`, a version of `name`, unless that was done.

    Measures are there already, and texts are read anew where they changed.
    """
    if _indexed(workspace, workspace.dataset(new)):
        return
    base, dataset = manifest.load(workspace.dataset(name)), manifest.load(workspace.dataset(new))
    old = ClipIndex(workspace, base.card.fingerprint)
    about = {**old.about(), "dataset": new}
    tokenizer = about.get("tokenizer", "")
    there = tokenizer in workspace.list_tokenizers()
    fits = token_fit.fit(dataset.clips, workspace, tokenizer, int(about["longest_tokens"])) if there else NO_TOKENIZER
    build(workspace, dataset, _spoken(workspace, dataset, old, _reading(workspace, base), fits), about)


def _spoken(workspace: Workspace, dataset: Dataset, old: ClipIndex, reading: Reading,
            fits: TokenFit) -> Iterator[Spoken]:
    for part in in_parts(dataset.clips, _JUDGED_AT_ONCE):
        measures = MeasureStore(workspace).load(clip.sha256 for clip in part)
        before = old.named(clip.id for clip in part)
        for clip in part:
            one = before.get(clip.id)
            text = one.spoken if one and one.clip.text == clip.text else reading.normal(clip.text)
            same = one is not None and one.clip.sha256 == clip.sha256
            over = _codes_over(one) if one and same else ""
            yield Spoken(clip.id, text, clip.speaker, measures.get(clip.sha256), fits.unknown.get(clip.id, ""),
                         "; ".join(filter(None, (over, fits.too_long.get(clip.id)))))


def _codes_over(one: Judged) -> str:
    """What was said of speech that is too long for the model."""
    said = next((each.message for each in one.findings if each.kind == "too long"), "")
    return "; ".join(part for part in said.split("; ") if "codes of speech" in part)
