"""What other tools are told of a training, and that none of them can end it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import soundfile
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator  # type: ignore[import-untyped]

from config.errors import UserError
from config.schema import JobOptions, TrainOptions
from core.jobs.events import Evaluated, Event, SampleGenerated, Step, WarningRaised
from core.submission.jobs import check_requirements
from core.training import trackers
from core.workspace import Workspace
from tests.worlds import Listener

SETTINGS = {"steps": 2, "scope": "gated"}


def step(number: int) -> Step:
    return Step(number, 2, 3.0 / number, 2.0, {"rows": 1e-3, "adapters": 1e-4}, 0.5, 900.0, 1.0, None,
                2_000_000_000 * number, "gpu")


@pytest.fixture
def events(tmp_path: Path) -> list[Event]:
    soundfile.write(tmp_path / "said.wav", np.sin(np.arange(8000) / 8).astype(np.float32), 16_000)
    measured = {"en": {"speech_loss": 2.5}}
    return [step(1), step(2), Evaluated(2, 1.4, {"am": 0.3}, accuracy=0.25, languages=measured),
            SampleGenerated(2, "am", "ሰላም", "said.wav", 0.3)]


def told(tmp_path: Path, events: list[Event], chosen: str = trackers.NONE) -> Listener:
    listener = Listener(tmp_path)
    with trackers.open_trackers(listener, chosen, SETTINGS) as reporter:
        for event in events:
            reporter.emit(event)
    return listener


def test_tensorboard_holds_every_number_and_the_sound(tmp_path: Path, events: list[Event]) -> None:
    listener = told(tmp_path, events)
    assert listener.events == events
    written = EventAccumulator(str(tmp_path / trackers.FOLDER)).Reload()
    assert set(written.Tags()["scalars"]) == {
        "loss/speech", "loss/text", "learning_rate/rows", "learning_rate/adapters", "gradient/norm",
        "speed/tokens_per_s", "memory/peak_gib",
        "held_out/speech_loss", "held_out/accuracy", "held_out/en/speech_loss", "error/am"}
    assert [(one.step, one.value) for one in written.Scalars("loss/speech")] == [(1, 3.0), (2, 1.5)]
    assert written.Audio("samples/am")[0].sample_rate == 16_000


@pytest.mark.parametrize("measured_first", [False, True])
def test_curves_of_a_run_that_goes_on_do_not_run_back(tmp_path: Path, measured_first: bool) -> None:
    """It goes on from step 2, and before it was killed it took the steps 3 and 4; what is measured again is of 2."""
    told(tmp_path, [step(number) for number in (1, 2, 3, 4)])
    again: list[Event] = [Evaluated(2, 1.4, {})] if measured_first else []
    told(tmp_path, [*again, *(step(number) for number in (3, 4, 5))])
    written = EventAccumulator(str(tmp_path / trackers.FOLDER)).Reload()
    assert [one.step for one in written.Scalars("loss/speech")] == [1, 2, 3, 4, 5]


def test_trackio_keeps_the_curves_of_a_run_on_this_machine(
        tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, object]] = []
    fake = ModuleType("trackio")
    fake.init = lambda **given: calls.append(("init", given))  # type: ignore[attr-defined]
    fake.log = lambda values, step: calls.append(("log", (step, values)))  # type: ignore[attr-defined]
    fake.finish = lambda: calls.append(("finish", None))  # type: ignore[attr-defined]
    fake.Audio = lambda path: f"sound of {Path(path).name}"  # type: ignore[attr-defined]
    fake.__spec__ = importlib.util.spec_from_loader("trackio", None)
    monkeypatch.setitem(sys.modules, "trackio", fake)
    told(tmp_path, events, "trackio")
    assert calls[0] == ("init", {"project": "lisan", "name": tmp_path.name, "config": SETTINGS, "resume": "allow"})
    assert calls[1][1] == (1, trackers.numbers(step(1)))
    assert calls[-2:] == [("log", (2, {"samples/am": "sound of said.wav"})), ("finish", None)]


class Failing:
    """Takes one step and breaks."""

    def log(self, step: int, values: object) -> None:
        if step > 1:
            raise ConnectionError("no route")

    def log_audio(self, step: int, name: str, sound: Path) -> None:
        raise AssertionError("it was left out before")

    def close(self) -> None:
        raise AssertionError("it was left out before")


def test_a_tracker_that_fails_is_named_once_and_the_training_goes_on(tmp_path: Path, events: list[Event]) -> None:
    listener = Listener(tmp_path)
    reporter = trackers.TrackedReporter(listener, {"wandb": lambda first: Failing()})
    for event in events:
        reporter.emit(event)
    reporter.close()
    warnings = [event.message for event in listener.events if isinstance(event, WarningRaised)]
    assert len(warnings) == 1
    assert "Weights & Biases takes no more numbers of this run: ConnectionError: no route" in warnings[0]
    assert [event for event in listener.events if not isinstance(event, WarningRaised)] == events


def test_trackers_begin_in_their_order_and_once(tmp_path: Path, events: list[Event]) -> None:
    begun: list[tuple[str, int]] = []

    def maker(name: str) -> Callable[[int], trackers.ExperimentTracker]:
        def make(first: int) -> trackers.ExperimentTracker:
            begun.append((name, first))
            raise OSError("no")

        return make

    reporter = trackers.TrackedReporter(Listener(tmp_path), {name: maker(name) for name in ("tensorboard", "trackio")})
    for event in events:
        reporter.emit(event)
    assert begun == [("tensorboard", 1), ("trackio", 1)]


def test_a_tracker_that_cannot_be_started_is_named_and_the_training_goes_on(
        tmp_path: Path, events: list[Event], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    listener = told(tmp_path, events, "wandb")
    assert [event for event in listener.events if not isinstance(event, WarningRaised)] == events
    assert "Weights & Biases could not be started" in listener.of("warning")[0].message
    assert (tmp_path / trackers.FOLDER).is_dir()


def test_a_package_that_is_missing_is_named_when_it_is_asked_for(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="'wandb' was chosen, and its package is not installed"):
        check_requirements(Workspace.open(tmp_path / "workspace"), "train",
                           TrainOptions(job=JobOptions(tracker="wandb")))
