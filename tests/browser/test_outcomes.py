"""A silent run is red at each of the nine places where the page once called it fine; a healthy one is not."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from core.jobs.events import Queued, Started, Step
from core.jobs.locks import FileLock
from core.library import learning
from core.library.learning import LearningRecord
from core.submission import job_chains
from core.workspace import Workspace
from tests.browser import scenes, silent_run
from tests.browser.conftest import LOOKS, Take, open_tab
from tests.browser.silent_run import SILENT_WORDS
from tests.serving import App, served

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]

NINE = {  # what once looked fine: the tab, the place, and the words of a silent run there
    "box of the data": ("Start", "#start-data", SILENT_WORDS),
    "ticks": ("Start", "#chain li:nth-of-type(5)", SILENT_WORDS),
    "you can use the model now": ("Start", "#chain li:last-of-type", "finished, no speech"),
    "play buttons": ("Train", "#run-samples", "no speech"),
    "error rates of the old languages": ("Listen", "#clips", SILENT_WORDS),
    "MOS of silence": ("Listen", "#evaluation", SILENT_WORDS),
    "no long silence in silence": ("Listen", "#evaluation td[data-name*='(run ']", "100.0%"),
    "all checks passed": ("Share", "#proof .half.new", SILENT_WORDS),
    "export finished": ("Share", "#export-result", SILENT_WORDS),
}


@dataclass(frozen=True)
class Scene:
    app: App
    silent: bool


@pytest.fixture(scope="module", params=[True, False], ids=["silent", "healthy"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    workspace = Workspace.open(tmp_path_factory.mktemp("outcome"))
    silent_run.train(workspace, silent=request.param)
    with served(workspace.path) as app:
        yield Scene(app, request.param)


@LOOKS
def test_each_of_the_nine_places_shows_the_outcome(scene: Scene, open_page: Visit, take: Take, size: tuple[int, int],
                                                   scheme: str) -> None:
    page = open_page(scene.app.url, size, scheme)
    title = re.escape(f"{SILENT_WORDS} - Lisan") if scene.silent else r"Amharic: learned \(.*\) - Lisan"
    expect(page).to_have_title(re.compile(title))
    opened = "Start"
    for tab, place, words in NINE.values():
        if tab != opened:
            take(page, f"outcome-{opened}-{'silent' if scene.silent else 'healthy'}-{scheme}-{size[0]}")
            open_tab(page, opened := tab)
        if place.startswith("#evaluation") and not page.locator("#evaluation").is_visible():
            page.locator("#evaluate > button").click()
        if scene.silent:
            red = page.locator(f"{place}.bad, {place} .bad").filter(has_text=words).first
            expect(red).to_be_visible()
        else:
            expect(page.locator(place).first).to_be_visible()
            expect(page.locator(place).first).not_to_contain_text(re.compile("no speech,|silent|100.0%"))
    expect(page.locator("#proof .half.old .verdict.good")).to_contain_text("checks passed")
    expect(page.locator("#proof .hashes").first).to_be_hidden()
    take(page, f"outcome-{opened}-{'silent' if scene.silent else 'healthy'}-{scheme}-{size[0]}")


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    """A training that runs, of which two checks in a row found no speech."""
    workspace = Workspace.open(tmp_path_factory.mktemp("failing"))
    *before, training = job_chains.submit_chain(workspace, job_chains.ChainOptions(), certificate=False)
    for job in before:
        scenes.append(job, Queued(), Started(1, 1), scenes.Finished({}))
    scenes.append(training, Queued(), Started(1, 1))
    for step in range(1, 101):
        scenes.append(training, Step(step, 800, 3.0, 2.0, {"rows": 0.01}, 1.0, 900.0, step * 0.4, 280.0))
    record = LearningRecord()
    for step in (50, 100):
        record = record.with_report(silent_run.report(step, silent=True))
    learning.write_learning(training.directory, record)
    lock = FileLock.acquire(training.lock)
    assert lock is not None
    with served(workspace.path) as app:
        yield app
    lock.release()


def test_two_failed_checks_in_a_row_offer_to_stop(failing: App, open_page: Visit) -> None:
    page = open_page(failing.url)
    expect(page.locator("#chain [data-alarm=failing]")).to_contain_text(SILENT_WORDS)
    expect(page.locator("#start-stop")).to_have_text("Stop: it learns nothing")
    expect(page).to_have_title(re.compile(r"^12% Train - Lisan"))
    open_tab(page, "Train")
    expect(page.locator("#run-status [data-alarm=failing]")).to_be_visible()
    expect(page.locator("#stop")).to_have_text("Stop: it learns nothing")
