"""A studio from scratch: a fresh home, no `venv`, an installed torch, a proxy in front, and a switch of the machine.

It needs a Python that already has a torch to be kept, as a studio has one: name it in LISAN_PLATFORM_PYTHON. The
packages of Lisan are installed into that Python's environment, so give one that may be changed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookiejar import CookieJar
from pathlib import Path

import pytest

from core.jobs import locks
from core.jobs.state import JobBoard
from core.workspace import Workspace
from tests.processes import PATIENCE_S, free_port
from tests.proxy import HOST, PREFIX, proxied
from tests.serving import READY, ROOT

pytestmark = pytest.mark.slow
PLATFORM = os.environ.get("LISAN_PLATFORM_PYTHON", "")
APP = ("import sys; from pathlib import Path; from core.jobs import job; "
       "job.DEVICE_FILES = Path(sys.argv.pop(1)); import app; sys.exit(app.main())")
QUEUE = """
from core.jobs import control
from core.jobs import job as job_files
from core.jobs.job import create_job
from core.jobs.state import JobReader
from core.workspace import Workspace
from config.schema import LengthOptions, SynthesizeOptions, TrainOptions
import sys, threading
from pathlib import Path
job_files.DEVICE_FILES = Path(sys.argv[2])
workspace = Workspace.open(sys.argv[1])
options = TrainOptions(extension="tiny-am", dataset="amharic-demo", length=LengthOptions(steps=40))
job = create_job(workspace, "train", options, job_id="a")
control.start(job)
reader, tick = JobReader(job), threading.Event()
while not (state := reader.state()).steps:
    assert not state.ended, state.message
    tick.wait(0.1)
for name in "bcd":
    options = SynthesizeOptions(voice_model="base:tiny", language="en", text="The old man found a letter.")
    control.start(create_job(workspace, "synthesize", options, job_id=name))
"""


@pytest.mark.skipif(not PLATFORM, reason="LISAN_PLATFORM_PYTHON names no Python with a torch to be kept")
def test_a_studio_from_scratch(tmp_path: Path) -> None:
    home = tmp_path / "this studio"
    repository, workspace, devices = home / "lisan", home / "workspace", tmp_path / "dev"
    devices.mkdir()
    (tmp_path / "refuse").mkdir()
    (tmp_path / "refuse" / "venv.py").write_text("import sys; sys.exit('not in a studio')\n")
    repository.mkdir(parents=True)
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    packed = subprocess.run(["tar", "c", "--null", "-T", "-"], cwd=ROOT, input=names, capture_output=True, check=True)
    subprocess.run(["tar", "x"], cwd=repository, input=packed.stdout, check=True)
    environment = {"HOME": str(home), "PATH": f"{Path(PLATFORM).parent}:/usr/bin:/bin", "OMP_NUM_THREADS": "1",
                   "PYTHONPATH": str(tmp_path / "refuse"), "LISAN_PASSWORD": "me:secret"}
    environment |= {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")
                    or name.startswith(("PIP_", "SSL_", "REQUESTS_"))}
    torch = [PLATFORM, "-c", "import importlib.metadata as m; print(m.version('torch'))"]
    before = subprocess.run(torch, capture_output=True, text=True, check=True).stdout

    installed = subprocess.run(["make", "install", f"PYTHON={PLATFORM}"], cwd=repository, env=environment,
                               capture_output=True, text=True, check=True).stdout
    assert "not in a studio" in installed
    assert f"The installed torch {before.strip()} is kept" in installed
    assert subprocess.run(torch, capture_output=True, text=True, check=True).stdout == before

    def run(*words: str) -> None:
        subprocess.run([".venv/bin/python", *words], cwd=repository, env=environment, check=True)

    at = ("--workspace", str(workspace))
    run("-m", "scripts", "download", *at)
    run("-m", "scripts", "prepare", *at)
    run("-m", "scripts", "tokenizer", *at)
    run("-m", "scripts", "extend", *at)
    board = JobBoard(Workspace.open(workspace))

    @contextmanager
    def app_and_proxy() -> Iterator[str]:
        port = free_port()
        words = [".venv/bin/python", "-c", APP, str(devices), *at, "--port", str(port), "--host", "0.0.0.0",
                 "--root-path", PREFIX, "--resume-after", "0"]
        process = subprocess.Popen(words, cwd=repository, env=environment, text=True, stdout=subprocess.PIPE)
        try:
            assert process.stdout is not None
            assert any(line.startswith(READY) for line in process.stdout)
            with proxied(port) as address:
                yield address
        finally:
            process.kill()
            process.wait()

    with app_and_proxy() as address:
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        local = address.replace(HOST, "127.0.0.1")
        form = urllib.parse.urlencode({"username": "me", "password": "secret"}).encode()
        opener.open(local + "/login", form, timeout=PATIENCE_S).close()
        with opener.open(local + "/config", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["root"] == local
        run("-c", QUEUE, str(workspace), str(devices))
        until(lambda: board.state("a").steps and all(board.state(name).status == "waiting" for name in "bcd"))
    for name in "dcba":
        os.killpg(int(locks.read_holder(board.state(name).job.lock).split()[1]), signal.SIGKILL)
    until(lambda: not any(state.alive for state in board.states()))
    assert {board.state(name).job.device for name in "abcd"} == {"cpu"}

    (devices / "nvidia0").touch()
    with app_and_proxy():
        until(lambda: all(board.state(name).result for name in "abcd"))
    assert {board.state(name).status for name in "abcd"} == {"finished"}
    assert {board.state(name).job.device for name in "abcd"} == {"cuda"}


def until(reached: Callable[[], object]) -> None:
    tick = threading.Event()
    for _ in range(int(5 * PATIENCE_S / 0.1)):
        if reached():
            return
        tick.wait(0.1)
    raise AssertionError("it was not reached")
