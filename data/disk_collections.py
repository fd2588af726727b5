"""Collections on disk for data of many utterances: a dictionary, a list, and sorting.

Memory does not grow with their number, but for 8 bytes a row for its place. The files have no name and vanish with the
process, also when it is killed.
"""

from __future__ import annotations

import heapq
import os
import sqlite3
import tempfile
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import IO, Generic, Self, TypeVar, overload

T = TypeVar("T")
_ROWS_PER_READ = 256
_LINES_PER_RUN = 20_000  # some 6 MB
_BLOCK = 4096  # bytes per read of a sorted run


class DiskDict:
    """A dictionary of strings in a temporary SQLite database (its name is empty)."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("PRAGMA cache_size = -2000")  # KiB
        self._database.execute("CREATE TABLE entries (name BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")
        # Nothing is committed, because no other process reads the database.
        self._database.execute("BEGIN")

    def put(self, name: str, value: str) -> str | None:
        """Store `value` under a new `name`; else return the stored value."""
        try:
            self._database.execute("INSERT INTO entries VALUES (?, ?)", (_bytes(name), _bytes(value)))
        except sqlite3.IntegrityError:
            return self.get(name)
        return None

    def replace(self, name: str, value: str) -> None:
        """Store `value` under `name`, replacing an older one."""
        self._database.execute("INSERT OR REPLACE INTO entries VALUES (?, ?)", (_bytes(name), _bytes(value)))

    def get(self, name: str) -> str | None:
        row = self._database.execute("SELECT value FROM entries WHERE name = ?", (_bytes(name),)).fetchone()
        return row[0].decode("utf-8", "surrogatepass") if row else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self._database.close()


def _bytes(text: str) -> bytes:
    """As bytes, because JSON can hold lone surrogates, which SQLite's text cannot."""
    return text.encode("utf-8", "surrogatepass")


class DiskSequence(Sequence[T], Generic[T]):
    """Lines of an open file as a sequence, read on access; `begins` ends with the end of the file."""

    def __init__(self, file: IO[bytes], read: Callable[[bytes], T], begins: array[int]) -> None:
        self._file, self._read, self._begins = file, read, begins
        weakref.finalize(self, file.close)

    def __len__(self) -> int:
        return len(self._begins) - 1

    def __iter__(self) -> Iterator[T]:
        for start in range(0, len(self), _ROWS_PER_READ):
            yield from map(self._read, self._lines(start, min(len(self), start + _ROWS_PER_READ)))

    @overload
    def __getitem__(self, index: int) -> T: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[T, ...]: ...

    def __getitem__(self, index: int | slice) -> T | tuple[T, ...]:
        if isinstance(index, slice):
            return tuple(self[index] for index in range(len(self))[index])
        number = range(len(self))[index]
        return self._read(self._lines(number, number + 1)[0])

    def __eq__(self, other: object) -> bool:
        return (isinstance(other, Sequence) and len(self) == len(other)
                and all(item == other_item for item, other_item in zip(self, other, strict=True)))

    __hash__ = None  # type: ignore[assignment]

    def _lines(self, start: int, stop: int) -> list[bytes]:
        """Read by position, so that two iterations may run at once."""
        begins = self._begins[start:stop + 1]
        self._file.flush()
        part = os.pread(self._file.fileno(), begins[-1] - begins[0], begins[0])
        return [part[begin - begins[0]:end - begins[0]] for begin, end in zip(begins, begins[1:], strict=False)]


class DiskList(DiskSequence[T]):
    """A list on disk, in an unnamed file in `folder` (None: the folder for temporary files)."""

    def __init__(self, write: Callable[[T], str], read: Callable[[bytes], T], folder: Path | None = None) -> None:
        super().__init__(unnamed_file(folder), read, array("q", [0]))
        self._write = write

    def add(self, row: T) -> None:
        line = self._write(row).encode() + b"\n"
        self._file.write(line)
        self._begins.append(self._begins[-1] + len(line))


def unnamed_file(folder: Path | None = None) -> IO[bytes]:
    """A new unnamed file in `folder`; by default where SQLite puts its own, as `/tmp` is memory on many systems."""
    usual = os.environ.get("TMPDIR") or ("/var/tmp" if os.access("/var/tmp", os.W_OK) else None)
    return tempfile.TemporaryFile(dir=folder or usual)


def chunked(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """`items` in lists of `size`; the last may be shorter."""
    remaining = iter(items)
    while True:
        part = list(islice(remaining, size))
        if not part:
            return
        yield part


def sorted_on_disk(lines: Iterable[str], run_length: int = _LINES_PER_RUN) -> Iterator[str]:
    """`lines` without line breaks, sorted by code points by an external merge sort; at most `run_length` in memory."""
    ends = array("q", [0])
    remaining = iter(lines)
    with unnamed_file() as file:
        # Each run is sorted in memory and appended to the file.
        while True:
            run = sorted(islice(remaining, run_length))
            if not run:
                break
            if len(ends) == 1 and len(run) < run_length:
                yield from run
                return
            file.writelines(line.encode("utf-8", "surrogatepass") + b"\n" for line in run)
            ends.append(file.tell())
            # Free the memory before the next run is read.
            run.clear()
        file.flush()

        # Bytes of UTF-8 sort in the order of their code points, so the runs merge without decoding.
        for line in heapq.merge(*(_run(file, begin, end) for begin, end in zip(ends, ends[1:], strict=False))):
            yield line.decode("utf-8", "surrogatepass")


def _run(file: IO[bytes], begin: int, end: int) -> Iterator[bytes]:
    """The lines between two positions, without their ends."""
    incomplete = b""
    for offset in range(begin, end, _BLOCK):
        *complete, incomplete = (incomplete + os.pread(file.fileno(), min(_BLOCK, end - offset), offset)).split(b"\n")
        yield from complete
