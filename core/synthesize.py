"""The verb `synthesize`: a text, or each line of a file. Chunks are emitted as they are computed, then clip and score.

A clip is scored if a recogniser knows the language. `clips.zip` holds all clips and a table of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path

from config import confinement, foreign
from config.errors import UserError
from config.schema import SynthesizeOptions
from core import compute
from core.jobs.engines import Engine, LostBatch, run_batches
from core.jobs.events import CLIPS_ARCHIVE, AudioGenerated, Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize, stage
from core.library import verification
from core.speech import clips, evaluation
from core.speech.clips import SynthesizedClip
from core.speech.model_cache import CachedSynthesizer, ModelCache
from core.speech.scoring import Recogniser, load_recogniser_or_warn
from core.speech.synthesis import MAX_BATCH_SIZE, Synthesizer, unused_controls
from core.workspace import Workspace
from data.durable_files import copy_file
from models.base import RecognitionScore

SIDE = "speech"


def run(options: SynthesizeOptions, workspace: Workspace, reporter: Reporter,
        model_cache: ModelCache | None = None) -> Result:
    """Write `audio/chunk-NNN.wav` one by one, `audio/speech.wav` and its spectrogram; for a file `audio/NNNN.wav`.

    The model is taken from `model_cache` if it is there, else loaded into it.
    """
    texts = read_texts(options)
    if options.engine != "here" and not options.file:
        raise UserError(f"The engine `{options.engine}` divides the lines of a file, and a text was given.",
                        "Give the text in a file (--file), or leave the engine out.")

    # The plan tells how much is spoken, before anything is.
    engine = Engine.from_options(options, options.device, reporter)
    with stage(reporter, "load"):
        loaded = _load_synthesizer(model_cache or ModelCache(), options, workspace)
    synthesizer, model, language = loaded.synthesizer, loaded.synthesizer.model, options.language
    count = _count_chunks(synthesizer, texts, options)
    clip_count = f"{pluralize(len(texts), 'clip')}, " if options.file else ""
    plan = (f"{clip_count}{pluralize(count, 'chunk')} with {model.ref} in the voice {loaded.voice}; "
            f"{loaded.precision}{'; already loaded' if loaded.cached else ''}.")
    reporter.emit(Plan((plan,), {"clips": len(texts), "chunks": count, "loaded": 0 if loaded.cached else 1}))

    # Warn of what the listener would not expect: a failed certificate, controls without effect, text read otherwise.
    note = verification.spoken_note(workspace, options.voice_model)
    if note:
        reporter.emit(WarningRaised(note))
    unused = unused_controls(options.sound, model.family)
    if unused:
        reporter.emit(WarningRaised(f"{', '.join(unused)}: no effect, because {model.family.name} has no such "
                                    "control."))
    notes = chain.from_iterable(synthesizer.reading_notes(text, language) for text in texts)
    for note in dict.fromkeys(notes):
        reporter.emit(WarningRaised(note))

    # Texts are spoken in batches, here or by the workers of an engine.
    has_picture = len(texts) == 1
    worker = _SynthesisWorker(options, workspace, synthesizer, reporter, has_picture)
    load: Callable[[Reporter], _SynthesisWorker] = partial(_SynthesisWorker.load, options, workspace, has_picture)
    if engine.name == "here":
        load = partial(_with_reporter, worker)
    batches = [list(enumerate(texts[start:start + MAX_BATCH_SIZE], start))
               for start in range(0, len(texts), MAX_BATCH_SIZE)]
    spoken_clips: list[_SpokenClip] = []
    facts = {SIDE: {"model": model.ref, "voice": options.voice or loaded.voice, "seed": str(options.sampling.seed)}}

    def stop_message() -> str:
        return f"Stopped on request after {pluralize(len(spoken_clips), 'clip')}; they are kept."

    # Clips that are finished are kept, also when the job fails or is stopped.
    try:
        with stage(reporter, "speak"):
            for batch, batch_clips in run_batches(load, _SynthesisWorker.speak, batches, engine, reporter,
                                                  stop_message):
                if isinstance(batch_clips, LostBatch):
                    reporter.emit(WarningRaised(f"Clip {batch[0][0] + 1} of {len(texts)} ({batch[0][1][:40]}) was not "
                                                f"made: {batch_clips.reason}."))
                else:
                    spoken_clips += batch_clips
                if options.file:
                    reporter.emit(Progress(len(spoken_clips), len(texts), "clips"))
                check_stop(reporter, stop_message())
    finally:
        events = [clip.event for clip in spoken_clips]
        if events:
            clips.write_archive(reporter.directory, events, facts)

    if not spoken_clips:
        raise UserError(f"None of {pluralize(len(texts), 'clip')} was made.", "The warnings above name the reason.")
    recogniser = worker.load_recogniser()
    if options.archive:
        copy_file(reporter.directory / CLIPS_ARCHIVE, Path(options.archive))

    # The error on recordings shows how well the recogniser itself understands the language.
    with stage(reporter, "score recordings"):
        recordings_cer = evaluation.recordings_cer(workspace, model, recogniser, language)
    scores = [clip.score for clip in spoken_clips if clip.score is not None]
    duration_s, synthesis_s = (sum(getattr(clip, name) for clip in spoken_clips)
                               for name in ("duration_s", "synthesis_s"))
    result: Result = {
        "clips": len(events), "duration_s": round(duration_s, 3), "seconds": round(synthesis_s, 3),
        "real_time_factor": round(synthesis_s / max(duration_s, 1e-9), 3),
        "chunks": sum(clip.chunks for clip in spoken_clips), "model": model.ref,
        "language": language, "voice": options.voice, "seed": options.sampling.seed,
        "error": evaluation.corpus_score(language, scores).error if scores else None, "recordings_cer": recordings_cer,
        "archive": options.archive or CLIPS_ARCHIVE,
        "no_speech": sum(clip.event.finish_reason == "no_speech" for clip in spoken_clips),
    }
    if not options.file:
        clip = spoken_clips[0]
        result |= {"path": clip.event.path, "peak": clip.peak, "level_db": clip.level_db, "sha256": clip.sha256,
                   "transcript": clip.event.transcript, "spectrogram": clip.event.spectrogram}
    return result


@dataclass(frozen=True)
class _SpokenClip:
    """A clip that was written and scored, without its samples."""

    event: AudioGenerated
    score: RecognitionScore | None
    duration_s: float
    synthesis_s: float
    chunks: int
    peak: float
    level_db: float
    sha256: str


@dataclass
class _SynthesisWorker:
    """Synthesizes and scores batches of texts."""

    options: SynthesizeOptions
    workspace: Workspace
    synthesizer: Synthesizer
    reporter: Reporter
    has_picture: bool  # a spectrogram of the only clip
    warns: bool = True  # Whether a missing recogniser is warned of.
    recogniser: Recogniser | None = None
    recogniser_loaded: bool = False

    @classmethod
    def load(cls, options: SynthesizeOptions, workspace: Workspace, has_picture: bool,
             reporter: Reporter) -> _SynthesisWorker:
        loaded = _load_synthesizer(ModelCache(), options, workspace)
        return cls(options, workspace, loaded.synthesizer, reporter, has_picture, warns=False)

    def load_recogniser(self) -> Recogniser | None:
        """The recogniser, loaded at the first call."""
        if not self.recogniser_loaded:
            self.recogniser = load_recogniser_or_warn(self.workspace, self.synthesizer.model, self._warn,
                                                      languages=(self.options.language,))
            self.recogniser_loaded = True
        return self.recogniser

    def _warn(self, message: str) -> None:
        if self.warns:
            self.reporter.emit(WarningRaised(message))

    def speak(self, batch: Sequence[tuple[int, str]]) -> list[_SpokenClip]:
        """The clips of texts with their numbers."""
        options, synthesizer, reporter, language = self.options, self.synthesizer, self.reporter, self.options.language
        model = synthesizer.model
        synthesized: list[tuple[int, str, SynthesizedClip]] = []
        streams = synthesizer.synthesize_batch([(language, text) for _, text in batch], options.sampling)
        for (index, text), chunks in zip(batch, streams, strict=True):
            stem = f"{index + 1:04d}" if options.file else "speech"
            synthesized.append((index, text, clips.write_clip(
                chunks, synthesizer.sample_rate, reporter, side=SIDE, index=index, text=text, language=language,
                chunk_stem=f"{stem}-chunk" if options.file else "chunk", stem=stem)))

        # The recogniser is loaded only now, so that the first clip can be played early.
        recogniser = self.load_recogniser()
        spoken_clips = []
        for index, text, clip in synthesized:
            reference = model.front_end.verbalize(text, language)
            event, score = clip.scored(clip.event(SIDE, index, text, language), recogniser, reference)
            if self.has_picture:
                event = replace(event, spectrogram=f"{clips.FOLDER}/speech.png")
                clips.save_spectrogram(reporter.directory / event.spectrogram, clip.waveform, clip.sample_rate)
            reporter.emit(event)
            spoken_clips.append(_SpokenClip(event, score, clip.duration_s, clip.synthesis_s, clip.chunks,
                                            round(clip.peak, 4), round(clip.level_db, 1), clip.sha256))
        return spoken_clips


def _with_reporter(worker: _SynthesisWorker, reporter: Reporter) -> _SynthesisWorker:
    """The worker of this process, with the reporter of its batches."""
    worker.reporter = reporter
    return worker


def _load_synthesizer(model_cache: ModelCache, options: SynthesizeOptions, workspace: Workspace) -> CachedSynthesizer:
    return model_cache.synthesizer(options.voice_model, workspace, compute.setup_device(options.device),
                                   options.precision, options.voice, options.sound, options.unknown)


def read_texts(options: SynthesizeOptions) -> list[str]:
    """The texts of the clips: the text alone, or the lines of the file that are not empty."""
    if not options.file:
        return [options.text]
    path = confinement.open_path(options.file)
    text = foreign.read_text(path)
    texts = [line.strip() for line in text.splitlines() if line.strip()] if options.lines else [text.strip()]
    if not any(texts):
        raise UserError(f"{path} has no text.", "Write a line for each clip.")
    return texts


def _count_chunks(synthesizer: Synthesizer, texts: list[str], options: SynthesizeOptions) -> int:
    """The number of chunks of all texts; `UserError` names the first line that the model cannot read."""
    count = 0
    for number, text in enumerate(texts, 1):
        try:
            count += len(synthesizer.split(text, options.language))
        except UserError as error:
            place = f"Clip {number} of {len(texts)} ({text[:40]}): " if options.file and options.lines else ""
            raise UserError(f"{place}{error.message}", error.hint) from error
    return count
