"""The process that keeps models loaded, from outside: true processes with verbs that only act as if they spoke."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from config.schema import SynthesizeOptions
from core.jobs import control, locks
from core.jobs.job import Job, create_job
from core.jobs.model_server_client import ModelServerClient, ModelServerDied
from core.jobs.state import JobBoard, JobState
from core.workspace import Workspace
from tests.unit.live_jobs import PATIENCE_S, launch, running, train, until

COMMAND = (sys.executable, "-m", "tests.unit.fake_model_server")



@pytest.fixture
def page(workspace: Workspace) -> Iterator[locks.FileLock]:
    """An app that lives; its model server is gone afterwards."""
    presence = locks.register_app(workspace, 600.0)
    yield presence
    for state in JobBoard(workspace).states():
        if state.alive and locks.is_held(state.job.lock):
            control.force_stop(state.job, grace_s=0.0)
    ModelServerClient(workspace, "cpu").stop()
    if locks.is_held(presence.path):
        presence.release()


def here(workspace: Workspace) -> ModelServerClient:
    return ModelServerClient(workspace, "cpu")


def server_pid(workspace: Workspace) -> int:
    """Its process id."""
    assert here(workspace).running
    return int(locks.read_holder(here(workspace).lock))


def gone(workspace: Workspace) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while here(workspace).running:
        assert time.monotonic() < deadline, "the model server stays"
        time.sleep(0.02)


def ask(workspace: Workspace, behaviour: str = "quick") -> Job:
    job = create_job(workspace, "synthesize", SynthesizeOptions(text=behaviour, device="cpu"))
    control.start(job, command=COMMAND)
    return job


def spoken(job: Job) -> JobState:
    state = control.wait(job, PATIENCE_S)
    assert state.status == "finished", f"{state.status}: {state.message}\n{control.log_tail(job)}"
    return state


def loaded(job: Job) -> int:
    """How many models the job had to load, as it said."""
    plan = spoken(job).plan
    assert plan is not None
    return plan.counts["loaded"]


def start_synthesis(job: Job) -> JobState:
    return until(job, lambda state: bool(state.audio_chunks))


def test_the_second_request_finds_what_the_first_loaded(workspace: Workspace, page: locks.FileLock) -> None:
    assert loaded(ask(workspace)) == 1
    before = server_pid(workspace)
    assert loaded(ask(workspace)) == 0
    assert server_pid(workspace) == before


def test_two_requests_at_once_are_done_one_after_the_other(workspace: Workspace, page: locks.FileLock) -> None:
    asked = [ask(workspace), ask(workspace)]
    assert sorted(loaded(job) for job in asked) == [0, 1]
    starts = [control.read_state(job) for job in asked]
    first, second = sorted(starts, key=lambda state: state.started_at or 0)
    assert (first.ended_at or 0) <= (second.started_at or 0)


def test_a_training_gets_the_device_and_the_memory_at_once(workspace: Workspace, page: locks.FileLock) -> None:
    spoken(ask(workspace))
    assert here(workspace).running
    job = launch(train(workspace, "patient"))
    running(job)
    assert not here(workspace).running
    control.stop(job)
    assert control.wait(job, PATIENCE_S).status == "stopped"


def test_a_killed_model_server_is_replaced(workspace: Workspace, page: locks.FileLock) -> None:
    spoken(ask(workspace))
    os.kill(server_pid(workspace), signal.SIGKILL)
    assert loaded(ask(workspace)) == 1


def test_a_model_server_killed_in_the_middle_fails_that_job_alone(workspace: Workspace, page: locks.FileLock) -> None:
    spoken(ask(workspace))
    job = ask(workspace, "patient")
    start_synthesis(job)
    os.kill(server_pid(workspace), signal.SIGKILL)
    state = control.wait(job, PATIENCE_S)
    assert (state.status, state.resumable) == ("failed", True)
    assert "ended during the work" in state.message
    assert "memory" in state.hint
    assert loaded(ask(workspace)) == 1


def test_a_stop_while_it_speaks_keeps_the_models(workspace: Workspace, page: locks.FileLock) -> None:
    job = ask(workspace, "patient")
    start_synthesis(job)
    control.stop(job)
    state = control.wait(job, PATIENCE_S)
    assert state.status == "stopped"
    until(job, lambda _: not locks.is_held(job.lock))
    assert loaded(ask(workspace)) == 0


def test_a_forced_stop_ends_the_work_at_once(workspace: Workspace, page: locks.FileLock) -> None:
    job = ask(workspace, "stubborn")
    start_synthesis(job)
    control.force_stop(job, grace_s=0.0)
    assert control.read_state(job).status == "stopped"
    gone(workspace)
    before = job.journal.stat().st_size
    assert loaded(ask(workspace)) == 1
    assert job.journal.stat().st_size == before


def test_it_ends_with_the_app(workspace: Workspace, page: locks.FileLock) -> None:
    spoken(ask(workspace))
    page.release()
    gone(workspace)


def test_it_ends_when_nobody_asks(workspace: Workspace, page: locks.FileLock) -> None:
    page.write("0.5")
    spoken(ask(workspace))
    gone(workspace)
    assert locks.is_held(page.path)


def test_what_cannot_be_spoken_is_told_and_leaves_it_alive(workspace: Workspace, page: locks.FileLock) -> None:
    spoken(ask(workspace))
    state = control.wait(ask(workspace, "wrong"), PATIENCE_S)
    assert (state.status, state.message, state.traceback) == ("failed", "There is no such voice.", "")
    assert loaded(ask(workspace)) == 0


def test_after_a_fault_that_no_one_foresaw_nothing_is_kept(workspace: Workspace, page: locks.FileLock) -> None:
    spoken(ask(workspace))
    state = control.wait(ask(workspace, "buggy"), PATIENCE_S)
    assert (state.status, state.message) == ("failed", "ZeroDivisionError: division by zero")
    assert "fake_model_server" in state.traceback
    assert loaded(ask(workspace)) == 1


@pytest.mark.parametrize(("behaviour", "message"), [
    ("killed", "killed by signal 9 (SIGKILL)"), ("exits", "ended with exit code 7")])
def test_a_model_server_that_dies_at_its_first_work_says_of_what(workspace: Workspace, page: locks.FileLock,
                                                             behaviour: str, message: str) -> None:
    state = control.wait(ask(workspace, behaviour), PATIENCE_S)
    assert message in state.message
    assert loaded(ask(workspace)) == 1


def test_while_a_server_starts_its_lock_names_no_other_process(
        workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    client, held = here(workspace), []
    client.folder.mkdir(exist_ok=True)
    client.lock.write_text("12345")  # of a server that is gone

    def start(_what: str, _words: object, lock: locks.FileLock, _log: Path) -> SimpleNamespace:
        held.append(locks.read_holder(client.lock))
        return SimpleNamespace(pid=67890)

    monkeypatch.setattr(control, "start_process", start)
    client._start(["never started"])
    assert held == [""]
    assert locks.read_holder(client.lock) == "67890"


def test_a_model_server_that_cannot_start_is_told(workspace: Workspace, page: locks.FileLock) -> None:
    job = create_job(workspace, "synthesize", SynthesizeOptions(device="cpu"))
    with pytest.raises(ModelServerDied) as death:
        ModelServerClient(workspace, "cpu").run(job, ("/bin/false",))
    assert death.value.code == 1


def test_what_is_printed_is_in_the_log_of_its_job(workspace: Workspace, page: locks.FileLock) -> None:
    first, second = ask(workspace, "talkative"), ask(workspace)
    spoken(first)
    spoken(second)
    assert "from native code" in control.log_tail(first)
    assert "from native code" not in control.log_tail(second)


def test_pages_that_are_gone_are_cleared_away(workspace: Workspace) -> None:
    first = locks.register_app(workspace, 60.0)
    second = locks.register_app(workspace, 90.0)
    assert locks.model_idle_timeout_s(locks.running_apps(workspace)) == 90.0
    second.release()
    assert locks.model_idle_timeout_s(locks.running_apps(workspace)) == 60.0
    first.release()
    assert locks.running_apps(workspace) == ()
    third = locks.register_app(workspace, 0.0, "http://127.0.0.1:7861/")
    assert locks.app_addresses(locks.running_apps(workspace)) == ("http://127.0.0.1:7861/",)
    assert [path.name for path in Path(third.path).parent.iterdir()] == [third.path.name]
    assert locks.model_idle_timeout_s(locks.running_apps(workspace)) == 0.0
    third.release()
