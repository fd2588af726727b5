"""A true app, true workers and the true model server: what was loaded for one comparison speaks the next at once."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from config.schema import CompareOptions, SamplingOptions
from core.jobs import control
from core.jobs.job import create_job
from core.jobs.model_server_client import ModelServerClient
from core.jobs.state import JobState
from core.workspace import Workspace
from tests.processes import PATIENCE_S
from tests.serving import served
from tests.trained import RUN, trained_world


def compare(workspace: Workspace) -> JobState:
    options = CompareOptions(finetuned=f"run:{RUN}", texts=(("en", "the cat"), ("am", "ሀለመ")), device="cpu",
                             sampling=SamplingOptions(temperature=1.0, seed=5))
    job = create_job(workspace, "compare", options)
    control.start(job)
    state = control.wait(job, PATIENCE_S)
    assert state.status == "finished", f"{state.status}: {state.message}\n{control.log_tail(job)}"
    return state


def sounds(state: JobState) -> list[bytes]:
    return [(state.job.directory / clip.path).read_bytes() for clip in state.audio]


@pytest.mark.long
def test_the_second_comparison_loads_nothing_and_sounds_the_same(tmp_path: Path) -> None:
    workspace = trained_world(tmp_path / "workspace")
    server = ModelServerClient(workspace, "cpu")
    alone = compare(workspace)  # no app lives, so nothing is kept
    assert not server.running
    with served(workspace.path):
        first, again = compare(workspace), compare(workspace)
        assert server.running
    assert [state.plan.counts["loaded"] for state in (alone, first, again) if state.plan] == [2, 2, 0]
    assert again.plan is not None
    assert "already loaded" in again.plan.lines[0]
    assert sounds(alone) == sounds(first) == sounds(again)
    deadline = time.monotonic() + PATIENCE_S
    while server.running:  # it goes with the app
        assert time.monotonic() < deadline, "the model server stays"
        time.sleep(0.1)
