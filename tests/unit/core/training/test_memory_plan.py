"""Memory is counted while tensors live, and what is free is what system and container leave."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from core import compute, machine
from core.jobs.reporter import memory_text
from core.training import memory_plan
from scripts.dev.benchmark.bench import release_memory

CPU = torch.device("cpu")
SIZE = 4 * 1000


def test_the_peak_is_what_lives_together() -> None:
    given = torch.randn(1000)

    def one_after_another() -> None:
        for _ in range(5):
            torch.sin(given)

    def together() -> None:
        kept = [torch.sin(given) for _ in range(5)]
        assert len(kept) == 5

    def views() -> None:
        torch.sin(given).view(10, 100).t()[3:].mul_(2.0)

    assert memory_plan.peak_bytes(CPU, one_after_another) == SIZE
    assert memory_plan.peak_bytes(CPU, together) == 5 * SIZE
    assert memory_plan.peak_bytes(CPU, views) == SIZE
    assert memory_plan.peak_bytes(CPU, lambda: given.add_(1.0)) == 0


def test_what_a_backward_pass_keeps_is_counted() -> None:
    given = torch.randn(1000, requires_grad=True)

    def work(layers: int) -> int:
        def run() -> None:
            hidden = given
            for _ in range(layers):
                hidden = torch.sin(hidden)
            hidden.sum().backward()
            given.grad = None

        return memory_plan.peak_bytes(CPU, run)

    assert work(20) - work(10) == 10 * SIZE


def test_a_step_tells_the_peak_of_the_process_which_outlives_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    before, whose = memory_plan.peak_since_last_call(CPU)
    held = torch.ones(40_000_000)  # 160 MB, written to
    del held
    after, _ = memory_plan.peak_since_last_call(CPU)
    assert whose == "process"
    assert before is not None
    assert after is not None
    assert after >= max(before, _resident())
    assert after > 160_000_000
    monkeypatch.setattr(memory_plan, "_STATUS", Path("/there/is/none"))
    assert memory_plan.peak_since_last_call(CPU) == (None, "process")


def test_what_is_free_is_the_least_of_system_and_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 100 kB\nMemFree: 10 kB\nMemAvailable:  60 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert compute.free_bytes(CPU) == 60 * 1024
    (tmp_path / "memory.max").write_text("50000\n")
    (tmp_path / "memory.current").write_text("40000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 5000\n")
    assert compute.free_bytes(CPU) == 15000
    (tmp_path / "memory.max").write_text("max\n")
    assert compute.free_bytes(CPU) == 60 * 1024


def test_an_unknown_system_has_an_unknown_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(machine, "_CGROUP", tmp_path)
    assert compute.free_bytes(CPU) is None


def test_sizes_are_said_in_units_people_use() -> None:
    assert [memory_text(size) for size in (5.1 * 2**30, 0.25 * 2**30, 90 * 2**20)] == ["5.1 GiB", "0.2 GiB", "90 MiB"]


def test_memory_of_what_is_gone_is_handed_back() -> None:
    """Small tensors fill the heap, which the allocator keeps until it is asked."""
    kept = [torch.zeros(8192) for _ in range(4000)]  # 32 KiB each: below the size that is mapped by itself
    held = _resident()
    last = kept.pop()  # at the end of the heap, where it holds up what is before it
    del kept
    release_memory()
    assert held - _resident() > 80 * 2**20
    assert last.numel() == 8192


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
