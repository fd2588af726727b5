"""Speech a second and the time to the first sound of the server, many rows at once beside one at a time:

    python -m scripts.dev.benchmark.serving --workspace FOLDER --clients 1 8 16
    python -m scripts.dev.benchmark.serving --workspace FOLDER --soak 10

Starts the server on loopback with the built-in model of FOLDER, with 16 rows and with 1, in turn, --rounds times. A
client asks for the same two sentences again and again, as PCM, and reads until the last byte.

`--soak MINUTES` is a random load instead: eight clients, texts of one to four sentences, all formats, one request in
five given up after its first bytes, and a reload of the model every half minute. It fails (exit code 1) if a request
was lost, if a row is left over, or if the memory at the end is 5% above that after a tenth of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

from config.errors import UserError
from core.workspace import Workspace
from scripts.command import exit_with

TEXT = "She reads a book in the garden. The dog sleeps under the old tree."
ROWS = (16, 1)
REQUESTS = 3  # of each client, one after another
PCM_BYTES_A_SECOND = 48_000
START_S = 120  # seconds until the server must answer
SENTENCES = ("She reads a book in the garden.", "The dog sleeps under the old tree.", "We walk to the market today.",
             "Good morning.", "The children sing a song about the river and the sea.", "Where is the small house?")
SOAK_CLIENTS, SOAK_FORMATS = 8, ("pcm", "mp3", "opus", "wav", "flac")
CANCELLED_SHARE, RELOAD_S, MEMORY_BOUND = 0.2, 30.0, 1.05


@contextmanager
def served(workspace: Workspace, rows: int) -> Iterator[tuple[str, int]]:
    """The address of a server with `rows`, which has spoken once, and its process id."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "scripts", "serve", "base:tiny", "--workspace", str(workspace.path), "--port",
               str(port), "--rows", str(rows), "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            address, deadline = f"http://127.0.0.1:{port}", time.monotonic() + START_S
            while True:
                try:
                    urllib.request.urlopen(f"{address}/health", timeout=5).close()
                    break
                except OSError as error:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise UserError("The server did not start.", f"Try it: {' '.join(command[1:])}") from error
                    time.sleep(0.2)
            speak(address, 0)
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGINT)


def speak(address: str, seed: int) -> tuple[float, float]:
    """Seconds to the first bytes of sound, and seconds of speech."""
    body = json.dumps({"input": TEXT, "model": "tts-1", "voice": "default", "response_format": "pcm", "seed": seed})
    request = urllib.request.Request(f"{address}/v1/audio/speech", body.encode(), {"Content-Type": "application/json"})
    start = time.perf_counter()
    with urllib.request.urlopen(request, timeout=300) as answer:
        size = len(answer.read(2))
        first_s = time.perf_counter() - start
        size += len(answer.read())
    return first_s, size / PCM_BYTES_A_SECOND


@dataclass(frozen=True)
class Load:
    """What so many clients at once got."""

    rate: float  # seconds of speech a second
    first_s: float  # median time to the first sound
    late_first_s: float  # 95th percentile of it

    def describe(self) -> str:
        return (f"{self.rate:.1f} s of speech a second, first sound after {self.first_s:.2f} s (median), "
                f"{self.late_first_s:.2f} s (95%)")


def measure(address: str, clients: int) -> Load:
    """The load of so many clients, each of which asks three times."""
    def ask(client: int) -> list[tuple[float, float]]:
        return [speak(address, 100 * client + number) for number in range(REQUESTS)]

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = [answer for answers in pool.map(ask, range(clients)) for answer in answers]
    seconds = time.perf_counter() - start
    first = sorted(first_s for first_s, _ in answers)
    return Load(sum(speech_s for _, speech_s in answers) / seconds, statistics.median(first),
                first[int(0.95 * (len(first) - 1))])


def summarize(loads: Mapping[tuple[int, int], Sequence[Load]], clients: Sequence[int]) -> list[str]:
    """The ratios of the acceptance, by number of clients: medians over the rounds, of values of the same round."""
    many, single = ROWS
    lines = []
    for count in clients:
        speedups = [batch.rate / lock.rate for batch, lock in zip(loads[many, count], loads[single, count],
                                                                  strict=True)]
        line = f"{count} clients: {statistics.median(speedups):.2f} times the throughput of one row"
        if 1 in clients:
            delays = [load.first_s / idle.first_s for load, idle in zip(loads[many, count], loads[many, 1],
                                                                        strict=True)]
            line += (f", first sound {statistics.median(delays):.2f} times as late as for one client "
                     f"({statistics.median(load.late_first_s for load in loads[many, count]):.2f} s for 95%)")
        lines.append(line)
    return lines


@dataclass
class Soak:
    """A random load: what became of each request, and the memory of the server over time."""

    address: str
    deadline: float  # of time.monotonic
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def run_client(self, number: int) -> None:
        """Ask again and again until the deadline."""
        dice = random.Random(number)
        while time.monotonic() < self.deadline:
            outcome = self.ask(dice)
            with self.guard:
                self.outcomes[outcome] += 1

    def ask(self, dice: random.Random) -> str:
        """One random request: "answered", "given up" or "lost"."""
        text = " ".join(dice.choices(SENTENCES, k=dice.randint(1, 4)))
        body = {"input": text, "model": "tts-1", "voice": "default", "response_format": dice.choice(SOAK_FORMATS),
                "seed": dice.randrange(1000)}
        gives_up = dice.random() < CANCELLED_SHARE
        request = urllib.request.Request(f"{self.address}/v1/audio/speech", json.dumps(body).encode(),
                                         {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                if gives_up:
                    answer.read(dice.randint(1, 2000))
                    return "given up"
                size = len(answer.read())
        except (OSError, HTTPException) as error:
            with self.guard:
                self.faults.append(f"{body}: {type(error).__name__}: {error}")
            return "lost"
        # A fifth of a second for each word is less than any speaker takes; PCM alone has a constant size.
        if body["response_format"] == "pcm" and size < 0.2 * len(text.split()) * PCM_BYTES_A_SECOND:
            with self.guard:
                self.faults.append(f"{body}: {size} bytes of PCM")
            return "lost"
        return "answered"


def soak(workspace: Workspace, minutes: float) -> int:
    """Print memory and outcomes of a random load; returns the exit code."""
    weights = workspace.model("tiny") / "t3.safetensors"
    with served(workspace, ROWS[0]) as (address, pid):
        begin, seconds = time.monotonic(), 60 * minutes
        load = Soak(address, begin + seconds)
        clients = [threading.Thread(target=load.run_client, args=(number,)) for number in range(SOAK_CLIENTS)]
        for client in clients:
            client.start()

        # A reload is what the server does for a file with another time of its last change.
        memory: list[tuple[float, float]] = []  # seconds, MiB
        reloads, next_reload = 0, RELOAD_S
        while (elapsed := time.monotonic() - begin) < seconds:
            if elapsed >= next_reload:
                os.utime(weights)
                reloads, next_reload = reloads + 1, next_reload + RELOAD_S
            memory.append((elapsed, memory_mib(pid)))
            if len(memory) % 10 == 1:
                print(f"{elapsed:.0f} s: {memory[-1][1]:.0f} MiB, {reloads} reloads, "
                      f"{load.outcomes.total()} requests", flush=True)
            time.sleep(2)
        for client in clients:
            client.join()

        # Rows of requests that were given up are free after eight codes.
        deadline = time.monotonic() + 20
        while (left := open_rows(address)) != (0, 0) and time.monotonic() < deadline:
            time.sleep(0.2)
    early = [mib for elapsed, mib in memory if 0.1 * seconds <= elapsed < 0.2 * seconds]
    late = [mib for elapsed, mib in memory if elapsed >= 0.9 * seconds]
    growth = statistics.median(late) / statistics.median(early)
    print(f"{dict(load.outcomes)}, {reloads} reloads; memory {statistics.median(early):.0f} MiB in the second tenth, "
          f"{statistics.median(late):.0f} MiB in the last ({growth - 1:+.1%}), at most "
          f"{max(mib for _, mib in memory):.0f} MiB; {left[0]} requests and {left[1]} rows left over")
    print(*load.faults[:10], sep="\n")
    return int(bool(load.faults) or growth > MEMORY_BOUND or left != (0, 0))


def memory_mib(pid: int) -> float:
    """The resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def open_rows(address: str) -> tuple[int, int]:
    """Requests that are open, and rows that are computed, as the server counts them."""
    with urllib.request.urlopen(f"{address}/metrics", timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    values = dict(line.split() for line in lines if line.startswith(("lisan_requests_open", "lisan_sentences_comp")))
    return round(float(values["lisan_requests_open"])), round(float(values["lisan_sentences_computed"]))


def main() -> int:
    """Print a line for each round, number of rows and number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="a random load instead")
    arguments = parser.parse_args()
    workspace = Workspace.open(arguments.workspace)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    if arguments.soak:
        return soak(workspace, arguments.soak)
    loads: dict[tuple[int, int], list[Load]] = {}
    for number in range(1, arguments.rounds + 1):
        for rows in ROWS:
            with served(workspace, rows) as (address, _):
                for clients in arguments.clients:
                    load = measure(address, clients)
                    loads.setdefault((rows, clients), []).append(load)
                    print(f"round {number}, --rows {rows}, {clients} clients: {load.describe()}", flush=True)
    print(*summarize(loads, arguments.clients), f"load {os.getloadavg()[0]:.1f} at the end", sep="\n")
    return 0


if __name__ == "__main__":
    exit_with(main)
