"""A new run on the weights of another (`init_from`): those of the same tokens and layers are copied, the rest is named.

Optimizer, schedule, order and counters are fresh. Rows are matched by the text of their token, so that a
checkpoint of another vocabulary can be used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import yaml

from config.errors import UserError
from core.library import catalog, records
from core.library.records import CheckpointRecord
from core.model import tensor_files
from core.model.adapters import SETTINGS, WEIGHTS, adapter_scale
from core.model.loading import VoiceModel, load_changed_tensors
from core.model.prefix import new_rows
from core.training import parameter_groups
from core.workspace import Workspace
from data.front_end import FrontEnd

_PEFT_PREFIX = "base_model.model."
_SHOWN = 5


def init_from(workspace: Workspace, reference: str, voice: VoiceModel, warn: Callable[[str], None],
              changing: Sequence[str] = parameter_groups.PARTS) -> VoiceModel:
    """The untrained `voice` with what `reference` (`run:ID` or `run:ID@STEP`) trained, copied into it in place.

    `changing`: the parts of the base that the run is to train. Of a run with an EMA, the averages are copied.
    """
    found = catalog.resolve(workspace, reference)
    if found.kind != "run":
        raise UserError(f"{reference!r} is no checkpoint of a run.", "Give run:ID (its best one) or run:ID@STEP.")
    if (fault := records.find_damage(found.folder)) is not None:
        raise UserError(fault, "Initialise from another checkpoint of the run.")
    record = records.read_record(found.folder / records.CHECKPOINT, CheckpointRecord)
    if record.origin.base_hash != voice.base_hash:
        raise UserError(
            f"{reference} was trained on another base model: {record.origin.model} ({record.origin.base_hash[:12]}), "
            f"this run trains {voice.name} ({voice.base_hash[:12]}).",
            "Weights can be copied on the same base alone; choose the extension that was made for it.")
    voice, changes = _copy_changes(found.folder, voice, reference, changing)
    copied = [_copy_rows(found.folder, voice, reference), _copy_adapters(found.folder, voice, record), changes]
    ema = float(yaml.safe_load((found.folder / records.CONFIG).read_text(encoding="utf-8"))["options"]["ema"])
    average = f", the EMA of its training ({ema:g})" if ema else ""
    warn(f"The run starts from the weights of {found.reference} (step {record.step}){average}, with a fresh optimizer, "
         f"schedule and order: {' '.join(filter(None, copied))}")
    return voice


def _copy_changes(folder: Path, voice: VoiceModel, reference: str,
                  changing: Sequence[str]) -> tuple[VoiceModel, str]:
    """Copy what a run in `full` changed of the base, if this run may change it; what was done."""
    if not (folder / records.CHANGED).is_file():
        return voice, ""
    if voice.scope != "full":
        return voice, (f"The tensors of the base that it changed are not copied: scope {voice.scope!r} "
                       "changes none. Its rows were trained beside them; only `full` takes both.")
    voice = load_changed_tensors(voice, folder, keep_base=True)
    parts = {voice.model.parameter_group(name)[0] for name in voice.changed}
    if left := sorted(parts - set(changing)):
        raise UserError(
            f"{reference} changed {', '.join(left)} of the base; this run trains {', '.join(changing) or 'none of it'} "
            "and would keep no trace of the rest.", "Train with full_trainable `everything`, or as that run did.")
    taken = ", ".join(sorted(parts))
    return voice, f"The {len(voice.changed)} tensors of the base that it changed are copied ({taken})."


@torch.no_grad()
def _copy_rows(folder: Path, voice: VoiceModel, reference: str) -> str:
    """Copy the rows of the tokens that both have; what was done."""
    theirs = FrontEnd.load(folder / records.FRONT_END)
    rows = tensor_files.read(folder / records.ROWS, "Initialise from another checkpoint.")
    known = {(token.text, token.language): token.id - theirs.prefix_size for token in theirs.added_tokens()}
    wanted = {(token.text, token.language): token.id - voice.front_end.prefix_size
              for token in voice.front_end.added_tokens()}
    pairs = [(own, known[key]) for key, own in wanted.items() if key in known]
    if not pairs:
        raise UserError(f"{reference} and this extension have no new token in common.",
                        "Initialise from a checkpoint of the same language, or train the extension without init_from.")
    own_at, their_at = (torch.tensor(places) for places in zip(*pairs, strict=True))
    for table, parameter in new_rows(voice.model.module, voice.model.text_tables).items():
        parameter[own_at.to(parameter.device)] = rows[table][their_at].to(parameter)
    missing = [text for text, language in wanted if (text, language) not in known]
    if not missing and len(known) == len(wanted):
        return f"all {len(pairs)} new rows are copied."
    shown = ", ".join(repr(text) for text in missing[:_SHOWN]) + (" ..." if len(missing) > _SHOWN else "")
    left = f"{len(missing)} start as the extension has them ({shown})" if missing else "none is missing"
    return (f"its vocabulary is another: {len(pairs)} of {len(wanted)} new rows are copied by the text of their token, "
            f"{left}, {len(known) - len(pairs)} of its own are not used.")


def _copy_adapters(folder: Path, voice: VoiceModel, record: CheckpointRecord) -> str:
    """Copy the adapters where both have them; what was done."""
    there = (folder / records.ADAPTER / WEIGHTS).is_file()
    if voice.adapters is None:
        return "Its adapters are not used, beside which those rows were trained." if there else ""
    if not there:
        return f"It has none of the adapters of scope {voice.scope!r}: these are fresh."
    stored = tensor_files.read(folder / records.ADAPTER / WEIGHTS, "Initialise from another checkpoint.")
    tensors = {name.removeprefix(_PEFT_PREFIX): value for name, value in stored.items()}
    own = voice.adapters.tensors()
    if shapes(own) != shapes(tensors):
        differing = sorted(set(shapes(own).items()) ^ set(shapes(tensors).items()))[0]
        raise UserError(
            f"The adapters of run:{record.run}@{record.step} are not those that this run is to have: they have "
            f"{len(tensors)} tensors (rank {record.adapter_rank}), {len(own)} are wanted; such as {differing[0]} "
            f"{list(differing[1])}.",
            "Ask for adapters of the same kind and rank as that run, or take the scope `rows`.")
    ratio = _saved_scale(folder) / voice.adapters.scale
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(tensors[name] * ratio if voice.adapters.carries_scale(name) else tensors[name])
    scaled = f", scaled by {ratio:g} so that they act as before at this run's adapter_scale" if ratio != 1 else ""
    return f"Its adapters are copied, trained in scope {record.scope!r}{scaled}."


def _saved_scale(folder: Path) -> float:
    """Alpha over rank of a checkpoint's adapters."""
    return adapter_scale(json.loads((folder / records.ADAPTER / SETTINGS).read_text(encoding="utf-8")))


def shapes(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor."""
    return {name: tuple(value.shape) for name, value in tensors.items()}
