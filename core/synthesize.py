"""Synthesize a text: chunks as they are computed, then the whole, scored where a recogniser knows the language."""

from __future__ import annotations

from config.schema import SynthesizeOptions
from core import compute
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, pluralize, stage
from core.speech import clips, evaluation
from core.speech.model_cache import ModelCache
from core.speech.scoring import load_recogniser_or_warn, unmeasured_reason
from core.speech.synthesis import unused_controls
from core.workspace import Workspace

SIDE = "speech"


def run(options: SynthesizeOptions, workspace: Workspace, reporter: Reporter,
        model_cache: ModelCache | None = None) -> Result:
    """Write `audio/chunk-NNN.wav` one by one, `audio/speech.wav` and its spectrogram.

    Models are taken from `model_cache`, and stay there.
    """
    with stage(reporter, "load"):
        loaded = (model_cache or ModelCache()).synthesizer(
            options.voice_model, workspace, compute.setup_device(options.device), options.precision, options.voice,
            options.sound, options.unknown)
    synthesizer, model = loaded.synthesizer, loaded.synthesizer.model
    count = len(synthesizer.split(options.text, options.language))
    plan = (f"{pluralize(count, 'chunk')} with {model.ref} in the voice {loaded.voice}; "
            f"{loaded.precision}{'; loaded already' if loaded.cached else ''}.")
    reporter.emit(Plan((plan,), {"chunks": count, "loaded": 0 if loaded.cached else 1}))
    if unused := unused_controls(options.sound, model.family):
        reporter.emit(WarningRaised(f"{', '.join(unused)}: {model.family.name} has no such control; "
                                    "it changed nothing."))

    for note in synthesizer.reading_notes(options.text, options.language):
        reporter.emit(WarningRaised(note))

    with stage(reporter, "speak"):
        chunks = synthesizer.synthesize(options.text, options.language, options.sampling)
        clip = clips.write_clip(chunks, synthesizer.sample_rate, reporter, side=SIDE, index=0, chunk_stem="chunk",
                                stem="speech")

    with stage(reporter, "score"):
        recogniser = load_recogniser_or_warn(workspace, model, lambda message: reporter.emit(WarningRaised(message)),
                                             languages=(options.language,))
        reference = model.front_end.verbalize(options.text, options.language)
        score = evaluation.score_waveform(recogniser, clip.waveform, clip.sample_rate, reference, options.language)
        recordings_cer = evaluation.recordings_cer(workspace, model, recogniser, options.language)
        spectrogram = f"{clips.FOLDER}/speech.png"
        clips.save_spectrogram(reporter.directory / spectrogram, clip.waveform, clip.sample_rate)
    reporter.emit(clip.event(SIDE, 0, options.text, options.language, score, spectrogram,
                             unmeasured=unmeasured_reason(recogniser, options.language)))
    return {
        "path": clip.path, "duration_s": round(clip.duration_s, 3), "seconds": round(clip.synthesis_s, 3),
        "real_time_factor": round(clip.real_time_factor, 3), "chunks": clip.chunks, "model": model.ref,
        "language": options.language, "voice": options.voice, "seed": options.sampling.seed,
        "peak": round(clip.peak, 4), "level_db": round(clip.level_db, 1), "sha256": clip.sha256,
        "error": score.error if score else None, "recordings_cer": recordings_cer,
        "transcript": score.transcript if score else "", "spectrogram": spectrogram,
    }
