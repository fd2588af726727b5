"""Checkpoints of a run: folders of safetensors and JSON, no pickles.

A checkpoint is written to a temporary folder, flushed and renamed, so `step-000100` is either complete or not there. It
holds the hashes of its files. Free space is checked before one is written, and a new one is on the disk before an older
one is deleted. This module stores tensors and numbers; the trainer gives them meaning.
`core.library.checkpoints` holds their ranking.
"""

from __future__ import annotations

import errno
import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import chain
from pathlib import Path

import torch
import yaml

from config import foreign
from config.errors import UserError
from config.schema import TrainOptions
from core.jobs import checkpoint_names
from core.jobs.checkpoint_names import folder_of
from core.jobs.reporter import size_text
from core.library import records
from core.library.checkpoints import RANKING, read_ranking
from core.library.records import CheckpointRecord
from core.model import tensor_files
from core.model.loading import TTSModel, write_earlier_trainings
from core.model.prefix import is_of_base, new_rows
from core.training import fsdp
from core.training.memory_plan import MicrobatchPlan
from core.training.parameter_groups import LearningRateSchedule
from data.batches import SamplerState
from data.durable_files import atomic_directory, fsync_path, fsync_tree, hash_tree

FOLDER = checkpoint_names.CHECKPOINTS
_TENSORS, _NUMBERS = "training.safetensors", "training.json"
_WRITING, _DAMAGED, _REPLACED = ".writing-", ".damaged-", ".replaced-"
OTHER_FILES = 16_000_000  # bytes beside the tensors: front-end, journal, samples


@dataclass(frozen=True)
class EarlyStopping:
    """Validations since the best value. A checkpoint holds it, so a resumed run stops at the same step."""

    step: int = 0  # the last validation that counted
    best_step: int = 0
    best: float = math.inf
    validations_without_improvement: int = 0
    reference: float = math.inf  # the last value that counted as an improvement

    def after(self, step: int, value: float, min_improvement: float = 0.0) -> EarlyStopping:
        """The state after the metric was `value` at `step` (lower is better); a step counts once.

        A value counts as an improvement if it is lower by more than `min_improvement` than the last value that counted.
        So small improvements add up. The best value is always the lowest.
        """
        if step <= self.step:
            return self
        improved = value < self.reference - min_improvement
        best_step, best = (step, value) if value < self.best else (self.best_step, self.best)
        return EarlyStopping(step, best_step, best, 0 if improved else self.validations_without_improvement + 1,
                             value if improved else self.reference)

    def should_stop(self, patience: int) -> bool:
        """Whether `patience` validations in a row brought no improvement; never with a patience of 0."""
        return 0 < patience <= self.validations_without_improvement


@dataclass(frozen=True)
class TrainerState:
    """What a run needs, beside the model files of its checkpoint, to resume as if it had never stopped.

    `tensors` are those of the optimizer (its moments), of the random generators of all ranks, of the loss scale and of
    AdaLoRA's allocation of ranks. With EMA they are also the trained weights, because the model files then hold the
    averages. Early stopping and base losses belong to the `TrainingRun`, everything else to the `Trainer`.
    """

    step: int  # optimizer steps done
    seconds: float  # training time over all attempts
    skipped_batches: int  # batches whose losses or gradients were not finite
    schedule: LearningRateSchedule
    max_minutes: float  # the time limit that the schedule was made for; a resumed run may have another one
    sampler: SamplerState
    replay_sampler: SamplerState
    data_fingerprint: str
    content_hash: str  # the clips as the model sees them
    tensors: Mapping[str, torch.Tensor]
    microbatch_plan: MicrobatchPlan
    world_size: int
    precision: str  # the one of the steps so far
    numeric_environment: str  # decides the last bits of results, see `core.compute.numeric_environment`
    early_stopping: EarlyStopping = EarlyStopping()
    base_losses: Mapping[str, float] = field(default_factory=dict)  # see `TrainingRun.base_losses`


def recover_interrupted_save(run_dir: Path) -> None:
    """Restore a checkpoint that a killed writer was about to replace, and remove its unfinished files."""
    _restore_replaced(run_dir)
    for leftover in (*(run_dir / FOLDER).glob(f"{_WRITING}*"), *(run_dir / FOLDER).glob(f".{RANKING}-*")):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _restore_replaced(run_dir: Path) -> None:
    """Rename a checkpoint back that was being replaced, unless the new one is complete."""
    for replaced in (run_dir / FOLDER).glob(f"{_REPLACED}*"):
        target = replaced.with_name(replaced.name.removeprefix(_REPLACED))
        shutil.rmtree(replaced) if target.exists() else replaced.rename(target)


def quarantine_damaged_checkpoints(run_dir: Path, warn: Callable[[str], None]) -> int | None:
    """Returns the step of the last intact checkpoint, None without any checkpoint.

    Damaged checkpoints after it are renamed, with a warning. If all are damaged, `UserError` is raised and nothing is
    changed.
    """
    # Go back to the last intact checkpoint.
    steps = checkpoint_names.checkpoint_steps(run_dir)
    faults: dict[int, str] = {}
    for step in reversed(steps):
        fault = records.find_damage(folder_of(run_dir, step))
        if fault is None:
            break
        faults[step] = fault
    if faults and len(faults) == len(steps):
        raise UserError(f"No checkpoint of {run_dir.name} is intact. {faults[steps[-1]]}",
                        "Put the files back if you have a copy, or start a new run.")

    # Rename the damaged ones after it: a person may still want their files.
    for step, fault in faults.items():
        folder = folder_of(run_dir, step)
        renamed = folder.with_name(f"{_DAMAGED}{folder.name}")
        shutil.rmtree(renamed, ignore_errors=True)
        folder.rename(renamed)
        warn(f"{fault} The checkpoint of step {step} cannot be used and was renamed to {renamed.name}; "
             f"the run resumes from the one before, of step {steps[-1 - len(faults)]}.")
    return steps[-1 - len(faults)] if steps else None


def check_free_space(run_dir: Path, tts: TTSModel, state: TrainerState) -> None:
    """Raise `UserError` if the disk has too little space for the next checkpoint."""
    needed, free = _wanted_bytes(run_dir, tts, state), shutil.disk_usage(run_dir).free
    if free < needed:
        raise UserError(
            f"The checkpoint of step {state.step} was not written: {run_dir / FOLDER} has {size_text(free)} "
            f"({free:,} bytes) free, {size_text(needed)} ({needed:,} bytes) are needed. "
            f"{_describe_last_checkpoint(run_dir)}",
            "Free some space, then resume the run.",
        )


def save(run_dir: Path, record: CheckpointRecord, tts: TTSModel, options: TrainOptions,
         state: TrainerState) -> Path:
    """Write a checkpoint and return its folder. A full disk raises `UserError` and leaves earlier ones as they are."""
    check_free_space(run_dir, tts, state)
    target = folder_of(run_dir, state.step)
    writing = target.with_name(f"{_WRITING}{target.name}")
    try:
        # Write all files into a temporary folder, and their hashes last.
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        _write_model(writing, tts)
        tensor_files.write(writing / _TENSORS, state.tensors)
        numbers = {name: value for name, value in asdict(replace(state, tensors={})).items() if name != "tensors"}
        (writing / _NUMBERS).write_text(json.dumps(numbers), encoding="utf-8")
        config = {"verb": "train", "options": options.model_dump(mode="json")}
        (writing / records.CONFIG).write_text(yaml.safe_dump(config), encoding="utf-8")
        records.write_record(writing / records.CHECKPOINT, replace(record, files=hash_tree(writing)))
        fsync_tree(writing)

        # Rename it to its place; an older checkpoint of this step is kept until then.
        replaced = target.with_name(f"{_REPLACED}{target.name}")
        if target.exists():  # the run was killed before it ranked this step, and measures it again
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        writing.rename(target)
        fsync_path(target.parent)
        for older in (replaced, target.with_name(f"{_DAMAGED}{target.name}")):
            shutil.rmtree(older, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(writing, ignore_errors=True)
        _restore_replaced(run_dir)
        raise _save_error(run_dir, tts, state, error) from error
    return target


def save_imported(run_dir: Path, record: CheckpointRecord, tts: TTSModel, config: Mapping[str, object]) -> Path:
    """Write the checkpoint of a model that was trained elsewhere: it has no state to resume from. Returns its folder.

    A full disk raises `UserError`, and nothing is left.
    """
    target = folder_of(run_dir, record.step)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic_directory(target, "Free some space, then import again.") as folder:
        _write_model(folder, tts)
        (folder / records.CONFIG).write_text(yaml.safe_dump(dict(config), allow_unicode=True), encoding="utf-8")
        records.write_record(folder / records.CHECKPOINT, replace(record, files=hash_tree(folder)))
    return target


def load_state(run_dir: Path, step: int) -> TrainerState:
    """The state in a checkpoint, whose files are verified by `core.model.loading`."""
    folder = folder_of(run_dir, step)
    numbers = foreign.read_json(folder / _NUMBERS)
    tensors = tensor_files.read(folder / _TENSORS, "Delete it and continue from the one before.")
    return TrainerState(**{
        **numbers, "tensors": tensors, "sampler": SamplerState(**numbers["sampler"]),
        "replay_sampler": SamplerState(**numbers["replay_sampler"]),
        "schedule": LearningRateSchedule(**numbers["schedule"]),
        "microbatch_plan": MicrobatchPlan(**numbers["microbatch_plan"]),
        "early_stopping": EarlyStopping(**numbers["early_stopping"])})


def read_world_size(run_dir: Path, step: int) -> int:
    """The number of ranks that the run had when this checkpoint was saved."""
    return int(foreign.read_json(folder_of(run_dir, step) / _NUMBERS)["world_size"])


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name; `names` in the order of its groups."""
    state = optimizer.state_dict()["state"]
    tensors = {}
    for index, entry in state.items():
        for key, value in _flat_tensors(entry).items():
            tensors[f"optimizer/{names[index]}/{key}"] = value
    return tensors


def _flat_tensors(entry: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """The state as tensors only: bitsandbytes counts steps in an int and nests its 8-bit state in a mapping."""
    tensors: dict[str, torch.Tensor] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping):
            # Cloned, because they share their code book.
            tensors |= {name: inner.clone() for name, inner in _flat_tensors(value).items()}
        else:
            tensors[key] = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return tensors


def restore_optimizer(optimizer: torch.optim.Optimizer, names: list[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Load the full tensors of `optimizer_tensors`; if the parameters are sharded, each rank takes its shard."""
    # torch's state dictionary has indices for parameters, a checkpoint has their names.
    state: dict[int, dict[str, object]] = {}
    parameters = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))
    for path, value in tensors.items():
        kind, _, parameter_path = path.partition("/")
        if kind == "optimizer":
            name, _, key = parameter_path.rpartition("/")
            index = names.index(name)
            is_count = value.ndim == 0 and not value.is_floating_point()
            state.setdefault(index, {})[key] = (
                int(value) if is_count else fsdp.shard_like(value, parameters[index]))
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _write_model(folder: Path, tts: TTSModel) -> None:
    tensor_files.write(folder / records.ROWS, new_rows(tts.lm.module, tts.lm.text_tables))
    tts.front_end.save(folder / records.FRONT_END)
    write_earlier_trainings(folder, tts)
    if tts.adapters:
        tts.adapters.save(folder / records.ADAPTER)
    if tts.decoder:
        tensor_files.write(folder / records.DECODER, tts.decoder.tensors)

    # Of the base, save only the weights that this training or an imported finetune changed.
    module, imported = tts.lm.module, set(tts.changed)
    changed: dict[str, torch.Tensor] = {
        name: value for name, value in module.named_parameters()
        if is_of_base(name) and (value.requires_grad or name in imported)}
    changed |= {name: value for name, value in module.named_buffers() if name in imported}  # old rows, not trained
    if changed:
        tensor_files.write(folder / records.CHANGED, changed)


def earlier_bytes(tts: TTSModel) -> int:
    """Bytes of the earlier trainings' files, which each checkpoint has a copy of."""
    contents = chain.from_iterable(training.files.values() for training in tts.earlier_trainings)
    return sum(map(len, contents))


def _wanted_bytes(run_dir: Path, tts: TTSModel, state: TrainerState) -> int:
    """Bytes that the next checkpoint takes, with a margin for journal and samples."""
    trained = [value for value in tts.lm.module.parameters() if value.requires_grad]
    tensors = sum(value.nbytes for value in (*state.tensors.values(), *trained))
    tensors += sum(value.nbytes for value in tts.decoder.tensors.values()) if tts.decoder else 0
    tensors += earlier_bytes(tts)

    # The last checkpoint on the disk is a lower bound.
    steps = checkpoint_names.checkpoint_steps(run_dir)
    last_files = folder_of(run_dir, steps[-1]).rglob("*") if steps else ()
    return max(tensors, sum(path.stat().st_size for path in last_files if path.is_file())) + OTHER_FILES


def _describe_last_checkpoint(run_dir: Path) -> str:
    steps = checkpoint_names.checkpoint_steps(run_dir)
    return f"The checkpoint of step {steps[-1]} is intact." if steps else "There is no earlier checkpoint."


def _save_error(run_dir: Path, tts: TTSModel, state: TrainerState, error: OSError) -> UserError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    free, needed = shutil.disk_usage(run_dir).free, _wanted_bytes(run_dir, tts, state)
    return UserError(
        f"The checkpoint of step {state.step} could not be saved in {run_dir / FOLDER}: {error.strerror}"
        f"{f' (about {size_text(needed)} needed, {size_text(free)} free)' if full else ''}. "
        f"{_describe_last_checkpoint(run_dir)}",
        f"{'Free some space' if full else 'Check that the workspace can be written'}, then resume the run.",
    )


def best_intact(run_dir: Path, warn: Callable[[str], None]) -> int:
    """The step of the best checkpoint whose files are intact; warns if a better one is damaged."""
    ranking, steps = read_ranking(run_dir), checkpoint_names.checkpoint_steps(run_dir)
    faults = {step: records.find_damage(folder_of(run_dir, step)) for step in steps}
    damage = {step: fault for step, fault in faults.items() if fault is not None}
    intact = [step for step in steps if step not in damage]
    if ranking.best in damage:
        warn(f"{damage[ranking.best]} The best checkpoint cannot be used; the next best is taken.")

    best = ranking.with_best_of(intact).best
    if best is None:
        hint = (f"resume the run: it resumes from the checkpoint of step {intact[-1]}, which was not evaluated and "
                "is intact" if intact else "start a new run")
        raise UserError(f"Every evaluated checkpoint of {run_dir.name} is damaged.",
                        f"Put the files back if you have a copy, or {hint}.")
    return best


def prune_checkpoints(run_dir: Path, last: int, best: int | None) -> None:
    """Delete all checkpoints except the `last` ones, the best and the pinned ones.

    A folder is renamed before it is deleted, so a kill never leaves an incomplete checkpoint.
    """
    with checkpoint_names.checkpoint_lock(run_dir):
        steps = checkpoint_names.checkpoint_steps(run_dir)
        keep = {*steps[-last:], *checkpoint_names.pinned_names(run_dir).values(), best}
        for step in steps:
            if step not in keep:
                doomed = run_dir / FOLDER / f"{_WRITING}deleting-{step}"
                folder_of(run_dir, step).rename(doomed)
                shutil.rmtree(doomed)
