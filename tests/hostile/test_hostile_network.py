"""Servers and names that lead into this machine or its cloud, and strangers at the sign-in."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import app
from config import confinement
from config.errors import UserError
from core.sources import allowed
from core.sources.dataset_source import WebAddress, WebFile
from core.sources.hub import Hub, RemoteFile
from data.durable_files import ExpectedFile
from ui import web_surface

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
PUBLIC = "93.184.215.14"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower() in PROXIES]:
        monkeypatch.delenv(name)
    monkeypatch.delenv(confinement.VARIABLE, raising=False)


@pytest.fixture
def confined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(confinement.VARIABLE, str(tmp_path))


class Inner(BaseHTTPRequestHandler):
    """A server of this machine; as a proxy it answers for any name, and `redirect` sends elsewhere."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)  # type: ignore[attr-defined]
        redirect = self.server.redirect  # type: ignore[attr-defined]
        content = b"INTERNAL-SECRET"
        self.send_response(302 if redirect else 200)
        if redirect:
            self.send_header("Location", redirect)
        self.send_header("Content-Type", "application/octet-stream")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET

    def log_message(self, *_arguments: object) -> None:
        return


@pytest.fixture
def inner() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Inner) as server:
        server.asked, server.redirect = [], ""  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


METADATA = ["fd00:ec2::23", "fd00:ec2::254", "fd20:ce::254", "fd00:c1::a9fe:a9fe", "fd00:42::42", "fd12:3456::1",
            "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:aa:a9:fea9:fe00:0",
            "64:ff9b:1:0:a9:fea9:fe00:0", "2002:a9fe:a9fe::", "2002:a9fe:a9fe::1", "::a9fe:a9fe", "::ffff:a9fe:a9fe",
            "::ffff:0:a9fe:a9fe", "2001:0:a9fe:a9fe::1", "2001:db8::5efe:a9fe:a9fe", "2001:db8::200:5efe:a9fe:a9fe",
            "2001:0:4136:e378:8000:63bf:5601:5601", "64:ff9b::6464:64c8", "2002:a83f:8110::1", "::ffff:168.63.129.16",
            "fe80::a9fe:a9fe%lo", "169.254.170.2", "169.254.170.23", "192.0.0.192"]
PRIVATE = ["::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::7f00:1", "2002:7f00:1::", "fec0::1",
           "ff02::1", "ff0e::1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "2002:c0a8:1::1",
           "64:ff9b::a00:1", "::ffff:10.0.0.1", "::", "::1", "100::1", "2001:db8::1", "fc00::1", "5f00::1",
           "2001:0:7f00:1::1", "2606:4700::5efe:10.0.0.1", "198.18.0.1", "192.0.2.1"]


@pytest.mark.parametrize("address", METADATA)
def test_addresses_at_which_clouds_hand_out_credentials_are_refused_in_any_case(address: str) -> None:
    with pytest.raises(UserError, match="is not read"):
        allowed.check_ip(address, "name.example")


@pytest.mark.parametrize("address", PRIVATE)
def test_addresses_that_lead_into_the_network_are_refused_where_sources_are_limited(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(confinement.VARIABLE, str(tmp_path))
    with pytest.raises(UserError, match="is not read"):
        allowed.check_ip(address, "name.example")


@pytest.mark.parametrize("address", [PUBLIC, "2606:4700::1111", "64:ff9b::5db8:d70e", "2002:5db8:d70e::1",
                                     "::ffff:93.184.215.14", "2a00:1450:4001:80b::200e"])
def test_addresses_of_the_internet_are_read(address: str, confined: None) -> None:
    allowed.check_ip(address, "name.example")


ENVIRONMENTS: dict[str, dict[str, str]] = {
    "none": {}, "NO_PROXY": {"NO_PROXY": "localhost"}, "no_proxy": {"no_proxy": "localhost,127.0.0.0/8"},
    "a proxy of the other scheme": {"HTTPS_PROXY": "http://127.0.0.1:9"},
    "a proxy that is not for this name": {"HTTP_PROXY": "http://127.0.0.1:9", "NO_PROXY": "rebind.example"},
    "a proxy that is for no name": {"ALL_PROXY": "http://127.0.0.1:9", "NO_PROXY": "*"},
}


@pytest.mark.parametrize("environment", ENVIRONMENTS)
@pytest.mark.parametrize("answers", [[PUBLIC, "127.0.0.1"], [PUBLIC, "::1"], [PUBLIC, PUBLIC, "127.0.0.1"],
                                     ["127.0.0.1", PUBLIC]], ids=str)
def test_a_name_that_leads_elsewhere_at_the_connection_is_not_asked(
    environment: str, answers: list[str], confined: None, inner: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in ENVIRONMENTS[environment].items():
        monkeypatch.setenv(name, value)
    left = list(answers)
    resolve = socket.getaddrinfo

    def rebinding(host: str, port: int | None, *rest: Any, **named: Any) -> Any:
        if host != "rebind.example":
            return resolve(host, port, *rest, **named)
        address = left.pop(0) if len(left) > 1 else left[0]
        return resolve(address, port, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    connected: list[object] = []
    connect = socket.create_connection

    def connecting(address: tuple[str, int], *rest: Any, **named: Any) -> Any:
        connected.append(address[0])
        if address[0] == PUBLIC:
            raise ConnectionRefusedError
        return connect(address, *rest, **named)

    monkeypatch.setattr(socket, "create_connection", connecting)
    address = WebAddress(f"http://rebind.example:{inner.server_port}/a.zip")
    with pytest.raises(Exception, match="is not read|connection"):
        address.describe(2.0)
    assert not inner.asked
    assert set(connected) <= {PUBLIC}


def test_a_connection_goes_to_the_address_that_was_checked(inner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve, asked = socket.getaddrinfo, list[str]()

    def resolving(host: str, *rest: Any, **named: Any) -> Any:
        asked.append(host)
        return resolve("127.0.0.1" if host == "inside.example" else host, *rest, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolving)
    with WebAddress(f"http://inside.example:{inner.server_port}/a").open(
            RemoteFile("", "", "a", ExpectedFile(0)), 0, 5.0) as stream:
        assert b"".join(stream.blocks) == b"INTERNAL-SECRET"
    assert asked == ["inside.example", "inside.example", "127.0.0.1"]  # the request, the connection, its address


def test_a_proxy_of_the_environment_is_used_and_names_are_checked_before_it(
    confined: None, inner: Any, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{inner.server_port}")
    assert isinstance(WebAddress(f"http://{PUBLIC}/a.zip").describe(5.0), WebFile)
    assert inner.asked == [f"http://{PUBLIC}/a.zip"]
    for host in ("127.0.0.1", "169.254.169.254", "[fd00:ec2::254]", "10.0.0.1"):
        with pytest.raises(UserError, match="is not read"):
            WebAddress(f"http://{host}/a.zip").describe(5.0)
    assert len(inner.asked) == 1


@pytest.mark.parametrize("variables", [{"ALL_PROXY": "socks5://127.0.0.1:9"}, {"HTTP_PROXY": "ftp://127.0.0.1:9"}],
                         ids=str)
def test_proxies_that_cannot_be_used_are_refused_in_a_sentence(variables: dict[str, str],
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match="environment"):
        WebAddress(f"http://{PUBLIC}/a.zip").describe(1.0)


@pytest.fixture
def hub(inner: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    from huggingface_hub import close_session

    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{inner.server_port}")
    close_session()
    yield Hub(f"http://127.0.0.1:{inner.server_port}")
    close_session()


TARGETS = ["http://169.254.169.254/latest/meta-data/", "http://metadata.google.internal/computeMetadata/v1/",
           "http://[fd00:ec2::254]/latest/", "http://[64:ff9b::a9fe:a9fe]/", "http://2852039166/"]


@pytest.mark.parametrize("target", TARGETS)
def test_a_hub_that_redirects_a_file_to_credentials_is_not_followed(target: str, hub: Hub, inner: Any) -> None:
    inner.redirect = target
    with pytest.raises(UserError, match="is not read"), \
            hub.open(RemoteFile("o/n", "main", "a", ExpectedFile(0)), 0, 5.0) as stream:
        b"".join(stream.blocks)
    with pytest.raises(UserError, match="is not read"):
        hub.list("o/n", "main", 5.0)


@pytest.mark.parametrize("host", ["localhost", "10.0.0.1", "[::1]", "192.168.1.1"])
def test_a_hub_that_redirects_into_the_network_is_not_followed_where_sources_are_limited(
    host: str, confined: None, hub: Hub, inner: Any,
) -> None:
    with hub.open(RemoteFile("o/n", "main", "a", ExpectedFile(0)), 0, 5.0) as stream:  # the hub itself was configured
        assert b"".join(stream.blocks) == b"INTERNAL-SECRET"
    inner.redirect = f"http://{host}:{inner.server_port}/inner"
    with pytest.raises(UserError, match="is not read"), \
            hub.open(RemoteFile("o/n", "main", "a", ExpectedFile(0)), 0, 5.0):
        pass
    assert "/inner" not in inner.asked


@pytest.mark.parametrize("strangers", [8, 50, 199])
def test_the_right_password_is_let_in_while_strangers_fail_at_the_same_address(strangers: int) -> None:
    async def wrong() -> int:
        await asyncio.sleep(0)
        return 400

    async def right() -> int:
        return 200

    async def short(seconds: float) -> None:
        await asyncio.sleep(0 if seconds < 1 else 3600)  # the delay of an answer does not end in this test

    async def tries() -> None:
        delay = web_surface.SignInDelay(short)
        for _ in range(5):
            await delay.attempt("1.2.3.4", wrong)
        waiting = [asyncio.ensure_future(delay.attempt("1.2.3.4", wrong)) for _ in range(strangers)]
        await asyncio.sleep(0.05)
        assert await asyncio.wait_for(delay.attempt("1.2.3.4", right), 5) is None
        assert not any(one.done() for one in waiting)
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(tries())


def test_checks_of_passwords_take_turns() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def wrong() -> int:
        return 400

    async def tries() -> None:
        delay = web_surface.SignInDelay(sleep)
        for _ in range(30):
            await delay.attempt("1.2.3.4", wrong)

    asyncio.run(tries())
    assert sum(wait == 0.05 for wait in waits) == 25
    assert [wait for wait in waits if wait >= 1][:7] == [1, 2, 4, 8, 16, 30, 30]


@pytest.mark.parametrize("header", ["1.2.3.4", "9.9.9.9, 8.8.8.8", "::1", "garbage", ""])
def test_a_header_does_not_choose_the_address_that_failures_are_counted_for(header: str) -> None:
    scope = {"client": ("127.0.0.1", 5), "headers": [(b"x-forwarded-for", header.encode())]}
    assert web_surface._client(scope) == "127.0.0.1"
    assert web_surface._client({"client": ("2001:db8::5", 1), "headers": []}) == "2001:db8::/64"


@pytest.mark.parametrize("proxied", [False, True])
def test_the_proxies_of_the_environment_are_there_again_for_jobs(proxied: bool,
                                                                monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://a:1")
    monkeypatch.setenv("no_proxy", "b")
    with app.direct_connections(proxied):
        assert ("HTTPS_PROXY" in os.environ) == proxied
        assert os.environ.get("no_proxy") == ("127.0.0.1,localhost" if proxied else None)
    assert (os.environ["HTTPS_PROXY"], os.environ["no_proxy"]) == ("http://a:1", "b")
