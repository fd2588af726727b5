"""A page that is left open costs the app nothing that stays."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import gradio as gr
import pytest
from gradio.state_holder import SessionState

from config.schema import CompareOptions, ExtendOptions, TrainOptions
from core.jobs.events import CheckpointSaved, Finished, append_event
from core.jobs.job import create_job
from core.jobs.state import JobState
from core.workspace import Workspace
from ui import layout
from ui.live import Live, View

TABS = ("train", "listen")


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> tuple[gr.Blocks, Live]:
    made: list[Live] = []

    class Seen(Live):
        def attach(self, tab: gr.State) -> None:
            super().attach(tab)
            made.append(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "Live", Seen)
        blocks = layout.build(Workspace.open(tmp_path_factory.mktemp("page") / "workspace"))
    return blocks, made[0]


class Browser:
    """What a browser and the app keep of an open page between two ticks."""

    def __init__(self, blocks: gr.Blocks, live: Live, tab: str) -> None:
        self.blocks, self.live, self.session = blocks, live, SessionState(blocks)
        self.values = {component._id: getattr(component, "value", None) for component in live.watched.values()}
        self.session[live.inputs[0]._id] = tab

    def tick(self) -> bool:
        """Let the page tick, and all happen that follows from it; whether anything did."""
        return self.hear(self.live.ticker._id, "click")

    def hear(self, component: int, event: str) -> bool:
        heard = [fn for fn in self.blocks.fns.values() if fn.fn is not None and (component, event) in fn.targets]
        flags = {flag._id for flag in (self.live.inputs_changed, *self.live.tab_changed.values())}
        raised = set()
        for fn in heard:
            inputs = [self.values.get(one._id) for one in fn.inputs]
            made = asyncio.run(self.blocks.process_api(fn, inputs, state=self.session))["data"]
            for one, value in zip(fn.outputs, made, strict=True):
                if one is self.live.pending_input_values and isinstance(value, str):
                    self.fill_in(json.loads(value))
            raised |= {one._id for one, value in zip(fn.outputs, made, strict=True) if isinstance(value, str)} & flags
        for flag in raised:
            self.hear(flag, "change")
        return bool(raised)


    def fill_in(self, pending: dict[str, dict[str, object]]) -> None:
        """What `_APPLY_IF_UNCHANGED` does in a browser."""
        fields = list(self.live.watched.values())
        for place, change in pending.items():
            field = fields[int(place)]._id
            if self.values[field] == change["seen"]:
                self.values[field] = change["wanted"]


@pytest.mark.parametrize("tab", TABS)
def test_a_session_stays_as_large_as_it_is(page: tuple[gr.Blocks, Live], tab: str) -> None:
    browser = Browser(*page, tab)
    assert browser.tick()  # everything is new once
    for _ in range(3):
        browser.tick()
    size = len(browser.session.blocks_config.blocks), len(browser.session.config_values)
    for _ in range(5):
        assert not browser.tick()
    assert (len(browser.session.blocks_config.blocks), len(browser.session.config_values)) == size


def test_what_is_chosen_from_follows_the_workspace(page: tuple[gr.Blocks, Live], tmp_path: Path) -> None:
    browser = Browser(*page, "train")
    browser.tick()
    made = browser.live.workspace.extensions / "appeared"
    made.mkdir(parents=True)
    (made / "extension.json").write_text("{}")
    assert browser.tick()
    choices = browser.session[browser.live.watched["train.extension"]._id].choices
    assert ("appeared", "appeared") in choices


def test_a_tick_has_few_outputs_and_a_change_those_of_its_tab(page: tuple[gr.Blocks, Live]) -> None:
    """Each output costs Gradio a millisecond, also one that is skipped."""
    blocks, live = page
    of = {target: fn for fn in blocks.fns.values() for target in fn.targets}
    assert len(of[live.ticker._id, "click"].outputs) == 1 + len(live.tab_changed)
    everywhere = sum(panel.tab == "" for panel in live.panels)
    for name, flag in live.tab_changed.items():
        own = sum(panel.tab == name for panel in live.panels)
        assert len(of[flag._id, "change"].outputs) <= 2 + everywhere + own


def test_a_tab_continues_with_what_was_made_last_and_a_later_choice_stays(page: tuple[gr.Blocks, Live]) -> None:
    browser = Browser(*page, "train")
    field = browser.live.watched["train.extension"]

    def made(name: str) -> str:
        """What the form holds when a job has made an extension of this name."""
        (browser.live.workspace.extensions / name).mkdir(parents=True)
        job = create_job(browser.live.workspace, "extend", ExtendOptions(extension=name))
        append_event(job.journal, Finished({}))
        return ticked()

    def ticked() -> str:
        browser.tick()
        browser.tick()  # the app sees what it filled in
        return str(browser.values[field._id])

    assert made("first") == "first"
    assert made("second") == "second"
    browser.values[field._id] = "first"
    assert ticked() == ticked() == "first"
    assert made("third") == "third"


def test_listen_continues_with_the_training_that_ended_and_a_later_choice_stays(page: tuple[gr.Blocks, Live]) -> None:
    browser = Browser(*page, "listen")
    field = browser.live.watched["finetuned"]

    def saved(name: str) -> Path:
        """The journal of a training with a checkpoint."""
        job = create_job(browser.live.workspace, "train", TrainOptions(extension="none"), job_id=name)
        (job.directory / "checkpoints" / "step-000200").mkdir(parents=True)
        append_event(job.journal, CheckpointSaved(200, "checkpoints/step-000200", best=True))
        return job.journal

    def ticked() -> str:
        browser.tick()
        browser.tick()  # the app sees what it filled in
        return str(browser.values[field._id])

    append_event(saved("swahili"), Finished({}))
    assert ticked() == "run:swahili"
    greek = saved("greek")
    assert ticked() == "run:swahili"
    append_event(greek, Finished({}))
    assert ticked() == "run:greek"
    browser.values[field._id] = "run:swahili"
    assert ticked() == ticked() == "run:swahili"


def test_a_comparison_can_be_stopped_where_it_is_shown(page: tuple[gr.Blocks, Live]) -> None:
    blocks, live = page
    [panel] = [panel for panel in live.panels if getattr(panel.component, "elem_id", "") == "stop-speech"]
    state = JobState(create_job(live.workspace, "compare", CompareOptions()), "running")

    def visible(state: JobState) -> object:
        values = {**dict.fromkeys(live.watched, ""), "pair": state.id}
        return panel.render(View("listen", values, (state,)))["visible"]  # type: ignore[index]

    assert [visible(replace(state, status=status)) for status in ("waiting", "running", "stopping", "stopped")] == [
        True, True, False, False]
    assert any((panel.component._id, "click") in fn.targets for fn in blocks.fns.values())
