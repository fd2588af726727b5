"""Jobs that wait: for their device, in an order that can be changed, and for those that make what they need."""

import os
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import pytest

from config.errors import UserError
from config.schema import CertifyOptions, DownloadOptions, PreflightOptions
from core.jobs import control, locks, queue
from core.jobs.job import Job, create_job
from core.jobs.state import POSITION_FILE, JobBoard, queue_position
from core.workspace import Workspace
from tests.unit.fake_verbs import COMMAND
from tests.unit.live_jobs import PATIENCE_S, launch, running, train, until


def test_jobs_of_one_device_run_one_at_a_time_in_the_order_they_were_made(workspace: Workspace):
    first = launch(train(workspace, "patient"))
    running(first)
    second, third = train(workspace, "patient"), train(workspace, "patient")
    launch(third)
    assert until(third, lambda state: state.status == "waiting").reason == f"Waiting for cpu: {first.id} is using it."
    launch(second)
    until(third, lambda state: second.id in state.reason)
    assert [state.id for state in JobBoard(workspace).queue()] == [first.id, second.id, third.id]
    control.stop(first)
    running(second)
    assert control.read_state(third).status == "waiting"
    control.force_stop(second, grace_s=0.0)
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
        queue.move_in_queue(board.queue(), name, direction)  # type: ignore[arg-type]
        assert [state.id for state in board.queue()] == [first.id, *expected]
    until(waiting[2], lambda state: third in state.reason)  # its worker has seen the new order
    control.force_stop(first, grace_s=0.0)
    running(waiting[1])
    assert control.read_state(waiting[0]).status == "waiting"


def test_a_certificate_gives_way_to_an_import_that_is_next_and_goes_on_after_it(workspace: Workspace):
    proof = launch(create_job(workspace, "certify", CertifyOptions(run="run:quick", device="cpu")))
    running(proof)
    assert os.getpriority(os.PRIO_PROCESS, int(locks.read_holder(proof.lock).split()[0])) >= 15
    training = launch(train(workspace, "patient"))
    until(training, lambda state: state.status == "waiting")
    imported = launch(create_job(workspace, "preflight", PreflightOptions(extension="quick", device="cpu")))
    until(imported, lambda state: training.id in state.reason)
    assert control.read_state(proof).status == "running"  # the import would not come next: the training does
    queue.move_in_queue(JobBoard(workspace).queue(), imported.id, "first")
    assert control.wait(imported, PATIENCE_S).status == "finished"
    ended = control.wait(proof, PATIENCE_S)
    assert (ended.status, ended.attempt) == ("finished", 2)
    assert ended.ended_at <= running(training).started_at  # type: ignore[operator]


def test_what_waited_for_the_same_training_goes_before_its_certificate(workspace: Workspace,
                                                                       monkeypatch: pytest.MonkeyPatch):
    training = launch(train(workspace, "quick"))
    control.wait(training, PATIENCE_S)
    first = create_job(workspace, "preflight", PreflightOptions(extension="quick", device="cpu"), after=(training.id,))
    proof = create_job(workspace, "certify", CertifyOptions(run="run:quick", device="cpu"), after=(training.id,))
    tickets, reasons = list[queue._Ticket](), list[str]()

    def sleep(_seconds: float) -> None:
        """The other job sees a poll later that the training has ended; then it has its turn."""
        if tickets:
            tickets[0].release()
        else:
            tickets.append(queue._Ticket(first, str))

    monkeypatch.setattr(queue.time, "sleep", sleep)
    reporter = SimpleNamespace(emit=lambda event: reasons.append(event.reason), stop_requested=lambda: False)
    lock = queue.wait_for_turn(proof, reporter)  # type: ignore[arg-type]
    assert lock is not None
    lock.release()
    assert reasons == [f"Waiting for cpu: {first.id} is ahead in the queue."]


@pytest.mark.parametrize("state", ["running", "finished", "missing"])
def test_only_a_waiting_job_is_moved(workspace: Workspace, state: str):
    job = train(workspace, "patient" if state == "running" else "quick")
    if state != "missing":
        launch(job)
        running(job) if state == "running" else control.wait(job, PATIENCE_S)
    name = "no-such-job" if state == "missing" else job.id
    with pytest.raises(UserError, match=f"{name} does not wait for a device"):
        queue.move_in_queue(JobBoard(workspace).queue(), name, "first")


def test_a_place_that_cannot_be_read_is_the_time_it_was_made(workspace: Workspace):
    job = train(workspace, "quick")
    for content in ("", "nan", "inf", "first"):
        (job.directory / POSITION_FILE).write_text(content)
        assert queue_position(job) == job.created


def test_a_failed_job_does_not_hold_up_the_queue(workspace: Workspace):
    first = launch(train(workspace, "wrong"))
    others = [launch(train(workspace, "quick")) for _ in range(2)]
    assert control.wait(first, PATIENCE_S).status == "failed"
    assert [control.wait(job, PATIENCE_S).status for job in others] == ["finished"] * 2


def test_a_dead_worker_does_not_hold_up_the_queue(workspace: Workspace):
    first = launch(train(workspace, "patient"))
    running(first)
    second, third = launch(train(workspace, "quick")), launch(train(workspace, "quick"))
    until(second, lambda state: state.status == "waiting")
    until(third, lambda state: state.status == "waiting")
    os.killpg(int(locks.read_holder(second.lock).split()[1]), signal.SIGKILL)
    os.killpg(int(locks.read_holder(first.lock).split()[1]), signal.SIGKILL)
    assert control.wait(third, PATIENCE_S).status == "finished"
    assert os.listdir(workspace.devices / "cpu") == []


def test_other_devices_do_not_wait(workspace: Workspace):
    running(launch(train(workspace, "patient")))
    other = launch(train(workspace, "quick", device="cuda"))
    assert control.wait(other, PATIENCE_S).status == "finished"
    without = launch(create_job(workspace, "download", DownloadOptions()))
    assert control.wait(without, PATIENCE_S).message.startswith("AttributeError")  # it ran: the fake is no download


def test_a_waiting_job_can_be_stopped(workspace: Workspace):
    first = launch(train(workspace, "patient"))
    running(first)
    second = launch(train(workspace, "quick"))
    until(second, lambda state: state.status == "waiting")
    control.stop(second)
    state = control.wait(second, PATIENCE_S)
    assert (state.status, state.message) == ("stopped", "Stopped while it waited.")
    assert control.read_state(first).status == "running"


def test_a_job_waits_for_the_one_it_comes_after(workspace: Workspace):
    first = train(workspace, "patient")
    second = launch(train(workspace, "quick", after=(first.id,)))
    until(second, lambda state: "not started yet" in state.reason)
    launch(first)
    until(second, lambda state: state.reason == f"Waiting for {first.id} to finish.")
    control.stop(first)
    state = control.wait(second, PATIENCE_S)
    assert (state.status, state.started_at, state.resumable) == ("skipped", None, True)
    assert state.message == f"{first.id} was stopped, and this job needs what it makes."
    assert state.hint == f"Fix the reported problem and resume {first.id}: the jobs that depend on it then resume too."


def test_what_a_failure_keeps_from_beginning_names_the_failure_and_goes_on_with_it(workspace: Workspace):
    first = train(workspace, "resumable")  # it kills itself at step 5
    second = train(workspace, "quick", after=(first.id,))
    third = train(workspace, "quick", after=(second.id,))
    other = train(workspace, "quick")
    for job in (first, second, third, other):
        launch(job)
    assert control.wait(first, PATIENCE_S).status == "crashed"
    skipped = [control.wait(job, PATIENCE_S) for job in (second, third)]
    assert [state.status for state in skipped] == ["skipped"] * 2
    assert {state.message for state in skipped} == {f"{first.id} crashed, and this job needs what it makes."}
    assert control.wait(other, PATIENCE_S).status == "finished"
    stale = [replace(state, status="queued") for state in JobBoard(workspace).states()]  # what a page knew before
    resumed = control.resume_with_dependents(first, stale, command=COMMAND)
    assert [job.id for job in resumed] == [first.id, second.id, third.id]
    assert [control.wait(job, PATIENCE_S).status for job in resumed] == ["finished"] * 3


def test_a_chain_runs_through(workspace: Workspace):
    made: list[Job] = []
    for _ in range(3):
        made.append(train(workspace, "quick", after=tuple(job.id for job in made[-1:])))
    for job in reversed(made):
        launch(job)
    states = [control.wait(job, PATIENCE_S) for job in made]
    assert [state.status for state in states] == ["finished"] * 3
    starts = [state.started_at for state in states]
    assert starts == sorted(starts, key=lambda at: at or 0.0)


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
    states = [control.wait(job, PATIENCE_S) for job in (second, third)]
    assert [(state.status, state.started_at) for state in states] == [("skipped", None)] * 2
    assert {state.message for state in states} == {"first was deleted, and this job needs what it makes."}
    assert "again" in states[0].hint
