"""Write down what is said in segments, with a speech recogniser; each clip's text is kept as soon as it is found.

What a recogniser found lies in `work/transcripts/`, a file for each recogniser and language, so a stopped job goes on
where it was and no transcript is lost to another one. The table that `prepare` reads is written at the end.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import soundfile
import soxr

from config.errors import UserError
from config.schema import TranscribeOptions
from core.job.journal import Progress, Result, Warned
from core.job.reporter import Reporter, check_stop, counted, stage
from core.segments.folder import Piece, Segments
from core.speech import transcription as recognisers
from core.speech.transcription import Transcriber, Transcript
from core.workspace import Workspace
from data.importers import safe_id

_BATCH_S, _BATCH_CLIPS = 120.0, 16
_REPEATED = 2.4  # how well a text may be compressed before it is one that repeats itself (Radford et al. 2022)
_MOST_SIGNS_A_SECOND = 35.0
_NAMED = 10


def run(options: TranscribeOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Give the clips of `segments/NAME` their texts; hands back the counts."""
    segments = Segments.load(workspace.segment_folder(options.segments))
    if segments.card.made == "aligned":
        raise UserError(f"The segments {options.segments!r} have the texts that they were aligned with.",
                        "Prepare them as they are, or cut the recordings anew under another name.")
    pieces = segments.pieces()
    kept = Transcripts(_place(segments, options))
    found = kept.load()
    waiting = [piece for piece in pieces if piece.id not in found]
    if waiting:
        listener = recognisers.load_transcriber(options.recogniser, options.revision, segments.card.language,
                                    options.recogniser_language, options.device, workspace, reporter)
        with stage(reporter, "transcribe"):
            found |= _transcribed(segments, waiting, len(pieces), listener, kept, reporter)
    told = [_with_text(piece, found[piece.id], options) for piece in pieces]
    if not any(piece.text for piece in told):
        raise UserError(f"{options.recogniser} found no text in {counted(len(pieces), 'clip')}.",
                        "Choose another recogniser, or check the language and listen to the recordings.")
    segments = segments.save_texts(told, options.recogniser)
    _tell(told, reporter)
    return {"segments": options.segments, "language": segments.card.language, "recogniser": options.recogniser,
            "clips": len(pieces), "with_text": segments.card.texts, "doubtful": segments.card.doubtful,
            "without_text": len(pieces) - segments.card.texts,
            "mean_score": round(float(np.mean([one.score for one in found.values()])), 4),
            "heard_before": len(pieces) - len(waiting), "table": str(segments.folder / "metadata.jsonl")}


@dataclass(frozen=True)
class Transcripts:
    """What one recogniser found, a line a clip; a line that was cut off is found again."""

    path: Path

    def load(self) -> dict[str, Transcript]:
        found = {}
        if self.path.is_file():
            for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):
                try:
                    values = json.loads(line)
                    found[str(values["id"])] = Transcript(str(values["text"]), float(values["score"]))
                except (ValueError, KeyError, TypeError):
                    continue
        return found

    def add(self, heard: Mapping[str, Transcript]) -> None:
        """All of `heard` on the disk before it is counted."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        torn = self.path.is_file() and self.path.stat().st_size > 0 and _last_byte(self.path) != b"\n"
        with open(self.path, "a", encoding="utf-8") as file:
            file.write("\n" if torn else "")
            for name, one in heard.items():
                file.write(json.dumps({"id": name, "text": one.text, "score": round(one.score, 4)},
                                      ensure_ascii=False) + "\n")
            file.flush()
            os.fsync(file.fileno())


def _last_byte(path: Path) -> bytes:
    with open(path, "rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1)


def _place(segments: Segments, options: TranscribeOptions) -> Path:
    who = json.dumps([options.recogniser, options.revision, options.recogniser_language])
    name = f"{safe_id(Path(options.recogniser).name)[:60]}-{hashlib.sha256(who.encode()).hexdigest()[:8]}.jsonl"
    return segments.folder / "work" / "transcripts" / name


def _transcribed(segments: Segments, waiting: Sequence[Piece], total: int, listener: Transcriber, kept: Transcripts,
                 reporter: Reporter) -> dict[str, Transcript]:
    found: dict[str, Transcript] = {}
    done = total - len(waiting)
    for batch in _batches(waiting):
        check_stop(reporter, f"Stopped after {done} of {counted(total, 'clip')}; their texts are kept.")
        waveforms = [_sound(segments.folder / piece.audio, piece, listener.sample_rate) for piece in batch]
        heard = dict(zip((piece.id for piece in batch), listener.transcribe(waveforms), strict=True))
        kept.add(heard)
        found |= heard
        done += len(batch)
        reporter.emit(Progress(done, total, "clips", heard[batch[-1].id].text[:60]))
    return found


def _batches(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Clips as they follow each other in their files, no more at once than memory has room for."""
    batch: list[Piece] = []
    for piece in pieces:
        if batch and (len(batch) == _BATCH_CLIPS or sum(one.duration_s for one in batch) + piece.duration_s > _BATCH_S):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _sound(path: Path, piece: Piece, rate: int) -> np.ndarray:
    try:
        with soundfile.SoundFile(str(path)) as file:
            own = file.samplerate
            file.seek(round(piece.begin_s * own))
            samples = file.read(round(piece.end_s * own) - round(piece.begin_s * own), dtype="float32")
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(f"{path} could not be read: {error}.", "Cut the recordings again, by another name.") from error
    return samples if own == rate else soxr.resample(samples, own, rate, quality="HQ").astype(np.float32)


def _with_text(piece: Piece, heard: Transcript, options: TranscribeOptions) -> Piece:
    """The clip with its text, and why to doubt it."""
    left_out = heard.score < options.drop_below
    return replace(piece, text="" if left_out else heard.text, score=round(heard.score, 4),
                   doubt=_doubt(heard, piece.duration_s, options.flag_below))


def _doubt(heard: Transcript, seconds: float, least: float) -> str:
    if not heard.text:
        return "nothing was understood"
    content = heard.text.encode()
    if len(content) > 40 and len(content) / len(zlib.compress(content)) > _REPEATED:
        return "the text repeats itself, as recognisers do when they understand nothing"
    if len(heard.text) / seconds > _MOST_SIGNS_A_SECOND:
        return f"{len(heard.text) / seconds:.0f} characters a second, more than anybody says"
    return f"the recogniser is {heard.score:.0%} sure" if heard.score < least else ""


def _tell(pieces: Sequence[Piece], reporter: Reporter) -> None:
    doubtful = [piece for piece in pieces if piece.doubt]
    for piece in sorted(doubtful, key=lambda one: one.score or 0.0)[:_NAMED]:
        reporter.emit(Warned(f"{piece.recording} at {piece.from_s:.1f} s: {piece.doubt}: {piece.text[:60]!r}"))
    if len(doubtful) > _NAMED:
        reporter.emit(Warned(f"... and {len(doubtful) - _NAMED} more to listen to."))
