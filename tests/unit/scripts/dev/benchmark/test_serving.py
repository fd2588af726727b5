"""The benchmark of the server: what becomes of a random load, and the ratios at its end; no figure is asked here."""

from __future__ import annotations

import os
import random

from core.workspace import Workspace
from scripts.dev.benchmark import serving
from scripts.dev.benchmark.serving import Load, Soak
from tests.unit import serving_world


def test_the_load_of_the_server_is_answered_or_given_up(world: Workspace) -> None:
    with serving_world.serving(world, "soak", models=("base:tiny",), unknown="leave_out") as server:
        load = Soak(f"http://127.0.0.1:{server.port}", deadline=0)
        assert {load.ask(random.Random(number)) for number in range(12)} == {"answered", "given up"}
        assert load.faults == []
        server.wait_until_idle()
        assert serving.open_rows(load.address) == (0, 0)
        assert serving.measure(load.address, 2).rate > 0
    # Nobody listens any more.
    assert load.ask(random.Random(0)) == "lost"
    assert len(load.faults) == 1
    assert serving.memory_mib(os.getpid()) > 10


def test_the_summary_compares_rows_of_the_same_round() -> None:
    loads = {(16, 1): [Load(2, 0.5, 0.6), Load(4, 1.0, 1.1)], (16, 8): [Load(10, 1.0, 1.4), Load(12, 3.0, 3.2)],
             (1, 1): [Load(2, 0.5, 0.6), Load(4, 1.0, 1.1)], (1, 8): [Load(2, 4.0, 5.0), Load(4, 9.0, 9.5)]}
    assert serving.summarize(loads, [1, 8]) == [
        "1 clients: 1.00 times the throughput of one row, first sound 1.00 times as late as for one client (0.85 s for "
        "95%)",
        "8 clients: 4.00 times the throughput of one row, first sound 2.50 times as late as for one client (2.30 s for "
        "95%)"]
