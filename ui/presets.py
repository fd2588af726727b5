"""The preset of a new training: chosen by the speech and the memory there is, or by a person; what it sets is shown.

A field that holds what was last put there follows the preset; what a person typed stays, and is named beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import get_args

import gradio as gr

from config.schema import TrainOptions
from core.library import model_info, presets
from core.library.presets import FittedPreset
from ui import present, suggest
from ui.form import Form, Value, same
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph
from ui.page import Page

_DECIDING = ("train.dataset", "train.extension", "train.device", "preset", "memory")
_FIELDS = presets.preset_fields()
_DEFAULTS: Mapping[str, Value] = {name: getattr(TrainOptions(), name) for name in _FIELDS}


@dataclass(frozen=True)
class Choice:
    """The widgets."""

    name: gr.Dropdown
    memory: gr.Dropdown
    about: gr.HTML
    back: gr.Button
    notice: gr.HTML
    placed: gr.State  # JSON: what was last put into each field


def lay_out() -> Choice:
    """The chooser, what it says, and the way back to it."""
    with gr.Row(elem_classes="grid"):
        name = gr.Dropdown([("By the dataset's hours", "auto"), *((presets.TITLES[one], one) for one in presets.NAMES)],
                           value="auto", label="Preset", filterable=False, elem_id="preset", min_width=150,
                           info="Values that suit so much speech; what you change below stays yours.")
        memory = gr.Dropdown([("As found on this machine", "auto"), *((f"{size} GB", size)
                                                                      for size in get_args(presets.Memory)[1:])],
                             value="auto", label="Memory of the GPU", filterable=False, elem_id="preset-memory",
                             min_width=150, info="Sizes the batches. A GPU of another size takes the class below.")
    about = gr.HTML(elem_id="preset-about")
    back = gr.Button("Take all of the preset's values", size="md", visible=False, elem_id="preset-back", scale=0)
    return Choice(name, memory, about, back, gr.HTML(elem_classes="notices"), gr.State(""))


def follow(page: Page, choice: Choice, form: Form) -> None:
    """Let the form follow the preset, and the page tell what it sets and what differs from it."""
    live = page.live
    live.watch("preset", choice.name)
    live.watch("memory", choice.memory)
    live.watch("placed", choice.placed)
    for name in _FIELDS:
        live.panel(form.widget(name), _field(page, name), "train")
    live.panel(choice.placed, lambda view: _placed(page, view), "train")
    live.panel(choice.about, lambda view: about_view(chosen(page, view), _typed(page, view)), "train")
    live.panel(choice.back, lambda view: gr.update(visible=bool(_typed(page, view))), "train")
    page.on(choice.back.click, _forget, [form.widget(name) for name in _FIELDS], [choice.notice, choice.placed])


def chosen(page: Page, view: View) -> FittedPreset:
    """The preset for what the form holds."""
    asked = ("presets", *(view.chosen[name] for name in _DECIDING))
    if asked not in view.known:
        view.known[asked] = _choose(page, view)
    made = view.known[asked]
    assert isinstance(made, FittedPreset)
    return made


def _choose(page: Page, view: View) -> FittedPreset:
    dataset = view.chosen["train.dataset"]
    family = suggest.family_of_extension(page.workspace, view.chosen["train.extension"])
    speech = model_info.speech_amount_of(page.workspace, dataset)
    found = page.gpus() if view.chosen["train.device"] != "cpu" else ()
    made = presets.fit_preset(family.name, speech, found, view.chosen["preset"], view.chosen["memory"])
    if view.chosen["train.device"] == "cpu":
        told = tuple(reason.replace("No GPU was found on this machine", "It is to run on the processor")
                     for reason in made.reasons)
        return replace(made, reasons=told)
    return made


def wanted(page: Page, view: View) -> Mapping[str, Value]:
    """What each field should hold: the preset's value, else the schema's."""
    return {**_DEFAULTS, **chosen(page, view).values}


def unchanged(page: Page, view: View) -> Mapping[str, Value]:
    """What the fields hold that follow the preset, now or with this refresh; of the others, what it wants."""
    return {name: view.chosen[f"train.{name}"] if _free(view, name) else value
            for name, value in wanted(page, view).items()}


def _last(view: View) -> Mapping[str, Value]:
    """What was last put into each field; at first what the form was made with."""
    said: Mapping[str, Value] = json.loads(view.chosen["placed"] or "{}")
    return {**_DEFAULTS, **said}


def _free(view: View, name: str) -> bool:
    """Whether no person changed the field."""
    return same(view.chosen[f"train.{name}"], _last(view)[name])


def _field(page: Page, name: str) -> Callable[[View], object]:
    def render(view: View) -> object:
        value = wanted(page, view)[name]
        return gr.update(value="" if value is None else value) if _free(view, name) else gr.skip()

    return render


def _placed(page: Page, view: View) -> str:
    values = wanted(page, view)
    return json.dumps({name: values[name] if _free(view, name) else last for name, last in _last(view).items()})


def _typed(page: Page, view: View) -> Mapping[str, str]:
    """What a person typed that differs from the preset, by field."""
    values = wanted(page, view)
    return {name: view.chosen[f"train.{name}"] for name in _FIELDS
            if not _free(view, name) and not same(view.chosen[f"train.{name}"], values[name])}


def _forget(*values: Value) -> Sequence[object]:
    """Take what the fields hold for what was put there, so that they follow the preset again."""
    return [NOTHING, json.dumps(dict(zip(_FIELDS, values, strict=True)))]


def about_view(preset: FittedPreset, typed: Mapping[str, str]) -> Html:
    """What the preset is for and why it was taken, what it sets, and what a person set otherwise."""
    fields = TrainOptions.model_fields
    sets = present.facts([(fields[name].title or name, "as attention" if value is None else value)
                          for name, value in preset.values.items()])
    yours = [f"{fields[name].title}: {value or 'nothing'}, the preset says {preset.values.get(name, _DEFAULTS[name])}"
             for name, value in typed.items()]
    tone = "good" if preset.measured else "wait"
    return join((
        div(f"notice {tone}", element("strong", preset.title), paragraph(preset.words),
            *(paragraph(reason, class_="small") for reason in preset.reasons)),
        present.plan(yours, "Changed by you, and kept"),
        element("details", element("summary", f"What it sets: {len(preset.values)} values"), sets),
    ))
