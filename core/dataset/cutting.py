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
from pathlib import Path

import numpy as np
import soundfile

from config.errors import UserError
from config.schema import ClipOptions
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

    def make(self, recordings: Sequence[LongRecording], find_clips: ClipFinder) -> Segments:
        """Cut every recording that is not done yet; then the folder takes its name."""
        self.workspace.segments.mkdir(exist_ok=True)
        with partial_folder(self.target) as partial:

            # An earlier attempt is resumed only if it had the same settings.
            settings = json.dumps([self.source, self.language, self.made, self.settings], sort_keys=True, default=str)
            plan = partial / "plan.json"
            if not plan.is_file() or plan.read_text(encoding="utf-8") != settings:
                for name in ("audio", "work", "done", "aligned"):
                    shutil.rmtree(partial / name, ignore_errors=True)
                plan.write_text(settings, encoding="utf-8")
            for name in ("audio", "work", "done"):
                (partial / name).mkdir(exist_ok=True)

            # Progress counts minutes of sound over all recordings.
            total_min = round(sum(recording.seconds for recording in recordings) / 60, 1)
            pieces: list[SegmentClip] = []
            before_s = 0.0
            for recording in recordings:

                def progress(seconds: float, recording: LongRecording = recording, before_s: float = before_s) -> None:
                    check_stop(self.reporter, STOPPED)
                    done_min = round((before_s + min(seconds, recording.seconds)) / 60, 1)
                    self.reporter.emit(Progress(done_min, total_min, "minutes", recording.name))

                done_file = partial / "done" / f"{recording.key}-{recording.path.stat().st_size}.jsonl"
                if done_file.is_file():
                    pieces += read_clips(done_file)
                else:
                    clips = self._cut(recording, partial, find_clips, progress)
                    # A recording without clips is tried again when the job continues: its text may be corrected.
                    if clips:
                        write_clips(done_file, clips)
                    pieces += clips
                before_s += recording.seconds
                self.reporter.emit(Progress(round(before_s / 60, 1), total_min, "minutes", recording.name))
            return self._finish(partial, recordings, pieces)

    def _cut(self, recording: LongRecording, partial: Path, find_clips: ClipFinder,
             progress: Callable[[float], None]) -> list[SegmentClip]:
        """The clips of one recording, written one behind the other to one file; none, with a warning, on an error."""
        try:
            clips = find_clips(recording, partial, progress)
            for reason in clips.dropped:
                self.reporter.emit(WarningRaised(f"{recording.name}: {reason}"))
            if not clips.spans:
                return []

            name = f"audio/{recording.key}.flac"
            own_rate = sound_files.duration_and_rate(recording.path)[1]
            rate = self.finish.sample_rate or own_rate
            pieces, position, above = [], 0, 0
            parts = sound_files.read_spans(recording.path, [(span.begin_s, span.end_s) for span in clips.spans])
            with soundfile.SoundFile(str(partial / name), "w", rate, 1, "PCM_16", format="FLAC") as file:

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
            return pieces
        except UserError as error:
            self.reporter.emit(WarningRaised(f"{recording.name} is skipped: {error.message} {error.hint}"))
            return []

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


def summarize(segments: Segments) -> Result:
    """The counts of a job that made segments."""
    card = segments.card
    return {"segments": card.name, "recordings": card.recordings, "clips": card.clips,
            "minutes": round(card.duration_s / 60, 2), "minutes_recorded": round(card.recorded_s / 60, 2),
            "folder": str(segments.folder)}
