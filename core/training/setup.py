"""Setup of a run: a new one, one on the weights of another run, or one resumed from its last intact checkpoint."""

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
from core.training import checkpoint, dataloader, parameter_groups, replay, resume_checks, warm_start
from core.training.checkpoint import EarlyStopping, TrainerState
from core.training.checkpoint_evaluation import CheckpointEvaluator
from core.training.distributed import ONE_PROCESS, ProcessGroup
from core.training.trainer import Trainer
from core.workspace import Workspace


def setup_run(options: TrainOptions, workspace: Workspace, reporter: Reporter, device: torch.device,
              group: ProcessGroup = ONE_PROCESS, max_clips: int | None = None) -> CheckpointEvaluator:
    """Load everything of a new run, or of one that resumes; `max_clips` of the data, for a trial."""
    run = reporter.directory

    def warn(message: str) -> None:
        reporter.emit(WarningRaised(message))

    # The model: that of the last intact checkpoint, or the untrained extension, on the weights of another run.
    checkpoint.remove_leftovers(run)
    saved = checkpoint.last_intact(run, warn)
    if saved is None:
        state, voice = None, new_voice(options, workspace, device)
        if options.init_from:
            voice = warm_start.init_from(workspace, options.init_from, voice, warn,
                                         parameter_groups.changed_parts(options))
    else:
        state = checkpoint.load_state(run, saved)
        resume_checks.check_options(run, saved, options, group.size)
        resume_checks.check_vocabulary(run, saved, workspace, options.extension)
        keep_base = bool(options.distillation or options.l2_sp or options.ewc or options.init_from)
        voice = load_checkpoint(workspace, checkpoint.folder_of(run, saved), device, keep_base=keep_base)

    # The data: clips of the new language, and in `full` replayed clips of the base languages.
    data = dataloader.load_training_data(workspace, options.dataset, voice, options.validation_disjoint_by,
                                         varied=options.augmentation > 0)
    if max_clips is not None:
        data = dataloader.subset(data, max_clips)
    for note in data.notes:
        warn(note)
    recogniser = _judge(options, workspace, reporter, voice, data.language, state) if group.rank == 0 else None
    evaluator = SpeechEvaluator.of(voice, recogniser)
    clips = replay.gather_replay_clips(options, workspace, voice, evaluator.voices, run, warn,
                                       progress_callback(reporter),
                                       None if max_clips is None else max_clips // 2)

    # The trainer, where its checkpoint left it.
    trainer = Trainer(options, voice, data, clips.replayed, precision.decide(options.precision, device), warn, group)
    trainer.probe_clips = clips.probe_clips
    if options.compile == "on":
        voice.model.compile()
    early_stopping = EarlyStopping()
    if state is not None:
        resume_checks.check_data(run, options, state, data)
        trainer.restore(state)
        early_stopping = state.early_stopping
        if warning := resume_checks.rounding_warning(state, trainer.precision, compute.numeric_environment(device)):
            warn(warning)
        if (ranked := checkpoint.read_ranking(run)) != ranked.up_to(state.step):
            checkpoint.write_ranking(run, ranked.up_to(state.step))

    path = workspace.extensions / options.extension / records.EXTENSION
    rows_hash = records.read_record(path, records.ExtensionRecord).rows_hash if path.is_file() else ""
    record = CheckpointRecord(run.name, 0, options.scope, options.extension, options.dataset, rows_hash, "",
                              voice.origin, options.adapter_rank if voice.adapters else None, options.recogniser,
                              options.recogniser_language)
    return CheckpointEvaluator(trainer, evaluator, record, reporter, early_stopping)


def _judge(options: TrainOptions, workspace: Workspace, reporter: Reporter, voice: VoiceModel, language: str,
           state: TrainerState | None) -> Recogniser | None:
    """The recogniser; `UserError` where one that was chosen cannot be had.

    A resumed run whose checkpoints are not ranked by it any more goes on without it.
    """
    try:
        scoring.download_recogniser(options, language, workspace, reporter)
        return scoring.load_recogniser(workspace, voice, options)
    except UserError as error:
        if state is None:
            raise
        run = reporter.directory
        if _may_rank_by_cer(options, state, run):
            raise UserError(error.message, _restore_hint(options.recogniser, error.hint, run, state.step)) from error
        return scoring.replace_unavailable(workspace, voice, lambda message: reporter.emit(WarningRaised(message)),
                                           options,
                                          error)


def _restore_hint(recogniser: str, hint: str, run: Path, step: int) -> str:
    """`hint` for a resumed run, which may neither have another recogniser nor call its language otherwise."""
    way_out = hint.rstrip(".") if recogniser in ("", BUILT_IN) else (
        "Put the recogniser back as it was (one of the hub is downloaded again where its folder is deleted) and resume")
    return f"{way_out}; or start a new run on its weights: {resume_checks.init_from_command(run, step)}."


def _may_rank_by_cer(options: TrainOptions, state: TrainerState, run: Path) -> bool:
    """Whether a checkpoint of the run that resumes from `state` may still be ranked by character error rate."""
    if options.evaluation_sentences == 0 or options.select_best_by == "speech_loss":
        return False
    known = checkpoint.read_ranking(run).values
    if state.step not in known:
        return True
    ended = state.step >= options.steps or 0 < options.max_minutes * 60 <= state.seconds
    return not ended and not state.early_stopping.after(state.step, known[state.step]).exhausted(options.patience)


def new_voice(options: TrainOptions, workspace: Workspace, device: torch.device) -> VoiceModel:
    """The untrained extension, with fresh adapters where the scope has them."""
    voice = load_extension(workspace, options.extension, device)
    if not parameter_groups.has_adapters(options):
        return replace(voice, scope=options.scope)
    adapters = Adapters.fresh(voice.model.module, plan_adapters(options, voice.model.adapter_targets), options.seed)
    voice.model.module.to(device)
    return replace(voice, adapters=adapters, scope=options.scope)
