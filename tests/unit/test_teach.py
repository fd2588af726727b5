"""What the Start page offers and queues, for each base model."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from config.errors import UserError
from config.schema import AS_IS, CompareOptions
from core.jobs.state import JobState
from core.library import model_info
from core.submission import demo_chain
from core.workspace import Workspace
from tests import chatterbox_world
from tests.browser import scenes
from ui import start
from ui.live import View


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace.open(tmp_path / "workspace")


def test_models_to_get_are_told_from_those_that_are_here(workspace: Workspace) -> None:
    assert {name: label for label, name in start.models(workspace)} == {
        "tiny": "Built-in tiny model (included)",
        "chatterbox": "Chatterbox Multilingual (about 3.2 GB download)"}
    chatterbox_world.write_model(workspace.models / "chatterbox")
    assert ("Chatterbox Multilingual", "chatterbox") in start.models(workspace)


def test_the_demo_is_what_the_page_asks_for_first(workspace: Workspace) -> None:
    asked = start.chain_options(workspace, "tiny", "am", start.DEMO, start.FULL)
    assert demo_chain.chain_steps(asked) == demo_chain.chain_steps(demo_chain.ChainOptions())
    assert start.comparison_options(workspace, asked, "run-1") == demo_chain.demo_options("compare",
                                                                                          CompareOptions).model_copy(
        update={"finetuned": "run:run-1"})


def test_another_family_gets_its_own_preset_and_is_downloaded_once(workspace: Workspace) -> None:
    asked = start.chain_options(workspace, "chatterbox", "am", start.DEMO, start.FULL)
    assert asked.train == model_info.fit_preset("chatterbox", model_info.SpeechAmount(), (), "demo").options
    steps = dict(demo_chain.chain_steps(asked))
    assert steps["download"].model_dump()["model"] == "chatterbox"
    assert [steps[verb].model_dump()["model"] for verb in ("prepare", "tokenizer", "extend")] == ["chatterbox"] * 3
    assert steps["train"].model_dump()["extension"] == "chatterbox-am"
    chatterbox_world.write_model(workspace.models / "chatterbox")
    asked = start.chain_options(workspace, "chatterbox", "am", start.DEMO, start.FULL)
    assert "download" not in dict(demo_chain.chain_steps(asked))
    pair = start.comparison_options(workspace, asked, "run-1")
    assert (pair.base, pair.voice, pair.texts) == ("base:chatterbox", "", ())  # the demo's voices are not its


@pytest.mark.parametrize("model", ["tiny", "chatterbox"])
def test_a_quick_try_is_shorter(workspace: Workspace, model: str) -> None:
    quick, full = (start.chain_options(workspace, model, "am", start.DEMO, length).train
                   for length in (start.QUICK, start.FULL))
    assert quick.steps < full.steps / 5
    assert quick.checkpoint_every < quick.steps


CHOICES = {"start_model": "tiny", "start_language": "am", "start_dataset": start.DEMO,
           "start_length": start.FULL}
"""What Start holds when it is loaded."""


def settled(workspace: Workspace, states: Sequence[JobState], **chosen: str) -> Mapping[str, str]:
    return start.resolved_selection(workspace, View("start", {**CHOICES, "start_shown_run": "", **chosen}, ()),
                                    states).values


def chain(workspace: Workspace, *asked: str) -> list[JobState]:
    return [JobState(job) for job in demo_chain.create_chain(workspace, start.chain_options(workspace, *asked))]


def test_a_reload_shows_what_the_newest_chain_learns(workspace: Workspace) -> None:
    write_speech(workspace, "mine", 0.5, "ti")
    assert settled(workspace, ()).items() >= CHOICES.items()
    for asked in (("tiny", "ti", "mine", start.QUICK),
                  ("chatterbox", "am", start.DEMO, start.FULL),
                  ("chatterbox", "ti", "mine", start.QUICK)):
        shown = settled(workspace, chain(workspace, *asked))
        assert tuple(shown[name] for name in CHOICES) == asked


def test_what_is_chosen_after_the_chain_was_shown_stays(workspace: Workspace) -> None:
    write_speech(workspace, "mine", 0.5, "ti")
    states = chain(workspace, "tiny", "ti", "mine", start.QUICK)
    assert settled(workspace, states, start_shown_run=states[-1].id).items() >= CHOICES.items()


def test_recordings_that_are_gone_are_not_shown_as_chosen(workspace: Workspace) -> None:
    write_speech(workspace, "mine", 0.5, "ti")
    states = chain(workspace, "tiny", "ti", "mine", start.QUICK)
    shutil.rmtree(workspace.datasets / "mine")
    shown = settled(workspace, states)
    assert (shown["start_language"], shown["start_dataset"]) == ("am", start.DEMO)


def test_a_language_without_recordings_is_told_where_to_prepare_some(workspace: Workspace) -> None:
    with pytest.raises(UserError, match="no recordings in Tigrinya"):
        start.chain_options(workspace, "tiny", "ti", "", start.FULL)


def test_datasets_of_another_language_are_not_offered(workspace: Workspace) -> None:
    scenes.dataset(workspace)  # of Amharic
    for language, offered in (("am", [start.DEMO_LABEL]), ("ti", [])):
        view = View("start", {"start_language": language, "start_dataset": ""}, ())
        update = start.dataset_choices(workspace, view)
        assert [label for label, _ in update["choices"]] == offered  # type: ignore[index]


def write_speech(workspace: Workspace, name: str, hours: float, language: str = "am") -> None:
    """As much of a dataset as choosing it reads."""
    (workspace.datasets / name).mkdir(parents=True)
    about = {"language": language, "clips": int(hours * 600), "duration_s": hours * 3600.0, "source": "A + B"}
    (workspace.datasets / name / "dataset.yaml").write_text(yaml.safe_dump(about))


def test_own_recordings_are_taken_as_they_stand_with_the_preset_for_their_hours(workspace: Workspace) -> None:
    for name, hours, preset in (("few", 0.5, "demo"), ("some", 3.0, "small-data"), ("many", 60.0, "large")):
        write_speech(workspace, name, hours)
        asked = start.chain_options(workspace, "chatterbox", "am", name, start.FULL)
        assert dict(demo_chain.chain_steps(asked))["prepare"].model_dump()["source"] == AS_IS
        wanted = model_info.fit_preset("chatterbox", model_info.SpeechAmount(int(hours * 600), hours * 3600.0), (),
                                       preset)
        assert asked.train == wanted.options
        view = View("start", {"start_model": "chatterbox", "start_dataset": name}, ())
        labels = [label for label, _ in start.length_choices(workspace, view)["choices"]]  # type: ignore[index]
        assert labels[0].startswith(f"Preset {model_info.TITLES[preset]}: {asked.train.steps:,} steps")


def test_what_is_learnt_gets_a_name_that_nothing_else_has(workspace: Workspace) -> None:
    write_speech(workspace, "mine", 0.5)

    def name(dataset: str, states: tuple[JobState, ...]) -> str:
        return start.chain_options(workspace, "tiny", "am", dataset, start.FULL, states).extended

    assert (name(start.DEMO, ()), name("mine", ())) == ("tiny-am", "tiny-am")
    made = demo_chain.create_chain(workspace, start.chain_options(workspace, "tiny", "am", start.DEMO,
                                                                  start.FULL))
    (workspace.tokenizers / "tiny-am").mkdir(parents=True)
    states = tuple(JobState(job, status="finished") for job in made)
    assert name(start.DEMO, states) == "tiny-am"  # the same again
    assert name("mine", states) == "tiny-mine"
    assert name(start.DEMO, tuple(JobState(job, status="failed") for job in made)) == "tiny-amharic-demo"
    (workspace.extensions / "tiny-mine").mkdir(parents=True)
    assert name("mine", states) == "tiny-mine-2"
