"""Headings, keyboard and ids of every tab; with axe-core (LISAN_AXE names its script) its findings too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.workspace import Workspace
from tests.browser import silent_run
from tests.browser.conftest import LOOKS, open_tab
from tests.serving import App, served
from ui.page import PLACES, TABS

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    workspace = Workspace.open(tmp_path_factory.mktemp("accessible"))
    silent_run.train(workspace, silent=True)
    with served(workspace.path) as app:
        yield app


def test_each_tab_has_one_first_heading_and_ids_are_unique(app: App, open_page: Visit) -> None:
    page = open_page(app.url)
    for name, label in PLACES:
        open_tab(page, label)
        # The drawer is a dialog over a page that has its first heading.
        expect(page.locator(f"#tab-{name} {'h1' if (name, label) in TABS else 'h2'}").first).to_be_visible()
        expect(page.locator("h1:visible")).to_have_count(1)
        twice = page.evaluate("""() => {
            const ids = [...document.querySelectorAll("[id]")].map((one) => one.id).filter(Boolean);
            return ids.filter((id, at) => ids.indexOf(id) !== at);
        }""")
        assert twice == [], f"{label} has ids twice: {twice}"


def test_tabs_are_reached_by_keys(app: App, open_page: Visit) -> None:
    page = open_page(app.url)
    page.keyboard.press("Tab")
    expect(page.locator(".skip-link")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("#tab-start")).to_be_focused()

    tabs = page.locator("#tabs [role=tablist] [role=tab]:visible")
    tabs.first.focus()
    expect(page.locator("#tabs [role=tab][tabindex='0']:visible")).to_have_count(1)
    for key, label in (("ArrowRight", "Model"), ("ArrowRight", "Data"), ("ArrowLeft", "Model"), ("Home", "Start"),
                       ("End", "Share"), ("ArrowRight", "Start")):
        page.keyboard.press(key)
        chosen = page.locator("#tabs [role=tablist] [role=tab][aria-selected=true]:visible")
        expect(chosen).to_have_text(label)
        expect(chosen).to_be_focused()


@LOOKS
def test_axe_finds_nothing_serious_or_moderate(app: App, open_page: Visit, size: tuple[int, int], scheme: str) -> None:
    script = os.environ.get("LISAN_AXE")
    if not script:
        pytest.skip("LISAN_AXE does not name axe.min.js (PyPI: axe-playwright-python has it).")
    page = open_page(app.url, size, scheme)
    page.evaluate(Path(script).read_text(encoding="utf-8"))
    for name, label in PLACES:
        open_tab(page, label)
        expect(page.locator(f"#tab-{name} .lead, #tab-{name} .intro").first).to_be_visible()
        found = page.evaluate("""() => axe.run(document, {
            resultTypes: ["violations"], rules: {"label-content-name-mismatch": {enabled: true}}})""")
        grave = [(one["id"], [node["html"][:120] for node in one["nodes"][:3]]) for one in found["violations"]
                 if one["impact"] in ("critical", "serious", "moderate")]
        assert grave == [], f"{label}: {grave}"
