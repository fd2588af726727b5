"""The verb `synthesize`: a text, or each line of a file. Chunks are emitted as they are computed, then clip and score.

A clip is scored if a recogniser knows the language. `clips.zip` holds all clips and a table of them.
"""

from __future__ import annotations

import shutil
from itertools import chain

from config import confinement, foreign
from config.errors import UserError
from config.schema import SynthesizeOptions
from core import compute
from core.jobs.events import CLIPS_ARCHIVE, AudioGenerated, Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, check_stop, pluralize, stage
from core.library import verification
from core.speech import clips, evaluation
from core.speech.clips import SynthesizedClip
from core.speech.model_cache import ModelCache
from core.speech.scoring import load_recogniser_or_warn, measured_by, unmeasured_reason
from core.speech.synthesis import MAX_BATCH_SIZE, Synthesizer, unused_controls
from core.workspace import Workspace
from models.base import RecognitionScore

SIDE = "speech"


def run(options: SynthesizeOptions, workspace: Workspace, reporter: Reporter,
        model_cache: ModelCache | None = None) -> Result:
    """Write `audio/chunk-NNN.wav` one by one, `audio/speech.wav` and its spectrogram; for a file `audio/NNNN.wav`.

    The model is taken from `model_cache` if it is there, else loaded into it.
    """
    texts = read_texts(options)
    with stage(reporter, "load"):
        loaded = (model_cache or ModelCache()).synthesizer(
            options.voice_model, workspace, compute.setup_device(options.device), options.precision, options.voice,
            options.sound, options.unknown)
    synthesizer, model, language = loaded.synthesizer, loaded.synthesizer.model, options.language
    count = _count_chunks(synthesizer, texts, options)
    clip_count = f"{pluralize(len(texts), 'clip')}, " if options.file else ""
    plan = (f"{clip_count}{pluralize(count, 'chunk')} with {model.ref} in the voice {loaded.voice}; "
            f"{loaded.precision}{'; already loaded' if loaded.cached else ''}.")
    reporter.emit(Plan((plan,), {"clips": len(texts), "chunks": count, "loaded": 0 if loaded.cached else 1}))
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

    recogniser, recogniser_loaded = None, False
    scored_clips: list[tuple[SynthesizedClip, RecognitionScore | None]] = []
    events: list[AudioGenerated] = []
    facts = {SIDE: {"model": model.ref, "voice": options.voice or loaded.voice, "seed": str(options.sampling.seed)}}
    try:
        with stage(reporter, "speak"):
            for start in range(0, len(texts), MAX_BATCH_SIZE):
                batch = [(language, text) for text in texts[start:start + MAX_BATCH_SIZE]]
                batch_clips: list[tuple[int, str, SynthesizedClip]] = []
                for index, chunks in enumerate(synthesizer.synthesize_batch(batch, options.sampling), start):
                    stem = f"{index + 1:04d}" if options.file else "speech"
                    clip = clips.write_clip(chunks, synthesizer.sample_rate, reporter, side=SIDE, index=index,
                                            text=texts[index], language=language,
                                            chunk_stem=f"{stem}-chunk" if options.file else "chunk", stem=stem)
                    batch_clips.append((index, texts[index], clip))
                # The recogniser is loaded only now, so that the first clip can be played early.
                if not recogniser_loaded:
                    recogniser, recogniser_loaded = load_recogniser_or_warn(
                        workspace, model, lambda message: reporter.emit(WarningRaised(message)),
                        languages=(language,)), True
                for index, text, clip in batch_clips:
                    reference = model.front_end.verbalize(text, language)
                    score = evaluation.score_waveform(recogniser, clip.waveform, clip.sample_rate, reference, language)
                    picture = ""
                    if len(texts) == 1:
                        picture = f"{clips.FOLDER}/speech.png"
                        clips.save_spectrogram(reporter.directory / picture, clip.waveform, clip.sample_rate)
                    event = clip.event(SIDE, index, text, language, score, picture,
                                       unmeasured=unmeasured_reason(recogniser, language),
                                       measured_by=measured_by(recogniser, language),
                                       transcript=evaluation.spaced_transcript(recogniser, score, reference, language))
                    reporter.emit(event)
                    events.append(event)
                    scored_clips.append((clip, score))
                if options.file:
                    reporter.emit(Progress(len(events), len(texts), "clips"))
                check_stop(reporter, f"Stopped on request after {pluralize(len(events), 'clip')}; they are kept.")
    finally:
        if events:
            clips.write_archive(reporter.directory, events, facts)

    if options.archive:
        shutil.copyfile(reporter.directory / CLIPS_ARCHIVE, options.archive)
    with stage(reporter, "score recordings"):
        recordings_cer = evaluation.recordings_cer(workspace, model, recogniser, language)
    scores = [score for _, score in scored_clips if score is not None]
    duration_s, synthesis_s = (sum(getattr(clip, name) for clip, _ in scored_clips)
                               for name in ("duration_s", "synthesis_s"))
    result: Result = {
        "clips": len(events), "duration_s": round(duration_s, 3), "seconds": round(synthesis_s, 3),
        "real_time_factor": round(synthesis_s / max(duration_s, 1e-9), 3),
        "chunks": sum(clip.chunks for clip, _ in scored_clips), "model": model.ref,
        "language": language, "voice": options.voice, "seed": options.sampling.seed,
        "error": evaluation.corpus_score(language, scores).error if scores else None, "recordings_cer": recordings_cer,
        "archive": options.archive or CLIPS_ARCHIVE,
        "no_speech": sum(clip.finish_reason == "no_speech" for clip, _ in scored_clips),
    }
    if not options.file:
        clip, event = scored_clips[0][0], events[0]
        result |= {"path": clip.path, "peak": round(clip.peak, 4), "level_db": round(clip.level_db, 1),
                   "sha256": clip.sha256, "transcript": event.transcript, "spectrogram": event.spectrogram}
    return result


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
