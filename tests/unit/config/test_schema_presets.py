"""Every preset loads, and every option is read by the code that it promises to steer."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest
import yaml

from config.errors import UserError
from config.loading import parse_options
from config.schema import Options, SamplingOptions, Section, option_fields, without_sections
from core.jobs.verbs import VERBS, read_preset

ROOT = Path(__file__).resolve().parents[3]
PRESETS = sorted((ROOT / "config" / "presets").glob("*.yaml"))
READERS = ("core", "data", "models")  # what a page or a command line does with a field is not reading it
WRITERS = ("core/submission/job_chains.py",)  # fills options in for the chain
SECTIONS = tuple(kind.__name__ for kind in Section.__subclasses__())  # of a training
TWINS = {"SamplingOptions": ("Sampling",), "TrainOptions": SECTIONS,
         **dict.fromkeys(("PreflightOptions", "SweepOptions"), ("TrainOptions", *SECTIONS)),
         "SegmentOptions": ("ClipOptions", "EngineOptions"), "AlignOptions": ("ClipOptions", "EngineOptions"),
         **dict.fromkeys(("PrepareOptions", "ReviseOptions", "TranscribeOptions", "EvaluateOptions",
                          "SynthesizeOptions"),
                         ("EngineOptions",))}  # others with the same fields


def option_classes() -> list[type[Options]]:
    return [*(verb.options for verb in VERBS.values()), SamplingOptions]


@cache
def names_and_attributes(text: str) -> tuple[set[str], set[str]]:
    nodes = list(ast.walk(ast.parse(text)))
    return ({node.id for node in nodes if isinstance(node, ast.Name)},
            {node.attr for node in nodes if isinstance(node, ast.Attribute)})


def unread(model: type[Options], texts: Iterable[str]) -> list[str]:
    """Fields of `model` that are no attribute in any of `texts` that names the class (or its twin)."""
    names = {model.__name__, *TWINS.get(model.__name__, ())}
    read: set[str] = set()
    for text in texts:
        named, attributes = names_and_attributes(text)
        if names & named:
            read |= attributes
    return [name for name in option_fields(model) if name not in read]


def test_there_are_presets() -> None:
    assert "demo" in [path.stem for path in PRESETS]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_loads_and_says_something_to_known_verbs(path: Path) -> None:
    sections = yaml.safe_load(path.read_text(encoding="utf-8"))
    sections.pop("preset")
    assert set(sections) <= set(VERBS)
    for verb, values in sections.items():
        options = parse_options(VERBS[verb].options, read_preset(path, verb))
        stored = without_sections(type(options), options.model_dump(mode="json"))
        assert without_sections(type(options), values).keys() <= stored.keys()


@pytest.mark.parametrize("model", option_classes(), ids=lambda model: model.__name__)
def test_every_option_is_read(model: type[Options]) -> None:
    paths = {path for folder in READERS for path in (ROOT / folder).rglob("*.py")} - {ROOT / name for name in WRITERS}
    texts = [path.read_text(encoding="utf-8") for path in sorted(paths)]
    assert unread(model, texts) == []


@pytest.mark.parametrize("model", option_classes(), ids=lambda model: model.__name__)
def test_every_option_explains_itself(model: type[Options]) -> None:
    assert model.__doc__
    fields = option_fields(model)
    assert [name for name, field in fields.items() if not (field.title and field.description)] == []
    assert all(kind.__doc__ for kind in Section.__subclasses__())


def test_a_dead_option_is_found() -> None:
    text = "def run(options: SamplingOptions): return options.temperature, options.top_p, options.seed"
    assert unread(SamplingOptions, [text]) == ["top_k", "min_p", "repetition_penalty", "guidance"]
    assert "temperature" in unread(SamplingOptions, [text.replace(": SamplingOptions", "")])


def test_a_section_of_another_verb_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "both.yaml").write_text("train: {steps: 7}\ndownload: {model: tiny}\n", encoding="utf-8")
    assert read_preset(tmp_path / "both.yaml", "train") == {"steps": 7}
    assert read_preset(tmp_path / "both.yaml", "export") == {}


def test_a_misspelt_option_is_named(tmp_path: Path) -> None:
    (tmp_path / "wrong.yaml").write_text("train: {stepz: 7}\n", encoding="utf-8")
    with pytest.raises(UserError, match="stepz"):
        parse_options(VERBS["train"].options, read_preset(tmp_path / "wrong.yaml", "train"))
