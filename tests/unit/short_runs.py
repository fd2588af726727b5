"""Runs of a few steps in a small world."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from core import train
from core.jobs.reporter import StopRequested
from core.training import checkpoint_evaluation
from core.training.checkpoint_evaluation import ValidationLosses
from core.workspace import Workspace
from tests.worlds import Listener, train_options


def measured_as(monkeypatch: pytest.MonkeyPatch, losses: Iterator[float]) -> None:
    """Let the held-out speech losses be these, one after another."""
    monkeypatch.setattr(checkpoint_evaluation, "measure_losses",
                        lambda *given: {"am": ValidationLosses(4, next(losses), 1.0, 0.5)})


def started(world: Workspace, name: str = "one", stop_after: int | None = None, **changes: object) -> Listener:
    """What was heard of a run, which goes on where one of that name is; stopped after so many steps."""
    listener = Listener(world.runs / name, stop_after)
    if stop_after is None:
        train.run(train_options(**changes), world, listener)
    else:
        with pytest.raises(StopRequested):
            train.run(train_options(**changes), world, listener)
    return listener
