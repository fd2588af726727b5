"""Cut long recordings into clips at their pauses, ready to be transcribed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from config.schema import ClipOptions, SegmentOptions
from core.dataset import languages
from core.incoming import sources
from core.jobs.events import Plan, Result
from core.jobs.reporter import Reporter, pluralize, stage
from core.segments import cutting
from core.segments.cutting import Chosen, Cutter, Recording, Span
from core.workspace import Workspace
from data import cuts, long_audio
from data.loudness import Finish
from data.voice_activity import FRAME_S


def run(options: SegmentOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `segments/NAME` of the recordings of a source; hands back the counts."""
    limits = cutting.limits_of(options)
    cutter = Cutter(workspace, reporter, options.segments, options.language, options.source, "cut",
                    {**cut_settings(options), "threshold": options.threshold}, finish_of(options))
    languages.tell_doubt(options.language, reporter)
    there = cutter.there()
    if there is not None:
        return {**cutting.report(there), "state": "already there"}
    with sources.gathered(options.source, options.language, workspace, reporter) as gathered:
        with stage(reporter, "look"):
            found = cutting.recordings(gathered, options, reporter)
            hours = sum(one.seconds for one in found) / 3600
            reporter.emit(Plan((f"{pluralize(len(found), 'recording')}, {hours:.2f} hours.",)))
        with stage(reporter, "cut"):
            segments = cutter.make(found, _by_pauses(options, limits))
    pieces = segments.pieces()
    return {**cutting.report(segments), "state": "written",
            "cut_in_speech": sum(piece.in_speech for piece in pieces),
            "outside_bounds": sum(not _within(piece.duration_s, limits) for piece in pieces)}


def finish_of(options: ClipOptions) -> Finish:
    """What is done to the sound of a clip."""
    return Finish(options.sample_rate, options.lufs or None, options.denoise)


def cut_settings(options: ClipOptions) -> dict[str, object]:
    """All that decides how the clips come out, beside source and language."""
    return {name: getattr(options, name) for name in ClipOptions.model_fields}


def _by_pauses(options: SegmentOptions, limits: cuts.Limits) -> cutting.Choose:
    def choose(recording: Recording, _folder: Path, progress: Callable[[float], None]) -> Chosen:
        heard = long_audio.hear(recording.path, progress)
        runs = cuts.voiced_runs(heard.probabilities, options.threshold)
        atoms = cuts.atoms_of(runs, heard.levels, FRAME_S)
        spans = [Span(cut.begin_s, min(cut.end_s, heard.total_s), _in_speech(cut, atoms))
                 for cut in cuts.group(atoms, heard.total_s, limits)]
        return Chosen(spans, heard.noise, () if spans else ("no voice was heard in it.",))

    return choose


def _in_speech(cut: cuts.Cut, atoms: cuts.Atoms) -> bool:
    """Whether the clip begins or ends where no pause is."""
    sides = [index for index in (cut.first - 1, cut.last) if 0 <= index < len(atoms.prices)]
    return any(bool(atoms.prices[index] >= cuts.IN_SPEECH) for index in sides)


def _within(duration_s: float, limits: cuts.Limits) -> bool:
    return limits.min_clip_s - 0.01 <= duration_s <= limits.max_clip_s + 0.01
