"""Exit codes of all scripts, and a quiet end when nobody reads the output any more."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import IO, NoReturn, ParamSpec

from core.jobs import worker

DONE = worker.FINISHED
FAILED = worker.FAILED
"""A job failed, or a check did."""
USAGE_ERROR = 2
"""Nothing was started: a wrong option, value or name, or a missing artefact. The code of argparse."""
ALREADY_RUNNING = worker.ALREADY_RUNNING
STOPPED = worker.STOPPED
OUTPUT_CLOSED = 141
"""The output was cut off, as by `| head`; what a shell gives for a program that SIGPIPE ended."""

CODES = ("0 finished, 1 failed{graded}, 2 wrong usage (nothing was started), 3 already running, 130 stopped, "
         "141 output closed.")

_Arguments = ParamSpec("_Arguments")


def exit_with(main: Callable[_Arguments, int], *given: _Arguments.args, **named: _Arguments.kwargs) -> NoReturn:
    """Run a script's `main` and exit with its code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the shell closed it
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        try:
            code = main(*given, **named)
        finally:
            sys.stdout.flush()  # here, where it can be caught; at the exit Python prints a traceback
    except BrokenPipeError:
        for stream in (sys.stdout, sys.stderr):
            discard_output(stream)
        code = OUTPUT_CLOSED
    sys.exit(code)


def discard_output(stream: IO[str]) -> None:
    """Write to nowhere from here on, where the reader has gone (Python's manual, `signal`, SIGPIPE)."""
    try:
        stream.flush()
    except BrokenPipeError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
