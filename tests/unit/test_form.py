"""Forms are the schema: labels, help, ranges and defaults come from it, and values go back through it."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.errors import UserError
from config.schema import VERBS, CompareOptions, SamplingOptions, TokenizerOptions, TrainOptions
from ui import form


def test_every_scalar_option_of_every_verb_has_an_entry_with_label_and_help() -> None:
    for model in VERBS.values():
        for entry in form.entries(model):
            assert entry.title, entry.name
            assert entry.help, entry.name
            assert entry.kind != "choice" or entry.default in entry.choices


def test_ranges_and_choices_come_from_the_schema() -> None:
    known = {entry.name: entry for entry in form.entries(TrainOptions)}
    assert (known["text_dropout"].minimum, known["text_dropout"].maximum) == (0.0, 0.9)
    assert known["text_dropout"].range_text == "0 to 0.9"
    assert known["scope"].choices == ("rows", "gated", "full")
    assert known["steps"].kind == "integer"
    assert known["row_rate"].step == pytest.approx(0.001)


def test_options_in_a_group_have_dotted_names_and_tuples_are_left_to_their_tab() -> None:
    names = [entry.name for entry in form.entries(CompareOptions)]
    assert "sampling.temperature" in names
    assert "texts" not in names


def test_defaults_come_back_as_the_defaults() -> None:
    values = {entry.name: entry.default for entry in form.entries(TrainOptions)}
    assert form.parse(TrainOptions, values) == TrainOptions()


def test_values_of_a_group_are_put_into_the_group() -> None:
    options = form.parse(CompareOptions, {"finetuned": "run:one", "sampling.temperature": 0.7, "sampling.seed": 3})
    assert options.sampling == SamplingOptions(temperature=0.7, seed=3)


def test_text_as_a_page_sends_it_is_taken_for_numbers() -> None:
    assert form.parse(TokenizerOptions, {"merges": "40", "tokenizer": " mine "}) == TokenizerOptions(
        merges=40, tokenizer="mine")


def test_every_fault_is_named_by_its_label_with_the_value_seen() -> None:
    with pytest.raises(UserError) as caught:
        form.parse(TrainOptions, {"text_dropout": 3, "steps": 0, "dataset": "../../x"})
    for part in ("Text dropout", "given: 3", "Steps", "given: 0", "Dataset", "'../../x'"):
        assert part in caught.value.message


def test_the_equal_command_names_only_what_differs_from_the_defaults() -> None:
    line = form.command_line("train", TrainOptions(steps=50, scope="rows"), Path("/tmp/my place"))
    assert line == "python -m scripts.train --workspace '/tmp/my place' --scope rows --steps 50"


def test_what_is_left_empty_is_the_models_own() -> None:
    given = {"sampling.temperature": " ", "sampling.top_p": "", "sampling.min_p": None, "sampling.guidance": 0,
             "sampling.repetition_penalty": "1.5"}
    options = form.parse(CompareOptions, given)
    assert options.sampling == SamplingOptions(guidance=0.0, repetition_penalty=1.5)
    with pytest.raises(UserError, match="Temperature: "):
        form.parse(CompareOptions, {"sampling.temperature": "warm"})


def test_a_yes_or_no_is_a_box_to_tick() -> None:
    known = {entry.name: entry for entry in form.entries(CompareOptions)}
    assert (known["sound.watermark"].kind, known["sound.watermark"].default) == ("switch", True)
