"""Jobs in true worker processes that run the fake verbs, and waiting for what they do."""

import os
import signal
import threading
from collections.abc import Callable

from config.loading import parse_options
from config.schema import TrainOptions
from core.jobs import control, locks
from core.jobs.job import Job, create_job
from core.jobs.state import JobBoard, JobReader, JobState
from core.workspace import Workspace
from tests.processes import PATIENCE_S
from tests.unit.fake_verbs import COMMAND


def train(workspace: Workspace, behaviour: str, *, steps: int = 10, after: tuple[str, ...] = (),
          name: str | None = None, device: str = "cpu") -> Job:
    options = parse_options(TrainOptions, {"extension": behaviour, "steps": steps, "device": device})
    return create_job(workspace, "train", options, after=after, job_id=name)


def launch(job: Job) -> Job:
    control.start(job, command=COMMAND)
    return job


def until(job: Job, reached: Callable[[JobState], bool]) -> JobState:
    """The first state for which `reached` holds."""
    reader = JobReader(job)
    tick = threading.Event()
    for _ in range(int(PATIENCE_S / 0.02)):
        if reached(state := reader.state()):
            return state
        tick.wait(0.02)
    raise AssertionError(f"{job.id}: {state.status} {state.message}\n{control.log_tail(job)}")


def running(job: Job) -> JobState:
    return until(job, lambda state: state.status == "running" and state.progress is not None)


def machine_goes_down(workspace: Workspace, number: signal.Signals = signal.SIGKILL) -> None:
    """Every process of every job gets the signal, the last job first; they are gone on return."""
    alive = [state.job for state in JobBoard(workspace).states() if state.alive]
    for job in alive:
        os.killpg(int(locks.read_holder(job.lock).split()[1]), number)
    for job in alive:
        until(job, lambda _state, job=job: not locks.is_held(job.lock))  # type: ignore[misc]
