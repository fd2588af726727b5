"""Prepare a dataset: import a source, cache the features of its clips, measure them and index them for review.

A dataset is written once and never changed, since runs refer to its content: the same source gives the same dataset,
another one under the same name is refused, and what is added to a dataset makes a new one, whose recordings are linked
to those of the old.

Features are extracted from several recordings of like length at once and cached recording by recording, so an
interrupted preparation resumes. Variants of the training clips (`data.augmentation`) are cached the same way, because
training opens no audio.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from array import array
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain, islice
from pathlib import Path

import numpy as np
import torch

from config import confinement
from config.errors import UserError
from config.languages import script_doubt
from config.schema import AS_IS, DEMO, SHARD_IMPORT, SHARD_MERGE, PrepareOptions
from core import compute, recogniser
from core.dataset import languages, model_limits, review
from core.dataset.clip_index import ClipIndex, MeasureStore, build_index, reading_names, trimmed_measures
from core.dataset.languages import describe_language
from core.dataset.model_limits import UNKNOWN_COVERAGE, TokenizerCoverage
from core.jobs.engines import HERE, Engine, LostBatch, run_batches
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize, stage
from core.jobs.shards import Shard, ShardLists
from core.library import dataset_recognisers
from core.library.lineage import Model
from core.sources import dataset_source
from core.sources.downloader import public_name
from core.sources.source_preview import REPORT_FILE
from core.speech.dataset_recogniser import DatasetRecogniser
from core.speech.text_comparison import compare_texts
from core.text import text_rules
from core.workspace import Workspace, resolve_inside
from data import augmentation, manifest, sound_containers
from data.acoustics import audio
from data.augmentation import AudioVariant, AugmentationRecipe
from data.clip_findings import AnalysedClip
from data.disk_collections import DiskDict, chunked
from data.durable_files import atomic_directory, link_or_copy
from data.feature_cache import FeatureCache
from data.front_end import FrontEnd
from data.importers import SkippedRow, SourceEntry, SourceRow, unused_id
from data.manifest import HELD_OUT, TRAIN, ManifestClip, PreparedDataset
from data.measures import Measures, measure
from data.normalisers import Style, TextNormaliser, for_language
from data.splits import Sides, assign, holds_out, note_one_recording, overlaps, why_untrainable, with_sources
from data.text_match import MatchKind, TextMatch
from data.validation import (
    CheckAll,
    CheckedRow,
    RowCheck,
    RowChecker,
    ValidationFinding,
    ValidationReport,
    checked_rows_on_disk,
    store_row,
    validate,
)
from models.base import CTCRecogniser, Extractor, Features
from models.registry import family

_SHOWN_FINDINGS = 10
_BATCH_S, _BATCH_CLIPS = 120.0, 32  # most sound, in seconds with padding, and most clips that are extracted together
_MEASURED_AT_ONCE = 64  # recordings
_CHECKED_AT_ONCE = 16  # rows of a source
_NONE: Mapping[str, str] = {}
_SUFFIXES = {"wav": (".wav",), "flac": (".flac",), "ogg": (".ogg", ".opus", ".oga"), "mp3": (".mp3",),
             "aiff": (".aiff", ".aif"), "au": (".au",), "caf": (".caf",), "w64": (".w64",)}
"""Of clips, by the content of their file."""


def run(options: PrepareOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `datasets/NAME`, its features and its clip index; returns the counts."""
    shard, engine = Shard.parse(options.shard), Engine.from_options(options, options.device, reporter)
    if shard is not None and not shard.is_merge:
        if not resolve_inside(workspace.datasets, options.dataset).exists():
            raise UserError(f"The dataset {options.dataset!r} is not written yet, and its shards share its recordings.",
                            f"Import it first: the same command with --shard {SHARD_IMPORT}.")
        if options.variants:
            raise UserError(f"A shard extracts no variants, and {options.variants} of each clip are asked for.",
                            f"Give --variants with --shard {SHARD_MERGE}/{shard.count}.")
    base = Model.find(workspace, options.model).base
    chosen = family(base.family_name)
    front_end = chosen.load_front_end(base.folder)
    is_new = options.language not in front_end.base_languages
    earlier_codes = manifest.load_card(workspace.dataset(options.add_to)).languages if options.add_to else ()
    other_codes = [code for code in earlier_codes if (code in front_end.base_languages) == is_new]
    if other_codes:
        base_code, new = (other_codes[0], options.language) if is_new else (options.language, other_codes[0])
        raise UserError(f"The model speaks {describe_language(base_code)}, and {describe_language(new)} is new to it: "
                        "one dataset cannot serve both.",
                        "Prepare the recordings under another name, without --add-to.")

    with stage(reporter, "import"):
        if "," in options.language and options.source != AS_IS:
            raise UserError(f"The recordings are said to be in several languages ({options.language}); one is wanted.",
                            "Prepare those of one language, then add those of the next to them: --add-to.")
        if is_new:
            for code in options.language.split(","):
                languages.warn_doubtful_code(code, reporter)
        else:
            speaks_already = f"The model {options.model!r} speaks {describe_language(options.language)} already"
            if options.rules:
                raise UserError(
                    f"{speaks_already} and reads it in its own way: the text rules {options.rules!r} do not apply.",
                    "Leave the text rules out, or give the code of the language that is to be added.")
            reporter.emit(WarningRaised(
                f"{speaks_already}, and nothing of it may change: these recordings are not for training on. A training "
                f"in scope `full` can replay them and measure its drift by them (--replay-datasets {options.dataset}). "
                "If they are in another language, prepare them under another name with its code."))
        dataset, state, report = import_dataset(options, front_end.style, workspace, reporter, engine)
        if is_new and (cause := why_untrainable(dataset.clips)):
            reporter.emit(WarningRaised(f"This dataset alone cannot be trained on: {cause}. Add recordings (--add-to), "
                                        "name the speakers right, or change the held-out share (--held-out)."))

    if options.shard == SHARD_IMPORT:
        return {"dataset": options.dataset, "state": state, "clips": len(dataset.clips), "shard": SHARD_IMPORT,
                "folder": str(dataset.folder)}

    with stage(reporter, "features"):
        compute.setup_device(options.device)
        extractor = FamilyExtractor(base.family_name, base.folder, options.device)
        if shard is not None:
            shard_result = _extract_shard(dataset, extractor, workspace, reporter, engine, shard)
            if not shard.is_merge:
                return shard_result
        failed = extract_features(dataset, extractor, workspace, reporter, _recipe(options, dataset, reporter), engine)
        cache = FeatureCache(workspace.cache, extractor.fingerprint)
        max_speech_length = chosen.max_speech_length(base.folder)
        too_long = model_limits.warn_too_long(dataset, cache, max_speech_length, reporter)

    with stage(reporter, "measure"):
        max_text_length = chosen.max_text_length(base.folder) - 3  # room for start, tag and stop
        coverage = UNKNOWN_COVERAGE
        if not is_new and (fault := front_end.unready(options.language)):
            reporter.emit(WarningRaised(f"The texts could not be counted, and cannot be replayed yet: {fault}"))
        elif not is_new:
            coverage = model_limits.check_texts(dataset.clips, front_end, max_text_length)
        elif tokenizer := model_limits.newest_tokenizer(workspace, front_end, *dataset.card.languages):
            coverage = model_limits.check_texts(dataset.clips, FrontEnd.load(workspace.tokenizers / tokenizer),
                                                max_text_length, tokenizer)
        model_limits.warn_uncovered(coverage, reporter)
        long_speech = {clip.id: f"{codes} codes of speech, the model holds {max_speech_length}"
                       for clip, codes in model_limits.find_too_long(dataset, cache, max_speech_length)}
        readings = _readings(options, front_end.style, workspace)
        model_recogniser = chosen.load_recogniser(base.folder)
        other_texts = _find_other_texts(dataset, readings, model_recogniser, reporter,
                                        thorough=options.compare_all_texts)
        with_findings = index_clips(dataset, workspace, reporter, readings, max_text_length, long_speech, coverage,
                                    other_texts, engine)

    # A recogniser of the dataset hears texts in languages that the model's does not know.
    trained: Result = {}
    minutes = dataset.card.duration_s / 60
    if is_new and options.recogniser and options.source != DEMO and minutes >= dataset_recognisers.MIN_MINUTES:
        trained = _train_recogniser(dataset, workspace, options, reporter)
    dataset_recogniser = _recogniser_of_dataset(dataset, workspace, model_recogniser)
    if dataset_recogniser:
        with stage(reporter, "compare texts"):
            heard_texts = _find_other_texts(dataset, readings, dataset_recogniser, reporter,
                                            thorough=options.compare_all_texts,
                                            except_languages=model_recogniser.languages if model_recogniser else ())
            if heard_texts:
                with_findings = index_clips(dataset, workspace, reporter, readings, max_text_length, long_speech,
                                            coverage, {**other_texts, **heard_texts})
    speakers = ClipIndex(workspace, dataset.card.fingerprint).speakers(0)
    return {
        "dataset": options.dataset, "state": state, "clips": len(dataset.clips),
        "train": dataset.card.train_clips, "held_out": dataset.card.held_out_clips,
        "test": dataset.card.test_clips,
        "minutes": round(dataset.card.duration_s / 60, 2), "read_as": report.form,
        "trimmed_clips": dataset.card.trimmed_clips, "trimmed_s": dataset.card.trimmed_s,
        "left_out": len(report.errors), "warnings": len(report.warnings),
        "features": len(dataset.clips) - failed, "features_failed": failed,
        "too_long": too_long, "text_too_long": len(coverage.too_long), "text_unknown": len(coverage.unknown),
        "texts_match": _shown_match(review.text_match_of(workspace, options.dataset)),
        "clips_with_findings": with_findings, "speakers": speakers.count, "speakers_with_one_clip": speakers.alone,
        **trained, "folder": str(dataset.folder),
    }


def _shown_match(match: TextMatch | None) -> str:
    """Whether texts and clips belong together, with the correlation, for the result."""
    if match is None or match.kind is MatchKind.NOT_MEASURED:
        return "not measured: too few clips, or of too equal lengths"
    offset = f", {match.offset:+d} rows" if match.offset else ""
    return f"{match.kind}{offset}, correlation {match.measured}"


def _train_recogniser(dataset: PreparedDataset, workspace: Workspace, options: PrepareOptions,
                      reporter: Reporter) -> Result:
    """Train the recogniser of the dataset, unless it has one; its time and error. A fault of its own is a warning."""
    start = time.monotonic()
    try:
        record = dataset_recognisers.find(workspace, dataset.card.name) or recogniser.train(
            dataset, workspace, compute.setup_device(options.device), reporter, options.seed)
    except UserError as error:
        reporter.emit(WarningRaised(f"The dataset has no recogniser: {error.message} {error.hint}"))
        return {}
    return {"recogniser_seconds": round(time.monotonic() - start, 1),
            "recogniser_cpu_seconds": record.cpu_seconds,
            **{f"recogniser_cer_{language}": round(rate.error, 4) for language, rate in record.held_out.items()}}


def _readings(options: PrepareOptions, style: Style, workspace: Workspace) -> dict[str, TextNormaliser]:
    """How the texts of each language are read: by the rules of the options, or as those that are added to were."""
    codes = options.language.split(",")
    chosen = text_rules.for_languages(workspace, options.rules, codes)
    readings = {code: text_rules.reading(workspace, rules.name if rules else "", code, for_language(code, style))
                for code, rules in chosen.items()}
    if not options.add_to:
        return readings
    card = manifest.load_card(workspace.dataset(options.add_to))
    earlier = ClipIndex.readings(workspace, card) if ClipIndex.exists(workspace, card.fingerprint) else {
        code: ("", for_language(code, style)) for code in card.languages}
    return {code: text_rules.reading(workspace, name, code, normaliser)
            for code, (name, normaliser) in earlier.items()} | readings


class MergeTarget:
    """A dataset that a source is added to, and what must be known of it, which lies on the disk."""

    def __init__(self, dataset: PreparedDataset, readings: Mapping[str, TextNormaliser], language: str, *,
                 by_speaker: bool = False) -> None:
        self.dataset = dataset
        clips = ((clip, readings[clip.language].normal(clip.text)) for clip in dataset.clips)
        self.sides = Sides.gather(clips, by_speaker=by_speaker, language=language)
        self.by_hash = DiskDict()  # id and text, as JSON, of the clip with these bytes
        for clip in dataset.clips:
            self.by_hash.put(clip.sha256, json.dumps([clip.id, clip.text]))


def import_dataset(options: PrepareOptions, style: Style, workspace: Workspace, reporter: Reporter,
                   engine: Engine = HERE) -> tuple[PreparedDataset, str, ValidationReport]:
    """Write `datasets/NAME`; it, whether it was written now or was there already, and what was found."""
    readings = _readings(options, style, workspace)
    reading = readings[options.language.partition(",")[0]]
    old = _merge_target(options, readings, workspace)
    if options.source == AS_IS:
        if options.add_to:
            raise UserError(f"A dataset as it stands is not added to {options.add_to!r}.",
                            "Give the place that its recordings came from as the source.")
        card = manifest.load(workspace.dataset(options.dataset)).card
        if card.language != options.language:
            raise UserError(f"The dataset {options.dataset!r} is in {card.language!r}, not {options.language!r}.",
                            f"Give {card.language} as its language.")
    target = resolve_inside(workspace.datasets, options.dataset)
    if target.exists():
        existing = manifest.load(target)
        is_same_source = existing.card.source == _source_name(options, old)
        # The source of a reviewed dataset gives other clips than it has.
        is_reviewed = existing.card.reviewed and not options.add_to
        # The shards and their merge share what `--shard import` wrote.
        is_imported = Shard.parse(options.shard) is not None and set(existing.card.languages) <= readings.keys() and (
            existing.card.split == _split_rule(options))
        if options.source == AS_IS or (is_same_source and (is_reviewed or is_imported)):
            _check_audio(existing)
            report = json.loads((target / REPORT_FILE).read_text("utf-8"))
            return existing, "already there", ValidationReport.from_json(report)

    with dataset_source.open_source(options.source, options.language, workspace, reporter,
                                    options.max_clips) as gathered:
        check_all = None
        if engine.name != "here":
            check_all = partial(_check_rows, options, style, workspace, engine, reporter)
        rows, splits, report = _check(gathered, options, reading, old, reporter, check_all)
        _show(report, reporter)
        made_clips = (ManifestClip(row.row.id,
                                   f"audio/{row.row.id}{_suffix(row)}",
                                   row.row.text, options.language, split, row.duration_s, row.row.speaker, row.sha256,
                                   trimmed_start_s=row.trimmed_start_s, trimmed_end_s=row.trimmed_end_s)
                for row, split in zip(rows, splits, strict=True))
        clips = manifest.clips_on_disk(gathered.made)
        for clip in with_sources(made_clips, rows, old.sides if old else Sides()):
            clips.add(clip)
        dataset, state = _write(options, target, old, clips, rows, report, reporter)
    return dataset, state, report


def _split_rule(options: PrepareOptions) -> str:
    rule = f"{options.held_out:g} by {options.split_disjoint_by}, seed {options.seed}"
    return f"{rule}, test {options.test:g}" if options.test else rule


def _source_name(options: PrepareOptions, old: MergeTarget | None) -> str:
    """The source in the card of the dataset."""
    name = public_name(options.source)
    return f"{old.dataset.card.source} + {name}" if old else name


def _merge_target(options: PrepareOptions, readings: Mapping[str, TextNormaliser],
                  workspace: Workspace) -> MergeTarget | None:
    """The dataset to add to."""
    if not options.add_to:
        return None
    if options.add_to == options.dataset:
        raise UserError(
            f"What is added to {options.add_to!r} makes a new dataset: the old one stays as it is, for the runs that "
            "learned from it.",
            f"Choose another name for the new one, such as {options.add_to}-2.",
        )
    dataset = manifest.load(workspace.dataset(options.add_to))
    _check_audio(dataset)
    return MergeTarget(dataset, readings, options.language, by_speaker=options.split_disjoint_by == "speaker")


def _check(gathered: dataset_source.OpenSource, options: PrepareOptions, reading: TextNormaliser,
           old: MergeTarget | None, reporter: Reporter,
           check_all: CheckAll | None) -> tuple[Sequence[CheckedRow], Sequence[str], ValidationReport]:
    """The rows that can be used, the split of each, and what was found."""
    imported = dataset_source.read_rows(gathered, options.language, reporter)
    reporter.emit(Plan(imported.notes))
    if not options.any_script and (doubt := script_doubt(options.language, dataset_source.texts(imported))):
        raise UserError(doubt, f"If the language is not {describe_language(options.language)}, give its own code; "
                               "correct the texts; or accept them as they are (--any-script).")
    total = dataset_source.count_rows(imported)

    def progress(done_count: int) -> None:
        check_stop(reporter, "Stopped before the dataset was written.")
        reporter.emit(Progress(done_count, total, "clips", "checked"))

    def first(limit: int) -> Iterator[SourceEntry]:
        """The entries up to the row number `limit`; all for 0."""
        count = 0
        for entry in imported:
            count += isinstance(entry, SourceRow)
            if limit and count > limit:
                return
            yield entry

    rows, report = validate(first(options.max_clips), reading.normaliser, progress=progress,
                            verbalize=reading.verbalize, folder=gathered.made,
                            remove_unspoken=options.remove_unspoken, keep_edges=options.keep_edges,
                            channel=options.channel, check_all=check_all)
    notes = imported.notes
    if old is not None:
        rows, findings, note = merge_rows(old, rows, public_name(options.source), gathered.made)
        report, notes = report.with_warnings(findings), (*notes, note)
        reporter.emit(Plan(notes))
    report = replace(report, form=imported.form, notes=notes)

    by_speaker, sides = options.split_disjoint_by == "speaker", old.sides if old else Sides()
    splits = assign(rows, options.held_out, options.seed, by_speaker=by_speaker, existing=sides, test=options.test)
    if options.held_out and any(row.row.split for row in rows) and not holds_out(rows):
        reporter.emit(WarningRaised(f"The source's own split holds out none of these {len(rows)} clips, so "
                                    f"{options.held_out:.0%} of them are held out here."))
    elif options.held_out and holds_out(rows) and not any(row.row.split == HELD_OUT for row in rows):
        reporter.emit(Plan((f"The source has a test set and no development set: {options.held_out:.0%} of the clips "
                            "are held out of its training set to select checkpoints. The test set selects none.",)))

    # A training clip that shares a text or a recording with a held-out one would make the error look smaller.
    out = overlaps(rows, splits, by_speaker=by_speaker, existing=sides)
    if old is None and not any(split == TRAIN for number, split in enumerate(splits) if number not in out):
        raise UserError(f"Nothing is left to train on: {len(out)} clips share a text or a recording with others that "
                        f"the source holds out, such as {next(iter(out.values())).message}.",
                        "Leave the source's split column out, so that the clips are held out by recording.")
    if out:
        remaining = checked_rows_on_disk(gathered.made)
        for number, row in enumerate(rows):
            if number not in out:
                remaining.add(row)
        rows, splits = remaining, tuple(split for number, split in enumerate(splits) if number not in out)
        report = replace(report.with_errors(out.values()), kept=report.kept - len(out),
                         duration_s=round(sum(row.duration_s for row in rows), 3))

    trimmed_s = [row.trimmed_start_s + row.trimmed_end_s for row in rows]
    report = replace(report, trimmed_clips=sum(seconds > 0 for seconds in trimmed_s),
                     trimmed_s=round(sum(trimmed_s), 3))
    return rows, splits, report.with_warnings(note_one_recording(rows, splits) if old is None else ())


def _check_rows(options: PrepareOptions, style: Style, workspace: Workspace, engine: Engine, reporter: Reporter,
                entries: Iterable[SourceEntry]) -> Iterator[tuple[SourceEntry, RowCheck | None]]:
    """Check rows in batches; one that kills its worker is skipped."""
    load = partial(_CheckingWorker.load, options, style, workspace)
    for batch, checks in run_batches(load, _CheckingWorker.check, chunked(entries, _CHECKED_AT_ONCE), engine, reporter,
                                     lambda: "Stopped before the dataset was written."):
        if isinstance(checks, LostBatch):
            entry = batch[0]
            yield SkippedRow(entry.location, f"it could not be checked: {checks.reason}"), None
        else:
            yield from zip(batch, checks, strict=True)


@dataclass(frozen=True)
class _CheckingWorker:
    """Checks rows of a source."""

    checker: RowChecker

    @classmethod
    def load(cls, options: PrepareOptions, style: Style, workspace: Workspace, _reporter: Reporter) -> _CheckingWorker:
        reading = _readings(options, style, workspace)[options.language.partition(",")[0]]
        return cls(RowChecker(reading, remove_unspoken=options.remove_unspoken, keep_edges=options.keep_edges,
                              channel=options.channel))

    def check(self, batch: Sequence[SourceEntry]) -> list[RowCheck | None]:
        return [self.checker.check(entry) if isinstance(entry, SourceRow) else None for entry in batch]


def merge_rows(old: MergeTarget, rows: Sequence[CheckedRow], source: str,
               folder: Path | None = None) -> tuple[Sequence[CheckedRow], tuple[ValidationFinding, ...], str]:
    """The rows that are new, with free ids; rows whose text differs from the old one; and a line that counts them.

    The old dataset keeps its clips, ids and texts; no id gains a prefix, so merging again changes none.
    """
    new = checked_rows_on_disk(folder)
    findings: list[ValidationFinding] = []
    name = old.dataset.card.name
    # A large dataset may have more ids than fit into memory, so they are on the disk.
    with DiskDict() as ids:
        for clip in old.dataset.clips:
            ids.put(clip.id.casefold(), clip.id)
        for row in rows:
            same_sound = old.by_hash.get(row.sha256)
            if same_sound is None:
                new.add(replace(row, row=replace(row.row, id=unused_id(row.row.id, row.row.location, ids))))
                continue
            existing_id, text = json.loads(same_sound)
            if text != row.row.text:
                message = f"the recording is in {name} as {existing_id}, with a text that stays: {text[:80]!r}"
                findings.append(ValidationFinding("another text", row.row.location, message))

    repeated = len(rows) - len(new)
    note = (f"{pluralize(len(new), 'clip')} of {source} {'is' if len(new) == 1 else 'are'} added to the "
            f"{len(old.dataset.clips)} of {name}")
    return new, tuple(findings), f"{note}; {repeated} were there already." if repeated else f"{note}."


def _show(report: ValidationReport, reporter: Reporter) -> None:
    if report.text_match is not None and report.text_match.is_finding:
        reporter.emit(WarningRaised(f"{report.text_match.message} {report.text_match.hint}"))
    if report.errors:
        reporter.emit(WarningRaised(f"{len(report.errors)} of {report.found} rows are excluded."))
    for findings, effect in ((report.errors, "excluded"), (report.warnings, "kept")):
        named = _shown(findings)
        for finding in named:
            place = f"{finding.where}: " if finding.where else ""
            reporter.emit(WarningRaised(f"{place}{finding.message} ({finding.kind}; {effect})"))
        if len(findings) > len(named):
            reporter.emit(WarningRaised(f"... and {len(findings) - len(named)} more {effect}, all in "
                                        f"{REPORT_FILE}."))


def _shown(findings: Sequence[ValidationFinding]) -> list[ValidationFinding]:
    """The first findings, and the first of each kind: ten doubtful paces hide no other kind."""
    listed = list(findings[:_SHOWN_FINDINGS])
    if len(findings) > _SHOWN_FINDINGS:
        of_kind: dict[str, ValidationFinding] = {}
        for finding in findings:
            of_kind.setdefault(finding.kind, finding)
        listed = [*dict.fromkeys([*of_kind.values(), *listed])][:max(_SHOWN_FINDINGS, len(of_kind))]
    return listed


def _write(options: PrepareOptions, target: Path, old: MergeTarget | None, clips: Sequence[ManifestClip],
           rows: Sequence[CheckedRow], report: ValidationReport, reporter: Reporter) -> tuple[PreparedDataset, str]:
    """The dataset on disk, and whether it was written now or was there already."""
    old_card = old.dataset.card if old else None
    source = _source_name(options, old)
    licences = (old_card.licence if old_card else "", options.licence.strip())
    licence = "; ".join(dict.fromkeys(part for part in licences if part))
    rule = _split_rule(options)

    def all_clips() -> Iterator[ManifestClip]:
        return chain(old.dataset.clips if old else (), clips)

    codes = dict.fromkeys((*(old_card.languages if old_card else ()), options.language))
    card = manifest.make_card(options.dataset, ",".join(codes), source, all_clips(), licence, rule)
    if target.exists():
        stored = manifest.load(target)
        if stored.card.fingerprint != card.fingerprint:
            if not _differ_in_edges_alone(stored.clips, all_clips()):
                raise UserError(
                    f"There already is another dataset named {options.dataset!r}: "
                    f"{pluralize(stored.card.clips, 'clip')} in {stored.card.language!r} from {stored.card.source!r}, "
                    f"the new one has {card.clips}.",
                    f"Choose another dataset name; with --add-to {options.dataset} it will hold both.",
                )
            if options.keep_edges:
                raise UserError(
                    f"The dataset {options.dataset!r} has {pluralize(stored.card.trimmed_clips, 'clip')} whose silence "
                    "at the ends is trimmed, and a dataset never changes.",
                    "Choose another dataset name to keep the silence.")
            reporter.emit(WarningRaised(
                f"The dataset {options.dataset!r} stays as it is, with silence at the ends of "
                f"{pluralize(card.trimmed_clips, 'clip')} ({card.trimmed_s:.0f} s) that would be trimmed now. Prepare "
                "the recordings under another name to trim it."))
        _check_audio(stored)
        # A licence is added to a dataset that has none.
        if licence and licence != stored.card.licence:
            if stored.card.licence:
                raise UserError(
                    f"The dataset {options.dataset!r} has the licence {stored.card.licence!r}, not {licence!r}.",
                    "Leave the licence out, or prepare the source under another name.")
            stored = replace(stored, card=replace(stored.card, licence=licence))
            manifest.save_card(stored.folder, stored.card)
        return stored, "already there"

    if old and not clips:
        raise UserError(f"Everything in {public_name(options.source)} is in {options.add_to!r} already.",
                        "There is nothing to add.")
    with atomic_directory(target) as folder:
        (folder / "audio").mkdir()
        # Files of the old dataset are linked, because a dataset never changes.
        if old:
            for clip in old.dataset.clips:
                link_or_copy(old.dataset.audio_path(clip), folder / clip.audio)
        _copy_audio(clips, rows, folder)
        manifest.save(folder, card, all_clips())
        report.save(folder / REPORT_FILE)
    return manifest.load(target), "written"


def _suffix(row: CheckedRow) -> str:
    """The suffix of a clip in the dataset, by what the file is."""
    if row.row.is_part or row.is_rewritten:
        return ".flac"
    kind = sound_containers.content_of(row.row.audio)
    suffix = row.row.audio.suffix.lower()
    return suffix if suffix in _SUFFIXES.get(kind, (suffix,)) else _SUFFIXES[kind][0]


def _differ_in_edges_alone(clips: Iterable[ManifestClip], other_clips: Iterable[ManifestClip]) -> bool:
    """Whether the datasets are the same but for the silence at the ends of their clips."""
    return manifest.fingerprint(manifest.with_edges(clips)) == manifest.fingerprint(manifest.with_edges(other_clips))


def _copy_audio(clips: Iterable[ManifestClip], rows: Sequence[CheckedRow], folder: Path) -> None:
    for clip, row in zip(clips, rows, strict=True):
        target = folder / clip.audio
        if row.row.is_part or row.is_rewritten:
            stored = store_row(row.row)
            assert stored is not None
            target.write_bytes(stored.content)
        else:
            with confinement.verified(row.row.audio) as source:
                shutil.copyfile(source, target)
        with open(target, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != row.sha256:
                raise UserError(f"{row.row.audio} was changed while it was imported.",
                                "Import it again when nothing writes to it.")


def _check_audio(dataset: PreparedDataset) -> None:
    absent = [clip.audio for clip in dataset.clips if not dataset.audio_path(clip).is_file()]
    if absent:
        raise UserError(
            f"The dataset {dataset.card.name!r} lacks {len(absent)} of its recordings, such as {absent[0]}.",
            "Put them back, or prepare the source again under another name.",
        )


def _recipe(options: PrepareOptions, dataset: PreparedDataset, reporter: Reporter) -> AugmentationRecipe | None:
    """The variants that were asked for, else those that the dataset was prepared with before."""
    earlier = augmentation.load(dataset.folder)
    if options.variants == 0:
        return earlier
    recipe = AugmentationRecipe(options.variants, options.variant_speed, options.variant_pitch, options.variant_noise,
                                options.seed)
    if earlier not in (None, recipe):
        reporter.emit(WarningRaised(f"The dataset's variants change: {recipe}; they were {earlier}. Those stay in the "
                                    "cache, and a run that used them can be resumed when they are asked for again."))
    return recipe


class FamilyExtractor:
    """The extractor of a base model, loaded at its first use. It is pickled without weights, for workers."""

    def __init__(self, family_name: str, model_folder: Path, device: str) -> None:
        self._family_name, self._model_folder, self._device = family_name, model_folder, device
        self.fingerprint = family(family_name).extractor_fingerprint(model_folder)
        self._extractor: Extractor | None = None

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_extractor": None}

    def _loaded(self) -> Extractor:
        if self._extractor is None:
            device = compute.setup_device(self._device)
            self._extractor = family(self._family_name).load_extractor(self._model_folder, device)
        return self._extractor

    @cached_property
    def sample_rate(self) -> int:
        return self._loaded().sample_rate

    def extract(self, waveform: torch.Tensor) -> Features:
        return self._loaded().extract(waveform)

    def extract_batch(self, waveforms: Sequence[torch.Tensor]) -> list[Features]:
        return self._loaded().extract_batch(waveforms)


def extract_features(dataset: PreparedDataset, extractor: Extractor, workspace: Workspace, reporter: Reporter,
                     recipe: AugmentationRecipe | None = None, engine: Engine = HERE) -> int:
    """Cache the features of every clip that has none yet; the number of clips that failed, each named in a warning.

    With a `recipe` the variants of the training clips are cached as well. Other engines than `here` pickle `extractor`.
    """
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    failed = _extract(_Takes(dataset, cache), extractor, reporter, "clips", engine)
    if failed == len(dataset.clips):
        raise UserError(f"None of the {failed} clips gave features.", "The warnings above name the reason of each.")
    keys: Iterator[str] = (clip.feature_key for clip in dataset.clips)
    if recipe is not None:
        variants = _Takes(dataset, cache, recipe)
        _extract(variants, extractor, reporter, "variants", engine)
        augmentation.save(dataset.folder, recipe)
        keys = chain(keys, (take.key for clip in dataset.clips for take in variants.of(clip)))
    cache.save_pack(dataset.card.fingerprint, keys)
    return failed


@dataclass(frozen=True)
class _Take:
    """A recording as it is, or a variant of it, and its key in the cache."""

    name: str
    clip: ManifestClip
    key: str
    variant: AudioVariant | None = None

    def load(self, dataset: PreparedDataset, sample_rate: int) -> torch.Tensor:
        """Waveform (S,) at `sample_rate` Hz."""
        waveform = audio.load(dataset.audio_path(self.clip), sample_rate, self.clip.trimmed_start_s,
                              self.clip.trimmed_end_s)
        if self.variant is None:
            return waveform
        return torch.from_numpy(augmentation.apply(waveform.numpy(), sample_rate, self.variant, self.key))


@dataclass(frozen=True)
class _Takes:
    """The recordings of a dataset, or with a recipe the variants of those that are trained on and have features."""

    dataset: PreparedDataset
    cache: FeatureCache
    recipe: AugmentationRecipe | None = None

    def of(self, clip: ManifestClip) -> list[_Take]:
        """The takes of one clip."""
        if self.recipe is None:
            return [_Take(clip.id, clip, clip.feature_key)]
        if clip.split != TRAIN or not self.cache.has(clip.feature_key):
            return []
        return [_Take(f"{clip.id}, variant {number}", clip, key, variant)
                for number, (key, variant) in enumerate(self.recipe.of(clip.feature_key), 1)]

    def waiting(self, *, cached: bool = False) -> tuple[int, np.ndarray]:
        """How many takes there are; and (W, 2) numbers of clip and take of those without features, longest first.

        `cached`: those with features too.
        """
        total = 0
        numbers, seconds = array("i"), array("f")
        for place, clip in enumerate(self.dataset.clips):
            for number, take in enumerate(self.of(clip)):
                total += 1
                if cached or not self.cache.has(take.key):
                    numbers.extend((place, number))
                    seconds.append(clip.duration_s)
        order = np.argsort(-np.array(seconds), kind="stable")
        return total, np.array(numbers, dtype=np.int32).reshape(-1, 2)[order]

    def batches(self, pending: np.ndarray) -> Iterator[list[_Take]]:
        """Takes of like length together, the longest first: memory that will not suffice shows at the start."""
        takes = (self.of(self.dataset.clips[place])[number] for place, number in pending)
        for longest in takes:
            count = max(1, min(_BATCH_CLIPS, int(_BATCH_S / max(longest.clip.duration_s, 0.1))))
            yield [longest, *islice(takes, count - 1)]


def _extract_shard(dataset: PreparedDataset, extractor: Extractor, workspace: Workspace, reporter: Reporter,
                   engine: Engine, shard: Shard) -> Result:
    """Cache the features of the clips of a shard; or, to merge, check that the shards have left no gap."""
    takes = _Takes(dataset, FeatureCache(workspace.cache, extractor.fingerprint))
    # Every shard forms the same batches, whatever the others have cached meanwhile.
    _, every_take = takes.waiting(cached=True)
    lists = ShardLists(takes.cache.root / takes.cache.fingerprint / "shards" / dataset.card.fingerprint,
                       [[take.key for take in batch] for batch in takes.batches(every_take)])
    if shard.is_merge:
        failed_keys = lists.check(shard.count, takes.cache.has)
        reporter.emit(Plan((f"{pluralize(shard.count, 'shard')} complete: {pluralize(len(every_take), 'clip')}, "
                            f"{len(failed_keys)} without features.",)))
        return {}

    own_batches = list(shard.select(takes.batches(every_take)))
    pending = [batch for batch in own_batches if not all(takes.cache.has(take.key) for take in batch)]
    total = sum(map(len, own_batches))
    failed = _extract_batches(takes, pending, total, total - sum(map(len, pending)), extractor, reporter, "clips",
                              engine)
    keys = [take.key for batch in own_batches for take in batch]
    lists.save(shard, [key for key in keys if not takes.cache.has(key)])
    return {"dataset": dataset.card.name, "shard": str(shard), "clips": total, "features": total - failed,
            "features_failed": failed}


def _extract(takes: _Takes, extractor: Extractor, reporter: Reporter, unit: str, engine: Engine) -> int:
    """Cache the features of the takes that have none; how many failed, each named in a warning."""
    total, pending = takes.waiting()
    return _extract_batches(takes, takes.batches(pending), total, total - len(pending), extractor, reporter, unit,
                            engine)


def _extract_batches(takes: _Takes, batches: Iterable[Sequence[_Take]], total: int, done_count: int,
                     extractor: Extractor, reporter: Reporter, unit: str, engine: Engine) -> int:
    """Cache the features of batches, with `done_count` of `total` takes done before; how many failed."""
    failed = 0
    if done_count:
        reporter.emit(Progress(done_count, total, unit, "cached before"))

    def stop_message() -> str:
        return f"Stopped after {done_count} of {total} {unit}; they are kept."

    # The clips stay with the driver: they may lie in a file of this process.
    load = partial(_ExtractionWorker, replace(takes.dataset, clips=()), takes.cache, extractor)
    for batch, failed_count in run_batches(load, _ExtractionWorker.extract, batches, engine, reporter, stop_message):
        if isinstance(failed_count, LostBatch):
            reporter.emit(WarningRaised(f"{batch[0].name} has no features: {failed_count.reason}."))
            failed_count = len(batch)
        failed += failed_count
        done_count += len(batch)
        reporter.emit(Progress(done_count, total, unit, batch[-1].name))
    return failed


@dataclass(frozen=True)
class _ExtractionWorker:
    """Extracts the features of takes and caches them."""

    dataset: PreparedDataset  # without clips
    cache: FeatureCache
    extractor: Extractor
    reporter: Reporter

    def extract(self, batch: Sequence[_Take]) -> int:
        """Cache the features of a batch; how many takes failed, each named in a warning."""
        # A take that cannot be read is named, and the others go on.
        waveforms: list[tuple[_Take, torch.Tensor]] = []
        for take in batch:
            try:
                waveforms.append((take, take.load(self.dataset, self.extractor.sample_rate)))
            except UserError as error:
                self.reporter.emit(WarningRaised(f"{take.name} has no features: {error.message}"))
        extracted: list[tuple[_Take, Features]] = []
        try:
            batch_features = self.extractor.extract_batch([wave for _, wave in waveforms]) if waveforms else []
            extracted = [(take, features) for (take, _), features in zip(waveforms, batch_features, strict=True)]
        except (UserError, torch.OutOfMemoryError):
            # Takes are extracted one by one, so that the bad one is named and the others are kept.
            for take, waveform in waveforms:
                try:
                    extracted.append((take, self.extractor.extract(waveform)))
                except (UserError, torch.OutOfMemoryError) as error:
                    reason = (error.message if isinstance(error, UserError)
                              else "it does not fit in the memory of the device.")
                    self.reporter.emit(WarningRaised(f"{take.name} has no features: {reason}"))

        for take, features in extracted:
            self.cache.save(take.key, features.arrays)
        return len(batch) - len(extracted)


def measure_dataset(dataset: PreparedDataset, workspace: Workspace, reporter: Reporter, engine: Engine = HERE) -> None:
    """Measure the recordings that were not measured yet; a stop keeps what was measured."""
    store = MeasureStore(workspace)
    done_count, total = 0, len(dataset.clips)

    def batches() -> Iterator[list[ManifestClip]]:
        nonlocal done_count
        for part in chunked(dataset.clips, _MEASURED_AT_ONCE):
            measures = store.load(clip.sha256 for clip in part)
            pending = [clip for clip in part if clip.sha256 not in measures]
            done_count += len(part) - len(pending)
            if pending:
                yield pending

    def stop_message() -> str:
        return f"Stopped after measuring {done_count} of {total} clips; they are kept."

    load = partial(_MeasuringWorker, replace(dataset, clips=()))
    for batch, new_measures in run_batches(load, _MeasuringWorker.measure, batches(), engine, reporter, stop_message):
        if isinstance(new_measures, LostBatch):
            reporter.emit(WarningRaised(f"{batch[0].id} could not be measured: {new_measures.reason}."))
        else:
            store.save(new_measures)
        done_count += len(batch)
        reporter.emit(Progress(done_count, total, "clips", "measured"))


@dataclass(frozen=True)
class _MeasuringWorker:
    """Measures recordings."""

    dataset: PreparedDataset  # without clips
    reporter: Reporter

    def measure(self, batch: Sequence[ManifestClip]) -> dict[str, Measures]:
        """The measures by hash; a clip that cannot be read is named in a warning."""
        measures = {}
        for clip in batch:
            try:
                waveform, rate = audio.read(self.dataset.audio_path(clip))
                measures[clip.sha256] = measure(waveform.numpy(), rate)
            except UserError as error:
                self.reporter.emit(WarningRaised(f"{clip.id} could not be measured: {error.message}"))
        return measures


def _recogniser_of_dataset(dataset: PreparedDataset, workspace: Workspace,
                           model_recogniser: CTCRecogniser | None) -> DatasetRecogniser | None:
    """The dataset's own recogniser, if it measures a language that the model's does not know."""
    record = dataset_recognisers.find(workspace, dataset.card.name)
    model_languages = model_recogniser.languages if model_recogniser is not None else ()
    if record is None or not set(record.languages) - set(model_languages):
        return None
    return DatasetRecogniser.load(dataset_recognisers.folder_of(workspace, dataset.card.name), torch.device("cpu"))


def _find_other_texts(dataset: PreparedDataset, readings: Mapping[str, TextNormaliser],
                      recogniser: CTCRecogniser | None, reporter: Reporter, *, thorough: bool,
                      except_languages: Collection[str] = ()) -> dict[str, str]:
    """By id, in words, the clips in which the recogniser hears another text; none in a language that it lacks."""
    messages: dict[str, str] = {}
    codes = [code for code in dataset.card.languages if recogniser is not None and code in recogniser.languages
             and code not in except_languages]
    texts = [readings[clip.language].normal(clip.text) for clip in dataset.clips] if codes else []

    def progress(done_count: int, total: int) -> None:
        check_stop(reporter, f"Stopped after comparing {done_count} of {total} clips with other texts.")
        reporter.emit(Progress(done_count, total, "clips", "compared with other texts"))

    for code in codes:
        assert recogniser is not None
        comparison = compare_texts(dataset, texts, recogniser, code, progress, thorough=thorough)
        messages |= comparison.messages
        if comparison.warning:
            reporter.emit(WarningRaised(comparison.warning))
    return messages


def index_clips(dataset: PreparedDataset, workspace: Workspace, reporter: Reporter,
                readings: Mapping[str, TextNormaliser], max_text_length: int = 0,
                long_speech: Mapping[str, str] = _NONE, coverage: TokenizerCoverage = UNKNOWN_COVERAGE,
                other_texts: Mapping[str, str] = _NONE, engine: Engine = HERE) -> int:
    """Measure and index the clips of `dataset`; how many of them have findings.

    `readings`: by language. `max_text_length`: characters that the model can hold, 0 where unknown.
    `long_speech`: by id, in words, the clips whose speech is longer than the model can hold. `other_texts`: by id, in
    words, the clips in which a recogniser hears another text.
    """
    measure_dataset(dataset, workspace, reporter, engine)
    about = {"dataset": dataset.card.name, **reading_names(dataset.card, readings),
             # where the texts were counted in tokens, their length in characters does not matter
             "max_text_length": "0" if coverage.checked else str(max_text_length),
             "tokenizer": coverage.tokenizer, "longest_tokens": str(max_text_length)}
    store = MeasureStore(workspace)

    def clips() -> Iterator[AnalysedClip]:
        for part in chunked(dataset.clips, _MEASURED_AT_ONCE):
            measures = store.load(clip.sha256 for clip in part)
            for clip in part:
                too_long = filter(None, (long_speech.get(clip.id), coverage.too_long.get(clip.id)))
                text = readings[clip.language].normal(clip.text)
                yield AnalysedClip(clip.id, text, clip.speaker, trimmed_measures(clip, measures),
                                   coverage.unknown.get(clip.id, ""), "; ".join(too_long), clip.text,
                                   other_texts.get(clip.id, ""))

    with_findings = build_index(workspace, dataset, clips(), about)
    if with_findings:
        reporter.emit(Plan((f"{with_findings} of {len(dataset.clips)} clips have findings: review them on the Data "
                            "tab, the worst first.",)))
    return with_findings
