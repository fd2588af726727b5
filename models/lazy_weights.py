"""Weights of whatever model, one tensor at a time: a safetensors file, its shards, or a `.pt` file of tensors.

A checkpoint of two gigabytes is looked through without holding it: safetensors are read by
their offsets and `.pt` files are mapped into memory. What may be in a file is decided by
`models.weights`: tensors and plain values, never code. A training's checkpoint nests its
tables (`model`, `optimizer`); their names are joined by dots.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch

from config.errors import UserError
from models import weights

SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt")
_INDEX = "*.safetensors.index.json"
_AGAIN = "Get that file again."


@dataclass(frozen=True)
class _Entry:
    """One tensor: what is known before it is read, and how to read it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    read: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class LazyWeights:
    """See `models.base.WeightsFile`."""

    path: Path
    entries: Mapping[str, _Entry] = field(repr=False)

    @classmethod
    def open(cls, path: Path) -> LazyWeights:
        """The weights at `path`, a file or a folder with one; `UserError` names what is wrong."""
        if path.is_dir():
            path = _in_folder(path)
        if path.name.endswith(".index.json"):
            return cls(path, {name: entry for shard in _shards(path) for name, entry in _safetensors(shard)})
        if path.suffix not in SUFFIXES:
            raise UserError(f"{path} is no file of weights: its name ends in {path.suffix or 'nothing'}.",
                            f"Give a file whose name ends in one of {', '.join(SUFFIXES)}, or the folder of one.")
        read = _safetensors(path) if path.suffix == ".safetensors" else _nested(weights.read_nested(path))
        entries = dict(read)
        if not entries:
            raise UserError(f"{path} holds no tensors.", "Give the file with the model's weights.")
        return cls(path, entries)

    @property
    def names(self) -> tuple[str, ...]:
        """See `models.base.WeightsFile`."""
        return tuple(self.entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """See `models.base.WeightsFile`."""
        return self.entries[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """See `models.base.WeightsFile`."""
        return self.entries[name].dtype

    def tensor(self, name: str) -> torch.Tensor:
        """See `models.base.WeightsFile`."""
        return self.entries[name].read()


def _in_folder(folder: Path) -> Path:
    """The one file of weights in a folder."""
    indexes = sorted(folder.glob(_INDEX))
    if len(indexes) == 1:
        return indexes[0]
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if len(found) != 1:
        there = ", ".join(path.name for path in found) or "none"
        raise UserError(f"{folder} should hold one file of weights; there: {there}.", "Give the file itself.")
    return found[0]


def _shards(index: Path) -> list[Path]:
    """Files that an index of shards names."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{index} is no index of shards: {error!r}.", _AGAIN) from error
    if outside := [name for name in names if Path(str(name)).name != name]:
        raise UserError(f"{index} names {outside[0]!r}, which lies outside of its folder.", "Do not use it.")
    return [index.parent / name for name in names]


def _safetensors(path: Path) -> Iterator[tuple[str, _Entry]]:
    """Each tensor of a file; the file stays open while one of them is kept."""
    file = weights.opened(path)
    for name in file.keys():  # noqa: SIM118  (not a dict)
        part = file.get_slice(name)
        kind = _TYPES.get(part.get_dtype())
        if kind is None:
            raise UserError(f"{path} holds {name} as {part.get_dtype()}, a type that is not known.",
                            "Save it again as F32, F16 or BF16.")
        yield name, _Entry(tuple(part.get_shape()), kind, lambda name=name: file.get_tensor(name))  # type: ignore[misc]


def _nested(held: object, above: str = "") -> Iterator[tuple[str, _Entry]]:
    """Each tensor of nested tables and lists; plain values are passed over."""
    if isinstance(held, torch.Tensor):
        yield above, _Entry(tuple(held.shape), held.dtype, lambda: held)
    elif isinstance(held, Mapping | list | tuple):
        pairs = held.items() if isinstance(held, Mapping) else enumerate(held)
        for key, value in pairs:
            yield from _nested(value, f"{above}.{key}" if above else str(key))


_TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}
