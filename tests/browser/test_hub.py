"""The Model tab and a loopback hub: choose, get, watch, stop, resume, use a folder; then push an export."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.workspace import Workspace
from tests.browser.conftest import LOOKS, Take, choose, fill_opened, open_tab
from tests.browser.whole_way import accept_unknown_files
from tests.hub import LoopbackHub, serving
from tests.serving import App, served
from tests.unit.core.test_push import write_export
from tests.unit.hub_model import FILES, MAIN, T3, TOKEN, contents

pytestmark = pytest.mark.browser
Visit = Callable[..., Page]


@dataclass(frozen=True)
class Scene:
    """A served page whose environment names a hub."""

    app: App
    hub: LoopbackHub
    workspace: Workspace


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """One hub and app for the tests in their order: the download comes last, because it leaves a model behind."""
    home = tmp_path_factory.mktemp("hub")
    workspace = Workspace.open(home / "workspace")
    with serving() as hub, pytest.MonkeyPatch.context() as patch:
        hub.add(MAIN, FILES)
        hub.tokens[TOKEN] = "write"
        for name, value in (("HF_ENDPOINT", hub.url), ("HF_TOKEN", TOKEN), ("HF_HOME", str(home / "hf"))):
            patch.setenv(name, value)
        with served(workspace.path) as app:
            yield Scene(app, hub, workspace)


@LOOKS
def test_the_choices_fit_their_width(scene: Scene, open_page: Visit, take: Take, size: tuple[int, int],
                                     scheme: str) -> None:
    page = open_page(scene.app.url + "?tab=model", size, scheme)
    choose(page.locator("#chatterbox-variant input"), page.get_by_role("option", name="Latin American Spanish pack"))
    expect(page.locator("#about-chatterbox")).to_contain_text("t3_es_mx_latam.safetensors")
    for fold in ("Import from a local folder", "Name and revision", "Command line"):
        page.locator("#tab-model").get_by_role("button", name=fold).first.click()
    expect(page.locator("#command-chatterbox")).to_contain_text("--variant es-mx-latam")
    take(page, f"choices-{size[0]}-{scheme}")
    wide = page.evaluate("""[...document.querySelectorAll('.family *')]
        .map(element => element.getBoundingClientRect().right).reduce((one, other) => Math.max(one, other))""")
    assert wide <= size[0]


def test_the_licences_of_all_parts_are_accepted_with_one_tick(scene: Scene, open_page: Visit) -> None:
    page = open_page(scene.app.url + "?tab=model")
    about, accept = page.locator("#about-indextts2"), page.locator("#indextts2-accept-licence")
    before = scene.workspace.list_runs()
    for words in ("bilibili Model Use License Agreement", "non-commercial", "MIT License", "Apache License 2.0"):
        expect(about).to_contain_text(words)
    expect(page.locator("#chatterbox-accept-licence")).to_be_hidden()
    page.locator("#get-indextts2").click()
    expect(page.locator("#tab-model [role=alert]").first).to_contain_text("licences that you have not accepted")
    assert scene.workspace.list_runs() == before
    expect(accept).to_contain_text("I have read and accept: bilibili Model Use License Agreement; MIT License")
    accept.locator("input").check()
    page.locator(".family", has=about).get_by_role("button", name="Command line").click()
    expect(page.locator("#command-indextts2")).to_contain_text("--accept-licence bilibili")
    page.locator("#get-indextts2").click()
    expect(page.locator("#progress-indextts2")).to_contain_text("IndexTeam/IndexTTS-2 is private")  # not on this hub


def test_a_folder_on_disk_takes_the_place_of_the_hub(scene: Scene, open_page: Visit, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    asked = list(scene.hub.asked)
    page = open_page(scene.app.url + "?tab=model")
    page.locator("#tab-model").get_by_role("button", name="Import from a local folder").first.click()
    fill_opened(page.locator("#chatterbox-folder input, #chatterbox-folder textarea"), str(folder))
    page.locator("#get-chatterbox").click()
    expect(page.locator("#progress-chatterbox")).to_contain_text(f"{folder} has no {T3}")
    assert scene.hub.asked == asked


def fill_repository(page: Page) -> None:
    expect(page.locator("#push-export input")).to_have_value("mine")
    fill_opened(page.locator("#push-repository input, #push-repository textarea"), "me/amharic")


def test_an_export_is_pushed_and_its_address_shown(scene: Scene, open_page: Visit, take: Take) -> None:
    write_export(scene.workspace)
    page = open_page(scene.app.url + "?tab=certificate")
    page.get_by_role("button", name="Push to the Hub").click()
    fill_repository(page)
    page.locator("#push").click()
    expect(page.locator("#push-result")).to_contain_text(f"{scene.hub.url}/me/amharic")
    expect(page.locator("#push-result")).to_contain_text("its owner")
    open_tab(page, "Certificate")
    take(page, "push-1280-light")
    assert scene.hub.repositories["me/amharic"].private


def test_a_download_is_watched_stopped_and_resumed(scene: Scene, open_page: Visit, take: Take) -> None:
    scene.hub.fault(T3, bytes_per_s=100_000)
    page = open_page(scene.app.url + "?tab=model")
    expect(page.locator("#about-chatterbox")).to_contain_text("MIT")
    expect(page.locator("#about-chatterbox")).to_contain_text("about 3.2 GB")
    page.locator("#get-chatterbox").click()
    progress = page.locator("#progress-chatterbox")
    expect(progress).to_contain_text("not what was published as Chatterbox Multilingual")
    take(page, "unknown-files-1280-light")
    accept_unknown_files(page, "chatterbox")
    expect(progress).to_contain_text("of 4.6 MB")
    expect(progress).to_contain_text("kB/s")
    expect(progress).to_contain_text("left")
    expect(progress).to_contain_text(f"{len(FILES)} files, 4.6 MB")
    take(page, "download-1280-light")
    page.locator("#stop-chatterbox").click()
    expect(progress).to_contain_text("What was downloaded is kept")
    scene.hub.faults.clear()
    page.locator("#resume-chatterbox").click()
    expect(progress).to_contain_text("fetched, unknown base")
    expect(page.locator("#family-chatterbox")).to_contain_text("in the workspace")
    assert contents(scene.workspace.model("chatterbox")) == FILES
    assert TOKEN not in page.content()


def test_a_missing_token_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_page: Visit) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    workspace = Workspace.open(tmp_path / "workspace")
    write_export(workspace)
    with served(workspace.path) as app:
        page = open_page(app.url + "?tab=certificate")
        page.get_by_role("button", name="Push to the Hub").click()
        fill_repository(page)
        page.locator("#push").click()
        expect(page.locator("#tab-certificate [role=alert]").first).to_contain_text("HF_TOKEN is not set")
    assert workspace.list_runs() == []
