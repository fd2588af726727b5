"""Published weights, strictly: safetensors, and `.pt` files read as tensors alone.

A `.pt` file is a pickle. It is read with torch's restricted unpickler, which builds tensors
and plain containers and refuses everything else, so that a file from a stranger cannot run
code. This is the only module that calls `torch.load`.
"""

from __future__ import annotations

import os
import pickle
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from config.errors import UserError

_AGAIN = "Delete it and download the model again."
_NAMED = 4  # tensors named in an error


def shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a file, by key; from the header alone where the format allows it."""
    if path.suffix == ".safetensors":
        with opened(path) as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    return {key: tuple(value.shape) for key, value in read(path).items()}


def read(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a state dict by key; `UserError` when the file is missing, damaged or holds something else."""
    if path.suffix == ".safetensors":
        with opened(path) as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    held = read_nested(path)
    wrong = [key for key, value in held.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        raise UserError(f"{path} is no table of tensors: {', '.join(map(str, wrong[:_NAMED]))} hold something else.",
                        "Give the published file.")
    return held


def read_nested(path: Path) -> dict[str, Any]:
    """The content of a `.pt` file: tensors and plain values in nested dictionaries."""
    if not path.is_file():
        raise UserError(f"{path} is missing.", "Download the model again.")
    if not zipfile.is_zipfile(path):
        raise UserError(
            f"{path} ({path.stat().st_size} bytes) is not a whole PyTorch file.", "It was probably cut off. " + _AGAIN,
        )
    try:
        held = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UserError(
            f"{path} holds Python objects beside tensors, which could run code when loaded; it was refused.",
            "Give weights as .safetensors, or a .pt file of tensors alone.",
        ) from error
    except (RuntimeError, OSError, EOFError, KeyError, ValueError) as error:
        raise UserError(f"{path} is damaged: {error}.", _AGAIN) from error
    if not isinstance(held, dict):
        raise UserError(f"{path} holds a {type(held).__name__}, and a table of tensors is wanted.",
                        "Give the published file.")
    return held


def load_into(module: nn.Module, tensors: Mapping[str, torch.Tensor], source: str,
              computed: Sequence[str] = ()) -> None:
    """Give `module` the tensors of a file, strictly: a missing, extra, misshapen or non-finite one raises `UserError`.

    The module may stand on the meta device. Keys in `computed` are not needed: the module makes
    them itself. Floating types become float32. Tensors are copied out of the file: where a matrix
    lies in memory decides how a library reads it, and so the last bits of its products.
    """
    own = module.state_dict()
    found = {key: _own(value) for key, value in tensors.items() if key not in computed}
    wanted = {key: value for key, value in own.items() if key not in computed}
    missing, extra = sorted(wanted.keys() - found.keys()), sorted(found.keys() - wanted.keys())
    if missing or extra:
        raise UserError(f"{source} does not fit the model: {_several('lacks', missing)}{_several('has beside', extra)}"
                        f"{len(wanted)} tensors are wanted.", "It belongs to another model or version.")
    misshapen = [f"{key} is {tuple(found[key].shape)}, wanted {tuple(value.shape)}"
                 for key, value in wanted.items() if found[key].shape != value.shape]
    if misshapen:
        raise UserError(f"{source} does not fit the model: {'; '.join(misshapen[:_NAMED])}.",
                        "It belongs to another model or version.")
    broken = [key for key, value in found.items() if value.is_floating_point() and not _finite(value)]
    if broken:
        raise UserError(f"{source} holds values that are no numbers, in {', '.join(broken[:_NAMED])}.",
                        "The file is damaged, or a training that broke wrote it. " + _AGAIN)
    module.load_state_dict(found, strict=False, assign=True)


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by name without holding them twice; `SafetensorError` when the disk is full."""
    save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, str(path), {"format": "pt"})
    path.chmod(0o666 & ~_umask())


def _umask() -> int:
    """What new files of this process may not permit; the library makes them private."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _finite(value: torch.Tensor) -> bool:
    """Whether all are numbers, in one pass that allocates nothing: an infinity or NaN survives into the extremes."""
    if not value.numel():
        return True
    low, high = torch.aminmax(value.reshape(-1))
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _own(value: torch.Tensor) -> torch.Tensor:
    return value.to(torch.float32 if value.is_floating_point() else value.dtype, copy=True)


def _several(what: str, keys: Sequence[str]) -> str:
    if not keys:
        return ""
    more = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"it {what} {', '.join(keys[:_NAMED])}{more}; "


def opened(path: Path) -> Any:
    """A safetensors file to read from; `UserError` when it is missing or cut off."""
    if not path.is_file():
        raise UserError(f"{path} is missing.", "Download the model again.")
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({path.stat().st_size} bytes): {error}.",
                        "It was probably cut off. " + _AGAIN) from error
