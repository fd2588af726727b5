"""The speech server against requests that are malformed, foreign, too large, or look for a file."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from core.workspace import Workspace
from tests.unit.serving_world import JSON, Server, serving
from tests.worlds import write_model

KEY = "a-key-that-is-long-enough"
SIGNED = {"authorization": f"Bearer {KEY}"}
BODY = json.dumps({"input": "a dog", "response_format": "pcm"}).encode()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hostile")
    workspace = Workspace.open(folder / "workspace")
    write_model(workspace.models / "tiny")
    (folder / "key").write_text(KEY, encoding="utf-8")
    with serving(workspace, "served", key_file=str(folder / "key"), max_characters=300) as found:
        yield found
        assert found.speak("a dog", headers=SIGNED).status == 200, "it still serves"


def send(server: Server, data: bytes) -> bytes:
    """The first bytes of the answer to raw bytes; empty if the connection is closed without one."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return connection.recv(4096)
        except OSError:  # it was closed before all was sent, or read
            return b""


@pytest.mark.parametrize("host", [
    "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "evil.example:8020", "127.0.0.1@evil.example",
    "127.0.0.1/evil", "127.1", "2130706433", "0x7f000001", "0.0.0.0", "[::ffff:127.0.0.1]", "[::]", "LOCALHOST.evil",
    "local host", "localhost\\evil", "localhost,evil", "*", "-", "..", "a" * 5000,
])
def test_other_names_are_refused(server: Server, host: str) -> None:
    answer = server.ask("GET", "/health", headers={"host": host})
    assert answer.status in (400, 421)


@pytest.mark.parametrize("headers", [
    {"origin": "https://evil.example"}, {"origin": "null"}, {"origin": ""}, {"origin": "http://127.0.0.1"},
    {"origin": "http://localhost:7860"}, {"origin": "file://"}, {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "CROSS-SITE"},
], ids=str)
def test_other_origins_are_refused(server: Server, headers: dict[str, str]) -> None:
    answer = server.ask("POST", "/v1/audio/speech", BODY, JSON | SIGNED | headers)
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "GET", "HEAD"])
def test_other_methods_do_nothing(server: Server, method: str) -> None:
    answer = server.ask(method, "/v1/audio/speech", headers=SIGNED)
    assert answer.status in (404, 405)


@pytest.mark.parametrize("key", [
    None, "", "Bearer", "Bearer ", "Bearer a-key", f"Bearer {KEY.upper()}", f"Bearer {KEY} {KEY}", f"Basic {KEY}", KEY,
    f"Bearer  {KEY}x", "Bearer \u00e9", "Bearer " + "a" * 8000, f"Bearer {KEY[:-1]}",
])
def test_without_the_key_nothing_is_answered(server: Server, key: str | None) -> None:
    headers = {} if key is None else {"authorization": key.encode("latin-1").decode("latin-1")}
    assert server.ask("POST", "/v1/audio/speech", BODY, JSON | headers).status == 401
    for path in ("/v1/models", "/metrics", "/v1/audio/voices", "/openapi.json"):
        assert server.ask("GET", path, headers=headers).status == 401


@pytest.mark.parametrize("name", [
    "/etc/passwd", "../../etc/passwd", "..", ".", "~/.ssh/id_rsa", "file:///etc/passwd", "http://169.254.169.254/",
    "voices/low", "low.wav", "low\x00", "low\n", "speaker:", "speaker:..", "speaker:/etc", "C:\\windows", "\\\\host\\x",
    "a" * 4000, "%2e%2e", "{}", "$(id)", "low ", "LOW",
])
def test_no_voice_is_a_path(server: Server, name: str) -> None:
    answer = server.speak("a dog", headers=SIGNED, voice=name)
    assert (answer.status, answer.error["code"]) == (400, "voice_not_found")
    assert len(answer.body) < 1000
    assert server.speak("a dog", headers=SIGNED, voice={"id": name}).status == 400


@pytest.mark.parametrize("name", [
    "/etc", "../tiny", "base:../tiny", "base:", "run:..", "export:/etc", "base:tiny/", "base:tiny@1", "BASE:tiny",
    "\x00", "a" * 4000,
])
def test_no_model_is_a_path(server: Server, name: str) -> None:
    answer = server.speak("a dog", headers=SIGNED, model=name)
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("body", [
    b"", b"{", b"[]", b"null", b"0", b'"a"', b"{}", b'{"input": null}', b'{"input": {"a": 1}}', b'{"input": ["a"]}',
    b'{"input": "a", "speed": "NaN"}', b'{"input": "a", "speed": NaN}', b'{"input": "a", "speed": Infinity}',
    b'{"input": "a", "speed": 1e400}', b'{"input": "a", "seed": 1.5}', b'{"input": "a", "seed": 1e30}',
    b'{"input": "a", "seed": -1}', b'{"input": "a", "voice": 1}', b'{"input": "a", "response_format": "../mp3"}',
    b'{"input": "a", "stream_format": "x"}', b'{"input": "\\ud800"}', b'{"input": "\\u0000"}', b'{"input": "\\u202e"}',
    b"[" * 3000, b'{"a":' * 500, b"\xff\xfe\x00", b'{"input": "a" "b"}', b'{"input": "a"}x',
    json.dumps({"input": "a" * 301}).encode(), json.dumps({"input": "\ud55c" * 300}).encode(),
    json.dumps({"input": "a", "language": "../am"}).encode(),
    json.dumps({"input": "a", "language": "x" * 3000}).encode(),
    json.dumps({"input": "a", "instructions": "x" * 3000}).encode(),
])
def test_bodies_that_are_no_request_are_refused_in_one_format(server: Server, body: bytes) -> None:
    answer = server.ask("POST", "/v1/audio/speech", body, JSON | SIGNED)
    assert answer.status == 400
    assert set(answer.error) == {"message", "type", "param", "code"}
    assert "Traceback" not in answer.error["message"]
    assert len(answer.body) < 2000


POST = b"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize("data", [
    POST + b"Content-Length: -1\r\n\r\n", POST + b"Content-Length: 99999999999999999999\r\n\r\n",
    POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", POST + b"Host: evil\r\n\r\n",
    b"GET /health HTTP/1.1\r\n\r\n", b"GET / HTTP/9.9\r\nHost: localhost\r\n\r\n", b"\x16\x03\x01\x02\x00\x01",
    b"\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000 + b"\r\n\r\n",
    b"GET http://169.254.169.254/ HTTP/1.1\r\nHost: 169.254.169.254\r\n\r\n",
    b"CONNECT evil:443 HTTP/1.1\r\nHost: evil\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
], ids=range(12))
def test_malformed_http_gets_no_answer_but_a_refusal(server: Server, data: bytes) -> None:
    answer = send(server, data)
    assert not answer or answer.split(b" ")[1][:1] == b"4", answer[:200]


def test_a_body_without_a_length_is_cut_off_at_the_limit(server: Server) -> None:
    head = (f"POST /v1/audio/speech HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {KEY}\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n").encode()
    answer = send(server, head + b"2710\r\n" + b" " * 10_000 + b"\r\n0\r\n\r\n")
    assert b" 413 " in answer.split(b"\r\n")[0]


def test_a_client_that_sends_half_a_request_holds_nothing(server: Server, tmp_path: Path) -> None:
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    for connection in connections:
        connection.sendall(b"POST /v1/audio/speech HTTP/1.1\r\nHost: loc")
    assert server.speak("a dog", headers=SIGNED).status == 200
    for connection in connections:
        connection.close()


def test_an_error_of_ours_says_its_kind_alone(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from core.serving.served_models import ServedModels

    def fail(*_arguments: object) -> None:
        raise ValueError("a secret of /home/somebody")

    monkeypatch.setattr(ServedModels, "open", fail)
    answer = server.speak("a dog", headers=SIGNED)
    assert answer.status == 500
    assert "secret" not in answer.body.decode()
    assert answer.error["code"] == "internal_error"
