"""Requests that the page does not send: foreign hosts and sites, routes of Gradio's, values that were never offered."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from gradio import components
from starlette.datastructures import Headers
from starlette.testclient import TestClient

import app
from config.errors import UserError
from core.workspace import Workspace
from tests.hostile.served_page import HOST, OWN, SESSION, ServedPage, serve
from ui import media, web_surface
from ui.web_surface import access, refusal

LOOPBACK = access("127.0.0.1", 7860)
NETWORK = access("0.0.0.0", 7860, ["lisan.example.org"])
EVENT = "/gradio_api/run/predict"
NAVIGATION = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}

HOSTS = [  # access, the Host header, whether it is answered
    (LOOPBACK, "127.0.0.1:7860", True), (LOOPBACK, "localhost:7860", True), (LOOPBACK, "LOCALHOST", True),
    (LOOPBACK, "[::1]:7860", True), (LOOPBACK, "127.9.9.9:1", True), (LOOPBACK, "localhost.:7860", True),
    (LOOPBACK, "evil.example", False), (LOOPBACK, "evil.example:7860", False), (LOOPBACK, "0.0.0.0:7860", False),
    (LOOPBACK, "127.0.0.1.evil.example", False), (LOOPBACK, "localhost.evil.example", False),
    (LOOPBACK, "192.168.1.5:7860", False), (LOOPBACK, "", False), (LOOPBACK, "a b", False),
    (LOOPBACK, "localhost:7860@evil.example", False), (LOOPBACK, "evil.example#localhost", False),
    (LOOPBACK, "localhost:99999999", False), (LOOPBACK, "evil.example\\.localhost", False),
    (NETWORK, "192.168.1.5:7860", True), (NETWORK, "lisan.example.org", True), (NETWORK, "LISAN.example.org:80", True),
    (NETWORK, "x.lisan.example.org", False), (NETWORK, "evil.example", False), (NETWORK, "[fe80::1]:7860", True),
    (access("192.168.1.5", 7860), "192.168.1.5:7860", True), (access("192.168.1.5", 7860), "evil.example", False),
]
LIGHTNING = access("0.0.0.0", 7860, environment={"LIGHTNING_CLOUDSPACE_HOST": "01hx.cloudspaces.litng.ai"})
RUNPOD = access("0.0.0.0", 7860, environment={"RUNPOD_POD_ID": "t68d6"})
COLAB = access("127.0.0.1", 7860, environment={"COLAB_RELEASE_TAG": "release"})
SPACE = access("0.0.0.0", 7860, environment={"SPACE_HOST": "me-lisan.hf.space"})
SHARED = access("127.0.0.1", 7860, share=True)
ROOTED = access("127.0.0.1", 7860, root_path="http://outer.example:8080/lisan")
STUDIOS = [
    (LIGHTNING, "7860-01hx.cloudspaces.litng.ai", True), (LIGHTNING, "7860-01hy.cloudspaces.litng.ai", False),
    (LIGHTNING, "8000-01hx.cloudspaces.litng.ai", False), (RUNPOD, "t68d6-7860.proxy.runpod.net", True),
    (RUNPOD, "t68d7-7860.proxy.runpod.net", False), (COLAB, "x-colab.colab.googleusercontent.com", True),
    (COLAB, "7860-m-s-x.us-east1-0.prod.colab.dev", True), (COLAB, "evil.googleusercontent.com", False),
    (SPACE, "me-lisan.hf.space", True), (SPACE, "you-lisan.hf.space", False), (SHARED, "abc.gradio.live", True),
    (LOOPBACK, "abc.gradio.live", False), (LOOPBACK, "7860-01hx.cloudspaces.litng.ai", False),
]
OUTER = "7860-01hx.cloudspaces.litng.ai"
SITES = [  # access, method, path, headers beside the host, whether it is answered
    (LOOPBACK, "POST", EVENT, {}, True),  # a program, not a browser
    (LOOPBACK, "POST", EVENT, {"origin": "http://127.0.0.1:7860"}, True),
    (LOOPBACK, "POST", EVENT, {"origin": "http://127.0.0.1:7860", "sec-fetch-site": "same-origin"}, True),
    (LOOPBACK, "POST", EVENT, {"origin": "http://evil.example"}, False),
    (LOOPBACK, "POST", EVENT, {"origin": "http://127.0.0.1:8888"}, False),
    (LOOPBACK, "POST", EVENT, {"origin": "http://localhost:7860"}, False),
    (LOOPBACK, "POST", EVENT, {"origin": "null"}, False), (LOOPBACK, "POST", EVENT, {"origin": ""}, False),
    (LOOPBACK, "POST", EVENT, {"origin": "file://"}, False), (LOOPBACK, "POST", EVENT, {"origin": "http://["}, False),
    (LOOPBACK, "POST", EVENT, {"origin": "ftp://127.0.0.1:7860"}, False),
    (LOOPBACK, "POST", EVENT, {"origin": "http://127.0.0.1:7860.evil.example"}, False),
    (LOOPBACK, "POST", EVENT, {"origin": "http://127.0.0.1:7860", "sec-fetch-site": "cross-site"}, False),
    (LOOPBACK, "POST", EVENT, {"origin": "http://127.0.0.1:8888", "sec-fetch-site": "same-site"}, False),
    (LOOPBACK, "POST", "/gradio_api/upload", {"origin": "http://evil.example"}, False),
    (LOOPBACK, "POST", "/gradio_api/upload", {"sec-fetch-site": "cross-site"}, False),
    (LOOPBACK, "POST", "/login", {"sec-fetch-site": "cross-site"}, False),
    (LOOPBACK, "POST", "/", NAVIGATION, False), (LOOPBACK, "POST", "/gradio_api/cancel", {"origin": "null"}, False),
    (LOOPBACK, "GET", "/", NAVIGATION, True), (LOOPBACK, "GET", "/", {}, True),
    (LOOPBACK, "GET", "/", {**NAVIGATION, "sec-fetch-dest": "iframe"}, False),
    (LOOPBACK, "GET", "/", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, False),
    (SPACE, "GET", "/", {**NAVIGATION, "sec-fetch-dest": "iframe"}, True),
    (LOOPBACK, "GET", "/config", NAVIGATION, False),
    (LOOPBACK, "GET", "/config", {"origin": "http://evil.example"}, False),
    (LOOPBACK, "GET", "/config", {"sec-fetch-site": "same-site"}, False), (LOOPBACK, "GET", "/config", {}, True),
    (LOOPBACK, "GET", "/media/runs/a/audio/b.wav", {"sec-fetch-site": "cross-site", "sec-fetch-dest": "audio"}, False),
    (LOOPBACK, "GET", "/gradio_api/queue/data", {"origin": "http://127.0.0.1:8888"}, False),
    (LOOPBACK, "GET", "/logout", {}, False), (LOOPBACK, "GET", "/logout", NAVIGATION, False),
    (LOOPBACK, "GET", "/logout", {"referer": "http://evil.example/x"}, False),
    (LOOPBACK, "GET", "/logout", {"referer": "http://127.0.0.1:7860/?tab=jobs"}, True),
    (LOOPBACK, "GET", "/logout", {"sec-fetch-site": "same-origin"}, True),
    (LOOPBACK, "OPTIONS", EVENT, {"origin": "http://evil.example", "access-control-request-method": "POST"}, False),
    (LOOPBACK, "PUT", EVENT, {}, False), (LOOPBACK, "DELETE", "/", {}, False), (LOOPBACK, "TRACE", "/", {}, False),
    # a proxy that keeps the outer host beside its own, one that hides it, and one whose name was given
    (LIGHTNING, "POST", EVENT, {"x-forwarded-host": OUTER, "origin": f"https://{OUTER}"}, True),
    (LIGHTNING, "POST", EVENT, {"x-forwarded-host": OUTER, "origin": "https://8000-01hx.cloudspaces.litng.ai"}, False),
    (LIGHTNING, "POST", EVENT, {"origin": f"https://{OUTER}"}, True),
    (LIGHTNING, "POST", EVENT, {"origin": f"https://{OUTER}:8443"}, False),
    (ROOTED, "POST", EVENT, {"origin": "http://outer.example:8080"}, True),
    (ROOTED, "POST", EVENT, {"origin": "http://outer.example:8081"}, False),
    (ROOTED, "POST", EVENT, {"origin": "http://outer.example"}, False),
    (ROOTED, "POST", EVENT, {"origin": "http://evil.example:8080"}, False),
    (ROOTED, "GET", "/", {"x-forwarded-host": "outer.example:8080"}, True),
    (COLAB, "POST", EVENT, {"origin": "https://x.colab.googleusercontent.com"}, False),
    (COLAB, "POST", EVENT, {"origin": "https://x.colab.googleusercontent.com", "sec-fetch-site": "same-origin"}, True),
    (COLAB, "POST", EVENT, {"origin": "https://y.colab.googleusercontent.com", "sec-fetch-site": "same-site"}, False),
    (LOOPBACK, "GET", "/", {"x-forwarded-host": "evil.example"}, False),
    (LOOPBACK, "GET", "/", {"x-forwarded-host": "a/../b"}, False),
    (LOOPBACK, "GET", "/", {"x-forwarded-host": "localhost:7860, evil.example"}, True),
]
NO_ROUTES = [
    "/gradio_api/call/check", "/gradio_api/call/v2/check", "/gradio_api/call/check/0", "/gradio_api/api/predict",
    "/gradio_api/run/check", "/gradio_api/proxy=http://127.0.0.1:22/", "/gradio_api/file/etc/passwd", "/openapi.json",
    "/gradio_api/openapi.json", "/docs", "/redoc", "/monitoring", "/monitoring/summary", "/gradio_api/dev/reload",
    "/gradio_api/deep_link", "/gradio_api/vibe-edit", "/gradio_api/vibe-code", "/gradio_api/token", "/gradio_api/user",
    "/gradio_api/runs", "/gradio_api/process_recording", "/gradio_api/component_server", "/gradio_api/mcp",
    "/gradio_api/stream/a/b/1/playlist.m3u8", "/gradio_api/custom_component/a/client/b/c", "/pwa_icon", "/.env",
    "/gradio_api/run-history/records", "/proxy=http://x.hf.space/",
]


@pytest.mark.parametrize(("given", "host", "answered"), [*HOSTS, *STUDIOS])
def test_only_the_names_of_the_page_are_answered(given: web_surface.Access, host: str, answered: bool) -> None:
    for path in ("/", "/config"):
        refused = refusal(given, "GET", path, Headers({"host": host}))
        assert (refused is None) == answered
        assert refused is None or refused.status in (400, 403)


@pytest.mark.parametrize(("given", "method", "path", "headers", "answered"), SITES)
def test_no_other_site_reads_or_changes_anything(given: web_surface.Access, method: str, path: str,
                                                 headers: Mapping[str, str], answered: bool) -> None:
    assert (refusal(given, method, path, Headers({"host": "localhost:7860" if given is not LOOPBACK else HOST,
                                                  **headers})) is None) == answered


def test_two_hosts_in_one_request_are_refused() -> None:
    raw = [(b"host", HOST.encode()), (b"host", b"evil.example")]
    refused = refusal(LOOPBACK, "GET", "/", Headers(raw=raw))
    assert refused is not None
    assert refused.status == 400


@pytest.mark.parametrize("name", ["http://x", "x:80", "x/y", "", "a b", "[", "*"])
def test_a_host_to_allow_is_a_name(name: str) -> None:
    with pytest.raises(UserError, match="is not a host name"):
        access("127.0.0.1", 7860, [name])
    with pytest.raises(UserError, match="is not a host name"):
        access("127.0.0.1", 7860, root_path="https://[/lisan" if name == "[" else "https://me:secret@x/lisan")


def test_the_refusal_of_a_proxy_that_hides_the_name_says_which_option_allows_it() -> None:
    refused = refusal(LOOPBACK, "POST", EVENT, Headers({"host": HOST, "origin": "http://outer.example:8080"}))
    assert refused is not None
    assert refused.message.endswith("that the browser shows, such as --root-path http://outer.example:8080")


@pytest.mark.parametrize("path", NO_ROUTES)
def test_what_the_page_does_not_use_is_not_there(client: TestClient, path: str) -> None:
    for method in ("GET", "POST"):
        assert client.request(method, path, headers=OWN, json={"data": []}).status_code == 404


@pytest.mark.parametrize("path", [
    "/gradio_api/file=/etc/passwd", "/gradio_api/file=../../etc/passwd", "/gradio_api/file=http://127.0.0.1:22/",
    "/gradio_api/file=app.py", "/gradio_api/file=a%00b", f"/gradio_api/file={'a' * 300}", "/static/../../etc/passwd",
    "/assets/%2e%2e/%2e%2e/routes.py", "/media/runs/x/audio/a%00.wav", f"/media/runs/{'x' * 300}/audio/a.wav",
    f"/media/covered/{'x' * 300}/a.wav", "/media/covered/a%00/b.wav", "/media/runs/../app.py", "/media//etc/passwd",
    "/media/runs/x/config.yaml", "/media/runs/%ff/audio/a.wav", "/media/runs/x/audio/%2e%2e%2fconfig.yaml",
    "/media/covered/../x", "/media/cache/x/audio/a.wav", "/media/runs/.x/audio/a.wav", "/media/runs/x/audio/.a.wav",
])
def test_no_file_is_served_by_its_path_and_none_ends_in_a_fault(client: TestClient, path: str) -> None:
    assert client.get(path).status_code in (403, 404)


def test_media_of_a_circle_of_links_is_not_there(page: ServedPage) -> None:
    home = page.workspace.runs / "circle" / "audio"
    home.mkdir(parents=True)
    (home / "a.wav").symlink_to(home / "b.wav")
    (home / "b.wav").symlink_to(home / "a.wav")
    assert media.resolve(page.workspace, "runs/circle/audio/a.wav") is None
    (home / "passwd.wav").symlink_to("/etc/passwd")
    assert media.resolve(page.workspace, "runs/circle/audio/passwd.wav") is None


def test_every_answer_keeps_other_sites_out(client: TestClient) -> None:
    for path in ("/", "/config", "/theme.css", "/media/font.woff2", "/nothing", "/assets/nothing"):
        headers = client.get(path, headers={"Origin": f"http://{HOST}"}).headers
        assert "frame-ancestors 'self'" in headers["content-security-policy"]
        assert headers["x-frame-options"] == "SAMEORIGIN"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "same-origin"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert not [name for name in headers if name.startswith("access-control-")]


def test_the_script_that_searches_the_page_is_served_with_the_faster_search(client: TestClient) -> None:
    original, = (path for path in web_surface._ASSETS.glob("core-*.js"))
    served, plain = client.get(f"/assets/{original.name}").text, original.read_text("utf-8")
    found, events = web_surface._SEARCH.search(plain), plain.index(web_surface._EVENTS_OF_NODE)
    assert events < found.start()
    assert served.startswith(plain[:events])
    assert "eventsOfNode(e.id,t)" in served
    assert f"function {found['find']}(root, id)" in served
    assert not web_surface._SEARCH.search(served)
    assert served.endswith(plain[found.end():])
    assert web_surface.faster_core("export const another = 1") is None
    assert web_surface.faster_core(plain.replace(web_surface._EVENTS_OF_NODE, "return e")) is None


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedPage]:
    with serve(Workspace.open(tmp_path_factory.mktemp("locked") / "workspace"), {"me": "secret"}) as served:
        yield served


@pytest.mark.parametrize("path", [
    "/config", "/gradio_api/info", "/gradio_api/heartbeat/x", "/gradio_api/queue/data?session_hash=x", "/logout",
    "/gradio_api/upload_progress?upload_id=x", "/media/runs/x/audio/a.wav",
    "/gradio_api/file=/etc/passwd",
])
def test_without_the_sign_in_nothing_but_its_page_is_there(locked: ServedPage, path: str) -> None:
    assert locked.client.get(path, headers=OWN).status_code == 401
    assert locked.client.get(path, headers={**OWN, "Cookie": f"access-token-{locked.application.cookie_id}=x"},
                             ).status_code == 401


@pytest.mark.parametrize("path", [EVENT, "/gradio_api/queue/join", "/gradio_api/upload", "/gradio_api/cancel",
                                  "/gradio_api/reset"])
def test_without_the_sign_in_nothing_is_done(locked: ServedPage, path: str) -> None:
    answer = locked.client.post(path, headers=OWN, json={})
    assert answer.status_code == 401
    if path in (EVENT, "/gradio_api/queue/join"):  # Gradio's page reads the answer of an event as JSON
        assert answer.json() == {"error": "Sign in first."}


def test_a_page_that_waits_for_a_restart_learns_of_it_without_the_sign_in(locked: ServedPage) -> None:
    assert locked.client.get("/gradio_api/app_id", headers=OWN).json().keys() == {"app_id"}
    assert locked.client.get("/gradio_api/app_id", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403


def test_the_sign_in_page_has_nothing_of_the_app(locked: ServedPage) -> None:
    text = locked.client.get("/").text
    assert re.search(r'"auth_required":\s*true', text)
    assert re.search(r'"dependencies":\s*\[\]', text)
    assert "Model tab" not in text


def test_the_cookie_is_not_sent_with_requests_of_other_sites(locked: ServedPage) -> None:
    with TestClient(locked.application, base_url=f"http://{HOST}") as visitor:
        given = visitor.post("/login", headers=OWN, data={"username": "me", "password": "secret"})
        assert given.status_code == 200
        cookies = given.headers.get_list("set-cookie")
        assert len(cookies) == 2
        for cookie in cookies:
            assert "samesite=lax" in cookie.lower()
            assert "httponly" in cookie.lower()
        name, _, value = cookies[1].partition(";")[0].partition("=")
        signed = {"Cookie": f"{name}={value}"}
        assert visitor.get("/config", headers={**OWN, **signed}).status_code == 200
        for foreign in ({"Sec-Fetch-Site": "cross-site"}, {"Referer": "http://evil.example/"}, {}):
            assert visitor.get("/logout", headers={**foreign, **signed}, follow_redirects=False).status_code == 403
        assert visitor.get("/config", headers={**OWN, **signed}).status_code == 200
        assert visitor.get("/logout", headers={**OWN, **signed}, follow_redirects=False).status_code == 302
        assert visitor.get("/config", headers={**OWN, **signed}).status_code == 401


def test_sign_ins_that_fail_wait_longer_and_longer_and_another_address_does_not() -> None:
    waits: list[float] = []
    now = [0.0]

    async def sleep(seconds: float) -> None:
        if seconds >= 1:  # shorter is the turn of a check
            waits.append(seconds)
        now[0] += seconds

    async def wrong() -> int:
        await asyncio.sleep(0)  # others may come meanwhile
        return 400

    async def right() -> int:
        return 200

    async def tries() -> None:
        delay = web_surface.SignInDelay(sleep, lambda: now[0])
        for _ in range(12):
            assert await delay.attempt("1.2.3.4", wrong) is None
        assert waits == [1, 2, 4, 8, 16, 30, 30]
        await delay.attempt("5.6.7.8", wrong)
        assert len(waits) == 7
        await delay.attempt("1.2.3.4", right)
        assert len(waits) == 7
        await delay.attempt("1.2.3.4", wrong)
        assert len(waits) == 7
        many = await asyncio.gather(*(delay.attempt("9.9.9.9", wrong) for _ in range(420)))
        assert sum(one is not None and one.status == 429 for one in many) == 220
        now[0] += 1000
        waits.clear()
        await delay.attempt("9.9.9.9", wrong)
        assert waits == []

    asyncio.run(tries())


def test_variables_of_gradio_open_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALLOWED_PATHS", "SHARE", "SERVER_NAME", "SERVER_PORT", "ROOT_PATH", "MCP_SERVER", "VIBE_MODE",
                 "NUM_WORKERS", "LOCAL_DEV_MODE", "WATCH_DIRS", "DEBUG", "RUN_HISTORY"):
        monkeypatch.setenv(f"GRADIO_{name}", "/")
    app.import_gradio()
    assert [name for name in os.environ if name.startswith("GRADIO_")] == ["GRADIO_ANALYTICS_ENABLED"]


DEEP = "[" * 100_000
BODIES = [
    (b"", "not JSON"), (b"{", "not JSON"), (b"[]", "not an object"), (b"null", "not an object"),
    (b"\xff\xfe", "not JSON"),
    (DEEP.encode(), "nested too deeply"), (b'{"fn_index": NaN}', "not a number"), (b'{"x": Infinity}', "not a number"),
    (b'{"fn_index": 1' + b"0" * 400 + b"}", "too large"), (b'{"x": 1e400}', "too large"),
    (b'{"x": "\\u0000"}', "no text"), (b'{"x": "\\ud800"}', "no text"), (b'{"\\ud800": 1}', "no text"),
    (b'{"x": ' + b"[" * 40 + b"]" * 40 + b"}", "nested too deeply"), (b'{"fn_index": 0}', "of which session"),
    (b'{"fn_index": 999999, "data": []}', "no event"), (b'{"fn_index": "0", "data": []}', "no event"),
    (b'{"fn_index": true, "data": []}', "no event"), (b'{"fn_index": -1}', "no event"), (b"{}", "no event"),
    (b'{"fn_index": [0]}', "no event"), (b'{"fn_index": 0, "session_hash": "../x", "data": []}', "of which session"),
    (b'{"fn_index": 0, "session_hash": "x", "data": {}}', "takes 4 values"),
    (b'{"fn_index": 0, "session_hash": "x", "data": []}', "takes 4 values"),
    (b'{"fn_index": 0, "session_hash": "x", "data": [null, {"a": 1}, "", ""]}', "no value"),
    (b'{"fn_index": 0, "session_hash": "x", "data": ["","","",""], "batched": true}', "no such events"),
]


@pytest.mark.parametrize(("body", "fault"), BODIES, ids=range(len(BODIES)))
def test_a_body_that_is_no_event_is_refused_in_a_sentence(client: TestClient, body: bytes, fault: str) -> None:
    for path in (EVENT, "/gradio_api/queue/join"):
        answer = client.post(path, content=body, headers={**OWN, "Content-Type": "application/json"})
        assert answer.status_code == 422
        assert fault in answer.json()["error"]


WRONG = {
    "list": ["a"], "object": {"a": 1}, "file": {"path": "/etc/passwd", "meta": {"_type": "gradio.FileData"}},
    "url": {"path": "x", "url": "http://127.0.0.1:22/"}, "number": 12345, "switch": True, "half": 0.5,
    "files": [{"path": "/etc/shadow"}], "names": [["a"], None], "deep": [[[[{}]]]],
}


@pytest.mark.parametrize("kind", ["State", "Textbox", "Dropdown", "Radio", "Checkbox", "Number", "Audio", "File",
                                  "UploadButton", "CheckboxGroup"])
@pytest.mark.parametrize("wrong", WRONG)
def test_a_widget_takes_only_the_type_that_it_sends(page: ServedPage, kind: str, wrong: str) -> None:
    number, place = next((number, place) for number, function in page.blocks.fns.items() if function.fn is not None
                         for place, widget in enumerate(function.inputs) if type(widget).__name__ == kind)
    fits = {"Number": ("number", "half"), "Textbox": ("number", "half"), "Checkbox": ("switch",),
            "CheckboxGroup": ("list",)}.get(kind, ())
    values: list[object] = [None] * len(page.blocks.fns[number].inputs)
    values[place] = WRONG[wrong]
    body = json.dumps({"fn_index": number, "session_hash": SESSION, "data": values})
    fault = web_surface.event_fault(page.blocks, Path("/nowhere"), body.encode())
    assert (fault is None) == (wrong in fits)


@pytest.mark.parametrize("large", [10**20, 1e300])
def test_a_large_number_reaches_its_field(page: ServedPage, large: float) -> None:
    number, place = next((number, place) for number, function in page.blocks.fns.items() if function.fn is not None
                         for place, widget in enumerate(function.inputs) if isinstance(widget, components.Number))
    values: list[object] = [None] * len(page.blocks.fns[number].inputs)
    values[place] = large
    body = json.dumps({"fn_index": number, "session_hash": SESSION, "data": values})
    assert web_surface.event_fault(page.blocks, Path("/nowhere"), body.encode()) is None


def test_a_file_that_was_deleted_meanwhile_is_asked_for_again(page: ServedPage, tmp_path: Path) -> None:
    number, place = next((number, place) for number, function in page.blocks.fns.items() if function.fn is not None
                         for place, widget in enumerate(function.inputs) if isinstance(widget, components.Audio))
    values: list[object] = [None] * len(page.blocks.fns[number].inputs)
    values[place] = {"path": str(tmp_path / "gone.wav")}
    body = json.dumps({"fn_index": number, "session_hash": SESSION, "data": values}).encode()
    assert "Upload it again." in str(web_surface.event_fault(page.blocks, tmp_path, body))
    (tmp_path / "gone.wav").write_bytes(b"RIFF")
    assert web_surface.event_fault(page.blocks, tmp_path, body) is None


def _value(widget: object, given: object) -> object:
    if isinstance(widget, components.State | components.File | components.Audio | components.UploadButton):
        return None
    if isinstance(widget, components.Checkbox):
        return True
    if isinstance(widget, components.Number):
        return given if isinstance(given, int | float) else widget.value
    if isinstance(given, str | None):
        listed = isinstance(widget, components.CheckboxGroup) or getattr(widget, "multiselect", None)
        return [given or "x"] if listed else given
    return widget.value  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", ["../x", 10**20, *(pytest.param(value, marks=pytest.mark.slow) for value in (
    None, "", "nothing-like-this", "a" * 300, "run:../x@1", "\u202e\u200b😀", "hub:/", "http://[::1", 1e300, -1,
    1e-300))])
def test_every_event_answers_names_that_were_never_offered_in_a_sentence(
    page: ServedPage, given: object, caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.CRITICAL, "lisan.page"):
        for number, function in page.blocks.fns.items():
            if function.fn is None or len(function.inputs) > 100:  # a refresh of all, which the tabs' tests call
                continue
            answer = page.event(number, [_value(widget, given) for widget in function.inputs],
                                event_data={"value": "Jobs", "index": 0})
            assert answer.status_code == 200, (number, function.targets, answer.text[:300])
            assert "Unexpected error" not in answer.text, (number, function.targets, answer.text[:300])


def test_an_upload_within_the_limit_is_stored_and_a_larger_one_leaves_nothing(page: ServedPage) -> None:
    guarded, folder = page.application, page.application.uploads
    guarded.max_upload = 100_000
    try:
        stored = page.client.post("/gradio_api/upload", headers=OWN, files={"files": ("a.wav", b"x" * 1000)})
        assert stored.status_code == 200
        path = Path(stored.json()[0])
        assert path.read_bytes() == b"x" * 1000
        assert web_surface._is_upload({"path": str(path)}, folder)
        assert page.client.get(f"/gradio_api/file={path}").status_code == 200
        before = sorted(folder.rglob("*"))
        refused = page.client.post("/gradio_api/upload", headers=OWN, files={"files": ("b.wav", b"x" * 200_000)})
        assert refused.status_code == 413
        assert "--max-upload" in refused.text

        def endless() -> Iterator[bytes]:  # does not say how long it is
            yield b'--b\r\nContent-Disposition: form-data; name="files"; filename="c.wav"\r\n\r\n'
            for _ in range(300):
                yield b"y" * 1000
            yield b"\r\n--b--\r\n"

        form = {**OWN, "Content-Type": "multipart/form-data; boundary=b"}
        assert page.client.post("/gradio_api/upload", headers=form, content=endless()).status_code in (400, 413)
        assert sorted(folder.rglob("*")) == before
        for name in ("../../x.wav", "a\0b", "/etc/x", "." * 300, ".."):
            given = page.client.post("/gradio_api/upload", headers=OWN, files={"files": (name, b"x")})
            assert given.status_code in (200, 400)
            assert all(Path(one).resolve().is_relative_to(folder.resolve()) for one in given.json()) if (
                given.status_code == 200) else True
    finally:
        guarded.max_upload = None


def test_uploads_of_yesterday_are_deleted_and_links_are_not_followed(tmp_path: Path) -> None:
    folder, other = tmp_path / "incoming", tmp_path / "other"
    (folder / "old").mkdir(parents=True)
    other.mkdir()
    for path in (folder / "old" / "a", folder / "new", other / "mine"):
        path.write_bytes(b"x")
    (folder / "link").symlink_to(other)
    yesterday = time.time() - 2 * web_surface.UPLOAD_AGE_S
    for path in (folder / "old" / "a", folder / "link", other / "mine", folder / "old"):
        os.utime(path, (yesterday, yesterday), follow_symlinks=False)
    web_surface.remove_old_uploads(folder)
    assert (folder / "new").is_file()
    assert not (folder / "old" / "a").exists()
    assert not (folder / "link").is_symlink()
    assert (other / "mine").is_file()


def test_an_upload_to_a_full_disk_is_refused_for_the_disk_and_not_for_an_option(
    client: TestClient, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _folder: SimpleNamespace(free=1 << 20))
    refused = client.post("/gradio_api/upload", headers=OWN, files={"files": ("b.wav", b"x" * 200_000)})
    assert refused.status_code == 413
    assert "delete files there" in refused.text
    assert "--max-upload" not in refused.text


@pytest.mark.parametrize(("path", "size"),
                         [(EVENT, (8 << 20) + 1), ("/login", 20_000), ("/gradio_api/cancel", 9 << 20)])
def test_a_long_request_is_cut_off(client: TestClient, path: str, size: int) -> None:
    answer = client.post(path, headers=OWN, content=b" " * size)
    assert answer.status_code == 413
    assert "is longer than" in answer.text


def test_a_closed_session_keeps_its_states_and_little_else(page: ServedPage) -> None:
    holder = page.application.state_holder
    number = next(number for number, function in page.blocks.fns.items()
                  if getattr(function.fn, "__name__", "") == "check")
    values = [None if isinstance(widget, components.State) else widget.value
              for widget in page.blocks.fns[number].inputs]
    assert page.event(number, values, session_hash="closing").status_code == 200
    state = holder["closing"]
    key = next(key for key, block in page.blocks.blocks.items() if isinstance(block, components.State))
    state[key] = "kept"
    state.is_closed = True
    holder.delete_all_expired_state()
    assert "closing" not in holder.session_data
    assert len(repr(holder.parked["closing"])) < 10_000
    assert holder["closing"][key] == "kept"
    assert "closing" not in holder.parked


def test_no_upload_is_read_through_a_description_that_leads_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "incoming"
    folder.mkdir()
    (folder / "link").symlink_to("/etc/passwd")
    for path in (str(folder / "link"), "/etc/passwd", f"{folder}/../x", "", "\0", "a" * 5000, str(folder)):
        assert not web_surface._is_upload({"path": path}, folder)


ODD_BODIES: dict[str, tuple[str, str, bytes]] = {  # path, type and content
    "cancel: nothing": ("/gradio_api/cancel", "application/json", b""),
    "cancel: a list": ("/gradio_api/cancel", "application/json", b"[]"),
    "cancel: deep": ("/gradio_api/cancel", "application/json", b"[" * 100_000),
    "cancel: wrong types": ("/gradio_api/cancel", "application/json",
                            b'{"session_hash": [1], "fn_index": "x", "event_id": {}}'),
    "cancel: others": ("/gradio_api/cancel", "application/json",
                       b'{"session_hash": "x", "fn_index": 0, "event_id": "../x"}'),
    "cancel: a huge number": ("/gradio_api/cancel", "application/json",
                              b'{"session_hash": "x", "fn_index": 1' + b"0" * 400 + b', "event_id": "x"}'),
    "reset: nothing": ("/gradio_api/reset", "application/json", b""),
    "reset: null": ("/gradio_api/reset", "application/json", b"null"),
    "reset: wrong types": ("/gradio_api/reset", "application/json", b'{"event_id": {"a": 1}}'),
    "upload: no form": ("/gradio_api/upload", "text/plain", b"x"),
    "upload: no boundary": ("/gradio_api/upload", "multipart/form-data", b"x"),
    "upload: another boundary": ("/gradio_api/upload", "multipart/form-data; boundary=a", b"--b\r\n\r\nx"),
    "upload: no file": ("/gradio_api/upload", "multipart/form-data; boundary=b",
                        b'--b\r\nContent-Disposition: form-data; name="a"\r\n\r\nx\r\n--b--\r\n'),
    "upload: many headers": ("/gradio_api/upload", "multipart/form-data; boundary=b",
                             b"--b\r\n" + b"X: y\r\n" * 5000 + b"\r\nx\r\n--b--\r\n"),
    "upload: an odd name": ("/gradio_api/upload", "multipart/form-data; boundary=b",
                            b'--b\r\nContent-Disposition: form-data; name="files"; filename="\xff\xfe"\r\n\r\nx'
                            b"\r\n--b--\r\n"),
    "upload: a name of markup": ("/gradio_api/upload", "multipart/form-data; boundary=b",
                                 b'--b\r\nContent-Disposition: form-data; name="files"; '
                                 b'filename="<img src=x>.wav"\r\n\r\nx\r\n--b--\r\n'),
    "login: nothing": ("/login", "application/x-www-form-urlencoded", b""),
    "login: JSON": ("/login", "application/json", b'{"username": "a", "password": "b"}'),
    "login: twice": ("/login", "application/x-www-form-urlencoded", b"username=a&username=b&password=c&password=d"),
    "login: not UTF-8": ("/login", "application/x-www-form-urlencoded", b"username=%ff%fe&password=%00"),
    "login: many": ("/login", "application/x-www-form-urlencoded", b"a=b&" * 3000),
    "answers: nothing": ("/media/listening/x.html", "application/json", b""),
    "answers: of a path": ("/media/listening/..%2fx.html", "application/json", b"{}"),
    "answers: deep": ("/media/listening/x.html", "application/json", b"[" * 100_000),
    "answers: to a file": ("/media/font.woff2", "application/json", b"{}"),
    "answers: to nowhere": ("/media/mark", "application/json", b"{}"),
}


@pytest.mark.parametrize("case", ODD_BODIES)
def test_a_body_that_no_route_takes_ends_in_no_fault(case: str, page: ServedPage) -> None:
    path, kind, content = ODD_BODIES[case]
    answer = page.client.post(path, content=content, headers={**OWN, "Content-Type": kind})
    assert answer.status_code < 500, answer.text[:300]
    assert "Traceback" not in answer.text
    assert "<img" not in answer.text or answer.headers["content-type"].startswith("application/json")


QUERIES = ["?tab=<script>alert(1)</script>", "?tab=%00", "?tab=" + "a" * 5000, "?__theme=<script>",
           "?deep_link=../../x",
           "?deep_link=%2e%2e%2f%2e%2e%2fetc%2fpasswd", "?view=api", "?session_hash=../x", "?__sign=%ff",
           "?tab=start&tab=jobs",
           "?vibe=1", "?__lang=../x"]


@pytest.mark.parametrize("query", QUERIES)
def test_what_stands_behind_the_address_of_the_page_is_not_written_into_it(client: TestClient, query: str) -> None:
    for path in ("/", "/config"):
        answer = client.get(f"{path}{query}", headers=OWN)
        assert answer.status_code < 500
        assert "<script>alert(1)" not in answer.text
        assert "root:x:0" not in answer.text


JOBS_OF_OTHERS = ["x", "..", "%2e%2e", "x%2f..%2fy", "a%00", "a" * 300, "%ff", "%f0%9f%98%80", "-rf", "x;y",
                  "x%0d%0aSet-Cookie:a"]
PLACES_OF_JOBS = ("listening/{}.html", "curves/{}.csv", "archive/{}.tar", "clips/{}.zip", "covered/{}/x.wav",
                  "runs/{}/audio/x.wav", "exports/{}/samples/x.wav")


@pytest.mark.parametrize("job", JOBS_OF_OTHERS)
def test_no_route_of_a_job_takes_a_name_that_is_none(client: TestClient, job: str) -> None:
    for place in PLACES_OF_JOBS:
        answer = client.get(f"/media/{place.format(job)}", headers=OWN)
        assert answer.status_code == 404, place
        assert "set-cookie" not in answer.headers


RESULTS = ["/etc/passwd.tar", "../x.tar", "a" * 300 + ".tar", "a\0.tar", "x.zip", "link.tar", "sub/a.tar", ".tar", "",
           "a\nb.tar", ["a.tar"], {"a": 1}, 5, None, "\u202eb.tar"]


@pytest.mark.parametrize("name", RESULTS, ids=range(len(RESULTS)))
def test_an_archive_that_a_journal_of_others_names_is_served_only_from_its_job(page: ServedPage, name: object) -> None:
    folder = page.workspace.runs / "packed"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "sub").mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"verb": "pack", "device": "none", "after": [], "created": 1.0,
                                                    "options": {"item": "run:x"}}))
    (folder / "link.tar").symlink_to("/etc/passwd")
    for place in ("../x.tar", "x.zip", "sub/a.tar"):
        (folder / place).write_text("a secret")
    (folder / "events.jsonl").write_text(json.dumps({"event": "finished", "time": 5.0, "result": {"archive": name}}))
    for path in ("archive/packed.tar", "clips/packed.zip", "curves/packed.csv"):
        answer = page.client.get(f"/media/{path}", headers=OWN)
        assert answer.status_code == (200 if path.startswith("curves") else 404), answer.text[:200]
        assert "secret" not in answer.text
    (page.workspace.runs / "x.tar").unlink()


RANGES = ["bytes=0-", "bytes=-1", "bytes=5-2", "bytes=0-0,2-3", "bytes=" + ",".join(["0-1"] * 2000),
          "bytes=9" + "9" * 40 + "-",
          "bytes=a-b", "lines=1-2", "bytes=--1", "bytes=\u00b2-"]


@pytest.mark.parametrize("asked", RANGES, ids=range(len(RANGES)))
def test_parts_of_a_sound_are_no_more_than_the_sound(page: ServedPage, asked: str) -> None:
    home = page.workspace.runs / "heard" / "audio"
    home.mkdir(parents=True, exist_ok=True)
    (home / "a.wav").write_bytes(b"RIFF" + bytes(1000))
    answer = page.client.get("/media/runs/heard/audio/a.wav", headers={**OWN, "Range": asked.encode("latin-1")})
    assert answer.status_code in (200, 206, 400, 416)
    assert len(answer.content) < 20_000


COOKIES = ["a" * 8000, "access-token-{}=", "access-token-{}=x; access-token-{}=y", "access-token-unsecure-{}=../x",
           "access-token-{}=\"", "=;=;", "access-token-{}=None", "access-token-{}=%00", "\u00ff=\u00fe"]


@pytest.mark.parametrize("cookie", COOKIES)
def test_no_cookie_but_that_of_a_sign_in_opens_the_page(locked: ServedPage, cookie: str) -> None:
    sent = cookie.replace("{}", locked.application.cookie_id).encode("latin-1")
    assert locked.client.get("/config", headers={**OWN, "Cookie": sent}).status_code == 401
    assert locked.client.post(EVENT, content=b"{}", headers={**OWN, "Cookie": sent}).status_code == 401
