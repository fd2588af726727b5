"""OpenMP's threads spin while the process has the cores, and block while other programs take them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from core import compute, wait_policy
from core.wait_policy import Watcher

ROOT = Path(__file__).resolve().parents[3]
ADAPTIVE = pytest.mark.skipif(not wait_policy.is_adaptive({}), reason="needs Linux and GNU's OpenMP runtime")
CPU_TIME_OF_WAITING = """
import time
import torch
from core.wait_policy import IdleTeam

torch.set_num_threads(2)
numbers = torch.zeros(300_000)

def waiting_s():
    start = time.process_time()
    for _ in range(10):
        numbers.add_(1)
        time.sleep(0.05)
    return time.process_time() - start

torch.manual_seed(0)
left, right = torch.randn(64, 700), torch.randn(700, 900)
product = left @ right
waiting_s()
spinning_s = waiting_s()
team = IdleTeam()
blocking_s = waiting_s()
assert torch.equal(left @ right, product)
team.close()
print(spinning_s, blocking_s, waiting_s())
"""


class Machine:
    """A clock, the seconds that each thread has waited for a core, and the number of open teams."""

    def __init__(self) -> None:
        self.now_s, self.delays_s, self.teams = 100.0, {"1": 7.0, "2": 3.0}, 0

    def open_team(self) -> Machine:
        self.teams += 1
        return self

    def close(self) -> None:
        self.teams -= 1

    def watcher(self) -> Watcher:
        return Watcher(lambda: dict(self.delays_s), lambda: self.now_s, self.open_team)

    def pass_time(self, watcher: Watcher, seconds: float, delay_share: float) -> None:
        """Update every half second, while one of the threads waits for `delay_share` of the time."""
        for _ in range(round(seconds / 0.5)):
            self.now_s += 0.5
            self.delays_s["2"] += 0.5 * delay_share
            watcher.update()


def test_threads_spin_while_they_have_the_cores() -> None:
    machine = Machine()
    watcher = machine.watcher()
    machine.pass_time(watcher, 60, delay_share=0.02)

    assert machine.teams == 0
    assert watcher.blocking_s == 0


def test_threads_block_within_half_a_second_of_waiting_for_a_core_and_spin_again_after_two_seconds_without() -> None:
    machine = Machine()
    watcher = machine.watcher()
    machine.pass_time(watcher, 10, delay_share=0)
    machine.pass_time(watcher, 0.5, delay_share=0.6)
    assert machine.teams == 1
    machine.pass_time(watcher, 20, delay_share=0.6)
    assert machine.teams == 1

    machine.pass_time(watcher, 1.5, delay_share=0)
    assert machine.teams == 1
    machine.pass_time(watcher, 0.5, delay_share=0)
    assert machine.teams == 0
    assert watcher.blocking_s == 22
    machine.pass_time(watcher, 10, delay_share=0)
    assert watcher.blocking_s == 22


def test_threads_that_had_to_block_again_at_once_block_for_longer() -> None:
    """A program that takes little while the threads block, and much while they spin, is not tried every two seconds."""
    machine = Machine()
    watcher = machine.watcher()
    blocked_for_s = []
    for _ in range(7):
        machine.pass_time(watcher, 0.5, delay_share=0.6)
        start_s = watcher.blocking_s
        while machine.teams:
            machine.pass_time(watcher, 0.5, delay_share=0)
        blocked_for_s.append(watcher.blocking_s - start_s)
    assert blocked_for_s == [2, 4, 8, 16, 32, 32, 32]

    machine.pass_time(watcher, 60, delay_share=0)
    machine.pass_time(watcher, 0.5, delay_share=0.6)
    machine.pass_time(watcher, 2, delay_share=0)
    assert machine.teams == 0


def test_delays_of_new_and_ended_threads_count_for_the_time_since_the_last_update() -> None:
    machine = Machine()
    watcher = machine.watcher()
    del machine.delays_s["1"]
    machine.pass_time(watcher, 0.5, delay_share=0)
    assert machine.teams == 0

    machine.delays_s["3"] = 0.4
    machine.pass_time(watcher, 0.5, delay_share=0)
    assert machine.teams == 1


@ADAPTIVE
def test_the_kernel_counts_how_long_each_thread_waits_for_a_core() -> None:
    delays_s = wait_policy.thread_delays_s()
    assert str(threading.get_native_id()) in delays_s
    assert all(delay_s >= 0 for delay_s in delays_s.values())


@ADAPTIVE
@pytest.mark.skipif(compute.describe().cores < 2, reason="needs two cores")
def test_an_idle_team_ends_the_spinning_of_other_teams_until_it_is_closed_and_changes_no_bit() -> None:
    """The processor time of waiting threads, which other programs do not change; measured: 8 ms a wait, and 0.3 ms."""
    environment = {name: value for name, value in os.environ.items() if name not in wait_policy.VARIABLES}
    run = subprocess.run([sys.executable, "-c", CPU_TIME_OF_WAITING], cwd=ROOT, env=environment, capture_output=True,
                         text=True, check=True)
    spinning_s, blocking_s, again_s = map(float, run.stdout.split())

    assert blocking_s < 0.5 * spinning_s
    assert blocking_s < 0.5 * again_s


@pytest.mark.parametrize(("name", "value"), [("OMP_WAIT_POLICY", "PASSIVE"), ("GOMP_SPINCOUNT", "20000")])
def test_a_wait_policy_of_the_environment_is_left_alone_and_recorded(
        name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    assert not wait_policy.is_adaptive(os.environ)
    assert wait_policy.description(2) == f"{name}={value}"


@ADAPTIVE
def test_a_process_that_computes_on_several_threads_has_one_watcher(monkeypatch: pytest.MonkeyPatch) -> None:
    threads, started = torch.get_num_threads(), list[Watcher]()
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.delenv("GOMP_SPINCOUNT", raising=False)
    monkeypatch.setattr(wait_policy, "_watcher", None)
    monkeypatch.setattr(Watcher, "run", lambda watcher: started.append(watcher))
    try:
        torch.set_num_threads(1)
        compute.setup_device("cpu")
        assert not started
        assert wait_policy.description(1) == "one thread"

        torch.set_num_threads(2)
        compute.setup_device("cpu")
        compute.setup_device("cpu")
        assert len(started) == 1
        assert wait_policy.description(2) == "spin; block beside other programs"
    finally:
        torch.set_num_threads(threads)
