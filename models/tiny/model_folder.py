"""The built-in family's model folder: modules as safetensors files with their config in the header, and exports.

An export has the published names and plain tables, so that `load_module` reads it strictly. A tensor keeps the type
of the base file if that represents it exactly, else it is float32: rounding the new rows would change their logits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save
from torch import nn

from config.errors import UserError
from models import weights
from models.base import ExportFile
from models.speech_network import T3Config

MERGED = "t3-merged.safetensors"
_COPIED = {
    "codec.safetensors": "speech codec",
    "vocoder.safetensors": "vocoder",
    "recogniser.safetensors": "the recogniser that measured the errors",
    "voices": "reference recordings of the base model's voices",
    "held_out": "original recordings of base-language sentences",
    "held_out.jsonl": "the texts of these recordings",
    "README.md": "the base model's own card",
}
Config = TypeVar("Config")
Module = TypeVar("Module", bound=nn.Module)


def save_module(path: Path, module: nn.Module, config: Any, dtype: torch.dtype = torch.float16) -> None:
    """Write every tensor of `module` as `dtype`, and its config dataclass as JSON in the header."""
    tensors = {key: value.detach().to(dtype).contiguous() for key, value in module.state_dict().items()}
    path.write_bytes(save(tensors, metadata={"config": json.dumps(asdict(config))}))


def load_config(path: Path, kind: type[Config]) -> Config:
    """The config dataclass in the header of a file written by `save_module`."""
    with weights.open_safetensors(path) as file:
        header = json.loads((file.metadata() or {}).get("config", "null"))
    if header is None:
        raise UserError(f"{path} has no config in its header.", "Download the model again.")
    names = {f.name for f in fields(kind)}  # type: ignore[arg-type]
    if set(header) - names:
        raise UserError(
            f"{path} has unknown settings {sorted(set(header) - names)}.", "Update Lisan, or download the model again."
        )
    return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in header.items()})


def load_module(path: Path, module: Module) -> Module:
    """Fill `module` strictly from a file; a missing, extra or misshapen tensor raises `UserError`."""
    weights.load_into(module, weights.read(path), str(path))
    return module.eval()


def write_export(base: Path, folder: Path, language_model: str, config: T3Config,
                 tensors: Mapping[str, torch.Tensor],
                 merged: Mapping[str, torch.Tensor] | None) -> tuple[ExportFile, ...]:
    """Write the export's model files into `folder`; returns their names and purposes."""
    types = {name: value.dtype for name, value in weights.read(base / language_model).items()}
    _save(folder / language_model, config, tensors, types)
    files = [ExportFile(language_model, "the language model: base rows, then new rows; without adapters")]
    if merged is not None:
        _save(folder / MERGED, config, merged, types)
        files.append(ExportFile(MERGED, "the same with the adapters merged; it CHANGES the base languages"))
    for name, purpose in _COPIED.items():
        target = "base-README.md" if name == "README.md" else name
        if (base / name).is_dir():
            shutil.copytree(base / name, folder / target)
        elif (base / name).is_file():
            shutil.copy2(base / name, folder / target)
        else:
            continue
        files.append(ExportFile(target, purpose))
    return tuple(files)


def _save(path: Path, config: T3Config, tensors: Mapping[str, torch.Tensor],
          types: Mapping[str, torch.dtype]) -> None:
    rows = len(tensors["text_emb.weight"])
    header = {"config": json.dumps(asdict(replace(config, text_rows=rows)))}
    path.write_bytes(save({name: _exact(value, types[name]) for name, value in tensors.items()}, metadata=header))


def _exact(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    value = value.detach().cpu().contiguous()
    narrow = value.to(dtype)
    return narrow if torch.equal(narrow.to(value.dtype), value) else value
