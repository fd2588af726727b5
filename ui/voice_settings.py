"""The settings of a synthesis: base model, voice, reference recording, sampling and sound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import gradio as gr

from config.errors import UserError
from config.schema import CompareOptions, EmotionOptions, SoundOptions
from core.jobs.checkpoint_names import CHOICE
from core.jobs.state import JobState
from core.library import catalog, reference_voices
from core.library.catalog import CATALOG, CatalogEntry
from core.library.certificate import NOT_PROVEN_YET
from core.library.lineage import Model, list_checkpoints, list_models, listed_names
from core.workspace import Reference, Workspace
from ui import comparison_views, job_views, records
from ui.form import OptionsForm, Value, build_form
from ui.live import View
from ui.markup import NOTHING, Html, join, paragraph
from ui.page import Page
from ui.titles import base_title, title_of

_SAMPLING = ("sampling.temperature", "sampling.top_k", "sampling.top_p", "sampling.min_p",
             "sampling.repetition_penalty", "sampling.guidance", "sampling.seed")
_SOUND = tuple(f"sound.{name}" for name in SoundOptions.model_fields if name != "emotion")
_EMOTION_CLIP = "sound.emotion.emotion_clip"  # a choice of recordings
_EMOTION = tuple(f"sound.emotion.{name}" for name in EmotionOptions.model_fields if name != "emotion_clip")
_REST = ("precision", "unknown")
BASE_ONLY = "alone"
"""Chosen in the place of a trained model: synthesize with the base model alone."""
_NO_CLIP = ("None", "")
_MOST_SPEAKERS = 50  # speakers in the list; --voice speaker:NAME takes any
_ELSEWHERE = ("base", "finetuned", "voice", "device")  # fields with a separate widget, or the default


@dataclass(frozen=True)
class VoiceSettings:
    """The widgets."""

    base: gr.Dropdown
    voice: gr.Dropdown
    emotion_clip: gr.Dropdown
    sampling: OptionsForm
    sound: OptionsForm
    emotion: OptionsForm

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.sampling.names, *self.sound.names, *self.emotion.names, _EMOTION_CLIP)

    @property
    def widgets(self) -> tuple[gr.components.Component, ...]:
        return (*self.sampling.widgets, *self.sound.widgets, *self.emotion.widgets, self.emotion_clip)


def build(page: Page, voice: gr.Dropdown) -> VoiceSettings:
    """Lay out the accordion. Every part follows the chosen model, and what is uploaded is saved, as the `voice` too."""
    emotional = (*_EMOTION, _EMOTION_CLIP)
    preselected = gr.State("")  # the voice that the page chose last; another one is a person's choice
    with gr.Accordion("Voice and sampling settings", open=False, elem_classes="fold"):
        base = gr.Dropdown([], label="Base model (before)", elem_id="listen-base", min_width=150)
        upload = gr.Audio(sources=["upload", "microphone"], type="filepath", elem_id="listen-upload", buttons=[],
                          label="Reference recording (clone a voice)", editable=False)
        notice = gr.HTML(elem_classes="notices", elem_id="listen-upload-notice")
        defaults = gr.HTML(elem_id="listen-own")
        sampling = build_form(CompareOptions, first=_SAMPLING, leave_out=(*_ELSEWHERE, *_SOUND, *emotional),
                              more="Precision and unknown characters")
        with gr.Column(visible=False, elem_id="listen-sound") as group:
            sound = build_form(CompareOptions, first=_SOUND, leave_out=(*_ELSEWHERE, *_SAMPLING, *_REST, *emotional))
        with gr.Accordion("Emotion", open=False, visible=False, elem_classes="fold",
                          elem_id="listen-emotion") as emotion_group:
            clip = gr.Dropdown([_NO_CLIP], value="", label="Emotion clip", elem_id="listen-emotion-clip", min_width=150,
                               info="A recording whose emotion is taken, of any speaker, in place of weights.")
            emotion_upload = gr.Audio(sources=["upload", "microphone"], type="filepath", label="New emotion clip",
                                      elem_id="listen-emotion-upload", buttons=[], editable=False)
            emotion_notice = gr.HTML(elem_classes="notices", elem_id="listen-emotion-notice")
            emotion = build_form(CompareOptions, first=_EMOTION,
                                 leave_out=(*_ELSEWHERE, *_SAMPLING, *_REST, *_SOUND, _EMOTION_CLIP))

    # An empty field takes the value of the model's family, which stands in it in grey.
    def placeholder(view: View, name: str) -> object:
        value = family_of(page.workspace, view).sampling.get(name)
        return gr.update(placeholder="" if value is None else f"{value:g}")

    def has_control(view: View, name: str) -> object:
        return gr.update(visible=name in family_of(page.workspace, view).sound_options)

    live = page.live
    live.watch("base", base)
    live.watch("voice", voice)
    live.watch("emotion_clip", clip)
    live.watch("voice.preselected", preselected)

    # Which voices, emotions and controls there are depends on the chosen model.
    live.panel(base, lambda view: _base_choices(page.workspace, view), "listen")
    live.panel(voice, lambda view: _voice_choices(page.workspace, view), "listen")
    live.panel(preselected, lambda view: _preselected_voice(page.workspace, view), "listen")
    live.panel(defaults, lambda view: defaults_view(family_of(page.workspace, view)), "listen")
    live.panel(group, lambda view: gr.update(visible=bool(family_of(page.workspace, view).sound_options)), "listen")
    for name, widget in zip(sound.names, sound.widgets, strict=True):
        live.panel(widget, partial(has_control, name=name.partition(".")[2]), "listen")
    live.panel(emotion_group, partial(has_control, name="emotion"), "listen")
    live.panel(clip, lambda view: _emotion_clip_choices(page.workspace, view), "listen")
    for name in _SAMPLING[:-1]:
        live.panel(sampling.widget(name), partial(placeholder, name=name.partition(".")[2]), "listen")

    # An upload or a recording is saved in the workspace, and chosen at once.
    for recording, recording_notice, choice, role in ((upload, notice, voice, "voice"),
                                                      (emotion_upload, emotion_notice, clip, "emotion clip")):
        for event in (recording.upload, recording.stop_recording):
            page.on(event, partial(save_recording, page, role=role), [recording], [recording_notice, choice, recording],
                    files=True)
    return VoiceSettings(base, voice, clip, sampling, sound, emotion)


def selected_models(workspace: Workspace, view: View) -> tuple[Model | None, Model | None]:
    """The base and the trained model that are chosen, or preselected."""
    return view.once(("selected", view.values["finetuned"], view.values["base"]),
                     lambda: _selected_models(workspace, view))


def references(workspace: Workspace, view: View) -> list[Model]:
    """All models for synthesis."""
    return view.once(("references",), lambda: list_models(workspace, view.jobs))


def _selected_models(workspace: Workspace, view: View) -> tuple[Model | None, Model | None]:
    trained = trained_models(workspace, view)
    bases = [model for model in references(workspace, view) if model.kind == "base"]
    # The newest trained model is preselected.
    newest = trained[0] if trained and view.values["finetuned"] != BASE_ONLY else None
    trained_model = _named(trained, view.values["finetuned"]) or newest
    fitting = _named(bases, _base_of(trained_model))
    base_model = _named(bases, view.values["base"]) or fitting or (bases[0] if bases else None)
    return base_model, trained_model


def trained_models(workspace: Workspace, view: View) -> list[Model]:
    """Runs, newest first, each with all the checkpoints that it keeps, then exports."""
    key = ("trained", str(workspace.path))
    if key not in view.cache:
        models = [reference for reference in references(workspace, view) if reference.kind != "base"]
        with_checkpoints = []
        for run in (reference for reference in models if reference.kind == "run"):
            state = view.job(run.name)
            earlier = list_checkpoints(state) if state and len(state.checkpoints) > 1 else []
            with_checkpoints += [run, *(checkpoint for checkpoint in earlier if checkpoint.step != run.step)]
        view.cache[key] = [*with_checkpoints, *(reference for reference in models if reference.kind == "export")]
    cached = view.cache[key]
    assert isinstance(cached, list)
    return cached


def label(view: View, model: Model) -> str:
    """A model in a list of choices: a run by its extension and dataset, a checkpoint by its step and names."""
    state = view.job(model.name) if model.kind == "run" else None
    if state is None:
        return model.label

    # Only the run itself, not each of its checkpoints, says how it was chosen and that it is unproven.
    names = [name for name, step in listed_names(state).items() if step == model.step]
    remarks = ["your choice" if CHOICE in names else "best"] * ("@" not in model.reference)
    remarks += [f"“{name}”" for name in names if name != CHOICE]
    remarks += [NOT_PROVEN_YET] * ("@" not in model.reference and records.is_unproven(state))
    remarks += [records.learning_note(state, model.step).removeprefix(", ")]

    name, step, remarks = job_views.run_name(state), f"step {model.step}", [*filter(None, remarks)]
    return ", ".join((step, *remarks, name) if "@" in model.reference else (name, step, *remarks))


def pair_title(view: View, state: JobState) -> str:
    """Time, text and model of a comparison; the texts of a job that chooses them are known from its clips."""
    file = str(state.job.settings.get("file") or "")
    if file:
        return f"{job_views.clock(state.job.created)}  {Path(file).name}, {model_title(view, state)}"
    texts = [text for _, text in comparison_views.texts_of(state)] or [
        next(iter(sides.values())).text for sides in comparison_views.clips(state).values()]
    remark = f" and {len(texts) - 1} more" if len(texts) > 1 else ""
    text = f"{texts[0][:40]}{remark}" if texts else "a sentence per language"
    return f"{job_views.clock(state.job.created)}  {text}, {model_title(view, state)}"


def model_title(view: View, state: JobState) -> str:
    """The model of a synthesis, or the trained model of a comparison."""
    settings = state.job.settings
    reference = str(settings.get("voice_model" if state.verb == "synthesize" else "finetuned", ""))
    run = view.job(Reference.parse(reference).run)
    if run is not None:
        return f"{run.job.settings.get('extension', '')} on {run.job.settings.get('dataset', '')}"
    return title_of(state.job.workspace, reference)


def _base_of(voice: Model | None) -> str:
    """The reference of a trained model's base; empty where its files do not name it."""
    try:
        return f"base:{voice.base_name}" if voice else ""
    except UserError:  # the job that loads it reports this
        return ""


def _named(models: Sequence[Model], reference: str) -> Model | None:
    return next((model for model in models if model.reference == reference), None)


def family_of(workspace: Workspace, view: View) -> CatalogEntry:
    """The family of the chosen model; the built-in one where there is none or it is unknown."""
    base_model, trained_model = selected_models(workspace, view)
    model = trained_model or base_model
    try:
        return model.family if model else CATALOG[0]
    except UserError:
        return CATALOG[0]


def selected_language(workspace: Workspace, view: View) -> str:
    """The chosen language where the model has it, else the model's first; empty where there is no model."""
    codes, chosen = languages(workspace, view), view.values["language"]
    return chosen if chosen in codes or not codes else codes[0]


def languages(workspace: Workspace, view: View) -> tuple[str, ...]:
    """Languages of the chosen model, those it was trained on here first."""
    base_model, trained_model = selected_models(workspace, view)
    model = trained_model or base_model
    try:
        return model.languages if model else ()
    except UserError:
        return ()


def _base_choices(workspace: Workspace, view: View) -> object:
    """All base models; that of the trained model is preselected."""
    _, after = selected_models(workspace, view)
    bases = [model for model in references(workspace, view) if model.kind == "base"]
    fitting = _named(bases, _base_of(after))
    value = fitting or _named(bases, view.values["base"]) or (bases[0] if bases else None)
    return gr.update(choices=[(base_title(workspace, model.name), model.reference) for model in bases],
                     value=value.reference if value else None)


def _voices(workspace: Workspace, view: View) -> list[tuple[str, str]]:
    """Speakers of the training data, uploaded recordings, then the voices that come with the base."""
    base_model, trained_model = selected_models(workspace, view)
    speakers = list(trained_model.speakers(selected_language(workspace, view)) if trained_model else ())
    recordings = reference_voices.list_recordings(workspace)
    names = base_model.voices if base_model else ()
    return [*((f"{name or 'unnamed'} (training data)", f"{reference_voices.SPEAKER}{name}")
              for name in speakers[:_MOST_SPEAKERS]),
            *((f"{path.stem} (recording)", str(path)) for path in recordings),
            *((f"{name} (base)", name) for name in names)]


def _voice_choices(workspace: Workspace, view: View) -> object:
    """All voices; a person's choice stays, else the preselected one."""
    offered = _voices(workspace, view)
    values = [value for _, value in offered]
    return gr.update(choices=offered, value=_persons_voice(view, values) or _default_voice(workspace, view, values))


def _persons_voice(view: View, offered: Sequence[str]) -> str:
    """The voice that a person chose or uploaded, also where the page would choose the same; empty if none."""
    current = view.values["voice"]
    return current if current in offered and current != view.values["voice.preselected"] else ""


def _preselected_voice(workspace: Workspace, view: View) -> str:
    """The voice that the page chose last."""
    offered = [value for _, value in _voices(workspace, view)]
    return view.values["voice.preselected"] if _persons_voice(view, offered) \
        else _default_voice(workspace, view, offered) or ""


def _default_voice(workspace: Workspace, view: View, offered: Sequence[str]) -> str | None:
    """The first speaker of the data for a language that was added here, else the first voice of the base.

    Without any, the oldest recording, so that a new one, which may be an emotion clip, does not take its place.
    """
    _, after = selected_models(workspace, view)
    language = selected_language(workspace, view)
    speakers = [value for value in offered if value.startswith(reference_voices.SPEAKER)]
    recordings = [value for value in offered if value.startswith("/")]
    base_voices = [value for value in offered if value not in (*speakers, *recordings)]
    added = after is not None and language in after.added_languages
    return next(iter((speakers or base_voices if added else base_voices or speakers) or recordings[::-1]), None)


def _emotion_clip_choices(workspace: Workspace, view: View) -> object:
    """No clip, then uploaded recordings."""
    recordings = reference_voices.list_recordings(workspace)
    offered = [_NO_CLIP, *((f"{path.stem} (recording)", str(path)) for path in recordings)]
    current = view.values["emotion_clip"]
    return gr.update(choices=offered, value=current if current in [value for _, value in offered] else "")


def defaults_view(family: CatalogEntry) -> Html:
    """The defaults of empty fields."""
    if not family.sampling:
        return NOTHING
    words = ", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in family.sampling.items())
    return paragraph(f"Defaults of empty fields: {words}.", class_="small")


def save_recording(page: Page, path: str | None, role: str = "voice") -> Sequence[object]:
    """Save an uploaded recording, and choose it as the `role` that it was uploaded for; the player is cleared."""
    if not path:
        return [NOTHING, gr.skip(), gr.skip()]
    try:
        stored, reference = reference_voices.save_recording(page.workspace, Path(path), Path(path).name)
    except UserError as error:
        return [job_views.fault(error.message, f"{error.hint} The chosen {role} did not change."),
                gr.skip(), gr.update(value=None)]
    finally:
        Path(path).unlink(missing_ok=True)
    notes = [job_views.notice(note, "wait") for note in reference.notes]
    saved = job_views.notice(f"Saved as {stored.stem} and selected as the {role}.", "good")
    return [join((saved, *notes)), gr.update(choices=[(f"{stored.stem} (recording)", str(stored))], value=str(stored)),
            gr.update(value=None)]


def readiness(workspace: Workspace, view: View) -> Html:
    """What the chosen language needs and this machine lacks."""
    base_model, trained_model = selected_models(workspace, view)
    model = trained_model or base_model
    if model is None:
        return job_views.notice("No model yet. Download a base model on the Model tab, or train one on Start.",
                                "wait")
    code = view.values["language"]
    try:
        hint = catalog.text_package_hint(model.family, code, code in model.added_languages)
    except UserError as error:
        return job_views.fault(error.message, error.hint)
    return job_views.notice(hint, "wait") if hint else NOTHING


def settings(family: CatalogEntry, names: Sequence[str], values: Sequence[Value]) -> Mapping[str, Value]:
    """Values of the widgets, without the controls that `family` does not have."""
    return {name: value for name, value in zip(names, values, strict=True)
            if not name.startswith("sound.") or name.split(".")[1] in family.sound_options}
