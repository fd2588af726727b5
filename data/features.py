"""Cached features: one safetensors file a recording, in a folder named for the extractor, and one file a dataset.

The key of a recording is the hash of its audio's bytes, so a changed file has no stale
features. Files are written aside and renamed: what is there is whole. The file of a dataset
(its pack) holds copies of its recordings' features, because tens of thousands of small files
take long to open; what it lacks is read from the recordings' own files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from config.errors import UserError

Arrays = Mapping[str, np.ndarray]
_KEYS, _ENDS = "keys", ".ends"


@dataclass(frozen=True)
class Pack:
    """Features of many recordings in memory: each array is one run of values, cut at `ends`."""

    index: Mapping[str, int]  # where a key stands
    values: Arrays  # (total,) by name
    ends: Arrays  # (recordings + 1,) int64 by name

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self.index

    def arrays(self, sha256: str) -> dict[str, np.ndarray]:
        """The arrays of a recording; they are views, so that nothing is held twice."""
        at = self.index[sha256]
        return {name: run[self.ends[name][at]:self.ends[name][at + 1]] for name, run in self.values.items()}


@dataclass(frozen=True)
class FeatureCache:
    """One-dimensional arrays by name for each recording; `fingerprint` is the extractor's."""

    root: Path
    fingerprint: str

    def path(self, sha256: str) -> Path:
        return self.root / self.fingerprint / f"{sha256}.safetensors"

    def pack_path(self, dataset: str) -> Path:
        """Where the pack of the dataset with this fingerprint stands."""
        return self.root / self.fingerprint / "packs" / f"{dataset}.safetensors"

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def load(self, sha256: str) -> dict[str, np.ndarray]:
        """The arrays of a recording; raises `UserError` when they are missing or damaged."""
        path = self.path(sha256)
        if not path.is_file():
            raise UserError(f"The recording {sha256[:12]} has no features.", "Prepare the dataset again.")
        return _read(path)

    def save(self, sha256: str, arrays: Arrays) -> None:
        """Keep the arrays of a recording."""
        _write(self.path(sha256), arrays)

    def load_pack(self, dataset: str) -> Pack:
        """The pack of a dataset; an empty one when it was never written."""
        path = self.pack_path(dataset)
        if not path.is_file():
            return Pack({}, {}, {})
        stored = _read(path)
        keys = stored.pop(_KEYS).tobytes().decode().split()
        ends = {name.removesuffix(_ENDS): stored.pop(name) for name in list(stored) if name.endswith(_ENDS)}
        return Pack({key: at for at, key in enumerate(keys)}, stored, ends)

    def save_pack(self, dataset: str, recordings: Iterable[str]) -> None:
        """Write the pack of a dataset from the files of those of its `recordings` that have one."""
        keys = [sha256 for sha256 in dict.fromkeys(recordings) if self.has(sha256)]
        found = [self.load(sha256) for sha256 in keys]
        arrays: dict[str, np.ndarray] = {_KEYS: np.frombuffer("\n".join(keys).encode(), np.uint8)}
        for name in found[0] if found else ():
            parts = [each[name] for each in found]
            arrays[name] = np.concatenate(parts)
            arrays[name + _ENDS] = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        _write(self.pack_path(dataset), arrays)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"{path} is damaged ({path.stat().st_size} bytes): {error}.", "Delete it and prepare the dataset again."
        ) from error


def _write(path: Path, arrays: Arrays) -> None:
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        aside.unlink(missing_ok=True)
        raise UserError(
            f"Features could not be written to {path.parent}: {error}.",
            "Free space on the disk, then prepare again: what is cached is kept.",
        ) from error
