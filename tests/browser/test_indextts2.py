"""The whole way on the page with an IndexTTS2 of made-up weights, from a hub to an export.

Once with a small one and once with the published sizes.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from core.jobs import control
from core.jobs.state import JobBoard
from core.library import certificate
from core.library.catalog import BILIBILI, find_entry
from core.library.records import read_model_record
from core.workspace import Workspace
from models.indextts2 import model_folder
from scripts.dev.benchmark.bench import release_memory
from tests import indextts2_world
from tests.browser.conftest import NARROW, Take, fill_opened, open_tab
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
from tests.serving import App, served

pytestmark = [pytest.mark.browser, pytest.mark.slow]
MODEL = "indextts2"
VARIANT = find_entry(MODEL).variants[0]


@pytest.fixture(params=["small", FULL_SIZE])
def published(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The files in the hub, small or of the published sizes, with made-up weights; all is removed at the end.

    See "The whole way at full size" in docs/benchmarks/workflow.md for the memory, the disk and the time that
    the latter take.
    """
    folder = tmp_path / request.param
    try:
        (indextts2_world.write_full_size if request.param == FULL_SIZE else indextts2_world.write_model)(folder)
        release_memory()  # the jobs need it
        yield folder
    finally:
        shutil.rmtree(tmp_path)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "workspace")


@pytest.fixture
def app(workspace: Workspace, published: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[App]:
    """The page, in front of a hub that has the model's five repositories."""
    with serving() as hub:
        for part in VARIANT.parts:
            commit = hub.add(part.repository, {name: published / part.path(name) for [name] in part.files})
            hub.repositories[part.repository].refs[part.revision] = commit
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        with served(workspace.path) as running:
            yield running
        for state in JobBoard(workspace).queue():
            control.force_stop(state.job)


def test_a_language_is_added_from_the_download_to_an_export(
    app: App, workspace: Workspace, published: Path, tmp_path: Path, open_page: Callable[..., Page], take: Take,
) -> None:
    (tmp_path / "recordings").mkdir()
    recordings = write_recordings(tmp_path / "recordings")
    page = open_page(app.url + "?tab=model")
    download(page, workspace, published)
    open_tab(page, "Data")
    prepare(page, workspace, recordings, MODEL)
    extend(page, workspace, MODEL)
    train_in_each_scope(page, workspace, take, MODEL)
    hear(page, workspace, take)
    export(page, workspace, MODEL)
    check_export(workspace)
    narrow = open_page(app.url + "?tab=listen", NARROW, "dark")
    expect(narrow.locator("#clips audio").first).to_be_visible()
    take(narrow, "indextts2-listen-390-dark")


def download(page: Page, workspace: Workspace, published: Path) -> None:
    """Once the licences are accepted; S2Mel's optimizer stays away."""
    page.locator("#get-indextts2").click()
    expect(page.locator("#tab-model [role=alert]").first).to_contain_text("licences that you have not accepted")
    page.locator("#indextts2-accept-licence input").check()
    page.locator("#get-indextts2").click()
    accept_unknown_files(page, "indextts2")
    done(page, workspace, "download", 2)
    assert workspace.list_models() == [MODEL]
    assert read_model_record(workspace.model(MODEL)).licences == tuple(one.name for one in VARIANT.licences)
    assert (workspace.model(MODEL) / "s2mel.pth").stat().st_size < 0.6 * (published / "s2mel.pth").stat().st_size
    shutil.rmtree(published)  # 7.7 GB of the published sizes
    published.mkdir()  # by its name, jobs are waited for longer


def hear(page: Page, workspace: Workspace, take: Take) -> None:
    """The new language, in which the base stays silent; then a base language, with an emotion and a wanted duration."""
    open_tab(page, "Listen")
    page.locator("#tab-listen").get_by_role("button", name="Voice and sampling settings").click()
    expect(page.locator("#listen-own")).to_contain_text("repetition penalty 10")
    expect(field(page, "listen", "sampling-top_k")).to_have_attribute("placeholder", "30")
    expect(field(page, "listen", "sound-exaggeration")).to_be_hidden()
    page.locator("#listen-text textarea").fill("ሀለመ ሰረቀ")
    fill_opened(field(page, "listen", "sound-flow_steps"), "2")
    page.locator("#speak").click()
    state = done(page, workspace, "compare")
    assert state.job.settings["sound"]["flow_steps"] == 2  # type: ignore[index]
    expect(page.locator("#clips audio")).to_have_count(1)
    expect(page.locator("#clips .side.coming")).to_contain_text("Not available")
    expect(page.locator("#pair-status")).to_contain_text("cannot spell")
    choose_language(page, "English")
    page.locator("#listen-text textarea").fill("She reads a book.")
    page.locator("#listen-emotion").get_by_role("button", name="Emotion").first.click()
    fill_opened(field(page, "listen", "sound-emotion-happy"), "0.8")
    field(page, "listen", "sound-duration_s").fill("1")
    page.locator("#speak").click()
    state = done(page, workspace, "compare", 2)
    expect(page.locator("#clips audio")).to_have_count(2)
    take(page, "indextts2-listen-1280-light")
    sound = state.job.settings["sound"]
    assert (sound["emotion"]["happy"], sound["duration_s"]) == (0.8, 1.0)  # type: ignore[index, call-overload]
    base, finetuned = ((workspace.runs / state.id / clip.path).read_bytes() for clip in state.audio)
    assert base == finetuned  # the scope is `gated`


def check_export(workspace: Workspace) -> None:
    """What is frozen was proven, in the layout of the published code and with the notice of its licence."""
    folder = workspace.export("indextts2-am")
    proof = certificate.read(folder / "certificate.json")
    assert proof.check("prefix_rows").result == proof.check("base_logits").result == "passed"
    assert BILIBILI.notice in (folder / "README.md").read_text(encoding="utf-8")
    rows = model_folder.gpt_shapes(folder / "gpt.pth")["text_embedding.weight"][0]
    assert model_folder.read_config(folder / "config.yaml")["gpt"]["number_text_tokens"] == rows - 1
    assert rows > model_folder.gpt_shapes(workspace.model(MODEL) / "gpt.pth")["text_embedding.weight"][0]
