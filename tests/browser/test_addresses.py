"""Each tab and run has an address; Back and Forward move between them and do not leave the app."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import choose, open_tab
from tests.serving import served

pytestmark = pytest.mark.browser


def test_back_returns_to_the_tab_and_run_before(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    workspace = Workspace.open(tmp_path)
    first = scenes.chain(workspace, finished=True)[-1]
    second = scenes.chain(workspace, steps=300, finished=True)[-1]
    with served(tmp_path) as app:
        page = open_page(app.url)
        open_tab(page, "Data")
        expect(page).to_have_url(re.compile(r"tab=data$"))
        open_tab(page, "Train")
        expect(page).to_have_url(re.compile(r"tab=train$"))
        page.go_back()
        expect(page.locator("#tab-data")).to_be_visible()
        page.go_forward()
        expect(page.locator("#run-status")).to_contain_text(second.id)

        # The address of a run brings it back, in another page too.
        choose(page.locator("#run-choice input"), page.get_by_role("option").filter(has_text=first.id[-4:]))
        expect(page).to_have_url(re.compile(f"tab=train&run={first.id}$"))
        expect(page.locator("#run-status")).to_contain_text(first.id)
        other = open_page(page.url)
        expect(other.locator("#run-status")).to_contain_text(first.id)

        # Another tab has no run in its address, and Back shows the run again.
        open_tab(page, "Listen")
        expect(page).to_have_url(re.compile(r"tab=listen$"))
        page.go_back()
        expect(page.locator("#run-status")).to_contain_text(first.id)


def test_an_address_of_a_run_that_is_not_there_opens_the_tab(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    job = scenes.chain(Workspace.open(tmp_path), finished=True)[-1]
    with served(tmp_path) as app:
        page = open_page(app.url + "?tab=train&run=train-20200101-000000-0000")
        expect(page.locator("#run-status")).to_contain_text(job.id)


def test_an_address_of_an_earlier_version_does_not_hold_a_person_back(
    tmp_path: Path, open_page: Callable[..., Page],
) -> None:
    Workspace.open(tmp_path)
    with served(tmp_path) as app:
        page = open_page(app.url + "?tab=listen")
        page.goto(app.url + "?tab=certificate")
        expect(page).to_have_url(re.compile(r"tab=share$"))
        page.go_back()
        expect(page.locator("#tab-listen")).to_be_visible()


def test_back_closes_the_drawer_and_keeps_what_was_typed(tmp_path: Path, open_page: Callable[..., Page]) -> None:
    Workspace.open(tmp_path)
    with served(tmp_path) as app:
        page = open_page(app.url + "?tab=listen")
        page.locator("#listen-text textarea").fill("kept")
        page.locator("#drawer-button button").click()
        expect(page).to_have_url(re.compile(r"tab=jobs$"))
        page.go_back()
        expect(page.locator("#drawer")).to_be_hidden()
        expect(page.locator("#listen-text textarea")).to_have_value("kept")
