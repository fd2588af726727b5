"""Cut the recordings of a source into a folder of segments, one recording after another.

The folder is `segments/.NAME.partial` while it is made. Each recording that is done has a file there with its clips, so
a stopped job resumes with the next recording. The caller finds the clips of a recording: by its pauses, or by a text.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import soundfile

from config.errors import UserError
from config.schema import ClipOptions
from core.jobs.engines import HERE, Engine, LostBatch, run_batches
from core.jobs.events import Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize
from core.library.segments import PIECES, SegmentClip, Segments, SegmentsCard, read_clips, write_card, write_clips
from core.sources.dataset_source import OpenSource
from core.sources.partial_downloads import partial_folder
from core.workspace import Workspace, resolve_inside
from data import ffmpeg_audio, sound_files
from data.channels import AUTO, Mix
from data.durable_files import fsync_tree
from data.importers import is_audio, is_film, safe_id, sidecars
from data.segmentation import SegmentLimits
from data.sound_files import ClipFormat, format_clip

STOPPED = "Stopped. Recordings that are done are kept: continue it, or start it again."


@dataclass(frozen=True)
class LongRecording:
    """A long recording. `path` is readable audio; of a film, its soundtrack outside the source."""

    name: str  # name in the source
    path: Path
    key: str  # prefix of the names of its files
    speaker: str
    seconds: float


@dataclass(frozen=True)
class FoundClip:
    """A part of a recording that becomes a clip."""

    begin_s: float
    end_s: float
    in_speech: bool = False  # it begins or ends where no pause is
    text: str = ""
    score: float | None = None
    doubt: str = ""


@dataclass(frozen=True)
class RecordingClips:
    """The clips of a recording, noise from its pauses (16 kHz), and sentences about dropped parts."""

    spans: Sequence[FoundClip]
    noise: np.ndarray
    dropped: Sequence[str] = ()


ClipFinder = Callable[[LongRecording, Path, Callable[[float], None]], RecordingClips]
"""Finds the clips of a recording, given the folder being made and a callback for the seconds that are done."""
LoadFinder = Callable[[], ClipFinder]
"""Loads what finds the clips, here or in a worker; it can be pickled."""


def limits_of(options: ClipOptions) -> SegmentLimits:
    return SegmentLimits(options.min_clip_s, options.max_clip_s, options.padding_s)


def finish_of(options: ClipOptions) -> ClipFormat:
    """The sample rate, loudness and denoising of the clips."""
    return ClipFormat(options.sample_rate, options.lufs or None, options.denoise)


def cut_settings(options: ClipOptions) -> dict[str, object]:
    """Every option that changes the clips, besides source and language."""
    settings = {name: getattr(options, name) for name in ClipOptions.model_fields}
    # Segments of older versions have no channel among their settings.
    if settings["channel"] == AUTO:
        del settings["channel"]
    return settings


def find_recordings(gathered: OpenSource, options: ClipOptions, reporter: Reporter) -> list[LongRecording]:
    """Every recording of the source, with the soundtracks of films extracted; `UserError` if there is none."""
    root = gathered.path if gathered.path.is_dir() else gathered.path.parent
    if gathered.path.is_file():
        paths = [gathered.path] if is_audio(gathered.path.name) else []
    else:
        paths = []
        for place, names in sidecars.walk_folders(root):
            paths += [place / name for name in names if is_audio(name)]

    recordings: list[LongRecording] = []
    for path in paths:
        check_stop(reporter, STOPPED)
        name = str(path.relative_to(root))
        # Two files may have the same stem, so the key has a hash of the path.
        key = f"{safe_id(path.stem)[:60]}-{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
        speaker = {"one": "", "recording": path.stem, "folder": path.parent.name}[options.speakers]
        try:
            audio = path
            if is_film(path):
                audio = gathered.made / f"{key}.flac"
                ffmpeg_audio.extract_audio(path, audio, lambda: check_stop(reporter, STOPPED))

            facts = sound_files.examine(audio, options.channel)
            for finding in facts.findings():
                reporter.emit(WarningRaised(f"{name}: {finding.message}."))

            # A file that ffmpeg must decode is decoded once, for all that follows.
            if facts.by_ffmpeg:
                audio = gathered.made / f"{key}.flac"
                ffmpeg_audio.extract_audio(path, audio, lambda: check_stop(reporter, STOPPED))
            if facts.downmix.mix is Mix.CHOSEN:
                several, audio = audio, gathered.made / f"{key}-channel.flac"
                sound_files.write_channel(several, options.channel, audio)
            recordings.append(LongRecording(name, audio, key, speaker, facts.duration_s))
        except UserError as error:
            # One file that cannot be read does not end the job.
            reporter.emit(WarningRaised(f"{path.name} is skipped: {error.message} {error.hint}"))
    if not recordings:
        raise UserError(f"There is no recording in {gathered.path} that can be read.",
                        "Give a recording, a film, or a folder of them.")
    return recordings


@dataclass(frozen=True)
class RecordingCutter:
    """Makes `segments/NAME` of a language from recordings."""

    workspace: Workspace
    reporter: Reporter
    name: str
    language: str
    source: str
    made: str
    settings: dict[str, object]  # every option that changes the result
    finish: ClipFormat
    recogniser: str = ""
    engine: Engine = HERE

    @property
    def target(self) -> Path:
        return resolve_inside(self.workspace.segments, self.name)

    def existing(self) -> Segments | None:
        """The segments made before with the same settings; `UserError` if the name has others."""
        if not self.target.is_dir():
            return None
        segments = Segments.load(self.target)
        if (segments.card.source, segments.card.language, segments.card.made, segments.card.settings) == (
                self.source, self.language, self.made, self.settings):
            return segments
        clips = pluralize(segments.card.clips, "clip")
        raise UserError(f"There already are other segments named {self.name!r}: {clips} of {segments.card.source}, or "
                        "cut with other settings.", "Choose another name.")

    def make(self, recordings: Sequence[LongRecording], load_finder: LoadFinder) -> Segments:
        """Cut every recording that is not done yet; then the folder takes its name."""
        self.workspace.segments.mkdir(exist_ok=True)
        with partial_folder(self.target) as partial_path:

            # An earlier attempt is resumed only if it had the same settings.
            settings = json.dumps([self.source, self.language, self.made, self.settings], sort_keys=True, default=str)
            plan = partial_path / "plan.json"
            if not plan.is_file() or plan.read_text(encoding="utf-8") != settings:
                for name in ("audio", "work", "done", "aligned"):
                    shutil.rmtree(partial_path / name, ignore_errors=True)
                plan.write_text(settings, encoding="utf-8")
            for name in ("audio", "work", "done"):
                (partial_path / name).mkdir(exist_ok=True)

            clips_by_key: dict[str, Sequence[SegmentClip]] = {}
            for recording in recordings:
                done_file = _done_file(partial_path, recording)
                if done_file.is_file():
                    clips_by_key[recording.key] = read_clips(done_file)
            pending = [recording for recording in recordings if recording.key not in clips_by_key]
            if self.engine.name != "here":
                # No worker begins the longest one when the others have finished.
                pending.sort(key=lambda recording: -recording.seconds)

            # Progress counts minutes of sound over all recordings.
            total_min = round(sum(recording.seconds for recording in recordings) / 60, 1)
            done_s = {recording.key: recording.seconds for recording in recordings if recording.key in clips_by_key}

            def progress(batch: Sequence[LongRecording], within: Progress) -> None:
                done_s[batch[0].key] = min(within.done, batch[0].seconds)
                self.reporter.emit(Progress(round(sum(done_s.values()) / 60, 1), total_min, "minutes", batch[0].name))

            load = partial(_CuttingWorker.load, partial_path, self.finish, load_finder)
            for batch, clips in run_batches(load, _CuttingWorker.cut, ([recording] for recording in pending),
                                            self.engine, self.reporter, lambda: STOPPED, progress):
                recording = batch[0]
                if isinstance(clips, LostBatch):
                    self.reporter.emit(WarningRaised(f"{recording.name} is skipped: {clips.reason}."))
                    clips = []
                clips_by_key[recording.key] = clips
                if not clips:
                    # A worker that died, or ended with an error, may have left a part of the clips.
                    _audio_file(partial_path, recording).unlink(missing_ok=True)
                    denoised_copy(partial_path, recording).unlink(missing_ok=True)
                progress(batch, Progress(recording.seconds, recording.seconds, "seconds"))
            return self._finish(partial_path, recordings,
                                [clip for recording in recordings for clip in clips_by_key[recording.key]])

    def _finish(self, partial: Path, recordings: Sequence[LongRecording], pieces: Sequence[SegmentClip]) -> Segments:
        if not pieces:
            if self.made == "aligned":
                raise UserError(f"None of the text was found in {self.source}.",
                                "Read the warnings above, which name noise where it is the likely reason; check that "
                                "text and recording belong together, and the recogniser's language.")
            raise UserError(f"No voice was detected in {self.source}.",
                            "Listen to the recordings; a lower threshold detects fainter voices.")

        write_clips(partial / PIECES, pieces)
        card = SegmentsCard(self.name, self.language, self.source, self.made, self.settings, len(recordings),
                            len(pieces), round(sum(piece.duration_s for piece in pieces), 3),
                            round(sum(recording.seconds for recording in recordings), 3))
        write_card(partial, card)
        segments = Segments(partial, card)
        if any(piece.text for piece in pieces):
            segments = segments.save_texts(pieces, self.recogniser)

        # The folder takes its name only when everything in it is on the disk.
        shutil.rmtree(partial / "done")
        fsync_tree(partial)
        partial.rename(self.target)
        for name in ("plan.json", "lock"):
            (self.target / name).unlink(missing_ok=True)
        return replace(segments, folder=self.target)


@dataclass(frozen=True)
class _CuttingWorker:
    """Cuts recordings, and records each that is done by a file with its clips."""

    partial_path: Path
    finish: ClipFormat
    find_clips: ClipFinder
    reporter: Reporter

    @classmethod
    def load(cls, partial_path: Path, finish: ClipFormat, load_finder: LoadFinder,
             reporter: Reporter) -> _CuttingWorker:
        return cls(partial_path, finish, load_finder(), reporter)

    def cut(self, batch: Sequence[LongRecording]) -> list[SegmentClip]:
        """The clips of the one recording of a batch, written one behind the other to one file.

        An empty list, with a warning, on an error.
        """
        recording, = batch

        def progress(seconds: float) -> None:
            check_stop(self.reporter, STOPPED)
            self.reporter.emit(Progress(seconds, recording.seconds, "seconds", recording.name))

        try:
            clips = self.find_clips(recording, self.partial_path, progress)
            for reason in clips.dropped:
                self.reporter.emit(WarningRaised(f"{recording.name}: {reason}"))
            if not clips.spans:
                return []

            path = _audio_file(self.partial_path, recording)
            name = path.relative_to(self.partial_path).as_posix()
            own_rate = sound_files.duration_and_rate(recording.path)[1]
            rate = self.finish.sample_rate or own_rate
            pieces, position, above = [], 0, 0
            parts = sound_files.read_spans(recording.path, [(span.begin_s, span.end_s) for span in clips.spans])
            with soundfile.SoundFile(str(path), "w", rate, 1, "PCM_16", format="FLAC") as file:

                # Clips follow one another in one file, at the rate of the recording or the one asked for.
                for span, samples in zip(clips.spans, parts, strict=False):
                    check_stop(self.reporter, STOPPED)
                    sound, _ = format_clip(samples, own_rate, self.finish, clips.noise)
                    # Samples above full scale are cut to it, and counted for a warning.
                    above += int((np.abs(sound) > 1).sum())
                    file.write(np.clip(sound, -1, 1))
                    times = "-".join(f"{round(seconds * 1000):08d}" for seconds in (span.begin_s, span.end_s))
                    pieces.append(SegmentClip(
                        f"{recording.key}-{times}", name, position / rate, (position + len(sound)) / rate,
                        recording.name, round(span.begin_s, 3), round(span.end_s, 3), recording.speaker,
                        span.in_speech, span.text,
                        None if span.score is None else round(span.score, 4), span.doubt))
                    position += len(sound)
            if above:
                self.reporter.emit(WarningRaised(f"{recording.name}: {pluralize(above, 'sample')} above full scale "
                                                 "were cut to it; lower its level first to keep them."))
            # A recording without clips is tried again when the job continues: its text may be corrected.
            if pieces:
                write_clips(_done_file(self.partial_path, recording), pieces)
            return pieces
        except UserError as error:
            self.reporter.emit(WarningRaised(f"{recording.name} is skipped: {error.message} {error.hint}"))
            return []


def denoised_copy(folder: Path, recording: LongRecording) -> Path:
    """The denoised copy of a recording that a search makes and deletes."""
    return folder / "work" / f"{recording.key}-denoised.wav"


def _audio_file(folder: Path, recording: LongRecording) -> Path:
    return folder / "audio" / f"{recording.key}.flac"


def _done_file(partial_path: Path, recording: LongRecording) -> Path:
    return partial_path / "done" / f"{recording.key}-{recording.path.stat().st_size}.jsonl"


def summarize(segments: Segments) -> Result:
    """The counts of a job that made segments."""
    card = segments.card
    return {"segments": card.name, "recordings": card.recordings, "clips": card.clips,
            "minutes": round(card.duration_s / 60, 2), "minutes_recorded": round(card.recorded_s / 60, 2),
            "folder": str(segments.folder)}
