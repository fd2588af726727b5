"""The app as a process of its own on the loopback address, for tests that look at it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
READY = "Lisan is ready: "


@dataclass(frozen=True)
class App:
    """A served page. The process computed for `seconds` from its start to the first whole page."""

    url: str
    process: subprocess.Popen[str]
    seconds: float

    def maps(self) -> str:
        """Files that the process has mapped into its memory."""
        return Path(f"/proc/{self.process.pid}/maps").read_text()


@contextmanager
def served(workspace: Path, arguments: Sequence[str] = (), patience_s: float = 60.0) -> Iterator[App]:
    """`python app.py` over `workspace` on a free port; ended, and only it, at the end."""
    process = subprocess.Popen(
        [sys.executable, "app.py", "--port", "0", "--workspace", str(workspace), *arguments], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, env={name: value for name, value in os.environ.items() if name != "LISAN_PASSWORD"},
    )
    try:
        url = _address(process)
        with urllib.request.urlopen(url, timeout=patience_s) as page:
            page.read()
        yield App(url, process, _computed_s(process.pid))
    finally:
        process.terminate()  # not SIGINT: whoever runs the tests in the background may have it ignored
        process.wait(10)


def _computed_s(pid: int) -> float:
    """Processor seconds of a process and of the children it waited for; tests beside it do not change them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _address(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(READY):
            return line.removeprefix(READY).strip()
    raise AssertionError(f"the app ended with exit code {process.wait()} before it was ready")
