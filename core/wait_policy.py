"""How OpenMP's threads wait for each other: they spin, and while other programs take cores they block.

A thread that spins at a barrier continues sooner than one that a futex wakes. But if another program takes a core, the
threads that spin keep the other cores from the thread that they wait for, and the process almost stops.

GNU's runtime reads its wait policy from the environment once, when it is loaded. It hardly spins while a process has
more OpenMP threads than cores, though (100 iterations instead of 300,000: `do_spin` in libgomp's
config/linux/wait.h), so a team of threads that do nothing changes the policy of a running process. The number of
threads that compute stays the same, and with it every bit of the results.
"""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Protocol

VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""Environment variables that choose a wait policy; if one is set, it stays."""
_TASKS = Path("/proc/self/task")
_INTERVAL_S = 0.5
# The share of time that the threads wait for a core, added up; above it they block.
_BLOCK_SHARE = 0.1
_FIRST_HOLD_S, _MAX_HOLD_S = 2.0, 32.0  # seconds below that share before the threads spin again


class Team(Protocol):
    """Idle threads that count as threads of OpenMP until `close`."""

    def close(self) -> None: ...


class IdleTeam:
    """One thread of OpenMP more than there are cores, all of which sleep until `close`."""

    def __init__(self) -> None:
        self._started, self._end = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="idle OpenMP team", daemon=True)
        self._thread.start()
        self._started.wait()

    def _run(self) -> None:
        library = ctypes.CDLL(None)
        library.GOMP_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
        does_nothing = ctypes.cast(library.omp_get_thread_num, ctypes.c_void_p)
        library.GOMP_parallel(does_nothing, None, len(os.sched_getaffinity(0)) + 1, 0)
        self._started.set()
        self._end.wait()  # the runtime ends the team together with the thread that started it

    def close(self) -> None:
        self._end.set()
        self._thread.join()


class Watcher:
    """Lets the threads of this process block while they wait for cores, and spin otherwise.

    If they have to block again soon after they began to spin, they block twice as long as before.
    """

    def __init__(self, read_delays_s: Callable[[], Mapping[str, float]], clock: Callable[[], float],
                 open_team: Callable[[], Team]) -> None:
        self._read_delays_s, self._clock, self._open_team = read_delays_s, clock, open_team
        self._delays_s, self._time_s = read_delays_s(), clock()
        self._team: Team | None = None
        self._calm_s, self._hold_s = 0.0, _FIRST_HOLD_S
        self.blocking_s = 0.0  # how long the threads have blocked so far

    def update(self) -> None:
        """Choose the policy by how long the threads have waited for a core since the last update."""
        delays_s, time_s = self._read_delays_s(), self._clock()
        elapsed_s = time_s - self._time_s
        waited_s = sum(delay_s - self._delays_s.get(thread, 0.0) for thread, delay_s in delays_s.items())
        self._delays_s, self._time_s = delays_s, time_s

        crowded = waited_s > _BLOCK_SHARE * elapsed_s
        calm_before_s, self._calm_s = self._calm_s, 0.0 if crowded else self._calm_s + elapsed_s

        if self._team is not None:
            self.blocking_s += elapsed_s
            if self._calm_s >= self._hold_s:
                self._team.close()
                self._team = None
                self._calm_s = 0.0
        elif crowded:
            # After a relapse the threads block for longer before they spin again.
            relapsed = self.blocking_s > 0 and calm_before_s < _MAX_HOLD_S
            self._hold_s = min(2 * self._hold_s, _MAX_HOLD_S) if relapsed else _FIRST_HOLD_S
            self._team = self._open_team()

    def run(self) -> None:
        """Update in a thread, to the end of the process."""
        def watch() -> None:
            while True:
                time.sleep(_INTERVAL_S)
                self.update()

        threading.Thread(target=watch, name="wait policy", daemon=True).start()


_watcher: Watcher | None = None


def start() -> None:
    """Watch the threads of this process from now on, unless that is done or the environment chooses a policy."""
    global _watcher
    if _watcher is None and is_adaptive(os.environ):
        _watcher = Watcher(thread_delays_s, time.monotonic, IdleTeam)
        _watcher.run()


def is_adaptive(environment: Mapping[str, str]) -> bool:
    """Whether the policy of this process can change: with GNU's runtime on Linux, if no variable chooses one."""
    if any(name in environment for name in VARIABLES):
        return False
    return (_TASKS / str(os.getpid()) / "schedstat").is_file() and hasattr(ctypes.CDLL(None), "GOMP_parallel")


def thread_delays_s() -> dict[str, float]:
    """How long each thread of this process has waited for a core, in seconds since it started (proc_schedstat)."""
    delays_s = {}
    for thread in os.listdir(_TASKS):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            delays_s[thread] = int((_TASKS / thread / "schedstat").read_text().split()[1]) / 1e9
    return delays_s


def description(threads: int) -> str:
    """The wait policy of this process with so many threads, for the records of a run."""
    if threads == 1:
        return "one thread"
    variables = [f"{name}={os.environ[name]}" for name in VARIABLES if name in os.environ]
    if variables:
        return " ".join(variables)
    return "spin; block beside other programs" if _watcher else "that of the OpenMP runtime"


def blocking_s() -> float:
    """How long the threads of this process have blocked so far because other programs took cores."""
    return _watcher.blocking_s if _watcher else 0.0
