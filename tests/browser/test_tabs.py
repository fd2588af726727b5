"""The tabs and the drawer: the state of each, the keyboard, addresses that people have kept, one line of header."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.workspace import Workspace
from tests.browser import scenes, silent_run
from tests.browser.conftest import NARROW, open_tab, wait_until
from tests.serving import App, served

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]
LONGEST = 1600  # pixels of the Data tab at 1280


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[App]:
    workspace = Workspace.open(tmp_path_factory.mktemp("silent"))
    silent_run.train(workspace, silent=True)
    with served(workspace.path) as app:
        yield app


def test_a_silent_run_is_marked_on_its_tab_and_read_aloud(app: App, open_page: Visit) -> None:
    page = open_page(app.url)
    train = page.locator("#tabs [role=tab]:visible", has_text="Train")
    expect(train).to_have_attribute("data-state", "attention")
    expect(train).to_have_accessible_name("Train: attention, Amharic: no speech (20 of 20 sentences are silent)")
    expect(page.get_by_role("tab", name="Model: done")).to_be_visible()
    expect(page.locator("#tabs [role=tab]:visible")).to_have_text(
        ["Start", "Model", "Data", "Tokenizer", "Embeddings", "Train", "Listen", "Share"])


@pytest.mark.parametrize(("former", "place"), [
    ("certificate", "share"), ("jobs", "jobs"), ("storage", "storage"), ("doctor", "doctor")])
def test_a_kept_address_leads_to_the_right_place(app: App, open_page: Visit, former: str, place: str) -> None:
    page = open_page(f"{app.url}?tab={former}")
    expect(page.locator(f"#tab-{place}")).to_be_visible()
    expect(page.locator(f"#tab-{place} .lead")).to_be_visible()
    shown = {"share": "#proof .verdict", "jobs": "#history tbody tr", "storage": "#storage-summary .fact",
             "doctor": "#diagnosis"}[place]
    expect(page.locator(shown).first).to_be_visible()  # it was drawn, not only opened


def test_the_drawer_is_opened_and_left_by_keys(app: App, open_page: Visit) -> None:
    page = open_page(f"{app.url}?tab=train")
    expect(page.locator("#run-status")).to_contain_text("finished")
    opener = page.locator("#drawer-button button")
    opener.focus()
    page.keyboard.press("Enter")
    expect(opener).to_have_attribute("aria-expanded", "true")
    expect(page.locator("#drawer-tabs [role=tab]:focus")).to_have_text("Jobs")
    expect(page.locator("#history")).to_contain_text("Train")
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-storage")).to_be_visible()
    expect(page.locator("#storage-summary")).to_contain_text("Total")
    page.wait_for_function("location.search === '?tab=storage'")
    page.keyboard.press("Escape")
    expect(page.locator("#drawer")).to_be_hidden()
    expect(opener).to_be_focused()
    page.wait_for_function("location.search === '?tab=train'")
    page.reload()
    expect(page.locator("#tab-train")).to_be_visible()
    expect(page.locator("#drawer")).to_be_hidden()


def test_the_header_is_one_line_and_the_drawer_fits_a_telephone(app: App, open_page: Visit) -> None:
    page = open_page(app.url)
    expect(page.locator("#header .machine")).to_contain_text("of disk free")
    middles = page.evaluate("""() => [".brand", "#header .machine", "#header .pill", "#notify button",
        "#drawer-button button"].map((one) => document.querySelector(one).getBoundingClientRect())
        .map((box) => box.top + box.height / 2)""")
    assert max(middles) - min(middles) < 6, middles

    narrow = open_page(app.url, NARROW)
    for name in ("Jobs", "Storage", "Doctor", "Machine"):
        open_tab(narrow, name)
        narrow.wait_for_timeout(700)
        wide = narrow.evaluate("[document.getElementById('drawer').scrollWidth, document.documentElement.scrollWidth]")
        assert max(wide) <= NARROW[0], f"{name}: {wide}"
    expect(narrow.locator("#machine-about")).to_contain_text("of disk free")


def test_data_is_short_and_shows_a_step_when_it_matters(
    tmp_path: Path, open_page: Visit, app: App,
) -> None:
    Workspace.open(tmp_path / "new")
    scenes.tone(tmp_path / "talk.wav", 3.0)
    with served(tmp_path / "new") as new:
        page = open_page(f"{new.url}?tab=data")
        expect(page.locator("#prepare-needs")).to_contain_text("No base model")  # it is drawn
        assert page.evaluate("document.documentElement.scrollHeight") <= LONGEST
        for later in ("#long-audio", "#typing", "#review-fold", "#recogniser-fold", "#prepare-hear"):
            expect(page.locator(later)).to_be_hidden()

        # A recording without a text is segmented after its upload.
        page.locator("#prepare-upload input[type=file]").set_input_files(tmp_path / "talk.wav")
        expect(page.locator("#prepare-look")).to_contain_text("talk.wav is a recording without a text")
        expect(page.locator("#run-long")).to_be_visible()

    trained = open_page(f"{app.url}?tab=data")
    expect(trained.locator("#review-fold > button")).to_contain_text("Review clips: amharic-demo")
    expect(trained.locator("#prepare-result")).to_contain_text("Prepare dataset")
    assert trained.evaluate("document.documentElement.scrollHeight") <= LONGEST


def test_enter_takes_a_choice_and_keeps_the_place(open_page: Visit, app: App) -> None:
    page = open_page(f"{app.url}?tab=listen")
    model = page.locator("#listen-finetuned input")
    expect(model).not_to_have_value("")  # a refresh has filled it
    before = model.input_value()
    model.focus()
    for key in ("ArrowDown", "ArrowDown", "Enter"):
        page.keyboard.press(key)
    expect(model).not_to_have_value(before)
    expect(model).to_be_focused()
    expect(model).to_have_attribute("aria-expanded", "false")

    # The next key opens the list again, and Tab goes on from here.
    page.keyboard.press("ArrowDown")
    expect(model).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("Enter")
    expect(model).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("""() => {
      const model = document.querySelector('#listen-finetuned input'), next = document.activeElement;
      return Boolean(model.compareDocumentPosition(next) & Node.DOCUMENT_POSITION_FOLLOWING);
    }""")


def test_a_step_on_start_opens_its_tab(open_page: Visit, app: App) -> None:
    page = open_page(app.url, NARROW)
    page.locator("#chain [data-open-tab=embeddings]").click()
    expect(page.locator("#tab-embeddings")).to_be_visible()
    wait_until(lambda: "tab=embeddings" in page.url, page)
