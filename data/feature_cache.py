"""Cached features: one safetensors file a recording, in a folder named for the extractor, and one pack a dataset.

The key of a recording is the hash of its audio's bytes, so a changed file has no stale features. Files are replaced
atomically. The pack of a dataset holds copies of the features of its recordings, because tens of thousands of small
files take long to open; recordings that it lacks are read from their own files.
"""

from __future__ import annotations

import json
import math
import mmap
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save

from config.errors import UserError
from data.disk_collections import DiskDict, unnamed_file
from data.durable_files import atomic_path

Arrays = Mapping[str, np.ndarray]
_KEYS, _ENDS = "keys", ".ends"
_LETTERS = {"u": "U", "i": "I", "f": "F"}  # safetensors letter by numpy kind
_KEYS_PER_READ = 4096
_MAP_NORESERVE = 0x4000  # Linux: a writable pack may be larger than the memory.


@dataclass(frozen=True)
class FeaturePack:
    """Features of many recordings: each array is one concatenation over its first axis, split at `ends`.

    The values are mapped from the file, so that memory does not grow with the hours of speech.
    """

    index: Mapping[str, int]  # position of a key
    values: Arrays  # (total, ...) by name
    ends: Arrays  # (recordings + 1,) int64 by name

    def __contains__(self, sha256: str) -> bool:
        return sha256 in self.index

    def arrays(self, sha256: str) -> dict[str, np.ndarray]:
        """The arrays of a recording, as views."""
        index = self.index[sha256]
        return {name: run[self.ends[name][index]:self.ends[name][index + 1]] for name, run in self.values.items()}


@dataclass(frozen=True)
class FeatureCache:
    """Arrays by name for each recording; `fingerprint` is the extractor's.

    Arrays of one name have the same type and, but for the first axis, the same shape.
    """

    root: Path
    fingerprint: str

    def path(self, sha256: str) -> Path:
        return self.root / self.fingerprint / f"{sha256}.safetensors"

    def pack_path(self, dataset: str) -> Path:
        """Path of the pack of the dataset with this fingerprint."""
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
        """Store the arrays of a recording."""
        _write(self.path(sha256), arrays)

    def load_pack(self, dataset: str) -> FeaturePack:
        """The pack of a dataset; an empty one if it was never written."""
        path = self.pack_path(dataset)
        if not path.is_file():
            return FeaturePack({}, {}, {})
        stored = _map(path)
        keys = stored.pop(_KEYS).tobytes().decode().split()
        ends = {name.removesuffix(_ENDS): stored.pop(name) for name in list(stored) if name.endswith(_ENDS)}
        return FeaturePack({key: index for index, key in enumerate(keys)}, stored, ends)

    def save_pack(self, dataset: str, recordings: Iterable[str]) -> None:
        """Write the pack of a dataset from the files of its `recordings`; those without one are skipped."""
        with DiskDict() as seen:
            self.write_pack(dataset, ((sha256, self.load(sha256)) for sha256 in recordings
                                      if self.has(sha256) and seen.put(sha256, "") is None))

    def write_pack(self, dataset: str, features: Iterable[tuple[str, Arrays]]) -> None:
        """Write the pack of a dataset from the arrays of its recordings, each once.

        One recording is in memory at a time: arrays grow in temporary files, since the header needs their lengths.
        """
        with ExitStack() as opened:
            runs: dict[str, _PackedArray] = {_KEYS: _PackedArray.empty(_KEYS, np.dtype(np.uint8), opened)}
            for sha256, arrays in features:
                # The first clip tells names and types of the arrays.
                if len(runs) == 1:
                    for name, array in arrays.items():
                        runs[name] = _PackedArray.empty(name, array.dtype, opened, shape=array.shape[1:])
                        runs[name + _ENDS] = _PackedArray.empty(name + _ENDS, np.dtype(np.int64), opened,
                                                                np.zeros(1, np.int64))
                for name in runs.keys() & arrays.keys():
                    runs[name].add(arrays[name])
                    runs[name + _ENDS].add(np.array([runs[name].count], np.int64))
                runs[_KEYS].add(np.frombuffer(("\n" * bool(runs[_KEYS].count) + sha256).encode(), np.uint8))
            _replace(self.pack_path(dataset), lambda path: _write_runs(path, list(runs.values())))

    def lengths(self, dataset: str, name: str) -> Iterator[tuple[str, int]]:
        """The length of each recording's array `name`, from the pack's ends alone."""
        path = self.pack_path(dataset)
        if not path.is_file():
            return
        try:
            with safe_open(str(path), framework="np") as pack:
                if name + _ENDS not in pack.keys():  # noqa: SIM118  no dictionary
                    return
                keys, ends = pack.get_slice(_KEYS), pack.get_slice(name + _ENDS)
                count = ends.get_shape()[0] - 1
                size = keys.get_shape()[0]
                # Keys are hashes, so all have one length.
                wide = (size + 1) // max(1, count)
                # Keys are read in blocks, so that memory stays small.
                for start in range(0, count, _KEYS_PER_READ):
                    stop = min(count, start + _KEYS_PER_READ)
                    names = keys[start * wide:min(size, stop * wide)].tobytes().decode().split()
                    yield from zip(names, np.diff(ends[start:stop + 1]).tolist(), strict=True)
        except (SafetensorError, OSError) as error:
            raise _damaged(path, error) from error


@dataclass
class _PackedArray:
    """One array of all recordings, concatenated in a temporary file."""

    name: str
    dtype: np.dtype
    file: IO[bytes]
    shape: tuple[int, ...] = ()  # but for the first axis
    count: int = 0

    @classmethod
    def empty(cls, name: str, dtype: np.dtype, opened: ExitStack, first_values: np.ndarray | None = None,
              shape: tuple[int, ...] = ()) -> _PackedArray:
        packed = cls(name, dtype, opened.enter_context(unnamed_file()), shape)
        if first_values is not None:
            packed.add(first_values)
        return packed

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize * math.prod(self.shape)

    def add(self, values: np.ndarray) -> None:
        assert values.shape[1:] == self.shape, (self.name, values.shape, self.shape)
        self.file.write(np.ascontiguousarray(values, self.dtype).tobytes())
        self.count += len(values)


def _write_runs(path: Path, runs: Sequence[_PackedArray]) -> None:
    """Write a safetensors file (header length, header, values) from arrays on disk, the widest type first."""
    header: dict[str, object] = {}
    end = 0
    # Large types come first, so that arrays are aligned.
    ordered = sorted(runs, key=lambda run: (-run.dtype.itemsize, run.name))
    for run in ordered:
        begin, end = end, end + run.count * run.row_bytes
        kind = f"{_LETTERS[run.dtype.kind]}{8 * run.dtype.itemsize}"
        header[run.name] = {"dtype": kind, "shape": [run.count, *run.shape], "data_offsets": [begin, end]}
    content = json.dumps(header).encode()
    content += b" " * (-len(content) % 8)
    with open(path, "wb") as file:
        file.write(len(content).to_bytes(8, "little") + content)
        for run in ordered:
            run.file.seek(0)
            shutil.copyfileobj(run.file, file)


def _read(path: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(str(path))
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error


def _map(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file of ours, mapped into memory: what is written to them stays in this process."""
    try:
        with safe_open(str(path), framework="np"):  # checks header and size
            pass
        with open(path, "rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(header_size))
            content = mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE | _MAP_NORESERVE, mmap.PROT_READ | mmap.PROT_WRITE)
    except (SafetensorError, OSError) as error:
        raise _damaged(path, error) from error

    header.pop("__metadata__", None)
    arrays = {}
    for name, entry in header.items():
        kind, shape, (begin, end) = entry["dtype"], entry["shape"], entry["data_offsets"]
        dtype = np.dtype(f"{kind[0].lower()}{int(kind[1:]) // 8}")
        arrays[name] = (np.frombuffer(content, dtype, math.prod(shape), 8 + header_size + begin).reshape(shape)
                        if end > begin else np.zeros(shape, dtype))
    return arrays


def _damaged(path: Path, error: Exception) -> UserError:
    return UserError(f"{path} is damaged ({path.stat().st_size} bytes): {error}.",
                     "Delete it and prepare the dataset again.")


def _write(path: Path, arrays: Arrays) -> None:
    content = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    _replace(path, lambda temporary: temporary.write_bytes(save(content)))


def _replace(path: Path, write: Callable[[Path], object]) -> None:
    """Replace a file by a new one once that is whole."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(path, sync=False) as temporary:
            write(temporary)
    except (OSError, SafetensorError) as error:
        raise UserError(
            f"Features could not be written to {path.parent}: {error}.",
            "Free space on the disk, then prepare again: what is cached is kept.",
        ) from error
