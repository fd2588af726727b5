"""What is said of a job that ended early is what is on the disk."""

from __future__ import annotations

import pytest

from config.schema import PrepareOptions
from core import jobs, kept
from core.job import create
from core.workspace import Workspace
from tests.unit.live_jobs import PATIENCE_S, launch, running, train

NOTHING = "Nothing was saved yet; it begins again."


def test_a_training_without_a_checkpoint_begins_again(workspace: Workspace) -> None:
    job = train(workspace, "quick")
    assert kept.words(job) == NOTHING
    for step in (200, 1000):
        (job.directory / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    assert kept.words(job) == "The checkpoint of step 1000 is saved; it goes on from there."


def test_a_dataset_goes_on_with_what_was_read(workspace: Workspace) -> None:
    job = create(workspace, "prepare", PrepareOptions(dataset="d", source="/somewhere"))
    assert kept.words(job) == "What was done before is kept; it goes on from there."


@pytest.mark.parametrize("behaviour", ["killed", "exits", "buggy", "resumable"])
def test_a_worker_that_died_claims_nothing(workspace: Workspace, behaviour: str) -> None:
    state = jobs.wait(launch(train(workspace, behaviour)), PATIENCE_S)
    assert state.status in ("crashed", "failed")
    assert state.hint.endswith(NOTHING)
    assert "intact" not in state.hint


def test_a_force_stop_says_that_nothing_was_saved(workspace: Workspace) -> None:
    job = launch(train(workspace, "stubborn"))
    running(job)
    jobs.force_stop(job, grace_s=0.1)
    assert jobs.state(job).message == f"Stopped by force. {NOTHING}"
