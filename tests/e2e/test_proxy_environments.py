"""The app starts in networks whose proxies it is told of by the environment, as in companies and universities."""

from __future__ import annotations

import threading
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.processes import PATIENCE_S
from tests.serving import served

DEAD = "http://127.0.0.1:9"


class Forbidding(BaseHTTPRequestHandler):
    """A proxy that lets nothing through."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        self.send_error(403, "Forbidden by policy")

    do_HEAD = do_CONNECT = do_POST = do_GET

    def log_message(self, *_arguments: object) -> None:
        return


@pytest.fixture
def forbidding() -> Iterator[ThreadingHTTPServer]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Forbidding) as server:
        server.asked = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "http_proxy": {"http_proxy": DEAD},
    "all_proxy, SOCKS": {"all_proxy": "socks5://127.0.0.1:9"},
    "a proxy that answers 403": {"http_proxy": "{forbidding}", "https_proxy": "{forbidding}"},
    "no_proxy=localhost": {"http_proxy": DEAD, "https_proxy": DEAD, "no_proxy": "localhost"},
    "no_proxy with networks": {"http_proxy": DEAD, "no_proxy": "localhost,127.0.0.0/8,::1"},
    "no_proxy alone": {"no_proxy": "localhost,127.0.0.0/8,::1"},
    "capitals": {"HTTP_PROXY": DEAD, "HTTPS_PROXY": DEAD, "ALL_PROXY": DEAD, "NO_PROXY": "[::1]:x"},
}
QUICK = ("http_proxy", "all_proxy, SOCKS")


@pytest.mark.parametrize("name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long)
                                  for name in ENVIRONMENTS])
def test_the_app_starts_and_serves_its_page(name: str, forbidding: ThreadingHTTPServer, tmp_path: Path) -> None:
    proxy = f"http://127.0.0.1:{forbidding.server_port}"
    variables = {key: value.format(forbidding=proxy) for key, value in ENVIRONMENTS[name].items()}
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with served(tmp_path / "workspace", variables=variables) as app:
        with direct.open(app.url, timeout=PATIENCE_S) as page:
            assert b"Lisan" in page.read()
        environment = Path(f"/proc/{app.process.pid}/environ").read_bytes()
        assert all(f"{key}={value}".encode() in environment for key, value in variables.items())
    assert not forbidding.asked  # type: ignore[attr-defined]
