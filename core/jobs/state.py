"""The state of jobs, from their journals and locks.

`JobStateReducer` folds events into a `JobState`. `JobReader` adds whether the worker lives; it reads only what was
appended since its last call, so that a page can ask twice a second. `JobBoard` has one reader for each job of a
workspace and is shared by all callbacks.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from config.errors import UserError
from core.jobs import checkpoint_names, locks
from core.jobs.directory import Job, load_job
from core.jobs.events import (
    TERMINAL,
    AudioChunk,
    AudioGenerated,
    CheckpointSaved,
    Evaluated,
    Event,
    Failed,
    Finished,
    Plan,
    Progress,
    Queued,
    Result,
    SampleGenerated,
    Skipped,
    Stage,
    Started,
    Step,
    Stopped,
    Waiting,
    WarningRaised,
    read_events,
)
from core.workspace import Workspace

Status = Literal["created", "queued", "waiting", "running", "stopping",
                 "finished", "stopped", "failed", "crashed", "skipped"]
ALIVE: tuple[Status, ...] = ("queued", "waiting", "running", "stopping")
RESUMABLE: tuple[Status, ...] = ("stopped", "failed", "crashed", "skipped")
POSITION_FILE = "queue_position"
"""In a job's folder: its place among the jobs of its device, where a person moved it."""
_RATE_WINDOW_S = 30.0
_NO_LAST_EVENT = "The worker ended without a last event: it was killed, or the machine went down."
_CRASH_HINT = "Resume it; if it happens again, read the log and watch the memory."
_EventOfStep = TypeVar("_EventOfStep", Step, Evaluated, SampleGenerated, CheckpointSaved)


@dataclass(frozen=True)
class JobState:
    """A job at one moment. Times are seconds since 1970, durations seconds."""

    job: Job
    status: Status = "created"
    reason: str = ""  # why it waits
    attempt: int = 0
    queued_at: float | None = None
    started_at: float | None = None  # of the last attempt
    ended_at: float | None = None
    progress: Progress | None = None
    rate: float | None = None  # units of `progress` a second, lately
    eta_s: float | None = None
    stages: tuple[Stage, ...] = ()
    plan: Plan | None = None
    steps: tuple[Step, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    samples: tuple[SampleGenerated, ...] = ()
    checkpoints: tuple[CheckpointSaved, ...] = ()
    audio: tuple[AudioGenerated, ...] = ()
    audio_chunks: tuple[AudioChunk, ...] = ()
    warnings: tuple[str, ...] = ()
    result: Result | None = None
    message: str = ""  # of the failure or the stop
    hint: str = ""
    traceback: str = ""
    exit_code: int | None = None

    @property
    def id(self) -> str:
        return self.job.id

    @property
    def verb(self) -> str:
        return self.job.verb

    @property
    def alive(self) -> bool:
        return self.status in ALIVE

    @property
    def ended(self) -> bool:
        return self.status not in ALIVE and self.status != "created"

    @property
    def resumable(self) -> bool:
        return self.status in RESUMABLE

    @property
    def has_device(self) -> bool:
        return self.status in ("running", "stopping") and self.started_at is not None

    @property
    def seconds(self) -> float:
        """How long the last attempt ran, or has run."""
        return 0.0 if self.started_at is None else (self.ended_at or time.time()) - self.started_at


class JobStateReducer:
    """Events in, `JobState` out."""

    def __init__(self, job: Job) -> None:
        self._state = JobState(job)
        self._steps: list[Step] = []
        self._evaluations: list[Evaluated] = []
        self._samples: list[SampleGenerated] = []
        self._checkpoints: list[CheckpointSaved] = []
        self._audio: list[AudioGenerated] = []
        self._audio_chunks: list[AudioChunk] = []
        self._stages: list[Stage] = []
        self._warnings: list[str] = []
        self._latest: Progress | None = None
        self._recent: deque[tuple[float, float]] = deque()  # (time, done) of the progress now counted

    def state(self) -> JobState:
        rate = self._rate()
        return replace(
            self._state, progress=self._latest, rate=rate, eta_s=self._eta(rate), stages=tuple(self._stages),
            steps=tuple(self._steps), evaluations=tuple(self._evaluations), samples=tuple(self._samples),
            checkpoints=tuple(self._checkpoints), audio=tuple(self._audio), audio_chunks=tuple(self._audio_chunks),
            warnings=tuple(self._warnings),
        )

    def add(self, event: Event) -> None:
        match event:
            case Queued():
                self._begin_attempt(event)
            case Waiting():
                self._set(status="waiting", reason=event.reason)
            case Started():
                self._set(status="running", reason="", attempt=event.attempt, started_at=event.time)
            case Finished():
                self._set(status="finished", reason="", result=event.result, ended_at=event.time, exit_code=0)
            case Failed():
                self._set(status="crashed" if event.exit_code < 0 else "failed", reason="", message=event.message,
                          hint=event.hint, traceback=event.traceback, exit_code=event.exit_code, ended_at=event.time)
            case Skipped():
                self._set(status="skipped", reason="", message=event.message, hint=event.hint, ended_at=event.time)
            case Stopped():
                self._set(status="stopped", reason="", message=event.message, ended_at=event.time)
            case Stage():
                self._stage(event)
            case Plan():
                self._set(plan=event)
            case Progress():
                self._progress(event)
            case Step():
                self._step(event)
            case Evaluated():
                self._evaluations.append(event)
            case SampleGenerated():
                self._samples.append(event)
            case CheckpointSaved():  # repeated by a resumed run that was killed before it could report it
                self._checkpoints = [*(one for one in self._checkpoints if one.step != event.step), event]
            case AudioGenerated():
                self._audio.append(event)
            case AudioChunk():
                self._audio_chunks.append(event)
            case WarningRaised():
                self._warnings.append(event.message)

    def _set(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]

    def _begin_attempt(self, event: Event) -> None:
        """Drop what belongs to the last attempt alone, but not the steps that a resumed run builds on."""
        self._state = JobState(self._state.job, status="queued", attempt=self._state.attempt, queued_at=event.time)
        self._latest = None
        for of_one_attempt in (self._audio, self._audio_chunks, self._stages, self._warnings, self._recent):
            of_one_attempt.clear()

    def _stage(self, event: Stage) -> None:
        if event.seconds is None:  # the last count belongs to the stage before
            self._latest = None
            self._recent.clear()
        elif self._stages and self._stages[-1].name == event.name:
            self._stages.pop()
        self._stages.append(event)

    def _progress(self, event: Progress) -> None:
        last = self._latest
        if last and ((last.unit, last.total) != (event.unit, event.total) or event.done < last.done):
            self._recent.clear()
        self._latest = event
        self._recent.append((event.time, event.done))
        while event.time - self._recent[0][0] > _RATE_WINDOW_S:
            self._recent.popleft()

    def _step(self, event: Step) -> None:
        """A step repeated after a resume replaces the first, and drops all that followed it."""
        if self._steps and event.step <= self._steps[-1].step:
            _drop_from(self._steps, event.step)
            _drop_from(self._evaluations, event.step)
            _drop_from(self._samples, event.step)
            _drop_from(self._checkpoints, event.step)
        self._steps.append(event)
        self._progress(Progress(event.step, event.total_steps, "steps", time=event.time))

    def _rate(self) -> float | None:
        if not self._state.ended_at and self._latest and self._latest.per_second is not None:
            return self._latest.per_second
        if self._state.ended_at or len(self._recent) < 2 or self._recent[-1][0] <= self._recent[0][0]:
            return None
        (began, first), (now, last) = self._recent[0], self._recent[-1]
        return (last - first) / (now - began)

    def _eta(self, rate: float | None) -> float | None:
        progress = self._latest
        if self._state.ended_at or progress is None:
            return None
        in_a_stage = bool(self._stages) and self._stages[-1].seconds is None
        by_steps = progress.unit == "steps" or not in_a_stage  # the certificate has its own counts
        if self._steps and by_steps and self._steps[-1].seconds_left is not None:
            return self._steps[-1].seconds_left  # also while samples are synthesized between steps
        if progress.per_second is not None:
            return progress.seconds_left
        if not rate or progress.total is None:
            return None
        return max(0.0, progress.total - progress.done) / rate


def _drop_from(events: list[_EventOfStep], step: int) -> None:
    events[:] = [event for event in events if event.step < step]


def queue_position(job: Job) -> float:
    """Smaller is earlier; the time of creation where nobody moved the job, or the file holds no number."""
    try:
        position = float((job.directory / POSITION_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return job.created
    return position if math.isfinite(position) else job.created


def queue_order(states: Sequence[JobState]) -> list[JobState]:
    """Living jobs in the order in which they have or get their device."""
    return sorted(states, key=lambda state: (not state.has_device, queue_position(state.job), state.id))


class JobReader:
    """Follows one job. Calls may come from several threads."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._guard = threading.Lock()
        self._reset()

    def state(self, worker_alive: bool | None = None) -> JobState:
        """The state now; cheap when nothing was appended.

        Whether a worker lives is read off the lock, unless the caller knows because it holds the lock itself.
        """
        with self._guard:
            self._read()
            if self._last is None or isinstance(self._last, TERMINAL):
                return self._snapshot()
            alive = locks.is_held(self.job.lock) if worker_alive is None else worker_alive
            if not alive and not self._read():  # a last event may have come between reading and looking
                hint = f"{_CRASH_HINT} {checkpoint_names.resume_point(self.job)}"
                return replace(self._snapshot(), status="crashed", message=_NO_LAST_EVENT, hint=hint,
                               ended_at=self._last_time, eta_s=None, rate=None)
            state = self._snapshot()
            return replace(state, status="stopping") if state.alive and self.job.stop_file.exists() else state

    def _reset(self) -> None:
        self._offset = 0
        self._inode = 0
        self._last: Event | None = None  # the last event that changed the status
        self._last_time = 0.0
        self._reducer = JobStateReducer(self.job)
        self._cached: JobState | None = None

    def _read(self) -> bool:
        """Read what was appended; False when that was nothing."""
        try:
            status = os.stat(self.job.journal)
        except FileNotFoundError:
            return False
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._reset()
            self._inode = status.st_ino
        if status.st_size == self._offset:
            return False
        events, self._offset = read_events(self.job.journal, self._offset)
        for event in events:
            self._last_time = event.time
            if isinstance(event, (Queued, Waiting, Started, *TERMINAL)):
                self._last = event
            self._reducer.add(event)
        if events:
            self._cached = None
        return bool(events)

    def _snapshot(self) -> JobState:
        if self._cached is None:
            self._cached = self._reducer.state()
        return self._cached


class JobBoard:
    """All jobs of a workspace, read incrementally. One for the whole page; safe to share between threads."""

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._guard = threading.Lock()
        self._readers: dict[str, JobReader] = {}

    def states(self) -> list[JobState]:
        """Every readable job, newest first."""
        names = self.workspace.list_runs()
        with self._guard:
            for gone in self._readers.keys() - set(names):
                del self._readers[gone]
        found = [state for name in names if (state := self._try(name))]
        return sorted(found, key=lambda state: (state.job.created, state.id), reverse=True)

    def state(self, name: str) -> JobState:
        """The job `name`; `UserError` when there is none."""
        return self._reader(name).state()

    def queue(self) -> list[JobState]:
        """Jobs that run or wait, in the order in which they will get their device."""
        return queue_order([state for state in self.states() if state.alive])

    def _try(self, name: str) -> JobState | None:
        """None for a folder that is not a job of this version; `state(name)` says why."""
        try:
            return self.state(name)
        except UserError:
            return None

    def _reader(self, name: str) -> JobReader:
        with self._guard:
            directory = self.workspace.run(name)
            if name not in self._readers:
                self._readers[name] = JobReader(load_job(self.workspace, directory.name))
            return self._readers[name]
