"""The table of verbs is complete, and nothing in it names what is not there."""

from __future__ import annotations

import inspect
import string
import subprocess
import sys
import typing
from pathlib import Path

import pytest

from config.schema import option_fields
from core.jobs import verbs
from core.jobs.reporter import Reporter
from core.jobs.verbs import SYNTHESIS_VERBS, VERBS, import_work, verb_module
from core.workspace import Workspace
from ui.page import PLACES

ROOT = Path(__file__).resolve().parents[4]
MADE = {kind for verb in VERBS.values() for kind in verb.makes.values()}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_checks_and_runs_its_own_options(name: str) -> None:
    verb, module, run = VERBS[name], verb_module(name), import_work(name)
    options, workspace, reporter = list(typing.get_type_hints(run).values())[:3]
    assert list(inspect.signature(run).parameters)[:3] == ["options", "workspace", "reporter"]
    assert (options, workspace, reporter) == (verb.options, Workspace, Reporter)
    if module is not None:
        checked = typing.get_type_hints(module.check)
        assert list(checked) == ["workspace", "options", "return"]
        assert verb.options in (checked["options"], *typing.get_args(checked["options"]))


@pytest.mark.parametrize("name", VERBS)
def test_the_subject_of_a_verb_names_its_options(name: str) -> None:
    subject = VERBS[name].subject
    templates = [subject] if isinstance(subject, str) else subject
    fields = {field for template in templates for _, field, _, _ in string.Formatter().parse(template)}
    assert fields
    assert fields <= set(VERBS[name].options.model_fields)


def test_every_module_of_a_verb_is_in_the_table() -> None:
    assert {path.stem for path in (ROOT / "core" / "verbs").glob("[!_]*.py")} < set(VERBS)


def test_the_modules_of_all_verbs_load_no_torch() -> None:
    """The page and the command line import them; the worker alone imports the work."""
    code = ("import sys; from core.jobs.verbs import VERBS, verb_module\n"
            "for name in VERBS:\n"
            "    verb_module(name)\n"
            "    heavy = {'torch', 'torchaudio', 'transformers', 'peft', 'models'} & set(sys.modules)\n"
            "    assert not heavy, (name, heavy)")
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", VERBS)
def test_what_the_table_says_of_a_verb_is_there(name: str) -> None:
    verb = VERBS[name]
    assert verb.title
    assert verb.tab in dict(PLACES)
    fields = set(option_fields(verb.options))
    assert set(verb.needs) <= fields
    assert set(verb.makes) <= fields | {"job"}
    assert set(verb.needs.values()) <= MADE | {"reference", "recogniser", "source", "file"}
    # A sweep hands the device on to its trainings.
    assert verb.takes_device or "device" not in fields or name == "sweep"
    assert verb.presets_of in ("", *VERBS)


def test_each_options_class_has_a_verb() -> None:
    imported = {value for value in vars(verbs).values() if isinstance(value, type) and value.__name__ != "Options"
                and value.__name__.endswith("Options")}
    assert {verb.options for verb in VERBS.values()} == imported


def test_titles_are_told_apart() -> None:
    assert len({verb.title for verb in VERBS.values()}) == len(VERBS)


def test_the_model_server_runs_the_verbs_that_the_table_says() -> None:
    from core import model_server  # torch

    assert set(model_server._verbs()) == set(SYNTHESIS_VERBS)
