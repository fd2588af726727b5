"""How soon the page answers, beside a bare page of Gradio that is asked alternately, without and with a training:

    python -m scripts.dev.benchmark.page [--answers 30] [--steps 200]

A program asks as a browser does that shows the Train tab: a tick each second, and a refresh where the tick finds a
change. The training is a worker's process that multiplies matrices with as many threads as there are cores and writes
a step a second, after --steps that it claims to have made. Prints milliseconds from the request to the last byte, and
the processor time of both apps up to their first whole page.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from config.errors import UserError
from config.schema import TrainOptions
from core.jobs import control, worker
from core.jobs.directory import create_job
from core.jobs.events import Result, Step
from core.jobs.reporter import Reporter, StopRequested
from core.jobs.state import JobReader
from core.workspace import Workspace
from scripts.command import exit_with
from scripts.dev.benchmark import machine

ROOT = Path(__file__).resolve().parents[3]
READY = "Lisan is ready: "
BARE = f"""
import sys
import gradio
with gradio.Blocks() as page:
    count = gradio.Number(0)
    gradio.Timer(1).tick(lambda number: number + 1, count, count, queue=False)
page.launch(server_name="127.0.0.1", server_port=int(sys.argv[1]), prevent_thread_lock=True, quiet=True)
print("{READY}" + page.local_url, flush=True)
page.block_thread()
"""
_TICK_S = 1.0
_WORKER = "worker"
_PATIENCE_S = 600.0


@dataclass
class PageClient:
    """Sends what a browser sends, and keeps the widgets' values as it does."""

    url: str
    session: str
    values: dict[int, Any] = field(default_factory=dict)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    ticker: int | None = None

    def __post_init__(self) -> None:
        with urllib.request.urlopen(f"{self.url}config", timeout=_PATIENCE_S) as answer:
            config = json.load(answer)
        self.events = config["dependencies"]
        self.ticker = next((one["id"] for one in config["components"] if one["props"].get("elem_id") == "live-tick"),
                           None)  # a button that the page's script clicks; the bare page has a timer
        self.values = {one["id"]: None if one["type"] == "state" else one["props"].get("value")
                       for one in config["components"]}
        place = urlsplit(self.url)
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_PATIENCE_S)

    def event(self, kind: str, of: int | None = None) -> Mapping[str, Any]:
        """The first event of this `kind`, of the component `of` where it is given."""
        return next(one for one in self.events for target, name in one["targets"]
                    if name == kind and (of is None or of == target) and one["backend_fn"])

    @property
    def tick_event(self) -> Mapping[str, Any]:
        """The event that asks whether something changed."""
        return self.event("tick") if self.ticker is None else self.event("click", self.ticker)

    def send(self, event: Mapping[str, Any], data: object = None) -> tuple[float, list[int]]:
        """Send `event` and take its outputs; milliseconds to the last byte, and the components that changed."""
        body = json.dumps({"data": [self.values[number] for number in event["inputs"]], "event_data": data,
                           "fn_index": event["id"], "session_hash": self.session})
        start = time.perf_counter()
        self._connection.request("POST", "/gradio_api/run/predict", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        passed = 1000 * (time.perf_counter() - start)
        if answer.status != http.client.OK:
            raise UserError(f"{self.url} answered {answer.status}: {text[:200]!r}.", "See the app's output.")
        changed = []
        for number, value in zip(event["outputs"], json.loads(text)["data"], strict=True):
            update = isinstance(value, dict) and value.get("__type__") == "update"
            if not update or "value" in value:
                value = value["value"] if update else value
                if value != self.values[number]:
                    changed.append(number)
                self.values[number] = value
        return passed, changed

    def tick(self) -> dict[str, float]:
        """Milliseconds of a tick and, where it asks for one, of the refresh."""
        passed, changed = self.send(self.tick_event)
        found = {"tick": passed}
        for number in changed:
            if any([number, "change"] in one["targets"] for one in self.events):  # a flag, the bare page's has none
                event = self.event("change", number)
                passed, _ = self.send(event)
                if event["inputs"] == self.tick_event["inputs"]:  # else it fills in fields, which is rare
                    found["refresh"] = passed
        return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.benchmark.page", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=30, help="ticks of each measurement (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="of the training (default: %(default)s)")
    given = parser.parse_args(arguments)
    where = machine.describe(torch.device("cpu"))
    print(f"{where.processor}, {where.cores} cores; commit {where.commit}; load average at the start {where.load}",
          flush=True)
    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace.open(folder)
        app = ["app.py", "--no-check", "--port", "0", "--workspace", folder]
        bare_app = ["-c", BARE, str(_free_port())]
        with served(app) as (page_url, page_s), served(bare_app) as (bare_url, bare_s):
            print(f"first whole page: {page_s:.2f} s of a processor, a bare one {bare_s:.2f} s", flush=True)
            print("\n| | | answers | page: median (90%) | bare page | ratio |\n|---|---|---|---|---|---|", flush=True)
            page, bare = PageClient(page_url, "page"), PageClient(bare_url, "bare")
            with training(workspace, given.steps):
                open_train_tab(page)
                compare("a training", page, bare, given.answers)
            compare("no job", page, bare, given.answers)
    return 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def served(program: Sequence[str]) -> Iterator[tuple[str, float]]:
    """Address of the page that `python PROGRAM` serves, and the seconds of a processor to its first answer."""
    environment = {name: value for name, value in os.environ.items() if name != "LISAN_PASSWORD"}
    process = subprocess.Popen([sys.executable, *program], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                               env={**environment, "GRADIO_ANALYTICS_ENABLED": "False"})
    try:
        assert process.stdout is not None
        url = next((line.removeprefix(READY).strip() for line in process.stdout if line.startswith(READY)), "")
        if not url:
            raise UserError(f"{' '.join(program)[:40]} ended before it was ready.", "See its output above.")
        with urllib.request.urlopen(url, timeout=_PATIENCE_S) as answer:
            answer.read()
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        yield url, sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    finally:
        process.terminate()
        process.wait(_PATIENCE_S)


def train(options: TrainOptions, _workspace: Workspace, reporter: Reporter) -> Result:
    """The verb of the worker: busy until it is stopped."""
    step = 0

    def report() -> None:
        nonlocal step
        step += 1
        loss = 1.6 + 3.2 * math.exp(-step / 120) + 0.12 * math.sin(1.7 * step)
        reporter.emit(Step(step, 2 * options.steps, loss, 0.5 * loss, 5e-3, 0.8, 5200.0, 0.4 * step,
                           0.4 * options.steps, 3_100_000_000, "process"))

    while step < options.steps:
        report()
    factor, last = torch.ones(1024, 1024), time.monotonic()
    while not reporter.stop_requested():
        torch.mm(factor, factor)
        if time.monotonic() - last >= _TICK_S:
            report()
            last = time.monotonic()
    raise StopRequested


@contextmanager
def training(workspace: Workspace, steps: int) -> Iterator[None]:
    """A worker that has made `steps` and goes on; killed at the end."""
    job = create_job(workspace, "train", TrainOptions(steps=steps, device="cpu"))
    control.start(job, command=(sys.executable, "-m", "scripts.dev.benchmark.page", _WORKER))
    try:
        reader = JobReader(job)
        while len((state := reader.state()).steps) < steps + 2:
            if state.ended:
                raise UserError(f"The training ended: {state.message}", state.hint)
            time.sleep(_TICK_S)
        yield
    finally:
        control.force_stop(job, grace_s=0.0)


def open_train_tab(page: PageClient) -> None:
    page.send(next(one for one in page.events if not one["inputs"] and len(one["outputs"]) == 1
                   and ("select" in {name for _target, name in one["targets"]})), {"value": "Train", "index": 5})
    page.tick()


def compare(what: str, page: PageClient, bare: PageClient, answers: int) -> None:
    """Ask both alternately, once a second, and print a row for each kind of answer."""
    ours: dict[str, list[float]] = {}
    bares: list[float] = []
    for _ in range(answers):
        began = time.monotonic()
        for kind, passed in page.tick().items():
            ours.setdefault(kind, []).append(passed)
        bares += bare.tick().values()
        time.sleep(max(0.0, _TICK_S - (time.monotonic() - began)))
    for kind, times in ours.items():
        ratio = statistics.median(times) / statistics.median(bares)
        print(f"| {what} | {kind} | {len(times)} | {_shown(times)} | {_shown(bares)} | {ratio:.2g} |", flush=True)


def _shown(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.1f} ({sorted(times)[math.ceil(0.9 * len(times)) - 1]:.1f}) ms"


if __name__ == "__main__":
    if sys.argv[1:2] == [_WORKER]:
        sys.exit(worker.main(sys.argv[2:], verbs={"train": train}))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no process is left
    exit_with(main)
