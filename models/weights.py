"""Reading and writing of weight files: safetensors, and PyTorch files (`.pt`, `.pth`, `.bin`) of tensors alone.

`read` and `load_into` load a published checkpoint strictly; `LazyWeights` reads any checkpoint tensor by tensor,
without holding its gigabytes: safetensors by offsets, PyTorch files mapped into memory. A PyTorch file is a pickle, in
a zip archive or, before torch 1.6, alone: `models.restricted_pickle` reads it, which builds tensors, plain containers
and numbers of numpy and refuses everything else, so that an untrusted file cannot run code. No other module calls
`torch.load`, and none but this one `torch.save`.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import nn

from config import foreign
from config.errors import ErrorKind, UserError
from config.foreign import cached_by_file
from config.schema import WEIGHT_SUFFIXES
from data.durable_files import hash_file, is_pytorch_file
from models import restricted_pickle
from models.restricted_pickle import ForeignGlobal

_INDEX = "*.safetensors.index.json"
_AGAIN = "Delete it and download the model again."
_GET_FILE_AGAIN = "Get that file again."
_NAMED = 4  # tensors named in an error
_STATE_FILES = ("optimizer", "scheduler", "scaler", "rng_state", "random_states", "training_args", "training_state")
"""Beginnings of the names of files that trainers write beside the weights."""
_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}


def shapes(path: Path, under: Sequence[str] = ()) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a file, by key; reads only the header if the format has one. `under`: see `read`."""
    if path.suffix == ".safetensors":
        with open_safetensors(path) as file:
            return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}  # noqa: SIM118
    return {key: tuple(value.shape) for key, value in read(path, under).items()}


@cached_by_file(32)  # they are gigabytes, and asked for several times a job
def file_hash(path: Path) -> bytes:
    """SHA-256 of the content of a file of weights."""
    return bytes.fromhex(hash_file(path))


def read(path: Path, under: Sequence[str] = ()) -> dict[str, torch.Tensor]:
    """The tensors of a state dict by key; `UserError` if the file is missing, damaged or holds something else.

    A PyTorch file may also hold the state dict under one of the keys `under`, as training checkpoints do.
    """
    if path.suffix == ".safetensors":
        with open_safetensors(path) as file:
            return {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    held = read_nested(path)
    # Checkpoints of trainings hold the state dict beside other state.
    held = next((held[key] for key in under if isinstance(held.get(key), dict)), held)
    wrong = [key for key, value in held.items() if not isinstance(value, torch.Tensor)]
    if wrong:
        raise UserError(f"{path} is no table of tensors: {', '.join(map(str, wrong[:_NAMED]))} hold something else.",
                        "Give the published file.")
    return held


def read_nested(path: Path) -> dict[str, Any]:
    """The content of a PyTorch file: tensors and plain values in nested dictionaries."""
    held = _load(path)
    if not isinstance(held, dict):
        raise UserError(f"{path} holds a {type(held).__name__}, and a table of tensors is wanted.",
                        "Give the published file.")
    return held


def read_tensor(path: Path) -> torch.Tensor:
    """The one tensor of a PyTorch file that holds nothing else."""
    held = _load(path)
    if not isinstance(held, torch.Tensor):
        raise UserError(f"{path} holds a {type(held).__name__}, and one tensor is wanted.", "Give the published file.")
    return held


def _load(path: Path) -> object:
    if not path.is_file():
        raise UserError(f"{path} is missing.", "Download the model again.")
    if not is_pytorch_file(path):
        raise UserError(
            f"{path} ({path.stat().st_size} bytes) is not a whole PyTorch file.", "It was probably cut off. " + _AGAIN,
            ErrorKind.TRUNCATED_FILE,
        )
    # Only tensors and plain values are unpickled, which cannot run code.
    try:
        return restricted_pickle.load(path)
    except ForeignGlobal as error:
        raise UserError(
            f"{path} holds Python objects beside tensors ({error.name}), which could run code when loaded; it was "
            "refused.",
            "Where it was made, save the weights alone: torch.save(model.state_dict(), \"weights.pt\"), or as "
            ".safetensors; then give that file.",
        ) from error
    except pickle.UnpicklingError as error:
        raise UserError(f"{path} was refused: {str(error)[:200]}.",
                        "Only tensors, plain containers and numbers of numpy are read. Give weights as .safetensors, "
                        "or a .pt file of a state dict.") from error
    except (RuntimeError, OSError, EOFError, LookupError, ValueError, TypeError, AttributeError, AssertionError,
            MemoryError) as error:
        raise UserError(f"{path} is damaged: {str(error)[:200] or type(error).__name__}.", _AGAIN) from error


def load_into(module: nn.Module, tensors: Mapping[str, torch.Tensor], source: str,
              computed: Sequence[str] = ()) -> None:
    """Load tensors into `module` strictly: a missing, extra, misshapen or non-finite tensor raises `UserError`.

    The module may be on the meta device. The module computes the keys in `computed` itself, so they may be missing.
    Floating types become float32. Tensors are copied out of the mapped file: the alignment of a matrix in memory
    decides how a library reads it, and so the last bits of its products.
    """
    expected = {key: value for key, value in module.state_dict().items() if key not in computed}
    loaded = {key: _own(value) for key, value in tensors.items() if key not in computed}

    # Names first, then shapes, then values.
    absent, extra = sorted(expected.keys() - loaded.keys()), sorted(loaded.keys() - expected.keys())
    if absent or extra:
        raise UserError(f"{source} does not fit the model: {_several('lacks', absent)}{_several('has beside', extra)}"
                        f"{len(expected)} tensors are wanted.", "It belongs to another model or version.")

    misshapen = [f"{key} is {tuple(loaded[key].shape)}, wanted {tuple(value.shape)}"
                 for key, value in expected.items() if loaded[key].shape != value.shape]
    if misshapen:
        raise UserError(f"{source} does not fit the model: {'; '.join(misshapen[:_NAMED])}.",
                        "It belongs to another model or version.")

    # A training that broke leaves values that are not finite.
    broken = [key for key, value in loaded.items() if value.is_floating_point() and not _finite(value)]
    if broken:
        raise UserError(f"{source} holds values that are no numbers, in {', '.join(broken[:_NAMED])}.",
                        "The file is damaged, or a training that broke wrote it. " + _AGAIN)

    module.load_state_dict(loaded, strict=False, assign=True)


def fold_weight_norm(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each pair `x_g`, `x_v` of the old weight norm as `x` = g v / |v|, the norm over all axes but the first.

    Of a transposed convolution the first axis is its input (torch.nn.utils.weight_norm, dim=0).
    """
    folded: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        start, _, kind = name.rpartition("_")
        if kind not in ("g", "v") or not {f"{start}_g", f"{start}_v"} <= tensors.keys():
            # Half of a pair is passed on as well: a strict load then names it.
            folded[name] = value
        elif kind == "v":
            direction, magnitude = value.float(), tensors[f"{start}_g"].float()
            norm = torch.linalg.vector_norm(direction, dim=tuple(range(1, direction.ndim)), keepdim=True)
            folded[start] = direction * (magnitude / norm)
    return folded


def write(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors by name without holding them twice; `SafetensorError` when the disk is full."""
    save_file({key: value.detach().cpu().contiguous() for key, value in tensors.items()}, str(path), {"format": "pt"})
    path.chmod(0o666 & ~_umask())


def write_pytorch(path: Path, tensors: Mapping[str, object]) -> None:
    """Write a PyTorch file of (nested) tables of tensors, in the zip format; `OSError` when the disk is full.

    The same tensors give the same bytes. A tensor that is a part of a larger one is written alone.
    """
    # Given a path, torch would write its name into the file.
    with open(path, "wb") as file:
        try:
            torch.save(_compact(tensors), file)
        except RuntimeError as error:
            raise OSError(f"{path} could not be written: {error}") from error


def _compact(held: object) -> object:
    """`held` with tensors on the CPU that own exactly their memory, which is what torch writes."""
    if isinstance(held, Mapping):
        return {key: _compact(value) for key, value in held.items()}
    if not isinstance(held, torch.Tensor):
        return held
    value = held.detach().cpu().contiguous()
    return value if value.untyped_storage().nbytes() == value.nbytes else value.clone()


def _umask() -> int:
    """The process's umask: safetensors creates private files otherwise."""
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _finite(value: torch.Tensor) -> bool:
    """Whether all values are finite, in one pass without allocation: aminmax keeps infinity and NaN."""
    if not value.numel():
        return True
    low, high = torch.aminmax(value.reshape(-1))
    return bool(torch.isfinite(low) & torch.isfinite(high))


def _own(value: torch.Tensor) -> torch.Tensor:
    kind = torch.float32 if value.is_floating_point() else value.dtype
    return torch.empty(value.shape, dtype=kind, device=value.device).copy_(value)


def _several(verb: str, keys: Sequence[str]) -> str:
    if not keys:
        return ""
    others_note = f" and {len(keys) - _NAMED} more" if len(keys) > _NAMED else ""
    return f"it {verb} {', '.join(keys[:_NAMED])}{others_note}; "


def open_safetensors(path: Path) -> Any:
    """An open safetensors file; `UserError` if it is missing or truncated."""
    if not path.is_file():
        raise UserError(f"{path} is missing.", "Download the model again.")
    try:
        return safe_open(str(path), framework="pt")
    except (SafetensorError, OSError) as error:
        raise UserError(f"{path} is not a whole safetensors file ({path.stat().st_size} bytes): {error}.",
                        "It was probably cut off. " + _AGAIN, ErrorKind.TRUNCATED_FILE) from error


@dataclass(frozen=True)
class _LazyTensor:
    """A tensor that is not read yet."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class LazyWeights:
    """A checkpoint on disk that is read tensor by tensor: a safetensors file, an index of shards, or a PyTorch file.

    Keys of nested tables (`model`, `optimizer` of a training checkpoint) are joined by dots.
    """

    path: Path
    entries: Mapping[str, _LazyTensor] = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> LazyWeights:
        """The weights at `path`, a file or a folder with one; `UserError` if they cannot be read."""
        if path.is_dir():
            path = _find_in_folder(path)
        if path.name.endswith(".index.json"):
            return cls(path, dict(chain.from_iterable(_safetensors(shard) for shard in _shards(path))))
        if path.suffix not in WEIGHT_SUFFIXES:
            raise UserError(f"{path} is no file of weights: its name ends in {path.suffix or 'nothing'}.",
                            f"Give a file whose name ends in one of {', '.join(WEIGHT_SUFFIXES)}, or the folder of "
                            "one.")
        read = _safetensors(path) if path.suffix == ".safetensors" else _nested(read_nested(path))
        entries = dict(read)
        if not entries:
            raise UserError(f"{path} holds no tensors.", "Give the file with the model's weights.")
        return cls(path, entries)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        return self.entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        return self.entries[name].dtype

    def tensor(self, name: str) -> torch.Tensor:
        return self.entries[name].read()


def _find_in_folder(folder: Path) -> Path:
    """The one file of weights in a folder."""
    indexes = sorted(folder.glob(_INDEX))
    if len(indexes) == 1:
        return indexes[0]
    files = sorted(path for path in folder.iterdir() if path.suffix in WEIGHT_SUFFIXES
                   and not path.name.startswith(_STATE_FILES))
    if len(files) != 1:
        listing = ", ".join(path.name for path in files) or "none"
        raise UserError(f"{folder} should hold one file of weights; there: {listing}.", "Give the file itself.")
    return files[0]


def _shards(index: Path) -> list[Path]:
    """Files that an index of shards names."""
    try:
        names = sorted(set(foreign.read_json(index)["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is no index of shards: {error!r}.", _GET_FILE_AGAIN) from error
    outside = [name for name in names if name in ("", "..") or Path(str(name)).name != name]
    if outside:
        raise UserError(f"{index} names {outside[0]!r}, which lies outside of its folder.", "Do not use it.")
    return [index.parent / name for name in names]


def _safetensors(path: Path) -> Iterator[tuple[str, _LazyTensor]]:
    """Each tensor of a file; the file stays open while one of them is referenced."""
    file = open_safetensors(path)
    for name in file.keys():  # noqa: SIM118  (not a dict)
        part = file.get_slice(name)
        kind = _TYPES.get(part.get_dtype())
        if kind is None:
            raise UserError(f"{path} holds {name} as {part.get_dtype()}, a type that is not known.",
                            "Save it again as F32, F16 or BF16.")
        yield name, _LazyTensor(tuple(part.get_shape()), kind, lambda name=name: file.get_tensor(name))  # type: ignore[misc]


def _nested(held: object, above: str = "") -> Iterator[tuple[str, _LazyTensor]]:
    """Each tensor of nested tables and lists; other values are skipped."""
    if isinstance(held, torch.Tensor):
        yield above, _LazyTensor(tuple(held.shape), held.dtype, lambda: held)
    elif isinstance(held, Mapping | list | tuple):
        pairs = held.items() if isinstance(held, Mapping) else enumerate(held)
        for key, value in pairs:
            yield from _nested(value, f"{above}.{key}" if above else str(key))
