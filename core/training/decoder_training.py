"""Before the first step, a run may train its own decoder from codes to sound on the recordings of its dataset.

Codes keep their meaning, so the language model is trained as without it. The new language is decoded with the run's
decoder, every other one with the base's. The file in the run's folder is what all checkpoints hold.
"""

from __future__ import annotations

import random

import torch

from config.errors import UserError
from config.schema import TrainOptions
from core.jobs.events import Plan, Progress
from core.jobs.reporter import Reporter, pluralize, progress_callback, stage
from core.library import records
from core.library.lineage import Model
from core.model import tensor_files
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from models.registry import family as family_named

MAX_RECORDINGS_S = 40 * 60  # seconds of recordings that are held in memory
_MIN_CLIPS = 2  # a clip's speaker embedding comes from another clip


def train_decoder(options: TrainOptions, workspace: Workspace, reporter: Reporter, device: torch.device) -> None:
    """Train the decoder for `decoder_minutes`, unless the run has one, and write it into the run's folder.

    A stop request ends it without a result; the resumed run begins it again. `UserError` if the family adapts no
    decoder, or the dataset has fewer than two training clips.
    """
    path = reporter.directory / records.DECODER
    if not options.length.decoder_minutes or path.is_file():
        return

    # The options are checked before any recording is read.
    extension = records.read_extension(workspace.extension(options.extension))
    base = extension.origin.model
    family = family_named(Model.open(workspace, f"base:{base}").family_name)
    if not family.adapts_decoder:
        raise UserError(f"decoder_minutes is {options.length.decoder_minutes:g}, and the decoder of {base} (family "
                        f"{family.name}) is used as it was published.", "Set decoder_minutes to 0.")

    with stage(reporter, "decoder"):
        waveforms = _recordings(options, workspace, family.load_extractor(workspace.model(base), device).sample_rate)
        reporter.emit(Plan((f"The decoder is trained for {options.length.decoder_minutes:g} minutes on "
                            f"{pluralize(len(waveforms), 'recording')}.",)))
        progress = progress_callback(reporter)
        seconds = round(60 * options.length.decoder_minutes)

        def report(share: float) -> None:
            progress(Progress(round(share * seconds), seconds, "seconds", "of the decoder's training"))

        # The file takes its name when it is complete, because its name says that the training is done.
        tensors = family.adapt_decoder(workspace.model(base), device, waveforms, seconds, options.seed, report)
        halves = {name: value.half() for name, value in tensors.items()}
        writing = path.with_suffix(".writing")
        tensor_files.write(writing, halves)
        writing.replace(path)


def _recordings(options: TrainOptions, workspace: Workspace, sample_rate: int) -> list[torch.Tensor]:
    """Training clips (S,) in random order, up to `MAX_RECORDINGS_S`."""
    dataset = manifest.load(workspace.dataset(options.dataset))
    clips = dataset.split(manifest.TRAIN)
    if len(clips) < _MIN_CLIPS:
        raise UserError(f"The dataset {options.dataset!r} has {pluralize(len(clips), 'training clip')}; a decoder is "
                        f"trained on at least {_MIN_CLIPS}.", "Add recordings, or set decoder_minutes to 0.")
    seconds, waveforms = 0.0, list[torch.Tensor]()
    for clip in random.Random(options.seed).sample(clips, len(clips)):
        seconds += clip.duration_s
        if waveforms and seconds > MAX_RECORDINGS_S:
            break
        waveforms.append(audio.load(dataset.audio_path(clip), sample_rate))
    return waveforms
