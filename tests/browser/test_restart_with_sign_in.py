"""A page that is open while the app restarts: a restart forgets every sign-in, so the page asks for it again."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import PATIENCE_MS, open_tab
from tests.processes import free_port
from tests.serving import served

pytestmark = pytest.mark.browser


def sign_in(page: Page) -> None:
    page.get_by_label("username").fill("me")
    page.get_by_label("password").fill("secret")
    page.get_by_role("button", name="Login").click()
    page.wait_for_selector("#tabs [role=tab]", timeout=PATIENCE_MS)


def test_a_page_asks_for_the_sign_in_after_a_restart_and_opens_the_same_tab(browser: Browser, tmp_path: Path) -> None:
    arguments = ["--auth", "me:secret", "--port", str(free_port())]
    with browser.new_context() as context:
        page = context.new_page()
        with served(tmp_path / "workspace", arguments) as app:
            page.goto(app.url, timeout=PATIENCE_MS)
            sign_in(page)
            open_tab(page, "Jobs")
            expect(page.locator("#header .machine")).to_contain_text("of disk free")
        expect(page.get_by_text("Connection to the server was lost").first).to_be_visible()
        with served(tmp_path / "workspace", arguments):
            sign_in(page)
            page.locator("#tab-jobs").wait_for(state="visible", timeout=PATIENCE_MS)


def test_a_page_whose_sign_in_is_gone_asks_for_it(browser: Browser, tmp_path: Path) -> None:
    with served(tmp_path / "workspace", ["--auth", "me:secret"]) as app, browser.new_context() as context:
        page = context.new_page()
        page.goto(app.url, timeout=PATIENCE_MS)
        page.get_by_label("username").fill("me")
        page.get_by_label("password").fill("wrong")
        page.get_by_role("button", name="Login").click()
        expect(page.get_by_label("password")).to_have_value("")
        expect(page.get_by_label("username")).to_have_value("me")  # the name need not be typed again
        sign_in(page)
        context.clear_cookies()
        expect(page.get_by_label("username")).to_be_visible()
