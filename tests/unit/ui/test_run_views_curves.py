"""What Train draws of a run: each loss by language, on either axis, and how the machine does; old journals too."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from core.jobs.events import Evaluated, Journal, Queued, Started, Step
from core.jobs.job import Job
from core.jobs.state import JobState
from core.workspace import Workspace
from tests.unit.fake_verbs import step
from tests.unit.live_jobs import train
from ui import charts, media, run_views

RATES = {"rows": 1e-3, "adapters": 1e-4}


def run(count: int = 20, *, languages: tuple[str, ...] = ("am",), scope: str = "gated",
        memory: bool = True) -> JobState:
    """A run that was validated at its 10th and its last step; each language's loss rises more than the one before's."""
    steps = tuple(Step(step, 40, 8.0 / step, 2.0, dict(RATES), 0.5 + step / 100, 900.0 + step, float(step), 9.0,
                       3_000_000_000 if memory else None, "gpu" if memory else "")
                  for step in range(1, count + 1))
    measured = tuple(Evaluated(step, 2.0, {"am": 0.3}, 0.7, 0.4, {
        code: {"speech_loss": 2.0 + (0.01 * at * step), "text_loss": 0.7} for at, code in enumerate(languages)})
        for step in (10, count))
    return JobState(Job(Path("/w/runs/one"), "train", "cpu", (), 1.0, {"scope": scope}), "running", steps=steps,
                    evaluations=measured)


def titles(html: str) -> list[str]:
    return re.findall(r"<h2>(.*?)</h2>", html)


def drawn(html: str, title: str) -> str:
    """The chart of that title."""
    return next(part for part in html.split("<h2>") if part.startswith(f"{title}</h2>"))


def keys(html: str, title: str) -> list[str]:
    """What its legend names."""
    return re.findall(r'class="swatch"[^>]*></span>([^<]*)<', drawn(html, title))


def heights(html: str, title: str) -> list[float]:
    """Of the points of its first line."""
    points = drawn(html, title).partition('points="')[2].partition('"')[0]
    return [float(point.split(",")[1]) for point in points.split()]


def test_all_that_is_measured_of_a_step_has_a_chart() -> None:
    assert titles(run_views.run_curves(run())) == [
        "Speech loss", "Text loss", "Character error rate (CER)", "Learning rate", "Gradient norm", "Tokens per second",
        "Peak memory, GPU, GiB"]


def test_the_held_out_loss_names_its_language_and_the_others_have_charts_of_their_own() -> None:
    one, several = run_views.run_curves(run()), run_views.run_curves(run(languages=("am", "en", "fr"), scope="full"))
    assert keys(one, "Speech loss") == ["training", "held-out, Amharic"]
    assert "Held-out speech loss by language" not in titles(one)
    assert "their loss cannot change" in one
    for title in ("Held-out speech loss by language", "Held-out text loss by language"):
        assert set(keys(several, title)) == {"Amharic", "English", "French"}
        assert keys(several, title)[0] == "Amharic"
    assert "cannot change" not in several


def test_of_many_languages_those_that_rose_most_are_drawn_and_the_rest_is_counted() -> None:
    codes = ("am", "en", "fr", "de", "es", "it", "pt", "ru", "sw")
    html = run_views.run_curves(run(languages=codes, scope="full"))
    assert keys(html, "Held-out speech loss by language") == [
        "Amharic", "Swahili", "Russian", "Portuguese", "Italian", "Spanish"]
    assert "3 more languages are measured" in html


def test_each_parameter_group_has_its_learning_rate() -> None:
    assert keys(run_views.run_curves(run()), "Learning rate") == ["rows", "adapters"]
    assert run_views.learning_rates_by_group(run())["rows"][0] == (1.0, pytest.approx(1e-3))


def test_the_logarithmic_axis_is_that_of_losses_rates_and_gradients_and_not_of_the_machine() -> None:
    linear, log = run_views.run_curves(run()), run_views.run_curves(run(), logarithmic=True)
    for title in ("Speech loss", "Learning rate", "Gradient norm"):
        assert heights(linear, title) != heights(log, title)
    for title in ("Character error rate (CER)", "Tokens per second", "Peak memory, GPU, GiB"):
        assert drawn(linear, title) == drawn(log, title)


def test_memory_that_was_not_told_has_no_chart() -> None:
    assert not [title for title in titles(run_views.run_curves(run(memory=False))) if "memory" in title]


def test_a_line_that_does_not_move_is_drawn_flat_in_spite_of_rounding() -> None:
    points = [(float(step), 0.8 + (1e-16 if step % 2 else 0.0)) for step in range(30)]
    html = charts.chart("Norm", [charts.Series("norm", points)])
    assert len(set(heights(html, "Norm"))) == 1


def test_a_chart_says_the_last_values_to_those_who_do_not_see_it() -> None:
    series = [charts.Series("raw", [(1, 9.0)], style="faint"), charts.Series("speech", [(1, 10.0), (2, 1.25)])]
    assert 'aria-label="Loss; last: speech 1.25"' in charts.chart("Loss", series)
    assert 'aria-label="Loss; last: speech 1.25"' in charts.chart("Loss", series, y_log=True)


def test_a_long_run_is_a_light_page() -> None:
    assert len(run_views.run_curves(run(5000))) < 40_000


@pytest.mark.parametrize("percent", [False, True])
def test_labels_of_close_values_are_told_apart(percent: bool) -> None:
    drawn = charts.chart("Loss", [charts.Series("one", ((0.0, 2.53401), (1.0, 2.53423)))], y_percent=percent)
    labels = re.findall(r'class="y-label"[^>]*>([^<]*)<', str(drawn))
    assert len(labels) > 1
    assert len(set(labels)) == len(labels)


def test_the_curves_are_downloaded_with_everything_that_was_measured(workspace: Workspace) -> None:
    job = train(workspace, "quick", name="mine")
    journal = Journal(job.journal)
    for event in (Queued(), Started(1, 1), replace(step(1), learning_rates={"rows": 0.5}),
                  replace(step(2), learning_rates={}),
                  Evaluated(2, 1.0, {"am": 0.25}, languages={"am": {"speech_loss": 1.0}}), step(3)):
        journal.append(event)
    journal.close()
    app = Starlette(routes=media.routes(workspace))
    given = TestClient(app).get(media.curves_url("mine"))
    assert "attachment" in given.headers["content-disposition"]
    rows = list(csv.DictReader(io.StringIO(given.text)))
    assert [row["step"] for row in rows] == ["1", "2", "3"]
    assert [row["speech_loss"] for row in rows] == ["1.0"] * 3
    assert [row["learning_rate.rows"] for row in rows] == ["0.5", "", "0.1"]
    assert [row["held_out.am.speech_loss"] for row in rows] == ["", "1.0", ""]
    assert [row["cer.am"] for row in rows] == ["", "0.25", ""]
    assert TestClient(app).get(media.curves_url("other")).status_code == 404
