"""How soon the page answers, beside a bare page of Gradio that is asked alternately, without and with a training:

    python -m scripts.dev.benchmark.page [--answers 30] [--steps 200] [--runs 5000 --queued 500]
    python -m scripts.dev.benchmark.page --sessions 200

A program asks as a browser does that shows one tab after the other: a tick each second, and a refresh where the tick
finds a change. The training is a worker's process that multiplies matrices with as many threads as there are cores and
writes a step a second, after --steps that it claims to have made. Prints milliseconds from the request to the last
byte, and how long both apps take to their first whole page: a browser's requests up to the contents of the open tab.
Beside each stands the processor time of the app: for an answer that of a tick with all that follows.

--runs fills the workspace with ended jobs, of which every second is a training of 100 steps with a checkpoint; --queued
adds jobs that wait for the CPU, whose locks this program holds in place of their workers.

--sessions measures memory instead: so many pages are opened, ticked, switched to another tab and closed, one after the
other, and what the app's process grew by is divided by their number.
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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch
import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import SynthesizeOptions, TrainOptions
from core.jobs import control, worker
from core.jobs.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    Finished,
    Queued,
    Result,
    Started,
    Step,
    Waiting,
    encode,
)
from core.jobs.job import create_job
from core.jobs.locks import FileLock
from core.jobs.reporter import Reporter, StopRequested
from core.jobs.state import JobReader
from core.library.records import CheckpointRecord, Origin
from core.workspace import Workspace
from data.durable_files import write_json
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
TABS = ("Start", "Model", "Data", "Tokenizer", "Embeddings", "Train", "Listen", "Share", "Jobs", "Storage", "Doctor",
        "Machine")
_WORKER = "worker"
_TIMEOUT_S = 600.0
_KEPT_OPEN_S = 3.0  # the server closes a connection after five seconds without a request
_WARM_SESSIONS = 20
_CLOSED_S = 25.0  # the app notices a closed page at the next beat of its stream, every 15 s


@dataclass
class PageClient:
    """Sends what a browser sends, and keeps the widgets' values as it does."""

    url: str
    session: str
    values: dict[int, Any] = field(default_factory=dict)
    events: list[Mapping[str, Any]] = field(default_factory=list)
    ticker: int | None = None

    def __post_init__(self) -> None:
        with urllib.request.urlopen(f"{self.url}config", timeout=_TIMEOUT_S) as answer:
            config = json.load(answer)
        self.events = config["dependencies"]
        self.ticker = next((part["id"] for part in config["components"] if part["props"].get("elem_id") == "live-tick"),
                           None)  # a button that the page's script clicks; the bare page has a timer
        self.values = {part["id"]: None if part["type"] == "state" else part["props"].get("value")
                       for part in config["components"]}
        place = urlsplit(self.url)
        self._answered = -math.inf
        self._connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_TIMEOUT_S)

    def event(self, kind: str, of: int | None = None) -> Mapping[str, Any]:
        """The first event of this `kind`, of the component `of` where it is given."""
        return next(entry for entry in self.events for target, name in entry["targets"]
                    if name == kind and (of is None or of == target) and entry["backend_fn"])

    @property
    def tick_event(self) -> Mapping[str, Any]:
        """The event that asks whether something changed."""
        return self.event("tick") if self.ticker is None else self.event("click", self.ticker)

    def send(self, event: Mapping[str, Any], data: object = None) -> tuple[float, list[int]]:
        """Send `event` and take its outputs; milliseconds to the last byte, and the components that changed."""
        body = json.dumps({"data": [self.values[number] for number in event["inputs"]], "event_data": data,
                           "fn_index": event["id"], "session_hash": self.session})
        if time.monotonic() - self._answered > _KEPT_OPEN_S:
            self._connection.close()  # the next request opens it
        start = time.perf_counter()
        self._connection.request("POST", "/gradio_api/run/predict", body, {"Content-Type": "application/json"})
        answer = self._connection.getresponse()
        text = answer.read()
        passed, self._answered = 1000 * (time.perf_counter() - start), time.monotonic()
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
        return {"tick": passed, **self._follow(changed)}

    def open(self) -> float:
        """Load the page as a browser does, up to the contents of the open tab; seconds."""
        start = time.perf_counter()
        with urllib.request.urlopen(self.url, timeout=_TIMEOUT_S) as answer:
            answer.read()
        if any("load" in {name for _of, name in entry["targets"]} for entry in self.events):  # the bare page has none
            self._with_refresh(self.event("load"))
        return time.perf_counter() - start

    def select(self, tab: str) -> None:
        """Switch to the tab with this label."""
        self._with_refresh(next(item for item in self.events if not item["inputs"] and len(item["outputs"]) == 1 and (
            "select" in {name for _of, name in item["targets"]})), {"value": tab, "index": 5})

    def _with_refresh(self, event: Mapping[str, Any], data: object = None) -> None:
        self.send(event, data)
        for follower in self.events:
            if follower["trigger_after"] == event["id"]:
                self._follow(self.send(follower)[1])

    def _follow(self, changed: Sequence[int]) -> dict[str, float]:
        """Send the events of those components that `changed`; milliseconds of a refresh."""
        times_ms = {}
        for number in changed:
            if any([number, "change"] in entry["targets"] for entry in self.events):  # a flag, the bare page's has none
                event = self.event("change", number)
                passed, _ = self.send(event)
                if event["inputs"] == self.tick_event["inputs"]:  # else it fills in fields, which is rare
                    times_ms["refresh"] = passed
        return times_ms

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """The stream by whose end the app learns that the page is closed."""
        place = urlsplit(self.url)
        stream = http.client.HTTPConnection(place.hostname or "", place.port, timeout=_TIMEOUT_S)
        stream.request("GET", f"/gradio_api/heartbeat/{self.session}")
        stream.getresponse().read(1)
        try:
            yield
        finally:
            self._connection.close()
            stream.close()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.dev.benchmark.page", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--answers", type=int, default=30, help="ticks of each measurement (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200, help="of the training (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=0, help="ended jobs in the workspace (default: %(default)s)")
    parser.add_argument("--queued", type=int, default=0, help="jobs that wait for the CPU (default: %(default)s)")
    parser.add_argument("--tabs", nargs="+", default=TABS, metavar="TAB",
                        help="labels of the tabs to ask while a job trains (default: all)")
    parser.add_argument("--sessions", type=int, default=0, help="measure what so many closed pages leave in memory")
    args = parser.parse_args(arguments)

    host = machine.describe(torch.device("cpu"))
    print(f"{host.processor}, {host.cores} cores; commit {host.commit}; load average at the start {host.load}",
          flush=True)

    with tempfile.TemporaryDirectory() as folder:
        workspace = Workspace.open(folder)
        locks = fill(workspace, args.runs, args.queued)

        app = ["app.py", "--no-check", "--port", "0", "--workspace", folder]
        bare_app = ["-c", BARE, str(_free_port())]

        if args.sessions:
            measure_sessions(app, args.sessions)
            return 0
        if args.runs:
            with served(app) as page_served:
                print_start("the page, which reads all runs for the first time", page_served)

        # The bare page shows what Gradio itself takes on the same machine.
        with served(bare_app) as bare_served, served(app) as page_served:
            bare, page = print_start("a bare page", bare_served), print_start("the page", page_served)
            print("\n| | | answers | page: median (90%) | bare page | ratio | processor |", flush=True)
            print("|---|---|---|---|---|---|---|", flush=True)
            with training(workspace, args.steps):
                for tab in args.tabs:
                    page.select(tab)
                    page.tick()
                    compare(f"a training, {tab}", page, bare, args.answers, page_served)
            page.select("Train")
            page.tick()
            compare("no training, Train", page, bare, args.answers, page_served)

    for lock in locks:
        lock.release()
    return 0


def print_start(title: str, app: Served) -> PageClient:
    """Open the page of `app`, which was just started, and print how long both took."""
    client = PageClient(app.url, "page")
    opened_s = client.open()
    print(f"{title}: {app.started_s:.2f} s from the start of the process until it is ready, {opened_s:.2f} s from the "
          f"request to the first whole page, {app.processor_s():.2f} s of a processor", flush=True)
    return client


def fill(workspace: Workspace, ended: int, queued: int) -> list[FileLock]:
    """Make `ended` jobs, and `queued` ones that wait; the locks that keep these alive."""
    # All ended jobs have the same two journals.
    journals = {"train": [Queued(), Started(1, 1), *(
        Step(step, 100, 5.0 - step / 50, 4.0, {"rows": 5e-3}, 1.0, 5000.0, 0.4 * step) for step in range(1, 101)),
        Evaluated(100, 3.0, {"am": 0.4}), CheckpointSaved(100, "checkpoints/step-000100", True),
        Finished({"steps": 100})], "synthesize": [Queued(), Started(1, 1), Finished({"seconds": 1.0})]}
    options = {"train": TrainOptions(), "synthesize": SynthesizeOptions(text="A sentence.")}
    time_now, held = time.time(), []

    (workspace.models / "tiny").mkdir()
    for number in range(ended + queued):
        verb = ("train", "synthesize")[number % 2]
        events: list[Event] = journals[verb] if number < ended else [Queued(), Waiting("Waiting for cpu.")]
        created = time_now - 60.0 * (ended + queued - number)
        folder = workspace.runs / f"{verb}-{number:06d}"
        folder.mkdir()
        (folder / "config.yaml").write_text(yaml.safe_dump({
            "verb": verb, "device": "cpu", "after": [], "created": created,
            "options": options[verb].model_dump(mode="json")}))

        (folder / "events.jsonl").write_bytes(b"".join(encode(replace(event, time=created + offset))
                                                       for offset, event in enumerate(events)))
        if verb == "train" and number < ended:
            _write_checkpoint(folder)

        if number >= ended and (lock := FileLock.acquire(folder / "lock")):
            held.append(lock)
    return held


def _write_checkpoint(run: Path) -> None:
    """What the page reads of a checkpoint."""
    checkpoint = run / "checkpoints" / "step-000100"
    (checkpoint / "front_end").mkdir(parents=True)
    origin = Origin("tiny", "tiny", "a", 3, 4, "b")
    write_json(checkpoint / "checkpoint.json", asdict(CheckpointRecord(
        run.name, 100, "gated", "rows", "clips", "a", "b", origin, 16)), sync=False)
    write_json(checkpoint / "front_end" / "front_end.json", {
        "languages": {"en": {}, "fr": {}, "am": {}}, "base_languages": ["en", "fr"]}, sync=False)


def measure_sessions(app: Sequence[str], sessions: int) -> None:
    """Open and close pages, and print what stays of each."""
    with served(app) as page:
        warm_bytes = 0
        for number in range(_WARM_SESSIONS + sessions):
            client = PageClient(page.url, f"session{number}")
            with client.heartbeat():
                client.open()
                for tab in ("Train", "Listen", "Jobs"):
                    client.select(tab)
                    client.tick()
            if number in (_WARM_SESSIONS - 1, _WARM_SESSIONS + sessions - 1):
                # Memory of closed pages is freed only after the app noticed.
                time.sleep(_CLOSED_S)
                resident = page.resident_bytes()
                if warm_bytes:
                    print(f"{sessions} sessions: {warm_bytes / 1e6:.1f} MB before, {resident / 1e6:.1f} MB after, "
                          f"{(resident - warm_bytes) / sessions / 1e3:.1f} kB stay of each", flush=True)
                warm_bytes = resident


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class Served:
    """An app, and how long it took until it was ready."""

    url: str
    process: int
    started_s: float

    def processor_s(self) -> float:
        """Seconds of a processor, its threads and ended children included."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def resident_bytes(self) -> int:
        return int(Path(f"/proc/{self.process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def served(program: Sequence[str]) -> Iterator[Served]:
    """The page that `python PROGRAM` serves."""
    start = time.perf_counter()
    environment = {name: value for name, value in os.environ.items() if name != "LISAN_PASSWORD"}
    process = subprocess.Popen([sys.executable, *program], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                               env={**environment, "GRADIO_ANALYTICS_ENABLED": "False"})
    try:
        assert process.stdout is not None
        url = next((line.removeprefix(READY).strip() for line in process.stdout if line.startswith(READY)), "")
        if not url:
            raise UserError(f"{' '.join(program)[:40]} ended before it was ready.", "See its output above.")
        yield Served(url, process.pid, time.perf_counter() - start)
    finally:
        process.terminate()
        process.wait(_TIMEOUT_S)


def train(options: TrainOptions, _workspace: Workspace, reporter: Reporter) -> Result:
    """The verb of the worker: busy until it is stopped."""
    step = 0

    def report() -> None:
        nonlocal step
        step += 1
        loss = 1.6 + 3.2 * math.exp(-step / 120) + 0.12 * math.sin(1.7 * step)
        reporter.emit(Step(step, 2 * options.length.steps, loss, 0.5 * loss, {"rows": 5e-3}, 0.8, 5200.0, 0.4 * step,
                           0.4 * options.length.steps, 3_100_000_000, "process"))

    while step < options.length.steps:
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
    job = create_job(workspace, "train", parse_options(TrainOptions, {"steps": steps, "device": "cpu"}))
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


def compare(title: str, page: PageClient, bare: PageClient, answers: int, app: Served) -> None:
    """Ask both alternately, once a second, and print a row for each kind of answer."""
    processor_s = app.processor_s()
    page_times: dict[str, list[float]] = {}
    bares: list[float] = []
    for _ in range(answers):
        # Both pages are asked once a second, as a browser asks.
        began = time.monotonic()
        for kind, passed in page.tick().items():
            page_times.setdefault(kind, []).append(passed)
        bares += bare.tick().values()
        time.sleep(max(0.0, _TICK_S - (time.monotonic() - began)))

    each_ms = 1000 * (app.processor_s() - processor_s) / answers
    for kind, times in page_times.items():
        ratio = statistics.median(times) / statistics.median(bares)
        print(f"| {title} | {kind} | {len(times)} | {_shown(times)} | {_shown(bares)} | {ratio:.2g} | "
              f"{each_ms:.0f} ms |", flush=True)


def _shown(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.1f} ({sorted(times)[math.ceil(0.9 * len(times)) - 1]:.1f}) ms"


if __name__ == "__main__":
    if sys.argv[1:2] == [_WORKER]:
        sys.exit(worker.main(sys.argv[2:], verbs={"train": train}))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that no process is left
    exit_with(main)
