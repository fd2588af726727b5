"""The state of jobs, from their journals and locks.

`JobStateReducer` reduces events to a `JobState`. `JobReader` follows the journal of one job and adds whether its worker
is alive; it reads only what was appended since its last call, so the page can call it twice a second. `JobBoard` has
the states of all jobs of a workspace, and caches those of ended jobs in a file, because there may be thousands.
"""

from __future__ import annotations

import json
import math
import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, Literal, overload

from pydantic import TypeAdapter

from config import foreign
from config.errors import UserError
from config.foreign import file_stamp
from core.jobs import checkpoint_names, locks
from core.jobs.events import (
    MAX_TIME,
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
    Renamed,
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
from core.jobs.job import Job, load_job, load_job_directory, public_settings
from core.jobs.verbs import VERBS
from core.workspace import Reference, Workspace
from data.durable_files import write_text

Status = Literal["created", "queued", "waiting", "running", "stopping",
                 "finished", "stopped", "failed", "crashed", "skipped"]
STATUS_TITLES: Mapping[Status, str] = {
    "created": "not started", "queued": "starting", "waiting": "waiting", "running": "running",
    "stopping": "stopping", "finished": "finished", "stopped": "stopped", "failed": "failed", "crashed": "crashed",
    "skipped": "not started",
}
"""What people are shown; JSON has the status itself."""
ALIVE: tuple[Status, ...] = ("queued", "waiting", "running", "stopping")
RESUMABLE: tuple[Status, ...] = ("stopped", "failed", "crashed", "skipped")
POSITION_FILE = "queue_position"
"""File in a job's folder: its position in the queue of its device, if it was moved."""
_MAX_CACHE_BYTES = 512 << 20
_SPEED_WINDOW_S = 30.0
_NO_LAST_EVENT = "The worker ended without a last event: it was killed, or the machine went down."
_CRASH_HINT = "Resume it; if it happens again, read the log and check the memory."
_LISTS: Mapping[type[Event], str] = {
    Step: "steps", Evaluated: "evaluations", SampleGenerated: "samples", CheckpointSaved: "checkpoints",
    AudioGenerated: "audio", AudioChunk: "audio_chunks", Stage: "stages", WarningRaised: "warnings",
}
"""Fields of `JobState` that list the events of a kind; `warnings` lists the messages."""
_STEP_LISTS = ("steps", "evaluations", "samples", "checkpoints")


@dataclass(frozen=True)
class JobState:
    """A job at one moment. Times are seconds since 1970, durations seconds."""

    job: Job  # its device is that of the last attempt
    status: Status = "created"
    title: str = ""  # the display name; empty: none
    reason: str = ""  # why it waits
    attempt: int = 0
    started_at: float | None = None  # the last attempt's
    earlier_s: float = 0.0  # how long the attempts before it ran
    ended_at: float | None = None
    progress: Progress | None = None
    units_per_s: float | None = None  # units of `progress`, over the last half minute
    eta_s: float | None = None
    stages: Sequence[Stage] = ()
    plan: Plan | None = None
    steps: Sequence[Step] = ()
    evaluations: Sequence[Evaluated] = ()
    samples: Sequence[SampleGenerated] = ()
    checkpoints: Sequence[CheckpointSaved] = ()
    audio: Sequence[AudioGenerated] = ()
    audio_chunks: Sequence[AudioChunk] = ()
    warnings: Sequence[str] = ()
    result: Result | None = None
    message: str = ""  # why it failed or stopped
    hint: str = ""
    traceback: str = ""
    error_kind: str = ""  # a `config.errors.ErrorKind`, if it failed
    exit_code: int | None = None
    interrupted: bool = False  # its processes ended, and no person had requested it
    changes: Sequence[str] = ()  # options that this attempt has and the one before had not
    restarts: int = 0  # attempts that the app began after such interruptions, since the last checkpoint

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
    def certifies(self) -> str:
        """The id of the run that this job certifies; empty for other jobs, also for one that certifies an export."""
        return Reference.parse(str(self.job.settings.get("run", ""))).run if self.verb == "certify" else ""

    @property
    def has_device(self) -> bool:
        return self.status in ("running", "stopping") and self.started_at is not None

    @property
    def seconds(self) -> float:
        """How long all attempts ran, or have run."""
        present_s = 0.0 if self.started_at is None else (self.ended_at or time.time()) - self.started_at
        return self.earlier_s + present_s


class JobStateReducer:
    """Reduces the events of a job, added one by one, to a `JobState`."""

    def __init__(self, job: Job) -> None:
        self._state = JobState(job)
        self._lists: dict[str, list[Any]] = {name: [] for name in _LISTS.values()}
        self._latest: Progress | None = None
        self._recent: deque[tuple[float, float]] = deque()  # (time, done) of the progress now counted
        self._worked_at = 0.0  # the time of the last event of the attempt

    def state(self) -> JobState:
        units_per_s = self._units_per_s()
        lists: dict[str, Any] = {name: tuple(items) for name, items in self._lists.items()}
        return replace(self._state, progress=self._latest, units_per_s=units_per_s,
                       eta_s=self._eta(units_per_s), **lists)

    def use_options_of(self, job: Job) -> None:
        """Show the options of `job`, which was resumed with others than before."""
        self._state = replace(self._state, job=job)

    def add(self, event: Event) -> None:
        if not isinstance(event, Queued | Renamed):
            self._worked_at = max(self._worked_at, event.time)
        match event:
            # Events that change the status.
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
                          hint=event.hint, traceback=event.traceback, exit_code=event.exit_code,
                          error_kind=event.error_kind, ended_at=event.time)
            case Skipped():
                self._set(status="skipped", reason="", message=event.message, hint=event.hint, ended_at=event.time)
            case Stopped():
                self._set(status="stopped", reason="", message=event.message, ended_at=event.time,
                          interrupted=event.terminated)

            # Events of the running attempt.
            case Stage():
                self._stage(event)
            case Plan():
                self._set(plan=event)
            case Progress():
                self._progress(event)
            case Step():
                self._step(event)
            case CheckpointSaved():  # again when it is the best, and by a resumed run
                checkpoints = (checkpoint for checkpoint in self._lists["checkpoints"] if checkpoint.step != event.step)
                self._lists["checkpoints"] = [*checkpoints, event]
                self._set(restarts=0)
            case AudioGenerated():  # emitted when it can be played, and again with its score
                clips = self._lists["audio"]
                clips[:] = [clip for clip in clips if (clip.side, clip.index) != (event.side, event.index)]
                clips.append(event)
            case Renamed():
                self._set(title=event.name)
            case WarningRaised():
                self._lists["warnings"].append(event.message)
            case _:
                self._lists[_LISTS[type(event)]].append(event)

    def _set(self, **changes: object) -> None:
        self._state = replace(self._state, **changes)  # type: ignore[arg-type]

    def _begin_attempt(self, event: Queued) -> None:
        """Drop what belongs only to the last attempt, and keep the steps, which a resumed run continues."""
        last = self._state
        job = replace(last.job, device=event.device or last.job.device)
        # An attempt that never started does not count as a restart.
        restarts = last.restarts + (last.started_at is not None) if event.restart else 0
        earlier_s = last.earlier_s + (0.0 if last.started_at is None else self._worked_at - last.started_at)
        self._state = JobState(job, status="queued", attempt=last.attempt, restarts=restarts, title=last.title,
                               earlier_s=earlier_s, changes=event.changes)
        self._latest = None
        self._recent.clear()
        for name in self._lists.keys() - set(_STEP_LISTS):
            self._lists[name].clear()

    def _stage(self, event: Stage) -> None:
        if event.seconds is None:  # the last progress belongs to the stage before
            self._latest = None
            self._recent.clear()

        # The end of a stage takes the place of its beginning.
        stages = self._lists["stages"]
        if event.seconds is not None and stages and stages[-1].name == event.name:
            stages.pop()
        stages.append(event)

    def _progress(self, event: Progress) -> None:
        last = self._latest
        # Another count has another speed.
        if last and ((last.unit, last.total) != (event.unit, event.total) or event.done < last.done):
            self._recent.clear()
        self._latest = event
        self._recent.append((event.time, event.done))
        while event.time - self._recent[0][0] > _SPEED_WINDOW_S:
            self._recent.popleft()

    def _step(self, event: Step) -> None:
        """A step that is repeated after a resume replaces the first one, and drops everything after it."""
        steps = self._lists["steps"]
        if steps and event.step <= steps[-1].step:
            for name in _STEP_LISTS:
                self._lists[name][:] = [earlier for earlier in self._lists[name] if earlier.step < event.step]
        steps.append(event)
        self._progress(Progress(event.step, event.total_steps, "steps", time=event.time))

    def _units_per_s(self) -> float | None:
        if not self._state.ended_at and self._latest and self._latest.per_second is not None:
            return self._latest.per_second
        if self._state.ended_at or len(self._recent) < 2 or self._recent[-1][0] <= self._recent[0][0]:
            return None
        (start_time, start_count), (end_time, end_count) = self._recent[0], self._recent[-1]
        return (end_count - start_count) / (end_time - start_time)

    def _eta(self, units_per_s: float | None) -> float | None:
        progress = self._latest
        if self._state.ended_at or progress is None:
            return None
        stages: list[Stage] = self._lists["stages"]
        steps: list[Step] = self._lists["steps"]
        # A training reports how long it will take, which counts samples and validations too.
        is_training = progress.unit == "steps" or not (stages and stages[-1].seconds is None)
        if steps and is_training and steps[-1].seconds_left is not None:
            return steps[-1].seconds_left  # also while samples are synthesized between steps
        if progress.per_second is not None:
            return progress.seconds_left
        if not units_per_s or progress.total is None or progress.done >= progress.total:
            return None  # all is counted, and the work after it has not been timed
        return (progress.total - progress.done) / units_per_s


def queue_position(job: Job) -> float:
    """The job's position in its queue (smaller is earlier): of its file, else the time of its creation."""
    try:
        position = float((job.directory / POSITION_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return job.created
    return position if math.isfinite(position) else job.created


def queue_order(states: Sequence[JobState]) -> list[JobState]:
    """Jobs that are alive, in the order in which they have or get their device."""
    return sorted(states, key=lambda state: (not state.has_device, queue_position(state.job), state.id))


class JobReader:
    """Follows the journal of one job; thread-safe."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self._guard = threading.Lock()
        self._reset()

    def has_ended(self, size: int) -> bool:
        """Whether the journal was read up to `size` bytes, its end, and the last event ended the job."""
        return isinstance(self._last, TERMINAL) and self._offset == size

    def state(self, worker_alive: bool | None = None) -> JobState:
        """The state now; fast if nothing was appended.

        The job's lock tells whether the worker is alive. A caller that holds the lock passes `worker_alive` instead.
        """
        with self._guard:
            self._read()
            if self._last is None or isinstance(self._last, TERMINAL):
                return self._snapshot()

            # A worker that died wrote no last event.
            alive = locks.is_held(self.job.lock) if worker_alive is None else worker_alive
            if not alive and not self._read():  # read again: the last event may have been written just before the end
                hint = f"{_CRASH_HINT} {checkpoint_names.resume_point(self.job)}"
                return replace(self._snapshot(), status="crashed", message=_NO_LAST_EVENT, hint=hint,
                               ended_at=self._last_time, eta_s=None, units_per_s=None,
                               interrupted=not self.job.stopped_by_person())
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
        """Read what was appended to the journal. Returns False if nothing was."""
        try:
            status = os.stat(self.job.journal)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise UserError(f"{self.job.journal} cannot be read: {error.strerror}.",
                            "Move the job's folder away.") from error

        # Another file, or a shorter one, is a new journal.
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._reset()
            self._inode = status.st_ino
        if status.st_size == self._offset:
            return False

        events, self._offset = read_events(self.job.journal, self._offset)
        for event in events:
            if not isinstance(event, Renamed):
                self._last_time = event.time
            if isinstance(event, (Queued, Waiting, Started, *TERMINAL)):
                self._last = event
            # The attempt has other options than the one before.
            if isinstance(event, Queued) and event.changes:
                self.job = load_job_directory(self.job.directory)
                self._reducer.use_options_of(self.job)
            self._reducer.add(event)
        if events:
            self._cached = None
        return bool(events)

    def _snapshot(self) -> JobState:
        if self._cached is None:
            self._cached = self._reducer.state()
        return self._cached


class _JournalList(Sequence[Any]):
    """A list of events of an ended job. It stores its length and, for steps, its last item; the rest is read lazily."""

    def __init__(self, job: Job, stamp: tuple[int, int], name: str, length: int, last: object = None) -> None:
        self._job, self._stamp, self._name, self._length, self._last = job, stamp, name, length, last

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        if self._last is not None and index == -1:
            return self._last
        return _journal_lists(self._job, self._stamp)[self._name][index]


@lru_cache(maxsize=8)
def _journal_lists(job: Job, _stamp: tuple[int, int]) -> dict[str, Sequence[Any]]:
    """The lists of `job`, read from its journal; cached for a few jobs."""
    reducer = JobStateReducer(job)
    for event in read_events(job.journal)[0]:
        reducer.add(event)
    state = reducer.state()
    return {name: getattr(state, name) for name in _LISTS.values()}


@dataclass(frozen=True)
class EndedJob:
    """What is cached of a job that has ended; valid while its files have the same stamps."""

    name: str
    config_stamp: tuple[int, int]  # see `file_stamp`
    journal_stamp: tuple[int, int]
    lengths: dict[str, int]  # lengths of the lists that are not cached
    last_step: Step | None
    state: JobState  # without these lists

    @classmethod
    def of(cls, state: JobState, config_stamp: tuple[int, int], journal_stamp: tuple[int, int]) -> EndedJob:
        # Long lists stay in the journal and are read when somebody looks at the job.
        lengths = {name: len(getattr(state, name)) for name in _LISTS.values() if name not in ("stages", "checkpoints")}
        lengths = {name: length for name, length in lengths.items() if length}
        without: dict[str, Any] = dict.fromkeys(lengths, ())
        job = replace(state.job, settings=public_settings(state.job.settings))  # the cache outlives its job
        return cls(state.id, config_stamp, journal_stamp, lengths, state.steps[-1] if state.steps else None,
                   replace(state, job=job, **without))

    def restore(self, folder: Path) -> JobState:
        """The state of the job in `folder`."""
        job = replace(self.state.job, directory=folder)
        lists: dict[str, Any] = {
            name: _JournalList(job, self.journal_stamp, name, length, self.last_step if name == "steps" else None)
            for name, length in self.lengths.items()}
        return replace(self.state, job=job, **lists)


@cache
def _ended_job_type() -> TypeAdapter[EndedJob]:
    return TypeAdapter(EndedJob)


class JobBoard:
    """All jobs of a workspace, read incrementally. The page shares one between all callbacks; it is thread-safe.

    Ended jobs are cached in `cache/jobs.jsonl`, because a page over 5,000 jobs would read all journals at each start. A
    job has one or more lines, of which the last counts; it is valid while the job's files are unchanged. The file may
    be deleted, and damaged lines are ignored.
    """

    def __init__(self, workspace: Workspace) -> None:
        self.workspace = workspace
        self._guard = threading.RLock()
        self._readers: dict[str, JobReader] = {}
        self._cached_jobs: dict[str, EndedJob] | None = None  # read from the file, not yet compared with the job
        self._ended: dict[str, tuple[tuple[int, int], JobState]] = {}  # journal's stamp, state
        self.damaged: dict[str, str] = {}
        """Folders in `runs` that cannot be read as jobs, with the reason; updated by `states`."""

    def states(self) -> list[JobState]:
        """Every readable job, newest first."""
        with self._guard:
            if self._cached_jobs is None:
                self._cached_jobs = self._read_cache()

            # Forget jobs that were deleted.
            names = self.workspace.list_runs()
            for jobs in (self._readers, self._ended, self._cached_jobs):
                for gone in jobs.keys() - set(names):
                    del jobs[gone]

            # Take ended jobs from the cache, and read the journals of the others.
            entries: list[tuple[float, str, JobState]] = []
            damaged, new, runs = {}, [], str(self.workspace.runs)
            for name in names:
                state = self._ended_state(name, f"{runs}/{name}")
                if state is None:
                    try:
                        with foreign.reading(self.workspace.runs / name, "Move it out of the workspace."):
                            state = self.state(name)
                    except UserError as error:  # a foreign folder, or a job of another version
                        damaged[name] = error.message
                        continue
                    ended = self._release(state) if state.ended else None
                    if ended:
                        new.append(ended)
                entries.append((state.job.created, name, state))

            self._append_to_cache(new)
            self.damaged = damaged
            return [state for _created, _name, state in sorted(entries, key=itemgetter(0, 1), reverse=True)]

    def state(self, name: str) -> JobState:
        """The state of the job `name`; `UserError` if there is none."""
        with self._guard:
            directory = self.workspace.run(name)
            name = directory.name
            ended = self._ended_state(name, str(directory))
            if ended is not None:
                return ended
            if name not in self._readers:
                self._readers[name] = JobReader(load_job(self.workspace, name))
            reader = self._readers[name]
        return reader.state()

    def queue(self) -> list[JobState]:
        """Jobs that run or wait, in the order in which they will get their device."""
        return queue_order([state for state in self.states() if state.alive])

    def needed_paths(self, ignored_id: str = "") -> set[Path]:
        """The paths that settings of jobs that may still run name, and the folders above them.

        The job `ignored_id` does not count.
        """
        paths: set[Path] = set()
        for state in self.states():
            if state.id == ignored_id or not (state.alive or state.resumable or state.status == "created"):
                continue
            for value in state.job.settings.values():
                if isinstance(value, str):
                    paths.update((Path(value), *Path(value).parents))
        return paths

    def _ended_state(self, name: str, folder: str) -> JobState | None:
        """The cached state of an ended job whose journal is unchanged; else None."""
        stamped_state = self._ended.get(name)
        if stamped_state:
            stamp, state = stamped_state
            if file_stamp(f"{folder}/events.jsonl") == stamp:
                return state
            del self._ended[name]
        elif (self._cached_jobs and (cached_job := self._cached_jobs.pop(name, None))
              and cached_job.config_stamp == file_stamp(f"{folder}/config.yaml")
              and cached_job.journal_stamp == file_stamp(f"{folder}/events.jsonl")):
            self._ended[name] = cached_job.journal_stamp, cached_job.restore(self.workspace.runs / name)
            return self._ended[name][1]
        return None

    def _release(self, state: JobState) -> EndedJob | None:
        """Replace the reader of an ended job by a cache entry, to free memory. Returns None if it has no reader."""
        name, folder = state.id, self.workspace.runs / state.id
        # The job may have begun again since its state was read.
        reader, journal = self._readers.get(name), file_stamp(f"{folder}/events.jsonl")
        if reader is None or not reader.has_ended(journal[1]):
            return None
        del self._readers[name]
        ended = EndedJob.of(state, file_stamp(f"{folder}/config.yaml"), journal)
        self._ended[name] = journal, ended.restore(folder)
        return ended

    @property
    def _file(self) -> Path:
        return self.workspace.cache / "jobs.jsonl"

    def _read_cache(self) -> dict[str, EndedJob]:
        try:
            lines = foreign.read_bytes(self._file, _MAX_CACHE_BYTES).split(b"\n")
        except (OSError, ValueError):
            return {}
        ended_jobs: dict[str, EndedJob] = {}
        valid_lines: dict[str, bytes] = {}
        secret = False  # whether an older version cached addresses with their passwords
        for line in filter(None, lines):
            with suppress(ValueError):  # pydantic's error is one
                job = _ended_job_type().validate_python(foreign.loads(line))
                if job.state.ended and job.state.verb in VERBS and 0 <= job.state.job.created < MAX_TIME:
                    public = public_settings(job.state.job.settings)
                    if public != job.state.job.settings:
                        secret = True
                        job = replace(job, state=replace(job.state, job=replace(job.state.job, settings=public)))
                        line = json.dumps(_ended_job_type().dump_python(job, mode="json")).encode()
                    ended_jobs[job.name], valid_lines[job.name] = job, line

        # Rewrite the file without passwords, or when most of its lines are out of date.
        if secret or len(lines) > 2 * len(ended_jobs) + 1000:
            with suppress(UserError, OSError):
                write_text(self._file, b"\n".join([*valid_lines.values(), b""]).decode(), sync=False)
        return ended_jobs

    def _append_to_cache(self, ended: Iterable[EndedJob]) -> None:
        lines = [json.dumps(_ended_job_type().dump_python(job, mode="json")) + "\n" for job in ended]
        if lines:
            with suppress(OSError), open(self._file, "a", encoding="ascii", opener=_private) as file:
                file.write("".join(lines))


def _private(path: str, flags: int) -> int:
    """Open a file that only its owner may read."""
    return os.open(path, flags, 0o600)
