"""Speech a second and the time to the first sound of the server, many rows at once beside one at a time:

    python -m scripts.dev.benchmark.serving --workspace FOLDER --clients 1 8 16

Starts the server on loopback with the built-in model of FOLDER, with 16 rows and with 1, in turn, --rounds times. A
client asks for the same two sentences again and again, as PCM, and reads until the last byte.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from config.errors import UserError
from core.workspace import Workspace
from scripts.command import exit_with

TEXT = "She reads a book in the garden. The dog sleeps under the old tree."
ROWS = (16, 1)
REQUESTS = 3  # of each client, one after another
PCM_BYTES_A_SECOND = 48_000
START_S = 120  # seconds until the server must answer


@contextmanager
def served(workspace: Workspace, rows: int) -> Iterator[str]:
    """The address of a server with `rows`, which has spoken once."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "scripts.serve", "base:tiny", "--workspace", str(workspace.path), "--port",
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
            yield address
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


def measure(address: str, clients: int) -> str:
    """A line of results for so many clients at once."""
    def ask(client: int) -> list[tuple[float, float]]:
        return [speak(address, 100 * client + number) for number in range(REQUESTS)]

    start = time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        answers = [answer for answers in pool.map(ask, range(clients)) for answer in answers]
    seconds = time.perf_counter() - start
    first = sorted(first_s for first_s, _ in answers)
    return (f"{sum(speech_s for _, speech_s in answers) / seconds:.1f} s of speech a second, first sound after "
            f"{statistics.median(first):.2f} s (median), {first[int(0.95 * (len(first) - 1))]:.2f} s (95%)")


def main() -> int:
    """Print a line for each round, number of rows and number of clients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=2)
    arguments = parser.parse_args()
    workspace = Workspace.open(arguments.workspace)
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    for number in range(1, arguments.rounds + 1):
        for rows in ROWS:
            with served(workspace, rows) as address:
                for clients in arguments.clients:
                    print(f"round {number}, --rows {rows}, {clients} clients: {measure(address, clients)}", flush=True)
    return 0


if __name__ == "__main__":
    exit_with(main)
