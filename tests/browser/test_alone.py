"""Listen before anything was trained: the base speaks alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.jobs import control
from core.jobs.state import JobBoard
from core.workspace import Workspace
from tests.browser.conftest import NARROW, Take
from tests.serving import ROOT, served
from ui import listen

pytestmark = pytest.mark.browser


def test_a_base_model_is_heard_before_anything_was_trained(
    tmp_path: Path, open_page: Callable[..., Page], take: Take,
) -> None:
    workspace = Workspace.open(tmp_path)
    (workspace.models / "tiny").symlink_to(ROOT / "models" / "tiny" / "pack")
    with served(tmp_path) as app:
        page = open_page(app.url + "?tab=listen")
        try:
            expect(page.locator("#listen-finetuned input")).to_have_value("No trained model yet: base model only")
            expect(page.locator("#speak")).to_have_text("Synthesize")
            expect(page.locator("#listen-text textarea")).to_have_value(listen.EXAMPLES["en"][0])
            page.locator("#listen-text textarea").fill("The old man found a letter.")
            page.locator("#speak").click()
            expect(page.locator("#clips audio")).to_have_count(1)
            expect(page.locator("#clips")).to_contain_text("CER")
            take(page, "alone-1280")
            narrow = open_page(app.url + "?tab=listen", NARROW)
            expect(narrow.locator("#clips audio")).to_be_visible()
            take(narrow, "alone-390")
        finally:
            for state in JobBoard(workspace).queue():
                control.force_stop(state.job)
