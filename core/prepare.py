"""Import a dataset, check it, split it, and cache its features.

The dataset is written once and never changed: the same source gives the same dataset, and
another one under the same name is refused. Features are extracted from several recordings
of like length at once and cached recording by recording, so an interrupted preparation goes
on where it was.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import data
from config.errors import UserError
from config.languages import language_name
from config.schema import PrepareOptions
from core import compute
from core.aside import written_aside
from core.catalog import family_of
from core.journal import Plan, Progress, Result, Warned
from core.lengths import tell_of_long
from core.reporter import Reporter, check_stop, stage
from core.workspace import Workspace, resolve_inside
from data import audio, manifest
from data.features import FeatureCache
from data.front_end import FrontEnd
from data.importers import import_source
from data.manifest import Clip, Dataset
from data.normalise import Style, for_language
from data.splits import assign, leaks, with_sources
from data.validation import CheckedRow, Report, row_bytes, validate
from models.base import Extractor, Features
from models.registry import family

REPORT_FILE = "report.json"
SHOWN_FINDINGS = 10
_BATCH_S, _BATCH_CLIPS = 120.0, 32  # most sound, in seconds with padding, and most clips that are extracted together


@dataclass(frozen=True)
class _Checked:
    """What an import came to, before anything is written."""

    clips: tuple[Clip, ...]
    rows: tuple[CheckedRow, ...]
    report: Report


def run(options: PrepareOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `datasets/NAME` and its features; hands back the counts."""
    model_folder = workspace.model(options.model)
    source = source_folder(options.source, options.language)
    with stage(reporter, "import"):
        front_end = family(family_of(workspace, options.model)).front_end(model_folder)
        _check_new(options, front_end)
        checked = _import(source, options, front_end.style, reporter)
    dataset, state = _write(checked, options, workspace)
    with stage(reporter, "features"):
        extractor = family(family_of(workspace, options.model)).extractor(model_folder, compute.prepare(options.device))
        failed = extract_features(dataset, extractor, workspace, reporter)
        longest = family(family_of(workspace, options.model)).longest_speech(model_folder)
        long = tell_of_long(dataset, FeatureCache(workspace.cache, extractor.fingerprint), longest, reporter)
    return {
        "dataset": options.dataset, "state": state, "clips": len(dataset.clips),
        "train": dataset.card.train_clips, "held_out": dataset.card.held_out_clips,
        "minutes": round(dataset.card.duration_s / 60, 2), "left_out": len(checked.report.errors),
        "warnings": len(checked.report.warnings), "features": len(dataset.clips) - failed, "features_failed": failed,
        "too_long": long,
        "folder": str(dataset.folder),
    }


def _check_new(options: PrepareOptions, front_end: FrontEnd) -> None:
    if options.language in front_end.base_languages:
        raise UserError(
            f"The model {options.model!r} speaks {language_name(options.language)} ({options.language}) already: "
            "nothing of it may change.",
            f"Give the code of the language to add; {', '.join(front_end.base_languages)} are there.",
        )


def source_folder(source: str, language: str) -> Path:
    """Where the source lies; `demo` is the dataset of `language` that ships with the app."""
    if source != "demo":
        return Path(source).expanduser()
    demos = Path(str(data.__file__)).parent / "demo"
    folder = demos / language
    if not folder.is_dir():
        there = ", ".join(sorted(path.name for path in demos.glob("*") if path.is_dir())) or "none"
        raise UserError(
            f"There is no demo dataset for the language {language!r} (there: {there}).",
            "Choose one of these languages, or give a folder or table of your own as source.",
        )
    return folder


def features_of(clip: Clip, cache: FeatureCache) -> Features:
    """The cached features of a clip."""
    return Features(**cache.load(clip.sha256))


def extract_features(dataset: Dataset, extractor: Extractor, workspace: Workspace, reporter: Reporter) -> int:
    """Cache the features of every clip that has none yet; the number of clips that failed, each named in a warning."""
    cache, total = FeatureCache(workspace.cache, extractor.fingerprint), len(dataset.clips)
    waiting = [clip for clip in dataset.clips if not cache.has(clip.sha256)]
    done, failed = total - len(waiting), 0
    if done:
        reporter.emit(Progress(done, total, "clips", "cached before"))
    for batch in _batches(waiting):
        check_stop(reporter, f"Stopped after {done} of {total} clips; they are kept.")
        found = _extracted(batch, dataset, extractor, reporter)
        for clip, features in found:
            cache.save(clip.sha256, vars(features))
        failed += len(batch) - len(found)
        done += len(batch)
        reporter.emit(Progress(done, total, "clips", batch[-1].id))
    if failed == total:
        raise UserError(f"None of the {failed} clips gave features.", "The warnings above name the reason of each.")
    cache.save_pack(dataset.card.fingerprint, [clip.sha256 for clip in dataset.clips])
    return failed


def _batches(clips: Sequence[Clip]) -> list[list[Clip]]:
    """Clips of like length together, the longest first: memory that will not suffice shows at the start."""
    batches: list[list[Clip]] = []
    room = 0
    for clip in sorted(clips, key=lambda clip: clip.duration_s, reverse=True):
        if room == 0:
            room = max(1, min(_BATCH_CLIPS, int(_BATCH_S / max(clip.duration_s, 0.1))))
            batches.append([])
        batches[-1].append(clip)
        room -= 1
    return batches


def _extracted(batch: Sequence[Clip], dataset: Dataset, extractor: Extractor,
               reporter: Reporter) -> list[tuple[Clip, Features]]:
    """The clips of `batch` with their features; each that gives none is named in a warning."""
    heard: list[tuple[Clip, torch.Tensor]] = []
    for clip in batch:
        try:
            heard.append((clip, audio.load(dataset.audio_path(clip), extractor.sample_rate)))
        except UserError as error:
            reporter.emit(Warned(f"{clip.id} has no features: {error.message}"))
    try:
        made = extractor.extract_many([waveform for _, waveform in heard]) if heard else []
        return [(clip, features) for (clip, _), features in zip(heard, made, strict=True)]
    except (UserError, torch.OutOfMemoryError):
        return _one_by_one(heard, extractor, reporter)


def _one_by_one(heard: Sequence[tuple[Clip, torch.Tensor]], extractor: Extractor,
                reporter: Reporter) -> list[tuple[Clip, Features]]:
    """After a batch failed: what each clip gives, so that the bad one is named and the others are kept."""
    found = []
    for clip, waveform in heard:
        try:
            found.append((clip, extractor.extract(waveform)))
        except (UserError, torch.OutOfMemoryError) as error:
            reason = error.message if isinstance(error, UserError) else "it does not fit in the memory of the device."
            reporter.emit(Warned(f"{clip.id} has no features: {reason}"))
    return found


def _import(source: Path, options: PrepareOptions, style: Style, reporter: Reporter) -> _Checked:
    def progress(done: int) -> None:
        check_stop(reporter, "Stopped before the dataset was written.")
        reporter.emit(Progress(done, total, "clips", "checked"))

    imported = import_source(source, options.language)
    reporter.emit(Plan(imported.notes))
    total = sum(1 for _ in imported)
    rows, report = validate(imported, for_language(options.language, style), progress=progress)
    report = replace(report, form=imported.form, notes=imported.notes)
    splits = assign(rows, options.held_out, options.seed, by_speaker=options.held_out_apart == "speaker")
    report = report.with_warnings(leaks(rows, splits))
    _show(report, reporter)
    clips = tuple(
        Clip(row.row.id, f"audio/{row.row.id}{'.flac' if row.row.is_part else row.row.audio.suffix.lower()}",
             row.row.text, options.language, split, row.duration_s, row.row.speaker, row.sha256)
        for row, split in zip(rows, splits, strict=True)
    )
    return _Checked(with_sources(clips, rows), rows, report)


def _show(report: Report, reporter: Reporter) -> None:
    if report.errors:
        reporter.emit(Warned(f"{len(report.errors)} of {report.found} rows are left out."))
    for findings, effect in ((report.errors, "left out"), (report.warnings, "kept")):
        for finding in findings[:SHOWN_FINDINGS]:
            place = f"{finding.where}: " if finding.where else ""
            reporter.emit(Warned(f"{place}{finding.message} ({finding.kind}; {effect})"))
        if len(findings) > SHOWN_FINDINGS:
            reporter.emit(Warned(f"... and {len(findings) - SHOWN_FINDINGS} more {effect}, all in {REPORT_FILE}."))


def _write(checked: _Checked, options: PrepareOptions, workspace: Workspace) -> tuple[Dataset, str]:
    """The dataset on disk, and whether it was written now or was there already."""
    target = resolve_inside(workspace.datasets, options.dataset)
    card = manifest.make_card(options.dataset, options.language, options.source, checked.clips)
    if target.exists():
        there = manifest.load(target)
        if there.card.fingerprint != card.fingerprint:
            raise UserError(
                f"There already is another dataset named {options.dataset!r}: {there.card.clips} clips in "
                f"{there.card.language!r} from {there.card.source!r}, the new one has {card.clips}.",
                "Choose another dataset name.",
            )
        _check_audio(there)
        return there, "already there"
    with written_aside(target) as folder:
        (folder / "audio").mkdir()
        _copy_audio(checked.clips, checked.rows, folder)
        manifest.save(folder, card, checked.clips)
        report = json.dumps(checked.report.to_json(), ensure_ascii=False, indent=1)
        (folder / REPORT_FILE).write_text(report + "\n", encoding="utf-8")
    return manifest.load(target), "written"


def _copy_audio(clips: Sequence[Clip], rows: Sequence[CheckedRow], folder: Path) -> None:
    for clip, row in zip(clips, rows, strict=True):
        if row.row.is_part:
            (folder / clip.audio).write_bytes(row_bytes(row.row))
        else:
            shutil.copyfile(row.row.audio, folder / clip.audio)
        if _sha256(folder / clip.audio) != row.sha256:
            raise UserError(f"{row.row.audio} was changed while it was imported.", "Import it again when it is whole.")


def _sha256(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_audio(dataset: Dataset) -> None:
    missing = [clip.audio for clip in dataset.clips if not dataset.audio_path(clip).is_file()]
    if missing:
        raise UserError(
            f"The dataset {dataset.card.name!r} lacks {len(missing)} of its recordings, such as {missing[0]}.",
            "Put them back, or prepare the source again under another name.",
        )
