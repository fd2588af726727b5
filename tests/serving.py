"""The app as a separate process on the loopback address, for tests that look at it from outside."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.processes import PATIENCE_S, free_port

ROOT = Path(__file__).resolve().parent.parent
READY = "Lisan is ready: "
BARE = f"""
import sys
import gradio
with gradio.Blocks() as page:
    count = gradio.Number(0, elem_id="count")
    gradio.Timer(1).tick(lambda number: number + 1, count, count, queue=False)
page.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]), prevent_thread_lock=True, quiet=True)
print("{READY}" + page.local_url, flush=True)
page.block_thread()
"""


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
def served(workspace: Path, arguments: Sequence[str] = (), program: Sequence[str] = ("app.py",)) -> Iterator[App]:
    """`python app.py`, or another `program`, over `workspace` on a free port; ended, and only it, at the end."""
    with _serving([*program, "--no-check", "--port", "0", "--workspace", str(workspace), *arguments]) as app:
        yield app


@contextmanager
def bare_page() -> Iterator[App]:
    """A page of Gradio's with one number that a timer counts up: what this machine takes for Gradio alone."""
    with _serving(["-c", BARE, str(free_port())]) as app:
        yield app


@contextmanager
def _serving(program: Sequence[str]) -> Iterator[App]:
    environment = {name: value for name, value in os.environ.items() if name != "LISAN_PASSWORD"}
    process = subprocess.Popen([sys.executable, *program], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                               env={**environment, "GRADIO_ANALYTICS_ENABLED": "False"})
    try:
        url = _address(process)
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as page:
            page.read()
        yield App(url, process, _computed_s(process.pid))
    finally:
        process.terminate()  # not SIGINT: whoever runs the tests in the background may have it ignored
        process.wait(PATIENCE_S)


def _computed_s(pid: int) -> float:
    """Processor seconds of a process and of the children it waited for; tests beside it do not change them."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


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
