"""The preset on the Train form: fields follow it until a person changes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from config.loading import parse_options
from config.schema import ANY_STEPS, TrainOptions, without_sections
from core.jobs.gpus import Gpu
from tests.unit.core.library.test_presets import world
from ui import train
from ui.live import View
from ui.page import Page

CARD = Gpu(0, "GPU-1", "Some card", 24 * 1024, 24_000, 0)


@pytest.fixture
def page(tmp_path: Path) -> Page:
    return cast(Page, SimpleNamespace(workspace=world(tmp_path / "workspace"), gpus=lambda: (CARD,)))


def shows(**changed: str) -> View:
    options = without_sections(TrainOptions, TrainOptions().model_dump()).items()
    values = {f"train.{name}": "" if value is None else str(value) for name, value in options}
    chosen = {**values, "train.extension": "tiny-am", "train.dataset": "mine", "preset": "auto", "memory": "auto",
              "preset.baseline": ""}
    return View("train", {**chosen, **changed}, ())


def refreshed(page: Page, view: View) -> View:
    """What the page shows after a refresh."""
    new = {"preset.baseline": train.next_baseline(page, view)}
    for name in train._PRESET_FIELDS:
        update = cast(dict[str, object], train.field_update(page, name, view))
        if "value" in update:
            new[f"train.{name}"] = str(update["value"])
    return replace(view, values={**view.values, **new})


def test_fields_take_the_presets_values_and_follow_another_one(page: Page) -> None:
    view = refreshed(page, shows())
    assert (view.values["train.steps"], view.values["train.adapter_rank_mlp"]) == ("20000", "16")
    view = refreshed(page, replace(view, values={**view.values, "preset": "small-data"}))
    assert (view.values["train.steps"], view.values["train.patience"]) == ("4000", "6")
    view = refreshed(page, replace(view, values={**view.values, "preset": "standard"}))
    assert view.values["train.patience"] == "0"


def test_what_a_person_typed_stays_even_where_a_preset_says_the_same(page: Page) -> None:
    view = refreshed(page, shows())
    view = replace(view, values={**view.values, "train.steps": "4000"})  # what another preset sets
    assert train.user_changes(page, view) == {"steps": "4000"}
    assert "20000" in str(train.about_view(train.current_preset(page, view),
                                                     train.user_changes(page, view)))
    view = refreshed(page, refreshed(page, view))
    assert view.values["train.steps"] == "4000"
    assert view.values["train.adapter_rank"] == "32"


def test_a_length_in_epochs_or_minutes_replaces_the_steps_of_the_preset(page: Page) -> None:
    view = refreshed(page, shows())
    for name in ("max_epochs", "max_minutes"):
        longer = refreshed(page, replace(view, values={**view.values, f"train.{name}": "1000"}))
        assert longer.values["train.steps"] == "0"
        values = {field: longer.values[f"train.{field}"] for field in ("steps", "max_epochs", "max_minutes")}
        assert parse_options(TrainOptions, values).length.steps == ANY_STEPS
        back = refreshed(page, replace(longer, values={**longer.values, f"train.{name}": "0"}))
        assert back.values["train.steps"] == "20000"


def test_a_person_can_go_back_to_the_preset(page: Page) -> None:
    view = refreshed(page, shows())
    view = replace(view, values={**view.values, "train.steps": "123"})
    values = [view.values[f"train.{name}"] for name in train._PRESET_FIELDS]
    _, placed = train.reset_preset(*values)
    view = refreshed(page, replace(view, values={**view.values, "preset.baseline": cast(str, placed)}))
    assert view.values["train.steps"] == "20000"
    assert json.loads(view.values["preset.baseline"])["steps"] == 20_000


def test_the_page_tells_what_was_not_measured_and_where_it_runs(page: Page) -> None:
    said = str(train.about_view(train.current_preset(page, shows()), {}))
    assert "Not yet measured" in said
    assert "class of 24 GB" in said
    on_cpu = train.current_preset(page, shows(**{"train.device": "cpu"}))
    assert any("Device is cpu" in reason for reason in on_cpu.reasons)
