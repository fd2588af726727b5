"""The options of a training in sections: files have them, or the names of the options alone, as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from config.arguments import flags
from config.errors import UserError
from config.foreign_settings import is_foreign
from config.loading import change_options, parse_options
from config.schema import (
    Section,
    SweepOptions,
    TrainOptions,
    in_sections,
    option_fields,
    option_path,
    option_value,
    with_values,
    without_sections,
)
from core.jobs.job import create_job, load_job
from core.jobs.state import JobBoard
from core.jobs.verbs import VERBS, read_preset
from core.workspace import Workspace
from scripts.command import read_grid

BY_NAME = {"extension": "mine", "steps": 7, "row_lr": "0,25", "adapter_rank": 4, "scope": "full", "ewc": 2,
           "keep_last": 3, "recogniser": "built-in", "processes": 2, "seed": 5, "tracker": "wandb", "augmentation": 0.5}
SECTIONED = {"extension": "mine", "scope": "full", "seed": 5, "length": {"steps": 7}, "optimization": {"row_lr": 0.25},
             "adapters": {"adapter_rank": 4}, "full": {"ewc": 2}, "checkpoints": {"keep_last": 3},
             "evaluation": {"recogniser": "built-in"}, "hardware": {"processes": 2}, "job": {"tracker": "wandb"},
             "data": {"augmentation": 0.5}}


def test_an_option_is_the_same_by_its_name_alone_and_in_its_section() -> None:
    options = parse_options(TrainOptions, BY_NAME)
    assert options == parse_options(TrainOptions, SECTIONED)
    assert options == parse_options(TrainOptions, options.model_dump(mode="json"))
    values = without_sections(TrainOptions, options.model_dump(mode="json"))
    assert set(values) == set(option_fields(TrainOptions))
    assert in_sections(TrainOptions, values) == options.model_dump(mode="json")
    assert {name: option_value(options, name) for name in BY_NAME} == {**BY_NAME, "row_lr": 0.25}


def test_a_flag_is_named_without_its_section_and_inherits_what_the_section_says() -> None:
    names = [flag.name for flag in flags(TrainOptions)]
    assert len(set(names)) == len(names) == len(option_fields(TrainOptions))
    assert "--batch-size" in names
    groups = {flag.option: flag.group for flag in flags(TrainOptions)}
    assert (groups["batch_size"], groups["layer_lr"], groups["replay"], groups["steps"]) == ("Optimizer", "Optimizer",
                                                                                            "Data", "")


def test_changes_are_by_name_and_leave_the_other_options() -> None:
    options = parse_options(TrainOptions, BY_NAME)
    for changed in (change_options(options, {"steps": 9, "device": "cpu"}),
                    with_values(options, {"steps": 9, "device": "cpu"})):
        assert (changed.length.steps, changed.device, changed.optimization.row_lr) == (9, "cpu", 0.25)
    with pytest.raises(UserError, match="steps: should be less than or equal to 1000000"):
        change_options(options, {"steps": 10_000_000})


@pytest.mark.parametrize(("values", "message"), [
    ({"steps": 5, "length": {"steps": 6}}, "The option 'steps' is given twice: by itself and in its section"),
    ({"optimization": {"steps": 6}}, "steps is not an option of the section optimization"),
    ({"adapters": 5}, "adapters is a section of options, and its value is 5"),
    ({"length": {"steps": -1}}, "steps: should be greater than or equal to 0"),
    ({"length": {"max_minutes": 5, "decoder_minutes": 5}}, "used: decoder_minutes is 5 of a time limit of 5 minutes"),
])
def test_a_wrong_section_is_named(values: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        parse_options(TrainOptions, values)


@pytest.mark.parametrize(("section", "named"), [
    ({"length": {"steps": 5, "newer": 1}}, r"length\.newer"), ({"length": None}, "length is a section of options"),
    ({"newer": 1}, "newer"),
])
def test_a_job_of_another_version_is_listed_and_its_options_are_refused_by_name(
    tmp_path: Path, section: dict[str, object], named: str,
) -> None:
    workspace = Workspace.open(tmp_path)
    job = create_job(workspace, "train", TrainOptions(), job_id="run")
    path = job.directory / "config.yaml"
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    values["options"] |= section
    path.write_text(yaml.safe_dump(values), encoding="utf-8")

    assert [state.id for state in JobBoard(workspace).states()] == ["run"]
    with pytest.raises(UserError, match=named):
        load_job(workspace, "run").options()


def test_a_change_of_no_option_is_an_error_of_the_program() -> None:
    with pytest.raises(AssertionError, match="nonsense is not an option"):
        with_values(TrainOptions(), {"nonsense": 1})


@pytest.mark.parametrize("values", [BY_NAME, SECTIONED])
def test_a_preset_file_may_have_either(tmp_path: Path, values: dict[str, object]) -> None:
    path = tmp_path / "preset.yaml"
    for content in (values, {"train": values}, {"verb": "train", "options": values}):
        path.write_text(yaml.safe_dump(content), encoding="utf-8")
        options = read_preset(path, "train")
        assert set(options) == set(BY_NAME)
        assert parse_options(TrainOptions, options) == parse_options(TrainOptions, BY_NAME)
    assert not is_foreign(values)


@pytest.mark.parametrize("text", [
    "steps: 80\nadapter_lr: [1e-3, 2e-3]\nscope: [rows, gated]\n",
    "length: {steps: 80}\noptimization: {adapter_lr: [1e-3, 2e-3]}\nscope: [rows, gated]\n"])
def test_a_grid_may_have_either(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.yaml").write_text(text, encoding="utf-8")
    options = parse_options(SweepOptions, read_grid(str(tmp_path / "plan.yaml")))
    assert (options.length.steps, options.vary) == (80, "adapter_lr: 1e-3, 2e-3; scope: rows, gated")


def test_no_section_is_named_as_an_option_or_a_verb() -> None:
    paths = [option_path(TrainOptions, name) for name in option_fields(TrainOptions)]
    sections = {path[0] for path in paths if len(path) > 1}
    assert len(sections) == len(Section.__subclasses__())
    assert not sections & set(VERBS)
    assert not sections & set(option_fields(SweepOptions))
