"""Forms are the schema: labels, help, ranges and defaults come from it, and values go back through it."""

from __future__ import annotations

from pathlib import Path

import gradio as gr
import pytest

from config.errors import UserError
from config.loading import parse_options
from config.schema import CompareOptions, PrepareOptions, SamplingOptions, TokenizerOptions, TrainOptions
from core.jobs.verbs import VERBS
from ui import form


def test_every_scalar_option_of_every_verb_has_an_entry_with_label_and_help() -> None:
    for model in (verb.options for verb in VERBS.values()):
        for entry in form.entries(model):
            assert entry.title, entry.name
            assert entry.help, entry.name
            assert entry.kind != "choice" or entry.default in entry.choices


def test_the_page_offers_engines_and_no_address_to_connect_to() -> None:
    """Who runs a Ray cluster runs code in its jobs, so nobody at the page chooses one."""
    names = {entry.name for entry in form.entries(PrepareOptions)}
    assert {"engine", "workers"} <= names
    assert not {"ray_address", "shard"} & names


def test_ranges_and_choices_come_from_the_schema() -> None:
    known = {entry.name: entry for entry in form.entries(TrainOptions)}
    assert (known["text_dropout"].minimum, known["text_dropout"].maximum) == (0.0, 0.9)
    assert known["text_dropout"].range_text == "0 to 0.9"
    assert known["scope"].choices == ("rows", "gated", "full")
    assert known["steps"].kind == "integer"
    assert known["row_lr"].step == pytest.approx(0.001)


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


@pytest.mark.parametrize("large", [10**20, 1e20, 1e21, 1e300])
def test_a_number_that_is_too_large_is_refused_by_every_field(large: float) -> None:
    for model in {verb.options for verb in VERBS.values()}:
        for entry in form.entries(model):
            if entry.kind in ("integer", "number"):
                with pytest.raises(UserError) as caught:
                    form.parse(model, {entry.name: large})
                assert any(f"{entry.title}: {wrong}" in caught.value.message
                           for wrong in ("should be less than", "is too large"))
                assert f"(given: {large!r})" in caught.value.message


def test_the_equal_command_names_only_what_differs_from_the_defaults() -> None:
    options = parse_options(TrainOptions, {"steps": 50, "scope": "rows"})
    line = form.command_line("train", options, Path("/tmp/my place"))
    assert line == ("python -m scripts train --workspace '/tmp/my place' --extension tiny-am --dataset amharic-demo "
                    "--scope rows --steps 50")  # the names too: left out, they are those made last


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


def test_what_is_not_first_is_folded_by_the_group_of_its_field() -> None:
    first = ("extension", "dataset", "scope", "steps", "max_epochs", "max_minutes", "device")
    with gr.Blocks():
        made = form.build_form(TrainOptions, first=first)
    titles = [fold.title for fold in made.groups]
    assert set(titles) == {"Adapters", "Optimizer", "Data", "Losses and regularization",
                           "Checkpoints and evaluation", "Hardware and tracking"}
    folded = [entry.name for fold in made.groups for entry in fold.fields]
    assert sorted(folded) == sorted(set(made.names) - set(first))
    assert made.widget("adapter_rank").parent.parent.parent is made.groups[titles.index("Adapters")].block


def test_fields_of_no_group_share_one_fold() -> None:
    with gr.Blocks():
        made = form.build_form(TokenizerOptions, first=("model",), more="The rest")
        assert form.build_form(TokenizerOptions).groups == ()
    assert [fold.title for fold in made.groups] == ["The rest"]


def test_a_fold_tells_what_differs_from_what_was_suggested() -> None:
    with gr.Blocks():
        made = form.build_form(TrainOptions, first=("extension",))
    fold = next(fold for fold in made.groups if fold.title == "Adapters")
    shown = {"adapter": "lora", "adapter_rank": "32", "adapter_rank_mlp": "", "adapter_scale": "2",
             "adapter_dropout": "0.1", "adapter_rank_heads": ""}
    assert fold.label(shown, {"adapter_rank": 32, "adapter_rank_mlp": None}) == "Adapters"
    assert fold.label(shown, {}) == "Adapters: Adapter rank changed"
    assert fold.label({**shown, "adapter": "dora", "adapter_scale": "3", "adapter_dropout": "0"}, {}).endswith(
        "and 2 more changed")


@pytest.mark.parametrize(("one", "other", "alike"), [
    ("2.0", 2, True), ("", None, True), ("None", None, False), ("off", "off", True), ("0.001", 1e-3, True),
    ("True", True, True), ("3", 2, False), ("", 0, False)])
def test_values_are_the_same_as_a_page_sends_them(one: str, other: object, alike: bool) -> None:
    assert form.same_value(one, other) is alike  # type: ignore[arg-type]
