"""A look at the processes beside this one, for as long as they share steps.

A process that dies within a pass is noticed by gloo at once, but NCCL waits for its part until the pass is given up.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

ALONE = 70  # the exit code of a process that another left waiting
_EVERY_S = 1.0
_GRACE_S = 20.0


@contextmanager
def watched(others: Sequence[subprocess.Popen[bytes]], grace: float = _GRACE_S) -> Iterator[None]:
    """Context that is left within `grace` seconds after one of `others` died; otherwise all of them and this process
    are ended, with the reason on standard error. What a checkpoint holds is not touched."""
    over = threading.Event()
    watcher = threading.Thread(target=_watch, args=(others, over, grace), name="watching", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()


def _watch(others: Sequence[subprocess.Popen[bytes]], over: threading.Event, grace: float) -> None:
    while not over.wait(_EVERY_S):
        codes = [code for process in others if (code := process.poll()) is not None]
        if codes and not over.wait(grace):
            sys.stderr.write(f"Another process of this training ended (exit code {codes[0]}), and this one did not "
                             f"notice within {grace:g} s.\n")
            sys.stderr.flush()
            for process in others:
                process.kill()
            os._exit(ALONE)
