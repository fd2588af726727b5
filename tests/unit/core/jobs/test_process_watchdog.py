"""A process that waits for a dead one is ended, with the reason; one that hears of it in time is left alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from config.schema import TrainOptions
from core.jobs import control, worker
from core.jobs.events import Queued, append_event
from core.jobs.job import create_job
from core.jobs.process_watchdog import ABANDONED_EXIT_CODE
from core.workspace import Workspace
from tests.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parents[4]
RUN = """
import subprocess, sys, threading
from core.jobs.process_watchdog import watch_processes
others = [subprocess.Popen([sys.executable, "-c", code]) for code in {others!r}]
print(others[-1].pid, flush=True)
with watch_processes(others, grace={grace}):
    for other in others[:{ended}]:
        other.wait()
    threading.Event().wait({wait})
print("left", [other.poll() for other in others], flush=True)
for other in others:
    other.kill()
"""
SLEEPS = f"import time; time.sleep({2 * PATIENCE_S})"


def outcome(others: list[str], grace: float, wait: float, ended: int = 0) -> subprocess.CompletedProcess[str]:
    """What a process says that waits `wait` seconds, once the first `ended` of the others have ended."""
    code = RUN.format(others=others, grace=grace, wait=wait, ended=ended)
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE_S,
                          check=False)


def test_who_waits_for_a_dead_process_is_ended_and_so_are_the_others() -> None:
    found = outcome(["import sys; sys.exit(7)", SLEEPS], grace=0.2, wait=PATIENCE_S)
    assert found.returncode == ABANDONED_EXIT_CODE
    assert "ended (exit code 7)" in found.stderr
    assert "left" not in found.stdout
    # The standard output of the sleeping process is ours: `run` came back, so it is closed, and the process is gone.


def test_who_hears_of_it_within_the_grace_is_left_alone() -> None:
    found = outcome(["import sys; sys.exit(7)"], grace=PATIENCE_S, wait=2.5, ended=1)
    assert found.returncode == 0, found.stderr
    assert "left [7]" in found.stdout


def test_nobody_is_ended_while_all_live() -> None:
    found = outcome([SLEEPS], grace=0.0, wait=2.5)
    assert found.returncode == 0, found.stderr
    assert "left [None]" in found.stdout


def test_a_process_ends_with_the_one_that_started_it() -> None:
    """The standard output of the grandchild is ours: `run` comes back once both are gone."""
    child = ("import os, threading; from core.jobs.process_watchdog import exit_with_parent; "
             "exit_with_parent(os.getppid()); "
             f"threading.Event().wait({2 * PATIENCE_S})")
    parent = f"import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', {child!r}]); time.sleep(2)"
    found = subprocess.run([sys.executable, "-c", parent], capture_output=True, cwd=ROOT, timeout=PATIENCE_S,
                           check=False)
    assert found.returncode == 0


def test_another_rank_of_a_training_ends_with_the_first(tmp_path: Path) -> None:
    """It waits for a rank 0 that never listens. Its standard output is ours: `run` comes back once both are gone."""
    parent = ("import os, subprocess, sys, time; "
              "settings = dict(os.environ, LISAN_RANK0_PID=str(os.getpid()), RANK='1', WORLD_SIZE='2', "
              "MASTER_ADDR='127.0.0.1', MASTER_PORT='1'); "
              f"other = subprocess.Popen([sys.executable, '-m', 'core.train', {str(tmp_path)!r}], env=settings); "
              f"open({str(tmp_path / 'pid')!r}, 'w').write(str(other.pid)); time.sleep(1)")
    try:
        found = subprocess.run([sys.executable, "-c", parent], capture_output=True, cwd=ROOT, timeout=PATIENCE_S,
                               check=False)
    except subprocess.TimeoutExpired:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        raise
    assert found.returncode == 0
    assert b"Traceback" not in found.stderr  # it did not end by a fault of its own


def test_a_worker_left_waiting_is_told_of_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("signal.signal", lambda *_: None)  # this process keeps its handlers
    job = create_job(Workspace.open(tmp_path), "train", TrainOptions())
    append_event(job.journal, Queued())
    assert worker.run_attempt(job, lambda: ABANDONED_EXIT_CODE) == ABANDONED_EXIT_CODE
    state = control.read_state(job)
    assert state.status == "failed"
    assert "Another process of this training ended" in state.message
    assert worker._should_retry(job)
