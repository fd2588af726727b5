"""A job that waits for room on a GPU: told once, ended by a stop, and never waiting where that means nothing."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.loading import parse_options
from config.schema import TrainOptions
from core.jobs import gpus, queue
from core.jobs.events import Event, WarningRaised
from core.jobs.gpus import Gpu, GpuWait
from core.jobs.job import Job, create_job
from core.jobs.locks import FileLock, is_held
from core.jobs.queue import wait_for_turn
from core.jobs.reporter import Reporter, StopRequested
from core.workspace import Workspace
from tests.processes import PATIENCE_S


class Told(Reporter):
    """Keeps what is said; asked to stop after so many looks."""

    def __init__(self, job: Job, patience: int = 10**6) -> None:
        self.job, self.events, self.patience = job, list[Event](), patience

    @property
    def directory(self) -> Path:
        return self.job.directory

    def emit(self, event: Event) -> None:
        self.events.append(event)

    def stop_requested(self) -> bool:
        self.patience -= 1
        return self.patience < 0


def gpu(index: int, free_gib: float, load: int | None = 0, total: int = 24) -> Gpu:
    return Gpu(index, f"GPU-{index}", "Some card", total * 1024, round(free_gib * 1024), load)


def job(workspace: Workspace, device: str = "cuda", **options: object) -> Job:
    return create_job(workspace, "train", parse_options(TrainOptions, {"device": device, **options}))


def in_turn(*looks: tuple[Gpu, ...]) -> Callable[[], tuple[Gpu, ...]]:
    left: Iterator[tuple[Gpu, ...]] = iter(looks)
    return lambda: next(left)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "kept")


def test_it_waits_until_there_is_room_and_takes_that_gpu(workspace: Workspace) -> None:
    one = job(workspace, wait_for_gpu_gib=20)
    looks = in_turn((gpu(0, 3.0), gpu(1, 10.0)), (gpu(0, 4.0), gpu(1, 11.5)), (gpu(0, 3.0), gpu(1, 21.0)))
    wish = GpuWait(one, Told(one), looks)
    first, second, third = wish.reserve_or_reason(), wish.reserve_or_reason(), wish.reserve_or_reason()
    assert first is not None
    assert "20 GiB of free memory: GPU 0 has 3.0 of 24.0 GiB free" in first
    assert (second, third) == (first, None)  # said once, though the numbers changed
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.parametrize(("seen", "good"), [
    (gpu(0, 23.8), True), (gpu(0, 23.8, None), True), (gpu(0, 23.8, 40), False), (gpu(0, 20.0), False)])
def test_an_idle_gpu_has_no_load_and_nobody_elses_memory(seen: Gpu, good: bool) -> None:
    assert gpus.is_free(seen, 0.0, idle=True) is good


def test_as_many_are_waited_for_as_there_are_processes(workspace: Workspace) -> None:
    one = job(workspace, wait_for_gpu_gib=20, processes=2)
    looks = in_turn((gpu(0, 23), gpu(1, 1)), (gpu(0, 22), gpu(1, 23)))
    wish = GpuWait(one, Told(one), looks)
    assert "2 GPUs" in (wish.reserve_or_reason() or "")
    assert wish.reserve_or_reason() is None
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"


def test_a_stop_ends_the_wait_and_gives_the_device_back(workspace: Workspace) -> None:
    one = job(workspace, wait_for_idle_gpu=True)
    told = Told(one, patience=3)
    with pytest.raises(StopRequested):
        wait_for_turn(one, told, GpuWait(one, told, lambda: (gpu(0, 2.0),)).reserve_or_reason)
    assert not is_held(workspace.devices / "cuda.lock")
    assert os.listdir(workspace.devices / "cuda") == []


class Queued:
    """Jobs of one device in threads of their own; each writes down when it has the device, and gives it back."""

    def __init__(self, workspace: Workspace) -> None:
        self.queue, self.lock = workspace.devices / "cuda", workspace.devices / "cuda.lock"
        self.queue.mkdir(exist_ok=True)  # else a look at it may come before the first job makes it
        self.had, self.threads = list[str](), list[threading.Thread]()

    def add(self, one: Job, ready: Callable[[], str | None] = lambda: None) -> None:
        def wait() -> None:
            lock = wait_for_turn(one, Told(one), ready)
            assert lock is not None
            self.had.append(one.id)
            lock.release()

        self.threads.append(threading.Thread(target=wait, daemon=True))
        self.threads[-1].start()

    def until(self, reached: Callable[[], bool]) -> None:
        tick = threading.Event()
        for _ in range(int(PATIENCE_S / 0.02)):
            if reached():
                return
            tick.wait(0.02)
        raise AssertionError((self.had, os.listdir(self.queue)))

    def in_line(self) -> int:
        """Tickets that hold others up."""
        return sum(name[0].isdigit() for name in os.listdir(self.queue))


@pytest.fixture
def queued(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Queued:
    monkeypatch.setattr(queue, "_READY_INTERVAL_S", 0.0)
    return Queued(workspace)


def test_who_waits_for_a_gpu_lets_others_pass_and_comes_before_later_ones(workspace: Workspace, queued: Queued) -> None:
    waiting, second, third = (job(workspace) for _ in range(3))
    busy = ["A game is at work."]
    queued.add(waiting, lambda: busy[0])
    queued.until(lambda: os.listdir(queued.queue) != [])
    queued.add(second)
    queued.until(lambda: queued.had == [second.id])
    holder = FileLock.acquire(queued.lock, timeout_s=PATIENCE_S)  # which is asked for now and then
    assert holder is not None
    busy[0] = None
    queued.add(third)
    queued.until(lambda: queued.in_line() == 2)
    holder.release()
    queued.until(lambda: len(queued.had) == 3)
    assert queued.had == [second.id, waiting.id, third.id]
    assert os.listdir(queued.queue) == []


def test_what_is_not_ready_at_one_look_keeps_its_turn(workspace: Workspace, queued: Queued) -> None:
    """A GPU may show the load of what ended a moment ago."""
    first, second = job(workspace), job(workspace)
    looks = iter(["It has 7% load.", None])
    holder = FileLock.acquire(queued.lock)
    assert holder is not None
    queued.add(first, lambda: next(looks))
    queued.add(second)
    queued.until(lambda: queued.in_line() == 2)
    holder.release()
    queued.until(lambda: len(queued.had) == 2)
    assert queued.had == [first.id, second.id]


@pytest.mark.parametrize(("device", "words"), [("cpu", "has no effect"), ("cuda", "nvidia-smi does not answer")])
def test_where_it_cannot_wait_it_says_so_and_begins(workspace: Workspace, device: str, words: str) -> None:
    one = job(workspace, device, wait_for_gpu_gib=20)
    told = Told(one)
    assert GpuWait(one, told, lambda: ()).reserve_or_reason() is None
    [said] = told.events
    assert isinstance(said, WarningRaised)
    assert words in said.message
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "kept"


def test_who_did_not_ask_does_not_wait(workspace: Workspace) -> None:
    def look() -> tuple[Gpu, ...]:
        raise AssertionError("nobody asked")

    one = job(workspace)
    told = Told(one)
    assert GpuWait(one, told, look).reserve_or_reason() is None
    assert told.events == []
