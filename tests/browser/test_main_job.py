"""The main job as a person does it: one button, watch, reload, stop, go on, listen. With the built-in model."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Locator, Page, expect

from core.jobs import control
from core.jobs.state import JobBoard, JobState
from core.workspace import Workspace
from tests.browser.conftest import NARROW, Take, choose, open_tab, wait_until
from tests.serving import served
from ui.start import chain_of, usable

pytestmark = [pytest.mark.browser, pytest.mark.long]
CHAIN_S = 900.0


def training(board: JobBoard) -> JobState:
    return next(state for state in chain_of(board.states()) if state.verb == "train")


def sound(page: Page, address: str) -> tuple[np.ndarray, int]:
    """The clip behind a player, decoded."""
    answer = page.request.get(address)
    assert answer.ok
    waveform, sample_rate = soundfile.read(io.BytesIO(answer.body()), dtype="float32")
    return waveform, sample_rate


def test_one_button_teaches_amharic_and_both_voices_can_be_heard(
    tmp_path: Path, open_page: Callable[..., Page], take: Take,
) -> None:
    workspace = Workspace.open(tmp_path)
    board = JobBoard(workspace)
    with served(tmp_path) as app:
        page = open_page(app.url)
        try:
            begin(page, take)
            watch_and_reload(page, take)
            answers_while_it_trains(page, board)
            stop_and_go_on(page, board, take)
            listen(page, board, take)
            proof(page, take)
            narrow = open_page(app.url + "?tab=listen", NARROW)
            expect(narrow.locator("#clips audio").first).to_be_visible()
            take(narrow, "main-listen-390")
        finally:
            for state in board.queue():
                control.force_stop(state.job)


def begin(page: Page, take: Take) -> None:
    """Pick the quick try, press the one button."""
    expect(page.locator("#chain")).to_contain_text("What will happen")
    take(page, "main-start")
    choose(page.locator("#start-length input"), page.get_by_role("option", name="Quick test"))
    page.locator("#teach").click()
    expect(page.locator("#chain")).to_contain_text("Download base model")


def watch_and_reload(page: Page, take: Take) -> None:
    """The live curve moves, and a reload shows it again."""
    line = page.locator("#start-curve polyline").first
    line.wait_for(state="attached", timeout=CHAIN_S * 1000)
    before = line.get_attribute("points")
    wait_until(lambda: line.get_attribute("points") != before, page)
    take(page, "main-training")
    page.reload()
    expect(page.locator("#start-curve polyline").first).to_be_attached()
    expect(page.locator("#teach")).to_be_disabled()


def answers_while_it_trains(page: Page, board: JobBoard) -> None:
    """While training holds the processor the page follows it; how fast: scripts.dev.benchmark.page."""
    open_tab(page, "Train")
    expect(page.locator("#run-status")).to_contain_text("new embedding rows")
    before = step_shown(page)
    wait_until(lambda: step_shown(page) > before, page)
    state = training(board)
    assert state.status == "running"
    assert before < step_shown(page) <= training(board).steps[-1].step


def step_shown(page: Page) -> int:
    """The last step, as the Train tab says it."""
    found = re.search(r"Step\s*(\d+) of \d+", page.locator("#run-status").inner_text(), re.IGNORECASE)
    assert found
    return int(found[1])


def stop_and_go_on(page: Page, board: JobBoard, take: Take) -> None:
    """Stop finishes the step and saves; resume goes on from there, and so does what waited for it."""
    page.locator("#stop").click()
    expect(page.locator("#run-status")).to_contain_text("stopped", timeout=CHAIN_S * 1000)
    stopped = training(board)
    assert stopped.status == "stopped"
    assert stopped.checkpoints[-1].step == stopped.steps[-1].step
    take(page, "main-stopped")
    page.locator("#resume").click()
    wait_until(lambda: len(training(board).steps) > len(stopped.steps), page, CHAIN_S)
    take(page, "main-resumed")


def listen(page: Page, board: JobBoard, take: Take) -> None:
    """At the end of the chain Listen opens by itself; both sides of each text are there and not silent."""
    open_tab(page, "Start")
    expect(page.locator("#tab-listen")).to_be_visible(timeout=CHAIN_S * 1000)
    expect(page.locator("#clips")).to_contain_text("original recordings")
    assert all(state.status == "finished" for state in usable(chain_of(board.states())))
    made = next(state for state in chain_of(board.states()) if state.verb == "compare")
    sides = page.locator("#clips .side")
    heading = page.get_by_text("Original recording", exact=True)
    recordings = sides.filter(has=heading)
    expect(sides.locator("audio")).to_have_count(len(made.audio) + recordings.count())
    assert len({clip.index for clip in made.audio if clip.language == "am"}) >= 6  # none decides the impression alone
    clips = {clip.path: clip for clip in made.audio}
    for address in addresses(sides.filter(has_not=heading)):
        waveform, sample_rate = sound(page, page.url.split("?")[0] + address)
        clip = next(clip for path, clip in clips.items() if address.endswith(path))
        seconds = len(waveform) / sample_rate
        assert abs(seconds - clip.duration_s) < 0.05
        assert 0.4 < seconds < 15
        assert np.abs(waveform).max() > 0.02, f"{address} is silent"
    assert recordings.count() >= 6  # the sentences of the comparison were recorded
    for address in addresses(recordings):
        waveform, _ = sound(page, page.url.split("?")[0] + address)
        assert np.abs(waveform).max() > 0.02, f"{address} is silent"
    first = page.locator("#clips audio").first
    first.evaluate("audio => audio.play()")
    wait_until(lambda: first.evaluate("audio => audio.currentTime") > 0.2, page)
    page.wait_for_timeout(1000)
    take(page, "main-listen")


def addresses(sides: Locator) -> list[str]:
    """Where the players of some sides get their sound."""
    return [audio.get_attribute("src") or "" for audio in sides.locator("audio").all()]


def proof(page: Page, take: Take) -> None:
    """The certificate is there, and every check is green."""
    open_tab(page, "Share")
    expect(page.locator("#proof")).to_contain_text("checks passed", timeout=CHAIN_S * 1000)
    take(page, "main-certificate")
