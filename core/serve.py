"""The verb `serve`: OpenAI's speech API over models of the workspace, until it is stopped.

It holds the device as any job does, so it never shares it with a training. The main thread computes, a second one
answers HTTP.
"""

from __future__ import annotations

import errno
import socket
import threading
import time
from itertools import chain

import uvicorn

from config.errors import UserError
from config.schema import ServeOptions
from core import compute
from core.jobs.events import Plan, Progress, Result, WarningRaised
from core.jobs.reporter import Reporter, StopRequested, pluralize, stage
from core.serving import access
from core.serving.api import SpeechServer, build_api
from core.serving.engine import SpeechEngine
from core.serving.served_models import ServedModels
from core.workspace import Workspace

_BYTES_PER_CHARACTER = 12  # bytes of a character in JSON that escapes all of them
_REPORT_S = 10.0  # between two progress events
_START_S, _END_S = 20.0, 5.0


def run(options: ServeOptions, workspace: Workspace, reporter: Reporter) -> Result:
    """Serve until a stop is requested; raises `StopRequested` then."""
    key = access.read_key(options.host, options.key_file)
    names = access.allowed_names(options.host, options.allow_host)
    origins = access.check_origins(options.allow_origin)
    # The port is taken before the models load, so that a taken one is reported at once.
    listener = _listen(options.host, options.port)
    try:
        with stage(reporter, "load"):
            models = ServedModels(options, workspace, compute.setup_device(options.device))
            served = [models.describe(reference) for reference in models.references]
            for note in models.take_notes():
                reporter.emit(WarningRaised(note))
        engine = SpeechEngine(options.rows, options.max_requests, options.max_seconds)
        server = SpeechServer(models, engine, options)
        guarded = access.GuardedServer(build_api(server), key, names, origins,
                                       1024 + _BYTES_PER_CHARACTER * options.max_characters)
        web = uvicorn.Server(uvicorn.Config(guarded, log_level="warning", access_log=False, server_header=False,
                                            ws="none", lifespan="off", timeout_graceful_shutdown=int(_END_S)))
        thread = threading.Thread(target=web.run, kwargs={"sockets": [listener]}, name="http", daemon=True)
        thread.start()
        _wait_for_start(web, thread)

        shown_host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{shown_host}:{listener.getsockname()[1]}/v1"
        reporter.emit(Plan((
            f"Serving at {address}{', with a key' if key else ''}.",
            *(f"{model.reference}: {pluralize(len(model.languages), 'language')}, {model.default_language} unless a "
              f"request names another; {pluralize(len(model.voices), 'voice')}." for model in served)),
            {"port": listener.getsockname()[1], "key": int(bool(key))}))
        if not access.is_loopback(options.host):
            reporter.emit(WarningRaised("It speaks plain HTTP: the key can be read on the way. Put a proxy with TLS in "
                                        "front."))

        # The engine runs in this thread, which also reports and sees a stop request.
        report = _Report(server, models, reporter)
        engine.run(reporter.stop_requested, report.emit_if_due)
        web.should_exit = True
        thread.join(_END_S + 1)
    finally:
        listener.close()
    raise StopRequested(f"Stopped on request after {pluralize(report.count(), 'request')}.")


class _Report:
    """Every ten seconds a progress event, of how many requests have ended and are open, and a smaller heap."""

    def __init__(self, server: SpeechServer, models: ServedModels, reporter: Reporter) -> None:
        self._server, self._models, self._reporter = server, models, reporter
        self._due, self._shown = 0.0, (-1, -1)

    def count(self) -> int:
        """Requests that have ended."""
        samples = chain.from_iterable(metric.samples for metric in self._server.metrics.requests.collect())
        return round(sum(sample.value for sample in samples if sample.name.endswith("_total")))

    def emit_if_due(self) -> None:
        time_s = time.monotonic()
        if time_s < self._due:
            return
        self._due = time_s + _REPORT_S
        # A model that was replaced leaves holes in the heap, which would add up from one reload to the next.
        compute.trim_memory()
        for note in self._models.take_notes():
            self._reporter.emit(WarningRaised(note))
        counts = self.count(), self._server.engine.requests
        if counts != self._shown:
            self._shown = counts
            self._reporter.emit(Progress(counts[0], None, "requests", f"answered, {counts[1]} open"))


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket; `UserError` if the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except (OSError, UnicodeError) as error:
        raise UserError(f"The address {host!r} is not known: {error}.",
                        "Give --host an address of this machine: 127.0.0.1 for itself alone, 0.0.0.0 for all.") \
            from error
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"Port {port} of {host} is taken by another program.",
                            "Choose another --port; 0 chooses a free one.") from error
        raise UserError(f"The server cannot listen on {host}:{port}: {error.strerror or error}.",
                        "Give --host an address of this machine, and a --port above 1023.") from error
    return listener


def _wait_for_start(web: uvicorn.Server, thread: threading.Thread) -> None:
    deadline = time.monotonic() + _START_S
    while not web.started:
        if not thread.is_alive() or time.monotonic() > deadline:
            raise RuntimeError("the HTTP server did not start")
        time.sleep(0.02)
