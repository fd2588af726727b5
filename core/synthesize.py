"""Speak a text: segments as they are made, then the whole, judged where the judge knows the language."""

from __future__ import annotations

from config.schema import SynthesizeOptions
from core import compute
from core.jobs.events import Plan, Result, WarningRaised
from core.jobs.reporter import Reporter, pluralize, stage
from core.speech import clips, originals, spectrogram
from core.speech.judges import judge_of, unmeasured
from core.speech.shelf import Shelf
from core.speech.speak import unused_controls
from core.workspace import Workspace

SIDE = "speech"


def run(options: SynthesizeOptions, workspace: Workspace, reporter: Reporter, shelf: Shelf | None = None) -> Result:
    """Write `audio/segment-NNN.wav` one by one, `audio/speech.wav` and its spectrogram.

    What is loaded is looked for on the `shelf` first, and left there.
    """
    with stage(reporter, "load"):
        ready = (shelf or Shelf()).speaker(options.voice_model, workspace, compute.setup_device(options.device),
                                           options.precision, options.voice, options.sound)
    speaker, model = ready.speaker, ready.speaker.model
    pieces = speaker.pieces(options.text, options.language)
    plan = (f"{pluralize(len(pieces), 'segment')} with {model.ref} in the voice {options.voice or 'of the model'}; "
            f"{ready.computed_in}{'; loaded already' if ready.kept else ''}.")
    reporter.emit(Plan((plan,), {"segments": len(pieces), "loaded": 0 if ready.kept else 1}))
    if unused := unused_controls(options.sound, model.family):
        reporter.emit(WarningRaised(
            f"{', '.join(unused)}: {model.family.name} has no such control; it changed nothing."))
    with stage(reporter, "speak"):
        clip = clips.write(speaker.say(options.text, options.language, options.sampling), speaker.sample_rate, reporter,
                           side=SIDE, index=0, piece_stem="segment", stem="speech")
    with stage(reporter, "judge"):
        judge = judge_of(workspace, model, lambda message: reporter.emit(WarningRaised(message)),
                         spoken=(options.language,))
        said = model.front_end.verbalize(options.text, options.language)
        heard = originals.verdict(judge, clip.waveform, clip.sample_rate, said, options.language)
        own_error = originals.judge_error(workspace, model, judge, options.language)
        picture = f"{clips.FOLDER}/speech.png"
        spectrogram.save(reporter.directory / picture, clip.waveform, clip.sample_rate)
    reporter.emit(clip.event(SIDE, 0, options.text, options.language, heard, picture,
                             unmeasured=unmeasured(judge, options.language)))
    return {
        "path": clip.path, "duration_s": round(clip.duration_s, 3), "seconds": round(clip.seconds, 3),
        "real_time_factor": round(clip.real_time_factor, 3), "segments": clip.segments, "model": model.ref,
        "language": options.language, "voice": options.voice, "seed": options.sampling.seed,
        "peak": round(clip.peak, 4), "level_db": round(clip.level_db, 1), "sha256": clip.sha256,
        "error": heard.error if heard else None, "error_on_originals": own_error,
        "heard": heard.heard if heard else "", "spectrogram": picture,
    }
