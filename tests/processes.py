"""Processes of a shared training, started by a test: each is a rank of two, and they meet at a port of this machine."""

from __future__ import annotations

import multiprocessing
import socket
from collections.abc import Callable
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

PATIENCE_S = 180.0  # until a test gives up; none measures how long it waits
Work = Callable[[int, Path, int, SimpleQueue], None]
"""`work(rank, path, port, results)`; it puts one tuple into `results`, with its rank first."""


def free_port() -> int:
    """A port of this machine at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def two_do(work: Work, path: Path) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    """What `work` of rank 0 and of rank 1 hands back; both must end well."""
    context = multiprocessing.get_context("forkserver")  # which imports torch once, and has no threads when it forks
    context.set_forkserver_preload(["core.train"])
    results, port = context.SimpleQueue(), free_port()
    processes = [context.Process(target=work, args=(rank, path, port, results)) for rank in (0, 1)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE_S)
    ended = [process.exitcode for process in processes]
    for process in processes:
        process.kill()
    assert ended == [0, 0]
    first, second = sorted((results.get() for _ in processes), key=lambda one: one[0])
    return first, second
