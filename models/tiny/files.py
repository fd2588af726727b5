"""Modules on disk: safetensors with the config in the header; half precision where it costs nothing."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import nn

from config.errors import UserError

Config = TypeVar("Config")
Module = TypeVar("Module", bound=nn.Module)


def save_module(path: Path, module: nn.Module, config: Any, dtype: torch.dtype = torch.float16) -> None:
    """Write every tensor of `module` as `dtype`, and its config dataclass as JSON in the header."""
    tensors = {key: value.detach().to(dtype).contiguous() for key, value in module.state_dict().items()}
    path.write_bytes(save(tensors, metadata={"config": json.dumps(asdict(config))}))


def load_config(path: Path, kind: type[Config]) -> Config:
    """The config dataclass in the header of a file written by `save_module`."""
    with _open(path) as file:
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
    with _open(path) as file:
        tensors = {key: file.get_tensor(key).float() for key in file.keys()}  # noqa: SIM118  (not a dict)
    expected = module.state_dict()
    missing, extra = sorted(expected.keys() - tensors.keys()), sorted(tensors.keys() - expected.keys())
    shapes = [f"{k}: {tuple(tensors[k].shape)} in the file, {tuple(v.shape)} wanted"
              for k, v in expected.items() if k in tensors and tensors[k].shape != v.shape]
    if missing or extra or shapes:
        raise UserError(
            f"{path} does not fit the model: missing {missing[:3]}, extra {extra[:3]}, shapes {shapes[:3]}.",
            "The file belongs to another model or version; download the model again.",
        )
    module.load_state_dict(tensors)
    return module.eval()


def _open(path: Path):
    if not path.is_file():
        raise UserError(f"{path} is missing.", "Download the model again.")
    try:
        return safe_open(str(path), framework="pt")
    except SafetensorError as error:
        raise UserError(
            f"{path} is not a whole safetensors file ({path.stat().st_size} bytes): {error}.",
            "It was probably cut off; delete it and download the model again.",
        ) from error
