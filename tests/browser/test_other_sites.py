"""Pages of other sites in the same browser: they start nothing, send nothing, read nothing and frame nothing."""

from __future__ import annotations

import asyncio
import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page

from core.workspace import Workspace
from tests.browser.conftest import FLAGS, PATIENCE_MS, chromium, open_tab, wait_until
from tests.processes import free_port
from tests.serving import App, served

pytestmark = pytest.mark.browser
NAMES = ("evil.example", "outer.example")
ATTACK = """async (target) => {
  const tries = {};
  const attempt = async (name, run) => {
    try { tries[name] = await run(); } catch (error) { tries[name] = "refused"; }
  };
  const event = JSON.stringify({fn_index: 0, data: ["tiny", "am", "demo", "full"], session_hash: "evil"});
  const form = new FormData();
  form.append("files", new Blob(["x".repeat(1000)]), "evil.wav");
  const read = async (path, more) => (await fetch(target + path, {credentials: "include", ...more})).text();
  await attempt("config", () => read("config"));
  await attempt("page", () => read(""));
  await attempt("media", () => read("media/runs/one/audio/clip.ogg"));
  await attempt("event", () => read("gradio_api/run/predict", {method: "POST", body: event,
                                    headers: {"Content-Type": "application/json"}}));
  await attempt("simple event", () => read("gradio_api/run/predict", {method: "POST", body: event, mode: "no-cors"}));
  await attempt("upload", () => read("gradio_api/upload", {method: "POST", body: form}));
  await attempt("simple upload", () => read("gradio_api/upload", {method: "POST", body: form, mode: "no-cors"}));
  await attempt("sign out", () => read("logout", {mode: "no-cors"}));
  const image = new Image();
  await new Promise((done) => { image.onload = image.onerror = done; image.src = target + "logout"; });
  const sound = new Audio(target + "media/runs/one/audio/clip.ogg");
  tries.sound = await new Promise((done) => {
    sound.onerror = () => done("refused"); sound.onloadeddata = () => done("played"); sound.load();
  });
  const frame = document.createElement("iframe");
  frame.name = "framed";
  frame.src = target;
  document.body.append(frame);
  await new Promise((done) => { frame.onload = frame.onerror = done; setTimeout(done, 5000); });
  const sender = document.createElement("form");
  Object.assign(sender, {method: "POST", action: target + "gradio_api/upload", enctype: "multipart/form-data",
                         target: "framed"});
  sender.innerHTML = "<input name=files value=x>";
  document.body.append(sender);
  sender.submit();
  await new Promise((done) => setTimeout(done, 500));
  return tries;
}"""


@pytest.fixture(scope="module")
def named_browser(browser: Browser) -> Iterator[Browser]:
    """A browser for which the names of other sites lead to this machine, as their name server would have it."""
    rules = ", ".join(f"MAP {name} 127.0.0.1" for name in NAMES)
    launched = browser.browser_type.launch(executable_path=chromium(), timeout=PATIENCE_MS,
                                           args=[*FLAGS, f"--host-resolver-rules={rules}"])
    yield launched
    launched.close()


@pytest.fixture(scope="module")
def other_site() -> Iterator[int]:
    """The port of a server with an empty page."""

    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><body>another site</body>")

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()


@contextmanager
def proxy(target: str, outer: bool, port: int) -> Iterator[None]:
    """A proxy of one request a connection that replaces the host by the app's; `outer`: it tells the other one."""
    inner = urlsplit(target)

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while block := await reader.read(65536):
                writer.write(block)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")[:-2]
        except asyncio.IncompleteReadError:
            writer.close()
            return
        host = next(line.partition(":")[2].strip() for line in head if line.lower().startswith("host:"))
        kept = [line for line in head if not line.lower().startswith(("host:", "connection:"))]
        kept += [f"Host: {inner.netloc}", "Connection: close", *([f"X-Forwarded-Host: {host}"] if outer else [])]
        into, out = await asyncio.open_connection(inner.hostname, inner.port)
        out.write(("\r\n".join(kept) + "\r\n\r\n").encode("latin-1"))
        await asyncio.gather(pipe(reader, out), pipe(into, writer))

    started = threading.Event()
    over: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        over.append((asyncio.get_running_loop(), asyncio.Event()))
        started.set()
        await over[0][1].wait()
        server.close()

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    assert started.wait(PATIENCE_MS / 1000)
    yield
    over[0][0].call_soon_threadsafe(over[0][1].set)
    thread.join(PATIENCE_MS / 1000)


@dataclass(frozen=True)
class Site:
    """A served page with its workspace, and a port that a proxy before it may take."""

    app: App
    workspace: Workspace
    port: int


@pytest.fixture(scope="module")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The app with the arguments of the parameter, in which HOST and PORT are filled in."""
    workspace, port = Workspace.open(tmp_path_factory.mktemp("site") / "workspace"), free_port()
    audio = workspace.runs / "one" / "audio"
    audio.mkdir(parents=True)
    (audio / "clip.ogg").write_bytes(b"OggS")
    arguments = [argument.replace("HOST", address_of_this_machine()).replace("PORT", str(port))
                 for argument in request.param]
    with served(workspace.path, arguments) as app:
        yield Site(app, workspace, port)


def look(page: Page, url: str, sign_in: bool) -> list[str]:
    """Open the page as a person does, and every part of it that takes a request; what its scripts complained of."""
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(url, timeout=PATIENCE_MS)
    if sign_in:
        page.get_by_label("username").fill("me")
        page.get_by_label("password").fill("secret")
        page.get_by_role("button", name="Login").click()
    page.wait_for_selector("#tabs [role=tab]", timeout=PATIENCE_MS)
    complaints.clear()  # of the page before the sign-in
    answered = []
    page.on("response", lambda response: answered.append(response.status) if "/run/predict" in response.url else None)
    open_tab(page, "Data")
    page.locator("#prepare-upload input[type=file]").set_input_files(
        files=[{"name": "clips.csv", "mimeType": "text/csv", "buffer": b"file,text\na.wav,hello\n"}])
    wait_until(lambda: "a.wav" in page.locator("#prepare-look").inner_text(), page)
    open_tab(page, "Jobs")
    wait_until(lambda: len(answered) > 5, page)
    assert set(answered) == {200}
    return complaints


def attack(page: Page, origin: str, target: str) -> None:
    """Do from `origin` what a page there can do to the app at `target`; none of it may come to anything."""
    page.goto(origin, timeout=PATIENCE_MS)
    tries = page.evaluate(ATTACK, target)
    for name, found in tries.items():
        assert found in ("refused", ""), (name, found[:200])  # a request without CORS is sent, its answer is hidden
    frames = [frame for frame in page.frames if frame != page.main_frame]
    assert all("Lisan" not in (frame.title() or "") and frame.locator("#tabs").count() == 0 for frame in frames)


def jobs_of(workspace: Workspace, page: Page) -> set[str]:
    """The jobs once the person's own upload has started its own: the voice through the model's codec."""
    def names() -> set[str]:
        return {path.name for path in workspace.runs.iterdir()}

    wait_until(lambda: any(name.startswith("resynthesize-") for name in names()), page)
    return names()


def unharmed(workspace: Workspace, jobs: set[str]) -> None:
    assert {path.name for path in workspace.runs.iterdir()} == jobs  # no other job
    incoming = workspace.cache / "incoming"
    assert not [path for path in incoming.rglob("*") if path.is_file() and b"xxx" in path.read_bytes()[:1000]]


def address_of_this_machine() -> str:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


SIGN_IN = ("--auth", "me:secret")
ALLOWED = (*SIGN_IN, "--allow-host", "outer.example")
ROOT_PATH = (*SIGN_IN, "--root-path", "http://outer.example:PORT")


@pytest.mark.parametrize(("site", "network", "sign_in"), [
    ((), False, False), (SIGN_IN, False, True), (("--host", "HOST", *SIGN_IN), True, True)], indirect=["site"])
def test_another_site_gets_nothing_and_does_nothing(site: Site, network: bool, sign_in: bool, named_browser: Browser,
                                                    other_site: int) -> None:
    with named_browser.new_context() as context:
        app, page = site.app, context.new_page()
        assert look(page, app.url, sign_in) == []
        jobs = jobs_of(site.workspace, page)
        other = context.new_page()
        attack(other, f"http://127.0.0.1:{other_site}/", app.url)  # another port of this machine
        attack(other, f"http://evil.example:{other_site}/", app.url)
        rebound = f"http://evil.example:{urlsplit(app.url).port}/"  # the name now leads to the app
        if not network:
            answer = other.goto(rebound, timeout=PATIENCE_MS)
            assert answer is not None
            assert answer.status == 403
            assert "does not answer to the name evil.example" in other.content()
        unharmed(site.workspace, jobs)
        cookies = context.cookies(app.url)
        assert all(cookie["sameSite"] == "Lax" for cookie in cookies)
        assert bool(cookies) == sign_in
        page.reload()  # is still signed in
        page.wait_for_selector("#tabs [role=tab]", timeout=PATIENCE_MS)


@pytest.mark.parametrize(("site", "outer", "name"), [
    (SIGN_IN, False, "127.0.0.1"), (SIGN_IN, True, "127.0.0.1"), (ALLOWED, True, "outer.example"),
    (ROOT_PATH, False, "outer.example"), (ROOT_PATH, True, "outer.example"),
], indirect=["site"])
def test_behind_a_proxy_that_rewrites_the_host_the_page_works_and_another_site_does_not(
    site: Site, outer: bool, name: str, named_browser: Browser, other_site: int,
) -> None:
    with proxy(site.app.url, outer, site.port), named_browser.new_context() as context:
        url = f"http://{name}:{site.port}/"
        own = context.new_page()
        assert look(own, url, True) == []
        jobs = jobs_of(site.workspace, own)
        other = context.new_page()
        attack(other, f"http://evil.example:{other_site}/", url)
        attack(other, f"http://127.0.0.1:{other_site}/", url)
        unharmed(site.workspace, jobs)
