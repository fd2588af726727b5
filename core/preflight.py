"""The verb `preflight`: the training itself on eight clips, in about a minute, before hours are spent on it.

Features are extracted again from the recordings, two steps are taken at the full learning rate, the checkpoint is saved
and reloaded, and a sentence is synthesized. If a part fails, the error names it and says what to do. Parts that cannot
be tried in a minute are listed in the result (`untried_parts`). No input of the training is changed, and only the
synthesized sentence is kept.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from config import schema
from config.errors import UserError
from config.loading import parse_options
from config.schema import ANY_STEPS, LengthOptions, PreflightOptions, TrainOptions, without_sections
from core import compute, train
from core.jobs import checkpoint_names
from core.jobs.events import Event, Result, SampleGenerated, WarningRaised
from core.jobs.reporter import ForwardingReporter, Reporter, check_stop, size_text, stage
from core.model.loading import TTSModel, load_checkpoint
from core.speech import evaluation
from core.training import checkpoint, replay, run_plan
from core.training.checkpoint_evaluation import TrainingRun
from core.training.distributed import check_devices
from core.training.run_plan import Estimate, duration_range
from core.workspace import Workspace
from data import manifest
from data.acoustics import audio
from models.base import Extractor

CLIPS, STEPS = 8, 2
_FISHER = 2  # clips for the estimate of importance
_SAMPLE = "spoken.wav"
_SAME_CODES = 0.9  # smallest share of equal codes; it holds on other devices too
_SILENT = 1e-4  # peak of full scale
_FAULTS = (RuntimeError, ValueError, OSError, ArithmeticError, LookupError, AssertionError)


def run(options: PreflightOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Try every part of the training with these options. Returns measures of it, and estimates for the training."""
    start = time.monotonic()
    not_tried, reporter = untried_parts(options), WarningCounter(reporter)
    with _part(reporter, "setup", "Prepare the dataset and make the extension again, then try once more."):
        schema.check_sharding(options, schema.get_world_size(options.hardware.processes))
        check_devices(options.hardware.processes, compute.setup_device(options.device))
        training_run, estimate = train.prepare_run(preflight_options(options), workspace, reporter, max_clips=CLIPS)

    trainer = training_run.trainer
    for message in run_plan.training_warnings(trainer, reporter.directory, options):
        reporter.emit(WarningRaised(message))
    check_stop(reporter)
    if options.hardware.compile == "on":
        with _part(reporter, "compile", "Train with compile off: torch finds no compiler that works here."):
            _compile(trainer.tts.device)

    # The parts run in the order of the training, so that the first that fails is named.
    try:
        with _part(reporter, "prepare", "Prepare the dataset again, under another name if its recordings changed."):
            alike = _prepare(workspace, options.dataset, training_run)
        with _part(reporter, "two steps and save", "Try float32, a smaller batch, or the CPU, to see which it is."):
            train.train_loop(training_run)
        folder = checkpoint_names.folder_of(reporter.directory, STEPS)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        with _part(reporter, "reload", "Check the disk of the workspace."):
            tts = load_checkpoint(workspace, folder, trainer.tts.device)
            _compare(training_run, tts)
        with _part(reporter, "speak", "Choose another precision, or the CPU, to see which part it is."):
            spoken_s = _synthesize(training_run, tts, reporter)
    finally:
        # Nothing of the trial may be taken for a checkpoint.
        shutil.rmtree(reporter.directory / checkpoint.FOLDER, ignore_errors=True)
        for path in reporter.directory.glob(f"{replay.SPOKEN_CLIPS}.*"):
            if path.name != _SAMPLE:
                path.unlink()

    return {
        "ready": estimate.fits, "clips": len(trainer.data.train), "steps": trainer.step, "warnings": reporter.warnings,
        "features_alike": round(alike, 4), "checkpoint": size_text(size), "spoken_s": round(spoken_s, 2),
        "memory_bytes": estimate.needed, "training": _expected(estimate, options.length),
        "seconds_a_step": round(estimate.mean_step_s, 3),
        "seconds": round(time.monotonic() - start, 1), "not_tried": " ".join(not_tried),
    }


class WarningCounter(ForwardingReporter):
    """A reporter that also counts warnings."""

    warnings = 0

    def emit(self, event: Event) -> None:
        super().emit(event)
        self.warnings += isinstance(event, WarningRaised)


def _expected(estimate: Estimate, length: LengthOptions) -> str:
    """How long the training will take, from timed passes over clips of all its data; empty if it does not fit."""
    if not estimate.fits:
        return ""
    seconds = estimate.mean_step_s
    fitting = int(60 * length.minutes_of_steps / seconds) if length.max_minutes and seconds else length.steps
    if fitting < length.steps:
        limit = "" if length.steps == ANY_STEPS else f" of the {length.steps}"
        return (f"the time limit of {length.max_minutes:g} min, which holds about {fitting}{limit} steps, without the "
                "samples at checkpoints")
    if length.steps == ANY_STEPS:
        return f"{length.max_epochs:g} epochs, {seconds:.3g} s a step, without the samples at checkpoints"
    return f"{duration_range(estimate, length.steps)} for {length.steps} steps, without the samples at checkpoints"


def preflight_options(options: TrainOptions) -> TrainOptions:
    """The options of the two steps: at the full learning rate, and without what `untried_parts` lists."""
    short = {"steps": STEPS, "checkpoint_every": STEPS, "warmup": 0, "max_minutes": 0.0, "max_epochs": 0.0,
             "validate_every": 0, "patience": 0,
             "evaluation_sentences": min(1, options.evaluation.evaluation_sentences), "keep_last": 1,
             "compile": "off",
             "processes": 1, "sharding": "none", "fisher_clips": min(_FISHER, options.full.fisher_clips)}
    values = options.model_dump(mode="json", include=set(TrainOptions.model_fields))
    return parse_options(TrainOptions, {**without_sections(TrainOptions, values), **short})


def untried_parts(options: TrainOptions) -> list[str]:
    """The parts of the training that the preflight leaves out, a sentence each, with the reason."""
    not_tried = []
    if options.hardware.compile == "on":
        not_tried.append("The model's layers are not compiled, which takes minutes; only a small function is, to test "
                         "the compiler of this machine.")
    if options.hardware.processes > 1:
        sharded = ", and the model is not sharded" if options.hardware.sharding != "none" else ""
        not_tried.append(f"The {options.hardware.processes} processes are not started{sharded}: the preflight is one "
                         "process with the whole model.")
    if options.job.tracker != "none":
        not_tried.append(f"Nothing is sent to {options.job.tracker}.")
    if options.scope == "full" and not options.full.replay_datasets.strip():
        not_tried.append(f"If the base synthesizes the clips to replay, the preflight has {CLIPS // 2} of them; "
                         "the training synthesizes all of them before its first step, and its log shows the time.")
    if options.scope == "full" and options.full.ewc and options.full.fisher_clips > _FISHER:
        not_tried.append(f"The importance of the base's weights (EWC) is estimated on {_FISHER} clips, not on "
                         f"{options.full.fisher_clips}.")
    return not_tried


def _compile(device: torch.device) -> None:
    """Compile a small function and its backward pass: a test of the compiler that takes seconds."""
    compiled = torch.compile(lambda values: torch.nn.functional.silu(values) * values)
    compiled(torch.ones(8, device=device, requires_grad=True)).sum().backward()


def _prepare(workspace: Workspace, name: str, training_run: TrainingRun) -> float:
    """Extract the features of the clips again. Returns the share of codes that are equal to the cached ones."""
    tts, features_by_id = training_run.trainer.tts, {item.id: item for item in training_run.trainer.data.train}
    dataset = manifest.load(workspace.dataset(name))
    extractor: Extractor = tts.family.load_extractor(tts.base_folder, tts.device)
    same = total = 0
    for clip in dataset.clips:
        if clip.id in features_by_id:
            waveform = audio.load(dataset.audio_path(clip), extractor.sample_rate, clip.trimmed_start_s,
                                  clip.trimmed_end_s)
            codes = extractor.extract(waveform).speech_codes
            cached = features_by_id[clip.id].speech_codes
            total += max(len(codes), len(cached))
            shared = min(len(codes), len(cached))
            same += int(np.count_nonzero(codes[:shared] == cached[:shared]))
    if same < _SAME_CODES * total:
        raise UserError(f"The cached features do not belong to the recordings: {same} of {total} codes are the same.",
                        "The recordings were changed; prepare them again under another name.")
    return same / max(1, total)


def _compare(training_run: TrainingRun, tts: TTSModel) -> None:
    """Raise `UserError` unless the reloaded weights are bit-identical to the trained ones."""
    trained = training_run.trainer.tts
    reloaded = dict(tts.lm.module.named_parameters())
    with training_run.trainer.evaluation_weights():
        for name, value in training_run.trainer.trainables.named.items():
            if name not in reloaded or not torch.equal(value.detach().cpu(), reloaded[name].detach().cpu()):
                raise UserError(f"The reloaded checkpoint differs from the saved one: {name}.",
                                "Check the disk of the workspace, and try again.")
    if tts.front_end.fingerprint != trained.front_end.fingerprint:
        raise UserError("The reloaded front-end differs from the saved one.", "Check the disk, and try again.")


def _synthesize(training_run: TrainingRun, tts: TTSModel, reporter: Reporter) -> float:
    """Synthesize a held-out sentence with the reloaded model. Returns the seconds of audio."""
    data = training_run.trainer.data
    sampling = replace(tts.sampling, seed=training_run.options.seed)
    language = data.held_out[0].language
    _, synthesized = evaluation.evaluate_language(training_run.speech_evaluator, tts, language,
                                                  data.sentences[:1], sampling)
    if not synthesized:
        raise UserError("The model cannot read the held-out sentence.",
                        "Make a tokenizer from this dataset, extend the model with it, and train that extension.")
    waveform = synthesized[0].waveform
    if not bool(torch.isfinite(waveform).all()):
        raise UserError("The synthesized audio has samples that are not finite.", "Try another precision.")
    if len(waveform) == 0 or float(waveform.abs().max()) < _SILENT:
        raise UserError("The synthesized audio is silent.", "Try another precision, or a lower learning rate.")
    audio.save(reporter.directory / _SAMPLE, waveform, synthesized[0].sample_rate)
    error = synthesized[0].score.error if synthesized[0].score else None
    reporter.emit(SampleGenerated(STEPS, language, synthesized[0].text, Path(_SAMPLE).as_posix(), error))
    return len(waveform) / synthesized[0].sample_rate


@contextmanager
def _part(reporter: Reporter, name: str, remedy: str) -> Iterator[None]:
    """Context of a part of the preflight; an error in it is raised with the name of the part and a hint."""
    try:
        with stage(reporter, name):
            yield
    except UserError as fault:
        raise UserError(f"The preflight failed at {name!r}: {fault.message}", fault.hint) from fault
    except torch.OutOfMemoryError as fault:
        raise UserError(f"The preflight failed at {name!r}: out of memory.",
                        "Choose a smaller batch, close what else uses the device, or leave out the longest clips."
                        ) from fault
    except _FAULTS as fault:
        message = f"{type(fault).__name__}: {fault}".rstrip(": ")
        raise UserError(f"The preflight failed at {name!r}: {message}", remedy) from fault
