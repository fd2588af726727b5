"""A training goes on from an earlier checkpoint with other options, and a single checkpoint is deleted, on the page."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from core.jobs import checkpoint_names
from core.jobs.events import Stopped
from core.jobs.job import Job, load_job
from core.jobs.state import JobBoard
from core.submission import storage
from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import NARROW, Take, wait_until
from tests.serving import App, served
from ui.titles import title_of

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, Job]]:
    """A training that was stopped after four checkpoints."""
    workspace = Workspace.open(tmp_path_factory.mktemp("resume"))
    job = scenes.chain(workspace, steps=430, total=800)[-1]
    scenes.append(job, Stopped("Stopped after step 430."))
    with served(workspace.path) as app:
        yield app, job


@pytest.mark.slow
def test_the_fields_fit_a_narrow_page(scene: tuple[App, Job], open_page: Visit, take: Take) -> None:
    page = open_page(scene[0].url + "?tab=train", NARROW, "dark")
    page.locator("#resume-changes > button").click()
    expect(page.locator(".field-resume-keep_last")).to_be_visible()
    take(page, "resume-with-changes-390")
    wide, seen = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= seen


def test_a_list_that_becomes_shorter_while_it_is_open_harms_nothing(scene: tuple[App, Job], open_page: Visit) -> None:
    app, job = scene
    page = open_page(app.url + "?tab=train")
    page.locator("#resume-changes > button").click()
    field = page.locator("#resume-step input")
    field.click()
    expect(page.get_by_role("option", name="step 100")).to_be_visible()
    page.keyboard.press("Escape")

    # From here no request leaves the page until the list is open again.
    held: list[Route] = []
    page.route("**/run/predict*", lambda route: held.append(route))
    storage.delete(job.workspace, storage.parse(f"run:{job.id}@100"), JobBoard(job.workspace))
    field.click()
    expect(page.get_by_role("option", name="step 100")).to_be_visible()
    wait_until(lambda: bool(held), page)
    with page.expect_response("**/run/predict*"):
        page.unroute("**/run/predict*")  # the held requests leave
    page.wait_for_timeout(1000)
    page.get_by_role("option", name="step 300").click()

    def shows_the_change() -> bool:
        field.click()
        page.get_by_role("option", name="step 300").wait_for()
        shown = page.get_by_role("option", name="step 100").count()
        page.keyboard.press("Escape")
        return not shown

    wait_until(shows_the_change, page)
    expect(field).to_have_value("step 300")
    storage.restore(job.workspace, f"run:{job.id}@100")


def test_a_run_returns_to_a_checkpoint_with_other_options(scene: tuple[App, Job], open_page: Visit, take: Take) -> None:
    app, job = scene
    page = open_page(app.url + "?tab=train")
    page.locator("#checkpoints > button").click()
    expect(page.locator("#run-checkpoints")).to_contain_text("400")
    choose(page, "pin-step", "200")
    page.locator("#delete-checkpoint").click()
    title = title_of(job.workspace, f"run:{job.id}@200")
    assert job.id not in title
    expect(page.locator("body")).to_contain_text(f"{title} is in the bin. Restore it on the Storage tab")
    assert checkpoint_names.checkpoint_steps(job.directory) == [100, 300, 400]

    page.locator("#resume-changes > button").click()
    expect(page.locator(".field-resume-keep_last input")).to_have_value("2")
    page.locator(".field-resume-keep_last input").fill("5")
    choose(page, "resume-step", "step 300")
    take(page, "resume-with-changes-1280")
    page.locator("#resume-changes").get_by_text("Resume with these").click()
    expect(page.locator("body")).to_contain_text("It resumes from the checkpoint of step 300.")
    assert checkpoint_names.checkpoint_steps(job.directory) == [100, 300]
    assert load_job(job.workspace, job.id).settings["keep_last"] == 5
    deleted = [entry.item.reference for entry in storage.list_deleted(job.workspace)]
    assert sorted(deleted) == [f"run:{job.id}@{step}" for step in (200, 400)]
    expect(page.locator("#run-status")).to_contain_text("keep_last: 5 (before: 2)")


def choose(page: Page, dropdown: str, option: str) -> None:
    page.locator(f"#{dropdown} input").click()
    page.get_by_role("option", name=option, exact=True).click()
