"""The settings of a synthesis: base model, voice, reference recording, sampling and sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gradio as gr

from config.errors import UserError
from config.schema import CompareOptions
from core.jobs.state import JobState
from core.library import model_info, reference_voices
from core.library.catalog import CATALOG, CatalogEntry, ModelReference, list_references
from core.workspace import Workspace
from ui import comparison_views, job_views
from ui.form import OptionsForm, Value, build_form
from ui.live import View
from ui.markup import NOTHING, Html, join, paragraph
from ui.page import Page

_SAMPLING = ("sampling.temperature", "sampling.top_p", "sampling.min_p", "sampling.repetition_penalty",
             "sampling.guidance", "sampling.seed")
_SOUND = ("sound.exaggeration", "sound.flow_steps", "sound.flow_prompt_s", "sound.watermark")
_REST = ("precision",)
BASE_ONLY = "alone"
"""Chosen in the place of a trained model: synthesize with the base model alone."""
_ELSEWHERE = ("base", "finetuned", "voice", "device")  # fields with a separate widget, or the default


@dataclass(frozen=True)
class VoiceSettings:
    """The widgets."""

    base: gr.Dropdown
    voice: gr.Dropdown
    upload: gr.Audio
    notice: gr.HTML
    own: gr.HTML
    sampling: OptionsForm
    sound: OptionsForm
    sound_group: gr.Column

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.sampling.names, *self.sound.names)

    @property
    def widgets(self) -> tuple[gr.components.Component, ...]:
        return (*self.sampling.widgets, *self.sound.widgets)


def build() -> VoiceSettings:
    """Lay out the accordion."""
    with gr.Accordion("Voice and sampling settings", open=False, elem_classes="fold"):
        with gr.Row(elem_classes="grid"):
            base = gr.Dropdown([], label="Base model (before)", elem_id="listen-base", min_width=150)
            voice = gr.Dropdown([], label="Voice", elem_id="listen-voice", min_width=150)
        upload = gr.Audio(sources=["upload", "microphone"], type="filepath",
                          label="Reference recording (clone a voice)",
                          elem_id="listen-upload", buttons=[], editable=False)
        notice = gr.HTML(elem_classes="notices", elem_id="listen-upload-notice")
        own = gr.HTML(elem_id="listen-own")
        sampling = build_form(CompareOptions, first=_SAMPLING, leave_out=(*_ELSEWHERE, *_SOUND), more="Precision")
        with gr.Column(visible=False, elem_id="listen-sound") as group:
            sound = build_form(CompareOptions, first=_SOUND, leave_out=(*_ELSEWHERE, *_SAMPLING, *_REST))
    return VoiceSettings(base, voice, upload, notice, own, sampling, sound, group)


def attach(page: Page, widgets: VoiceSettings) -> None:
    """Let every part follow the chosen model, and save what is uploaded."""

    def placeholder(view: View, name: str) -> object:
        value = family_of(page.workspace, view).sampling.get(name)
        return gr.update(placeholder="" if value is None else f"{value:g}")

    live = page.live
    live.watch("base", widgets.base)
    live.watch("voice", widgets.voice)
    live.panel(widgets.base, lambda view: _base_choices(page.workspace, view), "listen")
    live.panel(widgets.voice, lambda view: _voice_choices(page.workspace, view), "listen")
    live.panel(widgets.own, lambda view: own_values(family_of(page.workspace, view)), "listen")
    live.panel(widgets.sound_group, lambda view: gr.update(
        visible=bool(family_of(page.workspace, view).sound_options)), "listen")
    for name, widget in zip(widgets.sampling.names, widgets.sampling.widgets, strict=True):
        if name in _SAMPLING[:-1]:
            live.panel(widget, partial(placeholder, name=name.partition(".")[2]), "listen")
    for event in (widgets.upload.upload, widgets.upload.stop_recording):
        page.on(event, lambda path: save_recording(page, path), [widgets.upload],
                [widgets.notice, widgets.voice, widgets.upload], files=True)


def selected_models(workspace: Workspace, view: View) -> tuple[ModelReference | None, ModelReference | None]:
    """The base and the trained model that are chosen, or preselected."""
    found = list_references(workspace, view.jobs)
    trained = sorted((model for model in found if model.kind != "base"), key=lambda model: model.kind != "run")
    bases = [model for model in found if model.kind == "base"]
    newest = trained[0] if trained and view.values["finetuned"] != BASE_ONLY else None
    after = _named(trained, view.values["finetuned"]) or newest
    fitting = _named(bases, _base_of(workspace, after))
    before = _named(bases, view.values["base"]) or fitting or (bases[0] if bases else None)
    return before, after


def label(view: View, model: ModelReference) -> str:
    """A model in a list of choices; a run by its extension and dataset."""
    state = view.job(model.name) if model.kind == "run" else None
    return f"{job_views.run_name(state)}, step {model.step}" if state else model.label


def pair_title(view: View, state: JobState) -> str:
    """Time, text and model of a comparison; the texts of a job that chooses them are known from its clips."""
    texts = [text for _, text in comparison_views.texts_of(state)] or [
        next(iter(sides.values())).text for sides in comparison_views.clips(state).values()]
    more = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
    text = f"{texts[0][:40]}{more}" if texts else "a sentence per language"
    return f"{job_views.clock(state.job.created)}  {text}, {model_title(view, state)}"


def model_title(view: View, state: JobState) -> str:
    """The model of a synthesis, or the trained model of a comparison."""
    settings = state.job.settings
    kind, _, name = str(settings.get("voice_model" if state.verb == "synthesize" else "finetuned", "")).partition(":")
    run = view.job(name.partition("@")[0]) if kind == "run" else None
    if run is not None:
        return f"{run.job.settings.get('extension', '')} on {run.job.settings.get('dataset', '')}"
    return f"{name} (base)" if kind == "base" else name


def _base_of(workspace: Workspace, voice: ModelReference | None) -> str:
    """The reference of a trained model's base; empty where its files do not name it."""
    try:
        return f"base:{model_info.base_model_of(workspace, voice)}" if voice else ""
    except UserError:  # the job that loads it reports this
        return ""


def _named(models: Sequence[ModelReference], reference: str) -> ModelReference | None:
    return next((model for model in models if model.reference == reference), None)


def family_of(workspace: Workspace, view: View) -> CatalogEntry:
    """The family of the chosen model; the built-in one where there is none or it is unknown."""
    before, after = selected_models(workspace, view)
    model = after or before
    try:
        return model_info.family_of_reference(workspace, model) if model else CATALOG[0]
    except UserError:
        return CATALOG[0]


def languages(workspace: Workspace, view: View) -> tuple[str, ...]:
    """Languages of the chosen model, those it was trained on here first."""
    before, after = selected_models(workspace, view)
    model = after or before
    try:
        return model_info.languages(workspace, model) if model else ()
    except UserError:
        return ()


def _base_choices(workspace: Workspace, view: View) -> object:
    """All base models; that of the trained model is preselected."""
    _, after = selected_models(workspace, view)
    found = [model for model in list_references(workspace, view.jobs) if model.kind == "base"]
    fitting = _named(found, _base_of(workspace, after))
    value = fitting or _named(found, view.values["base"]) or (found[0] if found else None)
    return gr.update(choices=[(model.label, model.reference) for model in found],
                     value=value.reference if value else None)


def _voice_choices(workspace: Workspace, view: View) -> object:
    """The built-in voices of the base, then uploaded recordings."""
    before, _ = selected_models(workspace, view)
    names = model_info.voice_names(workspace, before.name) if before else ()
    recordings = reference_voices.list_recordings(workspace)
    offered = [*((name, name) for name in names), *((f"{path.stem} (recording)", str(path)) for path in recordings)]
    values = [value for _, value in offered]
    current = view.values["voice"]
    return gr.update(choices=offered, value=current if current in values else values[0] if values else None)


def own_values(family: CatalogEntry) -> Html:
    """The defaults of empty fields."""
    if not family.sampling:
        return NOTHING
    words = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in family.sampling.items())
    return paragraph(f"Defaults of empty fields: {words}.", class_="small")


def save_recording(page: Page, path: str | None) -> Sequence[object]:
    """Save an uploaded recording, and choose it."""
    if not path:
        return [NOTHING, gr.skip(), gr.skip()]
    kept, reference = reference_voices.save_recording(page.workspace, Path(path), Path(path).name)
    notes = [job_views.notice(note, "wait") for note in reference.notes]
    saved = job_views.notice(f"Saved as {kept.stem} and selected as the voice.", "good")
    return [join((saved, *notes)), gr.update(choices=[(f"{kept.stem} (recording)", str(kept))], value=str(kept)),
            gr.update(value=None)]


def readiness(workspace: Workspace, view: View) -> Html:
    """What the chosen language needs and this machine lacks."""
    before, after = selected_models(workspace, view)
    model = after or before
    if model is None:
        return job_views.notice("No model yet. Download a base model on the Model tab, or train one on Start.",
                                "wait")
    code = view.values["language"]
    try:
        lacks = model_info.text_package_hint(model_info.family_of_reference(workspace, model), code,
                                             code in model_info.added_languages(workspace, model))
    except UserError as error:
        return job_views.fault(error.message, error.hint)
    return job_views.notice(lacks, "wait") if lacks else NOTHING


def settings(family: CatalogEntry, names: Sequence[str], values: Sequence[Value]) -> Mapping[str, Value]:
    """Values of the widgets, without the controls that `family` does not have."""
    wanted = {f"sound.{name}" for name in family.sound_options}
    return {name: value for name, value in zip(names, values, strict=True)
            if not name.startswith("sound.") or name in wanted}
