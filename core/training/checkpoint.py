"""Checkpoints of a run: written aside, flushed, renamed; safetensors and JSON, no pickles.

A folder `step-000100` is either whole or not there, and holds the hashes of its files. The
disk is asked before one is begun, and a new one is on the disk before an older one is
deleted (`core.training.ranking`). It knows tensors and numbers; what they mean is the trainer's business.
"""

from __future__ import annotations

import errno
import json
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
from core.jobs.checkpoint_names import checkpoint_steps
from core.jobs.reporter import size_text
from core.library import records
from core.library.records import CheckpointRecord
from core.model import tensor_files
from core.model.loading import VoiceModel
from core.model.prefix import is_of_base, new_rows
from core.training import sharding
from core.training.divisible import RANK
from core.training.fitting import Setting
from core.training.patience import Patience
from data.batches import BatchPosition
from data.durable_files import hash_tree

FOLDER = checkpoint_names.CHECKPOINTS
_TENSORS, _NUMBERS = "training.safetensors", "training.json"
_ASIDE, _DAMAGED, _REPLACED = ".writing-", ".damaged-", ".replaced-"
_BESIDE = 16_000_000  # bytes beside the tensors: front-end, journal, samples


@dataclass(frozen=True)
class TrainerState:
    """What a run needs to go on as if it had never stopped."""

    step: int  # optimizer steps done
    seconds: float  # of training, over all attempts
    order: BatchPosition
    replay: BatchPosition
    data_fingerprint: str
    tensors: Mapping[str, torch.Tensor]  # optimizer moments, generator states and the scale of the loss
    setting: Setting = Setting()
    content: str = ""  # fingerprint of the clips as the model sees them
    patience: Patience = Patience()
    processes: int = 1  # that shared the steps
    decays: Mapping[str, float] = field(default_factory=dict)  # of the parameter groups, by name
    precision: str = ""  # that its steps were computed in
    conditions: str = ""  # on which their last bits depend, see `core.compute.numeric_environment`


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of `step` stands."""
    return run / FOLDER / f"step-{step:06d}"


def clean(run: Path) -> None:
    """Remove what a killed writer left; a checkpoint that it was about to replace is there again."""
    _put_back(run)
    for leftover in (run / FOLDER).glob(f"{_ASIDE}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def _put_back(run: Path) -> None:
    """Let a checkpoint that was to be replaced stand again, unless the new one does."""
    for replaced in (run / FOLDER).glob(f"{_REPLACED}*"):
        target = replaced.with_name(replaced.name.removeprefix(_REPLACED))
        shutil.rmtree(replaced) if target.exists() else replaced.rename(target)


def last_whole(run: Path, tell: Callable[[str], None]) -> int | None:
    """The last step whose checkpoint is whole, None where there is no checkpoint at all.

    Damaged ones after it are set aside, and told of. When none is whole `UserError` is raised and nothing is touched.
    """
    found = checkpoint_steps(run)
    faults: dict[int, str] = {}
    for step in reversed(found):
        if (fault := records.find_damage(folder_of(run, step))) is None:
            break
        faults[step] = fault
    if faults and len(faults) == len(found):
        raise UserError(f"No checkpoint of {run.name} is whole. {faults[found[-1]]}",
                        "Put the files back if you have a copy, or start a new run.")
    for step, fault in faults.items():
        aside = run / FOLDER / f"{_DAMAGED}step-{step:06d}"
        shutil.rmtree(aside, ignore_errors=True)
        folder_of(run, step).rename(aside)
        tell(f"{fault} The checkpoint of step {step} cannot be used and was set aside as {aside.name}; "
             f"the run goes on from the one before, of step {found[-1 - len(faults)]}.")
    return found[-1 - len(faults)] if found else None


def check_room(run: Path, voice: VoiceModel, state: TrainerState) -> None:
    """Raise `UserError` with both numbers when the disk will not hold the next checkpoint."""
    wanted, free = _wanted_bytes(run, voice, state), shutil.disk_usage(run).free
    if free < wanted:
        raise UserError(
            f"The checkpoint of step {state.step} was not begun: {run / FOLDER} has {size_text(free)} ({free:,} bytes) "
            f"free, {size_text(wanted)} ({wanted:,} bytes) are wanted. {_intact(run)}",
            "Free some space, then continue the run.",
        )


def save(run: Path, record: CheckpointRecord, voice: VoiceModel, options: TrainOptions, state: TrainerState) -> Path:
    """Write a checkpoint; its folder. A full disk raises `UserError` and leaves the earlier ones as they are."""
    check_room(run, voice, state)
    target = folder_of(run, state.step)
    aside = target.with_name(f"{_ASIDE}{target.name}")
    try:
        shutil.rmtree(aside, ignore_errors=True)
        aside.mkdir(parents=True)
        _write_model(aside, voice)
        tensor_files.write(aside / _TENSORS, state.tensors)
        _write_text(aside / _NUMBERS, json.dumps(_numbers(state)))
        config = {"verb": "train", "options": options.model_dump(mode="json")}
        _write_text(aside / records.CONFIG, yaml.safe_dump(config))
        records.write_record(aside / records.CHECKPOINT, replace(record, files=hash_tree(aside)))
        _flush(aside)
        replaced = target.with_name(f"{_REPLACED}{target.name}")
        if target.exists():  # a step that is measured again, where the run was killed before it could be ranked
            shutil.rmtree(replaced, ignore_errors=True)
            target.rename(replaced)
        aside.rename(target)
        _flush_folder(target.parent)
        for older in (replaced, target.with_name(f"{_DAMAGED}{target.name}")):
            shutil.rmtree(older, ignore_errors=True)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        _put_back(run)
        raise _unsaved(run, voice, state, error) from error
    return target


def load_state(run: Path, step: int) -> TrainerState:
    """What `save` kept of the trainer; the files are checked by `core.model.loading`."""
    folder = folder_of(run, step)
    numbers = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
    return TrainerState(int(numbers["step"]), float(numbers["seconds"]), BatchPosition(*numbers["order"]),
                        BatchPosition(*numbers["replay"]), str(numbers["data_fingerprint"]),
                        tensor_files.read(folder / _TENSORS, "Delete it and continue from the one before."),
                        Setting(int(numbers["parts"]), bool(numbers["recompute"])), str(numbers.get("content", "")),
                        Patience(**numbers.get("patience", {})), processes(run, step), numbers.get("decays", {}),
                        str(numbers.get("precision", "")), str(numbers.get("conditions", "")))


def processes(run: Path, step: int) -> int:
    """How many processes shared the steps up to this checkpoint; an older one tells by the generators of each."""
    folder = folder_of(run, step)
    numbers = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
    if "processes" in numbers:
        return int(numbers["processes"])
    others = {name.partition("/")[0] for name in tensor_files.names(folder / _TENSORS) if name.startswith(RANK)}
    return 1 + len(others)


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name; `names` in the order of its groups."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer/{names[index]}/{key}": value
            for index, entry in state.items() for key, value in _plain(entry).items()}


def _plain(entry: Mapping[str, object]) -> dict[str, torch.Tensor]:
    """Tensors alone: bitsandbytes counts steps in an int, and holds what is in 8 bits in a mapping of its own."""
    found: dict[str, torch.Tensor] = {}
    for key, value in entry.items():
        if isinstance(value, Mapping):
            found |= {name: inner.clone() for name, inner in _plain(value).items()}  # they share their code book
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
                int(value) if is_count else sharding.like(value, parameters[index]))
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


def _numbers(state: TrainerState) -> dict[str, object]:
    return {"step": state.step, "seconds": state.seconds, "order": [state.order.epoch, state.order.batch],
            "replay": [state.replay.epoch, state.replay.batch], "data_fingerprint": state.data_fingerprint,
            "content": state.content, "patience": asdict(state.patience), "processes": state.processes,
            "decays": dict(state.decays), "precision": state.precision,
            "conditions": state.conditions, **asdict(state.setting)}


def _write_text(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


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
    before = folder_of(run, checkpoint_steps(run)[-1]).rglob("*") if checkpoint_steps(run) else ()
    return max(tensors, sum(path.stat().st_size for path in before if path.is_file())) + _BESIDE


def _intact(run: Path) -> str:
    found = checkpoint_steps(run)
    return f"The checkpoint of step {found[-1]} is intact." if found else "There is no earlier checkpoint."


def _unsaved(run: Path, voice: VoiceModel, state: TrainerState, error: OSError) -> UserError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    free, wanted = shutil.disk_usage(run).free, _wanted_bytes(run, voice, state)
    return UserError(
        f"The checkpoint of step {state.step} could not be saved in {run / FOLDER}: {error.strerror}"
        f"{f' (about {size_text(wanted)} needed, {size_text(free)} free)' if full else ''}. {_intact(run)}",
        f"{'Free some space' if full else 'Check that the workspace can be written'}, then continue the run.",
    )
