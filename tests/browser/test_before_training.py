"""The trial before a training, and the checkpoints that are kept by name, as the Train tab shows them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from config.loading import parse_options
from config.schema import PreflightOptions
from core.jobs import checkpoint_names
from core.jobs import job as job_files
from core.jobs.events import Finished, Queued, Stage, Started, WarningRaised
from core.preflight import untried_parts
from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import LOOKS, Take, choose, wait_until
from tests.serving import App, served

pytestmark = pytest.mark.browser
RUN = "amharic"


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[App, Path]]:
    workspace = Workspace.open(tmp_path_factory.mktemp("before"))
    run = scenes.chain(workspace, steps=400, finished=True)[-1]
    for step in checkpoint_names.checkpoint_steps(run.directory) or (200, 400):
        folder = run.directory / "checkpoints" / f"step-{step:06d}"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "rows.safetensors").write_bytes(bytes(1_500_000))
    trial = job_files.create_job(workspace, "preflight", PreflightOptions(), job_id="trial")
    scenes.append(
        trial, Queued(), Started(1, 1), Stage("speak", 2.0),
        WarningRaised("There is little speech to train on: 312 s in 96 clips; 10 min is the least that has worked, "
                      "30 minutes or more is better."),
        Finished({"ready": True, "clips": 8, "steps": 2, "warnings": 1, "features_alike": 1.0, "checkpoint": "12.3 MB",
                  "spoken_s": 1.92, "memory_bytes": 812345678, "training": "about 3.4 h for 4000 steps",
                  "seconds": 48.1, "not_tried": " ".join(untried_parts(parse_options(
                      PreflightOptions, {"scope": "full", "compile": "on", "processes": 2})))}))
    with served(workspace.path) as served_app:
        yield served_app, run.directory


@LOOKS
def test_the_trial_and_the_checkpoints_fit(app: tuple[App, Path], open_page: Callable[..., Page], take: Take,
                                           size: tuple[int, int], scheme: str) -> None:
    page = open_page(f"{app[0].url}?tab=train", size, scheme)
    expand(page)
    expect(page.locator("#preflight")).to_contain_text("about 3.4 h for 4000 steps")
    expect(page.locator("#preflight")).to_contain_text("There is little speech to train on")
    expect(page.locator("#preflight .notice").last).to_contain_text("Not checked: The model's layers are not compiled")
    expect(page.locator("#run-preflight")).to_be_visible()
    expect(page.locator("#run-checkpoints")).to_contain_text("1.5 MB")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    take(page, f"before-training-{size[0]}-{scheme}")


def test_a_checkpoint_is_pinned_and_unpinned_by_name(app: tuple[App, Path], open_page: Callable[..., Page]) -> None:
    url, run = app[0].url, app[1]
    page = open_page(f"{url}?tab=train")
    expand(page)
    choose(page.locator("#pin-step input"), page.get_by_role("option", name="200", exact=True))
    page.locator("#pin-name textarea, #pin-name input").first.fill("good")
    page.locator("#pin").click()
    expect(page.locator("#run-checkpoints")).to_contain_text("“good”")
    assert checkpoint_names.pinned_names(run) == {"good": 200}
    expect(page.locator("#run-checkpoints")).to_contain_text(re.compile(r"Pinned checkpoints on Listen: run \w+, good"))
    choose(page.locator("#pinned-name input"), page.get_by_role("option", name="good", exact=True))
    page.locator("#unpin").click()
    expect(page.locator("#run-checkpoints")).not_to_contain_text("“good”")
    assert checkpoint_names.pinned_names(run) == {}
    page.locator("#pin-name textarea, #pin-name input").first.fill("")
    page.locator("#pin").click()
    expect(page.locator("#checkpoints").get_by_text("Step or name is missing")).to_be_visible()


@pytest.mark.parametrize("height", [900, 5000])  # the page is taller, and shorter
def test_an_open_list_stays_at_its_field_when_the_page_moves_it(
    app: tuple[App, Path], open_page: Callable[..., Page], height: int,
) -> None:
    page = open_page(f"{app[0].url}?tab=train", (1280, height))
    expand(page)
    field = page.locator("#pin-step input")
    places: list[float] = []

    def rests() -> bool:
        """The page is filled: its panels have moved the field no more for two seconds."""
        field.scroll_into_view_if_needed()
        places.append(page.evaluate("scrollY") + (field.bounding_box() or {"y": 0})["y"])
        return len(places) > 8 and len(set(places[-8:])) == 1

    wait_until(rests, page)
    field.click()
    option = page.get_by_role("option", name="200", exact=True)
    expect(option).to_be_visible()
    page.evaluate("""() => {
      const block = document.createElement("div");
      block.style.height = "60px";
      document.querySelector("#run-checkpoints").before(block);
    }""")
    expect(option).to_be_in_viewport()

    def beside() -> bool:
        """The list touches its field from below or from above."""
        box, shown = field.bounding_box(), page.get_by_role("listbox").bounding_box()
        assert box
        assert shown
        below = shown["y"] - (box["y"] + box["height"])
        above = box["y"] - (shown["y"] + shown["height"])
        return -1 <= max(below, above) <= 40

    wait_until(beside, page)
    option.click()
    expect(field).to_have_value("200")


def expand(page: Page) -> None:
    """Open both folds."""
    for fold in ("#checkpoints", "#new-run"):
        button = page.locator(f"{fold} button.label-wrap").first
        if "open" not in (button.get_attribute("class") or ""):
            button.click()
