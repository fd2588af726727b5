"""A training that is known to be too short says so before it starts, and offers the time that is enough."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.loading import change_options
from core.jobs.events import Finished, Queued, Started, Step
from core.jobs.job import create_job
from core.jobs.state import JobBoard
from core.workspace import Workspace
from tests.browser import scenes
from tests.worlds import extended_world
from ui import start
from ui.live import View

CHOSEN = {"start_model": "tiny", "start_language": "am", "start_dataset": "mine", "start_length": start.FULL,
          "start_own_name": "", "start_own_language": ""}


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return extended_world(tmp_path)


def view(workspace: Workspace, step_s: float | None, length: str = start.FULL) -> View:
    """Start in a workspace whose last training took `step_s` seconds a step; None: no training yet."""
    if step_s is not None:
        options = start.training_options(workspace, start.CATALOG[0], "", start.FULL, ())[1]
        job = create_job(workspace, "train", change_options(options, {"extension": "tiny-am", "device": "cpu"}))
        scenes.append(job, Queued(), Started(1, 1), *(
            Step(step, 800, 3.0, 2.0, {"rows": 0.01}, 1.0, 900.0, step * step_s) for step in range(1, 11)),
            Finished({}))
    return View("start", {**CHOSEN, "start_length": length}, tuple(JobBoard(workspace).states()))


@pytest.mark.parametrize(("step_s", "length", "fitting", "too_short", "longer"), [
    (13.0, start.FULL, 23, True, "60"), (13.0, "60", 276, False, "60"), (0.3, start.FULL, 800, False, "15"),
    (0.7, start.FULL, 428, False, "15"), (100.0, "60", 36, True, "")])
def test_steps_that_fit_are_compared_with_those_needed(workspace: Workspace, step_s: float, length: str, fitting: int,
                                                       too_short: bool, longer: str) -> None:
    budget = start.step_budget(workspace, view(workspace, step_s, length))
    assert budget is not None
    assert (budget.needed, budget.too_short, budget.longer) == (800, too_short, longer)
    assert min(budget.fitting, 800) == fitting


def test_the_button_says_that_a_training_is_too_short(workspace: Workspace) -> None:
    seen = view(workspace, 13.0)
    budget = start.step_budget(workspace, seen)
    assert budget is not None
    assert start.start_button(seen, budget)["value"] == "Train Amharic: too short, 23 of 800 steps"  # type: ignore[index]
    shown = start.too_short_notice(budget)
    assert "23 of 800 steps fit" in shown
    assert "notice bad" in shown
    assert "60 minutes" in shown


def test_nothing_is_known_before_a_step_was_timed_and_a_quick_test_is_meant_to_be_short(workspace: Workspace) -> None:
    assert start.step_budget(workspace, view(workspace, None)) is None
    assert start.step_budget(workspace, view(workspace, 13.0, start.QUICK)) is None
