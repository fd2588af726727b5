"""A job that waits for room on a GPU: told once, ended by a stop, and never waiting where that means nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from config.schema import TrainOptions
from core.job import free_gpu
from core.job.directory import Job, create
from core.job.gpus import Gpu
from core.job.journal import Event, Waiting, Warned
from core.job.reporter import Reporter, StopRequested
from core.workspace import Workspace


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
    return create(workspace, "train", TrainOptions.model_validate({"device": device, **options}))


def in_turn(*looks: tuple[Gpu, ...]) -> Callable[[], tuple[Gpu, ...]]:
    left: Iterator[tuple[Gpu, ...]] = iter(looks)
    return lambda: next(left)


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "kept")


def test_it_waits_until_there_is_room_and_takes_that_gpu(workspace: Workspace) -> None:
    one = job(workspace, wait_for_gpu_gib=20)
    told = Told(one)
    looks = in_turn((gpu(0, 3.0), gpu(1, 10.0)), (gpu(0, 4.0), gpu(1, 11.5)), (gpu(0, 3.0), gpu(1, 21.0)))
    free_gpu.wait(one, told, looks, lambda _s: None)
    [said] = told.events  # once, though the numbers changed
    assert isinstance(said, Waiting)
    assert "20 GiB of free memory: GPU 0 has 3.0 of 24.0 GiB free" in said.reason
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1"


@pytest.mark.parametrize(("seen", "good"), [
    (gpu(0, 23.8), True), (gpu(0, 23.8, None), True), (gpu(0, 23.8, 40), False), (gpu(0, 20.0), False)])
def test_an_idle_gpu_has_no_load_and_nobody_elses_memory(seen: Gpu, good: bool) -> None:
    assert free_gpu.fits(seen, 0.0, idle=True) is good


def test_as_many_are_waited_for_as_there_are_processes(workspace: Workspace) -> None:
    one = job(workspace, wait_for_gpu_gib=20, processes=2)
    looks = in_turn((gpu(0, 23), gpu(1, 1)), (gpu(0, 22), gpu(1, 23)))
    free_gpu.wait(one, told := Told(one), looks, lambda _s: None)
    assert "2 GPUs" in str(told.events[0])
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-0"


def test_a_stop_ends_the_wait(workspace: Workspace) -> None:
    one = job(workspace, wait_for_idle_gpu=True)
    with pytest.raises(StopRequested):
        free_gpu.wait(one, Told(one, patience=3), lambda: (gpu(0, 2.0),), lambda _s: None)


@pytest.mark.parametrize(("device", "words"), [("cpu", "does not apply"), ("cuda", "nvidia-smi does not answer")])
def test_where_it_cannot_wait_it_says_so_and_begins(workspace: Workspace, device: str, words: str) -> None:
    one = job(workspace, device, wait_for_gpu_gib=20)
    free_gpu.wait(one, told := Told(one), lambda: (), lambda _s: None)
    [said] = told.events
    assert isinstance(said, Warned)
    assert words in said.message
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "kept"


def test_who_did_not_ask_does_not_wait(workspace: Workspace) -> None:
    def look() -> tuple[Gpu, ...]:
        raise AssertionError("nobody asked")

    one = job(workspace)
    free_gpu.wait(one, told := Told(one), look, lambda _s: None)
    assert told.events == []
