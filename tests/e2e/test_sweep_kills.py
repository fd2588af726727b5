"""A sweep of six trials of the built-in model, whose processes are killed twice, against one that was not killed."""

from __future__ import annotations

import dataclasses
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from config.loading import parse_options
from config.schema import SweepOptions
from core.jobs import control, locks
from core.jobs.job import Job, create_job, load_job
from core.library import sweeps
from core.library.sweeps import SweepTrial
from core.workspace import Workspace
from tests.worlds import extended_world, train_settings

PATIENCE_S = 1200


def create(world: Workspace, name: str) -> Job:
    training = train_settings(steps=6, checkpoint_every=3, evaluation_sentences=2)
    options = parse_options(SweepOptions, {**training, "vary": "row_lr: 0.3, 0.03, 0.003; adapter_lr: 0.02, 0.001"})
    return create_job(world, "sweep", options, job_id=name)


def wait_for(condition: Callable[[], object], job: Job) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, control.log_tail(job)
        time.sleep(0.05)


def kill(job: Job) -> None:
    """Kill the worker of a job and its processes, with SIGKILL, unless it has just ended."""
    group = locks.read_holder(job.lock).partition(" ")[2].strip()
    assert group.isdigit()
    with suppress(ProcessLookupError):
        os.killpg(int(group), signal.SIGKILL)
    wait_for(lambda: not locks.is_held(job.lock), job)


def ranking(job: Job) -> list[SweepTrial]:
    record = sweeps.read_sweep(job.directory)
    assert record is not None
    return [dataclasses.replace(trial, run="")
            for trial in sweeps.rank(record, parse_options(SweepOptions, job.settings))]


@pytest.mark.slow
def test_a_sweep_killed_twice_has_the_ranking_of_one_that_was_not(tmp_path: Path,
                                                                  monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    world = extended_world(tmp_path / "workspace")
    whole, killed = create(world, "whole"), create(world, "killed")
    control.start(whole)
    assert control.wait(whole, PATIENCE_S).status == "finished", control.log_tail(whole)

    # The first time the sweep dies with its second trial, the second time alone, so that its fourth trial goes on.
    control.start(killed)
    for number, steps, with_trial in ((2, 4, True), (4, 1, False)):
        directory = world.runs / f"killed-{number:02d}"

        def has_steps(directory: Path = directory, steps: int = steps) -> bool:
            return directory.is_dir() and len(control.read_state(load_job(world, directory.name)).steps) >= steps

        wait_for(has_steps, killed)
        kill(killed)
        if with_trial:
            kill(load_job(world, directory.name))
        assert control.read_state(killed).status == "crashed"
        control.resume(killed)
    assert control.wait(killed, PATIENCE_S).status == "finished", control.log_tail(killed)

    assert ranking(killed) == ranking(whole)
    assert len(ranking(whole)) == 6
    assert {trial.status for trial in ranking(whole)} == {"finished", "pruned"}
