"""The preset of a new training: by the dataset's size and the GPU's memory, or chosen; its values fill the form.

A field that holds what the preset put there follows the preset; what a person typed stays, and is listed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import get_args

import gradio as gr

from config.schema import TrainOptions
from core.library import model_info
from core.library.model_info import FittedPreset
from ui import job_views, verb_form
from ui.form import OptionsForm, Value, same_value
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph
from ui.page import Page

_INPUTS = ("train.dataset", "train.extension", "train.device", "preset", "memory")
_FIELDS = model_info.preset_fields()
_DEFAULTS: Mapping[str, Value] = {name: getattr(TrainOptions(), name) for name in _FIELDS}


@dataclass(frozen=True)
class PresetSelector:
    """The widgets."""

    name: gr.Dropdown
    memory: gr.Dropdown
    about: gr.HTML
    reset: gr.Button
    notice: gr.HTML
    filled: gr.State  # JSON: the value that the preset last put into each field


def build() -> PresetSelector:
    """Lay out the dropdowns, the description and the button that resets the form to the preset."""
    with gr.Row(elem_classes="grid"):
        name = gr.Dropdown([("Auto (by hours of speech)", "auto"),
                            *((model_info.TITLES[one], one) for one in model_info.NAMES)],
                           value="auto", label="Preset", filterable=False, elem_id="preset", min_width=150,
                           info="Values for this amount of speech. Your changes below stay.")
        memory = gr.Dropdown([("Auto-detected", "auto"), *((f"{size} GB", size)
                                                           for size in get_args(model_info.Memory)[1:])],
                             value="auto", label="GPU memory", filterable=False, elem_id="preset-memory",
                             min_width=150, info="Sets the batch size. Between two sizes, choose the smaller.")
    about = gr.HTML(elem_id="preset-about")
    reset = gr.Button("Reset to preset", size="md", visible=False, elem_id="preset-back", scale=0)
    return PresetSelector(name, memory, about, reset, gr.HTML(elem_classes="notices"), gr.State(""))


def attach(page: Page, selector: PresetSelector, form: OptionsForm) -> None:
    """Let the form follow the preset, and show what it sets and what differs from it."""
    live = page.live
    live.watch("preset", selector.name)
    live.watch("memory", selector.memory)
    live.watch("placed", selector.filled)
    for name in _FIELDS:
        live.panel(form.widget(name), partial(field_update, page, name), "train")
    live.panel(selector.filled, lambda view: filled_values(page, view), "train")
    live.panel(selector.about, lambda view: about_view(current_preset(page, view), changed_values(page, view)), "train")
    live.panel(selector.reset, lambda view: gr.update(visible=bool(changed_values(page, view))), "train")
    page.on(selector.reset.click, reset, [form.widget(name) for name in _FIELDS], [selector.notice, selector.filled])


def current_preset(page: Page, view: View) -> FittedPreset:
    """The preset for what the form holds, computed once for all panels of a refresh."""
    key = ("presets", *(view.values[name] for name in _INPUTS))
    if key not in view.cache:
        on_cpu = view.values["train.device"] == "cpu"
        family = verb_form.family_of_extension(page.workspace, view.values["train.extension"])
        speech = model_info.speech_amount_of(page.workspace, view.values["train.dataset"])
        made = model_info.fit_preset(family.name, speech, () if on_cpu else page.gpus(), view.values["preset"],
                                     view.values["memory"])
        if on_cpu:
            made = replace(made, reasons=tuple(reason.replace(
                "No GPU was found on this machine", "Device is cpu") for reason in made.reasons))
        view.cache[key] = made
    preset = view.cache[key]
    assert isinstance(preset, FittedPreset)
    return preset


def wanted(page: Page, view: View) -> Mapping[str, Value]:
    """The preset's value of each field, else the schema's default."""
    return {**_DEFAULTS, **current_preset(page, view).values}


def unchanged(page: Page, view: View) -> Mapping[str, Value]:
    """The value that each field has without a person's change."""
    return {name: view.values[f"train.{name}"] if _follows(view, name) else value
            for name, value in wanted(page, view).items()}


def field_update(page: Page, name: str, view: View) -> object:
    """The preset's value for a field that follows it."""
    value = wanted(page, view)[name]
    return gr.update(value="" if value is None else value) if _follows(view, name) else gr.skip()


def filled_values(page: Page, view: View) -> str:
    """The next value of `PresetSelector.filled`."""
    values = wanted(page, view)
    return json.dumps({name: values[name] if _follows(view, name) else last
                       for name, last in _last_filled(view).items()})


def _last_filled(view: View) -> Mapping[str, Value]:
    """What the preset last put into each field; at first the schema's defaults."""
    filled: Mapping[str, Value] = json.loads(view.values["placed"] or "{}")
    return {**_DEFAULTS, **filled}


def _follows(view: View, name: str) -> bool:
    """Whether no person changed the field."""
    return same_value(view.values[f"train.{name}"], _last_filled(view)[name])


def changed_values(page: Page, view: View) -> Mapping[str, str]:
    """What a person typed that differs from the preset, by field."""
    values = wanted(page, view)
    return {name: view.values[f"train.{name}"] for name in _FIELDS
            if not _follows(view, name) and not same_value(view.values[f"train.{name}"], values[name])}


def reset(*values: Value) -> Sequence[object]:
    """Treat the present values as the preset's own, so that the fields follow it again."""
    return [NOTHING, json.dumps(dict(zip(_FIELDS, values, strict=True)))]


def about_view(preset: FittedPreset, changed: Mapping[str, str]) -> Html:
    """What the preset is for and why it was taken, what it sets, and what a person changed."""
    fields = TrainOptions.model_fields
    values = job_views.facts([(fields[name].title or name, "as attention" if value is None else value)
                              for name, value in preset.values.items()])
    changes = [f"{fields[name].title}: {value or 'empty'} (preset: {preset.values.get(name, _DEFAULTS[name])})"
               for name, value in changed.items()]
    return join((
        div(f"notice {'good' if preset.measured else 'wait'}", element("strong", preset.title),
            paragraph(preset.words), *(paragraph(reason, class_="small") for reason in preset.reasons)),
        job_views.plan(changes, "Your changes"),
        element("details", element("summary", f"Preset values ({len(preset.values)})"), values),
    ))
