"""The whole way on the page with a made-up Chatterbox: recordings, letters, rows, training, sound, export.

A small one always; with the slow tests one of the published size, which is fetched from a hub first.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import soundfile
from playwright.sync_api import Locator, Page, expect

from config.languages import language_name
from core.jobs import control
from core.jobs.state import JobBoard, JobState
from core.library import model_info
from core.workspace import Workspace
from tests import chatterbox_world
from tests.browser.conftest import NARROW, Take, open_tab, wait_until
from tests.hub import serving
from tests.processes import PATIENCE_S
from tests.serving import App, served
from tests.worlds import RATE, SYLLABLES, tone

pytestmark = pytest.mark.browser
PATIENCE_AT_FULL_SIZE_S = 3600.0


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    opened = Workspace.open(tmp_path_factory.mktemp("world") / "workspace")
    chatterbox_world.write_model(opened.models / "chatterbox")
    return opened


@pytest.fixture(scope="module")
def app(workspace: Workspace) -> Iterator[App]:
    with served(workspace.path) as running:
        yield running
    for state in JobBoard(workspace).queue():
        control.force_stop(state.job)


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Clips of half a second with a text each."""
    folder = tmp_path_factory.mktemp("recordings")
    noise = np.random.default_rng(3)
    for index in range(16):
        words = " ".join("".join(noise.choice(list(SYLLABLES), 3)) for _ in range(3))
        soundfile.write(folder / f"{index:02d}.wav", tone(index, 1.2, (110.0, 220.0)[index % 2]).numpy(), RATE)
        (folder / f"{index:02d}.txt").write_text(words, encoding="utf-8")
    return folder


FULL_SIZE = "full-size"  # folder of the published sizes beside the workspace


def field(page: Page, tab: str, name: str) -> Locator:
    return page.locator(f"#tab-{tab} #field-{name} input, #tab-{tab} #field-{name} textarea").first


def done(page: Page, workspace: Workspace, verb: str, count: int = 1) -> JobState:
    """The newest job of `verb` when `count` of them have ended."""
    board = JobBoard(workspace)
    full_size = (workspace.path.parent / FULL_SIZE).is_dir()

    def ended() -> list[JobState]:
        return [state for state in board.states() if state.verb == verb and state.ended]

    wait_until(lambda: len(ended()) >= count, page, PATIENCE_AT_FULL_SIZE_S if full_size else 2 * PATIENCE_S)
    state = ended()[0]
    assert state.status == "finished", f"{state.message}\n{state.traceback}\n{control.log_tail(state.job)}"
    return state


def test_a_language_is_taught_from_recordings_to_an_export(
    app: App, workspace: Workspace, recordings: Path, open_page: Callable[..., Page], take: Take,
) -> None:
    page = open_page(app.url + "?tab=data")
    prepare(page, workspace, recordings)
    extend(page, workspace)
    train_in_each_scope(page, workspace, take)
    hear(page, workspace, take)
    export(page, workspace)
    narrow = open_page(app.url + "?tab=listen", NARROW, "dark")
    expect(narrow.locator("#clips audio").first).to_be_visible()
    take(narrow, "chatterbox-listen-390-dark")


@pytest.mark.slow
def test_the_same_at_the_published_size(
    tmp_path: Path, recordings: Path, open_page: Callable[..., Page], take: Take, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes 15 GB of disk, 12 GB of memory and an hour on two cores."""
    chatterbox_world.write_full_size(tmp_path / FULL_SIZE)
    (tmp_path / FULL_SIZE / "model.json").unlink()
    workspace = Workspace.open(tmp_path / "workspace")
    try:
        with serving() as hub:
            monkeypatch.setenv("HF_ENDPOINT", hub.url)
            hub.add("ResembleAI/chatterbox", {file.name: file for file in (tmp_path / FULL_SIZE).iterdir()})
            with served(workspace.path) as app:
                page = open_page(app.url + "?tab=model")
                download(page, workspace)
                open_tab(page, "Data")
                prepare(page, workspace, recordings)
                extend(page, workspace)
                train_in_each_scope(page, workspace, take)
                hear(page, workspace, take)
                export(page, workspace)
    finally:
        for state in JobBoard(workspace).queue():
            control.force_stop(state.job)
        shutil.rmtree(tmp_path)


def download(page: Page, workspace: Workspace) -> None:
    """From the hub, the variant whose files are there."""
    page.locator("#chatterbox-variant input").click()
    page.get_by_role("option", name="Multilingual v2", exact=True).click()
    page.locator("#family-chatterbox ~ *").get_by_role("button", name="Name and revision").click()
    page.locator("#chatterbox-save-as textarea, #chatterbox-save-as input").fill("chatterbox")
    page.locator("#family-chatterbox ~ *").get_by_role("button", name="Command line").first.click()
    expect(page.locator("#command-chatterbox")).to_contain_text("--save-as chatterbox")
    page.locator("#get-chatterbox").click()
    done(page, workspace, "download")
    assert workspace.list_models() == ["chatterbox"]


def prepare(page: Page, workspace: Workspace, recordings: Path) -> None:
    expect(field(page, "data", "model")).to_have_value("chatterbox")
    field(page, "data", "source").fill(str(recordings))
    field(page, "data", "dataset").fill("mine")
    page.locator("#run-prepare").click()
    state = done(page, workspace, "prepare")
    assert state.job.settings["model"] == "chatterbox"
    assert any(path.name.startswith("chatterbox-") for path in workspace.cache.iterdir())


def extend(page: Page, workspace: Workspace) -> None:
    open_tab(page, "Tokenizer")
    expect(field(page, "tokenizer", "dataset")).to_have_value("mine")
    expect(field(page, "tokenizer", "tokenizer")).to_have_value("chatterbox-am")
    page.locator("#run-tokenizer").click()
    done(page, workspace, "tokenizer")
    open_tab(page, "Embeddings")
    expect(field(page, "embeddings", "tokenizer")).to_have_value("chatterbox-am")
    expect(field(page, "embeddings", "extension")).to_have_value("chatterbox-am")
    page.locator("#run-extend").click()
    done(page, workspace, "extend")


def train_in_each_scope(page: Page, workspace: Workspace, take: Take) -> None:
    for count, scope in enumerate(("rows", "full", "gated"), 1):  # the last is the one that is heard and exported
        train(page, workspace, take, scope, count)


def train(page: Page, workspace: Workspace, take: Take, scope: str, count: int) -> None:
    """The training number `count`: a few steps."""
    open_tab(page, "Train")
    form = page.locator("#new-run")
    if count > 1:  # the form is folded away when there is a run to look at
        form.get_by_role("button", name="New run").click()
    expect(field(page, "train", "extension")).to_have_value("chatterbox-am")
    field(page, "train", "scope").click()
    page.get_by_role("option", name=scope, exact=True).click()
    if count == 1:
        for fold in ("Data", "Adapters", "Optimizer", "Losses and regularization", "Checkpoints and evaluation"):
            form.get_by_role("button", name=fold).click()
        for name, value in (("adapter_rank", "32"), ("evaluation_sentences", "4"), ("row_lr", "0.001")):
            expect(field(page, "train", name)).to_have_value(value)  # of the family's preset
    few = workspace.path.parent / "few.txt"  # what the base speaks to rehearse, in `full`; the app's sentences are many
    few.write_text("en\tHello.\nen\tGood day.\n", encoding="utf-8")
    for name, value in (("steps", 3), ("warmup", 1), ("batch_size", 2), ("checkpoint_every", 3),
                        ("evaluation_sentences", 1), ("replay_texts", few)):
        field(page, "train", name).fill(str(value))
    take(page, "chatterbox-train-1280-light")
    page.locator("#run-train").click()
    state = done(page, workspace, "train", count)
    assert {name: state.job.settings[name] for name in ("steps", "scope", "adapter_rank", "adapter_lr")} == {
        "steps": 3, "scope": scope, "adapter_rank": 32, "adapter_lr": 1e-4}
    assert state.samples


def hear(page: Page, workspace: Workspace, take: Take) -> None:
    open_tab(page, "Listen")
    page.locator("#tab-listen").get_by_role("button", name="Voice and sampling settings").click()
    expect(page.locator("#listen-own")).to_contain_text("temperature 0.8")
    expect(field(page, "listen", "sampling-temperature")).to_have_value("")
    expect(field(page, "listen", "sampling-temperature")).to_have_attribute("placeholder", "0.8")
    upload(page, workspace)
    miss_a_package(page)
    page.locator("#listen-text textarea").fill("ሀለመ ሰረቀ")
    field(page, "listen", "sound-flow_steps").fill("2")
    page.locator("#speak").click()
    state = done(page, workspace, "compare")
    expect(page.locator("#clips audio")).to_have_count(2)
    take(page, "chatterbox-listen-1280-light")
    assert state.job.settings["sampling"]["temperature"] is None  # type: ignore[index]
    assert state.job.settings["sound"]["flow_steps"] == 2  # type: ignore[index]
    assert Path(str(state.job.settings["voice"])).parent == workspace.voices
    page.locator("#speak").click()
    again = done(page, workspace, "compare", 2)
    assert again.plan is not None
    assert again.plan.counts["loaded"] == 0


def miss_a_package(page: Page) -> None:
    """A language whose package is not on this machine says so before anything is started."""
    lacking = [code for code, package in model_info.PACKAGES.items() if find_spec(package) is None]
    for code in lacking[:1]:
        choose_language(page, language_name(code))
        expect(page.locator("#listen-readiness")).to_contain_text(model_info.PACKAGES[code].replace("_", "-"))
    choose_language(page, "Amharic")
    expect(page.locator("#listen-readiness")).not_to_contain_text("package")


def choose_language(page: Page, name: str) -> None:
    page.locator("#listen-language input").click()
    page.get_by_role("option", name=name, exact=True).click()


def upload(page: Page, workspace: Workspace) -> None:
    """A recording without a voice is refused, and one with a voice is used from then on."""
    folder = workspace.path.parent
    soundfile.write(folder / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(folder / "mine.wav", np.repeat(tone(7, 4.0).numpy()[:, None], 2, axis=1), RATE)
    place = page.locator("#listen-upload input[type=file]")
    place.set_input_files(folder / "silent.wav")
    expect(page.locator("#listen-upload-notice")).to_contain_text("is silent")
    assert not workspace.voices.exists()
    page.get_by_role("button", name="Clear").click()
    place.set_input_files(folder / "mine.wav")
    expect(page.locator("#listen-upload-notice")).to_contain_text("Its 2 channels are mixed into one")
    expect(page.locator("#listen-voice input")).to_have_value("mine (recording)")


def export(page: Page, workspace: Workspace) -> None:
    open_tab(page, "Certificate")
    expect(page.locator("#proof")).to_contain_text("checks passed")
    expect(page.locator("#export-name input, #export-name textarea")).to_have_value("chatterbox-am")
    page.locator("#export").click()
    done(page, workspace, "export")
    assert (workspace.export("chatterbox-am") / "certificate.json").is_file()
    page.get_by_role("button", name="Push to the Hub").click()
    expect(page.locator("#push-export input")).to_have_value("chatterbox-am")
