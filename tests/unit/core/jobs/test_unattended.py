"""What the app does by itself; jobs run in true worker processes with the verbs of `tests.unit.fake_verbs`."""

import shlex
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from config.errors import UserError
from core.jobs import control
from core.jobs.events import CheckpointSaved, Event, Journal, Queued, Skipped, Started, Stopped
from core.jobs.job import load_job
from core.jobs.state import JobBoard
from core.jobs.unattended import IdleCommand, RestartOffer, find_interrupted
from core.workspace import Workspace
from tests.processes import PATIENCE_S
from tests.unit.fake_verbs import COMMAND
from tests.unit.live_jobs import launch, machine_goes_down, running, train, until
from ui.live import View
from ui.unattended import restart_view

NAMES = ("first", "second", "third", "fourth")


@pytest.fixture
def devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the system shows its GPUs: empty."""
    folder = tmp_path / "dev"
    folder.mkdir()
    monkeypatch.setattr("core.jobs.job.DEVICE_FILES", folder)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return folder


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_jobs_of_a_machine_that_went_down_go_on_in_order_on_the_device_that_is_there_now(
    workspace: Workspace, devices: Path, number: signal.Signals,
) -> None:
    running(launch(train(workspace, "restarted", device="auto", name="first")))
    for name, after in (("second", ()), ("third", ("second",)), ("fourth", ())):
        job = launch(train(workspace, "environment", device="auto", name=name, after=after))
        until(job, lambda state: state.status == "waiting")
    assert {state.job.device for state in JobBoard(workspace).states()} == {"cpu"}
    (workspace.run("fourth") / "queue_position").write_text("1")  # a person moved it to the front
    machine_goes_down(workspace, number)
    (devices / "nvidia0").touch()

    offer = RestartOffer(workspace, JobBoard(workspace).states(), command=COMMAND)
    assert [state.id for state in offer.interrupted.jobs] == list(NAMES)
    offer.begin(3600.0)
    offer.accept()
    offer.accept()  # of another page
    ended = {name: control.wait(load_job(workspace, name), PATIENCE_S) for name in NAMES}
    assert {state.status for state in ended.values()} == {"finished"}
    assert {state.job.device for state in ended.values()} == {"cuda"}
    assert all(state.result == {"visible": None} for state in ended.values())
    times = {name: (state.started_at or 0.0, state.ended_at or 0.0) for name, state in ended.items()}
    order = sorted(NAMES, key=lambda name: times[name])
    assert order[:2] == ["first", "fourth"]  # the one that ran, and the one that stood before the others
    assert order.index("second") < order.index("third")
    assert all(times[one][1] <= times[other][0] for one, other in zip(order, order[1:], strict=False))


def test_a_job_of_the_processors_queue_sees_no_gpu_that_a_training_may_have(
    workspace: Workspace, devices: Path,
) -> None:
    on_cpu = launch(train(workspace, "environment", device="auto"))
    assert control.wait(on_cpu, PATIENCE_S).result == {"visible": ""}
    (devices / "nvidia0").touch()
    on_gpu = launch(train(workspace, "environment", device="auto"))
    assert control.wait(on_gpu, PATIENCE_S).result == {"visible": None}


def record(workspace: Workspace, name: str, *events: Event, device: str = "auto", after: tuple[str, ...] = ()) -> None:
    """A job with a journal and no worker."""
    journal = Journal(train(workspace, "quick", device=device, name=name, after=after).journal)
    for event in events:
        journal.append(event)
    journal.close()


def offered(workspace: Workspace) -> tuple[list[str], dict[str, str]]:
    found = find_interrupted(JobBoard(workspace).states())
    return [state.id for state in found.jobs], {state.id: reason for state, reason in found.withheld}


def test_the_page_names_what_was_resumed_and_from_where_while_it_lives(workspace: Workspace, devices: Path) -> None:
    running(launch(train(workspace, "restarted", device="auto", name="first")))
    checkpoint = workspace.run("first") / "checkpoints" / "step-000020"
    checkpoint.mkdir(parents=True)
    (checkpoint / "checkpoint.json").write_text("{}")
    waiting = launch(train(workspace, "environment", device="auto", name="second"))
    until(waiting, lambda state: state.status == "waiting")
    machine_goes_down(workspace)

    offer = RestartOffer(workspace, JobBoard(workspace).states(), command=COMMAND)
    before = {state.id: state for state in offer.interrupted.jobs}
    offer.begin(3600.0)
    assert "Resume in" in restart_view(offer, View("jobs", {}, tuple(before.values())))
    offer.accept()
    assert [(state.id, point) for state, point in offer.resumed] == [
        ("first", "It resumes from the checkpoint of step 20."), ("second", "")]
    alive = tuple(replace(state, status="running", attempt=state.attempt + 1) for state in before.values())
    shown = restart_view(offer, View("jobs", {}, alive))
    assert "Resumed" in shown
    assert "It resumes from the checkpoint of step 20." in shown
    ended = tuple(replace(state, status="finished") for state in alive)
    assert restart_view(offer, View("jobs", {}, ended)) == ""
    assert control.wait(load_job(workspace, "second"), PATIENCE_S).status == "finished"


def test_only_what_nobody_ended_is_resumed_by_itself(workspace: Workspace, devices: Path) -> None:
    begun, restart = (Queued(), Started(1, 1)), (Queued("cpu", True), Started(1, 1))
    record(workspace, "killed", *begun)
    record(workspace, "waiting", Queued())
    record(workspace, "terminated", *begun, Stopped("Saved at step 7.", terminated=True))
    record(workspace, "needs-it", Queued(), Skipped("terminated was stopped, and this job needs what it makes."),
           after=("terminated",))
    record(workspace, "stopped", *begun, Stopped("Saved at step 7."))
    record(workspace, "needs-stopped", Queued(), Skipped("stopped was stopped."), after=("stopped",))
    record(workspace, "stopping", *begun)
    load_job(workspace, "stopping").request_stop()
    record(workspace, "on-gpu", Queued("cuda"), Started(1, 1))
    record(workspace, "after-it", Queued(), after=("on-gpu",))
    record(workspace, "for-gpu", *begun, device="cuda")
    record(workspace, "three-times", *begun, *restart * 3)
    record(workspace, "saved-between", *begun, *restart * 2, CheckpointSaved(3, "checkpoints/3", True), *restart * 2)
    record(workspace, "only-waited", Queued(), *[Queued("cpu", True)] * 5)
    names, reasons = offered(workspace)
    assert names == ["killed", "waiting", "terminated", "needs-it", "saved-between", "only-waited"]
    assert reasons.keys() == {"on-gpu", "after-it", "for-gpu", "three-times"}
    assert "needs on-gpu" in reasons["after-it"]
    (devices / "nvidia0").touch()
    assert set(offered(workspace)[1]) == {"three-times"}


def test_a_person_who_declines_is_not_asked_again(workspace: Workspace, devices: Path) -> None:
    record(workspace, "killed", Queued(), Started(1, 1))
    offer = RestartOffer(workspace, JobBoard(workspace).states(), command=COMMAND)
    offer.begin(3600.0)
    offer.decline()
    offer.accept()  # too late
    assert offer.seconds_left() is None
    state = JobBoard(workspace).state("killed")
    assert (state.status, state.resumable) == ("stopped", True)
    assert offered(workspace) == ([], {})


def test_a_job_that_writes_on_is_left_alone(workspace: Workspace, devices: Path) -> None:
    """As where another machine works in the same folder, and its file locks are not seen here."""
    record(workspace, "elsewhere", Queued(), Started(1, 1))
    offer = RestartOffer(workspace, JobBoard(workspace).states(), command=COMMAND)
    offer.begin(3600.0)
    journal = Journal(workspace.run("elsewhere") / "events.jsonl")
    journal.append(CheckpointSaved(1, "checkpoints/1", True))
    journal.close()
    offer.accept()
    assert JobBoard(workspace).state("elsewhere").status == "crashed"


def test_a_command_runs_once_when_the_queue_becomes_empty_unless_it_is_cancelled(tmp_path: Path) -> None:
    made, said, alive = tmp_path / "a file", [], [False]
    command = shlex.join([sys.executable, "-c", f"import pathlib; pathlib.Path({str(made)!r}).touch()"])
    idle = IdleCommand(command, 3600.0, lambda: alive[0], said.append)
    idle.look()
    assert idle.countdown is None  # nothing has run yet
    for cancelled in (True, False):
        alive[0] = True
        idle.look()
        alive[0] = False
        idle.look()
        first = idle.countdown
        idle.look()
        assert idle.countdown is first is not None
        assert idle.seconds_left() is not None
        if cancelled:
            idle.cancel()
        first.act()
        assert idle.seconds_left() is None
    assert [command in one for one in said] == [True] * 4
    assert ["cancelled" in one for one in said] == [False, True, False, False]
    until_exists(made)


def until_exists(path: Path) -> None:
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if path.exists():
            return
        tick.wait(0.02)
    raise AssertionError(f"{path} was not made")


def test_a_new_job_ends_the_countdown_of_the_command() -> None:
    alive = [True]
    idle = IdleCommand("false", 3600.0, lambda: alive[0], str)
    idle.look()
    alive[0] = False
    idle.look()
    alive[0] = True
    idle.look()
    assert idle.seconds_left() is None


@pytest.mark.parametrize("command", ["", "stop 'the studio"])
def test_a_command_that_cannot_be_read_is_refused(command: str) -> None:
    with pytest.raises(UserError, match="command"):
        IdleCommand(command, 1.0, bool, str)
