"""Work for the tests of engines, in a module that its workers import in no time: without torch."""

import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from config.errors import UserError
from core.jobs.events import Event, Progress, WarningRaised
from core.jobs.reporter import Reporter, StopRequested


@dataclass
class Recorder:
    """A reporter that keeps the events, and asks for a stop after `stop_after` questions."""

    directory: Path = Path()
    stop_after: int = 10**9
    events: list[Event] = field(default_factory=list)
    asked: int = 0

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def stop_requested(self) -> bool:
        self.asked += 1
        return self.asked > self.stop_after

    @property
    def warnings(self) -> str:
        return "\n".join(event.message for event in self.events if isinstance(event, WarningRaised))


def load(reporter: Reporter) -> Reporter:
    """The state of these workers is their reporter."""
    reporter.emit(WarningRaised("loaded"))
    return reporter


def square(reporter: Reporter, batch: Sequence[int]) -> list[int]:
    if 3 in batch:
        reporter.emit(WarningRaised("three"))
    reporter.emit(Progress(len(batch), 10, "numbers"))
    return [number * number for number in batch]


def refuse_five(reporter: Reporter, batch: Sequence[int]) -> int:
    if 5 in batch:
        raise UserError("5 is not taken.", "Take another number.")
    return sum(batch)


def divide(reporter: Reporter, batch: Sequence[int]) -> float:
    return 1 / batch[0]


def die_with_seven(reporter: Reporter, batch: Sequence[int]) -> list[int]:
    if 7 in batch:
        os.kill(os.getpid(), signal.SIGKILL)
    return [number + 1 for number in batch]


def die_once(marks: Path, reporter: Reporter, batch: Sequence[int]) -> int:
    """The worker dies in its first attempt of each even batch."""
    mark = marks / str(batch[0])
    if batch[0] % 2 == 0 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    with open(marks / "finished", "a", encoding="utf-8") as file:
        file.write(f"{batch[0]}\n")
    return batch[0]


def die_while_loading(reporter: Reporter) -> Reporter:
    os._exit(9)


def sleep(reporter: Reporter, batch: Sequence[int]) -> None:
    while not reporter.stop_requested():
        time.sleep(0.01)
    raise StopRequested
