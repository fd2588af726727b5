"""Runs on one chart: every run has its line, logarithms keep ratios, and what was set differently is told."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from config.loading import parse_options
from config.schema import TrainOptions
from core.jobs.events import Evaluated, Step
from core.jobs.job import create_job
from core.jobs.state import JobState, JobStateReducer
from core.workspace import Workspace
from ui import charts, train
from ui.live import View


def trained(workspace: Workspace, name: str, *, steps: int = 5, memory: bool = True, **options: object) -> JobState:
    """A run that made `steps` and was validated at the last."""
    job = create_job(workspace, "train", parse_options(TrainOptions, options), job_id=name)  # type: ignore[arg-type]
    fold = JobStateReducer(job)
    for step in range(1, steps + 1):
        fold.add(Step(step, 10, 4.0 / step, 2.0 / step, {"rows": 1e-3 * step}, 0.5, 900.0, 6.0 * step, None,
                      2_000_000_000 + step if memory else None, "gpu" if memory else ""))
    if steps:
        numbers = {"speech_loss": 1.5, "text_loss": 0.7, "accuracy": 0.4, "clips": 4}
        fold.add(Evaluated(steps, 1.5, {"am": 0.3}, languages={"am": numbers, "en": numbers}))
    return fold.state()


@pytest.fixture
def states(tmp_path: Path) -> list[JobState]:
    workspace = Workspace.open(tmp_path)
    return [trained(workspace, "one", row_lr=1e-3), trained(workspace, "two", row_lr=5e-3)]


def titles(html: str) -> list[str]:
    return [part.partition("</h2>")[0] for part in html.split("<h2>")[1:]]


def test_each_measure_has_a_line_for_each_run(states: list[JobState]) -> None:
    html = train.comparison_view(states, False, False)
    for title in ("Speech loss", "Text loss", "Held-out speech loss, Amharic", "Held-out speech loss, English",
                  "CER, Amharic", "Learning rate, rows", "Gradient norm", "Tokens per second", "Peak memory, GiB"):
        assert title in titles(html)
    speech = html[html.index("<h2>Speech loss"):html.index("<h2>Text loss")]
    assert speech.count("<polyline") == 2
    assert "--series-1" in speech
    assert "--series-2" in speech


def test_each_parameter_group_has_a_chart_of_its_rate(states: list[JobState]) -> None:
    gated = replace(states[0], steps=tuple(replace(step, learning_rates={"rows": 2e-3, "adapters": 1e-4})
                                           for step in states[0].steps))
    html = train.comparison_view([gated, states[1]], False, False)
    by_title = {part.partition("</h2>")[0]: part for part in html.split("<h2>")[1:]}
    assert [by_title[f"Learning rate, {group}"].count("<polyline") for group in ("rows", "adapters")] == [2, 1]
    assert "Learning rate, adapters" not in train.comparison_view(states, False, False)


def test_a_run_of_before_memory_was_told_has_no_line_and_no_number(states: list[JobState], tmp_path: Path) -> None:
    old = trained(Workspace(tmp_path), "old", memory=False)
    html = train.comparison_view([old, states[0]], False, False)
    memory = html[html.index("<h2>Peak memory, GiB"):html.index("<table")]
    assert memory.count("<polyline") == 1
    assert "1.9 GiB (GPU)" in html
    assert "Peak memory, GiB" not in titles(train.comparison_view([old], False, False))


def test_what_was_set_differently_is_told_and_the_rest_is_not(states: list[JobState]) -> None:
    told = train.comparison_view(states, False, False).partition("Different options")[2]
    assert "Learning rate, rows" in told
    assert "0.005" in told
    assert "Weight decay" not in told


def test_along_minutes_a_point_stands_at_its_time(states: list[JobState]) -> None:
    [line, _] = next(lines for title, lines, _ in train._charts(states, True) if title == "Learning rate, rows")
    assert line.points[-1] == (0.5, pytest.approx(states[0].steps[-1].learning_rates["rows"]))


def test_the_newest_are_shown_until_some_are_chosen(states: list[JobState], tmp_path: Path) -> None:
    idle = trained(Workspace(tmp_path), "idle", steps=0)
    everything = (idle, *states)
    assert train.compared_runs(View("train", {"runs": "[]"}, everything)) == states
    assert train.compared_runs(View("train", {"runs": '["two"]'}, everything)) == [states[1]]


def test_no_run_yet_is_said() -> None:
    assert "after its first step" in train.comparison_view([], False, False)


def test_on_a_logarithmic_axis_equal_ratios_are_equal_heights() -> None:
    drawn = charts.chart("Loss", [charts.Series("a", [(1, 1.0), (2, 10.0), (3, 100.0)])], y_log=True)
    heights = [float(point.split(",")[1]) for point in drawn.partition('points="')[2].partition('"')[0].split()]
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2], abs=0.02)
    assert ">10<" in drawn


def test_a_narrow_logarithmic_axis_has_round_numbers_too() -> None:
    drawn = charts.chart("Loss", [charts.Series("a", [(1, 2.3), (2, 2.4), (3, 2.6)])], y_log=True)
    labels = [float(part.partition("<")[0]) for part in drawn.split('class="y-label"')[1:]
              for part in [part.partition(">")[2]]]
    assert len(labels) > 2
    assert all(round(label, 1) == label for label in labels)


def test_what_has_no_logarithm_is_left_out() -> None:
    drawn = charts.chart("Loss", [charts.Series("a", [(1, 0.0), (2, math.nan), (3, 2.0), (4, 1.0)])], y_log=True)
    assert drawn.count(",") >= 2
    assert len(drawn.partition('points="')[2].partition('"')[0].split()) == 2
    assert "Nothing measured yet" in charts.chart("Loss", [charts.Series("a", [(1, 0.0)])], y_log=True)


@pytest.mark.parametrize(("low", "high", "values"), [
    (0.0, 1.0, [1, 2, 5, 10]), (0.16, 0.72, [1.5, 2, 3, 4, 5]), (-1.0, 1.0, [0.1, 0.3, 1, 3, 10]),
    (-3.0, 0.0, [0.001, 0.01, 0.1, 1]),
    (-9.0, 3.0, [1e-9, 1e-6, 1e-3, 1, 1e3]), (0.35, 0.45, []),
])
def test_ticks_of_a_logarithmic_axis_are_round(low: float, high: float, values: list[float]) -> None:
    assert [10**height for height in charts.log_ticks(low, high)] == pytest.approx(values)
