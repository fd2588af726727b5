"""Load a model from its reference: base, new rows, adapters and front-end.

Everything that is loaded is checked: the base must be the one that the rows were made for, tensor by tensor, and the
files of a checkpoint or an export must be those that were saved. An export needs neither its base nor its run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import get_args

import torch
from torch import nn

from config.errors import UserError
from config.schema import Scope
from core.library import records
from core.library.catalog import family_of, resolve
from core.library.records import (
    EXPORT_AGAIN_HINT,
    EXPORT_RECORD,
    EXPORT_SUMS,
    CheckpointRecord,
    ExportRecord,
    ExtensionRecord,
    Origin,
    check_export_files,
    read_export_record,
)
from core.model import tensor_files
from core.model.adapters import Adapters
from core.model.prefix import extend_tables, hash_tensors
from core.workspace import Workspace
from data.durable_files import hash_tree
from data.front_end import FrontEnd
from models.base import Family, SpeechModel
from models.registry import family as family_named


@dataclass(frozen=True)
class TTSModel:
    """A complete text-to-speech model: language model, front-end and adapters, with the family that has its vocoder.

    `scope` is that of the training, `rows` for an extension as it was initialised, and None for a base model.
    """

    ref: str
    family: Family
    name: str  # of the base model in the workspace
    base_folder: Path
    base_hash: str
    model: SpeechModel
    front_end: FrontEnd
    device: torch.device
    adapters: Adapters | None = None
    scope: Scope | None = None
    changed: tuple[str, ...] = ()  # tensors of the base that were trained
    base_values: Mapping[str, torch.Tensor] = field(default_factory=dict)  # of `changed`, with `keep_base`

    def adapters_for(self, language: str) -> AbstractContextManager[None]:
        """Context with the adapters enabled where texts of `language` need them, and disabled where not."""
        if self.adapters is None:
            return nullcontext()
        return self.adapters.enabled(self.uses_adapters(language))

    def adapters_for_batch(self, languages: Sequence[str]) -> AbstractContextManager[None]:
        """`adapters_for` each row of a batch; see `Adapters.enabled_for_rows`."""
        enabled = [self.uses_adapters(language) for language in languages]
        if self.adapters is None or len(set(enabled)) < 2:
            return self.adapters_for(languages[0])
        return self.adapters.enabled_for_rows(enabled)

    def uses_adapters(self, language: str) -> bool:
        """Whether adapters act on texts of `language`."""
        return self.adapters is not None and (self.scope == "full" or self.front_end.is_new(language))

    @property
    def origin(self) -> Origin:
        """What rows and adapters of this model belong to."""
        return Origin(self.family.name, self.name, self.base_hash, self.front_end.prefix_size, self.front_end.size,
                      self.front_end.fingerprint)


def load(workspace: Workspace, ref: str, device: torch.device) -> TTSModel:
    """The model behind `base:NAME`, `extension:NAME` (untrained), `run:ID`, `run:ID@STEP` or `export:NAME`."""
    kind, _, name = ref.partition(":")
    if kind == "extension":
        return load_extension(workspace, name, device)
    found = resolve(workspace, ref)
    if found.kind == "base":
        return load_base(workspace, found.name, device)
    if found.kind == "export":
        return load_export(found.folder, device)
    return replace(load_checkpoint(workspace, found.folder, device), ref=ref)


def load_base(workspace: Workspace, name: str, device: torch.device) -> TTSModel:
    """The base model `name` as it was downloaded."""
    folder = workspace.model(name)
    family = family_named(family_of(workspace, name))
    front_end = family.load_front_end(folder)
    model = family.load_speech_model(folder, device)
    if front_end.prefix_size != model.prefix_size:
        raise UserError(
            f"The tokenizer in {folder} has {front_end.prefix_size} ids and the model {model.prefix_size} text rows.",
            "They do not belong together; download the model again.",
        )
    model.module.requires_grad_(False).eval()
    base_hash = hash_tensors(model.module.state_dict())
    return TTSModel(f"base:{name}", family, name, folder, base_hash, model, front_end, device)


def load_extension(workspace: Workspace, name: str, device: torch.device) -> TTSModel:
    """The extended model `name` with its rows as they were initialised."""
    folder = workspace.extension(name)
    record = records.read_record(folder / records.EXTENSION, ExtensionRecord)
    model = _with_rows(_base_of(workspace, record.origin, folder, device), record.origin, folder, record.rows_hash)
    return replace(model, ref=f"extension:{name}", scope="rows")


def load_checkpoint(workspace: Workspace, folder: Path, device: torch.device, *, keep_base: bool = False) -> TTSModel:
    """The model saved in a checkpoint's folder; `keep_base` keeps the base's values of its trained tensors."""
    if (fault := records.find_damage(folder)) is not None:
        raise UserError(fault, _other_checkpoint(folder))
    record = records.read_record(folder / records.CHECKPOINT, CheckpointRecord)
    model = _with_rows(_base_of(workspace, record.origin, folder, device), record.origin, folder)
    model = _with_adapters(model, folder, record.scope, folder / records.CHECKPOINT)
    model = replace(model, ref=f"run:{record.run}@{record.step}")
    return load_changed_tensors(model, folder, keep_base=keep_base) if (folder / records.CHANGED).is_file() else model


def export_record(model: TTSModel) -> ExportRecord:
    """The record of the export that `model` was loaded from."""
    return read_export_record(model.base_folder)


def write_sums(folder: Path) -> None:
    """Write `SHA256SUMS.json` over every other file of an export."""
    sums = hash_tree(folder, leave_out=(EXPORT_SUMS,))
    (folder / EXPORT_SUMS).write_text(json.dumps(sums, indent=1) + "\n", encoding="utf-8")


def load_export(folder: Path, device: torch.device) -> TTSModel:
    """The model of an export, from the export's own files alone."""
    check_export_files(folder)
    return assemble_export(folder, device)


def assemble_export(folder: Path, device: torch.device) -> TTSModel:
    """`load_export` without the check of every file, for an export that is just being written."""
    record = read_export_record(folder)
    family = family_named(record.origin.family)
    front_end = FrontEnd.load(folder / records.FRONT_END)
    model = family.load_speech_model(folder, device)
    if model.prefix_size != front_end.size:
        raise UserError(f"{folder} has {front_end.size} ids in its front-end and {model.prefix_size} text rows.",
                        EXPORT_AGAIN_HINT)
    rows = {}
    for name in model.text_tables:  # old and new rows apart, as in training
        table = model.module.get_submodule(name)
        weight = table.weight
        assert isinstance(weight, torch.Tensor)
        rows[name] = weight.detach()[front_end.prefix_size:].clone()
        table.weight = nn.Parameter(weight.detach()[:front_end.prefix_size].clone(), requires_grad=False)
    model.prefix_size = front_end.prefix_size
    base_hash = hash_tensors(model.module.state_dict())
    wanted = record.weights_hash or record.origin.base_hash
    if base_hash != wanted or front_end.fingerprint != record.origin.fingerprint:
        raise UserError(
            f"{folder} does not hold the model that {EXPORT_RECORD} names: base {base_hash[:12]} there, "
            f"{wanted[:12]} wanted; front-end {front_end.fingerprint[:12]} there, "
            f"{record.origin.fingerprint[:12]} wanted.", EXPORT_AGAIN_HINT,
        )
    base = TTSModel(f"export:{record.name}", family, record.origin.model, folder, record.origin.base_hash, model,
                    front_end, device)
    return _with_adapters(extend_model(base, front_end, rows), folder, record.scope, folder / EXPORT_RECORD)


def extend_model(base: TTSModel, front_end: FrontEnd, rows: Mapping[str, torch.Tensor]) -> TTSModel:
    """`base` with `rows[table]` (M, width) appended to its text tables; changes `base.model` in place."""
    count = front_end.size - front_end.prefix_size
    tables = base.model.text_tables
    if set(rows) != set(tables) or any(len(value) != count for value in rows.values()):
        found = {name: len(value) for name, value in rows.items()}
        raise UserError(
            f"The new rows do not fit: {found} there, {count} wanted for each of {', '.join(tables)}.",
            "Make the extension again: python -m scripts.extend.",
        )
    extend_tables(base.model.module, {name: rows[name].float().to(base.device) for name in tables})
    base.model.module.eval()
    return replace(base, front_end=front_end)


def _base_of(workspace: Workspace, origin: Origin, folder: Path, device: torch.device) -> TTSModel:
    base = load_base(workspace, origin.model, device)
    if base.base_hash != origin.base_hash or base.front_end.prefix_size != origin.prefix_size:
        raise UserError(
            f"{folder} was made for a base model of {origin.prefix_size} text rows ({origin.base_hash[:12]}); "
            f"{base.base_folder} has {base.front_end.prefix_size} ({base.base_hash[:12]}).",
            "Put that base model back, or extend this one: python -m scripts.extend.",
        )
    return base


def _with_rows(base: TTSModel, origin: Origin, folder: Path, rows_hash: str = "") -> TTSModel:
    front_end = FrontEnd.load(folder / records.FRONT_END)
    front_end.check_extends(base.front_end)
    if front_end.fingerprint != origin.fingerprint:
        raise UserError(
            f"The front-end in {folder} is not the one that its rows were made for: "
            f"{front_end.fingerprint[:12]} there, {origin.fingerprint[:12]} wanted.",
            "Make the extension again, or take another checkpoint.",
        )
    rows = tensor_files.read(folder / records.ROWS, "Make the extension again, or take another checkpoint.")
    model = extend_model(base, front_end, rows)
    if rows_hash and (actual := hash_tensors(rows)) != rows_hash:
        raise UserError(f"{folder / records.ROWS} is not what was written: {actual[:12]} there, "
                        f"{rows_hash[:12]} wanted.",
                        "Delete the extension and make it again: Embeddings tab, or python -m scripts.extend.")
    return model


def _with_adapters(model: TTSModel, folder: Path, scope: str, record: Path) -> TTSModel:
    if scope not in get_args(Scope):
        raise UserError(f"{record} has the unknown scope {scope!r}.", "Update Lisan.")
    adapters = None
    if (folder / records.ADAPTER).is_dir():
        adapters = Adapters.load(model.model.module, folder / records.ADAPTER)
        model.model.module.to(model.device).eval()
    return replace(model, adapters=adapters, scope=scope)  # type: ignore[arg-type]


@torch.no_grad()
def load_changed_tensors(model: TTSModel, folder: Path, *, keep_base: bool) -> TTSModel:
    """Replace the base's tensors that a run in the scope `full` trained by their trained values."""
    changed = tensor_files.read(folder / records.CHANGED, "Take another checkpoint.")
    own = dict(model.model.module.named_parameters())
    if wrong := [name for name, value in changed.items() if name not in own or own[name].shape != value.shape]:
        raise UserError(f"{folder / records.CHANGED} does not fit the model: {len(wrong)} of {len(changed)} tensors, "
                        f"such as {wrong[0]}.", "Take another checkpoint.")
    kept = {name: own[name].detach().clone() for name in changed} if keep_base else {}
    for name, value in changed.items():
        own[name].data = own[name].data.float().copy_(value)  # in memory of its own: products hang on its alignment
    return replace(model, changed=tuple(changed), base_values=kept)


def _other_checkpoint(folder: Path) -> str:
    """The hint for a damaged checkpoint: the latest intact one beside it."""
    others = [other for other in sorted(folder.parent.glob("step-*"), reverse=True)
              if other != folder and records.find_damage(other) is None]
    if not others:
        return f"There is no other intact checkpoint in {folder.parent}; start a new training."
    step = records.read_record(others[0] / records.CHECKPOINT, CheckpointRecord).step
    run = folder.parent.parent.name
    return (f"The checkpoint of step {step} is intact: use run:{run}@{step}, or delete {folder} and continue the run, "
            f"which then goes on from step {step}.")
