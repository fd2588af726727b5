"""The state of each tab from its last job: a finished training is done only where it is known to be good."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest

from core.jobs.job import Job
from core.jobs.state import JobState
from core.machine import MachineCheck
from core.workspace import Workspace
from ui.live import View
from ui.tab_states import StatedTab, TabState, states_view, tab_states
from ui.titles import title_of, with_titles


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path)


def job(workspace: Workspace, verb: str, status: str, **more: object) -> JobState:
    home = workspace.runs / f"{verb}-20261127-120000-9d83"
    return JobState(Job(home, verb, "cpu", (), 1.0, {}), status, started_at=1.0, **more)  # type: ignore[arg-type]


def stated(workspace: Workspace, jobs: Sequence[JobState], **more: object) -> dict[str, StatedTab]:
    view = View("start", {}, tuple(jobs))
    return {tab.name: tab for tab in tab_states(workspace, view, tuple(jobs), **more)}  # type: ignore[arg-type]


def test_a_new_workspace_has_not_started(workspace: Workspace) -> None:
    tabs = stated(workspace, ())
    assert {tab.state for tab in tabs.values()} == {TabState.NOT_STARTED}
    assert list(tabs) == ["start", "model", "data", "tokenizer", "embeddings", "train", "listen", "share", "jobs",
                          "storage", "doctor", "machine"]
    assert tabs["data"].description == "Data: not started"


@pytest.mark.parametrize(("learning", "state"), [
    ("learned", TabState.DONE), ("partly_learned", TabState.ATTENTION), ("not_measured", TabState.ATTENTION),
    ("not_learned", TabState.ATTENTION), ("silent", TabState.ATTENTION)])
def test_a_training_is_done_only_if_its_outcome_is_good(workspace: Workspace, learning: str, state: TabState) -> None:
    result = {"learning": learning, "learning_outcome": "Hausa: the outcome"}
    tabs = stated(workspace, [job(workspace, "train", "finished", result=result)])
    assert tabs["train"].state is tabs["start"].state is state
    if state is TabState.ATTENTION:
        assert tabs["train"].description.startswith("Train: attention, Hausa: the outcome")


def test_a_sweep_decides_and_not_the_trials_that_it_stopped(workspace: Workspace) -> None:
    trial = JobState(Job(workspace.runs / "rates-02", "train", "cpu", (), 1.0, {}), "stopped", started_at=2.0)
    sweep = JobState(Job(workspace.runs / "rates", "sweep", "cpu", (), 1.0, {}), "finished", started_at=1.0, result={})
    assert stated(workspace, [trial, sweep])["train"].state is TabState.DONE
    assert stated(workspace, [trial])["train"].state is TabState.ATTENTION


def test_work_is_shown_on_its_own_tab(workspace: Workspace) -> None:
    chain = [job(workspace, "train", "waiting"), job(workspace, "prepare", "running"),
             job(workspace, "download", "finished")]
    tabs = stated(workspace, chain)
    states = [tabs[name].state for name in ("start", "model", "data", "train", "jobs")]
    assert states == [TabState.RUNNING, TabState.DONE, TabState.RUNNING, TabState.NOT_STARTED, TabState.RUNNING]


def test_what_failed_needs_attention(workspace: Workspace) -> None:
    failed = job(workspace, "certify", "finished", result={"certificate": "failed: base_tokens", "learning": "learned"})
    assert stated(workspace, [failed])["share"].description == "Share: attention, a check failed"
    crashed = stated(workspace, [job(workspace, "prepare", "crashed")])
    assert (crashed["data"].state, crashed["data"].reason) == (TabState.ATTENTION, "crashed")
    finding = MachineCheck("ffmpeg", "fail", "It is missing.", "Install it.")
    assert stated(workspace, (), findings=[finding])["machine"].description == "Machine: attention, ffmpeg"


def test_the_page_gets_the_states_as_json(workspace: Workspace) -> None:
    shown = str(states_view(list(stated(workspace, ()).values())))
    data = shown.partition('data-states="')[2].partition('"')[0].replace("&quot;", '"').replace("&#34;", '"')
    assert json.loads(data)["train"] == {"label": "Train", "state": "not-started", "description": "Train: not started"}


@pytest.mark.parametrize(("reference", "title"), [
    ("base:tiny", "Built-in tiny model"), ("base:tiny+romanised", "Built-in tiny model, Latin letters"),
    ("codec:tiny", "Built-in tiny model, codec alone"), ("run:first@400", "run first, step 400"),
    ("run:train-20261127-120000-9d83@best", "run 9d83, best"), ("export:tiny-am", "export tiny-am"),
    ("recordings", "Original recordings"), ("base:gone", "base model gone"), ("a text: with one", "a text: with one")])
def test_a_model_has_a_title(workspace: Workspace, reference: str, title: str) -> None:
    assert title_of(workspace, reference) == title


def test_references_in_a_text_get_titles(workspace: Workspace) -> None:
    assert with_titles(workspace, "base:tiny and run:9d83") == "Built-in tiny model and run 9d83"
    assert with_titles(workspace, "run:first: ሰላም") == "run first: ሰላም"
