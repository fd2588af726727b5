"""The table of verbs is complete, and nothing in it names what is not there."""

from __future__ import annotations

import importlib
import inspect
import typing
from pathlib import Path

import pytest

from core.jobs import verbs
from core.jobs.reporter import Reporter
from core.jobs.verbs import SYNTHESIS_VERBS, VERBS
from core.workspace import Workspace
from ui.page import TABS

ROOT = Path(__file__).resolve().parents[4]
MADE = {kind for verb in VERBS.values() for kind in verb.makes.values()}


@pytest.mark.parametrize("name", VERBS)
def test_a_verb_runs_its_own_options(name: str) -> None:
    verb = VERBS[name]
    run = importlib.import_module(verb.module).run
    options, workspace, reporter = list(typing.get_type_hints(run).values())[:3]
    assert list(inspect.signature(run).parameters)[:3] == ["options", "workspace", "reporter"]
    assert (options, workspace, reporter) == (verb.options, Workspace, Reporter)


@pytest.mark.parametrize("name", VERBS)
def test_what_the_table_says_of_a_verb_is_there(name: str) -> None:
    verb = VERBS[name]
    assert verb.title
    assert verb.tab in dict(TABS)
    fields = set(verb.options.model_fields)
    assert set(verb.needs) <= fields
    assert set(verb.makes) <= fields | {"job"}
    assert set(verb.needs.values()) <= MADE | {"reference", "recogniser", "source", "file"}
    assert verb.takes_device or "device" not in fields
    assert verb.presets_of in ("", *VERBS)
    assert (ROOT / "scripts" / f"{name}.py").is_file()


def test_each_options_class_has_a_verb() -> None:
    imported = {value for value in vars(verbs).values() if isinstance(value, type) and value.__name__ != "Options"
                and value.__name__.endswith("Options")}
    assert {verb.options for verb in VERBS.values()} == imported


def test_titles_are_told_apart() -> None:
    assert len({verb.title for verb in VERBS.values()}) == len(VERBS)


def test_the_model_server_runs_the_verbs_that_the_table_says() -> None:
    from core import model_server  # torch

    assert set(model_server._verbs()) == set(SYNTHESIS_VERBS)
