"""Pages in states that are rare and must not mislead: long texts, certificates in the making, trainings cut short."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from core.jobs.events import Finished, Progress, Queued, Stage, Started
from core.jobs.locks import FileLock
from core.submission.jobs import submit_certificate
from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import LOOKS, Take, open_tab
from tests.serving import App, served

pytestmark = pytest.mark.browser
LONG = "ሀ" * 20_000
Visit = Callable[..., Page]


@dataclass(frozen=True)
class Scene:
    """A training in its certificate, and a comparison of a text without a space."""

    app: App
    workspace: Workspace


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    workspace = Workspace.open(tmp_path_factory.mktemp("states"))
    made = scenes.chain(workspace, steps=376, total=800)
    scenes.append(made[-1], Finished({"best_step": 300, "certificate": "not proven yet"}))
    (workspace.models / "tiny").mkdir(parents=True)  # the base that the certificate needs
    proof = submit_certificate(made[-1])
    scenes.append(proof, Queued(), Started(1, 1), Stage("certificate"),
                  Progress(18, 40, "sentences", "(English sentences spoken)", 2.5, 9.0))
    scenes.compare(workspace, made[-1].id, texts=(("am", LONG),))
    lock = FileLock.acquire(proof.lock)
    assert lock is not None
    with served(workspace.path) as app:
        yield Scene(app, workspace)
    lock.release()


def fits(page: Page) -> None:
    wide, seen = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= seen, f"{wide} wide in a window of {seen}"


@LOOKS
def test_a_text_without_a_space_stays_in_its_place(
    scene: Scene, open_page: Visit, take: Take, size: tuple[int, int], scheme: str,
) -> None:
    page = open_page(scene.app.url + "?tab=listen", size, scheme)
    expect(page.locator("#clips")).to_contain_text("ሀ...")
    page.locator("#listen-text textarea").fill(LONG)
    expect(page.locator("#listen-length")).to_contain_text("20,000 characters: about 250 chunks")
    fits(page)
    assert page.locator("#clips").bounding_box()["height"] < 3000
    take(page, f"listen-long-{size[0]}-{scheme}")


@LOOKS
def test_a_certificate_in_the_making_is_called_so(
    scene: Scene, open_page: Visit, take: Take, size: tuple[int, int], scheme: str,
) -> None:
    page = open_page(scene.app.url + "?tab=start", size, scheme)
    for tab, place in (("Start", "#chain"), ("Train", "#run-status")):
        open_tab(page, tab)
        expect(page.locator(place)).to_contain_text("Computing certificate, 18 of 40 sentences")
        expect(page.locator(place)).to_contain_text("about 9 s left")
        expect(page.locator(place)).to_contain_text("ot proven yet")
        fits(page)
        take(page, f"certifying-{tab.lower()}-{size[0]}-{scheme}")
    open_tab(page, "Listen")
    expect(page.locator("#listen-finetuned input")).to_have_value(re.compile("step 300.*not proven yet"))
    open_tab(page, "Share")
    expect(page.locator("#proof")).to_contain_text("Not proven yet")
    expect(page.locator("#proof")).to_contain_text("18 of 40 sentences")
    expect(page.locator("#unproven")).to_be_visible()
    expect(page.locator("#certify")).to_be_hidden()
    fits(page)
    take(page, f"certifying-certificate-{size[0]}-{scheme}")
