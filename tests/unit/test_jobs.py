"""Jobs in true worker processes; `tests.unit.fake_verbs` says what each extension's name does."""

import os
import shutil
import signal
import threading

import pytest
import yaml

from config.errors import UserError
from config.schema import DownloadOptions, TrainOptions
from core import jobs
from core.job import locks, places
from core.job.directory import create, load
from core.job.journal import Journal, Queued
from core.job.reader import JobBoard
from core.workspace import Workspace
from tests.unit.fake_verbs import COMMAND
from tests.unit.live_jobs import PATIENCE_S, launch, running, train, until


def test_a_job_is_written_whole_with_its_options_frozen(workspace: Workspace):
    job = train(workspace, "quick", steps=5, name="first")
    values = yaml.safe_load((job.directory / "config.yaml").read_text())
    assert values["options"]["steps"] == 5
    assert load(workspace, "first") == job
    assert job.options() == TrainOptions(extension="quick", steps=5, device="cpu")
    assert jobs.state(job).status == "created"
    assert not [name for name in os.listdir(workspace.runs) if name.startswith(".")]


def test_a_name_that_is_taken_is_refused_and_the_first_run_kept(workspace: Workspace):
    first = train(workspace, "quick", name="mine")
    with pytest.raises(UserError, match="'mine' is already there"):
        train(workspace, "buggy", name="mine")
    assert load(workspace, "mine") == first
    assert os.listdir(workspace.runs) == ["mine"]


def test_names_that_leave_the_workspace_are_refused(workspace: Workspace):
    with pytest.raises(UserError, match=r"'\.\./\.\./x' cannot be a name"):
        train(workspace, "quick", name="../../x")
    with pytest.raises(UserError, match=r"'\.\./\.\./x' cannot be a name"):
        load(workspace, "../../x")
    with pytest.raises(UserError, match="no run named 'nobody'"):
        train(workspace, "quick", after=("nobody",))
    assert workspace.list_runs() == []


def test_a_folder_that_is_no_job_is_named_and_does_not_hide_the_others(workspace: Workspace):
    job = train(workspace, "quick")
    (workspace.runs / "stray").mkdir()
    with pytest.raises(UserError, match=r"stray/config.yaml is not the configuration of a job"):
        load(workspace, "stray")
    assert [state.id for state in JobBoard(workspace).states()] == [job.id]


def test_a_job_runs_to_its_end_and_tells_its_result(workspace: Workspace):
    job = launch(train(workspace, "quick", steps=12))
    state = jobs.wait(job, PATIENCE_S)
    assert (state.status, state.result, state.exit_code, state.attempt) == ("finished", {"steps": 12}, 0, 1)
    assert [event.step for event in state.steps] == list(range(1, 13))
    assert state.progress is not None
    assert (state.progress.done, state.progress.total, state.eta_s) == (12, 12, None)
    until(job, lambda _state: "Finished: steps 12" in jobs.log_tail(job))  # the log follows the journal


def test_a_second_start_is_refused_while_it_runs_and_after(workspace: Workspace):
    job = launch(train(workspace, "patient"))
    with pytest.raises(jobs.AlreadyRunning, match=f"{job.id} is already running"):
        launch(job)
    running(job)
    with pytest.raises(jobs.AlreadyRunning):
        jobs.resume(job, command=COMMAND)
    jobs.stop(job)
    jobs.wait(job, PATIENCE_S)
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
    jobs.stop(job)
    state = jobs.wait(job, PATIENCE_S)
    assert (state.status, state.message, state.resumable) == ("stopped", "Saved at step 7.", True)
    until(job, lambda _: not locks.is_held(job.lock))
    jobs.resume(job, command=COMMAND)
    assert not job.stop_file.exists()
    assert running(job).attempt == 2
    assert jobs.state(job).message == ""


def test_a_job_that_was_asked_to_stop_is_shown_as_stopping(workspace: Workspace):
    job = launch(train(workspace, "stubborn"))
    running(job)
    jobs.stop(job)
    assert jobs.state(job).status == "stopping"
    jobs.force_stop(job, grace_s=0.1)
    state = jobs.state(job)
    assert (state.status, state.resumable) == ("stopped", True)
    assert "by force" in state.message


def test_a_force_stop_of_a_willing_job_still_lets_it_save(workspace: Workspace):
    job = launch(train(workspace, "patient"))
    running(job)
    jobs.force_stop(job, grace_s=PATIENCE_S)
    assert jobs.state(job).message == "Saved at step 7."


def test_stopping_what_has_ended_changes_nothing(workspace: Workspace):
    job = launch(train(workspace, "quick"))
    jobs.wait(job, PATIENCE_S)
    until(job, lambda _: not locks.is_held(job.lock))
    before = job.journal.read_bytes()
    jobs.stop(job)
    jobs.force_stop(job)
    assert job.journal.read_bytes() == before
    with pytest.raises(UserError, match="cannot be continued: it is finished"):
        jobs.resume(job, command=COMMAND)


def test_a_force_stop_touches_nobody_when_the_worker_is_gone(workspace: Workspace):
    job = train(workspace, "quick")
    Journal(job.journal).append(Queued())
    job.lock.write_text(f"{os.getpid()} {os.getpgid(0)}")  # a stale name in a lock that nobody holds
    jobs.force_stop(job)
    assert jobs.state(job).status == "stopped"


def test_a_worker_killed_with_its_group_is_crashed_and_resumes_where_it_saved(workspace: Workspace):
    job = launch(train(workspace, "resumable", steps=7))
    state = jobs.wait(job, PATIENCE_S)
    assert (state.status, state.resumable) == ("crashed", True)
    assert "killed" in state.message
    assert [event.step for event in state.steps] == [1, 2, 3, 4, 5]
    jobs.resume(job, command=COMMAND)
    state = jobs.wait(job, PATIENCE_S)
    assert (state.status, state.result, state.attempt) == ("finished", {"resumed_at": 3}, 2)
    assert [event.step for event in state.steps] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.step for event in state.checkpoints] == [3, 6]


@pytest.mark.parametrize(("behaviour", "status", "message", "exit_code"), [
    ("wrong", "failed", "The clip a.wav is missing.", 1),
    ("buggy", "failed", "ZeroDivisionError: division by zero", 1),
    ("killed", "crashed", "The worker was killed by signal 9 (SIGKILL).", -9),
    ("exits", "failed", "The worker ended with exit code 7 before it could say why.", 7),
])
def test_how_a_job_failed_is_told_with_a_way_out(workspace: Workspace, behaviour: str, status: str, message: str,
                                                 exit_code: int):
    state = jobs.wait(launch(train(workspace, behaviour)), PATIENCE_S)
    assert (state.status, state.message, state.exit_code) == (status, message, exit_code)
    assert state.hint
    assert ("ZeroDivisionError" in state.traceback) == (behaviour == "buggy")


def test_jobs_of_one_device_run_one_at_a_time_in_the_order_they_were_made(workspace: Workspace):
    first = launch(train(workspace, "patient"))
    running(first)
    second, third = train(workspace, "patient"), train(workspace, "patient")
    launch(third)
    assert until(third, lambda state: state.status == "waiting").reason == f"Waiting for cpu: {first.id} is using it."
    launch(second)
    until(third, lambda state: second.id in state.reason)
    assert [state.id for state in JobBoard(workspace).queue()] == [first.id, second.id, third.id]
    jobs.stop(first)
    running(second)
    assert jobs.state(third).status == "waiting"
    jobs.force_stop(second, grace_s=0.0)
    running(third)


def test_a_waiting_job_is_moved_and_runs_in_its_new_place(workspace: Workspace):
    first = launch(train(workspace, "patient"))
    running(first)
    waiting = [launch(train(workspace, "patient")) for _ in range(3)]
    for job in waiting:
        until(job, lambda state: state.status == "waiting")
    board = JobBoard(workspace)
    second, third, fourth = (job.id for job in waiting)
    for name, direction, expected in (
            (fourth, "first", [fourth, second, third]), (second, "later", [fourth, third, second]),
            (second, "later", [fourth, third, second]), (second, "earlier", [fourth, second, third]),
            (fourth, "last", [second, third, fourth]), (third, "first", [third, second, fourth])):
        places.move(board.queue(), name, direction)  # type: ignore[arg-type]
        assert [state.id for state in board.queue()] == [first.id, *expected]
    until(waiting[2], lambda state: third in state.reason)  # its worker has seen the new order
    jobs.force_stop(first, grace_s=0.0)
    running(waiting[1])
    assert jobs.state(waiting[0]).status == "waiting"


@pytest.mark.parametrize("state", ["running", "finished", "missing"])
def test_only_a_waiting_job_is_moved(workspace: Workspace, state: str):
    job = train(workspace, "patient" if state == "running" else "quick")
    if state != "missing":
        launch(job)
        running(job) if state == "running" else jobs.wait(job, PATIENCE_S)
    name = "no-such-job" if state == "missing" else job.id
    with pytest.raises(UserError, match=f"{name} does not wait for a device"):
        places.move(JobBoard(workspace).queue(), name, "first")


def test_a_place_that_cannot_be_read_is_the_time_it_was_made(workspace: Workspace):
    job = train(workspace, "quick")
    for content in ("", "nan", "inf", "first"):
        (job.directory / places.FILE).write_text(content)
        assert places.place_of(job) == job.created


def test_a_failed_job_does_not_hold_up_the_queue(workspace: Workspace):
    first = launch(train(workspace, "wrong"))
    others = [launch(train(workspace, "quick")) for _ in range(2)]
    assert jobs.wait(first, PATIENCE_S).status == "failed"
    assert [jobs.wait(job, PATIENCE_S).status for job in others] == ["finished"] * 2


def test_a_dead_worker_does_not_hold_up_the_queue(workspace: Workspace):
    first = launch(train(workspace, "patient"))
    running(first)
    second, third = launch(train(workspace, "quick")), launch(train(workspace, "quick"))
    until(second, lambda state: state.status == "waiting")
    until(third, lambda state: state.status == "waiting")
    os.killpg(int(locks.content(second.lock).split()[1]), signal.SIGKILL)
    os.killpg(int(locks.content(first.lock).split()[1]), signal.SIGKILL)
    assert jobs.wait(third, PATIENCE_S).status == "finished"
    assert os.listdir(workspace.devices / "cpu") == []


def test_other_devices_do_not_wait(workspace: Workspace):
    running(launch(train(workspace, "patient")))
    other = launch(train(workspace, "quick", device="cuda"))
    assert jobs.wait(other, PATIENCE_S).status == "finished"
    without = launch(create(workspace, "download", DownloadOptions()))
    assert jobs.wait(without, PATIENCE_S).message.startswith("AttributeError")  # it ran: the fake is no download


def test_a_waiting_job_can_be_stopped(workspace: Workspace):
    first = launch(train(workspace, "patient"))
    running(first)
    second = launch(train(workspace, "quick"))
    until(second, lambda state: state.status == "waiting")
    jobs.stop(second)
    state = jobs.wait(second, PATIENCE_S)
    assert (state.status, state.message) == ("stopped", "Stopped while it waited.")
    assert jobs.state(first).status == "running"


def test_a_job_waits_for_the_one_it_comes_after(workspace: Workspace):
    first = train(workspace, "patient")
    second = launch(train(workspace, "quick", after=(first.id,)))
    until(second, lambda state: "not started yet" in state.reason)
    launch(first)
    until(second, lambda state: state.reason == f"Waiting for {first.id} to finish.")
    jobs.stop(first)
    state = jobs.wait(second, PATIENCE_S)
    assert (state.status, state.started_at, state.resumable) == ("skipped", None, True)
    assert state.message == f"{first.id} was stopped, and this job needs what it makes."
    assert state.hint == f"Mend what it says and continue {first.id}: what waits for it goes on by itself."


def test_what_a_failure_keeps_from_beginning_names_the_failure_and_goes_on_with_it(workspace: Workspace):
    first = train(workspace, "resumable")  # it kills itself at step 5
    second = train(workspace, "quick", after=(first.id,))
    third = train(workspace, "quick", after=(second.id,))
    other = train(workspace, "quick")
    for job in (first, second, third, other):
        launch(job)
    assert jobs.wait(first, PATIENCE_S).status == "crashed"
    skipped = [jobs.wait(job, PATIENCE_S) for job in (second, third)]
    assert [state.status for state in skipped] == ["skipped"] * 2
    assert {state.message for state in skipped} == {f"{first.id} crashed, and this job needs what it makes."}
    assert jobs.wait(other, PATIENCE_S).status == "finished"
    resumed = jobs.resume_with_next(first, JobBoard(workspace).states(), command=COMMAND)
    assert [job.id for job in resumed] == [first.id, second.id, third.id]
    assert [jobs.wait(job, PATIENCE_S).status for job in resumed] == ["finished"] * 3


def test_a_run_may_go_on_by_itself_after_a_crash(workspace: Workspace):
    job = launch(create(workspace, "train", TrainOptions(extension="flaky", device="cpu", tries=3)))
    assert until(job, lambda state: state.status == "finished").attempt == 2


@pytest.mark.parametrize(("behaviour", "attempts"), [("wrong", 1), ("buggy", 3), ("killed", 3)])
def test_tries_are_for_what_nobody_foresaw(workspace: Workspace, behaviour: str, attempts: int):
    job = launch(create(workspace, "train", TrainOptions(extension=behaviour, device="cpu", tries=3)))
    until(job, lambda state: state.attempt == attempts and state.ended and not locks.is_held(job.lock))
    assert jobs.state(job).attempt == attempts


def test_a_chain_runs_through(workspace: Workspace):
    made: list[jobs.Job] = []
    for _ in range(3):
        made.append(train(workspace, "quick", after=tuple(job.id for job in made[-1:])))
    for job in reversed(made):
        launch(job)
    states = [jobs.wait(job, PATIENCE_S) for job in made]
    assert [state.status for state in states] == ["finished"] * 3
    starts = [state.started_at for state in states]
    assert starts == sorted(starts, key=lambda at: at or 0.0)


def test_the_log_tail_keeps_whole_lines(workspace: Workspace):
    job = train(workspace, "quick")
    assert jobs.log_tail(job) == ""
    job.log.write_text("first line\nsecond\nthird\n")
    assert jobs.log_tail(job, max_bytes=10) == "third\n"


def test_a_disk_that_is_full_at_creation_leaves_nothing(workspace: Workspace, monkeypatch: pytest.MonkeyPatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="could not be written: No space left on device"):
        train(workspace, "quick")
    assert os.listdir(workspace.runs) == []


@pytest.mark.parametrize("meanwhile", [False, True], ids=["before it starts", "while it waits"])
def test_what_comes_after_a_deleted_job_is_not_begun_and_says_why(workspace: Workspace, meanwhile: bool):
    first = train(workspace, "quick", name="first")
    second = train(workspace, "quick", after=(first.id,))
    third = train(workspace, "quick", after=(second.id,))
    if meanwhile:
        launch(second)
        until(second, lambda state: "not started yet" in state.reason)
    shutil.rmtree(first.directory)
    for job in (third,) if meanwhile else (second, third):
        launch(job)
    states = [jobs.wait(job, PATIENCE_S) for job in (second, third)]
    assert [(state.status, state.started_at) for state in states] == [("skipped", None)] * 2
    assert {state.message for state in states} == {"first was deleted, and this job needs what it makes."}
    assert "again" in states[0].hint
