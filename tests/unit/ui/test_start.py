"""What Start remembers of the chain that a browser watches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from core.jobs.state import JobState
from core.submission import job_chains
from core.submission.jobs import submit_certificate
from core.workspace import Workspace
from ui import start
from ui.live import View


@pytest.fixture
def states(tmp_path: Path) -> tuple[JobState, ...]:
    """The chain of the demo as it runs, newest first."""
    made = job_chains.submit_chain(Workspace.open(tmp_path / "workspace"), certificate=False)
    return tuple(reversed([JobState(job, status="running") for job in made]))


def test_a_watched_chain_is_remembered_until_its_browser_was_taken_to_listen(states: tuple[JobState, ...]) -> None:
    watching = View("start", {"followed": ""}, states)
    training = states[0].id
    assert start.follow(watching) == training
    ended = tuple(replace(state, status="finished") for state in states)
    on_start = View("start", {"followed": training}, ended)
    assert start.follow(on_start) == training  # whichever answer comes first, the other one finds it
    assert start.follow(replace(on_start, tab="listen")) == ""
    assert start.follow(View("start", {"followed": ""}, ended)) == ""  # who comes later is not taken anywhere


def test_a_running_chain_is_shown_before_a_newer_one_that_failed(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path / "workspace")

    def chain(status: str, certificate: str) -> list[JobState]:
        """Newest first."""
        made = job_chains.submit_chain(workspace, certificate=False)
        first = [JobState(job, status=status) for job in reversed(made)]  # type: ignore[arg-type]
        return [JobState(submit_certificate(made[-1]), status=certificate), *first]  # type: ignore[arg-type]

    def shown(*newest_first: list[JobState]) -> list[JobState]:
        return list(reversed(start.chain_of([state for states in newest_first for state in states])))

    failed, resumed, queued = chain("failed", "skipped"), chain("running", "waiting"), chain("waiting", "waiting")
    assert shown(failed, resumed) == resumed
    assert shown(queued, resumed) == resumed
    assert shown(failed, queued) == queued
    assert shown(failed, chain("stopped", "skipped")) == failed
    assert shown(failed, chain("finished", "running")) == failed  # an older certificate hides no failure


def test_a_chain_says_that_its_model_can_be_used_when_it_is_trained(states: tuple[JobState, ...]) -> None:
    training = states[0]
    waiting = JobState(submit_certificate(training.job), status="waiting")
    usable = "You can use the trained model now."
    assert usable not in start.chain_view([training, waiting], "", None)
    assert usable in start.chain_view([replace(training, status="finished"), waiting], "", None)


def test_the_steps_are_told_in_the_order_of_the_chain() -> None:
    told = str(start.chain_view([], "A few minutes.", None))
    assert told.index("Train.") < told.index("Watch.") < told.index("Compare.") < told.index("Certificate.")


def test_what_a_button_said_goes_when_the_chain_has_ended(states: tuple[JobState, ...]) -> None:
    running = View("start", {}, states)
    assert "value" not in start.notice_while_running(running)  # type: ignore[operator]
    for status in ("finished", "failed", "stopped"):
        ended = View("start", {}, tuple(replace(state, status=status) for state in states))  # type: ignore[arg-type]
        assert start.notice_while_running(ended)["value"] == ""  # type: ignore[index]


def test_each_step_has_an_assessment_and_a_button(states: tuple[JobState, ...]) -> None:
    results = {
        "download": {"files": 16, "bytes": 12_000_000},
        "prepare": {"clips": 300, "minutes": 14.0, "clips_with_findings": 12},
        "tokenizer": {"tokens_added": 81, "characters": 40, "characters_covered": 39},
        "extend": {"new_rows": 81, "old_rows": 2454, "old_rows_equal": True},
        "certify": {"preservation": "unchanged"},
    }
    chain = [*reversed(states), JobState(submit_certificate(states[0].job))]
    finished = [replace(state, status="finished", result=results.get(state.verb)) for state in chain]
    shown = str(start.chain_view(finished, "", None))
    for assessment in ("16 files, ", "14 min of speech in 300 clips, 12 of them with findings.",
                       "New tokens: 81. Characters covered: 39 of 40.",
                       "New embeddings: 81. The 2,454 old ones are unchanged.", "Old languages: unchanged."):
        assert assessment in shown
    assert [name for name in ("model", "data", "tokenizer", "embeddings", "train", "share")
            if f'data-open-tab="{name}"' not in shown] == []

    comparison = replace(finished[0], job=replace(finished[0].job, verb="compare"), result={"texts": 10})
    assert start.step_assessment(comparison) == "Texts spoken by both models: 10."

    # Nothing is claimed of what has not ended, or of a result that lacks the number.
    assert all(start.step_assessment(replace(state, status="running")) == "" for state in finished)
    assert start.step_assessment(replace(finished[1], result={"folder": "x"})) == ""
    assert "data-open-tab" not in str(start.chain_view([replace(chain[0], status="waiting")], "", None))
