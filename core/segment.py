"""Cut long recordings into clips at their pauses, ready to be transcribed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from config.schema import SegmentOptions
from core.dataset import cutting, languages
from core.dataset.cutting import FoundClip, LongRecording, RecordingClips, RecordingCutter, cut_settings, finish_of
from core.jobs.engines import Engine
from core.jobs.events import Plan, Result
from core.jobs.reporter import Reporter, duration_text, pluralize, stage
from core.sources import dataset_source
from core.sources.downloader import public_name
from core.workspace import Workspace
from data import segmentation
from data.acoustics.voice_activity import FRAME_S, detect_voice
from data.segmentation import SegmentLimits

_TOLERANCE_S = 0.01  # tolerance of the bounds of a clip


def run(options: SegmentOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Make `segments/NAME` of the recordings of a source; returns the counts."""
    limits = cutting.limits_of(options)
    cutter = RecordingCutter(workspace, reporter, options.segments, options.language,
                              public_name(options.source), "cut",
                             {**cut_settings(options), "threshold": options.threshold}, finish_of(options),
                             engine=Engine.from_options(options, "cpu", reporter))
    languages.warn_doubtful_code(options.language, reporter)
    existing = cutter.existing()
    if existing is not None:
        return {**cutting.summarize(existing), "state": "already there"}

    with dataset_source.open_source(options.source, options.language, workspace, reporter) as gathered:
        with stage(reporter, "look"):
            recordings = cutting.find_recordings(gathered, options, reporter)
            length = duration_text(sum(recording.seconds for recording in recordings))
            reporter.emit(Plan((f"{pluralize(len(recordings), 'recording')}, {length}.",)))
        with stage(reporter, "cut"):
            segments = cutter.make(recordings, partial(_PauseFinder, options.threshold, limits))
    pieces = segments.pieces()
    within = (limits.min_clip_s - _TOLERANCE_S, limits.max_clip_s + _TOLERANCE_S)
    return {**cutting.summarize(segments), "state": "written",
            "cut_in_speech": sum(piece.in_speech for piece in pieces),
            "outside_bounds": sum(not within[0] <= piece.duration_s <= within[1] for piece in pieces)}


@dataclass(frozen=True)
class _PauseFinder:
    """Finds the clips of a recording by its pauses."""

    threshold: float
    limits: SegmentLimits

    def __call__(self, recording: LongRecording, _folder: Path, progress: Callable[[float], None]) -> RecordingClips:
        voice = detect_voice(recording.path, progress)
        runs = segmentation.voiced_runs(voice.probabilities, self.threshold)
        atoms = segmentation.speech_spans(runs, voice.levels, FRAME_S)
        spans = []
        for cut in segmentation.group_spans(atoms, voice.total_s, self.limits):
            # A clip begins or ends within speech if one of its two cuts found no pause.
            sides = [index for index in (cut.first - 1, cut.last) if 0 <= index < len(atoms.costs)]
            in_speech = any(bool(atoms.costs[index] >= segmentation.IN_SPEECH_COST) for index in sides)
            spans.append(FoundClip(cut.begin_s, min(cut.end_s, voice.total_s), in_speech))
        return RecordingClips(spans, voice.noise, () if spans else ("no voice was detected in it.",))
