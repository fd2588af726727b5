"""Safetensors files in and out, with errors that name the file.

Bytes are written by Python and not by the safetensors library: a full disk is then an
`OSError` like any other, and the file has the permissions of every other file.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save

from config.errors import UserError

_TYPES = {torch.bool: "BOOL", torch.uint8: "U8", torch.int8: "I8", torch.int16: "I16", torch.float16: "F16",
          torch.bfloat16: "BF16", torch.int32: "I32", torch.float32: "F32", torch.float64: "F64", torch.int64: "I64"}
_ORDER = list(_TYPES)
"""The order of tensors in a file, from last to first, so that each begins at a multiple of its item size."""


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write `tensors` by name, one after the other, the bytes of `serialize`. A failing disk raises `OSError`."""
    # Large types come first, so that each tensor begins at a multiple of its item size.
    names = sorted(tensors, key=lambda name: (-_ORDER.index(tensors[name].dtype), name))
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    start = 0
    for name in names:
        value = tensors[name]
        end = start + value.nbytes
        header[name] = {"dtype": _TYPES[value.dtype], "shape": list(value.shape), "data_offsets": [start, end]}
        start = end

    # The header of a safetensors file is padded to eight bytes.
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    path.unlink(missing_ok=True)  # not emptied: the tensors may lie in it, as `read` maps files
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            value = tensors[name].detach().cpu().contiguous()
            file.write(value.reshape(-1).view(torch.uint8).numpy().data)


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
