"""Watchdogs between the processes of a distributed run.

They are needed for NCCL, which waits for its timeout if a process dies in a collective; gloo notices at once.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

ABANDONED_EXIT_CODE = 70
"""Exit code of a process that waited for another one that died."""
_INTERVAL_S = 1.0
_GRACE_S = 20.0


def exit_with_parent(parent: int) -> None:
    """End this process within a second after its parent process `parent` has ended, to free its GPU memory."""
    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(_INTERVAL_S)
        os._exit(ABANDONED_EXIT_CODE)

    threading.Thread(target=watch, name="parent watchdog", daemon=True).start()


@contextmanager
def watch_processes(processes: Sequence[subprocess.Popen[bytes]], grace: float = _GRACE_S) -> Iterator[None]:
    """Kill `processes` and this process if one of them dies and the context is not left within `grace` seconds.

    The reason is written to standard error.
    """
    exited = threading.Event()

    def watch() -> None:
        while not exited.wait(_INTERVAL_S):
            polled = [process.poll() for process in processes]
            codes = [code for code in polled if code is not None]
            if codes and not exited.wait(grace):
                sys.stderr.write(f"Another process of this training ended (exit code {codes[0]}), and this one did "
                                 f"not notice within {grace:g} s.\n")
                sys.stderr.flush()
                # No exception could end this process: its main thread waits inside NCCL.
                for process in processes:
                    process.kill()
                os._exit(ABANDONED_EXIT_CODE)

    watcher = threading.Thread(target=watch, name="process watchdog", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        exited.set()
        watcher.join()
