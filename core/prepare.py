"""Import a dataset, check it, split it, and cache its features.

The dataset is written once and never changed: the same source gives the same dataset, and
another one under the same name is refused. Features are cached a recording at a time, so
an interrupted preparation goes on where it was.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

import data
from config.errors import UserError
from config.schema import PrepareOptions
from core.aside import written_aside
from core.catalog import family_of
from core.journal import Progress, Result, Warned
from core.reporter import Reporter, check_stop, stage
from core.workspace import Workspace, resolve_inside
from data import audio, manifest
from data.features import FeatureCache
from data.importers import import_source
from data.manifest import Clip, Dataset
from data.normalise import for_language
from data.splits import assign, leaks
from data.validation import CheckedRow, Report, validate
from models.base import Extractor, Features
from models.registry import family

REPORT_FILE = "report.json"
SHOWN_FINDINGS = 10


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
        checked = _import(source, options, reporter)
    dataset, state = _write(checked, options, workspace)
    with stage(reporter, "features"):
        extractor = family(family_of(workspace, options.model)).extractor(model_folder, torch.device("cpu"))
        failed = extract_features(dataset, extractor, workspace, reporter)
    return {
        "dataset": options.dataset, "state": state, "clips": len(dataset.clips),
        "train": dataset.card.train_clips, "held_out": dataset.card.held_out_clips,
        "minutes": round(dataset.card.duration_s / 60, 2), "left_out": len(checked.report.errors),
        "warnings": len(checked.report.warnings), "features": len(dataset.clips) - failed, "features_failed": failed,
        "folder": str(dataset.folder),
    }


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
    arrays = cache.load(clip.sha256)
    return Features(arrays["speech_codes"], arrays["speaker_embedding"])


def extract_features(dataset: Dataset, extractor: Extractor, workspace: Workspace, reporter: Reporter) -> int:
    """Cache the features of every clip that has none yet; the number of clips that failed, each named in a warning."""
    cache = FeatureCache(workspace.cache, extractor.fingerprint)
    failed = 0
    for done, clip in enumerate(dataset.clips, start=1):
        check_stop(reporter, f"Stopped after {done - 1} of {len(dataset.clips)} clips; they are kept.")
        if not cache.has(clip.sha256):
            try:
                features = extractor.extract(audio.load(dataset.audio_path(clip), extractor.sample_rate))
            except UserError as error:
                failed += 1
                reporter.emit(Warned(f"{clip.id} has no features: {error.message}"))
                continue
            cache.save(clip.sha256, vars(features))
        reporter.emit(Progress(done, len(dataset.clips), "clips", clip.id))
    if failed == len(dataset.clips):
        raise UserError(f"None of the {failed} clips gave features.", "The warnings above name the reason of each.")
    return failed


def _import(source: Path, options: PrepareOptions, reporter: Reporter) -> _Checked:
    def progress(done: int, total: int) -> None:
        check_stop(reporter, "Stopped before the dataset was written.")
        reporter.emit(Progress(done, total, "clips", "checked"))

    rows, report = validate(import_source(source), for_language(options.language), progress=progress)
    splits = assign(rows, options.held_out, options.seed)
    report = report.with_warnings(leaks(rows, splits))
    _show(report, reporter)
    clips = tuple(
        Clip(row.row.id, f"audio/{row.row.id}{row.row.audio.suffix.lower()}", row.row.text, options.language, split,
             row.duration_s, row.row.speaker, row.sha256)
        for row, split in zip(rows, splits, strict=True)
    )
    return _Checked(clips, rows, report)


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
        shutil.copyfile(row.row.audio, folder / clip.audio)


def _check_audio(dataset: Dataset) -> None:
    missing = [clip.audio for clip in dataset.clips if not dataset.audio_path(clip).is_file()]
    if missing:
        raise UserError(
            f"The dataset {dataset.card.name!r} lacks {len(missing)} of its recordings, such as {missing[0]}.",
            "Put them back, or prepare the source again under another name.",
        )
