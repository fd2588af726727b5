"""Settings of another program on the Train tab: the table of its keys, the preset, and the form that is filled in."""

from __future__ import annotations

import json
from pathlib import Path

import gradio as gr
import pytest
import yaml

from config import foreign_settings
from config.errors import UserError
from config.schema import TrainOptions, option_value
from tests.unit.config.test_foreign_settings import SETTINGS, saved
from ui import foreign_settings as section
from ui.form import build_form, parse


def test_each_key_has_a_row_and_the_options_are_a_preset(tmp_path: Path) -> None:
    translation = foreign_settings.read(saved(tmp_path / "training_config.yaml"))
    shown = str(section.settings_view(translation))
    assert shown.count("<tr>") == sum(map(len, SETTINGS.values())) + 1
    assert "freezing is always on" in shown
    assert "batch_size: 16" in shown
    notice, view, fill, options, upload = section._read(str(tmp_path / "training_config.yaml"))
    assert "Nothing is filled in yet" in str(notice)
    assert (view, fill["visible"], upload) == (shown, True, None)
    assert json.loads(options) == dict(translation.options)


def test_the_form_gets_the_values_and_starts_with_them(tmp_path: Path) -> None:
    translation = foreign_settings.read(saved(tmp_path / "training_config.yaml"))
    with gr.Blocks():
        form = build_form(TrainOptions)
    notice, *updates = section._fill(form, json.dumps(dict(translation.options)))
    filled = {name: update["value"] for name, update in zip(form.names, updates, strict=True) if "value" in update}
    assert set(filled) == set(translation.options)
    options = parse(TrainOptions, {**filled, "extension": "e", "dataset": "d"})
    assert {name: option_value(options, name) for name in translation.options} == dict(translation.options)
    assert "your changes to the preset" in str(notice)


@pytest.mark.parametrize(("content", "words"), [
    ("steps: 3\nseed: 1\n", "has no keys of another training program"), ("[1, 2]", "has no keys"),
    ("training: {learning_rate: 1e-5, batch_size: 1000000}\nmodel: {n_vocab: 3}\n", "batch_size"),
    ("a: &a {b: 1}\nc:\n  <<: *a", "merge key"), ("{", "training_config"),
])
def test_files_that_are_refused(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "training_config.yaml"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words):
        section._read(str(path))


def test_nothing_is_filled_in_without_a_file() -> None:
    with gr.Blocks():
        form = build_form(TrainOptions)
    with pytest.raises(UserError, match="No file of settings was read"):
        section._fill(form, "")
    with pytest.raises(UserError, match="No file was uploaded"):
        section._read(None)


def test_markup_in_a_file_is_text(tmp_path: Path) -> None:
    values = {**SETTINGS, "paths": {"<img src=x onerror=alert(1)>": "<script>alert(1)</script>" * 9}}
    path = tmp_path / "settings.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    shown = str(section.settings_view(foreign_settings.read(path)))
    assert "<img" not in shown
    assert "<script" not in shown
