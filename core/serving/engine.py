"""The thread that computes: it takes requests from the threads of the server, and sends their speech back.

Only this thread uses the models, so that nothing competes for the device, but for a model or a voice that is loaded
meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable

from config.errors import UserError
from core.speech.continuous import ContinuousSynthesizer, SpeechRequest

_IDLE_S = 0.1  # between two looks at whether to stop
_GRACE_S = 20.0  # A stop waits so long for requests that are being computed.


class TooManyRequests(Exception):
    """As many requests as are allowed are computed or wait."""


class ShuttingDown(Exception):
    """The server is about to end, and takes no more requests."""


class SpeechEngine:
    """Computes requests together. `submit` and `cancel` may be called from any thread, `run` by one."""

    def __init__(self, rows: int, max_requests: int, max_seconds: float) -> None:
        self._synthesizer = ContinuousSynthesizer(rows)
        self._max_requests, self._max_seconds = max_requests, max_seconds
        self._changed = threading.Condition()
        self._commands: deque[Callable[[], None]] = deque()
        self._stopping = False
        self._admitted = 0

    @property
    def requests(self) -> int:
        """Requests that are computed, wait or are prepared."""
        with self._changed:
            return self._admitted

    @property
    def rows(self) -> int:
        """Sentences that are computed now."""
        return self._synthesizer.rows

    def admit(self) -> None:
        """Count a request that has come; `TooManyRequests` or `ShuttingDown` if it is not taken."""
        with self._changed:
            if self._stopping:
                raise ShuttingDown
            if self._admitted >= self._max_requests:
                raise TooManyRequests
            self._admitted += 1

    def release(self) -> None:
        """Count a request no more: it was answered."""
        with self._changed:
            self._admitted -= 1

    def submit(self, request: SpeechRequest) -> None:
        """Let an admitted request join."""
        with self._changed:
            self._commands.append(lambda: self._synthesizer.add(request))
            self._changed.notify()

    def cancel(self, request: SpeechRequest) -> None:
        """Forget a request whose caller has gone; its rows are free before the next codes."""
        with self._changed:
            self._commands.append(lambda: self._synthesizer.cancel(request))
            self._changed.notify()

    def run(self, stop_requested: Callable[[], bool], idle: Callable[[], None] = lambda: None) -> None:
        """Compute until a stop is requested; those that are computed then may end. `idle` is called in between."""
        deadline = None
        while True:
            with self._changed:
                if not self._commands and not self._synthesizer.requests:
                    self._changed.wait(_IDLE_S)
            self._run_commands()
            if self._synthesizer.requests:
                self._end_late_requests()
                self._synthesizer.advance()
            idle()
            if deadline is None and stop_requested():
                deadline = time.monotonic() + _GRACE_S
                with self._changed:
                    self._stopping = True
            if deadline is not None and (not self.requests or time.monotonic() > deadline):
                break
        self._run_commands()
        for request in self._synthesizer.open_requests:
            self._synthesizer.cancel(request)
            request.finish(ShuttingDown())

    def _run_commands(self) -> None:
        """Let submitted requests join, and forget cancelled ones."""
        with self._changed:
            commands, self._commands = list(self._commands), deque()
        for command in commands:
            command()

    def _end_late_requests(self) -> None:
        time_s = time.monotonic()
        late = [request for request in self._synthesizer.open_requests if time_s - request.arrived > self._max_seconds]
        for request in late:
            self._synthesizer.cancel(request)
            request.finish(UserError(f"The request was not done after {self._max_seconds:g} s.",
                                     "Send a shorter text, or start the server with a larger --max-seconds."))
