"""Sentences are recorded with the microphone of a browser, kept over a reload, and made a dataset."""

from __future__ import annotations

from pathlib import Path

import pytest
import soundfile
from playwright.sync_api import Browser, Page, expect

from core.jobs import control
from core.jobs.state import JobBoard
from core.sources import prompt_lists
from core.workspace import Workspace
from tests.browser.conftest import FLAGS, NARROW, PATIENCE_MS, Take, chromium, wait_until
from tests.serving import ROOT, served

pytestmark = pytest.mark.browser
TEXTS = ("ፋሲካ ፈለገ ፓስታ ትወስዳለች", "ቁልፉ በዩኒቨርሲቲ ነው", "ዘፋኟ መጥፎ ውሻ አጸዳች")
TAKE_MS = 2500
SHORT_MS = 800


def spoken(path: Path) -> Path:
    """Clips of the demo as the WAV file that the browser's microphone plays, over and over."""
    sounds = [soundfile.read(ROOT / "data/demo/am/clips" / f"train-{number:03}.ogg", dtype="int16")
              for number in range(3)]
    with soundfile.SoundFile(path, "w", sounds[0][1], 1) as file:
        for samples, _ in sounds:
            file.write(samples)
    return path


def launch_recorder(browser: Browser, folder: Path) -> Browser:
    """A browser whose microphone plays clips of the demo, and which allows every page to record."""
    flags = ["--use-fake-ui-for-media-stream", "--use-fake-device-for-media-stream",
             f"--use-file-for-fake-audio-capture={spoken(folder / 'voice.wav')}"]
    return browser.browser_type.launch(executable_path=chromium(), args=[*FLAGS, *flags], timeout=PATIENCE_MS)


def begin(page: Page, take_ms: int = TAKE_MS) -> None:
    """Record for a while, by a key alone."""
    page.keyboard.press("r")
    page.locator("#recording-microphone .stop-button").wait_for()
    page.wait_for_timeout(take_ms)


def record(page: Page, take_ms: int = TAKE_MS) -> None:
    begin(page, take_ms)
    page.keyboard.press("r")


def press_at_once(page: Page, *keys: str) -> None:
    """Press keys before the app can answer the first."""
    page.locator("#recording-card .prompt").evaluate("""(card, keys) => {
        for (const key of keys)
            card.dispatchEvent(new KeyboardEvent("keydown", {key, code: `Key${key.toUpperCase()}`, bubbles: true}));
    }""", list(keys))


def test_sentences_are_recorded_by_keys_kept_and_imported(browser: Browser, tmp_path: Path, take: Take) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    (workspace.models / "tiny").symlink_to(ROOT / "models" / "tiny" / "pack")
    faults: list[str] = []
    with served(workspace.path) as app:
        recorder = launch_recorder(browser, tmp_path)
        page = recorder.new_page(viewport={"width": NARROW[0], "height": NARROW[1]})
        page.set_default_timeout(PATIENCE_MS)
        page.on("pageerror", lambda error: faults.append(str(error)))
        try:
            page.goto(f"{app.url}?tab=data")
            page.locator("#recording > button").click()
            sentences = tmp_path / "sentences.txt"
            sentences.write_text("\n".join(TEXTS), encoding="utf-8")
            with page.expect_file_chooser() as chooser:
                page.locator("#recording-upload").click()
            chooser.value.set_files(sentences)
            expect(page.locator("#recording-text textarea")).to_have_value("\n".join(TEXTS))
            page.locator("#recording-language input").fill("am")
            page.locator("#recording-language input").press("Tab")
            page.locator("#recording-name input, #recording-name textarea").first.fill("my-voice")
            page.locator("#recording-create").click()

            # The voice is recorded as it is, without what a browser does for calls.
            settings = page.evaluate("""async () => (await navigator.mediaDevices.getUserMedia({audio: true}))
                .getAudioTracks()[0].getSettings()""")
            changes = {name: settings[name] for name in ("noiseSuppression", "echoCancellation", "autoGainControl")}
            assert not any(changes.values()), changes

            # A recording is judged and stored when it is stopped. The keys work at once.
            card = page.locator("#recording-card .prompt")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[0])
            expect(card).to_be_focused()
            record(page)
            expect(card.locator("[data-take]")).to_contain_text("Your recording, ")
            folder = prompt_lists.folder_of(workspace, "my-voice")
            assert prompt_lists.load(folder).recorded == {0}
            page.keyboard.press("p")
            wait_until(lambda: bool(card.locator("audio").evaluate("sound => sound.currentTime > 0")), page)
            page.keyboard.press("n")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[1])
            page.keyboard.press("s")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[2])

            # After a reload the list goes on with the first sentence that is open.
            page.reload()
            page.locator("#recording > button").click()
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[2])
            expect(card).to_contain_text("1 recorded, 1 skipped")
            card.focus()
            page.keyboard.press("b")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[1])
            page.keyboard.press("n")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[2])

            # Nothing begins before the app has answered: the recording would be of the sentence before.
            press_at_once(page, "b", "r", "n", "s")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[1])
            expect(page.locator("#recording-microphone .stop-button")).to_be_hidden()
            page.wait_for_timeout(SHORT_MS)
            assert prompt_lists.load(folder).skipped == {1}
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[1])
            page.keyboard.press("n")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[2])

            # After a recording that is refused, the next one is stored.
            stored = (folder / prompt_lists.PROMPTS).read_text("utf-8")
            (folder / prompt_lists.PROMPTS).write_text("{", encoding="utf-8")
            record(page, SHORT_MS)
            expect(page.locator("#recording-notice")).to_contain_text("could not be read")
            (folder / prompt_lists.PROMPTS).write_text(stored, encoding="utf-8")
            page.locator("#recording-microphone .record-button").wait_for()
            page.wait_for_timeout(SHORT_MS)

            # While the microphone opens, no other sentence is shown.
            press_at_once(page, "r", "b")
            page.locator("#recording-microphone .stop-button").wait_for()
            page.wait_for_timeout(TAKE_MS)
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[2])

            # To go on while the voice is recorded only ends the recording.
            page.locator("#recording-next").click()
            expect(card.locator("[data-take]")).to_be_visible()
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[2])
            assert prompt_lists.load(folder).included == [0, 2]
            take(page, "recording-390")

            # A key of another script has the place of its letter.
            card.focus()
            changed = prompt_lists.load(folder).clip(2).stat().st_mtime_ns
            page.wait_for_timeout(SHORT_MS)
            card.evaluate("""card => card.dispatchEvent(
                new KeyboardEvent("keydown", {key: "ρ", code: "KeyR", bubbles: true}))""")
            page.locator("#recording-microphone .stop-button").wait_for()
            page.wait_for_timeout(SHORT_MS)
            page.keyboard.press("r")
            wait_until(lambda: prompt_lists.load(folder).clip(2).stat().st_mtime_ns != changed, page)

            page.locator("#recording-make").click()
            expect(page.locator("#recording-notice")).to_contain_text("has started")
            wait_until(lambda: "my-voice" in workspace.list_datasets(), page)
            assert faults == []
        finally:
            recorder.close()
            for state in JobBoard(workspace).queue():
                control.force_stop(state.job)


@pytest.mark.parametrize(("flags", "sentence"), [
    ((), "Connect one, then record again."),
    (("--use-fake-device-for-media-stream",), "Allow it for this page in the browser's settings, then record again.")],
    ids=["none", "refused"])
def test_recording_without_a_microphone_names_what_to_do(
    browser: Browser, tmp_path: Path, flags: tuple[str, ...], sentence: str,
) -> None:
    """A browser on a machine without a microphone, and one that has it and asks nobody whether a page may use it."""
    workspace = Workspace.open(tmp_path)
    prompt_lists.create(workspace, "my-voice", "am", TEXTS)
    with served(workspace.path) as app:
        recorder = browser.browser_type.launch(executable_path=chromium(), args=[*FLAGS, *flags], timeout=PATIENCE_MS)
        page = recorder.new_page()
        page.set_default_timeout(PATIENCE_MS)
        try:
            page.goto(f"{app.url}?tab=data")
            page.locator("#recording > button").click()
            card = page.locator("#recording-card .prompt")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[0])
            page.locator("#recording-microphone .record-button").wait_for()
            card.focus()
            page.keyboard.press("r")
            expect(page.locator("#refused")).to_contain_text(sentence)
            expect(page.locator("#recording-microphone .record-button")).to_be_visible()

            # The sentences can be passed all the same.
            page.keyboard.press("n")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[1])
            assert prompt_lists.load(prompt_lists.folder_of(workspace, "my-voice")).recorded == frozenset()
        finally:
            recorder.close()


@pytest.mark.parametrize("by_keys", [False, True], ids=["mouse", "keys"])
def test_choice_of_another_list_ends_a_recording_and_stores_it(browser: Browser, tmp_path: Path, by_keys: bool) -> None:
    workspace = Workspace.open(tmp_path / "workspace")
    others = ("አንድ ሁለት ሦስት", "አራት አምስት ስድስት")
    prompt_lists.create(workspace, "others", "am", others)
    prompt_lists.create(workspace, "my-voice", "am", TEXTS)
    folder = prompt_lists.folder_of(workspace, "my-voice")
    with served(workspace.path) as app:
        recorder = launch_recorder(browser, tmp_path)
        page = recorder.new_page()
        page.set_default_timeout(PATIENCE_MS)

        def choose_others() -> None:
            if by_keys:
                page.locator("#recording-list input").focus()
                page.get_by_role("option", name="others").wait_for()
                # The list that the server sends after a recording puts the mark elsewhere: it must have come to rest.
                active, resting = page.locator("#recording-list [role=option].active"), 0
                while resting < 5:
                    resting = resting + 1 if "others" in active.inner_text() else 0
                    if resting:
                        page.wait_for_timeout(200)
                    else:
                        page.keyboard.press("ArrowDown")
                page.keyboard.press("Enter")
            else:
                page.locator("#recording-list input").click()
                page.get_by_role("option", name="others").click()

        try:
            page.goto(f"{app.url}?tab=data")
            page.locator("#recording > button").click()
            card = page.locator("#recording-card .prompt")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[0])
            card.focus()
            begin(page)

            # The choice ends the recording, and it is stored for its own sentence.
            choose_others()
            expect(card.locator("[data-take]")).to_contain_text("Your recording, ")
            expect(card.locator(".prompt-text")).to_have_text(TEXTS[0])
            expect(card).to_be_focused()
            assert prompt_lists.load(folder).recorded == {0}

            # Then the other list is opened, to which nothing was added.
            choose_others()
            expect(card.locator(".prompt-text")).to_have_text(others[0])
            assert prompt_lists.load(prompt_lists.folder_of(workspace, "others")).recorded == frozenset()
            card.focus()
            record(page)
            expect(card.locator("[data-take]")).to_contain_text("Your recording, ")
            assert prompt_lists.load(prompt_lists.folder_of(workspace, "others")).recorded == {0}
            assert prompt_lists.load(folder).recorded == {0}
        finally:
            recorder.close()
