"""Whether a run can resume: what it is now against what its checkpoint was made of, by content and not by size.

Tensors, rates and ranking of a checkpoint follow from its options, its vocabulary and its clips. What would
make it another run is refused with the reason, and with the way to start a new run on its weights.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions
from core.library import records
from core.library.records import CheckpointRecord, ExtensionRecord, Origin
from core.model.precision import Precision
from core.training import checkpoint, parameter_groups
from core.training.checkpoint import TrainerState
from core.training.dataloader import TrainingData
from core.workspace import Workspace
from data.front_end import FrontEnd

# Where it runs, how long, and how often it saves.
_MAY_CHANGE = ("device", "max_minutes", "checkpoint_every", "keep_last", "activation_checkpointing", "compile",
               "drift_bound", "drift_action", "tracker", "sharding",
               "wait_for_gpu_gib", "wait_for_idle_gpu", "max_attempts")
_SHARED_OUT = ("batch_size", "processes")
_SHAPES = "the adapters in the checkpoint, and their optimizer, are of another kind"
_ORDER = "the order of the clips follows from it"
_SCHEDULE = "the learning rate at each step follows from it, and would jump"
_GROUPS = "the optimizer's parameter groups would be others"
_REASONS: Mapping[str, str] = {
    "batch_size": _ORDER, "gradient_accumulation": _ORDER, "processes": _ORDER, "seed": _ORDER,
    "replay": _ORDER, "dataset": _ORDER,
    "steps": _SCHEDULE, "warmup": _SCHEDULE, "schedule": _SCHEDULE, "min_lr_ratio": _SCHEDULE,
    "scope": _GROUPS, "weight_decay": _GROUPS, "full_trainable": _GROUPS, "layer_lr_decay": _GROUPS,
    "optimizer": "the checkpoint holds the state of the other one",
    "precision": "rounding would be another", "extension": "new rows belong to their vocabulary",
}
_ANOTHER = "the steps to come would be those of another run"
_SHOWN = 5


def check_options(run: Path, step: int, options: TrainOptions, processes: int) -> None:
    """Raise `UserError` when `options` would make another run of the one whose checkpoint stands in `run`.

    `processes`: as many as truly share the steps, also where torchrun started them and the options do not say so.
    """
    path = checkpoint.folder_of(run, step) / records.CONFIG
    saved = parse_options(TrainOptions, yaml.safe_load(path.read_text(encoding="utf-8"))["options"])
    then = checkpoint.processes(run, step)
    alike = _same_batches(options, processes, saved, then)
    changed = [name for name in TrainOptions.model_fields
               if name not in _MAY_CHANGE and getattr(options, name) != getattr(saved, name)
               and not (name in _SHARED_OUT and alike)]
    if changed:
        differences = "; ".join(f"{name} {getattr(options, name)}, wanted {getattr(saved, name)} ({_reason(name)})"
                         for name in changed)
        raise UserError(
            f"{run / records.CONFIG} differs from that of the checkpoint of step {step}: {differences}.",
            f"Put these values back and resume, or start a new run with yours on its weights: "
            f"{init_from_command(run, step)}."
            " Nothing was changed.",
        )
    if not alike:
        raise _other_processes(run, step, options, processes, then)


def _same_batches(options: TrainOptions, now: int, saved: TrainOptions, then: int) -> bool:
    """Whether so many processes share the same batches; dropout in adapters is each one's own, so there none may."""
    alone = parameter_groups.has_adapters(options) and options.adapter_dropout > 0
    return options.batch_size * now == saved.batch_size * then and (now == then or not alone)


def _other_processes(run: Path, step: int, options: TrainOptions, now: int, then: int) -> UserError:
    """The options are the same, but there are not as many processes as `then`: torchrun started them, or does now."""
    by_torchrun = then != options.processes
    start = ("torchrun", "--nproc-per-node", str(then)) if by_torchrun else ("python",)
    command = shlex.join((*start, "-m", "scripts.train", "--workspace", str(run.parent.parent), "--resume", run.name))
    started = f"was started with {_counted(then)}{' by torchrun' if by_torchrun else ''}"
    clips = options.batch_size * options.gradient_accumulation
    over = " (over several machines, with as many on all of them together)" if by_torchrun else ""
    return UserError(
        f"The run {run.name} {started}, for steps of {clips * then} clips; with {_counted(now)} they would be of "
        f"{clips * now}, and {_ORDER}.",
        f"Start it as before: {command}{over}; or start a new run on its weights: {init_from_command(run, step)}. "
        "Nothing was changed.")


def _counted(processes: int) -> str:
    return "1 process" if processes == 1 else f"{processes} processes"


def check_vocabulary(run: Path, step: int, workspace: Workspace, extension: str) -> None:
    """Raise `UserError` when the extension of this name is not the one the run began with (if it is still there)."""
    path = workspace.extensions / extension / records.EXTENSION
    if not path.is_file():
        return
    now = records.read_record(path, ExtensionRecord).origin
    then = records.read_record(checkpoint.folder_of(run, step) / records.CHECKPOINT, CheckpointRecord).origin
    hint = (f"Put the extension that it started with back and resume, or start a new run on its weights: "
            f"{init_from_command(run, step)}.")
    if now.base_hash != then.base_hash:
        raise UserError(f"The extension {extension!r} was made again for another base model: {now.base_hash[:12]} "
                        f"there, {then.base_hash[:12]} in the checkpoint of step {step}.", hint)
    if now.fingerprint != then.fingerprint:
        raise UserError(f"The extension {extension!r} was made again since this run started: "
                        f"{_difference(path.parent, checkpoint.folder_of(run, step), now, then)}.", hint)


def check_data(run: Path, options: TrainOptions, state: TrainerState, data: TrainingData) -> None:
    """Raise `UserError` when the clips are not the ones that the run began with."""
    if state.data_fingerprint != data.fingerprint:
        raise UserError(f"The dataset {options.dataset!r} is not the one this run began with: its clips, texts or "
                        f"splits are others ({data.fingerprint[:12]}, wanted {state.data_fingerprint[:12]}).",
                        f"Put that dataset back, or start a new run on its weights: "
                        f"{init_from_command(run, state.step)}.")
    if state.content_hash and state.content_hash != data.content_hash:
        raise UserError(
            f"The dataset {options.dataset!r} is the one this run began with, but the model sees other clips of it: "
            f"features or ids changed, or some cannot be read any more ({data.content_hash[:12]}, wanted "
            f"{state.content_hash[:12]}). {' '.join(data.notes)}".rstrip(),
            "Prepare it again with the model that it was prepared with, then resume; or start a new run on its "
            f"weights: {init_from_command(run, state.step)}.")


def rounding_warning(state: TrainerState, precision: Precision, conditions: str) -> str:
    """What to warn of where `auto` chose another precision, or the run is computed elsewhere; else nothing."""
    if state.precision not in ("", precision.name):
        return (f"The run computed in {state.precision} up to step {state.step} and resumes in {precision}, which "
                f"`precision: auto` chooses here: its steps are rounded otherwise than they would have been. To resume "
                f"as it was, use a machine that computes in {state.precision}.")
    if state.conditions not in ("", conditions):
        return (f"The run was computed on {state.conditions} up to step {state.step} and resumes on {conditions}: "
                "its steps are rounded otherwise than they would have been.")
    return ""


def _difference(now_at: Path, then_at: Path, now: Origin, then: Origin) -> str:
    """Vocabulary or front-end: what of the two is another."""
    tokens, before = ({(token.text, token.id) for token in FrontEnd.load(folder / records.FRONT_END).added_tokens()}
                      for folder in (now_at, then_at))
    if tokens == before:
        return (f"its new tokens are the same, but the front-end that makes ids of texts is another "
                f"({now.fingerprint[:12]}, wanted {then.fingerprint[:12]})")
    others = sorted(text for text, _ in tokens ^ before)
    shown = ", ".join(repr(text) for text in dict.fromkeys(others[:_SHOWN]))
    return (f"it has another vocabulary ({now.size} ids, wanted {then.size}; fingerprint {now.fingerprint[:12]}, "
            f"wanted {then.fingerprint[:12]}; tokens that differ: {shown}{' ...' if len(others) > _SHOWN else ''})")


def _reason(name: str) -> str:
    if name.startswith("adapter") and name not in ("adapter_lr", "adapter_dropout"):
        return _SHAPES
    return _REASONS.get(name, _GROUPS if name.endswith("_lr") else _ANOTHER)


def init_from_command(run: Path, step: int) -> str:
    """The command of a new run on the weights of this one."""
    return f"python -m scripts.train --init-from run:{run.name}@{step}"
