"""A speech server in threads of the test: the verb itself, on a free port of this machine."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from config.schema import ServeOptions
from core import serve
from core.jobs.events import Plan
from core.jobs.reporter import StopRequested
from core.workspace import Workspace
from tests.worlds import Listener

JSON = {"content-type": "application/json"}


class StoppableListener(Listener):
    """A listener whose stop a test requests."""

    stopped = False

    def stop_requested(self) -> bool:
        return self.stopped


@dataclass
class Answer:
    """A whole answer; header names are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error

    @property
    def events(self) -> list[dict[str, Any]]:
        return [json.loads(line.removeprefix(b"data: ")) for line in self.body.split(b"\n\n") if line]


@dataclass
class Server:
    """A server that runs, and how to ask it."""

    port: int
    listener: StoppableListener
    ends: list[BaseException]

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def ask(self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            fields = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, fields, response.read())
        finally:
            connection.close()

    def speak(self, text: str = "the cat sees a dog", headers: dict[str, str] | None = None,
              **fields: object) -> Answer:
        body = json.dumps({"input": text, **fields}).encode()
        return self.ask("POST", "/v1/audio/speech", body, JSON | (headers or {}))

    def begin(self, text: str, **fields: object) -> http.client.HTTPConnection:
        """Send a request, and read nothing of its answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/audio/speech", json.dumps({"input": text, **fields}).encode(), JSON)
        return connection

    def metric(self, name: str) -> float:
        """The sum of a metric's samples."""
        lines = self.ask("GET", "/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines
                   if line.startswith((f"{name} ", f"{name}{{")))

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 60
        while self.metric("lisan_requests_open") or self.metric("lisan_sentences_computed"):
            assert time.monotonic() < deadline, "requests stay open"
            time.sleep(0.05)


@contextmanager
def serving(workspace: Workspace, name: str, **options: Any) -> Iterator[Server]:
    """Context with a server over `workspace`; `name` is that of its folder."""
    listener, ends = StoppableListener(workspace.runs / name), list[BaseException]()

    def run() -> None:
        try:
            serve.run(ServeOptions(**{"port": 0, "device": "cpu", **options}), workspace, listener)
        except BaseException as error:  # noqa: BLE001  (the test sees it)
            ends.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    deadline = time.monotonic() + 120
    while not listener.of("plan"):
        if ends:
            raise ends[0]
        assert time.monotonic() < deadline, "the server does not start"
        time.sleep(0.02)
    plan = listener.of("plan")[0]
    assert isinstance(plan, Plan)
    try:
        yield Server(plan.counts["port"], listener, ends)
    finally:
        listener.stopped = True
        thread.join(60)
        assert isinstance(ends[-1], StopRequested), ends
