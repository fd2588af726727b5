"""Write a reviewed version of a dataset: a new one with the decisions about its clips (`core.dataset.review`) applied.

The dataset that was reviewed stays as it is. Recordings are linked; a repaired one is written, and the old one is kept
in `originals`. Features and measures of what is new are made at once.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from config import foreign
from config.errors import UserError
from config.schema import ReviseOptions
from core import compute
from core.dataset import model_limits, review
from core.dataset.clip_index import ClipIndex, MeasureStore, build_index, reading_names, trimmed_measures
from core.dataset.model_limits import UNKNOWN_COVERAGE
from core.dataset.review import ReviewDecision
from core.jobs.engines import HERE, Engine
from core.jobs.events import Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize, stage
from core.library.lineage import Model
from core.prepare import FamilyExtractor, extract_features, measure_dataset
from core.sources.source_preview import REPORT_FILE
from core.text import text_rules
from core.workspace import Workspace, resolve_inside
from data import augmentation, manifest
from data.acoustics import audio
from data.clip_findings import OTHER_TEXT, AnalysedClip
from data.disk_collections import chunked
from data.durable_files import atomic_directory, link_or_copy
from data.front_end import FrontEnd
from data.manifest import HELD_OUT, TEST, TRAIN, ManifestClip, PreparedDataset
from data.measures import Measures, measure
from data.normalisers import TextNormaliser, for_other_language
from data.sound_files import TRIM, encode_flac, repair
from data.splits import Sides

DECIDED_FILE, ORIGINALS = "decided.jsonl", "originals"
_INDEXED_AT_ONCE = 256  # clips
_SPLIT_WORDS = {TRAIN: "trained on", HELD_OUT: "held out", TEST: "in the test set"}


@dataclass(frozen=True)
class DatasetVersion:
    """A dataset that was written, and how it differs from the one that was reviewed."""

    name: str
    clips: int
    excluded: tuple[str, ...]  # ids of clips excluded now
    included: tuple[str, ...]  # ids of clips that were excluded before
    changed: tuple[str, ...]  # ids with another text
    repaired: tuple[str, ...]  # ids with another recording
    folder: Path


def run(options: ReviseOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `datasets/SAVE_AS` of `datasets/DATASET`, with its features; returns the counts."""
    counts: Result = {}
    engine = Engine.from_options(options, options.device, reporter)
    with stage(reporter, "version"):
        if _is_resumed(options, workspace):
            index_version(workspace, options.dataset, options.save_as, reporter, engine)
        else:
            version = save_version(workspace, options.dataset, options.save_as, reporter, options.language, engine)
            counts = {"excluded": len(version.excluded), "included_again": len(version.included),
                      "texts_edited": len(version.changed), "repaired": len(version.repaired)}
        dataset = manifest.load(workspace.dataset(options.save_as))
    with stage(reporter, "features"):
        base = Model.find(workspace, options.model).base
        compute.setup_device(options.device)
        extractor = FamilyExtractor(base.family_name, base.folder, options.device)
        failed = extract_features(dataset, extractor, workspace, reporter, augmentation.load(dataset.folder), engine)
    index = review.index_of(workspace, options.save_as)
    return {"dataset": options.save_as, "clips": len(dataset.clips), **counts,
            "features": len(dataset.clips) - failed, "features_failed": failed,
            "clips_with_findings": index.count_with_findings(), "folder": str(dataset.folder)}


def _is_resumed(options: ReviseOptions, workspace: Workspace) -> bool:
    """Whether the version was written already, by the same decisions, and only what follows is to be made.

    One that was interrupted before its clips were indexed is resumed, whatever was decided since.
    """
    target = resolve_inside(workspace.datasets, options.save_as)
    decided_file = target / DECIDED_FILE
    if not decided_file.is_file() or manifest.load_card(target).reviewed != options.dataset:
        return False
    decided, _ = review.snapshot(workspace, options.dataset)
    decided_before = decided_file.read_bytes()
    return decided == decided_before or (
        decided.startswith(decided_before) and not ClipIndex.exists(workspace, manifest.load_card(target).fingerprint))


def save_version(workspace: Workspace, name: str, new: str, reporter: Reporter, language: str = "",
                 engine: Engine = HERE) -> DatasetVersion:
    """Write the dataset `new`: `name` with the decisions about it, and in `language` where that is corrected."""
    dataset = manifest.load(workspace.dataset(name))
    target = resolve_inside(workspace.datasets, new)
    if target.exists():
        raise UserError(f"There already is a dataset named {new!r}.", "Choose another name: none is overwritten.")
    (decided, decisions), out = review.snapshot(workspace, name), review.excluded(dataset.folder)
    ids = {clip.id for clip in dataset.clips} | {clip.id for clip, _ in out}
    strange = sorted(set(decisions) - ids)
    if strange:
        raise UserError(f"{dataset.folder / review.DRAFT_FILE} names clips that {name!r} does not have: {strange[:3]}.",
                        "Take these lines out of the file.")
    language = language or dataset.card.language
    corrected = language != dataset.card.language
    if corrected and len(dataset.card.languages) > 1:
        raise UserError(f"The dataset {name!r} holds several languages ({dataset.card.language}): no single one can be "
                        "corrected.", "Correct the dataset that its recordings came from, and add the others to it.")

    readings = _readings(workspace, dataset, language)
    # The language is corrected before the texts are read.
    if corrected:
        dataset = replace(dataset, clips=tuple(replace(clip, language=language) for clip in dataset.clips))
        out = [(replace(clip, language=language), reason) for clip, reason in out]
    clips, excluded, version = _apply(dataset, out, decisions, readings, target)
    _check(version, clips, name, corrected=corrected)

    with atomic_directory(target) as folder:
        clips, repaired = write_audio(dataset, clips, excluded, decisions, folder, workspace, reporter)
        version = replace(version, repaired=repaired)
        _check(version, clips, name, corrected=corrected)
        card = manifest.make_card(new, language, dataset.card.source, clips, dataset.card.licence)
        manifest.save(folder, replace(card, reviewed=name, split=dataset.card.split), clips)
        (folder / DECIDED_FILE).write_bytes(decided)
        recipe = augmentation.load(dataset.folder)
        if recipe is not None:
            # The recordings are the same, so their variants are in the cache.
            augmentation.save(folder, recipe)
        lines = (json.dumps({"clip": asdict(clip), "reason": reason}, ensure_ascii=False) + "\n"
                 for clip, reason in excluded)
        (folder / review.EXCLUDED_FILE).write_text("".join(lines), encoding="utf-8")
        report = _report(dataset, version, clips, excluded, readings)
        (folder / REPORT_FILE).write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    index_version(workspace, name, new, reporter, engine)
    return version


def _readings(workspace: Workspace, dataset: PreparedDataset, language: str) -> dict[str, TextNormaliser]:
    """By language, how the texts of a dataset were read when its clips were indexed.

    In another language, they are read as texts of that, without rules.
    """
    readings = ClipIndex.readings(workspace, dataset.card)
    if language == dataset.card.language:
        return {code: text_rules.reading(workspace, rules, code, name) for code, (rules, name) in readings.items()}
    return {language: TextNormaliser(for_other_language(readings[dataset.card.language][1], language))}


def _apply(dataset: PreparedDataset, out: Sequence[tuple[ManifestClip, str]], decisions: Mapping[str, ReviewDecision],
           readings: Mapping[str, TextNormaliser], target: Path) -> tuple[
               tuple[ManifestClip, ...], list[tuple[ManifestClip, str]], DatasetVersion]:
    """The clips that are included, those that are excluded with the reason, and what differs."""
    reasons = {clip.id: reason for clip, reason in out}
    included: list[ManifestClip] = []
    excluded: list[tuple[ManifestClip, str]] = []
    changed, newly_excluded, newly_included, repaired = [], [], [], []

    # A decision changes text, membership or sound of a clip.
    for clip in (*dataset.clips, *(clip for clip, _ in out)):
        decision = decisions.get(clip.id, ReviewDecision(clip.id, included=clip.id not in reasons))
        if decision.text is not None and decision.text != clip.text:
            clip = replace(clip, text=decision.text)
            changed.append(clip.id)
        if decision.included:
            included.append(clip)
            repaired += [clip.id] if decision.fixes else []
            newly_included += [clip.id] if clip.id in reasons else []
        else:
            excluded.append((clip, decision.reason or reasons.get(clip.id, "by hand")))
            newly_excluded += [] if clip.id in reasons else [clip.id]

    # Edited and returned clips may share something with the other split.
    clips, overlapping = _assign_splits(included, {*changed, *newly_included}, readings, dataset.card.by_speaker)
    newly_excluded += [clip.id for clip, _ in overlapping]
    version = DatasetVersion(target.name, len(clips), tuple(newly_excluded), tuple(newly_included), tuple(changed),
                             tuple(repaired), target)
    return clips, [*excluded, *overlapping], version


def _assign_splits(included: Sequence[ManifestClip], moved: set[str], readings: Mapping[str, TextNormaliser],
                   by_speaker: bool) -> tuple[tuple[ManifestClip, ...], list[tuple[ManifestClip, str]]]:
    """The clips, those of `moved` in the split of what they share; and those that share something with both splits."""
    if not moved:
        return tuple(included), []
    unmoved = [clip for clip in included if clip.id not in moved]
    # a source's own split may have a speaker in both; then speakers are not kept apart
    speaker_sides = {(clip.speaker, clip.split) for clip in unmoved}
    by_speaker = by_speaker and len({name for name, _ in speaker_sides}) == len(speaker_sides)

    def marks(clip: ManifestClip) -> list[tuple[str, str]]:
        text = readings[clip.language].normal(clip.text)
        return [("text", text), *([("recording", clip.source)] if clip.source else []),
                *([("speaker", clip.speaker)] if by_speaker else [])]

    sides = Sides()
    for clip in unmoved:
        for mark in marks(clip):
            sides.put(mark, clip.split)
    clips: list[ManifestClip] = []
    overlapping: list[tuple[ManifestClip, str]] = []
    for clip in included:
        if clip.id in moved:
            own_marks = marks(clip)
            sides_by_mark = [(kind, sides.side((kind, value))) for kind, value in own_marks]
            sides_by_kind = {kind: side for kind, side in sides_by_mark if side is not None}
            if len(set(sides_by_kind.values())) > 1:
                shared = " and ".join(f"its {kind} is {_SPLIT_WORDS[side]}" for kind, side in sides_by_kind.items())
                overlapping.append((clip, f"overlap: {shared}"))
                continue
            clip = replace(clip, split=next(iter(sides_by_kind.values()), clip.split))
            for mark in own_marks:
                sides.put(mark, clip.split)
        clips.append(clip)
    return tuple(clips), overlapping


def _check(version: DatasetVersion, clips: tuple[ManifestClip, ...], name: str, *, corrected: bool) -> None:
    """`corrected`: the language is."""
    if not (corrected or version.excluded or version.included or version.changed or version.repaired):
        raise UserError(f"Nothing was decided about {name!r} that differs from it.",
                        "Exclude or repair a clip, or edit a text first.")
    if not any(clip.split == TRAIN for clip in clips):
        raise UserError(f"Without the {len(version.excluded)} excluded clips nothing is left to train on.",
                        "Include some again.")


def write_audio(dataset: PreparedDataset, clips: Sequence[ManifestClip], excluded: Sequence[tuple[ManifestClip, str]],
                decisions: Mapping[str, ReviewDecision], folder: Path, workspace: Workspace,
                reporter: Reporter) -> tuple[tuple[ManifestClip, ...], tuple[str, ...]]:
    """Link the recordings of the version, or write them where they are repaired.

    Returns the clips, and the ids of those whose recording changed.
    """
    (folder / "audio").mkdir()
    for clip, _ in excluded:
        link_or_copy(dataset.audio_path(clip), folder / clip.audio)

    # A repair needs the measures of the recording and the level of the whole dataset.
    store = MeasureStore(workspace)
    measures = store.load(clip.sha256 for clip in clips if clip.id in decisions and decisions[clip.id].fixes)
    level = ClipIndex(workspace, dataset.card.fingerprint).plots().level_lufs
    written_clips, repaired = [], []
    for number, clip in enumerate(clips, start=1):
        check_stop(reporter, "Stopped before the version was written; nothing is kept of it.")
        fixes = decisions[clip.id].fixes if clip.id in decisions else ()
        new = _repair(dataset, clip, measures.get(clip.sha256), fixes, level, folder, reporter) if fixes else None
        if new is None:
            link_or_copy(dataset.audio_path(clip), folder / clip.audio)
            written_clips.append(clip)
        else:
            store.save({new[0].sha256: new[1]})
            written_clips.append(new[0])
            repaired.append(clip.id)
            reporter.emit(Progress(number, len(clips), "clips", f"{clip.id} repaired"))
    return tuple(written_clips), tuple(repaired)


def _repair(dataset: PreparedDataset, clip: ManifestClip, measures: Measures | None, fixes: Sequence[str],
            level: float | None, folder: Path, reporter: Reporter) -> tuple[ManifestClip, Measures] | None:
    """The clip with its recording repaired, as 24-bit FLAC; the old recording is kept under `originals`.

    None, with a warning, where there is nothing to repair or the recording cannot be read.
    """
    try:
        waveform, rate = audio.read(dataset.audio_path(clip))
    except UserError as error:
        reporter.emit(WarningRaised(f"{clip.id} is not repaired, and stays as it is: {error.message}"))
        return None
    measures = measures or measure(waveform.numpy(), rate)
    target = measures.level_lufs if level is None else level
    repaired = repair(waveform.numpy(), rate, measures, fixes, target if target is not None else 0.0)
    if np.array_equal(repaired, waveform.numpy()):
        reporter.emit(WarningRaised(f"{clip.id} has nothing to repair, and stays as it is."))
        return None

    # The repaired sound is written as 24-bit FLAC, and the old recording is kept beside it.
    content = encode_flac(repaired, rate)
    path = f"audio/{clip.id}.flac"
    (folder / path).write_bytes(content)
    (folder / ORIGINALS).mkdir(exist_ok=True)
    link_or_copy(dataset.audio_path(clip), folder / ORIGINALS / Path(clip.audio).name)
    new = replace(clip, audio=path, sha256=hashlib.sha256(content).hexdigest())
    # The new recording has no silence that is left out.
    if TRIM in fixes:
        new = replace(new, duration_s=len(repaired) / rate, trimmed_start_s=0.0, trimmed_end_s=0.0)
    return new, measure(repaired, rate)


def _report(dataset: PreparedDataset, version: DatasetVersion, clips: tuple[ManifestClip, ...],
            excluded: list[tuple[ManifestClip, str]], readings: Mapping[str, TextNormaliser]) -> dict[str, object]:
    """The report of the dataset with what was excluded in review among its errors."""
    path = dataset.folder / REPORT_FILE
    values: dict[str, Any] = {"found": len(dataset.clips), "errors": [], "warnings": [], "dropped": {}}
    values |= foreign.read_json(path) if path.is_file() else {}
    errors = [error for error in values["errors"] if error["kind"] != "excluded"]
    errors += [{"kind": "excluded", "where": clip.id, "message": f"excluded: {reason}"} for clip, reason in excluded]
    note = (f"Reviewed from {dataset.card.name}: {pluralize(len(version.excluded), 'clip')} excluded, "
            f"{len(version.included)} included again, {pluralize(len(version.changed), 'text')} edited, "
            f"{pluralize(len(version.repaired), 'recording')} repaired; {len(excluded)} excluded in all.")
    characters = Counter(character for clip in clips for character in readings[clip.language].normal(clip.text))
    # Texts may have been corrected: the index of the version measures its own match.
    return {**values, "text_match": None,
            "kept": len(clips), "errors": errors, "notes": [*values.get("notes", ()), note],
            "duration_s": round(sum(clip.duration_s for clip in clips), 3),
            "trimmed_clips": sum(clip.is_trimmed for clip in clips),
            "trimmed_s": round(sum(clip.trimmed_start_s + clip.trimmed_end_s for clip in clips), 3),
            "characters": dict(sorted(characters.items()))}


def index_version(workspace: Workspace, name: str, new: str, reporter: Reporter, engine: Engine = HERE) -> None:
    """Index the clips of `new`, a version of `name`, unless that was done.

    Only recordings without measures are measured, and only texts that changed are normalised again.
    """
    base, dataset = manifest.load(workspace.dataset(name)), manifest.load(workspace.dataset(new))
    if ClipIndex.exists(workspace, dataset.card.fingerprint):
        return
    old = ClipIndex(workspace, base.card.fingerprint)
    measure_dataset(dataset, workspace, reporter, engine)
    language = dataset.card.language
    readings = _readings(workspace, base, language)
    about = {**old.about(), "dataset": new, **reading_names(dataset.card, readings)}
    same = language == base.card.language
    tokenizer = about.get("tokenizer", "") if same else ""
    about["tokenizer"] = tokenizer
    coverage = UNKNOWN_COVERAGE
    if tokenizer in workspace.list_tokenizers():
        front_end = FrontEnd.load(workspace.tokenizers / tokenizer)
        coverage = model_limits.check_texts(dataset.clips, front_end, int(about["longest_tokens"]), tokenizer)

    def clips() -> Iterator[AnalysedClip]:
        for part in chunked(dataset.clips, _INDEXED_AT_ONCE):
            measures = MeasureStore(workspace).load(clip.sha256 for clip in part)
            analysed = old.named(clip.id for clip in part)
            for clip in part:
                earlier = analysed.get(clip.id)
                text = earlier.spoken if same and earlier and earlier.clip.text == clip.text else (
                    readings[clip.language].normal(clip.text))
                too_long, other_text = [coverage.too_long.get(clip.id, "")], ""
                # Speech of the same recording is as long as it was.
                if earlier is not None and earlier.clip.feature_key == clip.feature_key:
                    message = next((finding.message for finding in earlier.findings if finding.kind == "too long"), "")
                    if earlier.clip.text == clip.text:
                        other_text = next((finding.message
                                           for finding in earlier.findings if finding.kind == OTHER_TEXT), "")
                    too_long = [*(part for part in message.split("; ") if "codes of speech" in part), *too_long]
                yield AnalysedClip(clip.id, text, clip.speaker, trimmed_measures(clip, measures),
                                   coverage.unknown.get(clip.id, ""), "; ".join(filter(None, too_long)), clip.text,
                                   other_text)

    build_index(workspace, dataset, clips(), about)
