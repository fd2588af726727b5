"""The built-in family's files in an export: the language model at its new size, and all that speaking needs.

`t3.safetensors` has the published names and plain tables, so `models.tiny.files.load_module`
reads it strictly. A tensor keeps the base file's type where that holds it exactly, else it
is float32: rounding the new rows would change their logits.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save

from models.base import ExportFile
from models.speech_lm import SpeechLMConfig

MERGED = "t3-merged.safetensors"
_COPIED = {
    "codec.safetensors": "speech codes to sound and back",
    "recogniser.safetensors": "the recogniser that measured the errors",
    "voices": "reference recordings of the base model's voices",
    "held_out": "original recordings of base-language sentences",
    "held_out.jsonl": "the texts of these recordings",
    "README.md": "the base model's own card",
}


def write(base: Path, folder: Path, language_model: str, config: SpeechLMConfig, tensors: Mapping[str, torch.Tensor],
          merged: Mapping[str, torch.Tensor] | None) -> tuple[ExportFile, ...]:
    """Write the export's model files into `folder`; what they are."""
    types = _types(base / language_model)
    _save(folder / language_model, config, tensors, types)
    files = [ExportFile(language_model, "the language model: base rows, then new rows; without adapters")]
    if merged is not None:
        _save(folder / MERGED, config, merged, types)
        files.append(ExportFile(MERGED, "the same with the adapters folded in; it CHANGES the base languages"))
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


def _types(path: Path) -> dict[str, torch.dtype]:
    with safe_open(str(path), framework="pt") as file:
        return {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118


def _save(path: Path, config: SpeechLMConfig, tensors: Mapping[str, torch.Tensor],
          types: Mapping[str, torch.dtype]) -> None:
    rows = len(tensors["text_emb.weight"])
    header = {"config": json.dumps(asdict(replace(config, text_rows=rows)))}
    path.write_bytes(save({name: _exact(value, types[name]) for name, value in tensors.items()}, metadata=header))


def _exact(value: torch.Tensor, wanted: torch.dtype) -> torch.Tensor:
    value = value.detach().cpu().contiguous()
    narrow = value.to(wanted)
    return narrow if torch.equal(narrow.to(value.dtype), value) else value
