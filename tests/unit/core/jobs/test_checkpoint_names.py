"""What is said of a job that ended early is what is on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import CertifyOptions, PrepareOptions
from core.jobs import checkpoint_names, control
from core.jobs.events import CheckpointSaved, Finished, Journal, append_event
from core.jobs.job import create_job, load_job
from core.library import lineage
from core.library.lineage import Model
from core.submission.jobs import check_requirements
from core.training import checkpoint
from core.workspace import Workspace
from scripts import pin_checkpoint
from tests.unit.live_jobs import PATIENCE_S, launch, running, train

NOTHING = "Nothing was saved yet; it resumes from the beginning."


def test_a_training_without_a_checkpoint_begins_again(workspace: Workspace) -> None:
    job = train(workspace, "quick")
    assert checkpoint_names.resume_point(job) == NOTHING
    for step in (200, 1000):
        (job.directory / "checkpoints" / f"step-{step:06d}").mkdir(parents=True)
    assert checkpoint_names.resume_point(job) == "It resumes from the checkpoint of step 1000."


def test_a_dataset_goes_on_with_what_was_read(workspace: Workspace) -> None:
    job = create_job(workspace, "prepare", PrepareOptions(dataset="d", language="am", source="/somewhere"))
    assert checkpoint_names.resume_point(job) == "It resumes from where it stopped."


@pytest.mark.parametrize("behaviour", ["killed", "exits", "buggy"])
def test_a_worker_that_died_claims_nothing(workspace: Workspace, behaviour: str) -> None:
    state = control.wait(launch(train(workspace, behaviour)), PATIENCE_S)
    assert state.status in ("crashed", "failed")
    assert state.hint.endswith(NOTHING)
    assert "intact" not in state.hint


def test_a_worker_that_died_names_the_checkpoint_that_it_left(workspace: Workspace) -> None:
    state = control.wait(launch(train(workspace, "resumable")), PATIENCE_S)
    assert state.status in ("crashed", "failed")
    assert state.hint.endswith("It resumes from the checkpoint of step 3.")


def test_a_force_stop_says_that_nothing_was_saved(workspace: Workspace) -> None:
    job = launch(train(workspace, "stubborn"))
    running(job)
    control.force_stop(job, grace_s=0.1)
    assert control.read_state(job).message == f"Stopped by force. {NOTHING}"


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
    checkpoint_names.pin(run, 200, "good")
    checkpoint.prune_checkpoints(run, last=1, best=None)
    assert checkpoint_names.checkpoint_steps(run) == [200, 400]
    assert Model.open(workspace, "run:one@good").step == 200
    assert checkpoint_names.unpin(run, "good") == 200
    checkpoint.prune_checkpoints(run, last=1, best=None)
    assert checkpoint_names.checkpoint_steps(run) == [400]


def test_a_name_that_is_taken_or_a_step_that_is_gone_is_refused(run: Path) -> None:
    checkpoint_names.pin(run, 200, "good")
    with pytest.raises(UserError, match="step 200 has the name 'good' already"):
        checkpoint_names.pin(run, 400, "good")
    with pytest.raises(UserError, match="no checkpoint of step 300") as caught:
        checkpoint_names.pin(run, 300, "other")
    assert "200, 400" in caught.value.hint
    with pytest.raises(UserError, match="cannot be a name"):
        checkpoint_names.pin(run, 400, "../up")
    with pytest.raises(UserError, match="No checkpoint of 'one' has the name 'other'"):
        checkpoint_names.unpin(run, "other")


def test_a_run_stands_for_the_checkpoint_of_ones_choice(run: Path, workspace: Workspace) -> None:
    job = load_job(workspace, "one")
    with pytest.raises(UserError, match="a checkpoint can be selected for a finished training only"):
        control.use_checkpoint(job, "200")
    append_event(job.journal, Finished({}))
    assert Model.open(workspace, "run:one").step == 400
    with pytest.raises(UserError, match="no checkpoint of step 300"):
        control.use_checkpoint(job, "300")
    checkpoint_names.pin(run, 200, "good")
    control.use_checkpoint(job, "good")
    assert Model.open(workspace, "run:one").step == Model.open(workspace, "run:one@choice").step == 200
    checkpoint_names.unpin(run, "good")
    checkpoint.prune_checkpoints(run, last=1, best=400)
    assert checkpoint_names.checkpoint_steps(run) == [200, 400]
    state = control.read_state(job)
    assert [one.reference for one in lineage.list_checkpoints(state)] == ["run:one@400", "run:one@200"]
    with pytest.raises(UserError, match="refers to step 200 already"):
        control.use_checkpoint(job, "200")
    control.use_checkpoint(job, "")
    assert Model.open(workspace, "run:one").step == 400
    with pytest.raises(UserError, match="is reserved for the checkpoint that the run refers to"):
        checkpoint_names.pin(run, 200, "choice")


def test_the_best_checkpoint_has_a_reference_of_its_own(run: Path, workspace: Workspace) -> None:
    append_event(load_job(workspace, "one").journal, Finished({}))
    checkpoint_names.set_choice(run, "200")
    assert Model.open(workspace, "run:one@best").step == 400
    for ours in ("run:one@best", "run:one@200", "run:one"):
        assert check_requirements(workspace, "certify", CertifyOptions(run=ours)) == ()
    for taken in ("best", "400"):
        with pytest.raises(UserError, match=f"run:one@{taken} is"):
            checkpoint_names.pin(run, 200, taken)


def test_a_damaged_list_of_names_hides_no_run_and_gives_no_other_checkpoint(run: Path, workspace: Workspace) -> None:
    checkpoint_names.set_choice(run, "200")
    (run / "checkpoints" / "names.json").write_text("[", encoding="utf-8")
    state = control.read_state(load_job(workspace, "one"))
    assert [one.reference for one in lineage.list_models(workspace, [state])] == ["run:one"]
    assert [one.reference for one in lineage.list_checkpoints(state)] == ["run:one@400", "run:one@200"]
    with pytest.raises(UserError, match=r"names\.json could not be read"):
        Model.open(workspace, "run:one")


def test_an_unknown_run_is_answered_with_those_that_speak(run: Path, workspace: Workspace) -> None:
    create_job(workspace, "prepare", PrepareOptions(dataset="d", language="am", source="/somewhere"), job_id="no-voice")
    with pytest.raises(UserError, match=r"no run named 'nope' \(there: one\)"):
        Model.open(workspace, "run:nope")


def test_nothing_is_deleted_while_a_name_is_given(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint_names, "_LOCK_TIMEOUT_S", 0.0)
    with checkpoint_names.checkpoint_lock(run), pytest.raises(UserError, match="in use"):
        checkpoint.prune_checkpoints(run, last=1, best=None)
    assert checkpoint_names.checkpoint_steps(run) == [200, 400]


def test_the_command_names_lists_and_releases(run: Path, workspace: Workspace, capsys: pytest.CaptureFixture) -> None:
    place = ["--workspace", str(workspace.path)]
    assert pin_checkpoint.main(["one", "400", "best-so-far", *place]) == 0
    assert "run:one@best-so-far" in capsys.readouterr().out
    assert pin_checkpoint.main(["one", "--json", *place]) == 0
    assert json.loads(capsys.readouterr().out) == {"run": "one", "steps": [200, 400], "names": {"best-so-far": 400}}
    assert pin_checkpoint.main(["one", "--unpin", "nothing", *place]) == 2
    assert "Pinned checkpoints: best-so-far" in capsys.readouterr().err
