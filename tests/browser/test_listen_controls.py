"""The controls of IndexTTS2 on the Listen tab: emotion from a clip or by weights, duration, positions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
import soundfile
from playwright.sync_api import Page, expect

from core.jobs.state import JobBoard
from core.workspace import Workspace
from tests.browser.conftest import WIDE, choose, wait_until
from tests.indextts2_world import write_model
from tests.reference.clips import voiced
from tests.serving import App, served
from ui.live import IDLE_S

pytestmark = pytest.mark.browser
RATE = 16000


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, Workspace]]:
    workspace = Workspace.open(tmp_path_factory.mktemp("controls") / "workspace")
    write_model(workspace.models / "indextts2")
    for name, pitch_hz in (("me", 140.0), ("other", 260.0)):
        soundfile.write(workspace.path.parent / f"{name}.wav", voiced(2 * RATE, RATE, pitch_hz), RATE)
    with served(workspace.path) as address:
        yield address, workspace


def test_the_controls_of_the_family_reach_the_job(app: tuple[App, Workspace], open_page: Callable[..., Page]) -> None:
    address, workspace = app
    page, folder = open_page(address.url + "?tab=listen", WIDE), workspace.path.parent
    page.locator("#tab-listen").get_by_role("button", name="Voice and sampling settings").click()
    choose(page.locator("#listen-base input"), page.get_by_role("option", name=re.compile("IndexTTS2")))
    fields = page.locator("#listen-sound")
    expect(fields.locator(".field-sound-duration_s")).to_be_visible()
    expect(fields.locator(".field-sound-exaggeration")).to_have_count(0)
    page.locator("#listen-upload input[type=file]").set_input_files(folder / "me.wav")
    expect(page.locator("#listen-voice input")).to_have_value("me (recording)")
    page.wait_for_timeout(2 * 1000 * IDLE_S)  # ticks see the uploaded voice
    page.locator("#listen-emotion").get_by_role("button", name="Emotion").first.click()
    page.locator("#listen-emotion-upload input[type=file]").set_input_files(folder / "other.wav")
    expect(page.locator("#listen-emotion-notice")).to_contain_text("selected as the emotion clip")
    expect(page.locator("#listen-emotion-clip input")).to_have_value("other (recording)")
    page.wait_for_timeout(2 * 1000 * IDLE_S)
    expect(page.locator("#listen-voice input")).to_have_value("me (recording)")

    page.locator(".field-sound-emotion-sad input").fill("0.5")
    fields.locator(".field-sound-duration_s").get_by_role("textbox").fill("1.5")
    page.locator("#listen-text textarea").fill("we go")
    page.locator("#speak").click()
    expect(page.locator("#tab-listen")).to_contain_text("a clip or from weights, not both, and sad has a weight")
    page.locator(".field-sound-emotion-sad input").fill("0")
    page.locator(".field-sound-emotion-emotion_strength input").fill("0.7")
    page.locator("#speak").click()
    board = JobBoard(workspace)
    wait_until(lambda: any(state.ended for state in board.states()), page)
    assert board.states()[0].job.settings["voice"] == str(workspace.voices / "me.wav")
    sound = board.states()[0].job.settings["sound"]
    assert isinstance(sound, dict)
    assert (sound["duration_s"], sound["flow_steps"], sound["position_scheme"]) == (1.5, None, "aligned")
    assert sound["emotion"]["emotion_clip"] == str(workspace.voices / "other.wav")
    assert sound["emotion"]["emotion_strength"] == 0.7
    expect(page.locator("#clips audio")).to_have_count(1)
