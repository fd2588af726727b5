"""A training worker that is killed without a word, and the run that goes on as if it had not been."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path

import pytest
import torch

from core import job as job_files
from core import jobs, journal, locks, train
from core.catalog import resolve
from core.job import Job
from core.journal import Step
from core.workspace import Workspace
from tests.worlds import Listener, extended_world, train_options

OPTIONS = train_options(steps=400, checkpoint_every=40, judged_sentences=0, adapter_dropout=0.1)
PATIENCE_S = 300


def steps_of(events: list[journal.Event]) -> list[tuple[int, float, float]]:
    return [(event.step, event.speech_loss, event.gradient_norm) for event in events if isinstance(event, Step)]


def kill_after(job: Job, count: int) -> None:
    """SIGKILL the worker's whole group once the journal tells of `count` steps."""
    tick = threading.Event()
    for _ in range(PATIENCE_S * 100):
        if len(steps_of(journal.read(job.journal)[0])) >= count:
            break
        tick.wait(0.01)
    group = locks.content(job.lock).split()[1]
    os.killpg(int(group), signal.SIGKILL)


@pytest.fixture
def world(tmp_path: Path) -> Workspace:
    return extended_world(tmp_path / "workspace")


def test_a_killed_run_resumes_with_the_same_losses(world: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    whole = Listener(world.runs / "whole")
    train.run(OPTIONS, world, whole)
    job = job_files.create(world, "train", OPTIONS, name="killed")
    jobs.start(job)
    kill_after(job, 100)
    while locks.is_held(job.lock):
        threading.Event().wait(0.01)
    assert jobs.state(job).status == "crashed"
    before = steps_of(journal.read(job.journal)[0])
    assert 100 <= len(before) < 400
    jobs.resume(job)
    assert jobs.wait(job, PATIENCE_S).status == "finished", jobs.log_tail(job)
    told = steps_of(journal.read(job.journal)[0])
    again = told[len(before):]
    assert again[0][0] % 40 == 1  # from the last checkpoint, not from the start
    assert again[0][0] > 40
    wanted = steps_of(whole.events)
    assert before == wanted[:len(before)]
    assert again == wanted[again[0][0] - 1:]
    assert resolve(world, "run:killed").folder.is_dir()
