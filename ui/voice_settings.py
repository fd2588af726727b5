"""Who speaks and how: base, voice, reference recording, sampling and sound, as the chosen model has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import gradio as gr

from config.errors import UserError
from config.schema import CompareOptions
from core.job.state import JobState
from core.library import offers
from core.library.catalog import FAMILIES, Family, VoiceModel, voice_models
from core.speech import references
from core.workspace import Workspace
from ui import comparison_views, job_views
from ui.form import Form, Value, build_form
from ui.live import View
from ui.markup import NOTHING, Html, join, paragraph
from ui.page import Page

_SAMPLING = ("sampling.temperature", "sampling.top_p", "sampling.min_p", "sampling.repetition_penalty",
             "sampling.guidance", "sampling.seed")
_SOUND = ("sound.exaggeration", "sound.flow_steps", "sound.flow_prompt_s", "sound.watermark")
_REST = ("precision",)
BASE_ONLY = "alone"
"""Chosen in the place of a trained voice: the base speaks alone."""
_LAID_OUT = ("base", "finetuned", "voice", "device")  # here or in the tab, or left as it is


@dataclass(frozen=True)
class VoiceSettings:
    """The widgets."""

    base: gr.Dropdown
    voice: gr.Dropdown
    upload: gr.Audio
    notice: gr.HTML
    own: gr.HTML
    sampling: Form
    sound: Form
    sound_group: gr.Column

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.sampling.names, *self.sound.names)

    @property
    def widgets(self) -> tuple[gr.components.Component, ...]:
        return (*self.sampling.widgets, *self.sound.widgets)


def build() -> VoiceSettings:
    """The fold with all of it."""
    with gr.Accordion("Voice, base and sampling", open=False, elem_classes="fold"):
        with gr.Row(elem_classes="grid"):
            base = gr.Dropdown([], label="Before: the base", elem_id="listen-base", min_width=150)
            voice = gr.Dropdown([], label="Voice", elem_id="listen-voice", min_width=150)
        upload = gr.Audio(sources=["upload", "microphone"], type="filepath", label="Another voice: a recording of it",
                          elem_id="listen-upload", buttons=[], editable=False)
        notice = gr.HTML(elem_classes="notices", elem_id="listen-upload-notice")
        own = gr.HTML(elem_id="listen-own")
        sampling = build_form(CompareOptions, first=_SAMPLING, leave_out=(*_LAID_OUT, *_SOUND), more="Precision")
        with gr.Column(visible=False, elem_id="listen-sound") as group:
            sound = build_form(CompareOptions, first=_SOUND, leave_out=(*_LAID_OUT, *_SAMPLING, *_REST))
    return VoiceSettings(base, voice, upload, notice, own, sampling, sound, group)


def attach(page: Page, manner: VoiceSettings) -> None:
    """Let every part show what the chosen model has, and keep what is uploaded."""
    live = page.live
    live.watch("base", manner.base)
    live.watch("voice", manner.voice)
    live.panel(manner.base, lambda view: _offer_bases(page.workspace, view), "listen")
    live.panel(manner.voice, lambda view: _offer_voices(page.workspace, view), "listen")
    live.panel(manner.own, lambda view: own_values(family_of(page.workspace, view)), "listen")
    live.panel(manner.sound_group, lambda view: gr.update(
        visible=bool(family_of(page.workspace, view).sound_controls)), "listen")
    for name, widget in zip(manner.sampling.names, manner.sampling.widgets, strict=True):
        if name in _SAMPLING[:-1]:
            live.panel(widget, _placeholder(page, name.partition(".")[2]), "listen")
    for event in (manner.upload.upload, manner.upload.stop_recording):
        page.on(event, lambda path: save_recording(page, path), [manner.upload],
                [manner.notice, manner.voice, manner.upload], files=True)


def _placeholder(page: Page, name: str) -> Callable[[View], object]:
    def render(view: View) -> object:
        value = family_of(page.workspace, view).sampling.get(name)
        return gr.update(placeholder="" if value is None else f"{value:g}")

    return render


def chosen(workspace: Workspace, view: View) -> tuple[VoiceModel | None, VoiceModel | None]:
    """The base and the trained voice that are chosen, or will be as soon as the page shows them."""
    found = voice_models(workspace, view.jobs)
    trained = sorted((model for model in found if model.kind != "base"), key=lambda model: model.kind != "run")
    bases = [model for model in found if model.kind == "base"]
    newest = trained[0] if trained and view.chosen["finetuned"] != BASE_ONLY else None
    after = _named(trained, view.chosen["finetuned"]) or newest
    fitting = _named(bases, _base_of(workspace, after))
    before = _named(bases, view.chosen["base"]) or fitting or (bases[0] if bases else None)
    return before, after


def label(view: View, model: VoiceModel) -> str:
    """A voice in a list of choices; one that was trained here by what learned from what."""
    state = view.job(model.name) if model.kind == "run" else None
    return f"{job_views.run_name(state)}, step {model.step}" if state else model.label


def pair_title(view: View, state: JobState) -> str:
    """What people know it by: when it was asked for, what is said, and who speaks."""
    chosen_texts = [text for _, text in comparison_views.texts_of(state)]  # none where the job takes held-out ones
    texts = chosen_texts or [sides[side].text for sides in comparison_views.clips(state).values() for side in [*sides][:1]]
    more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
    said = f"{texts[0][:40]}{more}" if texts else "a sentence of each language"
    return f"{job_views.clock(state.job.created)}  {said}, {who(view, state)}"


def who(view: View, state: JobState) -> str:
    """The voice that a job lets speak, or that it compares with its base, as people know it."""
    settings = state.job.settings
    kind, _, name = str(settings.get("voice_model" if state.verb == "synthesize" else "finetuned", "")).partition(":")
    run = view.job(name.partition("@")[0]) if kind == "run" else None
    if run is not None:
        return f"{run.job.settings.get('extension', '')} on {run.job.settings.get('dataset', '')}"
    return f"{name} as it came" if kind == "base" else name


def _base_of(workspace: Workspace, voice: VoiceModel | None) -> str:
    """The reference of the base that a trained voice was made from; empty where its files do not say."""
    try:
        return f"base:{offers.model_of_voice(workspace, voice)}" if voice else ""
    except UserError:  # told by the job that would load it; the page goes on
        return ""


def _named(models: Sequence[VoiceModel], reference: str) -> VoiceModel | None:
    return next((model for model in models if model.reference == reference), None)


def family_of(workspace: Workspace, view: View) -> Family:
    """The family of what speaks; the built-in one while there is nothing, or its files do not say."""
    before, after = chosen(workspace, view)
    model = after or before
    try:
        return offers.family_of_voice(workspace, model) if model else FAMILIES[0]
    except UserError:
        return FAMILIES[0]


def languages(workspace: Workspace, view: View) -> tuple[str, ...]:
    """Codes that the chosen model speaks, those that it was taught here first."""
    before, after = chosen(workspace, view)
    model = after or before
    try:
        return offers.languages(workspace, model) if model else ()
    except UserError:
        return ()


def _offer_bases(workspace: Workspace, view: View) -> object:
    """All bases; that of the trained voice is preselected."""
    _, after = chosen(workspace, view)
    found = [model for model in voice_models(workspace, view.jobs) if model.kind == "base"]
    fitting = _named(found, _base_of(workspace, after))
    value = fitting or _named(found, view.chosen["base"]) or (found[0] if found else None)
    return gr.update(choices=[(model.label, model.reference) for model in found],
                     value=value.reference if value else None)


def _offer_voices(workspace: Workspace, view: View) -> object:
    """The voices that come with the base, then the recordings that were uploaded."""
    before, _ = chosen(workspace, view)
    names = offers.voices(workspace, before.name) if before else ()
    recordings = references.kept(workspace)
    offered = [*((name, name) for name in names), *((f"{path.stem} (recording)", str(path)) for path in recordings)]
    values = [value for _, value in offered]
    current = view.chosen["voice"]
    return gr.update(choices=offered, value=current if current in values else values[0] if values else None)


def own_values(family: Family) -> Html:
    """What a field that is left empty stands for."""
    if not family.sampling:
        return NOTHING
    words = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in family.sampling.items())
    return paragraph(f"What is left empty is the model's own: {words}.", class_="small")


def save_recording(page: Page, path: str | None) -> Sequence[object]:
    """Keep an uploaded recording, and choose it."""
    if not path:
        return [NOTHING, gr.skip(), gr.skip()]
    kept, reference = references.keep(page.workspace, Path(path), Path(path).name)
    notes = [job_views.notice(note, "wait") for note in reference.notes]
    said = job_views.notice(f"Kept as {kept.stem}; it speaks from now on.", "good")
    return [join((said, *notes)), gr.update(choices=[(f"{kept.stem} (recording)", str(kept))], value=str(kept)),
            gr.update(value=None)]


def readiness(workspace: Workspace, view: View) -> Html:
    """What the chosen language lacks on this machine, before anything is started."""
    before, after = chosen(workspace, view)
    model = after or before
    if model is None:
        return job_views.notice("There is no voice here yet: the Model tab gets a base model; Start teaches it.",
                                "wait")
    code = view.chosen["language"]
    try:
        lacks = offers.unready(offers.family_of_voice(workspace, model), code, code in offers.taught(workspace, model))
    except UserError as error:
        return job_views.fault(error.message, error.hint)
    return job_views.notice(lacks, "wait") if lacks else NOTHING


def settings(family: Family, names: Sequence[str], values: Sequence[Value]) -> Mapping[str, Value]:
    """What the widgets say; controls that `family` does not have, and the page does not show, are left out."""
    wanted = {f"sound.{name}" for name in family.sound_controls}
    return {name: value for name, value in zip(names, values, strict=True)
            if not name.startswith("sound.") or name in wanted}
