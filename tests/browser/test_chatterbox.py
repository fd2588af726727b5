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
from playwright.sync_api import Page, expect

from config.languages import language_name
from core.jobs import control
from core.jobs.state import JobBoard
from core.library import catalog
from core.workspace import Workspace
from tests import chatterbox_world
from tests.browser.conftest import NARROW, Take, choose, fill_opened, open_tab, wait_until
from tests.browser.whole_way import (
    FULL_SIZE,
    accept_unknown_files,
    choose_language,
    done,
    export,
    extend,
    field,
    prepare,
    train_in_each_scope,
    write_recordings,
)
from tests.hub import serving
from tests.processes import PATIENCE_S
from tests.serving import App, served
from tests.worlds import RATE, tone

pytestmark = pytest.mark.browser
MODEL = "chatterbox"


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
    return write_recordings(tmp_path_factory.mktemp("recordings"))


@pytest.mark.long
def test_a_language_is_added_from_recordings_to_an_export(
    app: App, workspace: Workspace, recordings: Path, open_page: Callable[..., Page], take: Take,
) -> None:
    page = open_page(app.url + "?tab=data")
    prepare(page, workspace, recordings, MODEL)
    extend(page, workspace, MODEL)
    train_in_each_scope(page, workspace, take, MODEL)
    hear(page, workspace, take)
    export(page, workspace, MODEL)
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
                prepare(page, workspace, recordings, MODEL)
                extend(page, workspace, MODEL)
                train_in_each_scope(page, workspace, take, MODEL)
                hear(page, workspace, take)
                export(page, workspace, MODEL)
    finally:
        for state in JobBoard(workspace).queue():
            control.force_stop(state.job)
        shutil.rmtree(tmp_path)


def download(page: Page, workspace: Workspace) -> None:
    """From the hub, the variant whose files are there."""
    choose(page.locator("#chatterbox-variant input"), page.get_by_role("option", name="Multilingual v2", exact=True))
    page.locator("#family-chatterbox ~ *").get_by_role("button", name="Name and revision").click()
    fill_opened(page.locator("#chatterbox-save-as textarea, #chatterbox-save-as input"), "chatterbox")
    page.locator("#family-chatterbox ~ *").get_by_role("button", name="Command line").first.click()
    expect(page.locator("#command-chatterbox")).to_contain_text("--save-as chatterbox")
    page.locator("#get-chatterbox").click()
    accept_unknown_files(page, "chatterbox")
    done(page, workspace, "download", 2)
    assert workspace.list_models() == ["chatterbox"]


def hear(page: Page, workspace: Workspace, take: Take) -> None:
    board = JobBoard(workspace)  # a certificate that goes on between two comparisons takes their models out of memory
    wait_until(lambda: not any(state.alive for state in board.states()), page, 4 * PATIENCE_S)
    open_tab(page, "Listen")
    page.locator("#tab-listen").get_by_role("button", name="Voice and sampling settings").click()
    expect(page.locator("#listen-own")).to_contain_text("temperature 0.8")
    expect(field(page, "listen", "sampling-temperature")).to_have_value("")
    expect(field(page, "listen", "sampling-temperature")).to_have_attribute("placeholder", "0.8")
    upload(page, workspace)
    miss_a_package(page)
    page.locator("#listen-text textarea").fill("ሀለመ ሰረቀ")
    fill_opened(field(page, "listen", "sound-flow_steps"), "2")
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
    packages = catalog.PACKAGES["chatterbox"]
    lacking = [code for code, package in packages.items() if find_spec(package) is None]
    for code in lacking[:1]:
        choose_language(page, language_name(code))
        expect(page.locator("#listen-readiness")).to_contain_text(packages[code].replace("_", "-"))
    choose_language(page, "Amharic")
    expect(page.locator("#listen-readiness")).not_to_contain_text("package")


def upload(page: Page, workspace: Workspace) -> None:
    """A recording without a voice is refused, and one with a voice is used from then on."""
    folder = workspace.path.parent
    soundfile.write(folder / "silent.wav", np.zeros(RATE), RATE)
    soundfile.write(folder / "mine.wav", np.repeat(tone(7, 4.0).numpy()[:, None], 2, axis=1), RATE)
    place = page.locator("#listen-upload input[type=file]")
    place.set_input_files(folder / "silent.wav")
    expect(page.locator("#listen-upload-notice")).to_contain_text("is silent")
    assert not workspace.voices.exists()
    expect(page.get_by_role("button", name="Clear")).to_have_count(0)  # the player is empty again
    place.set_input_files(folder / "mine.wav")
    expect(page.locator("#listen-upload-notice")).to_contain_text("Its 2 channels are mixed into one")
    expect(page.locator("#listen-voice input")).to_have_value("mine (recording)")


