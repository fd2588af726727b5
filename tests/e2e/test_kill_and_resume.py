"""A training worker that is killed without a word, anywhere, and the run that ends as if it never had been."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from config.schema import TrainOptions
from core import train
from core.jobs import checkpoint_names, control, locks
from core.jobs import events as journal
from core.jobs import job as job_files
from core.jobs.events import Evaluated, Event, Step
from core.jobs.job import Job
from core.library import checkpoints
from core.library.lineage import Model
from core.training import checkpoint
from core.workspace import Workspace
from tests.worlds import Listener, extended_world, train_options

PATIENCE_S = 600
Moment = Callable[[Job, int], bool]
"""Whether the time has come, of a job and the steps that were told when its worker began."""


def options(steps: int) -> TrainOptions:
    """Dropout, replayed base clips and validation between checkpoints: all that a resume has to find again."""
    return train_options(steps=steps, scope="full", checkpoint_every=20, validate_every=7, evaluation_sentences=1,
                         select_best_by="speech_loss", adapter_dropout=0.1, keep_last=2)


def told(events: Sequence[Event]) -> dict[tuple[str, int], set[tuple[float, ...]]]:
    """Every number that was told of each step; a second one is a step that went another way the second time."""
    found: dict[tuple[str, int], set[tuple[float, ...]]] = {}
    for event in events:
        if isinstance(event, Step):
            numbers = (event.speech_loss, event.text_loss, event.gradient_norm, event.learning_rates["rows"])
        elif isinstance(event, Evaluated):
            others = (value for _, one in sorted(event.languages.items()) for _, value in sorted(one.items()))
            numbers = (event.speech_loss, event.text_loss or 0.0, event.accuracy or 0.0, *event.errors.values(),
                       *others)
        else:
            continue
        found.setdefault((event.kind, event.step), set()).add(numbers)
    return found


def steps_told(job: Job) -> int:
    return sum(isinstance(event, Step) for event in journal.read_events(job.journal)[0])


def after_steps(count: int) -> Moment:
    return lambda job, before: steps_told(job) >= before + count


def after_seconds(seconds: float) -> Moment:
    end = time.monotonic() + seconds
    return lambda job, before: time.monotonic() >= end


def while_writing(job: Job, before: int) -> bool:
    """A checkpoint, the ranking or a deletion is half done."""
    return any((job.directory / checkpoint.FOLDER).glob(".writing-*"))


def some_moment(noise: random.Random) -> Moment:
    """While it loads, in the middle of a step, or while it writes."""
    kind = noise.random()
    if kind < 0.25:
        return after_seconds(noise.uniform(0.0, 6.0))
    return while_writing if kind < 0.5 else after_steps(noise.randrange(1, 36))


def killed(job: Job, moment: Moment) -> bool:
    """Kill the worker's whole group at that moment, with SIGKILL; False when the run ended before."""
    tick, before = threading.Event(), steps_told(job)
    end = time.monotonic() + PATIENCE_S
    while not (group := locks.read_holder(job.lock).partition(" ")[2]).strip().isdigit():
        assert locks.is_held(job.lock), f"the worker ended before it began: {control.log_tail(job)}"
        assert time.monotonic() < end, control.log_tail(job)
        tick.wait(0.005)
    while not moment(job, before):
        assert time.monotonic() < end, control.log_tail(job)
        if not locks.is_held(job.lock):
            return False
        tick.wait(0.002)
    try:
        os.killpg(int(group), signal.SIGKILL)
    except ProcessLookupError:
        return False
    while locks.is_held(job.lock):
        tick.wait(0.005)
    return control.read_state(job).status == "crashed"


def killed_again_and_again(job: Job, kills: int, seed: int) -> int:
    """Run `job` with a kill at that many random moments, then to its end; how many there were."""
    noise = random.Random(seed)
    control.start(job)
    count = 0
    while count < kills and killed(job, some_moment(noise)):
        count += 1
        control.resume(job)
    assert control.wait(job, PATIENCE_S).status == "finished", control.log_tail(job)
    return count


def tensors_in(folder: Path) -> dict[str, bytes]:
    """Every file of tensors in a checkpoint: what was trained, and all that the optimizer knows."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*.safetensors")}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    return extended_world(tmp_path / "workspace")


@pytest.mark.parametrize(("kills", "steps"), [
    pytest.param(3, 120, marks=pytest.mark.long), pytest.param(50, 2000, marks=pytest.mark.slow),
])
def test_a_run_killed_at_random_ends_with_the_losses_of_one_that_was_not(
        world: Workspace, kills: int, steps: int) -> None:
    whole = Listener(world.runs / "whole")
    train.run(options(steps), world, whole)
    job = job_files.create_job(world, "train", options(steps), job_id="killed")
    assert killed_again_and_again(job, kills, seed=kills) == kills
    wanted, seen = told(whole.events), told(journal.read_events(job.journal)[0])
    assert len(wanted) > steps
    assert all(len(numbers) == 1 for numbers in wanted.values())
    assert seen == wanted
    ends = [world.runs / name for name in ("whole", "killed")]
    assert checkpoints.read_ranking(ends[0]) == checkpoints.read_ranking(ends[1])
    one, other = (tensors_in(checkpoint_names.folder_of(end, steps)) for end in ends)
    assert {"rows.safetensors", "changed.safetensors", "training.safetensors"} <= one.keys()
    assert [name for name in one if one[name] != other[name]] == []
    first, second = (replace(checkpoint.load_state(end, steps), seconds=0.0, tensors={}) for end in ends)
    assert first == second
    left = sorted(path.name for path in (job.directory / checkpoint.FOLDER).iterdir())
    assert left == sorted(path.name for path in (ends[0] / checkpoint.FOLDER).iterdir())
    assert Model.open(world, "run:killed").folder.is_dir()
