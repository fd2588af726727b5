"""How a script ends: with an exit code that means the same of all, and quietly when nobody reads it any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO, NoReturn, ParamSpec

from core.jobs import worker

DONE = worker.FINISHED
FAILED = worker.FAILED
"""A job failed, or what was looked at is not as it should be."""
ASKED_WRONGLY = 2
"""Nothing was begun: an option, a value or a name cannot be, or what it needs is not there. As argparse has it."""
ALREADY_RUNNING = worker.ALREADY_RUNNING
STOPPED = worker.STOPPED
NOBODY_READS = 141
"""The output was cut off, as by `| head`; what a shell gives for a program that SIGPIPE ended."""

CODES = ("0 finished, 1 failed{graded}, 2 asked wrongly (nothing was begun), 3 already running, 130 stopped, 141 cut "
         "off by who reads it.")

_Asked = ParamSpec("_Asked")


def end(main: Callable[_Asked, int], *given: _Asked.args, **named: _Asked.kwargs) -> NoReturn:
    """Run a script's `main` and exit with its code."""
    try:
        try:
            code = main(*given, **named)
        finally:
            sys.stdout.flush()  # here, where it can be caught; at the exit Python complains aloud
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            to_nobody(stream)
        code = NOBODY_READS
    sys.exit(code)


def to_nobody(stream: IO[str]) -> None:
    """Let what is written from here on go nowhere, where its reader has gone (Python's manual, `signal`, SIGPIPE)."""
    try:
        stream.flush()
    except BrokenPipeError:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
