"""Checkpoints of a run: written aside, flushed, renamed; safetensors and JSON, no pickles.

A folder `step-000100` is either whole or not there. A new one is on the disk before an
older one is deleted, and the best and the last are always kept. It knows tensors and
numbers; what they mean is the trainer's business.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions
from core import records, tensor_files
from core.fitting import Setting
from core.loading import VoiceModel
from core.prefix import new_rows
from core.records import CheckpointRecord
from data.batches import Position

FOLDER = "checkpoints"
_BEST, _TENSORS, _NUMBERS = "best.json", "training.safetensors", "training.json"
_ASIDE = ".writing-"
_MEGABYTE = 1e6
_MAY_CHANGE = ("device", "max_minutes", "checkpoint_every", "activation_checkpointing", "compile")  # on resume


@dataclass(frozen=True)
class TrainerState:
    """What a run needs to go on as if it had never stopped."""

    step: int  # optimizer steps done
    seconds: float  # of training, over all attempts
    order: Position
    replay: Position
    data_fingerprint: str
    tensors: Mapping[str, torch.Tensor]  # optimizer moments, generator states and the scale of the loss
    setting: Setting = Setting()


@dataclass(frozen=True)
class Ranking:
    """What is known of the checkpoints: the best by `measure` (lower is better), and every value so far."""

    measure: str = ""
    best: int | None = None
    values: dict[int, float] = field(default_factory=dict)

    def with_value(self, step: int, value: float) -> Ranking:
        """This ranking after `step` was measured; of equal ones the later is better."""
        values = {**self.values, step: value}
        best = min(values, key=lambda known: (values[known], -known))
        return replace(self, best=best, values=values)


def folder_of(run: Path, step: int) -> Path:
    """Where the checkpoint of `step` stands."""
    return run / FOLDER / f"step-{step:06d}"


def steps(run: Path) -> list[int]:
    """Steps with a checkpoint, ascending."""
    return sorted(int(path.name.removeprefix("step-")) for path in (run / FOLDER).glob("step-*") if path.is_dir())


def clean(run: Path) -> None:
    """Remove what a killed writer left."""
    for leftover in (run / FOLDER).glob(f"{_ASIDE}*"):
        shutil.rmtree(leftover) if leftover.is_dir() else leftover.unlink()


def save(run: Path, record: CheckpointRecord, voice: VoiceModel, options: TrainOptions, state: TrainerState) -> Path:
    """Write a checkpoint; its folder. A full disk raises `UserError` and leaves the earlier ones as they are."""
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
        records.write(aside / records.CHECKPOINT, replace(record, files=records.hash_files(aside)))
        _flush(aside)
        shutil.rmtree(target, ignore_errors=True)  # only a damaged one of the same step can be there
        aside.rename(target)
        _flush_folder(target.parent)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise _unsaved(run, voice, state, error) from error
    return target


def load_state(run: Path, step: int) -> TrainerState:
    """What `save` kept of the trainer; the files are checked by `core.loading`."""
    folder = folder_of(run, step)
    numbers = json.loads((folder / _NUMBERS).read_text(encoding="utf-8"))
    return TrainerState(int(numbers["step"]), float(numbers["seconds"]), Position(*numbers["order"]),
                        Position(*numbers["replay"]), str(numbers["data_fingerprint"]),
                        tensor_files.read(folder / _TENSORS, "Delete this checkpoint and resume from the one before."),
                        Setting(int(numbers["parts"]), bool(numbers["recompute"])))


def check_options(run: Path, step: int, options: TrainOptions) -> None:
    """Raise `UserError` when `options` would make another run of the one whose checkpoint stands in `run`.

    What follows from options is in the checkpoint already: tensors, the rate at each step, the
    ranking. Only where it runs, how long and how often it saves may change.
    """
    path = folder_of(run, step) / records.CONFIG
    saved = parse_options(TrainOptions, yaml.safe_load(path.read_text(encoding="utf-8"))["options"])
    changed = [name for name in TrainOptions.model_fields
               if name not in _MAY_CHANGE and getattr(options, name) != getattr(saved, name)]
    if changed:
        said = "; ".join(f"{name} {getattr(options, name)}, wanted {getattr(saved, name)}" for name in changed)
        raise UserError(
            f"{run / records.CONFIG} differs from that of the checkpoint of step {step}: {said}.",
            "Put these values back and resume, or start a new run with yours. Nothing was changed.",
        )


def read_ranking(run: Path) -> Ranking:
    """The ranking of the run's checkpoints; an empty one when none was measured."""
    path = run / FOLDER / _BEST
    if not path.is_file():
        return Ranking()
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        known = {int(step): float(value) for step, value in values["values"].items()}
        return Ranking(str(values["measure"]), values["best"], known)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        hint = "Delete it and resume: the last checkpoint is measured again."
        raise UserError(f"{path} is damaged: {error!r}.", hint) from error


def write_ranking(run: Path, ranking: Ranking) -> None:
    """Replace `best.json` at once."""
    path = run / FOLDER / _BEST
    aside = path.with_name(f"{_ASIDE}{_BEST}")
    try:
        _write_text(aside, json.dumps(asdict(ranking), indent=1))
        _flush_file(aside)
        aside.replace(path)
    except OSError as error:
        hint = "Free some space, then resume the run."
        raise UserError(f"{path} could not be written: {error.strerror}.", hint) from error


def prune(run: Path, keep: set[int]) -> None:
    """Delete the checkpoints of all steps but `keep`; a folder loses its name first, so that no half of one is left."""
    for step in steps(run):
        if step not in keep:
            doomed = folder_of(run, step).with_name(f"{_ASIDE}deleting-{step}")
            folder_of(run, step).rename(doomed)
            shutil.rmtree(doomed)


def optimizer_tensors(optimizer: torch.optim.Optimizer, names: list[str]) -> dict[str, torch.Tensor]:
    """The optimizer's state by parameter name; `names` in the order of its groups."""
    state = optimizer.state_dict()["state"]
    return {f"optimizer/{names[index]}/{key}": value for index, entry in state.items() for key, value in entry.items()}


def restore_optimizer(optimizer: torch.optim.Optimizer, names: list[str], tensors: Mapping[str, torch.Tensor]) -> None:
    """Put back what `optimizer_tensors` gave."""
    state: dict[int, dict[str, torch.Tensor]] = {}
    for path, value in tensors.items():
        kind, _, rest = path.partition("/")
        if kind == "optimizer":
            name, _, key = rest.rpartition("/")
            state.setdefault(names.index(name), {})[key] = value
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def _write_model(folder: Path, voice: VoiceModel) -> None:
    tensor_files.write(folder / records.ROWS, new_rows(voice.model.module, voice.model.text_tables))
    voice.front_end.save(folder / records.FRONT_END)
    if voice.adapters:
        voice.adapters.save(folder / records.ADAPTER)


def _numbers(state: TrainerState) -> dict[str, object]:
    return {"step": state.step, "seconds": state.seconds, "order": [state.order.epoch, state.order.batch],
            "replay": [state.replay.epoch, state.replay.batch], "data_fingerprint": state.data_fingerprint,
            **asdict(state.setting)}


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


def _unsaved(run: Path, voice: VoiceModel, state: TrainerState, error: OSError) -> UserError:
    trained = [value for value in voice.model.module.parameters() if value.requires_grad]
    needed = sum(value.nbytes for value in (*state.tensors.values(), *trained)) / _MEGABYTE
    kept = steps(run)
    intact = f"The checkpoint of step {kept[-1]} is intact." if kept else "There is no earlier checkpoint."
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    free = shutil.disk_usage(run).free / _MEGABYTE
    return UserError(
        f"The checkpoint of step {state.step} could not be saved in {run / FOLDER}: {error.strerror}"
        f"{f' (about {needed:.1f} MB needed, {free:.1f} MB free)' if full else ''}. {intact}",
        f"{'Free some space' if full else 'Check that the workspace can be written'}, then resume the run.",
    )
