"""Exports as they stand on disk: what is in one, and a voice model from it with nothing but its folder.

An export needs neither the base model nor the run it came from. Loading checks every file
against `SHA256SUMS.json` and the base's tensors against the hash of the base they came from.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from config.errors import UserError
from config.schema import Scope
from core.library import records
from core.library.records import EXPORT_AGAIN_HINT, EXPORT_RECORD, EXPORT_SUMS, ExportRecord, read_export_record
from core.voice_model import loading
from core.voice_model.adapters import Adapters
from core.voice_model.prefix import hash_tensors
from data.durable_files import hash_tree
from data.front_end import FrontEnd
from models.base import SpeechModel
from models.registry import family as family_named


def record_of(model: loading.VoiceModel) -> ExportRecord:
    """The record of the export that `model` was loaded from."""
    return read_export_record(model.base_folder)


def write_sums(folder: Path) -> None:
    """Write `SHA256SUMS.json` over every other file."""
    sums = hash_tree(folder, leave_out=(EXPORT_SUMS,))
    (folder / EXPORT_SUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def load(folder: Path, device: torch.device) -> loading.VoiceModel:
    """The voice model in `folder`, from its own files alone."""
    records.check_export_files(folder)
    return assemble(folder, device)


def assemble(folder: Path, device: torch.device) -> loading.VoiceModel:
    """`load` without the check of every file, for an export that is just being written."""
    record = read_export_record(folder)
    if record.scope not in get_args(Scope):
        raise UserError(f"{folder / EXPORT_RECORD} has the unknown scope {record.scope!r}.", "Update Lisan.")
    family = family_named(record.origin.family)
    front_end = FrontEnd.load(folder / records.FRONT_END)
    model = family.speech_model(folder, device)
    rows = _cut_tables(model, front_end, folder)
    base_hash = hash_tensors(model.module.state_dict())
    wanted = record.weights_hash or record.origin.base_hash
    if base_hash != wanted or front_end.fingerprint != record.origin.fingerprint:
        raise UserError(
            f"{folder} does not hold the model that {EXPORT_RECORD} names: base {base_hash[:12]} there, "
            f"{wanted[:12]} wanted; front-end {front_end.fingerprint[:12]} there, "
            f"{record.origin.fingerprint[:12]} wanted.", EXPORT_AGAIN_HINT,
        )
    plain = loading.VoiceModel(f"export:{record.name}", family, record.origin.model, folder, record.origin.base_hash,
                               model, front_end, device, scope=record.scope)  # type: ignore[arg-type]
    voice = loading.extended(plain, front_end, rows)
    adapters = None
    if (folder / records.ADAPTER).is_dir():
        adapters = Adapters.load(voice.model.module, folder / records.ADAPTER)
        voice.model.module.to(device).eval()
    return replace(voice, adapters=adapters)


def _cut_tables(model: SpeechModel, front_end: FrontEnd, folder: Path) -> dict[str, torch.Tensor]:
    """Take the rows after the prefix out of the model's tables, so that old and new stand apart as in training."""
    if model.prefix_size != front_end.size:
        raise UserError(
            f"{folder} has {front_end.size} ids in its front-end and {model.prefix_size} text rows.", EXPORT_AGAIN_HINT,
        )
    rows = {}
    for name in model.text_tables:
        table = model.module.get_submodule(name)
        weight = table.weight
        assert isinstance(weight, torch.Tensor)
        rows[name] = weight.detach()[front_end.prefix_size:].clone()
        table.weight = nn.Parameter(weight.detach()[:front_end.prefix_size].clone(), requires_grad=False)
    model.prefix_size = front_end.prefix_size
    return rows
