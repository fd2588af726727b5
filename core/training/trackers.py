"""Numbers of a training for experiment trackers: TensorBoard, Trackio, Weights & Biases.

The journal stays the truth; this is a copy of it. TensorBoard's event files are always written; one of
the others is used too when it is chosen. A tracker that fails is named once and not used from then on:
no training ends because a chart could not be drawn. Whether a chosen one is installed was checked when
the job was created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from core.jobs.events import Evaluated, Event, SampleGenerated, Step, WarningRaised
from core.jobs.reporter import ForwardingReporter, Reporter

PROJECT = "lisan"
FOLDER = "tensorboard"  # within the run
NONE = "none"
_TITLES: Mapping[str, str] = {"tensorboard": "TensorBoard", "trackio": "Trackio", "wandb": "Weights & Biases"}


class ExperimentTracker(Protocol):
    """One tool."""

    def log(self, step: int, values: Mapping[str, float]) -> None: ...

    def log_audio(self, step: int, name: str, sound: Path) -> None:
        """Show a WAV file."""
        ...

    def close(self) -> None: ...


class TensorBoard:
    """Event files in the run's folder `tensorboard`; those of an earlier attempt from `first_step` on are hidden.

    A run resumes from its last checkpoint and takes the steps after it again: curves would run back.
    """

    def __init__(self, run_dir: Path, settings: Mapping[str, object], first_step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(run_dir / FOLDER), purge_step=first_step)
        self._writer.add_text("options", "\n".join(f"    {name}: {value}" for name, value in settings.items()))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def log_audio(self, step: int, name: str, sound: Path) -> None:
        import soundfile

        waveform, sample_rate = soundfile.read(sound, dtype="float32")
        self._writer.add_audio(name, waveform, step, sample_rate)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """Weights & Biases, or Trackio, which has the same interface. A resumed run continues its curves."""

    def __init__(self, package: str, run_dir: Path, settings: Mapping[str, object]) -> None:
        self._package = _imported(package)
        common = {"project": PROJECT, "name": run_dir.name, "config": dict(settings), "resume": "allow"}
        if package == "wandb":
            common |= {"id": run_dir.name, "dir": str(run_dir)}
        self._package.init(**common)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._package.log(dict(values), step=step)

    def log_audio(self, step: int, name: str, sound: Path) -> None:
        self._package.log({name: self._package.Audio(str(sound))}, step=step)

    def close(self) -> None:
        self._package.finish()


def _imported(package: str) -> Any:
    if package == "wandb":
        import wandb

        return wandb
    import trackio

    return trackio


class TrackedReporter(ForwardingReporter):
    """A reporter that also logs to trackers. They start with the first number: a run that is refused starts none."""

    def __init__(self, reporter: Reporter, makers: Mapping[str, Callable[[int], ExperimentTracker]]) -> None:
        super().__init__(reporter)
        self._makers = dict(makers)
        self._trackers: dict[str, ExperimentTracker] = {}

    def emit(self, event: Event) -> None:
        super().emit(event)
        if isinstance(event, (Step, Evaluated, SampleGenerated)):
            # A step is logged before it is evaluated.
            self._start(event.step if isinstance(event, Step) else event.step + 1)

        if isinstance(event, (Step, Evaluated)):
            self._each(lambda tracker: tracker.log(event.step, numbers(event)))
        elif isinstance(event, SampleGenerated):
            name = f"samples/{event.language}"
            self._each(lambda tracker: tracker.log_audio(event.step, name, self.directory / event.path))

    def close(self) -> None:
        self._each(lambda tracker: tracker.close())

    def _start(self, first_step: int) -> None:
        """Start all trackers; `first_step`: the first step that they will log."""
        makers, self._makers = self._makers, {}
        for name, make in makers.items():
            with self._trying(name, "could not be started", "The training continues without it."):
                self._trackers[name] = make(first_step)

    def _each(self, act: Callable[[ExperimentTracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._trying(name, "takes no more numbers of this run", "The training continues."):
                act(tracker)

    @contextmanager
    def _trying(self, name: str, failed: str, consequence: str) -> Iterator[None]:
        """Context of third-party code, often over a network: what it raises ends the tracker, not the training.

        There is no narrower class: TensorBoard, Trackio and Weights & Biases have no error in common.
        """
        try:
            yield
        except Exception as error:  # noqa: BLE001
            self._trackers.pop(name, None)
            self._reporter.emit(WarningRaised(
                f"{_TITLES[name]} {failed}: {type(error).__name__}: {error}. {consequence}"))


def numbers(event: Step | Evaluated) -> dict[str, float]:
    """The numbers of an event, by the name of their curve."""
    values: dict[str, float | None]
    if isinstance(event, Step):
        values = {"loss/speech": event.speech_loss, "loss/text": event.text_loss,
                  "gradient/norm": event.gradient_norm, "speed/tokens_per_s": event.tokens_per_s,
                  "memory/peak_gib": None if event.memory_bytes is None else event.memory_bytes / 2**30,
                  **{f"learning_rate/{name}": rate for name, rate in event.learning_rates.items()}}
    else:
        values = {"held_out/speech_loss": event.speech_loss, "held_out/text_loss": event.text_loss,
                  "held_out/accuracy": event.accuracy,
                  **{f"error/{language}": error for language, error in event.errors.items()}}
        for language, measurements in event.languages.items():
            values |= {f"held_out/{language}/{name}": value for name, value in measurements.items()}
    return {name: value for name, value in values.items() if value is not None}


@contextmanager
def open_trackers(reporter: Reporter, chosen: str, settings: Mapping[str, object]) -> Iterator[Reporter]:
    """Context of a reporter that also logs to TensorBoard and the `chosen` tracker; one that fails is named."""
    makers: dict[str, Callable[[int], ExperimentTracker]] = {
        "tensorboard": lambda first_step: TensorBoard(reporter.directory, settings, first_step)}
    if chosen != NONE:
        makers[chosen] = lambda first_step: WandbTracker(chosen, reporter.directory, settings)
    tracked_reporter = TrackedReporter(reporter, makers)
    try:
        yield tracked_reporter
    finally:
        tracked_reporter.close()
