"""Bytes from the hub into files: resumed, checked, watched for stalls, and ready to stop. Never loads torch.

The network is read by a thread of its own. Whoever waits for it can so count what comes,
notice that nothing comes and hear a stop, even while the thread hangs in a name look-up or
a dead connection; it is then left alone, and ends when its own wait runs out. Only the
waiting side writes, so a thread that was left can do no harm.
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

from config.errors import UserError
from core.incoming.hub import Body, Interrupted, RemoteFile, unreachable
from core.jobs.events import Progress, WarningRaised
from core.jobs.reporter import Reporter, check_stop, size_text
from core.library.model_record import Hasher

Answer = TypeVar("Answer")
_POLL_S = 0.1
_RATE_WINDOW_S = 15.0
_TELL_S, _TELL_IDLE_S = 0.5, 3.0  # between two events of progress; while nothing comes
_USEFUL = 1 << 20  # bytes; a connection that brought so many was no failure
_STOPPED = "Stopped. What has come is kept: continue it, or start it again."


class Server(Protocol):
    """Who gives files: `core.incoming.hub.Hub`, or another."""

    @property
    def host(self) -> str: ...

    def open(self, file: RemoteFile, start: int, patience_s: float) -> AbstractContextManager[Body]: ...


@dataclass(frozen=True)
class Patience:
    """How long to wait for a hub. Waits between tries double from `first_wait_s` up to `longest_wait_s`."""

    stall_s: float = 30.0  # without a byte, until the connection is given up
    max_attempts: int = 10  # in a row that bring nothing
    listing_tries: int = 4
    first_wait_s: float = 1.0
    longest_wait_s: float = 60.0

    def wait_s(self, failures: int, asked: float = 0.0) -> float:
        """How long to wait after so many failures in a row; at least what the hub asks for."""
        return max(asked, min(self.longest_wait_s, self.first_wait_s * 2.0 ** (failures - 1)))


class Meter:
    """Counts the bytes of a whole set, and tells them with rate and time left about twice a second."""

    def __init__(self, reporter: Reporter, total: int | None, done: int = 0, stopped: str = _STOPPED) -> None:
        self.reporter, self.total, self.done = reporter, total, done
        self._stopped = stopped
        self._told = 0.0
        self._told_done = -1
        self._received = 0
        self._recent: deque[tuple[float, int]] = deque([(time.monotonic(), 0)])

    def add(self, count: int, name: str) -> None:
        """`count` bytes of `name` came."""
        self.done += count
        self._received += count
        self.beat(name)

    def beat(self, name: str) -> None:
        """Tell how things stand, also when nothing came, and hear a stop."""
        check_stop(self.reporter, self._stopped)
        now = time.monotonic()
        due = self._told + (_TELL_S if self.done != self._told_done else _TELL_IDLE_S)
        if now < due and self.done != self.total:
            return
        self._told, self._told_done = now, self.done
        self._recent.append((now, self._received))
        while now - self._recent[0][0] > _RATE_WINDOW_S and len(self._recent) > 2:
            self._recent.popleft()
        (began, first), (ended, last) = self._recent[0], self._recent[-1]
        rate = (last - first) / (ended - began) if ended > began else 0.0
        left = (self.total - self.done) / rate if rate > 0 and self.total is not None else None
        self.reporter.emit(Progress(self.done, self.total, "bytes", name, round(rate), left and round(left, 1)))

    def rest(self, seconds: float, name: str) -> None:
        """Wait so long, hearing a stop."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.beat(name)
            time.sleep(min(left, _POLL_S))


def ask(work: Callable[[], Answer], reporter: Reporter, patience: Patience, what: str) -> Answer:
    """What `work` gives, tried again when it is interrupted; a stop is heard while it hangs."""
    for failures in range(1, patience.listing_tries + 1):
        try:
            return _apart(work, reporter, patience.stall_s)
        except Interrupted as fault:
            if failures == patience.listing_tries:
                raise unreachable(what, fault, "Check the network and HF_ENDPOINT, then continue; or give a folder "
                                               "with the files (--folder PATH; on the page: Model).") from None
            until = time.monotonic() + patience.wait_s(failures, fault.wait_s)
            while time.monotonic() < until:
                check_stop(reporter, _STOPPED)
                time.sleep(_POLL_S)
    raise AssertionError("at least one try")


def _apart(work: Callable[[], Answer], reporter: Reporter, limit_s: float) -> Answer:
    """`work` in a thread that is left alone when it takes longer than `limit_s` or a stop comes."""
    answers: queue.Queue[Answer | BaseException] = queue.Queue()

    def run() -> None:
        try:
            answers.put(work())
        except BaseException as error:  # noqa: BLE001  handed over to the thread that waits
            answers.put(error)

    threading.Thread(target=run, name="ask the hub", daemon=True).start()
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


class _Pump:
    """Reads an answer in a thread. `get` gives its blocks, None at the end."""

    def __init__(self, answer: AbstractContextManager[Body]) -> None:
        self._answer = answer
        self._items: queue.Queue[Body | bytes | BaseException | None] = queue.Queue(maxsize=16)
        self._left = threading.Event()
        threading.Thread(target=self._run, name="read from the hub", daemon=True).start()

    def get(self) -> Body | bytes | None:
        """The head of the answer first, then blocks. Raises `queue.Empty` when nothing came for a moment."""
        item = self._items.get(timeout=_POLL_S)
        if isinstance(item, BaseException):
            raise item
        return item

    def leave(self) -> None:
        """Want no more."""
        self._left.set()

    def _run(self) -> None:
        try:
            with self._answer as body:
                self._put(body)
                for block in body.blocks:
                    if not self._put(block):
                        return
            self._put(None)
        except BaseException as error:  # noqa: BLE001  handed over to the thread that waits
            self._put(error)

    def _put(self, item: Body | bytes | BaseException | None) -> bool:
        """Hand `item` over; False when nobody wants it any more."""
        while not self._left.is_set():
            with suppress(queue.Full):
                self._items.put(item, timeout=_POLL_S)
                return True
        return False


class Fetcher:
    """Brings files of the hub to the disk, one at a time."""

    def __init__(self, hub: Server, meter: Meter, patience: Patience) -> None:
        self.hub, self.meter, self.patience = hub, meter, patience

    def fetch(self, file: RemoteFile, path: Path, begun: Hasher | None = None) -> str:
        """Complete `path`, of whose bytes `begun` has seen all that are there; the file's SHA-256.

        The file keeps what came when this raises: `UserError` after too many failures in a
        row, or when the hub gave wrong bytes twice; `StopRequested` on a stop.
        """
        hasher = begun or Hasher(file.expected)
        for attempt in (1, 2):
            try:
                self._complete(file, path, hasher)
                if fault := hasher.fault():
                    raise _WrongBytes(fault)
                return hasher.sha256
            except _WrongBytes as fault:
                path.unlink(missing_ok=True)
                self.meter.done -= hasher.size
                hasher = Hasher(file.expected)
                if attempt == 2:
                    raise UserError(
                        f"{self.hub.host} sends other bytes for {file.name} than its own list says: {fault}.",
                        "Continue later or from another HF_ENDPOINT. The damaged file was thrown away, the others "
                        "are kept.",
                    ) from None
                self.meter.reporter.emit(WarningRaised(f"{file.name} came damaged ({fault}); it is fetched once more."))
        raise AssertionError("two attempts")

    def fetch_once(self, file: RemoteFile, path: Path, room: int) -> None:
        """A file whose size nobody tells, in one connection, into `path`; no more than `room` bytes."""
        pump = _Pump(self.hub.open(file, 0, self.patience.stall_s + _POLL_S * 10))
        size = 0
        try:
            items = self._watched(pump, file)
            next(items)
            with open(path, "wb") as writing:
                for block in items:
                    assert isinstance(block, bytes)
                    size += len(block)
                    if size > room:
                        raise UserError(f"{file.name} is larger than the {size_text(room)} that are free here.",
                                        "Free space on the workspace's disk, then continue.")
                    writing.write(block)
                    self.meter.add(len(block), file.name)
        except Interrupted as fault:
            raise unreachable(file.name, fault, "The server does not tell its size, so it begins anew.") from None
        finally:
            pump.leave()

    def _complete(self, file: RemoteFile, path: Path, hasher: Hasher) -> None:
        """Append to `path` until it has its size, over as many connections as it takes."""
        failures, mark = 0, hasher.size
        while hasher.size < file.expected.size:
            try:
                self._receive(file, path, hasher)
            except Interrupted as fault:
                useful = hasher.size - mark >= _USEFUL
                failures, mark = (1, hasher.size) if useful else (failures + 1, mark)
                if failures >= self.patience.max_attempts:
                    raise unreachable(f"{file.name} (of which {size_text(hasher.size)} are here)", fault) from None
                where = f"at {size_text(hasher.size)} of {size_text(file.expected.size)}"
                self.meter.reporter.emit(WarningRaised(f"{file.name}: {fault}, {where}. Trying again."))
                self.meter.rest(self.patience.wait_s(failures, fault.wait_s), file.name)
        if not path.exists():  # a file without a byte
            path.touch()

    def _receive(self, file: RemoteFile, path: Path, hasher: Hasher) -> None:
        """One connection: append what it gives until the file has its size."""
        pump = _Pump(self.hub.open(file, hasher.size, self.patience.stall_s + _POLL_S * 10))  # we notice a stall first
        try:
            items = self._watched(pump, file)
            body = next(items)
            assert isinstance(body, Body)
            skip = self._checked_start(body, file, hasher.size)
            with open(path, "ab") as writing:
                for block in items:
                    assert isinstance(block, bytes)
                    wanted = block[skip:][:file.expected.size - hasher.size]
                    skip = max(0, skip - len(block))
                    writing.write(wanted)
                    writing.flush()  # a killed worker loses no more than what is on its way
                    hasher.update(wanted)
                    self.meter.add(len(wanted), file.name)
                    if hasher.size == file.expected.size:
                        return
        finally:
            pump.leave()
        raise Interrupted("the connection ended early")

    def _checked_start(self, body: Body, file: RemoteFile, have: int) -> int:
        """How many bytes of the answer are here already, because the hub gave an earlier part than was asked for."""
        if body.total is not None and body.total != file.expected.size:
            raise _WrongBytes(f"it has {body.total} bytes, the whole file {file.expected.size}")
        if body.start > have:
            raise Interrupted("the hub sent another part than was asked for")
        return have - body.start

    def _watched(self, pump: _Pump, file: RemoteFile) -> Iterator[Body | bytes]:
        """What the pump gives, as long as it gives something within the patience for a stall."""
        last = time.monotonic()
        while True:
            try:
                item = pump.get()
            except queue.Empty:
                self.meter.beat(file.name)
                if (silent := time.monotonic() - last) > self.patience.stall_s:
                    raise Interrupted(f"no byte came for {silent:.0f} s, so the connection was dropped") from None
                continue
            if item is None:
                return
            last = time.monotonic()
            yield item
