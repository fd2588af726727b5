"""Start while own recordings are being learnt: a reload shows them, and what was said goes when the chain ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
from playwright.sync_api import Page, expect

from core.jobs.events import Finished, Queued, Started, Stopped
from core.jobs.job import Job
from core.jobs.locks import FileLock
from core.submission import job_chains
from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import choose
from tests.serving import App, served
from ui import start

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]
RECORDINGS, LENGTH = "mine (300 clips)", "Quick test: 2 min, up to 100 steps"


@dataclass
class Scene:
    """A quick try of own recordings, in its training, which lives until `end`."""

    app: App
    training: Job
    lock: FileLock

    def end(self) -> None:
        scenes.append(self.training, Stopped("Stopped after step 40 of 100, which is saved."))
        self.lock.release()


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    workspace = Workspace.open(tmp_path_factory.mktemp("own"))
    scenes.dataset(workspace, "mine")
    options = start.chain_options(workspace, "tiny", "am", "mine", start.QUICK)
    *before, training = job_chains.submit_chain(workspace, options, certificate=False)
    for job in before:
        scenes.append(job, Queued(), Started(1, 1), Finished({}))
    scenes.train(training, 40, 100)
    lock = FileLock.acquire(training.lock)
    assert lock is not None
    with served(workspace.path) as app:
        yield Scene(app, training, lock)



def test_a_reload_shows_what_is_learnt_and_a_notice_ends_with_it(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url)
    for _ in range(2):
        expect(page.locator("#start-dataset input")).to_have_value(RECORDINGS)
        expect(page.locator("#start-length input")).to_have_value(LENGTH)
        page.reload()
    expect(page.locator("#start-dataset input")).to_have_value(RECORDINGS)
    choose(page.locator("#start-dataset input"), page.get_by_role("option", name=start.DEMO_LABEL))
    notice = page.locator(".notice.info", has_text="Stopping after this step")
    page.locator("#start-stop").click()
    expect(notice).to_be_visible()
    scene.end()
    expect(page.locator("#chain")).to_contain_text("Stopped after step 40 of 100")
    expect(notice).to_have_count(0)
    expect(page.locator("#start-dataset input")).to_have_value(start.DEMO_LABEL)  # a person's choice stays
