"""Jobs as they stand now: the journal folded, plus whether the job's lock is held. Never loads torch.

`JobReader` reads only what was appended since its last call, so that a page can ask twice a
second; `JobBoard` keeps one for each job of a workspace and is shared by all callbacks.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace

from config.errors import UserError
from core.job import kept, locks, places
from core.job.directory import Job, load
from core.job.journal import TERMINAL, Event, Queued, Started, Waiting, read
from core.job.state import Fold, JobState
from core.workspace import Workspace

_NEVER_REPORTED = "The worker ended without a word: it was killed, or the machine went down."
_CRASH_HINT = "Continue it; if it happens again, read the log and watch the memory."


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
                hint = f"{_CRASH_HINT} {kept.words(self.job)}"
                return replace(self._snapshot(), status="crashed", message=_NEVER_REPORTED, hint=hint,
                               ended_at=self._last_time, eta_s=None, rate=None)
            state = self._snapshot()
            return replace(state, status="stopping") if state.alive and self.job.stop_file.exists() else state

    def _reset(self) -> None:
        self._offset = 0
        self._inode = 0
        self._last: Event | None = None  # the last event that moved the job on in its life
        self._last_time = 0.0
        self._fold = Fold(self.job)
        self._cached: JobState | None = None

    def _read(self) -> bool:
        """Take in what was appended; False when that was nothing."""
        try:
            status = os.stat(self.job.journal)
        except FileNotFoundError:
            return False
        if status.st_ino != self._inode or status.st_size < self._offset:
            self._reset()
            self._inode = status.st_ino
        if status.st_size == self._offset:
            return False
        events, self._offset = read(self.job.journal, self._offset)
        for event in events:
            self._last_time = event.time
            if isinstance(event, (Queued, Waiting, Started, *TERMINAL)):
                self._last = event
            self._fold.add(event)
        if events:
            self._cached = None
        return bool(events)

    def _snapshot(self) -> JobState:
        if self._cached is None:
            self._cached = self._fold.state()
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
        return places.in_order([state for state in self.states() if state.alive])

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
                self._readers[name] = JobReader(load(self.workspace, directory.name))
            return self._readers[name]
