"""What a form lacks on a workspace, and what it offers instead of names of things that are not there."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
import pytest

from config.errors import UserError
from config.schema import ExtendOptions, Options, PackOptions, PrepareOptions, TokenizerOptions
from core.jobs.job import Job
from core.jobs.state import JobState
from core.jobs.verbs import VERBS
from core.workspace import Workspace
from ui import form, verb_form
from ui.live import View
from ui.verb_form import ChoiceSource

CHOSEN = {"tokenizer.model": "", "tokenizer.dataset": "", "tokenizer.rules": ""}


def choices(models: list[str], datasets: list[str]) -> dict[str, ChoiceSource]:
    return {"model": lambda view: models, "dataset": lambda view: datasets, "rules": lambda view: [""]}


def test_a_form_shows_no_name_of_what_it_was_not_offered() -> None:
    with gr.Blocks(analytics_enabled=False):
        made = form.build_form(TokenizerOptions, choices={"model": (), "dataset": ("amharic-demo",)})
    assert made.widget("model").value is None
    assert made.widget("dataset").value == "amharic-demo"


def test_an_empty_workspace_lacks_both_and_says_where_each_is_made() -> None:
    found = verb_form.missing_prerequisites(View("tokenizer", CHOSEN, ()), "tokenizer", choices([], []))
    assert found == ("model", "dataset")
    said = verb_form.prerequisites_view(found)
    for part in ("No base model", "Model tab", "No dataset", "Data tab", "Start"):
        assert part in said


def test_nothing_is_said_of_what_is_there_or_may_be_left_empty() -> None:
    found = verb_form.missing_prerequisites(View("tokenizer", CHOSEN, ()), "tokenizer", choices(["tiny"], ["mine"]))
    assert found == ()
    assert verb_form.prerequisites_view(found) == ""


def test_what_a_job_is_making_is_not_lacking() -> None:
    job = Job(Path("/w/runs/prepare-1"), "prepare", "cpu", (), 1.0, {"dataset": "mine", "model": "tiny"})
    view = View("tokenizer", CHOSEN, (JobState(job, "running"),))
    assert verb_form.missing_prerequisites(view, "tokenizer", choices(["tiny"], [])) == ()


def test_of_what_is_there_the_usual_one_is_offered_first() -> None:
    view = View("tokenizer", CHOSEN, ())
    now = verb_form.resolved_selection(view, "tokenizer", choices(["chatterbox", "tiny"], ["another"]))
    assert (now.values["tokenizer.model"], now.values["tokenizer.dataset"]) == ("tiny", "another")


def test_a_press_with_nothing_chosen_does_not_say_that_there_is_nothing() -> None:
    with pytest.raises(UserError) as refused:
        verb_form.require_choices("tokenizer", ("model",), (None,))
    assert "nothing is chosen" in refused.value.message
    assert "download one on the Model tab" in refused.value.hint


def test_a_field_is_no_prerequisite_because_of_its_name() -> None:
    options = PackOptions(item="export:mine")
    verb_form.require_choices("pack", ("item", "data", "model"), (options.item, options.data, options.model))
    assert [name for name in PackOptions.model_fields if verb_form.prerequisite_of("pack", name)] == []
    found = {(verb, name) for verb, entry in VERBS.items() for name in entry.options.model_fields
             if verb_form.prerequisite_of(verb, name)}
    assert {("tokenizer", "model"), ("train", "extension"), ("extend", "tokenizer"), ("prepare", "model")} <= found
    assert not {("tokenizer", "tokenizer"), ("prepare", "add_to"), ("train", "replay_datasets")} & found


def test_the_name_that_a_form_suggests_is_free(workspace: Workspace) -> None:
    def suggested(**changes: str) -> str:
        values = {f"tokenizer.{name}": str(field.default) for name, field in TokenizerOptions.model_fields.items()}
        view = View("tokenizer", {**values, **{f"tokenizer.{name}": value for name, value in changes.items()}}, jobs)
        return verb_form.free_tokenizer_name(workspace, view)

    jobs: tuple[JobState, ...] = ()
    assert suggested() == "tiny-am"
    (workspace.tokenizers / "tiny-am").mkdir()
    assert suggested() == "tiny-am-2"  # nobody knows what made the other one
    job = Job(Path("/w/runs/tokenizer-1"), "tokenizer", "none", (), 1.0, {"tokenizer": "tiny-am", "merges": 50})
    jobs = (JobState(job, "finished"),)
    assert suggested(merges="50") == "tiny-am"
    assert suggested(dataset="another", merges="50") == "tiny-am-2"
    assert {"tiny-am", "tiny-am-2"} <= verb_form.generated_names(workspace)
    (workspace.tokenizers / "tiny-am-2").mkdir()
    assert suggested() == "tiny-am-3"
    assert "tiny-am-3" in verb_form.generated_names(workspace)


@pytest.mark.parametrize(("verb", "options", "given", "message"), [
    ("prepare", PrepareOptions, {"source": "", "dataset": "", "language": "am"},
     "Source: it is empty; give `demo`, a folder, a file, a URL, or `hub:OWNER/NAME`. "
     "Dataset name: it is empty; give a name of letters and digits, such as `my-voice`."),
    ("tokenizer", TokenizerOptions, {"tokenizer": ""},
     "Tokenizer name: it is empty; give a name of letters and digits, such as `my-voice`."),
    ("extend", ExtendOptions, {"extension": ""},
     "Extension name: it is empty; give a name of letters and digits, such as `my-voice`."),
    ("tokenizer", TokenizerOptions, {"tokenizer": "a/b"}, "Tokenizer name: 'a/b' cannot be a name."),
    ("tokenizer", TokenizerOptions, {"merges": "many"}, "Merges: should be a whole number (given: 'many')."),
])
def test_a_wrong_field_is_named_once_by_its_label(verb: str, options: type[Options], given: dict[str, str],
                                                  message: str) -> None:
    verb_form.require_choices(verb, tuple(given), tuple(given.values()))
    with pytest.raises(UserError) as refused:
        form.parse(options, given)
    assert refused.value.message == message
    assert ("1 to 64 letters" in refused.value.hint) == ("cannot be a name" in message)


def test_a_reference_is_offered_by_its_title(tmp_path: Path) -> None:
    workspace = Workspace.open(tmp_path)
    values = ["", "tiny", "recordings", "export:mine", "run:train-20260101-120000-9d83"]
    offered = verb_form.titled_choices(workspace, values)
    assert offered == [("", ""), ("tiny", "tiny"), ("recordings", "recordings"), ("export mine", "export:mine"),
                       ("run 9d83", "run:train-20260101-120000-9d83")]
