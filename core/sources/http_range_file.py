"""A file of the hub that is read by HTTP ranges, without downloading all of it. Never loads torch.

Ranges are downloaded in runs of blocks. Each run is stored as a file, so that reading the same part again, by another
job too, needs no network. The hub gives no hash of a part: only its length is checked.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from core.sources.downloader import Downloader, DownloadProgress, RetryPolicy
from core.sources.hub import ByteStream, Hub, Interrupted, RemoteFile
from data.durable_files import ExpectedFile

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

BLOCK = 1 << 18  # bytes
_LONGEST_RUN = 64  # blocks in one request; a run is twice as long as the one before it


class RangesUnsupported(Exception):
    """The hub sends the file from its beginning only."""


@dataclass(frozen=True)
class _Window:
    """Serves the bytes from `first` on of a file as if they were a file."""

    hub: Hub
    whole: RemoteFile
    first: int

    @property
    def host(self) -> str:
        return self.hub.host

    @contextmanager
    def open(self, file: RemoteFile, start: int, timeout_s: float) -> Iterator[ByteStream]:
        begin, size = self.first + start, self.whole.expected.size
        with self.hub.open(self.whole, begin, timeout_s, self.first + file.expected.size) as body:
            if body.start != begin:
                raise RangesUnsupported
            if body.total not in (None, size):
                raise Interrupted(f"the hub says that the file has {body.total} bytes, and its list says {size}")
            yield ByteStream(start, None, body.blocks)


class HttpRangeFile(io.RawIOBase):
    """`file`, opened for reading, with its blocks stored in `folder`.

    Reading raises what a `Downloader` raises, and `RangesUnsupported`.
    """

    def __init__(self, file: RemoteFile, folder: Path, hub: Hub, progress: DownloadProgress,
                 retry: RetryPolicy) -> None:
        self._file, self._folder, self._hub, self._progress, self._retry = file, folder, hub, progress, retry
        self._position = 0
        self._runs: dict[int, tuple[int, int]] = {}  # by block: the first of its run, and how many there are
        folder.mkdir(parents=True, exist_ok=True)
        for path in folder.iterdir():
            first, _, count = path.name.partition("-")
            if path.stat().st_size == self._size(int(first), int(count)):
                self._add_run(int(first), int(count))
            else:
                path.unlink()  # its job was killed

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._file.expected.size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer) -> int:
        """Fill `buffer`; less only at the file's end."""
        view = memoryview(buffer).cast("B")
        wanted = max(0, min(len(view), self._file.expected.size - self._position))
        done = 0
        while done < wanted:
            first, count = self._run(self._position // BLOCK)
            with open(self._folder / f"{first}-{count}", "rb") as reading:
                reading.seek(self._position - first * BLOCK)
                got = reading.readinto(view[done:wanted])
            done, self._position = done + got, self._position + got
        return done

    def _size(self, first: int, count: int) -> int:
        """The bytes of a run."""
        return min(self._file.expected.size, (first + count) * BLOCK) - first * BLOCK

    def _add_run(self, first: int, count: int) -> None:
        self._runs.update((number, (first, count)) for number in range(first, first + count))

    def _run(self, number: int) -> tuple[int, int]:
        """The run of the block, downloaded where it is not there; its length is twice that of the run before it."""
        if number not in self._runs:
            before = self._runs.get(number - 1)
            last = -(-self._file.expected.size // BLOCK)
            most = min(_LONGEST_RUN, 2 * before[1] if before else 1)
            count = next((ahead for ahead in range(1, most) if number + ahead == last or number + ahead in self._runs),
                         most)
            name, size = f"{number}-{count}", self._size(number, count)
            part = RemoteFile(self._file.repository, self._file.commit, self._file.name, ExpectedFile(size))
            window = _Window(self._hub, self._file, number * BLOCK)
            Downloader(window, self._progress, self._retry).download(part, self._folder / name)
            self._add_run(number, count)
        return self._runs[number]
