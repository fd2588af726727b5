"""Every tab over jobs made by hand: what it says, that it follows the journal, that nothing overflows at any width."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from core.jobs.events import AudioGenerated, Finished, Step
from core.jobs.job import Job
from core.jobs.locks import FileLock
from core.jobs.state import JobState
from core.workspace import Workspace
from tests.browser import scenes
from tests.browser.conftest import LOOKS, Take, choose, fill_opened, open_tab, wait_until
from tests.serving import App, served
from ui import comparison_views, job_views, web_surface
from ui.page import PLACES
from ui.titles import title_of

pytestmark = pytest.mark.browser
LABELS = [label for _, label in PLACES]


@dataclass(frozen=True)
class Scene:
    """A served workspace in which a training runs, as far as its journal and its lock say."""

    app: App
    workspace: Workspace
    training: Job
    comparison: Job


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    workspace = Workspace.open(tmp_path_factory.mktemp("scene"))
    earlier = scenes.chain(workspace, steps=200, finished=True)
    scenes.certify(workspace, earlier[-1].id, failed=True)
    made = scenes.chain(workspace, steps=220)
    scenes.dataset(workspace)
    scenes.tokenizer(workspace)
    scenes.examine(workspace)
    (workspace.models / "tiny" / "voices").mkdir(parents=True)
    comparison = scenes.compare(workspace, made[-1].id)
    lock = FileLock.acquire(made[-1].lock)
    assert lock is not None
    with served(workspace.path) as app:
        yield Scene(app, workspace, made[-1], comparison)
    lock.release()


Visit = Callable[..., Page]


@LOOKS
def test_every_tab_fits_its_width(
    scene: Scene, open_page: Visit, take: Take, size: tuple[int, int], scheme: str,
) -> None:
    page = open_page(scene.app.url, size, scheme)
    for label in LABELS:
        open_tab(page, label)
        page.wait_for_timeout(1500)
        take(page, f"{label.lower()}-{size[0]}-{scheme}")
        wide, seen = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
        assert wide <= seen, f"{label} is {wide} wide in a window of {seen}"


def test_the_plan_is_stated_and_the_curve_moves_with_the_journal(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Train")
    expect(page.locator("#run-status")).to_contain_text("81 new rows of 2535")
    expect(page.locator("#run-status")).to_contain_text("220 of 700")
    line = page.locator("#run-curves polyline").first
    before = line.get_attribute("points")
    scenes.append(scene.training, Step(221, 700, 1.5, 0.5, {"rows": 1e-3}, 0.5, 5000.0, 93.0, 190.0))
    expect(page.locator("#run-status")).to_contain_text("221 of 700")
    wait_until(lambda: line.get_attribute("points") != before, page)


def test_the_losses_are_drawn_on_either_axis_and_the_choice_stays(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Train")
    line = page.locator("#run-curves polyline").nth(1)
    before = line.get_attribute("points")
    page.locator("#run-scale label", has_text="Logarithmic").click()
    wait_until(lambda: line.get_attribute("points") != before, page)
    page.wait_for_timeout(3500)
    expect(page.locator("#run-scale input").nth(1)).to_be_checked()
    expect(page.locator("#run-samples .hear").first).to_be_visible()
    assert line.get_attribute("points") != before


def test_a_sentence_is_heard_across_steps_and_a_new_step_does_not_disturb_it(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Train")
    cells = page.locator("#run-samples .takes-row").last.locator(".hear")
    expect(cells).to_have_count(2)
    expect(cells.nth(1)).to_contain_text(re.compile(r"\d+%\s*↑\d+"))
    cells.nth(1).click()
    page.evaluate("document.querySelector('#grid-sound').loop = true")
    scenes.checkpoint(scene.training, 220, 1.9)
    expect(cells).to_have_count(3)
    wait_until(lambda: page.evaluate("(s => !s.paused && s.currentTime > 0)(document.querySelector('#grid-sound'))"),
               page)
    expect(cells.nth(1)).to_have_attribute("aria-pressed", "true")
    cells.nth(1).focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    expect(cells.nth(0)).to_have_attribute("aria-pressed", "true")
    expect(cells.nth(1)).to_have_attribute("aria-pressed", "false")
    heard = page.evaluate("""row => new Promise(done => {
        const sound = document.querySelector('#grid-sound'), heard = [];
        sound.loop = false;
        sound.addEventListener('play', () => {
            heard.push(sound.getAttribute('src').match(/step-(\\d+)/)[1]);
            if (heard.length === 3) done(heard);
        });
        row.querySelector('.turn').click();
    })""", page.locator("#run-samples .takes-row").last.element_handle())
    assert heard == ["000100", "000200", "000220"]


def test_the_doctor_says_its_verdict_and_offers_what_can_be_restored(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Doctor")
    expect(page.locator("#diagnosis .verdict")).to_contain_text("equal top-1 predictions and divergence a code: 83%")
    expect(page.locator("#diagnosis-details")).to_contain_text("83% of codes")
    expect(page.locator("#diagnosis-details summary").last).to_have_text("120 bit-identical")
    expect(page.locator("#restore")).to_be_visible()
    page.locator("#restore").click()
    expect(page.locator("#restoring .notice")).to_contain_text("language or the tokenizer of the new rows")
    page.locator("#run-doctor").click()
    expect(page.locator("#tab-doctor .notice.bad").first).to_contain_text("Checkpoint is missing")


def test_runs_are_compared_on_either_scale(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Train")
    page.locator("#compare-runs > button").click()
    line = page.locator("#runs-compared polyline").first
    expect(line).to_be_visible()
    before = line.get_attribute("points")
    page.locator("#runs-scale label", has_text="Logarithmic").click()
    wait_until(lambda: line.get_attribute("points") != before, page)


def test_a_reload_and_a_second_browser_show_the_same(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url)
    open_tab(page, "Train")
    expect(page.locator("#run-status")).to_contain_text(scene.training.id)
    wait_until(lambda: "tab=train" in page.url, page)
    page.reload()
    expect(page.locator("#tab-train")).to_be_visible()
    expect(page.locator("#run-status")).to_contain_text("81 new rows of 2535")
    other = open_page(scene.app.url + "?tab=train")
    expect(other.locator("#run-status")).to_contain_text(scene.training.id)


def test_stop_asks_first_and_force_stop_asks_again(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Train")
    expect(page.locator("#stop")).to_be_visible()
    expect(page.locator("#force-stop")).to_be_hidden()
    page.locator("#stop").click()
    expect(page.locator("#run-status")).to_contain_text("stopping")
    assert scene.training.stop_file.exists()
    page.locator("#force-stop").click()
    expect(page.locator("#force-stop-confirm")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#force-stop-confirm")).to_be_hidden()
    scene.training.stop_file.unlink()
    expect(page.locator("#run-status")).to_contain_text("running")


def test_a_wrong_option_is_told_beside_the_button_and_starts_nothing(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Tokenizer")
    before = scene.workspace.list_runs()
    expect(page.locator("#tab-tokenizer .field-dataset input")).to_have_value(re.compile("."))
    name = page.locator("#tab-tokenizer .field-tokenizer input, #tab-tokenizer .field-tokenizer textarea")
    name.fill("../../x")
    page.locator("#run-tokenizer").click()
    expect(page.locator("#tab-tokenizer [role=alert]").first).to_contain_text("'../../x' cannot be a name")
    assert scene.workspace.list_runs() == before
    name.fill("tiny-am")


def test_what_is_typed_while_a_suggestion_is_on_its_way_stays(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url + "?tab=listen")
    expect(page.locator("#pair-choice input")).to_have_value(re.compile("."))
    held: list[tuple[Route, APIResponse]] = []
    released: list[bool] = []

    def hold(route: Route) -> None:
        answer = route.fetch()
        if "wanted" in answer.text() and not released:
            held.append((route, answer))
        else:
            route.fulfill(response=answer)

    page.route("**/run/predict*", hold)
    open_tab(page, "Tokenizer")
    wait_until(lambda: bool(held), page)
    page.locator(".field-tokenizer input, .field-tokenizer textarea").fill("mine")
    released.append(True)
    for route, answer in held:
        route.fulfill(response=answer)
    expect(page.locator("#tab-tokenizer .field-dataset input")).to_have_value(re.compile("."))
    page.wait_for_timeout(3000)
    expect(page.locator(".field-tokenizer input, .field-tokenizer textarea")).to_have_value("mine")
    page.unroute_all(behavior="ignoreErrors")  # answers may be on their way


def test_the_equal_command_follows_the_form(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Tokenizer")
    page.locator(".field-merges input").fill("40")
    page.locator(".field-merges input").press("Tab")
    page.get_by_role("button", name="Command line").locator("visible=true").click()
    expect(page.locator("#command-tokenizer")).to_contain_text("python -m scripts tokenizer --workspace")
    expect(page.locator("#command-tokenizer")).to_contain_text("--merges 40")


def test_a_red_check_blocks_the_export_until_it_is_named(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Share")
    expect(page.locator("#proof")).to_contain_text("1 of 9 checks failed")
    before = scene.workspace.list_runs()
    page.locator("#export").click()
    expect(page.locator("#tab-share [role=alert]").first).to_contain_text("Embeddings of the old languages")
    assert scene.workspace.list_runs() == before


def test_listen_offers_the_speakers_of_the_data_first_and_every_checkpoint(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url + "?tab=listen")
    expect(page.locator("#listen-voice input")).to_have_value("one (training data)")  # Amharic was trained
    expect(page.locator("#tab-listen [role=alert]")).to_have_count(0)
    box = page.locator("#listen-finetuned input")
    expect(box).to_have_value(re.compile("step 2[02]0, best"))  # another test adds to the training that runs
    expect(page.locator("#listen-use")).to_be_hidden()
    choose(box, page.get_by_role("option", name=re.compile("^step 100")).last)  # of the run that has finished
    expect(page.locator("#listen-use")).to_be_visible()
    expect(page.locator("#speak")).to_have_text("Compare")
    page.locator("#listen-both input").uncheck()
    expect(page.locator("#speak")).to_have_text("Synthesize")
    expect(page.locator("#listen-blind")).to_be_hidden()


def test_the_card_of_the_clip_that_is_streamed_says_so_and_pauses(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Listen")
    expect(page.locator("#clips audio")).not_to_have_count(0)
    place = f"{scene.comparison.id}/0/finetuned"
    page.evaluate("""([job, clip, url]) => {
        const box = document.createElement("div");
        box.innerHTML = "<div class='stream-player'></div>";
        Object.assign(box.firstChild.dataset, {job, parts: JSON.stringify(Array(40).fill({clip, url}))});
        window.lisanStream(box);
    }""", [scene.comparison.id, place, f"media/runs/{scene.comparison.id}/audio/0-finetuned.wav"])
    card = page.locator(f"#clips .side[data-clip='{place}']")
    expect(card).to_have_class(re.compile("streaming"))
    expect(page.locator("#clips .stream-toggle:visible")).to_have_count(1)
    card.get_by_role("button", name="Pause").click()
    expect(card.get_by_role("button", name="Play")).to_be_visible()
    card.get_by_role("button", name="Play").click()
    expect(card.get_by_role("button", name="Pause")).to_be_visible()
    page.locator("#clips audio").first.evaluate("audio => audio.play()")  # another clip is heard instead
    expect(page.locator("#clips .streaming")).to_have_count(0)


def test_the_faster_search_of_the_page_finds_what_gradios_finds(browser: Browser) -> None:
    """Also where nodes have come, gone or changed places; no two have the same id."""
    script = next(web_surface._ASSETS.glob("core-*.js")).read_text("utf-8")
    faster = (Path(web_surface.__file__).parent / "core.js").read_text("utf-8")
    found = web_surface._SEARCH.search(script)
    assert found
    assert web_surface._EVENTS_OF_NODE in script
    page = browser.new_page()
    compared = page.evaluate(f"""() => {{
        {found[0].replace(f"function {found['find']}", "function slow").replace(f"{found['find']}(", "slow(")}
        {faster}
        const names = function (e, t) {{ {web_surface._EVENTS_OF_NODE} }};
        let seed = 1, given = 0;
        const random = (most) => (seed = (seed * 48271) % 2147483647) % most;
        const grow = (depth) => ({{id: given++, children: depth ? Array.from({{length: random(5)}},
                                                                          () => grow(depth - 1)) : [], props: {{}}}});
        let same = 0;
        for (let turn = 0; turn < 100; turn++) {{
            given = 0;  // the ids of the tree before, at other places
            const root = {{id: -1, children: [grow(3), grow(3), grow(2)]}};
            for (let change = 0; change < 4; change++) {{
                for (let id = 0; id < given; id++) {{
                    if (slow(root, id) !== findNode(root, id)) return `${{id}} is not the same`;
                    same += slow(root, id) !== null;
                }}
                root.children[random(3)] = grow(random(4));
                root.children.reverse();
            }}
        }}
        const events = Array.from({{length: 200}}, () => ({{targets: Array.from({{length: random(4)}},
            () => [random(9), ["click", "change", null][random(3)]])}}));
        for (let id = 0; id < 9; id++) {{
            const node = {{id, props: {{shared_props: {{}}}}}};
            names(node, events);
            const wanted = JSON.stringify(node.props.shared_props.attached_events);
            if (wanted !== JSON.stringify(eventsOfNode(id, events))) return `${{id}}: not ${{wanted}}`;
            same += eventsOfNode(id, events).length;
        }}
        return same;
    }}""")
    page.close()
    assert isinstance(compared, int), compared
    assert compared > 10_000


def test_an_idle_page_draws_nothing(scene: Scene, open_page: Visit, tmp_path: Path) -> None:
    """Gradio's hidden spinners would ask for 60 frames a second (6.31)."""
    page = open_page(scene.app.url)
    page.add_init_script("window.frames_asked = 0; const frame = window.requestAnimationFrame.bind(window);"
                         "window.requestAnimationFrame = (one) => { window.frames_asked += 1; return frame(one); };")
    page.goto(scene.app.url + "?tab=listen")
    expect(page.locator("#clips audio")).not_to_have_count(0)

    def frames_in_a_second() -> int:
        return int(page.evaluate("async () => { const before = window.frames_asked; "
                                 "await new Promise(done => setTimeout(done, 1000)); "
                                 "return window.frames_asked - before; }"))

    wait_until(lambda: frames_in_a_second() < 20, page)


def test_both_sides_of_a_comparison_play_and_say_their_error(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Listen")
    expect(page.locator("#clips audio")).to_have_count(4)
    expect(page.locator("#clips")).to_contain_text("CER 91%")
    expect(page.locator("#clips")).to_contain_text("original recordings: CER 2.1%")
    played = page.locator("#clips audio").first.evaluate(
        "async (audio) => { await audio.play(); for (let n = 0; n < 3600 && audio.currentTime <= 0.2; n++) "
        "await new Promise(done => setTimeout(done, 50)); "
        "return [audio.currentTime, audio.duration]; }")
    assert played[0] > 0.2
    assert abs(played[1] - 1.4) < 0.1


def test_a_playing_clip_is_not_disturbed_by_news_of_other_clips(scene: Scene, shared_page: Visit) -> None:
    page = shared_page(scene.app.url, "Listen")
    expect(page.locator("#clips audio")).to_have_count(4)
    page.locator("#clips audio").first.evaluate(
        "audio => { audio.same = true; audio.loop = true; return audio.play(); }")
    scenes.append(scene.comparison, AudioGenerated("base", 2, "audio/0-base.wav", "more", "en", 1.4, 0.5), Finished({}))
    expect(page.locator("#clips audio")).to_have_count(5)
    assert page.locator("#clips audio").first.evaluate(  # what comes new takes `loop` away, so it may have played out
        "audio => audio.same && audio.currentTime > 0 && (!audio.paused || audio.ended)")


def test_a_blind_vote_is_kept_and_then_the_names_come_out(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url + "?tab=listen")
    page.locator("#listen-blind input").check()
    expect(page.locator("#clips")).to_contain_text("Sample A")
    expect(page.locator("#clips")).not_to_contain_text("CER")
    page.locator("#vote-a").click()
    expect(page.locator("#tally")).to_contain_text("Blind votes")
    expect(page.locator("#clips")).to_contain_text("CER 91%")
    assert len((scene.workspace.path / "votes.jsonl").read_text().splitlines()) == 1
    [vote] = comparison_views.read_votes(scene.workspace.path / "votes.jsonl")
    models = [title_of(scene.workspace, reference) for reference in (vote.base, vote.finetuned)]
    chosen, other = models[::1 if vote.choice == "base" else -1]
    expect(page.locator(".notices")).to_contain_text([f"You chose A; A was {chosen}, B was {other}. Saved"])


def test_what_was_asked_for_blind_stays_so_after_a_reload(scene: Scene, open_page: Visit) -> None:
    file = scene.workspace.path / "votes.jsonl"
    file.unlink(missing_ok=True)
    comparison_views.set_blind(file, scene.comparison.id)
    page = open_page(scene.app.url + "?tab=listen")
    expect(page.locator("#clips")).to_contain_text("Sample A")
    expect(page.locator("#listen-blind input")).not_to_be_checked()
    page.locator("#vote-none").click()
    expect(page.locator("#clips")).to_contain_text("CER 91%")
    expect(page.locator("#vote")).to_be_hidden()
    assert comparison_views.read_votes(file) == []


def test_an_app_that_was_restarted_shows_the_same(tmp_path: Path, open_page: Visit) -> None:
    workspace = Workspace.open(tmp_path)
    made = scenes.chain(workspace, steps=100, finished=True)
    for _ in range(2):
        with served(tmp_path) as app:
            page = open_page(app.url + "?tab=train")
            expect(page.locator("#run-status")).to_contain_text(made[-1].id)
            expect(page.locator("#run-samples .hear")).to_have_count(len(scenes.SPOKEN))


def test_what_is_deleted_comes_back_and_what_a_job_needs_stays(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url + "?tab=storage")
    expect(page.locator("#storage-summary")).to_contain_text("Datasets")
    expect(page.locator("#storage-items")).to_contain_text("amharic-demo")

    def delete(kind: str, name: str) -> None:
        choose(page.locator("#storage-kind input"), page.get_by_role("option", name=kind, exact=True))
        choose(page.locator("#storage-item input"), page.get_by_role("option", name=re.compile(rf"^\W*{name} ")))
        page.keyboard.press("Escape")
        expect(page.locator("#storage-detail")).to_contain_text("once the bin is emptied")
        page.locator("#storage-delete").click()

    delete("Datasets", "amharic-demo")
    expect(page.locator("#storage-notice")).to_contain_text(f"the job {scene.training.id} runs or waits and needs it")
    assert (scene.workspace.datasets / "amharic-demo").is_dir()
    page.reload()
    delete("Tokenizers", "tiny-am")
    expect(page.locator("#bin")).to_contain_text("tiny-am")
    assert scene.workspace.list_tokenizers() == []
    expect(page.locator("#bin-entry input")).to_have_value(re.compile("tiny-am"))
    page.locator("#bin-restore").click()
    expect(page.locator("#bin")).to_contain_text("The bin is empty")
    assert scene.workspace.list_tokenizers() == ["tiny-am"]


def test_a_run_is_named_on_the_page(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url + "?tab=jobs")
    expect(page.locator("#job-choice input")).to_have_value(re.compile("Train"))  # it follows the tab
    page.locator("#job-rename .label-wrap").click()
    fill_opened(page.locator("#job-title input, #job-title textarea"), "studio voice")
    page.locator("#job-rename-button").click()
    expect(page.locator("#history")).to_contain_text("studio voice")


def test_a_long_outcome_breaks_no_word_of_a_job_and_no_id(browser: Browser) -> None:
    outcome = " ".join(["The dataset has no usable audio, as none of its rows is left:"] * 6)
    states = [JobState(Job(Path(f"/w/runs/{verb}-20261126-182304-6b29"), verb, "cpu", (), 1.0, {}), "failed",
                       message=outcome, started_at=1.0, ended_at=9.0)
              for verb in ("compare", "extend", "tokenizer", "certify", "prepare", "download", "synthesize")]
    style = (Path(job_views.__file__).parent / "style.css").read_text("utf-8")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_content(f"<style>body {{ font-family: sans-serif; --text-sm: 13px }} {style}</style>"
                     f"<div class=\"gradio-container\"><main><div class=\"prose\" id=\"history\">"
                     f"{job_views.history_view(states)}</div></main></div>")
    broken = page.evaluate("""() => [...document.querySelectorAll("td:is([data-name=Job], [data-name=Id])")].flatMap(
    cell => {
        const text = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT).nextNode();
        return [...text.data.matchAll(/\\S+/g)].filter(word => {
            const range = document.createRange();
            range.setStart(text, word.index);
            range.setEnd(text, word.index + word[0].length);
            return new Set([...range.getClientRects()].map(box => box.top)).size > 1;
        }).map(word => word[0]);
    })""")
    wide = page.evaluate("() => { const box = document.querySelector('.scroll');"
                         " return [box.scrollWidth, box.clientWidth]; }")
    page.close()
    assert broken == []
    assert wide[0] <= wide[1]
