"""Text rules on the page: an entry is added, seen before it is saved, saved, and chosen for the tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.text import text_rules
from core.workspace import Workspace
from tests.browser.conftest import Take
from tests.serving import served

pytestmark = pytest.mark.browser


def test_a_rule_is_added_seen_and_saved(tmp_path: Path, open_page: Callable[..., Page], take: Take) -> None:
    workspace = Workspace.open(tmp_path)
    with served(workspace.path) as app:
        page = open_page(app.url + "?tab=tokenizer")
        expect(page.locator("#rules-shown .turned")).to_have_count(2)  # the page is awake
        page.fill("#rules-own textarea", "ወ/ዘ 50%")
        expect(page.locator("#rules-shown .turned")).to_have_count(1)
        page.fill("#rules-written input, #rules-written textarea", "ወ/ዘ")
        page.fill("#rules-said input, #rules-said textarea", "ወደ ዘመን")
        page.click("#rules-add")
        expect(page.locator("#rules-notice")).to_contain_text("Not saved yet")
        expect(page.locator("#rules-shown .after")).to_have_text("ወደ ዘመን ሃምሳ በመቶ")
        expect(page.locator("#rules-shown mark.old").first).to_have_text("ወ/ዘ")
        page.click("#rules-save")
        expect(page.locator("#rules-notice")).to_contain_text("am-2 saved")
        expect(page.locator(".field-rules input")).to_have_value("am-2")
        assert text_rules.load(workspace, "am-2").abbreviations["ወ/ዘ"] == "ወደ ዘመን"
        page.fill("#rules-save-as input, #rules-save-as textarea", "am")
        page.click("#rules-save")
        expect(page.locator("#rules-notice")).to_contain_text("ship with the app")
        take(page, "rules-saved")
