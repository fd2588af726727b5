"""Recordings of a source, one after another, into a folder of segments; what one gave is kept when the work is stopped.

While it is made the folder is `segments/.NAME.partial`. Each recording that is done has a file there with its clips, so
a later try goes on with the next one. Who makes the clips of a recording is the caller's: by its pauses, or by a text.
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
from core.incoming.fetch import partial_folder
from core.incoming.sources import Gathered
from core.jobs.events import Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize
from core.library.aside import flush
from core.segments.folder import PIECES, Card, Piece, Segments, read_pieces, write_card, write_pieces
from core.workspace import Workspace, resolve_inside
from data import film, long_audio
from data.cuts import Limits
from data.importers import FILM_SUFFIXES, companions, is_audio, safe_id
from data.loudness import Finish, finished

STOPPED = "Stopped. Recordings that are done are kept: continue it, or start it again."


@dataclass(frozen=True)
class Recording:
    """A long recording. `path` can be read; it lies elsewhere than the source where it was a film."""

    name: str  # in the source
    path: Path
    key: str  # of its files in the folder
    speaker: str
    seconds: float


@dataclass(frozen=True)
class Span:
    """A part of a recording that becomes a clip."""

    begin_s: float
    end_s: float
    in_speech: bool = False
    text: str = ""
    score: float | None = None
    doubt: str = ""


@dataclass(frozen=True)
class Chosen:
    """The clips of a recording, what its pauses sound like (16 kHz), and what was left out, in words."""

    spans: Sequence[Span]
    noise: np.ndarray
    left_out: Sequence[str] = ()


Choose = Callable[[Recording, Path, Callable[[float], None]], Chosen]
"""Finds the clips of a recording, from it, the folder that is being made, and a callback for the seconds done."""


def limits_of(options: ClipOptions) -> Limits:
    return Limits(options.min_clip_s, options.max_clip_s, options.padding_s)


def recordings(gathered: Gathered, options: ClipOptions, reporter: Reporter) -> list[Recording]:
    """Every recording of the source, with the sound of films taken out; `UserError` where there is none."""
    root = gathered.path if gathered.path.is_dir() else gathered.path.parent
    if gathered.path.is_file():
        paths = [gathered.path] if is_audio(gathered.path.name) else []
    else:
        paths = [place / name for place, names in companions.walk(root) for name in names if is_audio(name)]
    found: list[Recording] = []
    for path in paths:
        check_stop(reporter, STOPPED)
        try:
            found.append(_recording(path, root, gathered.made, options, reporter))
        except UserError as error:
            reporter.emit(WarningRaised(f"{path.name} is left out: {error.message} {error.hint}"))
    if not found:
        raise UserError(f"There is no recording in {gathered.path} that can be read.",
                        "Give a recording, a film, or a folder of them.")
    return found


def _recording(path: Path, root: Path, made: Path, options: ClipOptions, reporter: Reporter) -> Recording:
    name = str(path.relative_to(root))
    key = f"{safe_id(path.stem)[:60]}-{hashlib.sha256(name.encode('utf-8', 'surrogateescape')).hexdigest()[:8]}"
    speaker = {"one": "", "recording": path.stem, "folder": path.parent.name}[options.speakers]
    if path.suffix.lower() in FILM_SUFFIXES:
        sound = made / f"{key}.flac"
        film.sound_of(path, sound, lambda: check_stop(reporter, STOPPED))
        path = sound
    return Recording(name, path, key, speaker, long_audio.length(path)[0])


@dataclass(frozen=True)
class Cutter:
    """Makes `segments/NAME` of a language from recordings."""

    workspace: Workspace
    reporter: Reporter
    name: str
    language: str
    source: str
    made: str
    settings: dict[str, object]  # all that decides what comes out
    finish: Finish
    recogniser: str = ""

    @property
    def target(self) -> Path:
        return resolve_inside(self.workspace.segments, self.name)

    def there(self) -> Segments | None:
        """What was made of the same before; `UserError` where the name holds something else."""
        if not self.target.is_dir():
            return None
        found = Segments.load(self.target)
        if (found.card.source, found.card.language, found.card.made, found.card.settings) == (
                self.source, self.language, self.made, self.settings):
            return found
        raise UserError(f"There already are other segments named {self.name!r}: {pluralize(found.card.clips, 'clip')} "
                        f"of "
                        f"{found.card.source}, or cut with other settings.", "Choose another name.")

    def make(self, found: Sequence[Recording], choose: Choose) -> Segments:
        """Cut every recording that is not done yet; then the folder takes its name."""
        self.workspace.segments.mkdir(exist_ok=True)
        with partial_folder(self.target) as aside:
            self._begin(aside)
            total = round(sum(one.seconds for one in found) / 60, 1)
            pieces: list[Piece] = []
            before = 0.0
            for recording in found:
                made = self._made(recording, aside)
                if made is None:
                    made = self._cut(recording, aside, choose, self._teller(recording, before, total))
                pieces += made
                before += recording.seconds
                self.reporter.emit(Progress(round(before / 60, 1), total, "minutes", recording.name))
            return self._finished(aside, found, pieces)

    def _teller(self, recording: Recording, before: float, total: float) -> Callable[[float], None]:
        def progress(seconds: float) -> None:
            check_stop(self.reporter, STOPPED)
            done = before + min(seconds, recording.seconds)
            self.reporter.emit(Progress(round(done / 60, 1), total, "minutes", recording.name))

        return progress

    def _begin(self, aside: Path) -> None:
        """Take up what an earlier try left, if it was to make the same."""
        wanted = json.dumps([self.source, self.language, self.made, self.settings], sort_keys=True, default=str)
        plan = aside / "plan.json"
        if not plan.is_file() or plan.read_text(encoding="utf-8") != wanted:
            for name in ("audio", "work", "done", "aligned"):
                shutil.rmtree(aside / name, ignore_errors=True)
            plan.write_text(wanted, encoding="utf-8")
        for name in ("audio", "work", "done"):
            (aside / name).mkdir(exist_ok=True)

    def _made(self, recording: Recording, aside: Path) -> list[Piece] | None:
        """The clips that an earlier try cut from this very recording."""
        done = aside / "done" / f"{recording.key}-{recording.path.stat().st_size}.jsonl"
        return list(read_pieces(done)) if done.is_file() else None

    def _cut(self, recording: Recording, aside: Path, choose: Choose, progress: Callable[[float], None]) -> list[Piece]:
        try:
            chosen = choose(recording, aside, progress)
            for reason in chosen.left_out:
                self.reporter.emit(WarningRaised(f"{recording.name}: {reason}"))
            pieces = self._write(recording, aside, chosen) if chosen.spans else []
        except UserError as error:
            self.reporter.emit(WarningRaised(f"{recording.name} is left out: {error.message} {error.hint}"))
            return []
        if pieces:  # where nothing was found, another try listens again: its text may have been mended
            write_pieces(aside / "done" / f"{recording.key}-{recording.path.stat().st_size}.jsonl", pieces)
        return pieces

    def _write(self, recording: Recording, aside: Path, chosen: Chosen) -> list[Piece]:
        name = f"audio/{recording.key}.flac"
        own_rate = long_audio.length(recording.path)[1]
        rate = self.finish.sample_rate or own_rate
        pieces, at = [], 0
        cut = long_audio.pieces(recording.path, [(span.begin_s, span.end_s) for span in chosen.spans])
        with soundfile.SoundFile(str(aside / name), "w", rate, 1, "PCM_16", format="FLAC") as file:
            for span, samples in zip(chosen.spans, cut, strict=False):
                check_stop(self.reporter, STOPPED)
                sound, _ = finished(samples, own_rate, self.finish, chosen.noise)
                file.write(np.clip(sound, -1, 1))
                pieces.append(_piece(recording, name, span, at / rate, (at + len(sound)) / rate))
                at += len(sound)
        return pieces

    def _finished(self, aside: Path, found: Sequence[Recording], pieces: Sequence[Piece]) -> Segments:
        if not pieces:
            if self.made == "aligned":
                raise UserError(f"None of the text was found in {self.source}.",
                                "Check that text and recording belong together, and the recogniser's language.")
            raise UserError(f"No voice was heard in {self.source}.",
                            "Listen to the recordings; a lower threshold hears fainter voices.")
        write_pieces(aside / PIECES, pieces)
        card = Card(self.name, self.language, self.source, self.made, self.settings, len(found), len(pieces),
                    round(sum(piece.duration_s for piece in pieces), 3), round(sum(one.seconds for one in found), 3))
        write_card(aside, card)
        segments = Segments(aside, card)
        if any(piece.text for piece in pieces):
            segments = segments.save_texts(pieces, self.recogniser)
        shutil.rmtree(aside / "done")
        for path in aside.rglob("*"):
            if path.is_file():
                flush(path)
        aside.rename(self.target)
        for name in ("plan.json", "lock"):
            (self.target / name).unlink(missing_ok=True)
        return replace(segments, folder=self.target)


def _piece(recording: Recording, audio: str, span: Span, begin_s: float, end_s: float) -> Piece:
    times = "-".join(f"{round(seconds * 1000):08d}" for seconds in (span.begin_s, span.end_s))
    return Piece(f"{recording.key}-{times}", audio, begin_s, end_s, recording.name, round(span.begin_s, 3),
                 round(span.end_s, 3), recording.speaker, span.in_speech, span.text,
                 None if span.score is None else round(span.score, 4), span.doubt)


def report(segments: Segments) -> Result:
    """What a job hands back of the segments it made."""
    card = segments.card
    return {"segments": card.name, "recordings": card.recordings, "clips": card.clips,
            "minutes": round(card.duration_s / 60, 2), "minutes_recorded": round(card.recorded_s / 60, 2),
            "folder": str(segments.folder)}
