"""The app as a separate process on the loopback address, for tests that look at it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import PATIENCE_S

ROOT = Path(__file__).resolve().parent.parent
READY = "Lisan is ready: "


@dataclass(frozen=True)
class App:
    """A served page."""

    url: str
    process: subprocess.Popen[str]

    def maps(self) -> str:
        """Files that the process has mapped into its memory."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()


@contextmanager
def served(workspace: Path, arguments: Sequence[str] = (), program: Sequence[str] = ("app.py",),
           variables: Mapping[str, str] | None = None) -> Iterator[App]:
    """`python app.py`, or another `program`, over `workspace` on a free port; ended, and only it, at the end.

    `variables` are added to its environment.
    """
    given = [*program, "--no-check", "--port", "0", "--workspace", str(workspace), *arguments]
    environment = {name: value for name, value in os.environ.items() if name != "LISAN_PASSWORD"}
    environment.update(variables or {})
    process = subprocess.Popen([sys.executable, *given], cwd=ROOT, text=True, stdout=subprocess.PIPE, env=environment)
    try:
        url = _address(process)
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            page.read()
        yield App(url, process)
    finally:
        process.terminate()  # not SIGINT: whoever runs the tests in the background may have it ignored
        process.wait(PATIENCE_S)


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    giving_up = threading.Timer(PATIENCE_S, process.kill)
    giving_up.start()
    try:
        for line in process.stdout:
            if line.startswith(READY):
                return line.removeprefix(READY).strip()
    finally:
        giving_up.cancel()
    raise AssertionError(f"the app ended with exit code {process.wait()} before it was ready")
