"""Setup of a run: a new run, a new run from the weights of another one (`init_from`), or a resumed run."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from config import foreign
from config.errors import ErrorKind, UserError
from config.languages import language_name
from config.loading import parse_options
from config.resume_options import GLOBAL_BATCH, may_change, reason
from config.schema import TrainingEvaluationOptions, TrainOptions, option_fields, option_value, without_sections
from core import compute
from core.jobs.checkpoint_names import checkpoint_steps, folder_of
from core.jobs.events import Plan, WarningRaised
from core.jobs.reporter import Reporter, progress_callback
from core.library import checkpoints, dataset_recognisers, learning, records
from core.library.learning import LearningRecord
from core.library.lineage import Model
from core.library.records import CheckpointRecord, ExtensionRecord, Origin
from core.model import precision, tensor_files
from core.model.adapters import PEFT_PREFIX, SETTINGS, WEIGHTS, Adapters, adapter_scale, plan_adapters
from core.model.loading import TTSModel, load_changed_tensors, load_checkpoint, load_extension, with_decoder
from core.model.precision import Precision
from core.model.prefix import new_rows, rows_name
from core.sources.recognisers import BUILT_IN
from core.speech import evaluation, scoring
from core.speech.evaluation import SpeechEvaluator
from core.speech.scoring import Recogniser, RecogniserChoice
from core.training import checkpoint, dataloader, parameter_groups, replay
from core.training.checkpoint import EarlyStopping, TrainerState
from core.training.checkpoint_evaluation import WITHOUT_TRANSCRIPT, TrainingRun, load_custom_sentences
from core.training.dataloader import TrainingData
from core.training.distributed import ONE_PROCESS, ProcessGroup
from core.training.trainer import Trainer, is_finished
from core.workspace import Workspace
from data import manifest
from data.durable_files import write_text
from data.front_end import FrontEnd

_STARTING_ROWS = "starting_rows"  # file in a run's folder: the hash of the new rows before the first step


def setup_run(options: TrainOptions, workspace: Workspace, reporter: Reporter, device: torch.device,
              group: ProcessGroup = ONE_PROCESS, max_clips: int | None = None) -> TrainingRun:
    """Load everything that a new or resumed run needs. `max_clips`: use only so many clips, for a preflight."""
    run_dir, full, init_from = reporter.directory, options.full, options.checkpoints.init_from

    def warn(message: str) -> None:
        reporter.emit(WarningRaised(message))

    # The model: of the last intact checkpoint; else the untrained extension, perhaps with the weights of another run.
    checkpoint.recover_interrupted_save(run_dir)
    saved = checkpoint.quarantine_damaged_checkpoints(run_dir, warn)
    if saved is None:
        state, tts = None, new_model(options, workspace, device)
        if init_from:
            tts = warm_start(workspace, init_from, tts, warn, parameter_groups.changed_parts(options))
        tts = with_decoder(tts, run_dir / records.DECODER)
    else:
        state = checkpoint.load_state(run_dir, saved)
        check_options(run_dir, saved, options, group.world_size)
        check_vocabulary(run_dir, saved, workspace, options.extension)
        keep_base = bool(full.distillation or full.l2_sp or full.ewc or init_from)
        tts = load_checkpoint(workspace, folder_of(run_dir, saved), device, keep_base=keep_base)

    # The data: clips of the new language, and in `full` replayed clips of the base languages.
    data = dataloader.load_training_data(workspace, options.dataset, tts, options.evaluation.validation_disjoint_by,
                                         augmented=options.data.augmentation > 0)
    if max_clips is not None:
        data = dataloader.subset(data, max_clips)
    for note in data.notes:
        warn(note)
    recogniser, choice = None, _recogniser_choice(options, workspace, run_dir, saved)
    if group.rank == 0:
        recogniser = _load_recogniser(options, choice, workspace, reporter, tts, data.languages, state)
        for language in data.languages:
            description = scoring.measured_by(recogniser, language)
            if description:
                reporter.emit(Plan((f"{language_name(language)} is measured by {description}.",)))
        # A recogniser of the dataset that is not good enough is not used; say why.
        poor = dataset_recognisers.find(workspace, options.dataset) if not choice.recogniser else None
        if poor is not None:
            for language in data.languages:
                warn(f"{language_name(language)} is not measured by the recogniser of its dataset: "
                     f"{dataset_recognisers.unmeasured_reason(poor, language)}.")
    recording = evaluation.training_recording(manifest.load(workspace.dataset(options.dataset)))
    speech_evaluator = SpeechEvaluator.of(tts, recogniser, recording=recording, as_reader=tts.decoder is not None)
    clips = replay.gather_replay_clips(options, workspace, tts, speech_evaluator.voices, run_dir, warn,
                                       progress_callback(reporter),
                                       None if max_clips is None else max_clips // 2)

    # The trainer; in a resumed run with the state of the checkpoint.
    chosen_precision = precision.decide(options.hardware.precision, device)
    trainer = Trainer(options, tts, data, clips.replayed, chosen_precision, warn, group)
    if options.hardware.compile == "on":
        tts.lm.compile()
    early_stopping, base_losses = EarlyStopping(), dict[str, float]()
    if state is not None:
        check_data(run_dir, options.dataset, state, data)
        trainer.load_state_dict(state)
        early_stopping, base_losses = state.early_stopping, dict(state.base_losses)
        warning = rounding_warning(state, trainer.precision, compute.numeric_environment(device))
        if warning:
            warn(warning)
        note = tts.text_library_note()
        if note:
            warn(note)
        ranking = checkpoints.read_ranking(run_dir)
        # The ranking may hold steps after the checkpoint, or steps that a person deleted.
        up_to_date = ranking.up_to(state.step).with_best_of(checkpoint_steps(run_dir))
        if up_to_date != ranking:
            checkpoints.write_ranking(run_dir, up_to_date)

    # The run: its record, its sentences, and what earlier attempts measured.
    path = workspace.extensions / options.extension / records.EXTENSION
    rows_hash = records.read_record(path, records.ExtensionRecord).rows_hash if path.is_file() else ""
    if saved is None and group.rank == 0:
        _check_same_rows(run_dir, options.extension, rows_hash)
    record = CheckpointRecord(
        run=run_dir.name, step=0, scope=options.scope, extension=options.extension, dataset=options.dataset,
        rows_hash=rows_hash, frozen_hash="", origin=tts.origin,
        adapter_rank=options.adapters.adapter_rank if tts.adapters else None, recogniser=choice.recogniser,
        recogniser_language=choice.recogniser_language, text_library=tts.text_library or tts.front_end.text_library)
    sentences = {}
    if group.rank == 0:
        sentences = load_custom_sentences(options.evaluation, tts, data.languages, run_dir, warn)
    training_run = TrainingRun(trainer, speech_evaluator, record, reporter, drift_clips=clips.drift_clips,
                               early_stopping=early_stopping, base_losses=base_losses, custom_sentences=sentences,
                               learning_record=learning.read_learning(run_dir) if group.rank == 0 else LearningRecord())
    if group.rank == 0:  # only it has the recogniser
        training_run.check_metric()
    return training_run


def _check_same_rows(run_dir: Path, extension: str, rows_hash: str) -> None:
    """Raise `UserError` if the run, which has no checkpoint yet, began with other new rows; else store their hash."""
    path = run_dir / _STARTING_ROWS
    starting_hash = path.read_text(encoding="utf-8").strip() if path.is_file() else rows_hash
    if starting_hash != rows_hash:
        raise UserError(f"The extension {extension!r} was made again since this run started: its new rows differ "
                        f"({rows_hash[:12]}, wanted {starting_hash[:12]}). No checkpoint was saved yet.",
                        "Start a new run.")
    if not path.is_file():
        write_text(path, f"{rows_hash}\n")  # atomic: a truncated hash would make every resume fail


def _recogniser_choice(options: TrainOptions, workspace: Workspace, run_dir: Path,
                       saved: int | None) -> RecogniserChoice:
    """The recogniser of the run: of a resumed one that of its checkpoint, because errors of two cannot be compared."""
    if saved is None:
        return scoring.choose(workspace, options)
    return records.read_checkpoint(folder_of(run_dir, saved))


def _load_recogniser(options: TrainOptions, choice: RecogniserChoice, workspace: Workspace, reporter: Reporter,
                     tts: TTSModel, languages: Sequence[str], state: TrainerState | None) -> Recogniser | None:
    """The recogniser; `UserError` if the chosen one cannot be loaded.

    A resumed run continues without it if no checkpoint will be ranked by it any more.
    """
    try:
        scoring.download_recogniser(choice, languages, workspace, reporter)
        return scoring.load_recogniser(workspace, tts, choice)
    except UserError as error:
        if state is None:
            raise
        run_dir = reporter.directory
        if _may_rank_by_cer(options.evaluation, state, run_dir, options.length.minutes_of_steps):
            raise UserError(error.message,
                            _restore_hint(choice.recogniser, error.hint, run_dir, state.step)) from error
        return scoring.replace_unavailable(workspace, tts, lambda message: reporter.emit(WarningRaised(message)),
                                           choice, error)


def _restore_hint(recogniser: str, hint: str, run_dir: Path, step: int) -> str:
    """`hint`, adapted to a resumed run, in which the recogniser cannot be changed."""
    advice = hint.rstrip(".") if recogniser in ("", BUILT_IN) or dataset_recognisers.dataset_of(recogniser) else (
        "Restore the recogniser (one of the hub is downloaded again if you delete its folder) and resume")
    return f"{advice}; or start a new run from its weights: {init_from_command(run_dir, step)}."


def _may_rank_by_cer(options: TrainingEvaluationOptions, state: TrainerState, run_dir: Path,
                     max_minutes: float) -> bool:
    """Whether the run that resumes from `state` may still rank a checkpoint by character error rate."""
    if options.evaluation_sentences == 0 or options.select_best_by in ("speech_loss", *WITHOUT_TRANSCRIPT):
        return False
    # A step that was saved and not ranked will be ranked on resume.
    values = checkpoints.read_ranking(run_dir).values
    if state.step not in values:
        return True

    # Otherwise a checkpoint is only ranked if the run takes further steps.
    finished = is_finished(state.step, state.seconds, state.schedule, max_minutes)
    stopping = state.early_stopping.after(state.step, values[state.step], options.min_improvement)
    return not finished and not stopping.should_stop(options.patience)


def new_model(options: TrainOptions, workspace: Workspace, device: torch.device) -> TTSModel:
    """The untrained extension, with new adapters if the scope has adapters."""
    tts = load_extension(workspace, options.extension, device)
    if options.scope == "full" and tts.earlier_trainings:
        raise UserError(f"The scope 'full' changes the base, and with it {tts.origin.earlier_languages[-1]}, a "
                        "language of an earlier training.", "Choose the scope `gated` or `rows`.")
    # New adapters start without effect, so the model still speaks like the base.
    if not parameter_groups.has_adapters(options):
        return replace(tts, scope=options.scope)
    plan = plan_adapters(options.adapters, tts.lm.adapter_targets, options.length.steps)
    adapters = Adapters.fresh(tts.lm.module, plan, options.seed)
    tts.lm.module.to(device)
    return replace(tts, adapters=adapters, scope=options.scope)


_SHOWN_TOKENS = 5


def check_options(run_dir: Path, step: int, options: TrainOptions, world_size: int) -> None:
    """Raise `UserError` if `options` differ from those of the checkpoint in a way that changes the steps of the run.

    `world_size`: how many processes share the steps; the options do not tell if torchrun started them.
    """
    path = folder_of(run_dir, step) / records.CONFIG
    saved = parse_options(TrainOptions, foreign.read_yaml(path)["options"])
    saved_world_size = checkpoint.read_world_size(run_dir, step)
    # Options that only divide the same batch in another way may change together.
    same_batches = _same_batches(options, world_size, saved, saved_world_size)
    changed = [name for name in option_fields(TrainOptions)
               if option_value(options, name) != option_value(saved, name)
               and not (same_batches if name in GLOBAL_BATCH else may_change(name, saved, options))]
    if changed:
        differences = "; ".join(
            f"{name} {option_value(options, name)}, wanted {option_value(saved, name)} ({reason(name)})"
            for name in changed)
        raise UserError(
            f"{run_dir / records.CONFIG} differs from that of the checkpoint of step {step}: {differences}.",
            f"Restore these values and resume, or start a new run with yours from its weights: "
            f"{init_from_command(run_dir, step)}."
            " Nothing was changed.",
        )
    if not same_batches:
        raise _world_size_error(run_dir, step, options, world_size, saved_world_size)


def _same_batches(options: TrainOptions, world_size: int, saved: TrainOptions, saved_world_size: int) -> bool:
    """Whether the steps have the same batches. With adapter dropout the number of processes must be the same too."""
    per_process = parameter_groups.has_adapters(options) and options.adapters.adapter_dropout > 0
    return (options.batches.batch_size * world_size == saved.batches.batch_size * saved_world_size
            and (world_size == saved_world_size or not per_process))


def _world_size_error(run_dir: Path, step: int, options: TrainOptions, world_size: int,
                      saved_world_size: int) -> UserError:
    """The error for the same options with another number of processes, as torchrun can start them."""
    # torchrun sets the number of processes itself, so the options then hold another number.
    by_torchrun = saved_world_size != options.hardware.processes
    # torchrun takes one module; another start is by the command that is shown everywhere.
    start = (("torchrun", "--nproc-per-node", str(saved_world_size), "-m", "scripts.train") if by_torchrun
             else ("python", "-m", "scripts", "train"))
    workspace = str(run_dir.parent.parent)
    command = shlex.join((*start, "--workspace", workspace, "--resume", run_dir.name))
    started = f"was started with {_count_processes(saved_world_size)}{' by torchrun' if by_torchrun else ''}"
    clips = options.batches.clips_a_step(1)
    over = " (over several machines, with as many on all of them together)" if by_torchrun else ""
    return UserError(
        f"The run {run_dir.name} {started}, with {clips * saved_world_size} clips in a step; with "
        f"{_count_processes(world_size)} it would be {clips * world_size}, and {reason('batch_size')}.",
        f"Start it as before: {command}{over}; or start a new run from its weights: "
        f"{init_from_command(run_dir, step)}. Nothing was changed.", ErrorKind.OTHER_COMMAND)


def _count_processes(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def check_vocabulary(run_dir: Path, step: int, workspace: Workspace, extension: str) -> None:
    """Raise `UserError` if the extension of this name still exists, but is not the one that the run began with."""
    path = workspace.extensions / extension / records.EXTENSION
    if not path.is_file():
        return
    current = records.read_record(path, ExtensionRecord).origin
    saved = records.read_checkpoint(folder_of(run_dir, step)).origin
    hint = (f"Restore the extension that it started with and resume, or start a new run from its weights: "
            f"{init_from_command(run_dir, step)}.")
    if current.base_hash != saved.base_hash:
        raise UserError(f"The extension {extension!r} was made again for another base model: {current.base_hash[:12]} "
                        f"there, {saved.base_hash[:12]} in the checkpoint of step {step}.", hint)
    if current.earlier_trainings != saved.earlier_trainings:
        raise UserError(f"The extension {extension!r} was made again on another model: "
                        f"{', '.join(item.source for item in current.earlier_trainings) or 'the base alone'} there, "
                        f"{', '.join(item.source for item in saved.earlier_trainings) or 'the base alone'} in the "
                        f"checkpoint of step {step}.", hint)
    if current.fingerprint != saved.fingerprint:
        raise UserError(f"The extension {extension!r} was made again since this run started: "
                        f"{_describe_difference(path.parent, folder_of(run_dir, step), current, saved)}.", hint)


def check_data(run_dir: Path, dataset: str, state: TrainerState, data: TrainingData) -> None:
    """Raise `UserError` if the clips are not the ones that the run began with."""
    if state.data_fingerprint != data.fingerprint:
        raise UserError(f"The dataset {dataset!r} is not the one this run began with: its clips, texts or "
                        f"splits differ ({data.fingerprint[:12]}, wanted {state.data_fingerprint[:12]}).",
                        f"Restore that dataset, or start a new run from its weights: "
                        f"{init_from_command(run_dir, state.step)}.")
    if state.content_hash != data.content_hash:
        raise UserError(
            f"The dataset {dataset!r} is the one this run began with, but features or ids of its clips "
            f"changed, or some clips cannot be read any more ({data.content_hash[:12]}, wanted "
            f"{state.content_hash[:12]}). {' '.join(data.notes)}".rstrip(),
            "Prepare it again with the same model, then resume; or start a new run from its weights: "
            f"{init_from_command(run_dir, state.step)}.")


def rounding_warning(state: TrainerState, precision: Precision, numeric_environment: str) -> str:
    """A warning if `auto` chose another precision, or the run resumes on other hardware or versions; else empty."""
    if state.precision != precision.name:
        return (f"The run computed in {state.precision} up to step {state.step} and resumes in {precision}, which "
                f"`precision: auto` chooses here: results may differ in the last bits. For the same results, resume on "
                f"a machine that computes in {state.precision}.")
    if state.numeric_environment != numeric_environment:
        return (f"The run was computed on {state.numeric_environment} up to step {state.step} and resumes on "
                f"{numeric_environment}: results may differ in the last bits.")
    return ""


def _describe_difference(current_folder: Path, saved_folder: Path, current: Origin, saved: Origin) -> str:
    """How the vocabulary or the front-end of two extensions differ, as the end of a sentence."""

    def added_tokens(folder: Path) -> set[tuple[str, int]]:
        front_end = FrontEnd.load(folder / records.FRONT_END)
        return {(token.text, token.id) for token in front_end.added_tokens()}

    tokens, saved_tokens = added_tokens(current_folder), added_tokens(saved_folder)
    if tokens == saved_tokens:
        return (f"its new tokens are the same, but its text front-end differs "
                f"({current.fingerprint[:12]}, wanted {saved.fingerprint[:12]})")

    # The examples are the first tokens that only one of the two has.
    differing = sorted(text for text, _ in tokens ^ saved_tokens)
    examples = ", ".join(repr(text) for text in dict.fromkeys(differing[:_SHOWN_TOKENS]))
    return (f"it has another vocabulary ({current.size} ids, wanted {saved.size}; fingerprint "
            f"{current.fingerprint[:12]}, wanted {saved.fingerprint[:12]}; tokens that differ: {examples}"
            f"{' ...' if len(differing) > _SHOWN_TOKENS else ''})")


def init_from_command(run_dir: Path, step: int) -> str:
    """The command of a new run from the weights of this one."""
    return f"python -m scripts train --init-from run:{run_dir.name}@{step}"


def warm_start(workspace: Workspace, reference: str, tts: TTSModel, warn: Callable[[str], None],
               changing: Sequence[str] = parameter_groups.PARTS) -> TTSModel:
    """Copy what the run `reference` (`run:ID` or `run:ID@STEP`) trained into the untrained `tts`, in place.

    `changing`: the parts of the base that the new run is to train. If the source has an EMA, its averages are copied.
    """
    source = Model.open(workspace, reference)
    if source.kind != "run":
        raise UserError(f"{reference!r} is no checkpoint of a run.", "Give run:ID or run:ID@STEP.")
    fault = records.find_damage(source.folder)
    if fault is not None:
        raise UserError(fault, "Initialise from another checkpoint of the run.")

    # Its weights only fit the base on which they were trained.
    record = records.read_checkpoint(source.folder)
    if record.origin.base_hash != tts.base_hash:
        raise UserError(
            f"{reference} was trained on another base model: {record.origin.model} ({record.origin.base_hash[:12]}), "
            f"this run trains {tts.name} ({tts.base_hash[:12]}).",
            "Choose an extension of that base model.")

    # Copy decoder, changes of the base, rows and adapters.
    tts = with_decoder(tts, source.folder / records.DECODER)
    tts, changes = _copy_changes(source.folder, tts, reference, changing)
    copied = [_copy_rows(source.folder, tts, reference, record.origin.first_new_row),
              _copy_adapters(source.folder, tts, record), changes]

    # Tell the user what was copied, and that the rest starts anew.
    saved_options = foreign.read_yaml(source.folder / records.CONFIG)["options"]
    # An import has the options of another verb, and no average.
    ema = float(without_sections(TrainOptions, saved_options, strict=False).get("ema", 0))
    average = f", the EMA of its training ({ema:g})" if ema else ""
    warn(f"The run starts from the weights of {source.reference} (step {record.step}){average}, with a new optimizer, "
         f"schedule and order of clips: {' '.join(filter(None, copied))}")
    return tts


def _copy_changes(folder: Path, tts: TTSModel, reference: str,
                  changing: Sequence[str]) -> tuple[TTSModel, str]:
    """Copy what a run in `full` changed of the base, if this run may change it. Returns the model and a sentence."""
    if not (folder / records.CHANGED).is_file():
        return tts, ""
    if tts.scope != "full":
        return tts, (f"The tensors of the base that it changed are not copied: scope {tts.scope!r} changes none. Its "
                     "rows were trained together with them; only `full` can copy both.")
    tts = load_changed_tensors(tts, folder, keep_base=True)

    # A changed part that this run does not train would be missing in its checkpoints.
    parts = {tts.lm.parameter_group(name)[0] for name in tts.changed}
    untrained = sorted(parts - set(changing))
    if untrained:
        raise UserError(
            f"{reference} changed {', '.join(untrained)} of the base; this run trains "
            f"{', '.join(changing) or 'none of it'} and could not save the rest.",
            "Train with full_trainable `everything`, or as that run did.")
    copied = ", ".join(sorted(parts))
    return tts, f"The {len(tts.changed)} tensors of the base that it changed are copied ({copied})."


@torch.no_grad()
def _copy_rows(folder: Path, tts: TTSModel, reference: str, first_new_row: int) -> str:
    """Copy the rows of the tokens that both have. Returns a sentence about what was done."""
    source = FrontEnd.load(folder / records.FRONT_END)
    rows = tensor_files.read(folder / records.ROWS, "Initialise from another checkpoint.")
    new = [token for token in tts.front_end.added_tokens() if token.language in tts.new_languages]
    tokens = [token for token in source.added_tokens() if token.id >= first_new_row]

    # Tokens of the two vocabularies are matched by text and language, because their ids may differ.
    available = {(token.text, token.language): token.id - tokens[0].id for token in tokens}
    row_of_key = {(token.text, token.language): token.id - new[0].id for token in new}
    pairs = [(row, available[key]) for key, row in row_of_key.items() if key in available]
    if not pairs:
        raise UserError(f"{reference} and this extension have no new token in common.",
                        "Initialise from a checkpoint of the same language, or train without init_from.")

    # The language table has rows for tags only.
    for table, parameter in new_rows(tts.lm.module, tts.lm.text_tables).items():
        all_kinds = table != rows_name(tts.lm.language_table)
        source_keys = [(token.text, token.language) for token in tokens if all_kinds or token.kind == "tag"]
        keys = [(token.text, token.language) for token in new if all_kinds or token.kind == "tag"]
        for row, key in enumerate(keys):
            if key in source_keys:
                parameter[row] = rows[table][source_keys.index(key)].to(parameter)

    # Say which rows could not be copied.
    unmatched = [text for text, language in row_of_key if (text, language) not in available]
    if not unmatched and len(available) == len(row_of_key):
        return f"all {len(pairs)} new rows are copied."
    ellipsis = " ..." if len(unmatched) > _SHOWN_TOKENS else ""
    examples = ", ".join(repr(text) for text in unmatched[:_SHOWN_TOKENS]) + ellipsis
    remainder = (f"{len(unmatched)} start with the values of the extension ({examples})" if unmatched
                 else "none is missing")
    return (f"its vocabulary differs: {len(pairs)} of {len(row_of_key)} new rows are copied by the text of their "
            f"token, {remainder}, {len(available) - len(pairs)} of its rows are not used.")


def _copy_adapters(folder: Path, tts: TTSModel, record: CheckpointRecord) -> str:
    """Copy the adapters if both have them. Returns a sentence about what was done."""
    has_adapters = (folder / records.ADAPTER / WEIGHTS).is_file()
    if tts.adapters is None:
        return "Its adapters are not used, although its rows were trained together with them." if has_adapters else ""
    if not has_adapters:
        return f"It has no adapters: those of scope {tts.scope!r} are new."
    stored = tensor_files.read(folder / records.ADAPTER / WEIGHTS, "Initialise from another checkpoint.")
    tensors = {name.removeprefix(PEFT_PREFIX): value for name, value in stored.items()}
    target = tts.adapters.tensors()
    if _shapes(target) != _shapes(tensors):
        differing = sorted(set(_shapes(target).items()) ^ set(_shapes(tensors).items()))[0]
        raise UserError(
            f"The adapters of run:{record.run}@{record.step} do not fit this run: they have "
            f"{len(tensors)} tensors (rank {record.adapter_rank}), {len(target)} are wanted; such as {differing[0]} "
            f"{list(differing[1])}.",
            "Choose adapters of the same kind and rank as that run, or the scope `rows`.")
    # Adapters may have been trained at another scale; their effect must stay the same.
    ratio = adapter_scale(foreign.read_json(folder / records.ADAPTER / SETTINGS)) / tts.adapters.scale
    with torch.no_grad():
        for name, value in target.items():
            value.copy_(tensors[name] * ratio if tts.adapters.carries_scale(name) else tensors[name])
    scaled = f", scaled by {ratio:g} so that their effect is the same at this run's adapter_scale" if ratio != 1 else ""
    return f"Its adapters are copied, trained in scope {record.scope!r}{scaled}."


def _shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in tensors.items()}
