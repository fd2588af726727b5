"""Jobs in true worker processes; `tests.unit.fake_verbs` says what each extension's name does."""

import os
import threading

import pytest
import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import TrainOptions
from core.jobs import control, locks
from core.jobs.events import Journal, Queued
from core.jobs.job import create_job, load_job, rewrite_options
from core.jobs.state import JobBoard
from core.workspace import Workspace
from tests.files_before_sections import write_without_sections
from tests.unit.fake_verbs import COMMAND
from tests.unit.live_jobs import PATIENCE_S, launch, running, train, until


def test_a_job_from_before_there_were_sections_has_the_same_options(workspace: Workspace):
    job = train(workspace, "quick", steps=5, name="first")
    write_without_sections(job.directory / "config.yaml")
    assert load_job(workspace, "first") == job
    assert load_job(workspace, "first").options() == job.options()
    changed, changes = rewrite_options(load_job(workspace, "first"), {"keep_last": 4})
    assert changes == ("keep_last: 4 (before: 2)",)
    assert yaml.safe_load((job.directory / "config.yaml").read_text())["options"]["checkpoints"]["keep_last"] == 4
    assert changed.settings == {**job.settings, "keep_last": 4}


def test_a_job_is_written_whole_with_its_options_frozen(workspace: Workspace):
    job = train(workspace, "quick", steps=5, name="first")
    values = yaml.safe_load((job.directory / "config.yaml").read_text())
    assert values["options"]["length"]["steps"] == 5
    assert load_job(workspace, "first") == job
    assert job.options() == parse_options(TrainOptions, {"extension": "quick", "steps": 5, "device": "cpu"})
    assert control.read_state(job).status == "created"
    assert not [name for name in os.listdir(workspace.runs) if name.startswith(".")]


def test_a_name_that_is_taken_is_refused_and_the_first_run_kept(workspace: Workspace):
    first = train(workspace, "quick", name="mine")
    with pytest.raises(UserError, match="'mine' already exists"):
        train(workspace, "buggy", name="mine")
    assert load_job(workspace, "mine") == first
    assert os.listdir(workspace.runs) == ["mine"]


def test_names_that_leave_the_workspace_are_refused(workspace: Workspace):
    with pytest.raises(UserError, match=r"'\.\./\.\./x' cannot be a name"):
        train(workspace, "quick", name="../../x")
    with pytest.raises(UserError, match=r"'\.\./\.\./x' cannot be a name"):
        load_job(workspace, "../../x")
    with pytest.raises(UserError, match="no run named 'nobody'"):
        train(workspace, "quick", after=("nobody",))
    assert workspace.list_runs() == []


def test_a_folder_that_is_no_job_is_named_and_does_not_hide_the_others(workspace: Workspace):
    job = train(workspace, "quick")
    (workspace.runs / "stray").mkdir()
    with pytest.raises(UserError, match=r"stray/config.yaml is not the configuration of a job"):
        load_job(workspace, "stray")
    assert [state.id for state in JobBoard(workspace).states()] == [job.id]


def test_a_job_runs_to_its_end_and_tells_its_result(workspace: Workspace):
    job = launch(train(workspace, "quick", steps=12))
    state = control.wait(job, PATIENCE_S)
    assert (state.status, state.result, state.exit_code, state.attempt) == ("finished", {"steps": 12}, 0, 1)
    assert [event.step for event in state.steps] == list(range(1, 13))
    assert state.progress is not None
    assert (state.progress.done, state.progress.total, state.eta_s) == (12, 12, None)
    until(job, lambda _state: "Finished: steps 12" in control.log_tail(job))  # the log follows the journal


def test_a_second_start_is_refused_while_it_runs_and_after(workspace: Workspace):
    job = launch(train(workspace, "patient"))
    with pytest.raises(control.AlreadyRunning, match=f"{job.id} is already running"):
        launch(job)
    running(job)
    with pytest.raises(control.AlreadyRunning):
        control.resume(job, command=COMMAND)
    control.stop(job)
    control.wait(job, PATIENCE_S)
    with pytest.raises(UserError, match=r"already run|already running"):
        launch(job)


def test_of_many_starts_at_once_one_wins(workspace: Workspace):
    job = train(workspace, "patient")
    refused: list[UserError] = []
    gate = threading.Barrier(8)

    def try_to_start() -> None:
        gate.wait()
        try:
            launch(job)
        except UserError as error:
            refused.append(error)

    threads = [threading.Thread(target=try_to_start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 7
    running(job)
    assert job.journal.read_text().count('"queued"') == 1


def test_a_stop_lets_the_job_save_and_a_resume_goes_on(workspace: Workspace):
    job = launch(train(workspace, "patient"))
    running(job)
    control.stop(job)
    state = control.wait(job, PATIENCE_S)
    assert (state.status, state.message, state.resumable) == ("stopped", "Saved at step 7.", True)
    until(job, lambda _: not locks.is_held(job.lock))
    control.resume(job, command=COMMAND)
    assert not job.stop_file.exists()
    assert running(job).attempt == 2
    assert control.read_state(job).message == ""


def test_a_job_that_was_asked_to_stop_is_shown_as_stopping(workspace: Workspace):
    job = launch(train(workspace, "stubborn"))
    running(job)
    control.stop(job)
    assert control.read_state(job).status == "stopping"
    control.force_stop(job, grace_s=0.1)
    state = control.read_state(job)
    assert (state.status, state.resumable) == ("stopped", True)
    assert "by force" in state.message


def test_a_force_stop_of_a_willing_job_still_lets_it_save(workspace: Workspace):
    job = launch(train(workspace, "patient"))
    running(job)
    control.force_stop(job, grace_s=PATIENCE_S)
    assert control.read_state(job).message == "Saved at step 7."


def test_stopping_what_has_ended_changes_nothing(workspace: Workspace):
    job = launch(train(workspace, "quick"))
    control.wait(job, PATIENCE_S)
    until(job, lambda _: not locks.is_held(job.lock))
    before = job.journal.read_bytes()
    control.stop(job)
    control.force_stop(job)
    assert job.journal.read_bytes() == before
    with pytest.raises(UserError, match="cannot be resumed: it is finished"):
        control.resume(job, command=COMMAND)


def test_a_force_stop_touches_nobody_when_the_worker_is_gone(workspace: Workspace):
    job = train(workspace, "quick")
    Journal(job.journal).append(Queued())
    job.lock.write_text(f"{os.getpid()} {os.getpgid(0)}")  # a stale name in a lock that nobody holds
    control.force_stop(job)
    assert control.read_state(job).status == "stopped"


def test_a_worker_killed_with_its_group_is_crashed_and_resumes_where_it_saved(workspace: Workspace):
    job = launch(train(workspace, "resumable", steps=7))
    state = control.wait(job, PATIENCE_S)
    assert (state.status, state.resumable) == ("crashed", True)
    assert "killed" in state.message
    assert [event.step for event in state.steps] == [1, 2, 3, 4, 5]
    control.resume(job, command=COMMAND)
    state = control.wait(job, PATIENCE_S)
    assert (state.status, state.result, state.attempt) == ("finished", {"resumed_at": 3}, 2)
    assert [event.step for event in state.steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.step for event in state.checkpoints] == [3, 6]


@pytest.mark.parametrize(("behaviour", "status", "message", "exit_code"), [
    ("wrong", "failed", "The clip a.wav is missing.", 1),
    ("buggy", "failed", "ZeroDivisionError: division by zero", 1),
    ("killed", "crashed", "The worker was killed by signal 9 (SIGKILL).", -9),
    ("exits", "failed", "The worker ended with exit code 7 and gave no reason.", 7),
])
def test_how_a_job_failed_is_told_with_a_way_out(workspace: Workspace, behaviour: str, status: str, message: str,
                                                 exit_code: int):
    state = control.wait(launch(train(workspace, behaviour)), PATIENCE_S)
    assert (state.status, state.message, state.exit_code) == (status, message, exit_code)
    assert state.hint
    assert ("ZeroDivisionError" in state.traceback) == (behaviour == "buggy")


def test_a_run_may_go_on_by_itself_after_a_crash(workspace: Workspace):
    options = parse_options(TrainOptions, {"extension": "flaky", "device": "cpu", "max_attempts": 3})
    job = launch(create_job(workspace, "train", options))
    assert until(job, lambda state: state.status == "finished").attempt == 2


@pytest.mark.parametrize(("behaviour", "attempts"), [("wrong", 1), ("buggy", 3), ("killed", 3)])
def test_tries_are_for_what_nobody_foresaw(workspace: Workspace, behaviour: str, attempts: int):
    options = parse_options(TrainOptions, {"extension": behaviour, "device": "cpu", "max_attempts": 3})
    job = launch(create_job(workspace, "train", options))
    until(job, lambda state: state.attempt == attempts and state.ended and not locks.is_held(job.lock))
    assert control.read_state(job).attempt == attempts


def test_the_log_tail_keeps_whole_lines(workspace: Workspace):
    job = train(workspace, "quick")
    assert control.log_tail(job) == ""
    job.log.write_text("first line\nsecond\nthird\n")
    assert control.log_tail(job, max_bytes=10) == "third\n"


def test_a_disk_that_is_full_at_creation_leaves_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="could not be written: No space left on device"):
        train(workspace, "quick")
    assert os.listdir(workspace.runs) == []
