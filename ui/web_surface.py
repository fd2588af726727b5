"""The web surface: which requests are answered, to whom, and with which headers. All HTTP policy stands here.

A page of another site can make a person's browser send requests to this one. So the names under which the page answers
are listed (against DNS rebinding), whatever another origin sends is refused (against cross-site requests), and only the
routes that the page itself uses exist. What is promised to whom: docs/security.md.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import json
import logging
import math
import re
import shutil
import socket
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import gradio
from gradio import components
from gradio.blocks import BlockFunction, Blocks
from gradio.routes import App, ORJSONResponse
from gradio.state_holder import SessionState, StateHolder
from starlette.datastructures import Headers, MutableHeaders
from starlette.formparsers import MultiPartException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from config.errors import UserError

_LOG = logging.getLogger("lisan.page")
_ASSETS = Path(gradio.__file__).parent / "templates" / "frontend" / "assets"
_EARLY = b"<script>" + (Path(__file__).parent / "early.js").read_bytes() + b"</script>"
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9_](?:[a-z0-9_.-]*[a-z0-9_])?)\.?(?::([0-9]{1,5}))?", re.IGNORECASE)
_JSON_BYTES, _FORM_BYTES = 8 << 20, 16 << 10  # the largest event is a review of thousands of clips
_FILE_COMPONENTS = (components.File, components.Audio, components.UploadButton)
_SPARE_BYTES = 1 << 30  # left on the disk by an upload without a separate limit
_RELOAD = "Reload the page if the app was updated."
_DEEPEST, _MOST_DIGITS = 24, 22  # a browser writes larger numbers with an exponent
_GONE_S, _PARKED = 3600, 1000
SESSIONS = 100  # open pages; each takes a megabyte of Gradio's
UPLOAD_AGE_S = 86_400

_OPEN = re.compile(r"/|/login|/theme\.css|/favicon\.ico|/manifest\.json|/robots\.txt|/(assets|static|svelte)/.*"
                   r"|/media/font\.woff2|/media/texts/[a-z-]+\.json"
                   r"|/gradio_api/(app_id|login_check|theme\.css|startup-events)", re.DOTALL)
"""Served without the sign-in: the sign-in page, what it is made of, and a random number of each start of the app. By
this number an open page learns that the app is back after a restart, which has forgotten every sign-in."""
_SIGNED_IN = re.compile(r"/logout|/config|/media/.*|/gradio_api/(info|cancel|reset|upload|upload_progress"
                        r"|heartbeat/[^/]+|queue/(join|data)|run/predict|file=.*)", re.DOTALL)
"""The page's other routes. Gradio has more, which answer no one here."""
_EVENTS = ("/gradio_api/run/predict", "/gradio_api/queue/join")

_CONTENT_SECURITY_POLICY = "; ".join((
    "default-src 'self'", "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:", "style-src 'self' 'unsafe-inline'",
    "img-src 'self' data: blob:", "media-src 'self' data: blob:", "font-src 'self' data:",
    "connect-src 'self' data: blob:", "worker-src 'self' blob:", "object-src 'none'",
    "base-uri 'self'", "form-action 'self'",
))
"""Gradio (6.31) writes scripts into the page and makes functions of texts; they load from here and send to here."""


@dataclass(frozen=True)
class Access:
    """The names under which the page answers."""

    names: frozenset[str] = frozenset()  # given by --allow-host, or of this machine in a known studio
    domains: tuple[str, ...] = ()  # a studio's proxy, which many tenants share
    any_address: bool = False  # an IP address as the host: no name, so none that another site could point here
    frames: tuple[str, ...] = ()  # origins that may show the page in a frame
    origins: frozenset[tuple[str, int | None]] = frozenset()  # names with the port that the browser shows

    def answers_to(self, host: str) -> bool:
        """Whether a request for `host` (without its port, in lower case) is for this page."""
        address = _address(host)
        return (host == "localhost" or host.endswith(".localhost") or host in self.names
                or any(host.endswith(f".{domain}") for domain in self.domains)
                or (address is not None and (address.is_loopback or self.any_address)))


@dataclass(frozen=True)
class Refusal:
    """An answer in place of the page's."""

    status: int
    message: str

    def response(self, path: str) -> Response:
        if path in _EVENTS:  # the page shows the sentence; of an answer that is not JSON it would show a parser's error
            return JSONResponse({"error": self.message}, self.status)
        return PlainTextResponse(f"{self.message}\n", status_code=self.status)


def access(bound: str, port: int, allowed: Sequence[str] = (), share: bool = False,
           environment: Mapping[str, str] | None = None, root_path: str = "") -> Access:
    """The names that are answered when the page listens on `bound`; `UserError` for one that cannot be a name.

    A `root_path` that is a whole address gives a name too, and the origin of the page as the browser shows it.

    The proxies' names: the environment of a Lightning studio holds its host, to which the port is put in front;
    RunPod's is made of pod and port; Colab's `proxyPort` gives `*.colab.googleusercontent.com` or `*.prod.colab.dev`
    (googlecolab/colabtools, devnen/Chatterbox-TTS-Server #141); a Space's and a codespace's are in the environment.
    """
    env = environment or {}
    outer = root_path.partition("://")[2].partition("/")[0]
    origins = {_outer(outer, root_path)} if outer else set()
    names = {_name(host) for host in allowed}
    domains: list[str] = []
    frames: list[str] = []

    # Each known host of notebooks shows the page under an address of its own.
    studio = env.get("LIGHTNING_CLOUDSPACE_HOST")
    if studio:
        names.add(f"{port}-{studio.lower()}")
    pod = env.get("RUNPOD_POD_ID")
    if pod:
        names.add(f"{pod.lower()}-{port}.proxy.runpod.net")
    space = env.get("SPACE_HOST")
    if space:
        names.add(space.lower())
        frames.append("https://huggingface.co")
    codespace, domain = env.get("CODESPACE_NAME"), env.get("GITHUB_CODESPACES_PORT_FORWARDING_DOMAIN")
    if codespace and domain:
        names.add(f"{codespace}-{port}.{domain}".lower())
    if "COLAB_RELEASE_TAG" in env:
        domains += ["colab.googleusercontent.com", "prod.colab.dev"]
    if share:
        domains.append("gradio.live")

    # A page that listens beyond this machine is reached by its address too.
    address = _address(bound.lower())
    beyond = bound != "localhost" and not (address and address.is_loopback)
    if beyond:
        names |= {bound.lower(), socket.gethostname().lower()}

    origins |= {(name, None) for name in names}
    return Access(frozenset(name for name, _port in origins), tuple(domains), beyond, tuple(frames), frozenset(origins))


def _name(host: str) -> str:
    host_and_port = _split(host)
    if host_and_port is None or host_and_port[1] is not None:
        raise UserError(f"--allow-host {host!r} is not a host name.",
                        "Give the name alone, such as --allow-host lisan.example.org; no scheme, port or path.")
    return host_and_port[0]


def _outer(host: str, root_path: str) -> tuple[str, int | None]:
    host_and_port = _split(host)
    if host_and_port is None:
        raise UserError(f"The host of --root-path {root_path!r} is not a host name.",
                        "Give the address that the browser shows, such as --root-path http://lisan.example.org:8080/lisan.")
    return host_and_port


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]"))
    return None


def _split(host: str) -> tuple[str, int | None] | None:
    """Name and port of a Host header; None where it is none."""
    match = _HOST.fullmatch(host.strip())
    return (match[1].lower(), int(match[2]) if match[2] else None) if match else None


def refusal(access: Access, method: str, path: str, headers: Headers) -> Refusal | None:
    """Why a request is not answered: its host, its route, or the site that sent it. None: it is answered.

    A request without `Sec-Fetch-Site` and `Origin` comes from a program, which no other site can steer.
    """

    hosts = headers.getlist("host")
    # A proxy may replace the host by its own and send the outer one beside it.
    named = [*hosts, *(text.split(",")[0] for text in headers.getlist("x-forwarded-host"))]
    places = [_split(host) for host in named]
    if len(hosts) != 1 or None in places:
        return Refusal(400, "This request does not say for which host it is.")

    for place in places:
        if place and not access.answers_to(place[0]):
            return Refusal(403, f"Lisan does not answer to the name {place[0]}. "
                                f"If it is yours, start the app with --allow-host {place[0]}")

    if method not in ("GET", "HEAD", "POST"):
        return Refusal(405, "Only GET, HEAD and POST are answered.")
    if not (_OPEN.fullmatch(path) or _SIGNED_IN.fullmatch(path)):
        return Refusal(404, "There is nothing here.")

    # A browser tells where a request comes from; each kind of request allows other places.
    is_own_page = _is_own(access, headers.get("origin"), places)
    site = headers.get("sec-fetch-site")
    if method == "POST":
        fine = site in ("same-origin", "none") if site else is_own_page
    elif path == "/logout":  # changes something and is a link all the same
        fine = site in ("same-origin", "none") if site else (
            "referer" in headers and _is_own(access, headers["referer"], places))
    elif site in (None, "same-origin", "none"):
        fine = is_own_page or site is not None
    else:  # a link on another site may open the page; nothing of the page may be loaded into another
        shown_in = ("document", "iframe") if access.frames else ("document",)
        fine = path == "/" and headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") in shown_in

    if fine:
        return None
    origin = headers.get("origin", "")
    outer = _split(origin.partition("://")[2])
    hint = (" If it is your own proxy, start the app with the address that the browser shows, such as "
            f"--root-path {origin}" if method == "POST" and site is None and outer else "")
    return Refusal(403, f"Lisan answers its own page only. This request came from another site.{hint}")


def _is_own(access: Access, origin: str | None, places: Sequence[tuple[str, int | None] | None]) -> bool:
    """Whether `origin` is the page's own: the host that was asked for, or a name of this machine behind a proxy.

    Of a name without a port only the default port is the page's own: others may serve other pages.
    """
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
        # An IPv6 address is compared in brackets, as in a Host header.
        place = (f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname or "", parts.port)
    except ValueError:
        return False
    if parts.scheme not in ("http", "https"):
        return False
    default = 443 if parts.scheme == "https" else 80
    own_places = {(name, port or default) for name, port in filter(None, places)}
    return (place[0], place[1] or default) in own_places or place in access.origins


def event_fault(blocks: Blocks, uploads: Path, body: bytes) -> str | None:
    """What is wrong with the body of an event, in a sentence; None for one that the page could have sent.

    The page sends each widget's value as text, number, switch, choices or an uploaded file. Everything behind this
    check may rely on these types; whether a name is known, and whether a number is too large for its field, is for the
    functions to say: a refused event gets no answer, and each event of a tab sends all of its fields.
    """
    try:
        event = json.loads(body, parse_constant=_no_number, parse_int=_integer, parse_float=_finite)
    except RecursionError:
        return "The event's values are nested too deeply."
    except ValueError as error:
        return f"The event is not JSON that can be read: {error}."

    if not isinstance(event, dict):
        return "The event is not an object."
    fault = _text_fault(event)
    if fault:
        return fault

    # The event must be one of this page, with a value for each of its fields.
    number, values, session = event.get("fn_index"), event.get("data"), event.get("session_hash")
    function = blocks.fns.get(number) if isinstance(number, int) and not isinstance(number, bool) else None
    if function is None or function.fn is None:
        return f"The page has no event {str(number)[:20]}. {_RELOAD}"
    if not isinstance(session, str) or not re.fullmatch(r"[A-Za-z0-9]{1,64}", session):
        return "The event does not say of which session it is."
    if not isinstance(values, list) or len(values) != len(function.inputs):
        return f"The event takes {len(function.inputs)} values. {_RELOAD}"
    if event.get("batched") or event.get("simple_format"):
        return "The page sends no such events."
    if _takes_selection(function) and not _is_selection(event.get("event_data")):
        return "The event does not say what was selected."

    # Every value must have a type that its widget sends.
    for widget, value in zip(function.inputs, values, strict=True):
        if not _fits(widget, value, uploads):
            label = getattr(widget, "label", None) or type(widget).__name__
            if isinstance(widget, _FILE_COMPONENTS):
                return f"{label}: this file is not on the server (uploads are deleted after a day). Upload it again."
            return f"{label}: {str(value)[:40]!r} is no value of this field."
    return None


def _no_number(text: str) -> float:
    raise ValueError(f"{text} is not a number")


def _integer(text: str) -> int:
    if len(text) > _MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits is too large")
    return int(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _text_fault(value: object, depth: int = 0) -> str | None:
    """A text that no widget can hold, or too many levels."""
    if depth > _DEEPEST:
        return "The event's values are nested too deeply."
    if isinstance(value, str) and ("\0" in value or any("\ud800" <= character <= "\udfff" for character in value)):
        return "The event holds a character that is no text."
    inner = [*value, *value.values()] if isinstance(value, dict) else value if isinstance(value, list) else ()
    for part in inner:
        fault = _text_fault(part, depth + 1)
        if fault:
            return fault
    return None


def _takes_selection(function: BlockFunction) -> bool:
    return any(kind == "select" for _widget, kind in function.targets)


def _is_selection(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("value"), str | int | float) and "index" in value


def _fits(widget: object, value: object, uploads: Path) -> bool:
    """Whether `value` has a type that the browser sends for `widget`."""
    if value is None:
        return True
    if isinstance(widget, components.State):
        return False  # is kept here, not sent
    if isinstance(widget, _FILE_COMPONENTS):
        files = value if isinstance(value, list) else [value]
        return len(files) <= 1000 and all(_is_upload(file, uploads) for file in files)

    if isinstance(widget, components.Checkbox):
        return isinstance(value, bool)
    if isinstance(widget, components.Number):
        return isinstance(value, int | float | str) and not isinstance(value, bool)
    if isinstance(widget, components.CheckboxGroup) or getattr(widget, "multiselect", None):
        return isinstance(value, list) and all(isinstance(choice, str) for choice in value)
    if isinstance(widget, components.Dropdown | components.Radio) and not isinstance(value, str):
        return any(type(value) is type(offered) and value == offered for _title, offered in widget.choices)
    if isinstance(widget, components.Textbox):  # a preset fills in numbers, which come back as such; Gradio makes texts
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    return isinstance(value, str)


def _is_upload(file: object, uploads: Path) -> bool:
    """Whether `file` is the description of a file that was uploaded here."""
    if not isinstance(file, dict) or not isinstance(file.get("path"), str):
        return False
    with suppress(OSError, ValueError):
        path = Path(file["path"]).resolve()
        return path.is_relative_to(uploads.resolve()) and path.is_file()
    return False


@dataclass
class SignInDelay:
    """After five failures of an address the answer to a wrong password waits 1, 2, 4 and up to 30 s.

    A right password is let in at once, so that a stranger behind the same proxy keeps nobody out. What the answers do
    not limit, the checks do: they take turns, at most twenty in a second of each address with failures.
    """

    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic
    failures: OrderedDict[str, tuple[int, float]] = field(default_factory=OrderedDict)
    turns: dict[str, asyncio.Lock] = field(default_factory=dict)
    waiting: dict[str, int] = field(default_factory=dict)  # sign-ins by address that wait for a turn or an answer

    def count(self, address: str) -> int:
        """Failures of `address`; a quarter of an hour without one forgets them."""
        count, last = self.failures.get(address, (0, 0.0))
        return count if self.clock() - last <= 900 else 0

    async def attempt(self, address: str, run: Callable[[], Awaitable[int]]) -> Refusal | None:
        """Call `run`, which gives the status of the answer, and return when the answer may be sent.

        A wrong one is refused if as many wait as `_MOST_WAITING`; for more than twice as many there is no turn.
        """
        waiting_count = self.waiting.get(address, 0)
        if waiting_count >= 2 * _MOST_WAITING:
            return Refusal(429, "Too many sign-ins at once. Wait a minute.")
        self.waiting[address] = waiting_count + 1

        try:
            # The attempts of an address take turns, so that many at once gain nothing.
            async with self.turns.setdefault(address, asyncio.Lock()):
                if self.count(address) >= 5:
                    await self.sleep(_CHECK_S)
                if await run() == 200:
                    self.failures.pop(address, None)
                    return None
                # The newest failure moves to the end, so that the oldest is forgotten first.
                count = self.count(address)
                self.failures.pop(address, None)
                self.failures[address] = (count + 1, self.clock())
                if len(self.failures) > 10_000:
                    self.failures.popitem(last=False)

            if waiting_count >= _MOST_WAITING:
                return Refusal(429, "Too many sign-ins at once. Wait a minute.")
            if count >= 5:
                await self.sleep(min(30.0, 2.0 ** min(count - 5, 5)))
        finally:
            self.waiting[address] -= 1
            if not self.waiting[address]:
                del self.waiting[address]
                self.turns.pop(address, None)
        return None


_CHECK_S = 0.05
_MOST_WAITING = 200


class Sessions(StateHolder):
    """Sessions whose page is closed keep the values of their states for an hour, and nothing else.

    Gradio keeps a copy of the whole page's configuration for each (6.31), for links into its middle that we do not
    have. A page that comes back within the hour, after a laptop slept, goes on where it was.
    """

    def __init__(self) -> None:
        super().__init__()
        self.parked: OrderedDict[str, tuple[float, dict[int, Any]]] = OrderedDict()

    def __getitem__(self, session_id: str) -> SessionState:
        returned = session_id not in self.session_data
        state = super().__getitem__(session_id)
        if returned and session_id in self.parked:
            for key, value in self.parked.pop(session_id)[1].items():
                state[key] = value
        elif state.is_closed:
            state.is_closed = False
        return state

    def delete_all_expired_state(self) -> None:
        """Gradio calls this every second."""
        time_now = time.monotonic()
        # A session without a sign of life is parked before it is forgotten.
        quiet = datetime.datetime.now() - datetime.timedelta(seconds=_GONE_S)
        with self.lock:
            for session_id, state in list(self.session_data.items()):
                if state.is_closed or self.time_last_used.get(session_id, quiet) <= quiet:
                    self.parked[session_id] = (time_now, dict(state.state_data))
                    self.session_data.pop(session_id, None)
                    self.time_last_used.pop(session_id, None)
            for session_id, (since, _values) in list(self.parked.items()):
                if time_now - since > _GONE_S or len(self.parked) > _PARKED:
                    del self.parked[session_id]


class GuardedApp(App):
    """Gradio's application behind the checks of this module: everything that is sent to it passes `__call__`."""

    def __init__(self, access: Access, routes: Sequence[BaseRoute], uploads: Path,
                 max_upload: int | None = None) -> None:
        super().__init__(routes=[*routes, *_faster_assets()], openapi_url=None, default_response_class=ORJSONResponse)
        self.access, self.uploads, self.max_upload = access, uploads, max_upload
        self.state_holder = Sessions()
        self.sign_in_delay = SignInDelay()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await super().__call__(scope, receive, send)
        if scope["type"] != "http":  # the page opens no web socket
            return await send({"type": "websocket.close", "code": 1008})

        headers = Headers(scope=scope)
        # Some proxies strip the prefix, others do not.
        prefix = urlsplit(self.root_path or scope.get("root_path", "")).path.rstrip("/")
        path = scope["path"]
        path = path.removeprefix(prefix) if path == prefix or path.startswith(f"{prefix}/") else path
        path = path.removesuffix("/") or "/"

        send = _with_headers(_with_early_script(send) if path == "/" else send, self.access)
        refused = refusal(self.access, scope["method"], path, headers) or self._locked(path, headers)
        if refused is None and path == "/login" and scope["method"] == "POST":
            refused = await self._sign_in(scope, receive, send)
            if refused is None:
                return None
        elif refused is None and scope["method"] == "POST":
            receive_or_refusal = await self._bounded(path, headers, receive)
            if not isinstance(receive_or_refusal, Refusal):
                return await super().__call__(_plain(scope), receive_or_refusal, send)
            refused = receive_or_refusal

        if refused is not None:
            return await refused.response(path)(scope, receive, send)
        return await super().__call__(_plain(scope), receive, send)

    def _locked(self, path: str, headers: Headers) -> Refusal | None:
        """What only those who signed in may have, and files that were not uploaded."""
        if self.auth is not None and not _OPEN.fullmatch(path) and not self._signed_in(headers):
            return Refusal(401, "Sign in first.")
        if path.startswith("/gradio_api/file="):
            file_path = unquote(path.removeprefix("/gradio_api/file="))
            if not _is_upload({"path": file_path}, self.uploads):
                return Refusal(404, "There is nothing here.")
        return None

    def _signed_in(self, headers: Headers) -> bool:
        cookies: SimpleCookie = SimpleCookie()
        for line in headers.getlist("cookie"):
            with suppress(CookieError):
                cookies.load(line)
        names = (f"access-token-{self.cookie_id}", f"access-token-unsecure-{self.cookie_id}")
        return any(name in cookies and cookies[name].value in self.tokens for name in names)

    async def _sign_in(self, scope: Scope, receive: Receive, send: Send) -> Refusal | None:
        bounded = await _buffered(receive, _FORM_BYTES)
        if isinstance(bounded, Refusal):
            return bounded

        answer: list[Message] = []

        async def run() -> int:
            async def keep(message: Message) -> None:
                answer.append(message)

            await super(GuardedApp, self).__call__(_plain(scope), _replay(bounded, receive), keep)
            return next((message["status"] for message in answer if "status" in message), 500)

        refused = await self.sign_in_delay.attempt(_client(scope), run)
        if refused:
            return refused
        for message in answer:
            await send(message)
        return None

    async def _bounded(self, path: str, headers: Headers, receive: Receive) -> Receive | Refusal:
        """`receive` for the body of a POST: checked where it is an event, cut off where an upload is too large."""
        if path == "/gradio_api/upload":
            limit, limit_reason = self.max_upload, "allowed (--max-upload)"
            if limit is None:
                self.uploads.mkdir(parents=True, exist_ok=True)
                limit = max(0, shutil.disk_usage(self.uploads).free - _SPARE_BYTES)
                limit_reason = f"free on the disk, less {_SPARE_BYTES / 1e9:.1f} GB that stay free; delete files there"
            text = headers.get("content-length", "0")

            # The declared length is checked first; `_counted` checks what is really sent.
            if not text.isdecimal() or int(text) > limit:
                return Refusal(413, f"The upload of {int(text) / 1e6 if text.isdecimal() else 0:,.1f} MB exceeds the "
                                    f"{limit / 1e6:,.1f} MB that are {limit_reason}.")
            return _counted(receive, limit)
        # The body is checked as a whole, then handed on as if it had just arrived.
        body = await _buffered(receive, _JSON_BYTES)
        if isinstance(body, Refusal):
            return body
        if path in _EVENTS and self.blocks is not None:
            fault = event_fault(self.blocks, self.uploads, body)
            if fault is not None:
                return Refusal(422, fault)
        return _replay(body, receive)


def _plain(scope: Scope) -> Scope:
    """`scope` without a header by which a request could name another server as this one."""
    return {**scope, "headers": [pair for pair in scope["headers"] if pair[0] != b"x-gradio-server"]}


def _client(scope: Scope) -> str:
    """The address that sign-ins are counted for: that of the connection, whatever a header says.

    Visitors behind one proxy share a count, which delays wrong passwords only.
    """
    peer = (scope.get("client") or ("unknown", 0))[0]
    address = _address(peer)
    if isinstance(address, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(peer[:64])


async def _buffered(receive: Receive, limit: int) -> bytes | Refusal:
    """The whole body; refused where it is longer than `limit` bytes."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return Refusal(400, "The request ended before its body did.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limit:
            return Refusal(413, f"The request is longer than {limit} bytes.")
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes, receive: Receive) -> Receive:
    """`receive` with `body` in front of it."""
    parts = [body]

    async def replayed() -> Message:
        return {"type": "http.request", "body": parts.pop(), "more_body": False} if parts else await receive()

    return replayed


def _counted(receive: Receive, limit: int) -> Receive:
    """`receive` that fails as a form does, whose parser then deletes what it wrote."""
    size = 0

    async def counted() -> Message:
        nonlocal size
        message = await receive()
        size += len(message.get("body", b""))
        if size > limit:
            raise MultiPartException(f"The upload exceeds the maximum allowed size of {limit} bytes.")
        if message["type"] == "http.disconnect":
            raise MultiPartException("The upload was cut off.")
        return message

    return counted


def _with_headers(send: Send, access: Access) -> Send:
    """`send` with the headers of every answer; what Gradio allows other origins is taken out."""
    ancestors = " ".join(("'self'", *access.frames))

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [
                (name, value.replace(b"SameSite=none", b"SameSite=lax").replace(b"samesite=none", b"samesite=lax")
                 if name.lower() == b"set-cookie" and not access.frames else value)
                for name, value in message.get("headers", ()) if not name.lower().startswith(b"access-control-")]
            headers = MutableHeaders(scope=message)
            route_policy = headers.get("Content-Security-Policy", "")  # A route may allow less.
            policy = f"{_CONTENT_SECURITY_POLICY}; frame-ancestors {ancestors}"
            headers["Content-Security-Policy"] = f"{policy}; {route_policy}" if route_policy else policy
            if not access.frames:
                headers["X-Frame-Options"] = "SAMEORIGIN"
            headers["X-Content-Type-Options"] = "nosniff"
            headers["Referrer-Policy"] = "same-origin"
            headers["Cross-Origin-Resource-Policy"] = "same-origin"
            headers["Cross-Origin-Opener-Policy"] = "same-origin"
        await send(message)

    return sending


def _with_early_script(send: Send) -> Send:
    """`send` with `early.js` at the top of the page: Gradio adds a page's own scripts only when its own have run."""
    held: list[Message] = []

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            held.append(message)
            return
        if held:
            begin = held.pop()
            headers = MutableHeaders(scope=begin)
            if b"<head>" in message.get("body", b"") and "content-encoding" not in headers:
                message = {**message, "body": message["body"].replace(b"<head>", b"<head>" + _EARLY, 1)}
                if "content-length" in headers:
                    headers["content-length"] = str(int(headers["content-length"]) + len(_EARLY))
            await send(begin)
        await send(message)

    return sending


_SEARCH = re.compile(
    r"function (?P<find>[\w$]+)\((?P<node>\w),(?P<id>\w)\)\{if\((?P=node)\.id===(?P=id)\)return (?P=node);"
    r"if\((?P=node)\.children\)for\(let (?P<child>\w) of (?P=node)\.children\)"
    r"\{let (?P=node)=(?P=find)\((?P=child),(?P=id)\);if\((?P=node)\)return (?P=node)\}return null\}")
_EVENTS_OF_NODE = ("let n=t.filter(t=>t.targets.find(([t])=>t===e.id))"
                   ".map(t=>{let n=t.targets.find(([t])=>t===e.id);return n?n[1]:null}).filter(Boolean);"
                   "return e.props.shared_props.attached_events=n,e")
"""Of Gradio 6.31's `core-*.js`: the search of the page's tree for a widget, and of all events for those of a widget."""


def faster_core(script: str) -> str | None:
    """Gradio's `core-*.js` with what `core.js` replaces in it; None for a script without the search.

    The search visits all nodes before the one that it is for. Each event calls it about three times for each of the
    page's 200 inputs: half of what the page's scripts took. The replacement remembers where a widget was found.
    """
    match = _SEARCH.search(script)
    if not match or _EVENTS_OF_NODE not in script:
        return None
    faster = (Path(__file__).parent / "core.js").read_text("utf-8").replace("findNode", match["find"])
    script = f"{script[:match.start()]}{faster}{script[match.end():]}"
    return script.replace(_EVENTS_OF_NODE, "return e.props.shared_props.attached_events=eventsOfNode(e.id,t),e")


def _faster_assets() -> list[BaseRoute]:
    """Routes that go before Gradio's; none where its scripts are other ones, which are then served as they are."""

    def route(path: Path, script: str) -> BaseRoute:
        async def answer(_request: Request) -> Response:
            return Response(script, media_type="text/javascript", headers={"Cache-Control": "private, max-age=3600"})

        return Route(f"/assets/{path.name}", answer)

    scripts = {path: faster_core(path.read_text("utf-8")) for path in _ASSETS.glob("core-*.js")}
    routes = [route(path, script) for path, script in scripts.items() if script is not None]
    if not routes:
        _LOG.warning("The page needs more of the browser's time: Gradio %s has no search that can be replaced.",
                     gradio.__version__)
    return routes


def remove_old_uploads(folder: Path, age_s: float = UPLOAD_AGE_S) -> None:
    """Delete what was uploaded longer than `age_s` ago, also by an app that was killed. Links are not followed."""
    time_now = time.time()
    for path in sorted(folder.rglob("*"), reverse=True) if folder.is_dir() else ():
        with suppress(OSError):
            if time_now - path.lstat().st_mtime > age_s:
                path.rmdir() if path.is_dir() and not path.is_symlink() else path.unlink()
