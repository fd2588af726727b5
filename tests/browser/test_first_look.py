"""What a person meets first: nothing cut, nothing undone, a way forward where nothing is, all by keyboard."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, Route, expect

from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import choose, wait_until
from tests.serving import served

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]
_CUT = "field => field.scrollWidth - field.clientWidth"


@dataclass(frozen=True)
class Two:
    """An app over an empty workspace, and one over a workspace with a finished run."""

    empty: str
    run: str


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Two]:
    home: Path = tmp_path_factory.mktemp("first-look")
    workspace = Workspace.open(home / "run")
    made = scenes.chain(workspace, steps=100, total=100, finished=True)
    made[-1].log.write_text("".join(f"line {number}\n" for number in range(200)), "utf-8")
    Workspace.open(home / "empty")
    with served(home / "empty") as empty, served(home / "run") as run:
        yield Two(empty.url, run.url)


def test_start_shows_the_whole_name_of_each_choice(two: Two, shared_page: Visit) -> None:
    page = shared_page(two.empty, "Start")
    expect(page.locator("#chain")).to_contain_text("What will happen")
    for field in ("model", "length"):
        box = page.locator(f"#start-{field} input")
        options = page.locator(f"#start-{field} [role=option]")
        box.click()
        expect(options.nth(1)).to_be_visible()  # the page fills the list, also when it is open already
        for number in range(options.count()):
            options.nth(number).click()
            assert box.evaluate(_CUT) <= 0, f"{box.input_value()!r} is cut"
            box.click()
        page.keyboard.press("Escape")
        expect(options).to_have_count(0)
        box.click()  # it opens again
        expect(options.first).to_be_visible()
        page.keyboard.press("Escape")


def test_own_recordings_are_recognised_on_start(two: Two, shared_page: Visit, tmp_path: Path) -> None:
    for name in ("a", "b"):
        scenes.tone(tmp_path / "in" / f"{name}.wav")
        (tmp_path / "in" / f"{name}.txt").write_text("Habari yako")
    packed = shutil.make_archive(str(tmp_path / "my speech"), "zip", tmp_path / "in")
    page = shared_page(two.empty, "Start")
    choose(page.locator("#start-dataset input"), page.get_by_role("option", name="My own recordings"))
    page.locator("#teach").click()
    expect(page.locator("#start-notice")).to_contain_text("No recordings were given.")
    page.locator("#own-upload input[type=file]").set_input_files(packed)
    expect(page.locator("#own-found")).to_contain_text("Of its 2 entries 2 have a recording and a text.")
    expect(page.locator("#own-name input, #own-name textarea")).to_have_value("my-speech")
    language = page.locator("#own-language input")
    expect(language).to_have_value("")
    page.locator("#teach").click()
    expect(page.locator("#start-notice")).to_contain_text("Language: it is empty; give the code of the language")
    language.fill("Amharic")
    page.keyboard.press("Enter")
    expect(page.locator("#own-found")).to_contain_text("Amharic is written in Ethiopic letters; 100% of the")
    expect(page.get_by_label("Accept any script").first).to_be_visible()
    language.fill("sw")
    page.keyboard.press("Tab")
    expect(page.locator("#own-found")).not_to_contain_text("Ethiopic")
    expect(page.locator("#teach")).to_have_text("Train Swahili")
    for typed, shown, button in (
            ("ha", "Hausa · Harshen Hausa (ha)", "Train Hausa"), ("german", "German · Deutsch (de)", "Train German"),
            ("kn", "kn", "Train Kannada"), ("kore", "Korean · 한국어 (ko)", "Train Korean"),
            ("አማ", "Amharic · አማርኛ (am)", "Train Amharic"), ("twi", "Twi (tw)", "Train Twi")):
        language.fill("")
        language.press_sequentially(typed)
        page.keyboard.press("Enter")
        expect(language).to_have_value(shown)
        expect(page.locator("#teach")).to_have_text(button)


@pytest.mark.parametrize(("tab", "name", "found"), [
    ("Start", "own", "#own-found"), ("Data", "prepare", "#prepare-look")])
def test_what_an_upload_lacks_is_added_to_it(two: Two, shared_page: Visit, tmp_path: Path, tab: str, name: str,
                                             found: str) -> None:
    scenes.tone(tmp_path / "noise.wav")
    (tmp_path / "noise.txt").write_text("Habari yako")
    page = shared_page(two.empty, tab)
    if tab == "Start":
        choose(page.locator("#start-dataset input"), page.get_by_role("option", name="My own recordings"))
    page.locator(f"#{name}-upload input[type=file]").set_input_files(tmp_path / "noise.wav")
    expect(page.locator(found)).to_contain_text("noise.wav is a recording without a text")
    expect(page.locator(found)).to_contain_text("stays in the list: add what is missing to it")
    zone = page.locator(f"#{name}-upload button[aria-dropeffect]")
    zone.focus()
    page.locator(f"#{name}-upload input[type=file]").set_input_files(tmp_path / "noise.txt")
    expect(page.locator(found)).to_contain_text("Of its 1 entry 1 has a recording and a text.")
    expect(page.locator(f"#{name}-upload .file-preview")).to_have_count(0)
    expect(zone).to_be_focused()  # it was drawn anew


def test_a_number_that_a_browser_cannot_hold_is_named(two: Two, shared_page: Visit) -> None:
    page = shared_page(two.empty, "Data")
    page.locator("#tab-data button.label-wrap", has_text="Advanced").click()
    share = page.locator(".field-held_out input").first
    share.select_text()
    page.keyboard.insert_text("1e999")  # as pasted
    expect(page.locator("#refused")).to_have_text("Held-out share: 1e999 is too large. Give a smaller number.")
    expect(share).to_have_value("0.1")


def test_a_refused_event_is_told(two: Two, shared_page: Visit) -> None:
    page = shared_page(two.empty, "Data")
    why = "The page has no event 7. Reload the page if the app was updated."
    refuse = lambda route: route.fulfill(status=422, json={"error": why})  # noqa: E731
    page.route("**/gradio_api/run/predict**", refuse)
    page.locator("#run-prepare").click()
    expect(page.locator("#refused")).to_have_text(why)
    page.unroute("**/gradio_api/run/predict**", refuse)
    expect(page.locator("#refused")).to_have_count(0)


@pytest.mark.parametrize(("tab", "verb", "way"), [
    ("tokenizer", "tokenizer", "dataset"), ("embeddings", "extend", "model")])
def test_an_empty_workspace_offers_a_way_and_no_names_of_nothing(
    two: Two, open_page: Visit, tab: str, verb: str, way: str,
) -> None:
    page = open_page(f"{two.empty}?tab={tab}")
    field = page.locator(f"#tab-{tab} .field-model input")
    expect(page.locator(f"#{verb}-needs")).to_contain_text("No base model")
    expect(field).to_have_value("")
    page.locator(f"#{verb}-needs-{way}").click()
    expect(page.locator(f"#tab-{'data' if way == 'dataset' else way}")).to_be_visible()


def test_a_fold_opened_before_the_page_is_up_to_date_stays_open(two: Two, open_page: Visit) -> None:
    page = open_page(two.empty)
    held: list[Route] = []
    holding = [True]

    def hold(route: Route) -> None:
        if holding[0] and len(route.request.post_data or "") > 500:  # a refresh sends what every field holds
            held.append(route)
        else:
            route.continue_()

    page.route("**/gradio_api/**", hold)
    page.goto(f"{two.run}?tab=train")
    page.locator("#new-run > button").click()
    expect(page.locator("#run-train")).to_be_visible()
    wait_until(lambda: bool(held), page)
    holding[0] = False
    for route in held:
        route.continue_()
    expect(page.locator("#run-status")).to_contain_text("100 of 100")
    expect(page.locator("#run-train")).to_be_visible()


def test_a_fold_says_whether_it_is_open(two: Two, open_page: Visit) -> None:
    page = open_page(f"{two.run}?tab=train")
    fold = page.locator("#tab-train button", has_text="Log").first
    expect(fold).to_have_attribute("aria-expanded", "false")
    fold.click()
    expect(fold).to_have_attribute("aria-expanded", "true")


def test_a_log_is_read_from_its_newest_line(two: Two, open_page: Visit) -> None:
    page = open_page(f"{two.run}?tab=train")
    page.locator("#tab-train button", has_text="Log").first.click()
    box = page.locator("#run-log .log-box")
    expect(box).to_contain_text("line 199")
    hidden = box.evaluate("box => { const end = box.querySelector('.log').getBoundingClientRect().bottom; "
                          "return [box.scrollHeight - box.clientHeight, end - box.getBoundingClientRect().bottom]; }")
    assert hidden[0] > 100, "the log is longer than its box"
    assert hidden[1] <= 1, "its end is in sight"


def test_what_is_reached_by_keyboard_is_seen_and_has_a_name(two: Two, open_page: Visit) -> None:
    page = open_page(two.run)
    expect(page.locator("#chain")).to_contain_text("Train")
    seen: list[str] = []
    while not any("Train A" in name for name in seen) and len(seen) < 30:
        page.keyboard.press("Tab")
        name, outlined = page.evaluate(
            "() => { const at = document.activeElement, look = getComputedStyle(at), box = at.closest('.wrap'); "
            "const edge = look.outlineStyle !== 'none' && look.outlineWidth !== '0px'; "
            "const around = box && (getComputedStyle(box).boxShadow !== 'none' || box.matches(':focus-within')); "
            "return [at.getAttribute('aria-label') || at.innerText || at.title, edge || !!around]; }")
        assert name.strip(), "what has the focus has no name"
        assert outlined, f"{name!r} does not show that it has the focus"
        seen.append(name)
    assert "Train A" in seen[-1]
