"""A real Chromium in front of the real app. A missing browser fails the run; it does not skip."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect, sync_playwright
from playwright.sync_api import TimeoutError as PlaywrightTimeout

from tests.processes import PATIENCE_S
from ui.page import DRAWER

PICTURES = Path(__file__).resolve().parents[2] / "test-output"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
WITHOUT = (  # what Playwright turns off, which this takes the place of; then a page of Chromium's own in each window
    "AvoidUnnecessaryBeforeUnloadCheckSync", "DestroyProfileOnBrowserClose", "HttpsUpgrades",
    "HttpsFirstBalancedModeAutoEnable", "LensOverlay", "MediaRouter", "PaintHolding", "ThirdPartyStoragePartitioning",
    "AvoidCorsURLLoaderRestartOnRedirect", "OptimizationHints", "NetworkTimeServiceQuerying", "AimEnabled",
    "PreconnectToSearch", "WebUIOmniboxPopup", "WebUIOmniboxAimPopup", "WebUIOmniboxFullPopup")
FLAGS = ("--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--autoplay-policy=no-user-gesture-required",
         f"--disable-features={','.join(WITHOUT)}")
PATIENCE_MS = 1000 * PATIENCE_S
WIDE, NARROW = (1280, 900), (390, 844)

LOOKS = pytest.mark.parametrize(("scheme", "size"), [
    pytest.param("light", WIDE, id="light-1280"), pytest.param("dark", NARROW, id="dark-390"),
    pytest.param("light", NARROW, id="light-390", marks=pytest.mark.slow),
    pytest.param("dark", WIDE, id="dark-1280", marks=pytest.mark.slow)])
"""Each width and each scheme once; the other two combinations are slow."""

expect.set_options(timeout=PATIENCE_MS)

Take = Callable[[Page, str], Path]


_LONGEST = ("test_main_job", "test_chatterbox", "test_views", "test_first_hour")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The files that take minutes come first, so that none of them runs alone at the end."""
    items.sort(key=lambda item: item.path.stem not in _LONGEST)


def chromium() -> str:
    """Path of a Chromium: LISAN_CHROMIUM, or one that the system has."""
    named = os.environ.get("LISAN_CHROMIUM")
    found = named or next((path for name in NAMES if (path := shutil.which(name))), None)
    if not found:
        pytest.fail("There is no Chromium: install one (apt-get install chromium) or name it in LISAN_CHROMIUM.")
    return found


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium(), args=list(FLAGS), timeout=PATIENCE_MS)
        yield launched
        launched.close()


def load(browser: Browser, url: str, faults: list[str], size: tuple[int, int] = WIDE, scheme: str = "light") -> Page:
    """A page at an address in a fresh browser context; errors of its scripts are appended to `faults`."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, color_scheme=scheme)  # type: ignore[arg-type]
    page = context.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.goto(url, timeout=PATIENCE_MS)
    page.wait_for_selector("#tabs [role=tab]")
    return page


@pytest.fixture
def open_page(browser: Browser) -> Iterator[Callable[..., Page]]:
    """Open an address in a fresh browser context; errors of its scripts fail the test at the end."""
    faults: list[str] = []
    pages: list[Page] = []

    def visit(url: str, size: tuple[int, int] = WIDE, scheme: str = "light") -> Page:
        pages.append(load(browser, url, faults, size, scheme))
        return pages[-1]

    yield visit
    for page in pages:
        page.context.close()
    assert faults == [], f"scripts of the page failed: {faults}"


@pytest.fixture(scope="module")
def shared_pages() -> Iterator[tuple[dict[str, Page], list[str]]]:
    """By address the page that tests of a file share, and the errors of their scripts since a test began."""
    pages: dict[str, Page] = {}
    yield pages, []
    for page in pages.values():
        page.context.close()


@pytest.fixture
def shared_page(
    browser: Browser, shared_pages: tuple[dict[str, Page], list[str]],
) -> Iterator[Callable[[str, str], Page]]:
    """Open a tab on the one page of an address that tests of a file share: to load a page takes seconds.

    For tests that need no page that was just opened, in the order of their file. Errors of its scripts fail the test.
    """
    pages, faults = shared_pages

    def visit(url: str, tab: str) -> Page:
        if url not in pages:
            pages[url] = load(browser, f"{url}?tab={tab.lower()}", faults)
        open_tab(pages[url], tab)
        return pages[url]

    faults.clear()
    yield visit
    assert faults == [], f"scripts of the page failed: {faults}"


@pytest.fixture
def take() -> Take:
    """Keep a picture of the whole page under `test-output/`."""

    def picture(page: Page, name: str) -> Path:
        PICTURES.mkdir(exist_ok=True)
        path = PICTURES / f"{name}.png"
        page.screenshot(path=str(path), full_page=True)
        return path

    return picture


def fill_opened(field: Locator, text: str) -> None:
    """Fill a field of a section that was just opened.

    Gradio (6.31) writes the first value of each field again within 40 ms of drawing it (120 ms on a processor six times
    slower), and what a test typed in between is lost. Nobody types that fast.
    """
    field.wait_for()
    field.page.wait_for_timeout(500)
    field.fill(text)


FORMER_LABELS = {"Certificate": "Share"}
"""By their former labels the tabs that took their place."""
_IN_DRAWER = [label for _, label in DRAWER]


def open_tab(page: Page, name: str) -> None:
    """Open a tab by its label, also in the drawer, and where the tab bar is too narrow to show it."""
    name = FORMER_LABELS.get(name, name)
    drawer = page.locator("#drawer")
    if name in _IN_DRAWER:
        if not drawer.is_visible():
            page.locator("#drawer-button button").click()
        page.locator(f'#drawer-tabs [role="tab"]:visible:text-is("{name}")').first.click()
        page.locator(f"#tab-{name.lower()}").wait_for(state="visible")
        return
    if drawer.is_visible():
        page.locator("#drawer-close button").click()
        drawer.wait_for(state="hidden")

    tab = page.locator(f'#tabs [role="tab"]:visible:text-is("{name}")').first
    if not tab.is_visible():
        tab = page.locator(f'#tabs .overflow-dropdown button:text-is("{name}")').first

        def opened() -> bool:
            """Open the menu and choose; False where it closed in between, as when the bar was measured again."""
            if not tab.is_visible():
                page.locator("#tabs .overflow-menu > button").click()
            try:
                tab.click(timeout=5000)
            except PlaywrightTimeout:
                return False
            return True

        wait_until(opened, page)
    else:
        tab.click()
    page.locator(f"#tab-{name.lower()}").wait_for(state="visible")


def choose(field: Locator, option: Locator) -> None:
    """Open a dropdown's list and click an option, also where the page, as it fills, moves the field out of sight."""

    def clicked() -> bool:
        if field.get_attribute("aria-expanded") != "true":
            field.click()
        field.scroll_into_view_if_needed()  # the list has a fixed place beside its field: it cannot be scrolled to
        try:
            option.click(timeout=5000)
        except PlaywrightTimeout:
            # What arrived meanwhile moved the field away from its list: it is closed, and opened again beside it.
            field.press("Escape")
            return False
        return True

    wait_until(clicked, field.page)


def wait_until(what: Callable[[], bool], page: Page, seconds: float = PATIENCE_S) -> None:
    """Let the page go on until `what` holds."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, f"not within {seconds:g} s"
        page.wait_for_timeout(250)
