"""What is said of a job that ended early is what is on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import PrepareOptions
from core import jobs
from core.job import kept
from core.job.directory import create
from core.job.journal import CheckpointSaved, Journal
from core.library import catalog
from core.training import checkpoint
from core.workspace import Workspace
from scripts import keep
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


@pytest.fixture
def run(workspace: Workspace) -> Path:
    job = train(workspace, "quick", name="one")
    for step in (200, 400):
        (job.directory / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    journal = Journal(job.journal)
    for step in (200, 400):
        journal.append(CheckpointSaved(step, f"checkpoints/step-{step:06d}", best=step == 400))
    journal.close()
    return job.directory


def test_a_named_checkpoint_is_kept_until_it_is_released(run: Path, workspace: Workspace) -> None:
    kept.keep(run, 200, "good")
    checkpoint.prune_checkpoints(run, last=1, best=None)
    assert kept.steps(run) == [200, 400]
    assert catalog.resolve(workspace, "run:one@good").step == 200
    assert kept.release(run, "good") == 200
    checkpoint.prune_checkpoints(run, last=1, best=None)
    assert kept.steps(run) == [400]


def test_a_name_that_is_taken_or_a_step_that_is_gone_is_refused(run: Path) -> None:
    kept.keep(run, 200, "good")
    with pytest.raises(UserError, match="step 200 has the name 'good' already"):
        kept.keep(run, 400, "good")
    with pytest.raises(UserError, match="no checkpoint of step 300") as caught:
        kept.keep(run, 300, "other")
    assert "200, 400" in caught.value.hint
    with pytest.raises(UserError, match="cannot be a name"):
        kept.keep(run, 400, "../up")
    with pytest.raises(UserError, match="No checkpoint of 'one' has the name 'other'"):
        kept.release(run, "other")


def test_nothing_is_deleted_while_a_name_is_given(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "_PATIENCE_S", 0.0)
    with kept.held(run), pytest.raises(UserError, match="in use"):
        checkpoint.prune_checkpoints(run, last=1, best=None)
    assert kept.steps(run) == [200, 400]


def test_the_command_names_lists_and_releases(run: Path, workspace: Workspace, capsys: pytest.CaptureFixture) -> None:
    place = ["--workspace", str(workspace.path)]
    assert keep.main(["one", "400", "best-so-far", *place]) == 0
    assert "run:one@best-so-far" in capsys.readouterr().out
    assert keep.main(["one", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": "one", "steps": [200, 400], "names": {"best-so-far": 400}}
    assert keep.main(["one", "--release", "nothing", *place]) == 2
    assert "Names that are kept: best-so-far" in capsys.readouterr().err
