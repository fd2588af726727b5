"""A listening test as people take it: from a file without a network, by keyboard and by touch, and on the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from core.jobs.events import Finished, Queued, Started
from core.jobs.job import load_job
from core.library import evaluation_report, listening
from core.library.evaluation_report import ANCHOR, REFERENCE
from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import LOOKS, NARROW, PATIENCE_MS, WIDE, Take, choose, fill_opened
from tests.listening_world import EVALUATION, MODELS, evaluated_world, make_test
from tests.serving import App, served

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    workspace = evaluated_world(tmp_path_factory.mktemp("listeners"), 4, 0.25)
    scenes.append(load_job(workspace, EVALUATION), Queued(), Started(1, 1), Finished({"clips": 12}))
    return workspace


@pytest.fixture(scope="module")
def app(world: Workspace) -> Iterator[App]:
    with served(world.path) as served_app:
        yield served_app


Enter = Callable[..., Page]


@pytest.fixture
def enter(browser: Browser) -> Iterator[Enter]:
    """A new listener's browser at an address; errors of scripts fail the test at the end."""
    contexts, faults = list[BrowserContext](), list[str]()

    def visit(address: str, size: tuple[int, int] = WIDE, scheme: str = "light", offline: bool = False) -> Page:
        context = browser.new_context(viewport={"width": size[0], "height": size[1]}, offline=offline,
                                      color_scheme=scheme, has_touch=size == NARROW)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(address)
        return page

    yield visit
    for context in contexts:
        context.close()
    assert faults == []


def begin(page: Page, name: str) -> None:
    page.get_by_label("Your name").fill(name)
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_role("heading", name="Page 1 of 4")).to_be_visible()


def listen(page: Page) -> None:
    """Play every clip of the page to its end."""
    for button in page.locator("button.play").all():
        button.click()
        expect(button).to_contain_text("heard")
        expect(button).not_to_contain_text("not heard")


def narrow_enough(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth <= window.innerWidth"))


def test_the_file_works_without_a_network_by_keyboard_and_keeps_the_answers(world: Workspace, enter: Enter, take: Take,
                                                                          tmp_path: Path) -> None:
    folder, test = make_test(world, "sent", kind="rating", count=4)
    file = tmp_path / "test.html"
    file.write_bytes((folder / listening.PAGE).read_bytes())
    page = enter(file.as_uri(), NARROW, "dark", offline=True)
    assert narrow_enough(page)
    take(page, "listening-start-390-dark")
    page.keyboard.press("Tab")
    page.keyboard.type("Abeba <b>K</b>")
    page.keyboard.press("Enter")
    for place in range(1, 5):
        expect(page.get_by_role("heading", name=f"Page {place} of 4")).to_be_visible()
        expect(page.locator("#next")).to_be_disabled()
        page.keyboard.press("4")  # nothing is answered before it is heard
        assert page.locator("input:checked").count() == 0
        page.keyboard.press("p")
        expect(page.locator("fieldset input").first).to_be_enabled()
        page.keyboard.press(str(place))
        page.keyboard.press("5")
        assert page.locator("input:checked").evaluate_all("all => all.map(one => one.value)") == [str(place), "5"]
        assert narrow_enough(page)
        if place == 2:
            take(page, "listening-rating-390-dark")
            page.reload()  # what was answered stays; the listener goes on
            page.get_by_role("button", name="Go on as Abeba <b>K</b> (1 of 4)").click()
            expect(page.get_by_role("heading", name="Page 2 of 4")).to_be_visible()
            listen(page)
            page.get_by_label("2 Poor").check()
            page.get_by_label("5 No effort").check()
        page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Thank you")).to_be_visible()
    with page.expect_download() as download:
        page.get_by_role("button", name="Save my answers").click()
    saved = Path(download.value.path()).read_bytes()
    added = listening.add_answers(world, saved, "answers.json")
    assert (added.answers, added.complete) == (4, True)
    session = next(iter(listening.read_sessions(folder, test)[0].values()))
    assert session.listener == "Abeba <b>K</b>"
    assert sorted(answer["naturalness"] for answer in session.answers.values()) == [1, 2, 3, 4]
    assert sorted(answer["place"] for answer in session.answers.values()) == [0, 1, 2, 3]
    assert set(session.answers) == set(test.rows[session.row])


@LOOKS
def test_the_pages_of_a_test_fit(world: Workspace, enter: Enter, take: Take, size: tuple[int, int],
                                 scheme: str) -> None:
    name = f"looks-{size[0]}-{scheme}"
    page = enter((make_test(world, name, kind="preference", count=2, models=MODELS[:2])[0] / listening.PAGE).as_uri(),
                 size, scheme)
    page.get_by_label("Your name").fill("Chala")
    page.get_by_role("button", name="Start").click()
    listen(page)
    page.get_by_label("No difference").check()
    assert narrow_enough(page)
    take(page, f"listening-preference-{size[0]}-{scheme}")


def test_two_listeners_on_the_page_lose_nothing(world: Workspace, app: App, open_page: Callable[..., Page],
                                                enter: Enter, take: Take) -> None:
    page = open_page(f"{app.url}?tab=listen", NARROW)
    page.get_by_role("button", name="Evaluate: error").click()
    page.locator("#listening button.label-wrap").first.click()
    choose(page.locator("#listening-kind input"), page.get_by_role("option", name="Preference, A or B"))
    fill_opened(page.locator("#listening-count input"), "4")
    page.locator("#run-listening").click()
    card = page.locator('#listening-tests .card:not(:has(a[href*="/looks-"]))', has_text="Preference, A or B")
    link = card.get_by_role("link", name="Take the test")
    expect(link).to_be_visible()
    address = f"{app.url.rstrip('/')}/{link.get_attribute('href')}"
    test = next(one for _, one in listening.list_tests(world, EVALUATION) if one.id == card.get_attribute("data-test"))
    folder = next(path for path, one in listening.list_tests(world, EVALUATION) if one.id == test.id)
    first, second = enter(address, NARROW), enter(address)
    begin(first, "Abeba")
    begin(second, "Bekele")
    for place in range(4):
        for one in (first, second):
            if (one, place) == (second, 1):
                one.context.set_offline(True)  # the app is not there for an answer
            listen(one)
            one.keyboard.press("1")
            one.keyboard.press("Enter")
            if (one, place) == (second, 1):
                expect(one.get_by_role("heading", name="Page 3 of 4")).to_be_visible()
                one.context.set_offline(False)
    for one in (first, second):
        expect(one.get_by_text("All your answers have arrived")).to_be_visible()
    sessions = listening.read_sessions(folder, test)[0].values()
    assert sorted((one.listener, len(one.answers)) for one in sessions) == [("Abeba", 4), ("Bekele", 4)]
    assert len({one.row for one in sessions}) == 2
    result = next(one for one in evaluation_report.read(world.runs / EVALUATION).listening if one.test == folder.name)
    assert sum(one.answers for one in result.scores) == 8
    assert {(one.first, one.second) for one in result.scores} == {MODELS[:2], (REFERENCE, ANCHOR)}

    # a file of a listener elsewhere, then one that no test page wrote
    models = {clip.id: clip.model for clip in test.clips}
    trials = {trial.id: trial.clips for trial in test.trials}
    answers = [{"trial": trial, "place": place, "seconds": 1,
                "preference": "A" if models[trials[trial][0]] == REFERENCE else "B"}
               for place, trial in enumerate(test.rows[0])]
    file = {"format": listening.FORMAT, "test": test.id, "sessions": [
        {"session": "ab" * 16, "listener": "<img src=x onerror=alert(1)>", "row": 0, "answers": answers}]}
    upload = page.locator("#listening-answers input[type=file]")
    upload.set_input_files({"name": "a.json", "mimeType": "application/json", "buffer": json.dumps(file).encode()})
    expect(page.locator("#listening-notice")).to_contain_text("4 new answers from 1 file")
    expect(card).to_contain_text("3 listeners")
    card.locator("details", has_text="Listeners").last.locator("summary").click()
    expect(card).to_contain_text("<img src=x onerror=alert(1)>")
    assert page.locator("#listening-tests img").count() == 0
    assert narrow_enough(page)
    take(page, "listening-results-390-light")
    upload = page.locator("#listening-answers input[type=file]")
    upload.set_input_files({"name": "b.json", "mimeType": "application/json", "buffer": b'{"format": 1}'})
    expect(page.locator("#listening-notice")).to_contain_text("b.json holds no answers of a listening test")


def test_the_app_answers_a_listener_and_no_other_site(world: Workspace, app: App, enter: Enter) -> None:
    folder = make_test(world, "served", kind="abx", count=4)[0]
    page = enter(f"{app.url.rstrip('/')}/media/listening/{folder.name}.html")
    status = """async ([path, body]) => {
        const reply = await fetch(path, {method: "POST", body});
        return [reply.status, (await reply.json().catch(() => ({}))).error || ""];
    }"""
    own = f"/media/listening/{folder.name}.html"
    assert page.evaluate(status, [own, "{}"]) == [422, "The page holds no answers of a listening test."]
    assert page.evaluate(status, [own, "x" * (2 << 20)])[0] == 422
    assert page.evaluate(status, [f"/media/listening/{EVALUATION}.html", "{}"])[0] == 422
    assert page.evaluate("async path => (await fetch(path)).status", f"/media/listening/{EVALUATION}.html") == 404
    assert page.evaluate("async path => (await fetch(path)).status", "/media/listening/..%2f..%2fetc.html") == 404
