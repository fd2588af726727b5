"""Who may ask what of the speech server, before any route sees a request: names, the key, sizes, and other web pages.

A page of another site can make a browser send requests to this machine. So only listed Host names are answered (against
DNS rebinding), what another origin sends is refused unless it was allowed, and a body must be JSON, which a browser
sends to another site only after asking.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import re
import uuid
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from config import confinement
from config.errors import UserError

KEY_VARIABLE = "LISAN_SERVE_KEY"
LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)\.?(?::[0-9]{1,5})?", re.IGNORECASE)
_OPEN_PATHS = ("/health",)
_LEAST_KEY = 16  # characters
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_CORS_HEADERS = "authorization, content-type, x-request-id"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches a server that listens on `host`."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_key(host: str, key_file: str) -> str:
    """The bearer key; empty for none. `UserError` if it is unusable, or missing although others reach `host`."""
    if key_file:
        try:
            key = confinement.open_path(key_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"The key file {key_file} cannot be read: {error}.", "Write the key into a text file.") \
                from error
        if not key:
            raise UserError(f"The key file {key_file} is empty.", "Write the key into it.")
    else:
        key = os.environ.get(KEY_VARIABLE, "").strip()
    if key and (len(key) < _LEAST_KEY or not key.isascii() or not key.isprintable() or " " in key):
        raise UserError(f"The key has {len(key)} characters or signs that no header can hold; at least {_LEAST_KEY} "
                        "letters, digits or punctuation marks are needed.",
                        "Make one: python -c \"import secrets; print(secrets.token_urlsafe())\".")
    if not key and not is_loopback(host):
        raise UserError(f"Listening on {host} lets others on the network use this machine, and there is no key.",
                        f"Set {KEY_VARIABLE}, or give --key-file.")
    return key


def allowed_names(host: str, host_names: tuple[str, ...]) -> frozenset[str]:
    """The Host names that are answered, in lower case and without a port; `UserError` for one that is no name."""
    names = {*LOOPBACK_NAMES}
    if host not in ("0.0.0.0", "::"):
        names.add(f"[{host}]" if ":" in host else host)
    for name in host_names:
        match = _HOST.fullmatch(name.strip())
        if match is None:
            raise UserError(f"{name!r} is not a name of a server.", "Give one such as speech.example.org.")
        names.add(match[1])
    return frozenset(name.lower() for name in names)


def check_origins(origins: tuple[str, ...]) -> frozenset[str]:
    """Origins that may use the server; `UserError` for one that is no origin."""
    for origin in origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or not parts.netloc or origin != f"{parts.scheme}://{parts.netloc}":
            raise UserError(f"{origin!r} is not an origin of web pages.", "Give one such as https://chat.example.org.")
    return frozenset(origins)


class Refusal(HTTPException):
    """A request that no route sees, or whose body is too long."""

    def __init__(self, status: int, message: str, code: str) -> None:
        super().__init__(status, message)
        self.code = code


def error_body(message: str, code: str, field: str | None = None, kind: str = "invalid_request_error") -> bytes:
    """An error in OpenAI's format."""
    error = {"message": message, "type": kind, "param": field, "code": code}
    return json.dumps({"error": error}, ensure_ascii=False).encode("utf-8", "backslashreplace")


class GuardedServer:
    """An ASGI app behind these checks. Each answer has an `x-request-id`: that of the client, or a new one."""

    def __init__(self, app: ASGIApp, key: str, names: frozenset[str], origins: frozenset[str], body_bytes: int) -> None:
        self._app, self._key, self._names, self._origins = app, key.encode(), names, origins
        self._body_bytes = body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
                return
            await send({"type": "websocket.close", "code": 1008})
            return

        # A client may name its request; a name that could break a log line is replaced.
        headers = Headers(scope=scope)
        given_id = headers.get("x-request-id", "")
        request_id = given_id if _REQUEST_ID.fullmatch(given_id) else uuid.uuid4().hex
        origin = headers.get("origin")
        allowed_origin = origin if origin in self._origins else None
        received = 0

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer = MutableHeaders(scope=message)
                answer["x-request-id"] = request_id
                answer["x-content-type-options"] = "nosniff"
                answer["cache-control"] = "no-store"
                if allowed_origin:
                    answer["access-control-allow-origin"] = allowed_origin
                    answer["vary"] = "Origin"
            await send(message)

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._body_bytes:
                raise Refusal(413, f"The request has more than {self._body_bytes} bytes.", "request_too_large")
            return message

        scope["request_id"] = request_id
        try:
            if scope["method"] == "OPTIONS" and allowed_origin:
                await _answer(send_with_headers, 204, b"", {"access-control-allow-methods": "GET, POST",
                                                            "access-control-allow-headers": _CORS_HEADERS})
                return
            self._check(scope, headers, allowed_origin)
            await self._app(scope, receive_limited, send_with_headers)
        except Refusal as refusal:
            extra_headers = {"www-authenticate": "Bearer"} if refusal.status_code == 401 else {}
            await _answer(send_with_headers, refusal.status_code, error_body(refusal.detail, refusal.code),
                          extra_headers)

    def _check(self, scope: Scope, headers: Headers, allowed_origin: str | None) -> None:
        hosts = headers.getlist("host")
        match = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if match is None or match[1].lower() not in self._names:
            raise Refusal(421, "The server does not answer to this name. Start it with --allow-host NAME.",
                          "unknown_host")
        foreign = headers.get("origin") is not None or headers.get("sec-fetch-site", "none") not in (
            "none", "same-origin")
        if foreign and not allowed_origin:
            raise Refusal(403, "Web pages of other origins may not use the server. Start it with --allow-origin.",
                          "foreign_origin")
        if scope["method"] == "POST":
            kind = headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind != "application/json":
                raise Refusal(415, f"The content type is {kind[:60] or 'missing'}; it must be application/json.",
                              "unsupported_media_type")
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length[:20]) > self._body_bytes:
            raise Refusal(413, f"The request may have at most {self._body_bytes} bytes.", "request_too_large")
        if self._key and scope["path"] not in _OPEN_PATHS:
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not hmac.compare_digest(key.strip().encode(), self._key):
                raise Refusal(401, "The key is missing or wrong. Send `Authorization: Bearer KEY`.", "invalid_api_key")


async def _answer(send: Send, status: int, body: bytes, headers: dict[str, str]) -> None:
    fields = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    if status == 204:
        del fields["content-type"], fields["content-length"]
    await send({"type": "http.response.start", "status": status,
                "headers": [(name.encode(), value.encode()) for name, value in fields.items()]})
    await send({"type": "http.response.body", "body": body})
