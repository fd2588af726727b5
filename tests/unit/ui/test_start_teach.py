"""What the Start page offers and queues, for each base model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import AS_IS, CompareOptions, PrepareOptions, TrainOptions, with_values
from core.jobs.events import Step
from core.jobs.job import create_job
from core.jobs.state import JobState
from core.library import presets, records
from core.library.catalog import find_entry
from core.library.lineage import Model
from core.submission import job_chains
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
    plain = job_chains.ChainOptions()
    stopping = replace(plain, train=with_values(plain.train, {"mismatch_action": "stop"}))
    assert job_chains.chain_steps(asked) == job_chains.chain_steps(stopping)
    assert start.comparison_options(workspace, asked) == job_chains.demo_options("compare", CompareOptions)


def test_another_family_gets_its_own_preset_and_is_downloaded_once(workspace: Workspace) -> None:
    asked = start.chain_options(workspace, "chatterbox", "am", start.DEMO, start.FULL)
    preset = presets.fit("chatterbox", presets.SpeechAmount(), (), "demo").options
    assert asked.train == with_values(preset, {"mismatch_action": "stop"})
    steps = dict(job_chains.chain_steps(asked))
    assert steps["download"].model_dump()["model"] == "chatterbox"
    assert [steps[verb].model_dump()["model"] for verb in ("prepare", "tokenizer", "extend")] == ["chatterbox"] * 3
    assert steps["train"].model_dump()["extension"] == "chatterbox-am"
    chatterbox_world.write_model(workspace.models / "chatterbox")
    asked = start.chain_options(workspace, "chatterbox", "am", start.DEMO, start.FULL)
    assert "download" not in dict(job_chains.chain_steps(asked))
    pair = start.comparison_options(workspace, asked)
    assert (pair.base, pair.voice, pair.texts) == ("base:chatterbox", "", ())  # the demo's voices are not its


@pytest.mark.parametrize("model", ["tiny", "chatterbox"])
def test_a_quick_try_is_shorter(workspace: Workspace, model: str) -> None:
    quick, full = (start.chain_options(workspace, model, "am", start.DEMO, length).train
                   for length in (start.QUICK, start.FULL))
    assert quick.length.steps < full.length.steps / 5
    assert quick.checkpoints.checkpoint_every < quick.length.steps


CHOICES = {"start_model": "tiny", "start_language": "am", "start_dataset": start.DEMO,
           "start_length": start.FULL}
"""What Start holds when it is loaded."""


def settled(workspace: Workspace, states: Sequence[JobState], **chosen: str) -> Mapping[str, str]:
    return start.resolved_selection(workspace, View("start", {**CHOICES, "start_shown_run": "", **chosen}, ()),
                                    states).values


def chain(workspace: Workspace, *asked: str) -> list[JobState]:
    options = start.chain_options(workspace, *asked)
    return [JobState(job) for job in job_chains.submit_chain(workspace, options, certificate=False)]


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
        assert [label for label, _ in update["choices"]] == [start.OWN_LABEL, *offered]  # type: ignore[index]
        assert update["value"] == (start.DEMO if offered else start.OWN)  # type: ignore[index]


def write_speech(workspace: Workspace, name: str, hours: float, language: str = "am") -> None:
    """As much of a dataset as choosing it reads."""
    (workspace.datasets / name).mkdir(parents=True)
    about = {"language": language, "clips": int(hours * 600), "duration_s": hours * 3600.0, "source": "A + B"}
    (workspace.datasets / name / "dataset.yaml").write_text(yaml.safe_dump(about))


def test_own_recordings_are_taken_as_they_stand_with_the_preset_for_their_hours(workspace: Workspace) -> None:
    for name, hours, preset in (("few", 0.5, "demo"), ("some", 3.0, "small-data"), ("many", 60.0, "large")):
        write_speech(workspace, name, hours)
        asked = start.chain_options(workspace, "chatterbox", "am", name, start.FULL)
        assert dict(job_chains.chain_steps(asked))["prepare"].model_dump()["source"] == AS_IS
        wanted = presets.fit("chatterbox", presets.SpeechAmount(int(hours * 600), hours * 3600.0), (),
                                       preset)
        assert asked.train == with_values(wanted.options, {"mismatch_action": "stop"})
        view = View("start", {"start_model": "chatterbox", "start_dataset": name}, ())
        labels = [label for label, _ in start.length_choices(workspace, view)["choices"]]  # type: ignore[index]
        assert labels[0].startswith(f"Preset {presets.TITLES[preset]}: {asked.train.length.steps:,} steps")


def test_what_is_learnt_gets_a_name_that_nothing_else_has(workspace: Workspace) -> None:
    write_speech(workspace, "mine", 0.5)

    def name(dataset: str, states: tuple[JobState, ...]) -> str:
        return start.chain_options(workspace, "tiny", "am", dataset, start.FULL, states).extended

    assert (name(start.DEMO, ()), name("mine", ())) == ("tiny-am", "tiny-am")
    made = job_chains.submit_chain(workspace, start.chain_options(workspace, "tiny", "am", start.DEMO,
                                                                  start.FULL), certificate=False)
    (workspace.tokenizers / "tiny-am").mkdir(parents=True)
    states = tuple(JobState(job, status="finished") for job in made)
    assert name(start.DEMO, states) == "tiny-am"  # the same again
    assert name("mine", states) == "tiny-mine"
    assert name(start.DEMO, tuple(JobState(job, status="failed") for job in made)) == "tiny-amharic-demo"
    (workspace.extensions / "tiny-mine").mkdir(parents=True)
    assert name("mine", states) == "tiny-mine-2"


def own(workspace: Workspace, source: Path, name: str = "mine", language: str = "Swahili",
        any_script: bool = False) -> PrepareOptions:
    return start.own_recordings(workspace, "tiny", str(source), name, language, any_script)


@pytest.fixture
def recordings(tmp_path: Path) -> Path:
    """A recording with its text in Swahili."""
    scenes.tone(tmp_path / "in" / "a.wav")
    (tmp_path / "in" / "a.txt").write_text("Habari yako")
    return tmp_path / "in"


def test_own_recordings_are_imported_by_the_same_chain(workspace: Workspace, recordings: Path) -> None:
    made = start.chain_options(workspace, "tiny", "sw", "mine", start.QUICK, own=own(workspace, recordings))
    steps = dict(job_chains.chain_steps(made))
    prepare = steps["prepare"].model_dump()
    assert (prepare["source"], prepare["dataset"], prepare["language"]) == (str(recordings), "mine", "sw")
    assert (steps["train"].model_dump()["dataset"], made.extended) == ("mine", "tiny-sw")


@pytest.mark.parametrize(("given", "code"), [
    ("sw", "sw"), ("HA", "ha"), ("Hausa", "ha"), (" ko", "ko"), ("wolaytta", "wal"), ("pt_BR", "pt-br"), ("ga", "ga")])
def test_the_language_of_own_recordings_is_a_code_before_it_is_a_name(
        workspace: Workspace, recordings: Path, given: str, code: str) -> None:
    assert own(workspace, recordings, language=given, any_script=True).language == code


def test_the_button_names_the_language_of_the_chosen_code() -> None:
    values = {"start_dataset": start.OWN, "start_own_name": "", "start_own_language": "ha"}
    assert start.start_button(View("start", values, ()))["value"] == "Train Hausa"  # type: ignore[index]


@pytest.mark.parametrize(("model", "language"), [("tiny", "fr"), ("chatterbox", "sw"), ("indextts2", "zh")])
def test_a_language_of_a_model_that_is_not_downloaded_yet_is_not_a_new_one(
        workspace: Workspace, recordings: Path, model: str, language: str) -> None:
    with pytest.raises(UserError, match=f"\\({language}\\), which the base model already speaks"):
        start.own_recordings(workspace, model, str(recordings), "mine", language, any_script=True)


def test_the_catalog_knows_the_languages_of_the_built_in_model() -> None:
    pack = Path(__file__).parents[3] / "models" / "tiny" / "pack"
    assert list(find_entry("tiny").codes) == json.loads((pack / "front_end.json").read_text())["base_languages"]


def test_a_language_of_the_base_model_is_not_a_new_one(
        workspace: Workspace, recordings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Workspace, "list_models", lambda _workspace: ("tiny",))
    model = Model(workspace, "base:tiny", "base", "tiny", workspace.models / "tiny")
    monkeypatch.setattr(Model, "find", lambda _workspace, _name: model)
    monkeypatch.setattr(Model, "base_languages", ("en", "el"))
    with pytest.raises(UserError, match="is in English \\(en\\), which the base model already speaks"):
        own(workspace, recordings, language="en")


def test_own_recordings_are_refused_at_the_press(workspace: Workspace, recordings: Path) -> None:
    for wrong, fault in (({"name": ""}, "Dataset name: it is empty"), ({"language": ""}, "Language: it is empty"),
                         ({"language": "Amharic"}, "Amharic is written in Ethiopic letters"),
                         ({"source": recordings / "b"}, "There is no dataset at"), ({"source": ""}, "No recordings")):
        with pytest.raises(UserError, match=fault):
            own(workspace, **{"source": recordings, **wrong})  # type: ignore[arg-type]
    assert own(workspace, recordings, language="am", any_script=True).any_script
    scenes.dataset(workspace, "mine")
    with pytest.raises(UserError, match="There already is a dataset named 'mine'"):
        own(workspace, recordings)


def test_a_name_is_suggested_from_what_was_given() -> None:
    assert start.suggested_name("/data/My Swahili voice.zip") == "My-Swahili-voice"
    assert start.suggested_name("/workspace/cache/uploads/20261123-101010-abcd/swahili.tar.gz") == "swahili"
    several = "/workspace/cache/uploads/20261123-101010-abcd"
    assert start.suggested_name(several) == start.suggested_name("") == ""
    assert start.suggested_name(several, "sw") == "swahili"  # which says more than the folder of an upload


def write_extension(workspace: Workspace) -> None:
    (workspace.models / "tiny").mkdir()
    (workspace.extensions / "tiny-am").mkdir()
    origin = records.Origin("tiny", "tiny", "", 1, 2, "")
    records.write_record(workspace.extensions / "tiny-am" / records.EXTENSION,
                         records.ExtensionRecord("tiny-am", "tiny-am", ("am",), "romanised", 0, "", origin))


def test_lengths_are_minutes_and_the_steps_that_fit_into_them(workspace: Workspace) -> None:
    five = parse_options(TrainOptions, {"steps": 800, "max_minutes": 5})
    any_steps, whole = (parse_options(TrainOptions, length) for length in ({"max_minutes": 15}, {"steps": 4000}))
    for options, step_s, title in ((five, None, "Full: 5 min, up to 800 steps"),
                                   (five, 0.25, "Full: 4 min, about 800 steps here"),
                                   (five, 0.5, "Full: 5 min, about 600 of 800 steps here"),
                                   (whole, None, "Full: 4,000 steps, timed before the first"),
                                   (whole, 9.0, "Full: 4,000 steps, about 10 h here")):
        assert start.length_title("Full", options.length, step_s) == title
    assert start.length_title("", any_steps.length, None) == "15 min, as many steps as fit"
    assert start.length_title("", any_steps.length, 0.5) == "15 min, about 1,800 steps here"
    write_extension(workspace)
    made = create_job(workspace, "train", five)
    assert made.device == "cpu"
    state = JobState(made, status="finished", steps=(Step(100, 800, 3.0, 1.0, {"rows": 0.1}, 1.0, 10.0, 50.0, 0.0),))
    # Too few steps were taken.
    assert start.step_seconds(workspace, View("start", CHOICES, (state,)), five.batches, ()) is None
    state = replace(state, steps=state.steps * 5)
    assert start.step_seconds(workspace, View("start", CHOICES, (state,)), five.batches, ()) == 0.5
    smaller = parse_options(TrainOptions, {"batch_size": 8})
    assert start.step_seconds(workspace, View("start", CHOICES, (state,)), smaller.batches, ()) is None
    running = View("start", CHOICES, (replace(state, status="running"),))
    assert start.step_seconds(workspace, running, five.batches, ()) is None  # or each step would redraw the list


def test_an_ended_chain_is_trained_further_on_its_weights(workspace: Workspace) -> None:
    states = chain(workspace, "tiny", "am", start.DEMO, start.QUICK)
    write_extension(workspace)
    assert start.further_button(states)["visible"]  # type: ignore[index]
    options = start.further_options(workspace, states, "15")
    assert options.checkpoints.init_from == f"run:{states[-1].id}"
    assert (options.length.max_minutes, options.dataset) == (15, "amharic-demo")
    job = create_job(workspace, "train", options, after=(states[-1].id,))
    longer = [JobState(job), *reversed(states)]
    assert [state.verb for state in start.chain_of(longer)][-2:] == ["train", "train"]
    assert settled(workspace, start.chain_of(longer))["start_length"] == "15"


def test_the_button_and_the_card_name_language_and_dataset(workspace: Workspace) -> None:
    write_speech(workspace, "mine", 0.5, "sw")
    scenes.dataset(workspace, "other")
    states = chain(workspace, "tiny", "sw", "mine", start.QUICK)
    assert start.chain_title(states) == "Swahili from mine"

    def button(dataset: str, language: str, *jobs: JobState) -> object:
        values = {"start_dataset": dataset, "start_language": language, "start_own_name": "", "start_own_language": ""}
        return start.start_button(View("start", values, jobs))["value"]  # type: ignore[index]

    assert button("mine", "sw") == "Train Swahili"
    newest_first = [replace(state, status="running") for state in reversed(states)]
    assert button("other", "am", *newest_first) == "Training Swahili from mine"
    ended = [replace(state, status="finished") for state in newest_first]
    assert button("mine", "sw", *ended) == "Train Swahili again"
    assert button("other", "am", *ended) == button(start.DEMO, "am", *ended) == "Train Amharic"
    stopped = [replace(state, status="stopped") for state in states]
    assert start.resume_button(stopped)["value"] == "Resume Swahili from mine"  # type: ignore[index]


def test_a_dataset_being_prepared_is_shown_and_a_failed_one_leaves_its_fields(workspace: Workspace) -> None:
    options = job_chains.ChainOptions(source=str(workspace.path), dataset="mine", language="sw", rules="")
    states = [JobState(job, status="running") for job in job_chains.submit_chain(workspace, options, certificate=False)]
    shown = settled(workspace, states)
    assert (shown["start_dataset"], shown["start_language"]) == ("mine", "sw")
    update = start.dataset_choices(workspace, View("start", shown, tuple(states)))
    assert ("mine (being prepared)", "mine") in update["choices"]  # type: ignore[index]
    failed = tuple(replace(state, status="failed") for state in states)
    assert start.dataset_choices(workspace, View("start", shown, failed))["value"] == start.OWN  # type: ignore[index]


def test_little_speech_and_few_held_out_clips_are_told_before_the_start(workspace: Workspace) -> None:
    write_speech(workspace, "mine", 0.1, "sw")
    about = workspace.datasets / "mine" / "dataset.yaml"
    about.write_text(about.read_text() + "held_out_clips: 1\n")
    shown = str(start.data_view(workspace, View("start", {"start_dataset": "mine"}, ())))
    assert "6 min of speech in 60 clips, 1 of them held out (2%)" in shown
    assert "10 min is the least that has worked" in shown
    assert "held-out share on the Data tab" in shown
    assert not start.data_view(workspace, View("start", {"start_dataset": start.DEMO}, ()))
