"""A second language by the page: a finished run is offered as a base, and one button builds upon it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect

from config.schema import PrepareOptions
from core import prepare
from core.jobs import control
from core.jobs.state import JobBoard
from core.library import certificate, records
from core.workspace import Workspace
from data.acoustics import audio
from tests.browser.conftest import choose, open_tab
from tests.serving import App, served
from tests.trained import RUN, trained_world
from tests.worlds import GREEK, RATE, Listener, tone
from ui import job_views

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Visit = Callable[..., Page]
MINUTES = 60_000  # ms


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Workspace:
    """A small model that was trained on Amharic in a run, and recordings in Greek."""
    workspace = trained_world(tmp_path_factory.mktemp("second") / "workspace")
    recordings = tmp_path_factory.mktemp("recordings")
    lines = ["audio,text"]
    for index, (first, second) in enumerate(itertools.permutations(GREEK, 2)):
        if index < 24:
            audio.save(recordings / f"{index:02d}.wav", tone(index, 0.8), RATE)
            lines.append(f"{index:02d}.wav,{first}{second} {second}{first}{first}")
    (recordings / "metadata.csv").write_text("\n".join(lines), encoding="utf-8")
    prepare.run(PrepareOptions(source=str(recordings), dataset="demo-el", language="el", held_out=0.2,
                               model=f"run:{RUN}"), workspace, Listener(workspace.runs / "prepare-el"))
    return workspace


@pytest.fixture(scope="module")
def app(workspace: Workspace) -> Iterator[App]:
    with served(workspace.path) as app:
        yield app


def test_a_second_language_is_added_by_the_same_button(workspace: Workspace, app: App, open_page: Visit) -> None:
    page = open_page(app.url)
    choose(page.locator("#start-model input"), page.get_by_role("option", name="with Amharic").first)
    choose(page.locator("#start-language input"), page.get_by_role("option", name="Greek").first)
    expect(page.locator("#start-dataset input")).to_have_value("demo-el (24 clips)")
    choose(page.locator("#start-length input"), page.get_by_role("option", name="Quick test").first)
    page.locator("#teach").click()
    expect(page.locator("#teach")).to_have_text("Train Greek again", timeout=5 * MINUTES)

    training = next(state for state in JobBoard(workspace).states() if state.verb == "train" and state.id != RUN)
    assert training.status == "finished"
    certifying = next(state for state in JobBoard(workspace).states() if training.id in state.job.after
                      and state.verb == "certify")
    assert control.wait(certifying.job, 300.0).status == "finished"
    proof = certificate.read(workspace.run(training.id) / certificate.CERTIFICATE)
    assert not proof.failed()
    assert "(am, en, fr) bit-identical" in proof.check("base_logits").actual
    extension = str(training.job.settings["extension"])
    assert extension == "tiny-am-el"
    record = records.read_extension(workspace.extension(extension))
    assert [one.source for one in record.origin.earlier_trainings] == [f"run:{RUN}@8"]

    open_tab(page, "Tokenizer")  # where the next one is offered, on top of both
    page.locator("#tab-tokenizer .field-model input").click()
    expect(page.locator("#tab-tokenizer .field-model [role=option]").filter(
        has_text=job_views.short_id(training.id))).to_have_count(1)
