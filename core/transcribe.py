"""Transcribe segments with a speech recogniser; each clip's transcript is saved as soon as it is made.

Transcripts are in `work/transcripts/`, a file for each recogniser and language, so a stopped job resumes and no
recogniser's transcripts replace another's. The table that `prepare` reads is written at the end.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

import numpy as np
import soundfile
import soxr

from config.errors import UserError
from config.schema import SHARD_IMPORT, TranscribeOptions
from core.jobs.engines import Engine, LostBatch, run_batches
from core.jobs.events import Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, pluralize, stage
from core.jobs.shards import Shard, ShardLists
from core.library.segments import SegmentClip, Segments
from core.speech import transcription as recognisers
from core.speech.transcription import RecogniserSource, Transcriber, Transcript
from core.workspace import Workspace
from data.durable_files import append_text, check_no_link_out
from data.importers import safe_id

_BATCH_S, _BATCH_CLIPS = 120.0, 16
_REPEATED = 2.4  # compression ratio from which a text repeats itself (Radford et al. 2022)
_MAX_CHARACTERS_PER_S = 35.0
_SHOWN = 10  # doubtful clips


def run(options: TranscribeOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Give the clips of `segments/NAME` their texts; returns the counts."""
    segments = Segments.load(workspace.segment_folder(options.segments))
    if segments.card.made == "aligned":
        raise UserError(f"The segments {options.segments!r} have the texts that they were aligned with.",
                        "Prepare them as they are, or cut the recordings again under another name.")
    pieces = segments.pieces()
    # Texts of another recogniser or revision are kept in another file.
    identity = json.dumps([options.recogniser, options.revision, options.recogniser_language])
    name = f"{safe_id(Path(options.recogniser).name)[:60]}-{hashlib.sha256(identity.encode()).hexdigest()[:8]}"
    work, shard = segments.folder / "work" / "transcripts", Shard.parse(options.shard)
    if options.shard == SHARD_IMPORT:
        raise UserError(f"`--shard {SHARD_IMPORT}` is a step of `prepare`; segments are there already.",
                        "Begin with the first shard, such as --shard 1/8.")
    batches, selected = list(_batches(pieces)), pieces
    if shard is not None:
        lists = ShardLists(work / f"{name}-shards", [[piece.id for piece in batch] for batch in batches])
        parts = {part: TranscriptFile(work / f"{name}.{part.number}-of-{part.count}.jsonl")
                 for part in (Shard(number, shard.count) for number in range(1, shard.count + 1))}
        if shard.is_merge:
            _merge_shards(lists, list(parts.values()), TranscriptFile(work / f"{name}.jsonl"))
        else:
            batches = list(shard.select(batches))
            selected = tuple(chain.from_iterable(batches))
    transcripts = TranscriptFile(work / f"{name}.jsonl") if shard is None or shard.is_merge else parts[shard]
    transcripts_by_id = transcripts.load()

    # A shard repeats whole batches, which are the same whatever was transcribed before.
    pending = [piece for piece in selected if piece.id not in transcripts_by_id]
    pending_batches = list(_batches(pending)) if shard is None or shard.is_merge else [
        batch for batch in batches if any(piece.id not in transcripts_by_id for piece in batch)]
    engine = Engine.from_options(options, options.device, reporter)
    lost: dict[str, str] = {}  # why a clip has no transcript, by id
    done_count = len(selected) - sum(map(len, pending_batches))

    def stop_message() -> str:
        return f"Stopped after {done_count} of {pluralize(len(selected), 'clip')}; their texts are kept."

    if pending:
        source = recognisers.find_recogniser(options.recogniser, options.revision, segments.card.language,
                                             options.recogniser_language, options.device, workspace, reporter)
        load = partial(_TranscriptionWorker.load, segments.folder, source)
        with stage(reporter, "transcribe"):
            for batch, new_transcripts in run_batches(load, _TranscriptionWorker.transcribe, pending_batches, engine,
                                                      reporter, stop_message):
                if isinstance(new_transcripts, LostBatch):
                    lost[batch[0].id] = new_transcripts.reason
                else:
                    transcripts.add({key: value for key, value in new_transcripts.items()
                                     if key not in transcripts_by_id})
                    transcripts_by_id |= new_transcripts
                done_count += len(batch)
                last_transcript = transcripts_by_id.get(batch[-1].id)
                reporter.emit(Progress(done_count, len(selected), "clips",
                                       last_transcript.text[:60] if last_transcript else ""))

    # A clip that killed its worker is left without a text; it is tried again when the job runs again.
    for piece in pieces:
        if piece.id in lost:
            reporter.emit(WarningRaised(f"{piece.recording} at {piece.from_s:.1f} s has no text: {lost[piece.id]}."))
            transcripts_by_id[piece.id] = Transcript("", 0.0)

    if shard is not None and not shard.is_merge:
        lists.save(shard, lost)
        return {"segments": options.segments, "shard": str(shard), "clips": len(selected),
                "transcribed_before": len(selected) - len(pending)}

    transcribed = []
    for piece in pieces:
        transcript = transcripts_by_id[piece.id]
        transcribed.append(replace(piece, text="" if transcript.score < options.drop_below else transcript.text,
                                   score=round(transcript.score, 4),
                                   doubt=_doubt(transcript, piece.duration_s, options.flag_below)))
    if not any(piece.text for piece in transcribed):
        raise UserError(f"{options.recogniser} found no text in {pluralize(len(pieces), 'clip')}.",
                        "Choose another recogniser, or check the language and listen to the recordings.")
    segments = segments.save_texts(transcribed, options.recogniser)
    doubtful = [piece for piece in transcribed if piece.doubt]
    for piece in sorted(doubtful, key=lambda clip: clip.score or 0.0)[:_SHOWN]:
        reporter.emit(WarningRaised(f"{piece.recording} at {piece.from_s:.1f} s: {piece.doubt}: {piece.text[:60]!r}"))
    if len(doubtful) > _SHOWN:
        reporter.emit(WarningRaised(f"... and {len(doubtful) - _SHOWN} more to listen to."))
    return {"segments": options.segments, "language": segments.card.language, "recogniser": options.recogniser,
            "clips": len(pieces), "with_text": segments.card.texts, "doubtful": segments.card.doubtful,
            "without_text": len(pieces) - segments.card.texts,
            "mean_score": round(float(np.mean([transcript.score for transcript in transcripts_by_id.values()])), 4),
            "transcribed_before": len(pieces) - len(pending), "table": str(segments.folder / "metadata.jsonl")}


@dataclass(frozen=True)
class TranscriptFile:
    """The transcripts of one recogniser, a line per clip; a clip whose line was cut off is transcribed again."""

    path: Path

    def load(self) -> dict[str, Transcript]:
        transcripts = {}
        if self.path.is_file():
            for line in self.path.read_text(encoding="utf-8", errors="replace").split("\n"):
                with suppress(ValueError, KeyError, TypeError):
                    values = json.loads(line)
                    transcripts[str(values["id"])] = Transcript(str(values["text"]), float(values["score"]))
        return transcripts

    def add(self, transcripts: Mapping[str, Transcript]) -> None:
        """Append `transcripts`; they are on the disk when this returns."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_text(self.path, "".join(
            json.dumps({"id": name, "text": transcript.text, "score": round(transcript.score, 4)},
                       ensure_ascii=False) + "\n"
            for name, transcript in transcripts.items()))


def _merge_shards(lists: ShardLists, parts: Sequence[TranscriptFile], target: TranscriptFile) -> None:
    """Write the transcripts of all shards in the order of the batches; `UserError` if one lacks any."""
    transcripts: dict[str, Transcript] = {}
    for part in parts:
        transcripts |= part.load()
    failed = lists.check(len(parts), transcripts.__contains__)
    target.path.unlink(missing_ok=True)
    for batch in lists.batches:
        target.add({name: transcripts[name] for name in batch if name not in failed})


@dataclass(frozen=True)
class _TranscriptionWorker:
    """Transcribes clips of segments."""

    folder: Path  # The folder of the segments.
    recogniser: Transcriber

    @classmethod
    def load(cls, folder: Path, source: RecogniserSource, _reporter: Reporter) -> _TranscriptionWorker:
        return cls(folder, source.load_transcriber())

    def transcribe(self, batch: Sequence[SegmentClip]) -> dict[str, Transcript]:
        """The transcripts of a batch, by id."""
        waveforms = [_waveform(check_no_link_out(self.folder, piece.audio), piece, self.recogniser.sample_rate)
                     for piece in batch]
        return dict(zip((piece.id for piece in batch), self.recogniser.transcribe(waveforms), strict=True))


def _batches(pieces: Sequence[SegmentClip]) -> Iterator[list[SegmentClip]]:
    """Clips in the order of their files, limited in number and length for memory."""
    batch: list[SegmentClip] = []
    for piece in pieces:
        if batch and (len(batch) == _BATCH_CLIPS
                      or sum(clip.duration_s for clip in batch) + piece.duration_s > _BATCH_S):
            yield batch
            batch = []
        batch.append(piece)
    if batch:
        yield batch


def _waveform(path: Path, piece: SegmentClip, rate: int) -> np.ndarray:
    try:
        with soundfile.SoundFile(str(path)) as file:
            file_rate = file.samplerate
            file.seek(round(piece.begin_s * file_rate))
            samples = file.read(round(piece.end_s * file_rate) - round(piece.begin_s * file_rate), dtype="float32")
    except (soundfile.SoundFileError, OSError) as error:
        raise UserError(f"{path} could not be read: {error}.", "Cut the recordings again, by another name.") from error
    return samples if file_rate == rate else soxr.resample(samples, file_rate, rate, quality="HQ").astype(np.float32)


def _doubt(transcript: Transcript, seconds: float, flag_below: float) -> str:
    if not transcript.text:
        return "nothing was understood"
    content = transcript.text.encode()
    if len(content) > 40 and len(content) / len(zlib.compress(content)) > _REPEATED:
        return "the text repeats itself, as recognisers do when they understand nothing"
    if len(transcript.text) / seconds > _MAX_CHARACTERS_PER_S:
        return f"{len(transcript.text) / seconds:.0f} characters a second, more than anybody says"
    return f"the recogniser is {transcript.score:.0%} sure" if transcript.score < flag_below else ""
