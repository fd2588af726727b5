"""A source becomes a dataset: gathered, recognised, checked, split and written.

A dataset is written once and never changed, since runs go by what it was: the same source gives the same dataset,
another one under the same name is refused, and what is added to a dataset makes a new one, whose recordings are linked
to those of the old.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from config.errors import UserError
from config.schema import AS_IS, PrepareOptions
from core.dataset.merging import Joined, join
from core.incoming import sources
from core.jobs.events import Plan, Progress, WarningRaised
from core.jobs.reporter import Reporter, check_stop
from core.library.aside import written_aside
from core.text import text_rules
from core.workspace import Workspace, resolve_inside
from data import manifest
from data.importers import Entry, Row
from data.kept import Kept
from data.manifest import TRAIN, Clip, Dataset
from data.normalise import Reading, Style, for_language
from data.splits import Sides, assign, note_one_recording, overlaps, with_sources
from data.validation import CheckedRow, Report, row_bytes, rows_on_disk, validate

REPORT_FILE = "report.json"
SHOWN_FINDINGS = 10


@dataclass(frozen=True)
class _Checked:
    """What an import came to, before anything is written: the new clips, each of its row; both lie on the disk."""

    clips: Sequence[Clip]
    rows: Sequence[CheckedRow]
    report: Report
    joined: Joined | None  # what they are added to
    rule: str  # of the split

    @property
    def all_clips(self) -> Iterator[Clip]:
        return chain(self.joined.dataset.clips if self.joined else (), self.clips)


def import_dataset(options: PrepareOptions, style: Style, workspace: Workspace,
                   reporter: Reporter) -> tuple[Dataset, str, Report]:
    """Write `datasets/NAME`; it, whether it was written now or was there already, and what was found."""
    reading = text_rules.reading(workspace, options.rules, options.language, for_language(options.language, style))
    joined = _joined(options, reading, workspace)
    if (there := _as_it_stands(options, workspace)) is not None:
        return there
    with sources.gathered(options.source, options.language, workspace, reporter, options.max_clips) as gathered:
        target = resolve_inside(workspace.datasets, options.dataset)
        checked = _check(gathered, options, reading, joined, manifest.load(target) if target.exists() else None,
                         reporter)
        dataset, state = _write(checked, options, workspace)
    return dataset, state, checked.report


def _as_it_stands(options: PrepareOptions, workspace: Workspace) -> tuple[Dataset, str, Report] | None:
    """The dataset of this name, when that was asked for or a person made it of the same source by reviewing.

    A reviewed one is not what its source gives.
    """
    if options.source == AS_IS:
        _check_as_is(options, workspace)
    target = resolve_inside(workspace.datasets, options.dataset)
    if options.add_to or not target.exists():
        return None
    there = manifest.load(target)
    if options.source != AS_IS and not (there.card.reviewed and there.card.source == options.source):
        return None
    _check_audio(there)
    return there, "already there", Report.from_json(json.loads((target / REPORT_FILE).read_text("utf-8")))


def _check_as_is(options: PrepareOptions, workspace: Workspace) -> None:
    """There must be such a dataset, in the language, and nothing to add to another."""
    if options.add_to:
        raise UserError(f"A dataset as it stands is not added to {options.add_to!r}.",
                        "Give the place that its recordings came from as the source.")
    card = manifest.load(workspace.dataset(options.dataset)).card
    if card.language != options.language:
        raise UserError(f"The dataset {options.dataset!r} is in {card.language!r}, not {options.language!r}.",
                        f"Give {card.language} as its language.")


def _joined(options: PrepareOptions, reading: Reading, workspace: Workspace) -> Joined | None:
    """The dataset to add to."""
    if not options.add_to:
        return None
    if options.add_to == options.dataset:
        raise UserError(
            f"What is added to {options.add_to!r} makes a new dataset: the old one stays as it is, for the runs that "
            "learned from it.",
            f"Give the new one a name of its own, such as {options.add_to}-2.",
        )
    dataset = manifest.load(workspace.dataset(options.add_to))
    if dataset.card.language != options.language:
        raise UserError(f"The dataset {options.add_to!r} is in {dataset.card.language!r}, not {options.language!r}.",
                        "Add recordings of the same language.")
    _check_audio(dataset)
    return Joined(dataset, reading, by_speaker=options.split_disjoint_by == "speaker")


def _check(gathered: sources.Gathered, options: PrepareOptions, reading: Reading, joined: Joined | None,
           there: Dataset | None, reporter: Reporter) -> _Checked:
    imported = sources.read(gathered, options.language, reporter)
    reporter.emit(Plan(imported.notes))
    total = sources.count(imported)

    def progress(done: int) -> None:
        check_stop(reporter, "Stopped before the dataset was written.")
        reporter.emit(Progress(done, total, "clips", "checked"))

    rows, report = validate(_first(imported, options.max_clips), reading.normaliser, progress=progress,
                            written_out=reading.written_out, folder=gathered.made)
    notes = imported.notes
    if joined is not None:
        rows, found, note = join(joined, rows, options.source, gathered.made)
        report, notes = report.with_warnings(found), (*notes, note)
        reporter.emit(Plan(notes))
    rows, splits, report = _split(rows, report, options, joined, there, gathered.made)
    report = replace(report, form=imported.form, notes=notes)
    _show(report, reporter)
    clips = manifest.clips_on_disk(gathered.made)
    made = (_clip(row, options.language, split) for row, split in zip(rows, splits, strict=True))
    for clip in with_sources(made, rows, _sides(joined)):
        clips.add(clip)
    return _Checked(clips, rows, report, joined, _rule(options))


def _split(rows: Sequence[CheckedRow], report: Report, options: PrepareOptions, joined: Joined | None,
           there: Dataset | None, folder: Path) -> tuple[Sequence[CheckedRow], Sequence[str], Report]:
    """The rows that can stand on one side, their sides, and the report with those that cannot among its errors."""
    by_speaker, sides = options.split_disjoint_by == "speaker", _sides(joined)
    if joined is None and there is not None and (kept := _as_before(rows, there, options)) is not None:
        return rows, kept, report.with_warnings(note_one_recording(rows, kept))
    splits = assign(rows, options.held_out, options.seed, by_speaker=by_speaker, there=sides)
    out = overlaps(rows, splits, by_speaker=by_speaker, there=sides)
    if joined is None and not any(split == TRAIN for at, split in enumerate(splits) if at not in out):
        raise UserError(f"Nothing is left to train on: {len(out)} clips share a text or a recording with others that "
                        f"the source holds out, such as {next(iter(out.values())).message}.",
                        "Leave the source's split column out, so that the clips are held out by recording.")
    if out:
        left = rows_on_disk(folder)
        for at, row in enumerate(rows):
            if at not in out:
                left.add(row)
        rows, splits = left, tuple(split for at, split in enumerate(splits) if at not in out)
        report = replace(report.with_errors(out.values()), kept=report.kept - len(out),
                         duration_s=round(sum(row.duration_s for row in rows), 3))
    return rows, splits, report.with_warnings(note_one_recording(rows, splits) if joined is None else ())


def _as_before(rows: Sequence[CheckedRow], there: Dataset, options: PrepareOptions) -> tuple[str, ...] | None:
    """The sides of a dataset of the same clips that was made when splits were drawn in another way."""
    if there.card.split or there.card.source != options.source or len(there.clips) != len(rows):
        return None
    with Kept() as before:
        for clip in there.clips:
            before.put(clip.sha256, clip.split)
        found = [before.get(row.sha256) for row in rows]
    return None if None in found else tuple(side for side in found if side is not None)


def _sides(joined: Joined | None) -> Sides:
    return joined.sides if joined else Sides()


def _rule(options: PrepareOptions) -> str:
    """How the clips were held out, where the source did not say so."""
    return f"{options.held_out:g} by {options.split_disjoint_by}, seed {options.seed}"


def _first(entries: Iterable[Entry], most: int) -> Iterator[Entry]:
    """The entries up to the row number `most`; all for 0."""
    rows = 0
    for entry in entries:
        rows += isinstance(entry, Row)
        if most and rows > most:
            return
        yield entry


def _clip(row: CheckedRow, language: str, split: str) -> Clip:
    suffix = ".flac" if row.row.is_part else row.row.audio.suffix.lower()
    return Clip(row.row.id, f"audio/{row.row.id}{suffix}", row.row.text, language, split, row.duration_s,
                row.row.speaker, row.sha256)


def _show(report: Report, reporter: Reporter) -> None:
    if report.errors:
        reporter.emit(WarningRaised(f"{len(report.errors)} of {report.found} rows are left out."))
    for findings, effect in ((report.errors, "left out"), (report.warnings, "kept")):
        for finding in findings[:SHOWN_FINDINGS]:
            place = f"{finding.where}: " if finding.where else ""
            reporter.emit(WarningRaised(f"{place}{finding.message} ({finding.kind}; {effect})"))
        if len(findings) > SHOWN_FINDINGS:
            more = len(findings) - SHOWN_FINDINGS
            reporter.emit(WarningRaised(f"... and {more} more {effect}, all in {REPORT_FILE}."))


def _write(checked: _Checked, options: PrepareOptions, workspace: Workspace) -> tuple[Dataset, str]:
    """The dataset on disk, and whether it was written now or was there already."""
    target = resolve_inside(workspace.datasets, options.dataset)
    source = f"{checked.joined.dataset.card.source} + {options.source}" if checked.joined else options.source
    licence = _licence(options.licence.strip(), checked.joined.dataset.card.licence if checked.joined else "")
    card = manifest.make_card(options.dataset, options.language, source, checked.all_clips, licence, checked.rule)
    if target.exists():
        there = manifest.load(target)
        if there.card.fingerprint != card.fingerprint:
            raise UserError(
                f"There already is another dataset named {options.dataset!r}: {there.card.clips} clips in "
                f"{there.card.language!r} from {there.card.source!r}, the new one has {card.clips}.",
                f"Choose another dataset name; with --add-to {options.dataset} it will hold both.",
            )
        _check_audio(there)
        return _licensed(there, licence), "already there"
    if checked.joined and not checked.clips:
        raise UserError(f"Everything in {options.source} is in {options.add_to!r} already.", "There is nothing to add.")
    with written_aside(target) as folder:
        (folder / "audio").mkdir()
        if checked.joined:
            _link_audio(checked.joined.dataset, folder)
        _copy_audio(checked.clips, checked.rows, folder)
        manifest.save(folder, card, checked.all_clips)
        checked.report.save(folder / REPORT_FILE)
    return manifest.load(target), "written"


def _licence(given: str, there: str) -> str:
    """Of a dataset and what is added to it: both where they differ."""
    return "; ".join(dict.fromkeys(part for part in (there, given) if part))


def _licensed(dataset: Dataset, licence: str) -> Dataset:
    """The dataset with a licence where it had none; another one is not put in its place."""
    there = dataset.card.licence
    if not licence or licence == there:
        return dataset
    if there:
        raise UserError(f"The dataset {dataset.card.name!r} has the licence {there!r}, not {licence!r}.",
                        "Leave the licence out, or prepare the source under another name.")
    card = replace(dataset.card, licence=licence)
    manifest.save_card(dataset.folder, card)
    return replace(dataset, card=card)


def _link_audio(dataset: Dataset, folder: Path) -> None:
    """The recordings of `dataset` in `folder` too, without another copy where the disk can do that."""
    for clip in dataset.clips:
        try:
            os.link(dataset.audio_path(clip), folder / clip.audio)
        except OSError:
            shutil.copyfile(dataset.audio_path(clip), folder / clip.audio)


def _copy_audio(clips: Iterable[Clip], rows: Sequence[CheckedRow], folder: Path) -> None:
    for clip, row in zip(clips, rows, strict=True):
        target = folder / clip.audio
        if row.row.is_part:
            target.write_bytes(row_bytes(row.row))
        else:
            shutil.copyfile(row.row.audio, target)
        with open(target, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != row.sha256:
                raise UserError(f"{row.row.audio} was changed while it was imported.", "Import it when it is whole.")


def _check_audio(dataset: Dataset) -> None:
    missing = (clip.audio for clip in dataset.clips if not dataset.audio_path(clip).is_file())
    if first := next(missing, ""):
        count = 1 + sum(1 for _ in missing)
        raise UserError(
            f"The dataset {dataset.card.name!r} lacks {count} of its recordings, such as {first}.",
            "Put them back, or prepare the source again under another name.",
        )
