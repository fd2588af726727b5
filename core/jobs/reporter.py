"""The interface of a verb to its job: events out, stop requests in.

A verb is `run(options, workspace, reporter) -> Result`. It emits events, calls `check_stop(reporter)` where it can end
cleanly, and raises `UserError` for what the user can fix.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Protocol

from core.jobs.events import (
    AudioGenerated,
    CheckpointSaved,
    Evaluated,
    Event,
    Failed,
    Finished,
    Journal,
    Plan,
    Progress,
    SampleGenerated,
    Skipped,
    Stage,
    Started,
    Step,
    Stopped,
    Waiting,
    WarningRaised,
)

_PROGRESS_INTERVAL_S = 0.2


class StopRequested(Exception):
    """Raised by a verb that has saved its work and ends on request."""


class Reporter(Protocol):
    """The interface of a verb to the job it runs in."""

    @property
    def directory(self) -> Path:
        """The job's own folder, for its files."""
        ...

    def emit(self, event: Event) -> None: ...

    def stop_requested(self) -> bool:
        """Whether the verb should finish its step, save and raise `StopRequested`."""
        ...


class ForwardingReporter:
    """A reporter that hands everything to another one, for those that change one of its methods."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter

    @property
    def directory(self) -> Path:
        return self._reporter.directory

    def emit(self, event: Event) -> None:
        self._reporter.emit(event)

    def stop_requested(self) -> bool:
        return self._reporter.stop_requested()


def check_stop(reporter: Reporter, message: str = "Stopped on request.") -> None:
    """Raise `StopRequested` if a stop was requested; for verbs that have nothing to save."""
    if reporter.stop_requested():
        raise StopRequested(message)


ProgressCallback = Callable[[Progress], None]
"""Called with the progress of the work; it may end the work by raising `StopRequested`."""


def no_progress(_progress: Progress) -> None:
    """A `ProgressCallback` that does nothing."""


def progress_callback(reporter: Reporter, message: str = "Stopped on request.") -> ProgressCallback:
    """A callback that emits the progress, then raises `StopRequested` with `message` if a stop was requested."""

    def report(progress: Progress) -> None:
        reporter.emit(progress)
        check_stop(reporter, message)

    return report


class CombinedProgress:
    """Combines the progress of several parts, one after another, into one count of `total` in `unit`."""

    def __init__(self, progress: ProgressCallback, total: int, unit: str) -> None:
        self._progress, self._total, self._unit = progress, total, unit
        self._before = 0

    def part(self, size: int) -> ProgressCallback:
        """The callback for the next part; its progress, in any unit, is scaled to 0 to `size` of the total."""
        offset, self._before = self._before, self._before + size

        def report(part: Progress) -> None:
            share = part.done / part.total if part.total else 0.0
            note = part.note if part.unit == self._unit else f"({part.unit} {part.note})"
            self._progress(Progress(offset + round(size * share), self._total, self._unit, note))

        return report


@contextmanager
def stage(reporter: Reporter, name: str) -> Iterator[None]:
    """Context of the stage `name`: emits its begin, and its duration at the end unless the body raises."""
    start = time.monotonic()
    reporter.emit(Stage(name))
    yield
    reporter.emit(Stage(name, round(time.monotonic() - start, 3)))


class JournalReporter:
    """Writes events to the journal and as text to `output.log` beside it, and passes them to `listener`.

    Progress events are limited to five a second; the last one of a count is never dropped.
    """

    def __init__(self, journal: Journal, stop: Callable[[], bool],
                 listener: Callable[[Event], None] | None = None) -> None:
        self._journal = journal
        self._stop = stop
        self._listener = listener
        self._progress_due = 0.0

    @property
    def directory(self) -> Path:
        return self._journal.path.parent

    def emit(self, event: Event) -> None:
        if isinstance(event, Progress):
            time_s = time.monotonic()
            # The last one of a count shows that it is complete.
            if event.done != event.total and time_s < self._progress_due:
                return
            self._progress_due = time_s + _PROGRESS_INTERVAL_S
        stamped = self._journal.append(event)
        self._log(stamped)
        if self._listener:
            self._listener(stamped)

    def stop_requested(self) -> bool:
        return self._stop()

    def _log(self, event: Event) -> None:
        """Append the event to the log. Errors are ignored: the journal counts, and its writer reports a full disk."""
        text = describe(event)
        if not text:
            return
        if isinstance(event, Failed) and event.traceback:
            text += "\n" + event.traceback.rstrip()

        path = self.directory / "output.log"
        with suppress(OSError), open(path, "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"{time.strftime('%H:%M:%S', time.localtime(event.time))} {text}\n")


def describe(event: Event) -> str:
    """`event` as a line of text; empty for an event that gets none."""
    match event:
        case Waiting():
            return event.reason
        case Started():
            return "Started." if event.attempt == 1 else f"Started again (attempt {event.attempt})."
        case Stage():
            return f"{event.name} ..." if event.seconds is None else f"{event.name}: {event.seconds:.1f} s"
        case Plan():
            return "\n".join(event.lines)
        case Progress():
            return describe_progress(event)

        # Events of a training.
        case Step():
            memory = (f"  {event.memory_of} memory at most {memory_text(event.memory_bytes)}"
                      if event.memory_bytes is not None else "")
            return (f"step {event.step}/{event.total_steps}  speech loss {event.speech_loss:.4f}  "
                    f"text loss {event.text_loss:.4f}  {event.tokens_per_s:.0f} tokens/s{memory}")
        case Evaluated():
            errors = "".join(f"  {code} CER {error:.1%}" for code, error in event.errors.items())
            details = "" if event.text_loss is None or event.accuracy is None else (
                f"  text loss {event.text_loss:.4f}  top-1 {event.accuracy:.1%}")
            other_losses = "".join(f"  {code} {losses['speech_loss']:.4f}"
                                   for code, losses in list(event.languages.items())[1:])
            metrics = "".join(f"  {name} {value:.3f}" for name, value in event.metrics.items())
            return (f"step {event.step}: held-out speech loss {event.speech_loss:.4f}{details}{other_losses}{errors}"
                    f"{metrics}")
        case SampleGenerated():
            return f"step {event.step}: sample [{event.language}] {event.text}{_cer_text(event.error)} -> {event.path}"
        case AudioGenerated():
            return f"{event.side} [{event.language}] {event.text}{_cer_text(event.error)} -> {event.path}"
        case CheckpointSaved():
            return f"step {event.step}: {'best checkpoint so far' if event.best else f'saved {event.path}'}"

        # Warnings, and how a job ends.
        case WarningRaised():
            return f"Warning: {event.message}"
        case Finished():
            return "Finished: " + ", ".join(
                f"{name} {'none' if value == '' else value}" for name, value in event.result.items())
        case Failed():
            return "\n".join(part for part in (f"Failed: {event.message}", event.hint) if part)
        case Skipped():
            return f"Not started: {event.message} {event.hint}"
        case Stopped():
            return event.message
    return ""


def describe_progress(event: Progress) -> str:
    """Such as `3.2 MB of 9.0 MB t3.safetensors, 1.4 MB/s, 4 s left` or `120/300 clips`."""
    numbers = [value for value in (event.done, event.total) if value is not None]
    if event.unit == "bytes":
        counts, speed = " of ".join(map(size_text, numbers)), f"{size_text(event.per_second or 0)}/s"
    else:
        counts = f"{'/'.join(f'{value:g}' for value in numbers)} {event.unit}"
        speed = f"{event.per_second or 0:g} {event.unit}/s"
    parts = [f"{counts} {event.note}".rstrip()]
    if event.per_second:
        parts.append(speed)
    if event.seconds_left is not None:
        parts.append(f"{duration_text(event.seconds_left)} left")
    return ", ".join(parts)


def pluralize(number: int, noun: str) -> str:
    """Such as `1 clip` or `1,200 clips`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def size_text(count: float) -> str:
    """Bytes of files and disks as text, such as `3.21 GB`."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return f"{count / scale:.{2 if unit == 'GB' else 1}f} {unit}"
    return f"{count:.0f} bytes"


def memory_text(count: float) -> str:
    """Bytes of memory as text, such as `5.1 GiB`, and in MiB below a tenth of one."""
    return f"{count / 2**30:.1f} GiB" if count >= 0.1 * 2**30 else f"{count / 2**20:.0f} MiB"


def duration_text(seconds: float | None) -> str:
    """Such as `8 s`, `3 min 20 s` or `2 h 5 min`, rounded to the last unit that is shown; `unknown` for None."""
    if seconds is None or not math.isfinite(seconds):
        return "unknown"
    total = round(max(0.0, seconds))
    if total < 60:
        return f"{total} s"
    # Seconds are shown up to ten minutes.
    if total < 600:
        minutes, remainder = divmod(total, 60)
        return f"{minutes} min {remainder} s" if remainder else f"{minutes} min"
    hours, minutes = divmod((total + 30) // 60, 60)
    if not hours:
        return f"{minutes} min"
    return f"{hours} h {minutes} min" if minutes else f"{hours} h"


def _cer_text(error: float | None) -> str:
    return "" if error is None else f" (CER {error:.1%})"
