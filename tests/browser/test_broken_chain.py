"""A chain that broke is red where it failed and grey after it; and the Train form with its preset and folds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from config.schema import CompareOptions
from core.jobs.events import Failed, Finished, Queued, Skipped, Started
from core.jobs.job import create_job
from core.submission import job_chains
from tests.browser import scenes
from tests.browser.conftest import LOOKS, PATIENCE_MS, WIDE, Take, choose, fill_opened
from tests.serving import App, served
from tests.unit.core.library.test_presets import world

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]


@dataclass(frozen=True)
class Scene:
    """A chain that went through and was heard, and a newer one whose tokenizer failed; open in two apps."""

    app: App
    other: App
    failed: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    workspace = world(tmp_path_factory.mktemp("broken") / "workspace")
    older = scenes.chain(workspace, steps=100, total=100, finished=True)
    scenes.compare(workspace, older[-1].id)
    newer = job_chains.submit_chain(workspace, certificate=False)
    listening = create_job(workspace, "compare", CompareOptions(finetuned=f"run:{newer[-1].id}"),
                       after=(newer[-1].id,))
    for job in newer[:2]:
        scenes.append(job, Queued(), Started(1, 1), Finished({"seconds": 2.5}))
    scenes.append(newer[2], Queued(), Started(1, 1), Failed("The dataset has no text.", "Give it some.", "", 1))
    why = f"{newer[2].id} failed, and this job needs what it makes."
    for job in (*newer[3:], listening):
        scenes.append(job, Queued(), Skipped(why, "Mend what it says and continue it."))
    with served(workspace.path) as app, served(workspace.path) as other:
        yield Scene(app, other, newer[2].id)


def fits(page: Page) -> None:
    wide, seen = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= seen, f"{wide} wide in a window of {seen}"


@LOOKS
def test_what_never_began_is_grey_with_its_reason_once(scene: Scene, open_page: Visit, take: Take,
                                                       size: tuple[int, int], scheme: str) -> None:
    page = open_page(scene.app.url, size, scheme)
    expect(page.locator("#chain .link.bad")).to_have_count(1, timeout=PATIENCE_MS)
    expect(page.locator("#chain .link.bad")).to_contain_text("Give it some.")
    expect(page.locator("#chain")).not_to_contain_text("Exit code")
    grey = page.locator("#chain .link.wait")
    expect(grey).to_have_count(3)
    expect(page.locator("#chain").get_by_text("“Build tokenizer” failed")).to_have_count(1)
    expect(page.locator("#chain")).not_to_contain_text(scene.failed)
    expect(page.locator("#start-resume")).to_be_visible()
    expect(page.locator("#other-apps")).to_contain_text("open in 2 apps")
    expect(page.locator("#other-apps")).to_contain_text(scene.other.url.rstrip("/"))
    fits(page)
    take(page, f"broken-chain-{size[0]}-{scheme}")


def test_older_results_stay_where_a_later_chain_broke(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url + "?tab=listen", WIDE, "light")
    expect(page.locator("#clips audio").first).to_be_attached(timeout=PATIENCE_MS)
    expect(page.locator("#tab-listen")).not_to_contain_text("not started, ")
    page.goto(scene.app.url + "?tab=train")
    expect(page.locator("#run-status")).to_contain_text("100 of 100", timeout=PATIENCE_MS)


@LOOKS
def test_the_form_is_folded_by_group_and_keeps_what_was_typed(scene: Scene, open_page: Visit, take: Take,
                                                              size: tuple[int, int], scheme: str) -> None:
    page = open_page(scene.app.url + "?tab=train", size, scheme)
    form = page.locator("#new-run")
    expect(page.locator("#run-status")).to_contain_text("100 of 100", timeout=PATIENCE_MS)  # it closes the fold once
    form.get_by_role("button", name="New run").click()
    choose(page.locator("#preset input"), page.get_by_role("option", name="Small data"))
    expect(page.locator("#preset-about")).to_contain_text("Not yet measured", timeout=PATIENCE_MS)
    steps = page.locator(".field-steps input").first
    expect(steps).to_have_value("4000", timeout=PATIENCE_MS)
    adapters = form.locator("button.label-wrap", has_text="Adapters").first
    adapters.click()
    rank = page.locator(".field-adapter_rank input").first
    expect(rank).to_have_value("32", timeout=PATIENCE_MS)  # the preset fills the fields one after another
    fill_opened(rank, "24")
    expect(adapters).to_contain_text("Adapters: Adapter rank changed", timeout=PATIENCE_MS)
    expect(page.locator("#preset-about")).to_contain_text("Adapter rank: 24 (preset: 32)")
    choose(page.locator("#preset input"), page.get_by_role("option", name="Standard"))
    expect(steps).to_have_value("20000", timeout=PATIENCE_MS)
    expect(rank).to_have_value("24")
    fits(page)
    take(page, f"preset-{size[0]}-{scheme}")
    page.locator("#preset-reset").click()
    expect(rank).to_have_value("32", timeout=PATIENCE_MS)
