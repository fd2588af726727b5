"""Downloads with retries: resumed, checked by hash, watched for stalls, and ready to stop. Never loads torch.

A thread reads from the network; the caller writes. So the caller can count bytes, see that none come and stop at
once, even while the thread hangs in a name look-up or a dead connection. It then abandons the thread, which ends when
its own timeout runs out, and which cannot do harm, because only the caller writes.

Tried instead: `huggingface_hub.file_download.http_get`. It sees a stop and a stall only between blocks of 10 MB, and a
kill loses as much; twelve of the tests for kill, resume, stall and stop fail with it.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from config.errors import ErrorKind, UserError
from core.jobs.events import Progress, WarningRaised
from core.jobs.job import public_name as public_name
from core.jobs.reporter import Reporter, check_stop, size_text
from core.sources.hub import ByteStream, Hub, Interrupted, RemoteFile, RepositoryFiles, unreachable
from data.durable_files import FileHasher

Answer = TypeVar("Answer")
_POLL_S = 0.1
_RATE_WINDOW_S = 15.0
_REPORT_S, _REPORT_IDLE_S = 0.5, 3.0  # between two events of progress; while nothing comes
_USEFUL_BYTES = 1 << 20  # a connection that brought so many was no failure
_STOPPED = "Stopped. What was downloaded is kept: continue it, or start it again."


class ByteServer(Protocol):
    """A server that files are downloaded from: `core.sources.hub.Hub`, or another."""

    @property
    def host(self) -> str: ...

    def open(self, file: RemoteFile, start: int, timeout_s: float) -> AbstractContextManager[ByteStream]: ...


@dataclass(frozen=True)
class RetryPolicy:
    """How often to try again. Waits between attempts double from `first_wait_s` up to `longest_wait_s`."""

    stall_s: float = 30.0  # without a byte, until the connection is dropped
    max_attempts: int = 10  # attempts in a row that bring nothing
    listing_attempts: int = 4
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0

    def wait_s(self, failures: int, retry_after_s: float = 0.0) -> float:
        """How long to wait after so many failures in a row; at least what the hub asks for."""
        return max(retry_after_s, min(self.longest_wait_s, self.first_wait_s * 2.0 ** (failures - 1)))


class DownloadProgress:
    """Counts the bytes of a set of files, reports them about twice a second, and sees a stop."""

    def __init__(self, reporter: Reporter, total: int | None, done: int = 0, stopped: str = _STOPPED) -> None:
        self.reporter, self.total, self.done = reporter, total, done
        self._stopped = stopped
        self._reported_at = 0.0
        self._reported_done = -1
        self._received = 0
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def add(self, count: int, name: str) -> None:
        """`count` bytes of `name` came."""
        self.done += count
        self._received += count
        self.update(name)

    def update(self, name: str) -> None:
        """Report when a report is due, also when nothing came; raise `StopRequested` on a stop."""
        check_stop(self.reporter, self._stopped)
        now_s = time.monotonic()
        due = self._reported_at + (_REPORT_S if self.done != self._reported_done else _REPORT_IDLE_S)
        if now_s < due and self.done != self.total:
            return
        self._reported_at, self._reported_done = now_s, self.done

        # The rate is measured over the last seconds.
        self._recent.append((now_s, self._received))
        while now_s - self._recent[0][0] > _RATE_WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()
        (began, first_bytes), (ended, last_bytes) = self._recent[0], self._recent[-1]
        rate = (last_bytes - first_bytes) / (ended - began) if ended > began else 0.0
        remaining_s = (self.total - self.done) / rate if rate > 0 and self.total is not None else None
        self.reporter.emit(Progress(self.done, self.total, "bytes", name, round(rate),
                                    remaining_s and round(remaining_s, 1)))

    def wait(self, seconds: float, name: str) -> None:
        """Wait so long, or until a stop."""
        end = time.monotonic() + seconds
        remaining_s = seconds
        while remaining_s > 0:
            self.update(name)
            time.sleep(min(remaining_s, _POLL_S))
            remaining_s = end - time.monotonic()


def list_repository(hub: Hub, repository: str, revision: str, reporter: Reporter,
                    retry: RetryPolicy) -> RepositoryFiles:
    """`hub.list` with retries."""
    return call_with_retries(lambda: hub.list(repository, revision, retry.stall_s), reporter, retry, repository,
                             f"Check the network and HF_ENDPOINT, then continue; or give {hub.without_hub}.")


def call_with_retries(work: Callable[[], Answer], reporter: Reporter, retry: RetryPolicy, subject: str,
                      hint: str) -> Answer:
    """The result of `work`, which is called again after an interruption; a stop ends it even while it hangs."""
    for failures in range(1, retry.listing_attempts + 1):
        try:
            return _in_thread(work, reporter, retry.stall_s)
        except Interrupted as fault:
            if failures == retry.listing_attempts:
                raise unreachable(subject, fault, hint) from None
            until = time.monotonic() + retry.wait_s(failures, fault.wait_s)
            while time.monotonic() < until:
                check_stop(reporter, _STOPPED)
                time.sleep(_POLL_S)
    raise AssertionError("at least one attempt")


def _in_thread(work: Callable[[], Answer], reporter: Reporter, limit_s: float) -> Answer:
    """The result of `work` in a thread that is abandoned when it takes longer than `limit_s`, or on a stop."""
    answers: queue.Queue[Answer | BaseException] = queue.Queue()

    def run() -> None:
        try:
            answers.put(work())
        except BaseException as error:  # noqa: BLE001  handed over to the thread that waits
            answers.put(error)

    threading.Thread(target=run, name="call the hub", daemon=True).start()

    # The thread may hang in the network, so this one watches the clock and the stop.
    until = time.monotonic() + limit_s
    while True:
        with suppress(queue.Empty):
            answer = answers.get(timeout=_POLL_S)
            if isinstance(answer, BaseException):
                raise answer
            return answer
        check_stop(reporter, _STOPPED)
        if time.monotonic() > until:
            raise Interrupted(f"no answer within {limit_s:g} s")


class _WrongBytes(Exception):
    """What came is not the file; the text says how it differs."""


class _ReaderThread:
    """Reads a response in a thread. `get` returns its blocks, None at the end."""

    def __init__(self, response: AbstractContextManager[ByteStream]) -> None:
        self._response = response
        self._items: queue.Queue[ByteStream | bytes | BaseException | None] = queue.Queue(maxsize=16)
        self._abandoned = threading.Event()
        threading.Thread(target=self._run, name="read from the hub", daemon=True).start()

    def get(self) -> ByteStream | bytes | None:
        """The stream first, then its blocks. Raises `queue.Empty` when nothing came for a moment."""
        item = self._items.get(timeout=_POLL_S)
        if isinstance(item, BaseException):
            raise item
        return item

    def abandon(self) -> None:
        """Let the thread end; its blocks are not wanted any more."""
        self._abandoned.set()

    def _run(self) -> None:
        try:
            with self._response as body:
                self._put(body)
                for block in body.blocks:
                    if not self._put(block):
                        return
            self._put(None)
        except BaseException as error:  # noqa: BLE001  handed over to the thread that waits
            self._put(error)

    def _put(self, item: ByteStream | bytes | BaseException | None) -> bool:
        """Hand `item` over; False when the thread was abandoned."""
        while not self._abandoned.is_set():
            with suppress(queue.Full):
                self._items.put(item, timeout=_POLL_S)
                return True
        return False


class Downloader:
    """Downloads files of one server, one at a time."""

    def __init__(self, server: ByteServer, progress: DownloadProgress, retry: RetryPolicy) -> None:
        self.server, self.progress, self.retry = server, progress, retry

    def download(self, file: RemoteFile, path: Path, partial: FileHasher | None = None) -> str:
        """Complete `path`, and return the file's SHA-256. `partial` has hashed the bytes that `path` holds already.

        They stay when this raises: `UserError` after too many failures in a row, or when the server sent wrong bytes
        twice; `StopRequested` on a stop.
        """
        hasher = partial or FileHasher(file.expected)
        for attempt in (1, 2):
            try:
                self._complete(file, path, hasher)
                fault = hasher.fault()
                if fault:
                    raise _WrongBytes(fault)
                return hasher.sha256
            except _WrongBytes as wrong:
                fault = str(wrong)
                path.unlink(missing_ok=True)
                self.progress.done -= hasher.size
                hasher = FileHasher(file.expected)

                # The file is downloaded once more; wrong bytes twice are the server's.
                if attempt == 2:
                    raise UserError(
                        f"{self.server.host} sends other bytes for {file.name} than its own list says: {fault}.",
                        "Continue later or from another HF_ENDPOINT. The damaged file was deleted, the others are "
                        "kept.",
                        ErrorKind.ENVIRONMENT,
                    ) from None

                message = f"{file.name} arrived damaged ({fault}); it is downloaded once more."
                self.progress.reporter.emit(WarningRaised(message))
        raise AssertionError("two attempts")

    def download_unsized(self, file: RemoteFile, path: Path, room: int) -> None:
        """Download a file of unknown size to `path`, in one connection; at most `room` bytes.

        It cannot be resumed, so nothing of it stays when this raises.
        """
        reader = _ReaderThread(self.server.open(file, 0, self.retry.stall_s + _POLL_S * 10))
        size = 0

        # The first item is the answer itself; the blocks follow.
        try:
            items = self._watched(reader, file)
            next(items)
            with open(path, "wb") as writing:
                for block in items:
                    assert isinstance(block, bytes)
                    size += len(block)
                    if size > room:
                        raise UserError(f"{file.name} has no end that its server says, and is larger than the "
                                        f"{size_text(room)} that are taken of such a file here.",
                                        "Download it in a browser and give the file; or free space on the disk.")
                    writing.write(block)
                    self.progress.add(len(block), file.name)
        except BaseException as fault:
            path.unlink(missing_ok=True)
            if isinstance(fault, Interrupted):
                hint = "The server does not give its size, so it starts again."
                raise unreachable(file.name, fault, hint) from None
            raise
        finally:
            reader.abandon()

    def _complete(self, file: RemoteFile, path: Path, hasher: FileHasher) -> None:
        """Append to `path` until it has its size, over as many connections as it takes."""
        failures, mark = 0, hasher.size
        while hasher.size < file.expected.size:
            try:
                self._receive(file, path, hasher)
            except Interrupted as fault:
                # A connection that brought much was no failure, so counting starts again.
                useful = hasher.size - mark >= _USEFUL_BYTES
                failures, mark = (1, hasher.size) if useful else (failures + 1, mark)
                if failures >= self.retry.max_attempts:
                    raise unreachable(f"{file.name} (of which {size_text(hasher.size)} are here)", fault) from None
                position = f"at {size_text(hasher.size)} of {size_text(file.expected.size)}"
                self.progress.reporter.emit(WarningRaised(f"{file.name}: {fault}, {position}. Trying again."))
                self.progress.wait(self.retry.wait_s(failures, fault.wait_s), file.name)
        if not path.exists():  # a file without a byte
            path.touch()

    def _receive(self, file: RemoteFile, path: Path, hasher: FileHasher) -> None:
        """One connection: append its blocks until the file has its size."""
        # The limit is longer than `stall_s`, so that a stall is noticed here first.
        timeout_s = self.retry.stall_s + _POLL_S * 10
        reader = _ReaderThread(self.server.open(file, hasher.size, timeout_s))

        # The first item is the answer itself; the blocks follow.
        try:
            items = self._watched(reader, file)
            body = next(items)
            assert isinstance(body, ByteStream)
            skip = self._bytes_to_skip(body, file, hasher.size)
            with open(path, "ab") as writing:
                for block in items:
                    assert isinstance(block, bytes)
                    new_bytes = block[skip:][:file.expected.size - hasher.size]
                    skip = max(0, skip - len(block))
                    writing.write(new_bytes)
                    # A killed worker then loses only what is still on the network.
                    writing.flush()
                    hasher.update(new_bytes)
                    self.progress.add(len(new_bytes), file.name)
                    if hasher.size == file.expected.size:
                        return
        finally:
            reader.abandon()
        raise Interrupted("the connection ended early")

    def _bytes_to_skip(self, body: ByteStream, file: RemoteFile, size: int) -> int:
        """How many bytes of the response are here already, because the hub sent an earlier part than was asked for."""
        if body.total is not None and body.total != file.expected.size:
            raise _WrongBytes(f"it has {body.total} bytes, the whole file {file.expected.size}")
        if body.start > size:
            raise Interrupted("the hub sent another part than was asked for")
        return size - body.start

    def _watched(self, reader: _ReaderThread, file: RemoteFile) -> Iterator[ByteStream | bytes]:
        """The items of `reader`; raises `Interrupted` on a stall."""
        last = time.monotonic()
        while True:
            try:
                item = reader.get()
            except queue.Empty:
                self.progress.update(file.name)
                silent_s = time.monotonic() - last
                if silent_s > self.retry.stall_s:
                    raise Interrupted(f"no byte came for {silent_s:.0f} s, so the connection was dropped") from None
                continue
            if item is None:
                return
            last = time.monotonic()
            yield item
