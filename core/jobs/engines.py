"""Run batches of work in this process, in several processes or on a Ray cluster, behind one interface.

The driver, which is the process of the job, forms the batches, and it alone writes journal, manifests and SQLite. A
worker loads its state once; `work(state, batch)` saves its results under their content keys and returns what the driver
needs. A batch is the unit of work, because rounding may depend on it, and results come in the order of the batches. So
every engine writes the same bytes, on the same processor and with as many threads of torch.

A batch whose worker dies is repeated by a new worker. If it kills three, its items are tried one by one, and one that
still kills its worker comes back as a `LostBatch`, for the caller to name.
"""

from __future__ import annotations

import math
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any, Protocol, TypeVar

from config import confinement
from config.errors import ErrorKind, UserError
from config.schema import EngineName
from core import machine
from core.jobs.events import Event, Plan, Progress, WarningRaised
from core.jobs.gpus import find_gpus, visible_gpus
from core.jobs.process_watchdog import exit_with_parent
from core.jobs.reporter import ForwardingReporter, Reporter, StopRequested, check_stop, pluralize

State = TypeVar("State")
Item = TypeVar("Item")
Outcome = TypeVar("Outcome")
ProgressOf = Callable[[Sequence[Item], Progress], None]
"""Gets the progress within a batch; of a Ray worker none is passed on."""

_RETRIES = 2  # A batch whose worker died is tried again so often.
_LOAD_TRIES = 3  # workers in a row that may die while they load
_AHEAD = 64  # batches of each worker that may be finished before one that still runs
_POLL_S = 0.2  # between two looks at whether to stop
_GRACE_S = 5.0  # After a stop the running batches have this time.
_RAY_START_S = 300.0  # An actor of Ray has this time to find a place in its cluster.
_RAY_DIGITS = 10_000  # Ray rounds resources to four digits.
_THREADS = "OMP_NUM_THREADS"
RAY_REQUIREMENTS = "requirements-ray.txt"
_ROOT = Path(__file__).resolve().parents[2]


class EngineOptions(Protocol):
    """The options of a verb that choose its engine."""

    @property
    def engine(self) -> EngineName: ...
    @property
    def workers(self) -> int: ...
    @property
    def ray_address(self) -> str: ...


@dataclass(frozen=True)
class Engine:
    """Where batches run. `gpus`: UUIDs of the GPUs that the workers take by turns; none for the CPU."""

    name: EngineName = "here"
    workers: int = 1
    gpus: tuple[str, ...] = ()
    ray_address: str = ""

    @classmethod
    def from_options(cls, options: EngineOptions, device: str, reporter: Reporter) -> Engine:
        """The engine of a verb's options; `UserError` for options that contradict each other.

        `device`: `auto`, `cpu` or `cuda`. Without a number of workers there is one for each GPU, or else as many as
        the cores have room for.
        """
        if options.ray_address and options.engine != "ray":
            raise UserError(f"--ray-address {options.ray_address} needs the engine `ray`, not {options.engine!r}.",
                            "Add --engine ray, or leave the address out.")
        if options.engine == "here":
            if options.workers > 1:
                raise UserError(f"The engine `here` is one process, not {options.workers}.",
                                "Add --engine processes, or leave --workers out.")
            return HERE
        if options.engine == "ray":
            _import_ray()
            return cls("ray", options.workers, ray_address=options.ray_address)

        gpus = () if device == "cpu" else tuple(gpu.uuid for gpu in visible_gpus(find_gpus(), os.environ))
        threads, cores = threads_per_process(), machine.allowed_cores()
        workers = options.workers or len(gpus) or max(1, cores // threads)
        if not gpus and not options.workers and threads > 1:
            reporter.emit(WarningRaised(
                f"{pluralize(workers, 'worker')} of {pluralize(threads, 'thread')} for {pluralize(cores, 'core')}. "
                f"With {_THREADS}=1 in the environment there is a worker for each core; results may then differ in the "
                f"last bits from those of {threads} threads."))
        elif not gpus and workers * threads > cores:
            reporter.emit(WarningRaised(
                f"{pluralize(workers, 'worker')} of {pluralize(threads, 'thread')} share {pluralize(cores, 'core')}, "
                f"which is slow. With {_THREADS}=1 in the environment each has one thread; results may then differ in "
                f"the last bits from those of {threads} threads."))
        return cls("processes", workers, gpus)


HERE = Engine()


@dataclass(frozen=True)
class LostBatch:
    """The outcome of an item that killed its workers; `reason` is a clause, such as `its worker was killed by ...`."""

    reason: str


def threads_per_process() -> int:
    """The threads of torch in a process with this environment, as `core.compute.setup_device` sets them."""
    # OpenMP takes a list, whose first number counts.
    number = os.environ.get(_THREADS, "").partition(",")[0].strip()
    return max(1, int(number)) if number.isdigit() else machine.physical_cores()


def run_batches(load: Callable[[Reporter], State], work: Callable[[State, Sequence[Item]], Outcome],
                batches: Iterable[Sequence[Item]], engine: Engine, reporter: Reporter,
                stop_message: Callable[[], str],
                progress: ProgressOf[Item] | None = None) -> Iterator[tuple[Sequence[Item], Outcome | LostBatch]]:
    """The outcome of each batch, in the order of the batches; a stop raises `StopRequested` with `stop_message()`.

    `load(reporter)` builds the state of a worker and may keep the reporter, whose warnings the driver emits with the
    outcome. For other engines than `here`, `load`, `work`, the batches and the outcomes are pickled, so both functions
    stand at the top of a module. An error of `work` is raised here when it is the batch's turn.
    """
    if engine.name == "here":
        yield from _run_here(load, work, batches, reporter, stop_message, progress)
        return
    setup = _Setup(load, work, reporter.directory, confinement.workspace())
    pool: _Pool = _Processes(setup, engine) if engine.name == "processes" else _RayActors(setup, engine, reporter)
    with closing(pool):
        yield from _run_in_pool(pool, batches, reporter, stop_message, progress)


def _run_here(load: Callable[[Reporter], State], work: Callable[[State, Sequence[Item]], Outcome],
              batches: Iterable[Sequence[Item]], reporter: Reporter, stop_message: Callable[[], str],
              progress: ProgressOf[Item] | None) -> Iterator[tuple[Sequence[Item], Outcome]]:
    """The loop of one process. Nothing is loaded without a batch."""
    own_reporter = _BatchReporter(reporter, progress)
    state: State | None = None
    is_loaded = False
    for batch in batches:
        check_stop(reporter, stop_message())
        if not is_loaded:
            state, is_loaded = load(own_reporter), True
        own_reporter.batch = batch
        yield batch, work(state, batch)  # type: ignore[arg-type]


class _BatchReporter(ForwardingReporter):
    """The driver's reporter within a batch: progress goes to the caller, who knows the place of the batch."""

    def __init__(self, reporter: Reporter, progress: ProgressOf[Any] | None) -> None:
        super().__init__(reporter)
        self._progress = progress
        self.batch: Sequence[Any] | None = None  # None while the state is loaded

    def emit(self, event: Event) -> None:
        if self.batch is None or not isinstance(event, Progress):
            super().emit(event)
        elif self._progress is not None:
            self._progress(self.batch, event)


@dataclass(frozen=True)
class _Setup:
    """What a worker gets at its start."""

    load: Callable[[Reporter], Any]
    work: Callable[[Any, Sequence[Any]], Any]
    directory: Path  # The job's folder.
    workspace: Path | None  # The workspace that a confined process may read.


# What a worker sends to the driver, beside `Progress`.
@dataclass(frozen=True)
class _Loaded:
    """The state is loaded; the worker waits for batches."""


@dataclass(frozen=True)
class _Answer:
    """A batch, or the loading, has ended; `events` without progress."""

    events: tuple[Event, ...]
    outcome: Any = None
    error: Exception | None = None


@dataclass(frozen=True)
class _Death:
    """The worker has ended without an answer."""

    reason: str
    while_loading: bool


_Message = Progress | _Answer | _Death


class _Pool(Protocol):
    """Workers by number, each with one batch at a time. A worker is started for its first batch and after a death."""

    workers: int

    def submit(self, worker: int, batch: Sequence[Any]) -> None: ...

    def wait(self) -> Sequence[tuple[int, _Message]]:
        """What the workers have sent; it returns after a moment, perhaps without any."""
        ...

    def close(self) -> None:
        """Give the running batches a moment, then end all workers."""
        ...


@dataclass
class _Task:
    """A batch, or an item of one that killed its workers."""

    batch: Sequence[Any]
    retries: int = _RETRIES
    answer: _Answer | None = None


def _run_in_pool(pool: _Pool, batches: Iterable[Sequence[Item]], reporter: Reporter, stop_message: Callable[[], str],
                 progress: ProgressOf[Item] | None) -> Iterator[tuple[Sequence[Item], Any]]:
    iterator = iter(batches)
    unfinished: deque[list[_Task]] = deque()  # An entry for each batch, in order.
    waiting: deque[_Task] = deque()
    running: dict[int, _Task] = {}
    idle = list(range(pool.workers))
    exhausted, load_deaths = False, 0

    while True:
        check_stop(reporter, stop_message())

        # Every idle worker gets a batch; repeated ones have priority.
        while idle and not (exhausted and not waiting):
            if not waiting:
                if len(unfinished) >= _AHEAD * pool.workers:
                    break
                batch = next(iterator, None)
                if batch is None:
                    exhausted = True
                    break
                task = _Task(batch)
                unfinished.append([task])
                waiting.append(task)
            worker = idle.pop()
            running[worker] = waiting.popleft()
            pool.submit(worker, running[worker].batch)

        # Outcomes leave in the order of the batches.
        if unfinished and all(task.answer for task in unfinished[0]):
            for task in unfinished.popleft():
                assert task.answer is not None
                for event in task.answer.events:
                    reporter.emit(event)
                if task.answer.error is not None:
                    raise task.answer.error
                yield task.batch, task.answer.outcome
            continue
        if not running:
            return

        for worker, message in pool.wait():
            task = running[worker]
            if isinstance(message, Progress):
                if progress is not None:
                    progress(task.batch, message)
                continue
            idle.append(worker)
            del running[worker]
            if isinstance(message, _Answer):
                task.answer, load_deaths = message, 0
                continue

            # The worker died.
            if message.while_loading:
                load_deaths += 1
                if load_deaths == _LOAD_TRIES:
                    raise UserError(f"{load_deaths} workers in a row ended while they loaded: {message.reason}.",
                                    "Look at the last lines of the log; fewer workers (--workers) need less memory.",
                                    ErrorKind.ENVIRONMENT)
                waiting.appendleft(task)
            elif task.retries:
                task.retries -= 1
                reporter.emit(WarningRaised(f"A batch is repeated: {message.reason}."))
                waiting.appendleft(task)
            elif len(task.batch) > 1:
                reporter.emit(WarningRaised(f"The {len(task.batch)} parts of a batch are tried one by one: "
                                            f"{message.reason}."))
                parts = [_Task([item], retries=1) for item in task.batch]
                batch_tasks = next(tasks for tasks in unfinished if any(part is task for part in tasks))
                batch_tasks[:] = parts
                waiting.extendleft(reversed(parts))
            else:
                task.answer = _Answer((), LostBatch(message.reason))


class _WorkerReporter:
    """The reporter of a worker: progress is sent at once, other events with the answer."""

    def __init__(self, directory: Path, send: Callable[[Progress], None], stop: Callable[[], bool]) -> None:
        self.directory = directory
        self._send, self._stop = send, stop
        self._events: list[Event] = []

    def emit(self, event: Event) -> None:
        if isinstance(event, Progress):
            self._send(event)
        else:
            self._events.append(event)

    def stop_requested(self) -> bool:
        return self._stop()

    def answer_of(self, action: Callable[[], Any]) -> _Answer:
        """The outcome of `action` or its error, with the events since the last answer."""
        outcome, raised = None, None
        try:
            outcome = action()
        except StopRequested:
            raise
        except Exception as error:  # noqa: BLE001  the driver raises it
            raised = _portable(error)
        events, self._events = tuple(self._events), []
        return _Answer(events, outcome, raised)


def _portable(error: Exception) -> Exception:
    """The error in a class that every process has, with the worker's traceback as a note."""
    text = traceback.format_exc()
    if type(error).__name__ == "OutOfMemoryError":
        error = MemoryError(str(error))
    elif not (isinstance(error, UserError) or type(error).__module__ == "builtins"):
        error = RuntimeError(f"{type(error).__name__}: {error}")
    error.add_note(f"In a worker:\n{text}")
    return error


class _Processes:
    """Worker processes of this machine; each has a pipe, on which it gets batches and sends answers."""

    def __init__(self, setup: _Setup, engine: Engine) -> None:
        self.workers = engine.workers
        self._setup, self._gpus = setup, engine.gpus
        self._processes: dict[int, _Process] = {}

    def submit(self, worker: int, batch: Sequence[Any]) -> None:
        process = self._processes.get(worker)
        # An idle worker may have been killed.
        if process is not None and not process.process.is_alive():
            process.pipe.close()
            process = None
        if process is None:
            gpu = self._gpus[worker % len(self._gpus)] if self._gpus else None
            process = self._processes[worker] = _Process.start(self._setup, gpu)
        process.is_busy = True
        with suppress(BrokenPipeError, ConnectionResetError):  # `wait` finds that it died
            process.pipe.send(batch)

    def wait(self) -> Sequence[tuple[int, _Message]]:
        messages: list[tuple[int, _Message]] = []
        busy = {process.pipe: worker for worker, process in self._processes.items() if process.is_busy}
        for pipe in connection.wait(list(busy), _POLL_S):
            worker = busy[pipe]  # type: ignore[index]
            process = self._processes[worker]
            try:
                message = process.pipe.recv()
            except (EOFError, OSError):  # OSError: killed within a message
                messages.append((worker, _Death(process.end(), not process.is_loaded)))
                del self._processes[worker]
                continue
            if isinstance(message, _Loaded):
                process.is_loaded = True
                continue
            process.is_busy = isinstance(message, Progress)
            messages.append((worker, message))
        return messages

    def close(self) -> None:
        # A worker whose pipe is closed ends after its batch; one that still loads has no results to wait for.
        for process in self._processes.values():
            process.pipe.close()
            if not process.is_loaded:
                process.process.kill()
        deadline = _GRACE_S
        for process in self._processes.values():
            process.process.join(deadline)
            deadline = 0.0 if process.process.is_alive() else deadline
        for process in self._processes.values():
            process.process.kill()
            process.process.join()
            process.process.close()


@dataclass
class _Process:
    process: SpawnProcess
    pipe: connection.Connection
    is_loaded: bool = False
    is_busy: bool = False

    @classmethod
    def start(cls, setup: _Setup, gpu: str | None) -> _Process:
        # A forked process could not use CUDA, and would hold the pipes of the others open.
        context = get_context("spawn")
        pipe, remote_pipe = context.Pipe()
        process = context.Process(target=_serve_batches, args=(remote_pipe, setup, os.getpid()), daemon=True)
        with _visible_gpu(gpu):
            process.start()
        remote_pipe.close()
        return cls(process, pipe)

    def end(self) -> str:
        """Wait for the end of a process whose pipe is closed; how it ended."""
        self.pipe.close()
        self.process.join(_GRACE_S)
        self.process.kill()
        self.process.join()
        code = self.process.exitcode
        self.process.close()
        if code is not None and code < 0:
            return f"its worker was killed by signal {-code} ({signal.Signals(-code).name})"
        return f"its worker ended with exit code {code}"


@contextmanager
def _visible_gpu(gpu: str | None) -> Iterator[None]:
    """Context in which a process is started that sees this GPU alone; None: all that this one sees."""
    name = "CUDA_VISIBLE_DEVICES"
    previous_value = os.environ.get(name)
    if gpu is not None:
        os.environ[name] = gpu
    try:
        yield
    finally:
        if gpu is not None:
            os.environ.pop(name)
            os.environ |= {} if previous_value is None else {name: previous_value}


def _serve_batches(pipe: connection.Connection, setup: _Setup, driver: int) -> None:
    """The process of a worker: load the state, then answer batches until the driver closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends it to all; the driver decides
    exit_with_parent(driver)

    # There is one batch at a time, so what can be read within one is the end of the pipe.
    reporter = _WorkerReporter(setup.directory, pipe.send, pipe.poll)
    if setup.workspace is not None:
        confinement.include(setup.workspace)
    with suppress(EOFError, BrokenPipeError, ConnectionResetError, StopRequested):
        batch = pipe.recv()
        loading = reporter.answer_of(lambda: setup.load(reporter))
        if loading.error is not None:
            pipe.send(loading)
            return
        pipe.send(_Loaded())

        state, events = loading.outcome, loading.events
        while True:
            answer = reporter.answer_of(lambda: setup.work(state, batch))  # noqa: B023  called at once
            pipe.send(_Answer((*events, *answer.events), answer.outcome, answer.error))
            events = ()
            batch = pipe.recv()


def worker_resources(nodes: Sequence[Mapping[str, float]], workers: int, threads: int) -> tuple[float, float]:
    """Cores and GPUs of a worker, so that all workers have a place on the nodes of a Ray cluster.

    A worker lies on one node, and on one GPU, so the totals of the cluster do not count. `nodes`: their resources.
    """
    gpus = sum(node.get("GPU", 0.0) for node in nodes)
    workers_per_gpu = math.ceil(workers / gpus) if gpus else 0

    def count_slots(share: float) -> int:
        slots = 0
        for node in nodes:
            node_slots = int(node.get("CPU", 0.0) / share)
            if gpus:
                node_slots = min(node_slots, int(node.get("GPU", 0.0) * workers_per_gpu))
            slots += node_slots
        return slots

    # The largest share counts with which all workers have a place: a part of a node, and no more than their threads.
    shares = {float(threads)}
    for node in nodes:
        shares |= {_round_down(node.get("CPU", 0.0) / number) for number in range(1, workers + 1)}
    fitting = [share for share in shares if 0 < share <= threads and count_slots(share) >= workers]
    return max(fitting, default=0.0), _round_down(1 / workers_per_gpu) if gpus else 0.0


def _round_down(share: float) -> float:
    """A share as Ray rounds it, but down: six shares of 0.1667 are more than one."""
    return math.floor(share * _RAY_DIGITS) / _RAY_DIGITS


class _RayActors:
    """Actors of a Ray cluster (https://docs.ray.io); their progress within a batch is not seen."""

    def __init__(self, setup: _Setup, engine: Engine, reporter: Reporter) -> None:
        # Usage statistics are off before ray is imported; it reads other settings, such as the token, by itself.
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        os.environ.setdefault("RAY_worker_niceness", "0")  # The job's niceness, instead of 15.
        self._ray = _import_ray()
        from ray.exceptions import NodeDiedError, OutOfMemoryError, RayActorError

        # A worker that is killed for memory, or with its node, is a death too, and Ray has no common class for them.
        self._death_errors, self._setup = (RayActorError, OutOfMemoryError, NodeDiedError), setup
        self._connect(engine)
        threads, resources = threads_per_process(), self._ray.cluster_resources()
        cores, gpus = resources.get("CPU", 1.0), resources.get("GPU", 0.0)
        self.workers = engine.workers or int(gpus) or max(1, int(cores // threads))
        self._actor_class = self._ray.remote(_RayActor)
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        num_cpus, num_gpus = worker_resources(nodes, self.workers, threads)
        self._options = {
            "num_cpus": num_cpus, "num_gpus": num_gpus,
            # Deaths are counted by the driver, for every engine in the same way.
            "max_restarts": 0, "max_task_retries": 0,
            # Without the variable, Ray would give a worker as many threads as it has cores.
            "runtime_env": {"env_vars": {_THREADS: str(threads), "PYTHONPATH": os.pathsep.join(
                [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])}},
        }
        self._actors: dict[int, Any] = {}
        self._starting: dict[int, tuple[Any, float]] = {}  # The pending answers of new actors, and when they began.
        self._first_batches: dict[int, Sequence[Any]] = {}  # They wait for actors that load.
        self._running: dict[Any, int] = {}
        reporter.emit(Plan((f"Ray {self._ray.__version__}: {pluralize(self.workers, 'worker')}, "
                            f"{cores:g} cores, {gpus:g} GPUs.",)))

    def _connect(self, engine: Engine) -> None:
        settings: dict[str, Any] = {"log_to_driver": True, "include_dashboard": False, "logging_level": "error"}
        if engine.ray_address:
            settings = {"address": engine.ray_address, "log_to_driver": True, "logging_level": "error"}
        elif not os.environ.get("RAY_ADDRESS"):
            settings["_node_ip_address"] = "127.0.0.1"  # nobody else can connect
        try:
            self._ray.init(**settings)
        except (OSError, RuntimeError, ValueError) as error:
            place = f"at {engine.ray_address}" if engine.ray_address else "of this machine"
            raise UserError(f"The Ray cluster {place} could not be reached: {' '.join(str(error).split())[:300]}.",
                            "Start it (`ray start --head`) and give its address, or use --engine processes.",
                            ErrorKind.ENVIRONMENT) from error

    def submit(self, worker: int, batch: Sequence[Any]) -> None:
        if worker not in self._actors:
            self._actors[worker] = self._actor_class.options(**self._options).remote(self._setup)
            self._starting[worker] = self._actors[worker].ping.remote(), time.monotonic()
            # An actor that dies at once in its batch may take the answer of its loading with it, so the batch waits.
            self._first_batches[worker] = batch
            self._running[self._actors[worker].load.remote()] = worker
        else:
            self._running[self._actors[worker].work.remote(batch)] = worker

    def wait(self) -> Sequence[tuple[int, _Message]]:
        self._check_starts()
        ready, _ = self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_POLL_S)
        messages: list[tuple[int, _Message]] = []
        for reference in ready:
            worker = self._running.pop(reference)
            first_batch = self._first_batches.pop(worker, None)
            try:
                answer = self._ray.get(reference)
            except self._death_errors as error:
                reason = " ".join(str(error).split())[:200]
                messages.append((worker, _Death(f"its Ray actor died ({reason})", first_batch is not None)))
                del self._actors[worker]
                continue
            if first_batch is not None:
                self._running[self._actors[worker].work.remote(first_batch)] = worker
            else:
                messages.append((worker, answer))
        return messages

    def _check_starts(self) -> None:
        """Raise `UserError` if the cluster has had no place for an actor for too long."""
        for worker, (reference, begin_s) in list(self._starting.items()):
            ready, _ = self._ray.wait([reference], timeout=0)
            if ready:
                del self._starting[worker]
            elif time.monotonic() - begin_s > _RAY_START_S:
                raise UserError(
                    f"{len(self._starting)} of {pluralize(self.workers, 'worker')} have not started within "
                    f"{_RAY_START_S:.0f} s: the Ray cluster has no place for them.",
                    "Wait until its other work has ended, or use fewer workers (--workers).", ErrorKind.ENVIRONMENT)

    def close(self) -> None:
        if self._running:
            self._ray.wait(list(self._running), num_returns=len(self._running), timeout=_GRACE_S)
        self._ray.shutdown()


class _RayActor:
    """A worker of Ray."""

    def __init__(self, setup: _Setup) -> None:
        if setup.workspace is not None:
            confinement.include(setup.workspace)
        self._setup = setup
        self._reporter = _WorkerReporter(setup.directory, lambda progress: None, lambda: False)
        self._loaded: _Answer | None = None

    def ping(self) -> None:
        """Answer as soon as the actor has a place."""

    def load(self) -> None:
        self._loaded = self._reporter.answer_of(lambda: self._setup.load(self._reporter))

    def work(self, batch: Sequence[Any]) -> _Answer:
        assert self._loaded is not None
        if self._loaded.error is not None:
            return self._loaded
        state, events = self._loaded.outcome, self._loaded.events
        self._loaded = _Answer((), state)  # the warnings of the loading are sent once
        answer = self._reporter.answer_of(lambda: self._setup.work(state, batch))
        return _Answer((*events, *answer.events), answer.outcome, answer.error)


def _import_ray() -> Any:
    try:
        import ray  # slow, and optional
    except ImportError as error:
        raise UserError(
            "The engine `ray` needs the package ray, which is not installed.",
            f"Install it: python -m pip install -r {RAY_REQUIREMENTS}; or use --engine processes.") from error
    return ray
