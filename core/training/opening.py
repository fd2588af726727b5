"""The beginning of a run: all of a new one, or of one that goes on from its last whole checkpoint."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from config.errors import UserError
from config.schema import TrainOptions
from core import compute
from core.jobs.events import WarningRaised
from core.jobs.reporter import Reporter, progress_callback
from core.library import records
from core.library.records import CheckpointRecord
from core.model import precision
from core.model.adapters import Adapters, plan_adapters
from core.model.loading import VoiceModel, load_checkpoint, load_extension
from core.sources.recognisers import BUILT_IN
from core.speech import scoring
from core.speech.evaluation import SpeechEvaluator
from core.speech.scoring import Recogniser
from core.training import adopt, checkpoint, ranking, rehearsal, resuming, scopes, training_data
from core.training.checkpoint import TrainerState
from core.training.company import Company
from core.training.milestones import Milestones
from core.training.patience import Patience
from core.training.trainer import Trainer
from core.workspace import Workspace


def open_run(options: TrainOptions, workspace: Workspace, reporter: Reporter, device: torch.device,
             max_clips: int | None = None, company: Company | None = None) -> Milestones:
    """Everything of a new run, or of one that goes on; `max_clips` of the data, for a trial.

    `company`: the processes that share the steps; the others open the run when it is open here.
    """
    run = reporter.directory
    checkpoint.clean(run)
    saved = checkpoint.last_whole(run, lambda message: reporter.emit(WarningRaised(message)))
    voice = _voice(options, workspace, reporter, device, saved, company.size if company else 1)
    data = training_data.load(workspace, options.dataset, voice, options.validation_disjoint_by,
                              varied=options.augmentation > 0)
    if max_clips is not None:
        data = training_data.some(data, max_clips)
    for note in data.notes:
        reporter.emit(WarningRaised(note))
    state = None if saved is None else checkpoint.load_state(run, saved)
    speaks = company is None or company.rank == 0  # the others neither speak nor judge
    evaluator = SpeechEvaluator.of(voice, _judge(options, workspace, reporter, voice, data.language,
                                              state) if speaks else None)
    replayed = rehearsal.gather(options, workspace, voice, evaluator.voices, run,
                                lambda message: reporter.emit(WarningRaised(message)), progress_callback(reporter),
                                None if max_clips is None else max_clips // 2)
    trainer = Trainer(options, voice, data, replayed.rehearsed, precision.decide(options.precision, device),
                      lambda message: reporter.emit(WarningRaised(message)), company)
    trainer.probing = replayed.probing
    if options.compile == "on":
        voice.model.compile()
    patience = Patience() if state is None else _go_on(trainer, run, state, reporter)
    if company:
        if company.rank == 0:
            company.agree((run.name, options.model_dump(mode="json")))
        if not trainer.sharded:
            company.join(voice.model, may_skip=options.scope == "full")
    return Milestones(trainer, evaluator, _record(options, workspace, run, voice), reporter, patience)


def _voice(options: TrainOptions, workspace: Workspace, reporter: Reporter, device: torch.device,
           saved: int | None, processes: int) -> VoiceModel:
    """The model of the checkpoint of step `saved`, or a new one, on the weights of another run where that is asked."""
    run = reporter.directory
    if saved is not None:
        resuming.check_options(run, saved, options, processes)
        resuming.check_vocabulary(run, saved, workspace, options.extension)
        asked = bool(options.distillation or options.l2_sp or options.ewc or options.init_from)
        return load_checkpoint(workspace, checkpoint.folder_of(run, saved), device, keep_base=asked)  # a copy of all
    voice = new_voice(options, workspace, device)
    if not options.init_from:
        return voice
    return adopt.adopt(workspace, options.init_from, voice, lambda message: reporter.emit(WarningRaised(message)),
                       scopes.changed_parts(options))


def _judge(options: TrainOptions, workspace: Workspace, reporter: Reporter, voice: VoiceModel, language: str,
           state: TrainerState | None) -> Recogniser | None:
    """Who judges; `UserError` where a recogniser that was chosen cannot be had.

    A run that goes on, and whose best checkpoint it does not choose any more, does so without it.
    """
    try:
        scoring.download_recogniser(options, language, workspace, reporter)
        return scoring.load_recogniser(workspace, voice, options)
    except UserError as error:
        if state is None:
            raise
        if _is_to_choose(options, state, reporter.directory):
            hint = _as_it_began(options.recogniser, error.hint, reporter.directory, state.step)
            raise UserError(error.message, hint) from error
        return scoring.replace_unavailable(workspace, voice, lambda message: reporter.emit(WarningRaised(message)),
                                           options,
                                          error)


def _as_it_began(recogniser: str, hint: str, run: Path, step: int) -> str:
    """`hint` for a run that goes on, which may neither have another judge nor call its language otherwise."""
    back = hint.rstrip(".") if recogniser in ("", BUILT_IN) else (
        "Put the recogniser back as it was (one of the hub is fetched anew where its folder is deleted) and continue")
    return f"{back}; or start a new run on its weights: {resuming.adopting(run, step)}."


def _is_to_choose(options: TrainOptions, state: TrainerState, run: Path) -> bool:
    """Whether a checkpoint of the run that stands at `state` may still be ranked by judged speech."""
    if options.evaluation_sentences == 0 or options.select_best_by == "speech_loss":
        return False
    known = ranking.read(run).values
    if state.step not in known:
        return True
    ended = state.step >= options.steps or 0 < options.max_minutes * 60 <= state.seconds
    return not ended and not state.patience.after(state.step, known[state.step]).exhausted(options.patience)


def _go_on(trainer: Trainer, run: Path, state: TrainerState, reporter: Reporter) -> Patience:
    """Stand where the checkpoint of `state` was taken, also in the ranking; the patience that was left then."""
    resuming.check_data(run, trainer.options, state, trainer.data)
    trainer.restore(state)
    if warning := resuming.rounded_otherwise(state, trainer.precision,
                                             compute.numeric_environment(trainer.voice.device)):
        reporter.emit(WarningRaised(warning))
    if (ranked := ranking.read(run)) != ranked.up_to(state.step):
        ranking.write(run, ranked.up_to(state.step))
    return state.patience


def new_voice(options: TrainOptions, workspace: Workspace, device: torch.device) -> VoiceModel:
    """The untrained extension, with fresh adapters where the scope has them."""
    voice = load_extension(workspace, options.extension, device)
    if not scopes.has_adapters(options):
        return replace(voice, scope=options.scope)
    adapters = Adapters.fresh(voice.model.module, plan_adapters(options, voice.model.adapter_targets), options.seed)
    voice.model.module.to(device)
    return replace(voice, adapters=adapters, scope=options.scope)


def _record(options: TrainOptions, workspace: Workspace, run: Path, voice: VoiceModel) -> CheckpointRecord:
    folder = workspace.extensions / options.extension
    there = folder / records.EXTENSION
    rows_hash = records.read_record(there, records.ExtensionRecord).rows_hash if there.is_file() else ""
    return CheckpointRecord(run.name, 0, options.scope, options.extension, options.dataset, rows_hash, "", voice.origin,
                            options.adapter_rank if voice.adapters else None, options.recogniser,
                            options.recogniser_language)
