"""The page in a studio: behind its proxy, while the machine under it is exchanged for one with a GPU."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterator
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from core.jobs import control
from core.jobs.events import Journal, Queued, Started
from core.jobs.job import load_job
from core.jobs.state import JobBoard
from core.workspace import Workspace
from tests.processes import PATIENCE_S
from tests.proxy import HOST, PREFIX, proxied
from tests.serving import served
from tests.unit.live_jobs import launch, machine_goes_down, running, train, until

pytestmark = pytest.mark.browser
NAMES = ("first", "second", "third", "fourth")


@pytest.fixture
def studio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace on a machine without a GPU; `dev` beside it shows those that are there."""
    (tmp_path / "dev").mkdir()
    monkeypatch.setattr("core.jobs.job.DEVICE_FILES", tmp_path / "dev")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    workspace = Workspace.open(tmp_path / "this studio")
    yield workspace
    for state in JobBoard(workspace).queue():
        control.force_stop(state.job, grace_s=0.0)


def check_addresses(port: int) -> None:
    """Behind a proxy that takes requests over TLS the page names that scheme, and its sound has the prefix."""
    with proxied(port, "https") as public:
        address = public.replace(HOST, "127.0.0.1")  # urllib does not know the name
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        form = urllib.parse.urlencode({"username": "me", "password": "secret"}).encode()
        opener.open(address + "/login", form, timeout=PATIENCE_S).close()
        with opener.open(address + "/config", timeout=PATIENCE_S) as answer:
            assert json.load(answer)["root"] == address.replace("http://", "https://")
        with opener.open(address + "/media/runs/lost/audio/clip.ogg", timeout=PATIENCE_S) as answer:
            assert answer.read() == b"OggS"


def test_four_jobs_outlive_a_switch_of_machine_behind_the_proxy(
    studio: Workspace, tmp_path: Path, browser: Browser,
) -> None:
    program = ("-m", "tests.studio_app", str(tmp_path / "dev"))
    arguments = ["--auth", "me:secret", "--root-path", PREFIX]
    lost = train(studio, "environment", device="auto", name="lost")
    journal = Journal(lost.journal)
    for event in (Queued("cpu"), Started(1, 1)):
        journal.append(event)
    journal.close()
    (lost.directory / "audio").mkdir()
    (lost.directory / "audio" / "clip.ogg").write_bytes(b"OggS")

    with served(studio.path, [*arguments, "--resume-after", "3600"], program) as app, \
            proxied(int(app.url.rstrip("/").rpartition(":")[2])) as address:
        page = browser.new_page()
        page.goto(address + "/")
        page.get_by_label("username").fill("me")
        page.get_by_label("password").fill("secret")
        page.get_by_role("button", name="Login").click()
        expect(page.locator("#header .machine")).to_contain_text("of disk free")
        expect(page.locator("#restart")).to_contain_text("alive when the machine went down")
        page.locator("#restart-decline").click()
        expect(page.locator("#restart-decline")).to_be_hidden()
        expect(page.locator("#restart")).not_to_contain_text("alive when")
        assert JobBoard(studio).state("lost").status == "stopped"
        running(launch(train(studio, "restarted", device="auto", name=NAMES[0])))
        for name in NAMES[1:]:
            job = launch(train(studio, "environment", device="auto", name=name))
            until(job, lambda state: state.status == "waiting")
        expect(page.locator("#header .pill")).to_contain_text("Train")  # the page follows, through the proxy
        page.close()
        check_addresses(int(app.url.rstrip("/").rpartition(":")[2]))
    machine_goes_down(studio)

    (tmp_path / "dev" / "nvidia0").touch()
    with served(studio.path, [*arguments, "--resume-after", "0"], program):
        ended = [until(load_job(studio, name), lambda state: state.status == "finished") for name in NAMES]
    assert [(state.status, state.job.device) for state in ended] == [("finished", "cuda")] * 4
    spans = [(state.started_at or 0.0, state.ended_at or 0.0) for state in ended]
    assert spans == sorted(spans)
    assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:], strict=False))  # never two at once
