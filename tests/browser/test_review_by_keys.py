"""Reviewing by the keyboard alone: clips are played, left out and written anew, and saved as another version."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.dataset import review
from core.dataset.clip_index import build_index
from core.jobs import control
from core.jobs.state import JobBoard
from core.workspace import Workspace
from data import manifest
from data.clip_findings import AnalysedClip
from data.manifest import ManifestClip
from data.measures import Measures
from tests.browser import scenes
from tests.browser.conftest import NARROW, Take, wait_until
from tests.serving import ROOT, served

pytestmark = pytest.mark.browser
CLIPS = 12


def said(name: str, number: int) -> str:
    """A text in which no letter is rare."""
    return f"{name} {3 * chr(97 + number)}"


def dataset(workspace: Workspace, name: str) -> None:
    """Twelve clips, of the same names in every dataset and other texts; the first one is clipped."""
    folder = workspace.datasets / name
    clips = []
    for number in range(CLIPS):
        scenes.tone(folder / f"audio/c{number:02}.wav", seconds=3.0, frequency=200.0 + 10 * number)
        side = "held_out" if number == CLIPS - 1 else "train"
        clips.append(ManifestClip(f"c{number:02}", f"audio/c{number:02}.wav", said(name, number), "am", side, 3.0,
                                  "one",
                          f"{name}{number}".ljust(64, "0")))
    manifest.save(folder, manifest.make_card(name, "am", "made", clips), clips)
    spoken = (AnalysedClip(one.id, one.text, "one", Measures(
        3.0, 16000, 0.4, 0.2 if one.id == "c00" else 0.0, -20.0, 35.0, 0.0, 0.0, 8000.0, "", "40" * 120))
        for one in clips)
    build_index(workspace, manifest.load(folder), spoken,
          {"rules": "", "normaliser": "ethiopic", "longest_tokens": "200", "max_text_length": "0"})


def current(page: Page) -> str:
    """The clip that has the keyboard."""
    return str(page.evaluate("document.activeElement.closest('.clip')?.dataset.clip || ''"))


def reach(page: Page, selector: str, most: int = 200) -> None:
    """Press Tab until something within `selector` has the keyboard."""
    for _ in range(most):
        page.keyboard.press("Tab")
        if page.evaluate("s => Boolean(document.activeElement.closest(s))", selector):
            return
    raise AssertionError(f"{selector} is not reached within {most} presses of Tab")


def test_a_dataset_is_reviewed_by_keys_alone(tmp_path: Path, open_page: Callable[..., Page], take: Take) -> None:
    workspace = Workspace.open(tmp_path)
    (workspace.models / "tiny").symlink_to(ROOT / "models" / "tiny" / "pack")
    for name in ("first", "second"):
        dataset(workspace, name)
    with served(tmp_path) as app:
        page = open_page(app.url + "?tab=data")
        try:
            reach(page, "#review-fold > button")
            expect(page.locator("#review-fold > button")).to_contain_text("first, 1 of 12 clips with findings")
            page.keyboard.press("Enter")
            expect(page.locator("#review-table .clip")).to_have_count(10)
            reach(page, "#review-table .clip")
            assert current(page) == "c00"  # the worst
            sound = page.locator("#review-table .clip").first.locator("audio")
            page.keyboard.press(" ")
            wait_until(lambda: bool(sound.evaluate("one => !one.paused && one.currentTime > 0")), page)
            page.keyboard.press(" ")
            wait_until(lambda: bool(sound.evaluate("one => one.paused")), page)

            page.keyboard.press("x")
            expect(page.locator('[data-clip="c00"] .pill')).to_have_text("excluded")
            assert not review.read_decisions(workspace, "first")["c00"].included

            page.keyboard.press("j")
            assert current(page) == "c01"  # the table was made anew, and the place in it is kept
            page.keyboard.press("e")
            page.keyboard.press("Control+a")
            page.keyboard.type("another text")
            page.keyboard.press("Enter")
            expect(page.locator('[data-clip="c01"] .pill')).to_have_text("edited")
            assert review.read_decisions(workspace, "first")["c01"].text == "another text"
            assert current(page) == "c01"

            page.keyboard.press("n")
            expect(page.locator("#review-table .clip")).to_have_count(CLIPS - 10)
            take(page, "review-keys-1280")
            reach(page, "#review-name")
            page.keyboard.type("better")
            reach(page, "#review-save")
            page.keyboard.press("Enter")
            wait_until(lambda: "better" in workspace.list_datasets(), page)
            assert [clip.id for clip in manifest.load(workspace.dataset("better")).clips][:1] == ["c01"]
        finally:
            for state in JobBoard(workspace).queue():
                control.force_stop(state.job)


def test_what_is_typed_for_one_dataset_stays_with_it(tmp_path: Path, open_page: Callable[..., Page],
                                                     take: Take) -> None:
    workspace = Workspace.open(tmp_path)
    for name in ("first", "second"):
        dataset(workspace, name)
    with served(tmp_path) as app:
        page = open_page(app.url + "?tab=data", NARROW, "dark")
        page.locator("#review-fold > button").click()
        text = page.locator('#review-table [data-clip="c02"] textarea')
        expect(text).to_have_value(said("first", 2))
        text.press("Control+a")
        page.keyboard.type("typed for the first")
        page.locator("#review-dataset input").click()  # leaves the text, which is told a moment later
        page.locator('[role="option"]:has-text("second")').click()
        expect(text).to_have_value(said("second", 2))
        wait_until(lambda: "c02" in review.read_decisions(workspace, "first"), page)
        assert review.read_decisions(workspace, "first")["c02"].text == "typed for the first"
        assert review.read_decisions(workspace, "second") == {}
        take(page, "review-second-390-dark")
