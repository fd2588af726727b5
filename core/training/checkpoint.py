"""Checkpoints of a run: written beside, flushed, renamed; safetensors and JSON, no pickles.

A folder `step-000100` is either complete or not there, and holds the hashes of its files. Free
space is checked before one is written, and a new one is on the disk before an older one is
deleted. It knows tensors and numbers; what they mean is the trainer's business. `best.json` beside
the checkpoints ranks them.
"""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import yaml

from config.errors import UserError
from config.schema import TrainOptions
from core.jobs import checkpoint_names
from core.jobs.reporter import size_text
from core.library import records
from core.library.records import CheckpointRecord
from core.model import tensor_files
from core.model.loading import VoiceModel
from core.model.prefix import is_of_base, new_rows
from core.training import fsdp
from core.training.memory_plan import MicrobatchPlan
from data.batches import BatchPosition
from data.durable_files import hash_tree

FOLDER = checkpoint_names.CHECKPOINTS
_TENSORS, _NUMBERS, _RANKING = "training.safetensors", "training.json", "best.json"
_WRITING, _DAMAGED, _REPLACED = ".writing-", ".damaged-", ".replaced-"
_OTHER_FILES = 16_000_000  # bytes beside the tensors: front-end, journal, samples


@dataclass(frozen=True)
class EarlyStopping:
    """Validations since the best value; a checkpoint holds it, so that a resumed run ends where the whole one does."""

    step: int = 0  # of the last validation that counted
    best_step: int = 0
    best: float = math.inf
    stale: int = 0  # validations since the best

    def after(self, step: int, value: float) -> EarlyStopping:
        """This after `step` was worth `value` (lower is better); a step counts once."""
        if step <= self.step:
            return self
        if value < self.best:
            return EarlyStopping(step, step, value)
        return EarlyStopping(step, self.best_step, self.best, self.stale + 1)

    def should_stop(self, most: int) -> bool:
        """Whether `most` validations in a row brought nothing; 0 is never."""
        return 0 < most <= self.stale


@dataclass(frozen=True)
class TrainerState:
    """What a run needs to resume as if it had never stopped."""

    step: int  # optimizer steps done
    seconds: float  # of training, over all attempts
    order: BatchPosition
    replay: BatchPosition
    data_fingerprint: str
    tensors: Mapping[str, torch.Tensor]  # optimizer moments, generator states and the scale of the loss
    microbatch_plan: MicrobatchPlan = MicrobatchPlan()
    content_hash: str = ""  # of the clips as the model sees them
    early_stopping: EarlyStopping = EarlyStopping()
    processes: int = 1  # that shared the steps
    precision: str = ""  # that its steps were computed in
    conditions: str = ""  # on which their last bits depend, see `core.compute.numeric_environment`


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of `step` stands."""
    return run / FOLDER / f"step-{step:06d}"


def recover_interrupted_save(run: Path) -> None:
    """Remove what a killed writer left, and restore a checkpoint that it was about to replace."""
    _put_back(run)
    for leftover in (run / FOLDER).glob(f"{_WRITING}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _put_back(run: Path) -> None:
    """Restore a checkpoint that was to be replaced, unless the new one is there."""
    for replaced in (run / FOLDER).glob(f"{_REPLACED}*"):
        target = replaced.with_name(replaced.name.removeprefix(_REPLACED))
        shutil.rmtree(replaced) if target.exists() else replaced.rename(target)


def quarantine_damaged(run: Path, warn: Callable[[str], None]) -> int | None:
    """The last step whose checkpoint is intact, None where there is no checkpoint at all.

    Damaged ones after it are renamed, with a warning. Where none is intact, `UserError` is raised and nothing changed.
    """
    found = checkpoint_names.checkpoint_steps(run)
    faults: dict[int, str] = {}
    for step in reversed(found):
        if (fault := records.find_damage(folder_of(run, step))) is None:
            break
        faults[step] = fault
    if faults and len(faults) == len(found):
        raise UserError(f"No checkpoint of {run.name} is intact. {faults[found[-1]]}",
                        "Put the files back if you have a copy, or start a new run.")
    for step, fault in faults.items():
        renamed = run / FOLDER / f"{_DAMAGED}step-{step:06d}"
        shutil.rmtree(renamed, ignore_errors=True)
        folder_of(run, step).rename(renamed)
        warn(f"{fault} The checkpoint of step {step} cannot be used and was renamed to {renamed.name}; "
             f"the run resumes from the one before, of step {found[-1 - len(faults)]}.")
    return found[-1 - len(faults)] if found else None


def check_free_space(run: Path, voice: VoiceModel, state: TrainerState) -> None:
    """Raise `UserError` with both numbers when the disk will not hold the next checkpoint."""
    wanted, free = _wanted_bytes(run, voice, state), shutil.disk_usage(run).free
    if free < wanted:
        raise UserError(
            f"The checkpoint of step {state.step} was not written: {run / FOLDER} has {size_text(free)} "
            f"({free:,} bytes) free, {size_text(wanted)} ({wanted:,} bytes) are needed. {_intact(run)}",
            "Free some space, then resume the run.",
        )


def save(run: Path, record: CheckpointRecord, voice: VoiceModel, options: TrainOptions, state: TrainerState) -> Path:
    """Write a checkpoint; its folder. A full disk raises `UserError` and leaves the earlier ones as they are."""
    check_free_space(run, voice, state)
    target = folder_of(run, state.step)
    writing = target.with_name(f"{_WRITING}{target.name}")
    try:
        shutil.rmtree(writing, ignore_errors=True)
        writing.mkdir(parents=True)
        _write_model(writing, voice)
        tensor_files.write(writing / _TENSORS, state.tensors)
        numbers = {name: value for name, value in asdict(replace(state, tensors={})).items() if name != "tensors"}
        (writing / _NUMBERS).write_text(json.dumps(numbers), encoding="utf-8")
        config = {"verb": "train", "options": options.model_dump(mode="json")}
        (writing / records.CONFIG).write_text(yaml.safe_dump(config), encoding="utf-8")
        records.write_record(writing / records.CHECKPOINT, replace(record, files=hash_tree(writing)))
        _flush(writing)
        replaced = target.with_name(f"{_REPLACED}{target.name}")
        if target.exists():  # a step that is measured again, where the run was killed before it could be ranked
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        writing.rename(target)
        _flush_folder(target.parent)
        for older in (replaced, target.with_name(f"{_DAMAGED}{target.name}")):
            shutil.rmtree(older, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(writing, ignore_errors=True)
        _put_back(run)
        raise _unsaved(run, voice, state, error) from error
    return target


def load_state(run: Path, step: int) -> TrainerState:
    """The trainer's part of a checkpoint; its files are verified by `core.model.loading`."""
    folder = folder_of(run, step)
    numbers = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
    tensors = tensor_files.read(folder / _TENSORS, "Delete it and continue from the one before.")
    return TrainerState(**{
        **numbers, "tensors": tensors, "order": BatchPosition(**numbers["order"]),
        "replay": BatchPosition(**numbers["replay"]),
        "microbatch_plan": MicrobatchPlan(**numbers["microbatch_plan"]),
        "early_stopping": EarlyStopping(**numbers["early_stopping"])})


def processes(run: Path, step: int) -> int:
    """How many processes shared the steps up to this checkpoint."""
    return int(json.loads((folder_of(run, step) / _NUMBERS).read_text(encoding="utf-8"))["processes"])


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name; `names` in the order of its groups."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer/{names[index]}/{key}": value
            for index, entry in state.items() for key, value in _flat_tensors(entry).items()}


def _flat_tensors(entry: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Tensors alone: bitsandbytes counts steps in an int, and holds what is in 8 bits in a mapping of its own."""
    found: dict[str, torch.Tensor] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping):
            found |= {name: inner.clone() for name, inner in _flat_tensors(value).items()}  # they share their code book
        else:
            found[key] = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return found


def restore_optimizer(optimizer: torch.optim.Optimizer, names: list[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Put back what `optimizer_tensors` gave, whole; where the parameters are in parts, this process's part of it."""
    state: dict[int, dict[str, object]] = {}
    parameters = [value for group in optimizer.param_groups for value in group["params"]]
    for path, value in tensors.items():
        kind, _, rest = path.partition("/")
        if kind == "optimizer":
            name, _, key = rest.rpartition("/")
            index = names.index(name)
            is_count = value.ndim == 0 and not value.is_floating_point()
            state.setdefault(index, {})[key] = (
                int(value) if is_count else fsdp.shard_like(value, parameters[index]))
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _write_model(folder: Path, voice: VoiceModel) -> None:
    tensor_files.write(folder / records.ROWS, new_rows(voice.model.module, voice.model.text_tables))
    voice.front_end.save(folder / records.FRONT_END)
    if voice.adapters:
        voice.adapters.save(folder / records.ADAPTER)
    changed = {name: value for name, value in voice.model.module.named_parameters()
               if value.requires_grad and is_of_base(name)}
    if changed:
        tensor_files.write(folder / records.CHANGED, changed)


def _flush(folder: Path) -> None:
    """Everything under `folder` to the disk."""
    for path in folder.rglob("*"):
        _flush_folder(path) if path.is_dir() else _flush_file(path)
    _flush_folder(folder)


def _flush_file(path: Path) -> None:
    with open(path, "rb+") as file:
        os.fsync(file.fileno())


def _flush_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _wanted_bytes(run: Path, voice: VoiceModel, state: TrainerState) -> int:
    """Bytes that the next checkpoint takes, and some for the journal and the samples beside it."""
    trained = [value for value in voice.model.module.parameters() if value.requires_grad]
    tensors = sum(value.nbytes for value in (*state.tensors.values(), *trained))
    steps = checkpoint_names.checkpoint_steps(run)
    before = folder_of(run, steps[-1]).rglob("*") if steps else ()
    return max(tensors, sum(path.stat().st_size for path in before if path.is_file())) + _OTHER_FILES


def _intact(run: Path) -> str:
    found = checkpoint_names.checkpoint_steps(run)
    return f"The checkpoint of step {found[-1]} is intact." if found else "There is no earlier checkpoint."


def _unsaved(run: Path, voice: VoiceModel, state: TrainerState, error: OSError) -> UserError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    free, wanted = shutil.disk_usage(run).free, _wanted_bytes(run, voice, state)
    return UserError(
        f"The checkpoint of step {state.step} could not be saved in {run / FOLDER}: {error.strerror}"
        f"{f' (about {size_text(wanted)} needed, {size_text(free)} free)' if full else ''}. {_intact(run)}",
        f"{'Free some space' if full else 'Check that the workspace can be written'}, then resume the run.",
    )


@dataclass(frozen=True)
class Ranking:
    """What is known of the checkpoints: the best by `metric` (lower is better), and every value so far."""

    metric: str = ""
    best: int | None = None
    values: dict[int, float] = field(default_factory=dict)

    def with_value(self, step: int, value: float) -> Ranking:
        """This ranking after `step` was measured; of equal ones the later is better."""
        return replace(self, values={**self.values, step: value})._with_best()

    def up_to(self, step: int) -> Ranking:
        """This ranking without what was measured after `step`, for a run that resumes from it."""
        values = {known: value for known, value in self.values.items() if known <= step}
        return replace(self, values=values)._with_best()

    def among(self, steps: list[int]) -> Ranking:
        """This ranking with the best of `steps` alone."""
        values = {step: value for step, value in self.values.items() if step in steps}
        return replace(replace(self, values=values)._with_best(), values=self.values)

    def _with_best(self) -> Ranking:
        best = min(self.values, key=lambda known: (self.values[known], -known), default=None)
        return replace(self, best=best)


def read_ranking(run: Path) -> Ranking:
    """The ranking of the run's checkpoints; an empty one when none was measured."""
    path = run / FOLDER / _RANKING
    if not path.is_file():
        return Ranking()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {int(step): float(value) for step, value in values["values"].items()}
        return Ranking(str(values["metric"]), values["best"], known)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "Delete it and resume the run: the last checkpoint is measured again."
        raise UserError(f"{path} is damaged: {error!r}.", hint) from error


def write_ranking(run: Path, ranking: Ranking) -> None:
    """Replace `best.json` at once."""
    path = run / FOLDER / _RANKING
    writing = path.with_name(f"{_WRITING}{_RANKING}")
    try:
        with open(writing, "w", encoding="utf-8") as file:
            file.write(json.dumps(asdict(ranking), indent=1))
            file.flush()
            os.fsync(file.fileno())
        writing.replace(path)
    except OSError as error:
        hint = "Free some space, then resume the run."
        raise UserError(f"{path} could not be written: {error.strerror}.", hint) from error


def prune_checkpoints(run: Path, last: int, best: int | None) -> None:
    """Delete all checkpoints but the `last` ones, the best, and those that have a name.

    A folder loses its own name first, so that no half of one is ever left.
    """
    with checkpoint_names.checkpoint_lock(run):
        there = checkpoint_names.checkpoint_steps(run)
        keep = {*there[-last:], *checkpoint_names.pinned_names(run).values(), best}
        for step in there:
            if step not in keep:
                folder = run / FOLDER
                doomed = folder / f"{_WRITING}deleting-{step}"
                (folder / f"step-{step:06d}").rename(doomed)
                shutil.rmtree(doomed)
