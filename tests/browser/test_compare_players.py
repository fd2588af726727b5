"""The players of a sentence on Listen: one playhead, the keys, and waveforms that are clicked."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import wait_until
from tests.serving import App, served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    workspace = Workspace.open(tmp_path_factory.mktemp("players"))
    training = scenes.chain(workspace, steps=100, total=100, finished=True)[-1]
    scenes.compare(workspace, training.id)
    with served(workspace.path) as app:
        yield app


def share(side: Locator) -> float:
    """The share of the clip at which its player stands."""
    return float(side.locator("audio").evaluate("sound => sound.duration ? sound.currentTime / sound.duration : 0"))


def test_keys_and_a_click_share_one_playhead(app: App, open_page: Callable[..., Page]) -> None:
    page = open_page(f"{app.url}?tab=listen")
    sides = page.locator("#clips .pair").first.locator(".side")
    expect(sides).to_have_count(2)
    first, second = sides.nth(0), sides.nth(1)
    wave = first.locator("[data-wave]")
    expect(wave.locator("svg")).to_have_count(1)

    # A click plays from the place that was clicked.
    box = wave.bounding_box()
    assert box is not None
    wave.click(position={"x": box["width"] / 2, "y": box["height"] / 2})
    wait_until(lambda: share(first) >= 0.5, page)
    expect(page.locator("#clips .heard-now")).to_have_count(1)

    # The next player goes on at the same share, by its letter or by the place of the key.
    page.keyboard.press(" ")
    first.locator("audio").evaluate("sound => { sound.currentTime = 0.3 * sound.duration; }")
    page.keyboard.press("a")
    expect(second).to_contain_class("heard-now")
    assert share(second) == pytest.approx(0.3, abs=0.05)
    page.locator("body").evaluate("""body => body.dispatchEvent(
        new KeyboardEvent("keydown", {key: "ሀ", code: "KeyA", bubbles: true}))""")
    expect(first).to_contain_class("heard-now")

    # A letter that is typed stays a letter.
    page.locator("#listen-text textarea").press("a")
    expect(first).to_contain_class("heard-now")
