"""Batches in this process and in several: the same outcomes in the same order, whoever dies meanwhile."""

import time
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import PrepareOptions
from core import machine
from core.jobs import engines
from core.jobs.engines import HERE, Engine, LostBatch, run_batches
from core.jobs.reporter import StopRequested
from tests.unit.engine_work import (
    Recorder,
    die_once,
    die_while_loading,
    die_with_seven,
    divide,
    load,
    refuse_five,
    sleep,
    square,
)

PROCESSES = Engine("processes", 2)
needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="the optional package ray is not installed")
ENGINES = [pytest.param(HERE, id="here"), pytest.param(PROCESSES, id="processes"),
           pytest.param(Engine("ray", 2), id="ray", marks=needs_ray)]


def batches(count: int, size: int = 1) -> Iterator[list[int]]:
    for start in range(0, count * size, size):
        yield list(range(start, start + size))


@pytest.mark.parametrize("engine", ENGINES)
def test_outcomes_warnings_and_progress_come_in_the_order_of_the_batches(engine: Engine) -> None:
    recorder, progress = Recorder(), []
    outcomes = list(run_batches(load, square, batches(12, 2), engine, recorder, str,
                                lambda batch, event: progress.append((batch[0], event.done))))
    assert outcomes == [([number, number + 1], [number**2, (number + 1)**2]) for number in range(0, 24, 2)]
    assert engine.name == "ray" or sorted(progress) == [(number, 2) for number in range(0, 24, 2)]
    assert recorder.warnings.split("\n").count("three") == 1
    assert "loaded" in recorder.warnings


@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_is_raised_when_it_is_the_turn_of_its_batch(engine: Engine) -> None:
    outcomes = run_batches(load, refuse_five, batches(10), engine, Recorder(), str)
    assert [next(outcomes)[1] for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(UserError, match="5 is not taken") as caught:
        next(outcomes)
    assert caught.value.hint == "Take another number."


def test_an_unforeseen_error_keeps_its_class_and_the_traceback_of_the_worker() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        list(run_batches(load, divide, batches(1), PROCESSES, Recorder(), str))
    assert "in divide" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_the_item_that_kills_its_worker_comes_back_lost_and_the_others_are_done(engine: Engine) -> None:
    recorder = Recorder()
    outcomes = list(run_batches(load, die_with_seven, batches(4, 3), engine, recorder, str))
    assert [batch for batch, _ in outcomes] == [[0, 1, 2], [3, 4, 5], [6], [7], [8], [9, 10, 11]]
    lost = outcomes[3][1]
    assert isinstance(lost, LostBatch)
    assert {"processes": "killed by signal 9 (SIGKILL)", "ray": "its Ray actor died"}[engine.name] in lost.reason
    assert [outcome for _, outcome in outcomes if not isinstance(outcome, LostBatch)] == [
        [1, 2, 3], [4, 5, 6], [7], [9], [10, 11, 12]]
    assert recorder.warnings.count("A batch is repeated") == engines._RETRIES + 1


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_batch_whose_worker_dies_is_repeated_by_a_new_one(engine: Engine, tmp_path: Path) -> None:
    outcomes = list(run_batches(load, partial(die_once, tmp_path), batches(8), engine, Recorder(), str))
    assert [outcome for _, outcome in outcomes] == list(range(8))
    finished = (tmp_path / "finished").read_text().split()
    assert sorted(map(int, finished)) == list(range(8))


def test_workers_that_die_while_they_load_end_the_job() -> None:
    with pytest.raises(UserError, match="3 workers in a row ended while they loaded: .* exit code 9"):
        list(run_batches(die_while_loading, square, batches(8), PROCESSES, Recorder(), str))


def test_a_stop_ends_the_running_batches() -> None:
    began = time.monotonic()
    with pytest.raises(StopRequested, match="Stopped after 0"):
        list(run_batches(load, sleep, batches(8), PROCESSES, Recorder(stop_after=10), lambda: "Stopped after 0."))
    # The workers see the stop themselves; none is waited for to the end of the grace.
    assert time.monotonic() - began < 2 + engines._GRACE_S


@pytest.mark.parametrize(("choice", "message"), [
    ({"workers": 2}, "The engine `here` is one process, not 2"),
    ({"engine": "processes", "ray_address": "10.0.0.5:6379"}, "needs the engine `ray`, not 'processes'"),
])
def test_options_that_contradict_each_other_are_refused(choice: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Engine.from_options(PrepareOptions(**choice), "cpu", Recorder())


def test_workers_without_a_number_fill_the_cores_with_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "allowed_cores", lambda: 8)
    for threads, workers in (("1", 8), ("4", 2), ("16", 1)):
        monkeypatch.setenv("OMP_NUM_THREADS", threads)
        recorder = Recorder()
        assert Engine.from_options(PrepareOptions(engine="processes"), "cpu", recorder).workers == workers
        assert ("With OMP_NUM_THREADS=1 in the environment there is a worker" in recorder.warnings) == (threads != "1")
    recorder = Recorder()
    Engine.from_options(PrepareOptions(engine="processes", workers=3), "cpu", recorder)
    assert "3 workers of 16 threads share 8 cores" in recorder.warnings


@pytest.mark.parametrize(("nodes", "workers", "threads", "resources"), [
    ([{"CPU": 16, "GPU": 2}], 3, 4, (4.0, 0.5)),
    ([{"CPU": 16, "GPU": 1}], 6, 1, (1.0, 0.1666)),
    ([{"CPU": 16, "GPU": 8}], 2, 4, (4.0, 1.0)),
    ([{"CPU": 3}, {"CPU": 3}], 3, 2, (1.5, 0.0)),
    ([{"CPU": 64}, {"CPU": 4}, {}], 3, 32, (21.3333, 0.0)),
    ([{"CPU": 64}, {"CPU": 4, "GPU": 2}], 2, 16, (2.0, 1.0)),
])
def test_every_worker_of_ray_has_a_place_on_one_node(nodes: list[dict[str, float]], workers: int, threads: int,
                                                     resources: tuple[float, float]) -> None:
    assert engines.worker_resources(nodes, workers, threads) == resources
    # A node without room for a whole worker does not count.
    cores, gpus = resources
    places = [min(node.get("CPU", 0) // cores, node.get("GPU", 0) // gpus if gpus else workers) for node in nodes]
    assert sum(places) >= workers


@needs_ray
def test_a_worker_of_ray_without_a_place_ends_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "_RAY_START_S", 3.0)
    monkeypatch.setattr(engines, "worker_resources", lambda nodes, workers, threads: (1e5, 0.0))
    with pytest.raises(UserError, match="2 of 2 workers have not started within 3 s"):
        list(run_batches(load, square, batches(4), Engine("ray", 2), Recorder(), str))


@needs_ray
@pytest.mark.parametrize("name", ["OutOfMemoryError", "NodeDiedError"])
def test_a_worker_of_ray_that_is_killed_for_memory_is_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray
    from ray import exceptions

    get, errors = ray.get, [getattr(exceptions, name)("Its node was low on memory.")]

    def fail_once(reference: object) -> object:
        if errors and get(reference) is not None:
            raise errors.pop()
        return get(reference)

    monkeypatch.setattr(ray, "get", fail_once)
    recorder = Recorder()
    outcomes = [outcome for _, outcome in run_batches(load, square, batches(4), Engine("ray", 2), recorder, str)]
    assert outcomes == [[0], [1], [4], [9]]
    assert "A batch is repeated: its Ray actor died (Its node was low on memory.)." in recorder.warnings
