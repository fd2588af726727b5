"""Headings, keyboard and ids of every tab; with axe-core (LISAN_AXE names its script) its findings too."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.sources import prompt_lists
from core.workspace import Workspace
from tests.browser import scenes, silent_run, test_review_by_keys
from tests.browser.conftest import LOOKS, NARROW, WIDE, open_tab
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


def load_axe(page: Page) -> None:
    """Load axe-core; skipped if no file of it is named."""
    script = os.environ.get("LISAN_AXE")
    if not script:
        pytest.skip("LISAN_AXE does not name axe.min.js (PyPI: axe-playwright-python has it).")
    page.evaluate(Path(script).read_text(encoding="utf-8"))


def faults(page: Page) -> list[tuple[str, list[str]]]:
    """The findings of axe-core that are moderate or worse, each with its first elements."""
    found = page.evaluate("""() => axe.run(document, {
        resultTypes: ["violations"], rules: {"label-content-name-mismatch": {enabled: true}}})""")
    return [(fault["id"], [node["html"][:120] for node in fault["nodes"][:3]]) for fault in found["violations"]
            if fault["impact"] in ("critical", "serious", "moderate")]


def open_folds(page: Page, tab: str) -> None:
    """Open every section of a tab, also those inside of others."""
    for _ in range(3):
        opened = page.evaluate("""(tab) => {
            const closed = [...document.querySelectorAll(`#tab-${tab} button.label-wrap:not(.open)`)]
                .filter((button) => button.checkVisibility());
            for (const button of closed) button.click();
            for (const fold of document.querySelectorAll(`#tab-${tab} details`)) fold.open = true;
            return closed.length;
        }""", tab)
        page.wait_for_timeout(1000)
        if not opened:
            return


def test_a_tab_is_called_what_it_shows_where_the_bar_is_narrow(app: App, open_page: Visit) -> None:
    """A tab from the menu of further tabs takes the place of the last one in the bar."""
    page = open_page(app.url, NARROW, "light")
    expect(page.locator("#tabs [role=tab][aria-label]:visible").first).to_be_visible()
    for name, label in PLACES:
        open_tab(page, label)
        expect(page.locator(f"#tab-{name} .lead, #tab-{name} .intro").first).to_be_visible()
        named = page.evaluate("""() => [...document.querySelectorAll("#tabs > .tab-wrapper [role=tab]")]
            .filter((tab) => tab.checkVisibility({visibilityProperty: true}))
            .map((tab) => [tab.textContent.trim(), tab.getAttribute("aria-label") || ""])""")
        assert len(named) > 1
        assert all(spoken.startswith(f"{text}: ") for text, spoken in named), (label, named)


@LOOKS
def test_axe_finds_nothing_serious_or_moderate(app: App, open_page: Visit, size: tuple[int, int], scheme: str) -> None:
    page = open_page(app.url, size, scheme)
    load_axe(page)
    for name, label in PLACES:
        open_tab(page, label)
        expect(page.locator(f"#tab-{name} .lead, #tab-{name} .intro").first).to_be_visible()
        assert faults(page) == [], label


@pytest.fixture(scope="module")
def full_app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """Over a workspace with a finished run, a comparison, a certificate, a dataset to review and a prompt list."""
    workspace = Workspace.open(tmp_path_factory.mktemp("full"))
    training = scenes.chain(workspace, steps=200, total=200, finished=True)[-1]
    scenes.compare(workspace, training.id)
    scenes.certify(workspace, training.id)
    scenes.tokenizer(workspace)
    scenes.examine(workspace)
    test_review_by_keys.dataset(workspace, "reviewed")
    prompt_lists.create(workspace, "my-voice", "am", scenes.SPOKEN)
    with served(workspace.path) as app:
        yield app


@pytest.mark.parametrize(("language", "size", "scheme"), [
    ("en", WIDE, "light"), ("en", NARROW, "dark"),
    *(pytest.param(*look, marks=pytest.mark.slow) for look in (
        ("en", NARROW, "light"), ("en", WIDE, "dark"), ("fr", WIDE, "light"), ("am", NARROW, "light"),
        ("sw", WIDE, "dark")))])
def test_axe_finds_nothing_with_every_section_open(full_app: App, open_page: Visit, language: str,
                                                   size: tuple[int, int], scheme: str) -> None:
    page = open_page(full_app.url, size, scheme)
    page.locator("#language select").select_option(language)
    for name, _ in PLACES:
        page.goto(f"{full_app.url}?tab={name}")
        page.locator(f"#tab-{name}").wait_for(state="visible")
        expect(page.locator("html")).to_have_attribute("lang", language)
        open_folds(page, name)
        if name == "data":
            expect(page.locator("#recording-card .prompt")).to_be_visible()
            expect(page.locator("#review-table .clip").first).to_be_visible()
        load_axe(page)
        assert faults(page) == [], name
