"""A reverse proxy as a studio has one in front of its ports: another host, and a path prefix that it takes away."""

from __future__ import annotations

import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST, PREFIX = "studio.localhost", "/port/7860"
_OWN = {"connection", "transfer-encoding", "content-length", "host"}  # of one hop, not of the message


@contextmanager
def proxied(port: int, scheme: str = "http") -> Iterator[str]:
    """The public address, without a slash at its end, of what listens on `port`; `scheme` is the one it reports."""

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            if not self.path.startswith(PREFIX + "/"):
                self.send_error(404, "not of this prefix")
                return
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _OWN}
            headers |= {"Host": f"127.0.0.1:{port}", "X-Forwarded-Host": self.headers["Host"],
                        "X-Forwarded-Proto": scheme}
            behind = http.client.HTTPConnection("127.0.0.1", port)
            try:
                behind.request(self.command, self.path.removeprefix(PREFIX), body or None, headers)
                answer = behind.getresponse()
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in _OWN:
                        self.send_header(name, value)
                self.send_header("Connection", "close")
                self.end_headers()
                while piece := answer.read1(1 << 16):  # a stream of events has no end
                    self.wfile.write(piece)
                    self.wfile.flush()
            except (OSError, http.client.HTTPException):  # one of the two sides has left
                self.close_connection = True
            finally:
                behind.close()

        do_GET = do_POST = do_HEAD = forward

        def log_message(self, format: str, *values: object) -> None:
            del format, values

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://{HOST}:{server.server_address[1]}{PREFIX}"
    finally:
        server.shutdown()
        server.server_close()
