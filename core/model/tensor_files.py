"""Safetensors files in and out, with errors that name the file.

Bytes are written by Python and not by the safetensors library: a full disk is then an
`OSError` like any other, and the file has the permissions of every other file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from config.errors import UserError


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` by name. A failing disk raises `OSError`."""
    path.write_bytes(serialize(tensors))


def serialize(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """The content of a file of `tensors`."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    return save(plain, metadata={"format": "pt"})


def read(path: Path, hint: str) -> dict[str, torch.Tensor]:
    """The tensors in `path`; `UserError` with `hint` when it is missing or damaged."""
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        size = f" ({path.stat().st_size} bytes)" if path.is_file() else ""
        raise UserError(f"{path}{size} could not be read: {error}.", hint) from error


def shapes(path: Path, hint: str) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in `path`, from its header alone; errors as `read`."""
    try:
        with safe_open(path, framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} could not be read: {error}.", hint) from error


def names(path: Path) -> list[str]:
    """The names of the tensors in `path`, a whole file, without reading these."""
    with safe_open(path, framework="pt") as file:
        return list(file.keys())
