"""Train tab: the chosen run, a comparison of runs, the log, the form for a new run, and the checkpoints."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import cast, get_args

import gradio as gr

from config.errors import UserError
from config.resume_options import CHANGEABLE
from config.schema import LENGTHS, TrainOptions, is_zero, option_fields
from core.dataset import review
from core.dataset.review import TextMatch
from core.jobs import checkpoint_names, control
from core.jobs.events import Step
from core.jobs.job import load_job
from core.jobs.reporter import duration_text, memory_text, size_text
from core.jobs.state import JobState
from core.library import checkpoints, presets
from core.library.presets import FittedPreset
from core.submission import storage
from ui import clip_review, foreign_settings, job_views, records, run_views, sweeps, verb_form
from ui.charts import Point, Series, chart, smooth
from ui.form import OptionsForm, Value, build_fields, same_value
from ui.live import QUIET, View
from ui.markup import NOTHING, Html, div, element, join, paragraph, span, table
from ui.page import Page
from ui.titles import title_of

MAX_COMPARED = 6  # runs, as there are colours
_COMPARED_BY_DEFAULT = 3  # newest runs that are shown when none is chosen
_RUN_COLOURS = tuple(f"var(--series-{number})" for number in range(1, MAX_COMPARED + 1))
_SCALES = ("Linear", "Logarithmic")
_X_AXES = {"Steps": "step", "Minutes": "minute"}
_HELD_OUT = (("speech_loss", "Held-out speech loss"), ("text_loss", "Held-out text loss"))
_MEMORY_OF = {"gpu": "GPU"}
_LAST_CHECKPOINT = ("the last", "")
_NOT_COMPARED = ("device",)  # options that change nothing of a run
_PLAY_GRID = """const shown = () => window.lisanGrid && window.lisanGrid(element);
shown();
watch('value', shown);"""
_PRESET_INPUTS = ("train.dataset", "train.extension", "train.device", "preset", "memory")
_PRESET_FIELDS = presets.set_options()
_FIELDS = option_fields(TrainOptions)
_PRESET_DEFAULTS: Mapping[str, Value] = {name: _FIELDS[name].default for name in _PRESET_FIELDS}


def build(page: Page) -> None:
    """Lay out the tab: run, comparison, log, new run, checkpoints."""
    verb_form.tab_header("Train", "Fine-tune the extended model on a dataset. The plan of a run lists the tensors "
                         "that train; all others are frozen.")
    _build_run(page)
    _build_comparison(page)
    with gr.Accordion("Log", open=False, elem_classes="fold"):
        log = gr.HTML(elem_id="run-log")
    _build_new_run(page)
    _build_checkpoints(page)

    def show_log(view: View) -> Html:
        state = selected_run(view)
        return job_views.log(control.log_tail(state.job, 6000)) if state else NOTHING

    page.live.panel(log, show_log, "train")


def _build_run(page: Page) -> None:
    """The panels and buttons of the chosen run."""
    with gr.Row(elem_classes="controls"):
        page.run.render()
        stop = gr.Button("Stop", size="md", visible=False, elem_id="stop", min_width=100)
        resume = gr.Button("Resume", variant="primary", size="md", visible=False, elem_id="resume", min_width=100)
        force = gr.Button("Force stop", variant="stop", size="md", visible=False, elem_id="force-stop", min_width=120)
    with gr.Group(visible=False, elem_classes="confirm") as confirm, gr.Row():
        gr.HTML(job_views.notice("Force stop kills the process. Steps since the last checkpoint are lost."))
        confirm_force = gr.Button("Force stop now", variant="stop", size="md", elem_id="force-stop-confirm")
        cancel_force = gr.Button("Cancel", size="md")
    notice = gr.HTML(elem_classes="notices")
    _build_resume(page, notice)
    verb_form.build_rename(page, page.run, "run")
    status = gr.HTML(elem_id="run-status")
    with gr.Row(visible=False, elem_classes="controls") as scale_row:
        scale = gr.Radio(list(_SCALES), value=_SCALES[0], label="Scale of losses, learning rates and gradients",
                         elem_id="run-scale")
    curves = gr.HTML(elem_id="run-curves")
    samples = gr.HTML(elem_id="run-samples", js_on_load=_PLAY_GRID)
    with gr.Row(visible=False, elem_classes="controls") as all_samples_row:
        all_samples = gr.Checkbox(False, label="Show every step and sentence", elem_id="run-all-samples")

    # The page remembers run, scale and samples, so that a refresh keeps them.
    live = page.live
    for name, widget in (("run", page.run), ("run.all_samples", all_samples), ("run.scale", scale)):
        live.watch(name, widget)
    live.panel(notice, lambda view: gr.update(value="") if view.deleted("run") else gr.skip(), "train")

    def show_curves(view: View) -> Html:
        state = selected_run(view)
        if not state or not state.steps:
            return NOTHING
        return run_views.run_curves(state, view.values["run.scale"] == _SCALES[1])

    for component, render in (
        (page.run, run_choices), (status, status_view), (samples, samples_view), (curves, show_curves),
    ):
        live.panel(component, render, "train")

    # Only buttons that have an effect on the run are visible.
    live.panel(stop, lambda view: stop_button(filter(None, [selected_run(view)])), "train")
    _refresh_on(page, all_samples, scale)
    for component, visible in (
        (resume, lambda job: job.resumable),
        (force, lambda job: job.status == "stopping"), (scale_row, lambda job: job.steps),
        (all_samples_row, lambda job: not run_views.select_samples(job).whole),
    ):
        live.show_when(component, selected_run, visible, "train")

    def chosen(name: str) -> str:
        if not name:
            raise UserError("No run is chosen.", "Choose one in the list, or start a new one.")
        return name

    page.on(stop.click, lambda name: page.stop(chosen(name)), [page.run], [notice])
    page.on(resume.click, lambda name: page.resume(chosen(name)), [page.run], [notice])

    # Force stop loses steps, so it asks first.
    page.on(force.click, lambda: [NOTHING, gr.update(visible=True)], [], [notice, confirm])
    page.on(cancel_force.click, lambda: [NOTHING, gr.update(visible=False)], [], [notice, confirm])
    page.on(confirm_force.click, lambda name: [*page.force_stop(chosen(name)), gr.update(visible=False)], [page.run],
            [notice, confirm])


def stop_button(states: Iterable[JobState]) -> object:
    """Stop, visible while one of the jobs can be stopped; red where a training learns nothing."""
    alive = [state for state in states if state.alive and state.status != "stopping"]
    alarmed = any(job_views.training_alarm(state) for state in alive)
    return gr.update(visible=bool(alive), value="Stop: it learns nothing" if alarmed else "Stop",
                     variant="stop" if alarmed else "secondary")
def _build_resume(page: Page, notice: gr.HTML) -> None:
    """Resume the chosen run with other options, or from an earlier checkpoint."""
    with gr.Accordion("Resume with changes", open=False, visible=False, elem_classes="fold",
                      elem_id="resume-changes") as fold:
        gr.HTML(paragraph("Options that change no step. An earlier checkpoint is taken with its optimizer; later ones "
                          "go to the bin.", class_="small"))
        step = gr.Dropdown([_LAST_CHECKPOINT], value="", label="From checkpoint", filterable=False,
                           elem_id="resume-step", min_width=150)
        widgets = build_fields(TrainOptions, CHANGEABLE, "resume")
        button = gr.Button("Resume with these", variant="primary", size="md", elem_id="resume-with", scale=0)

    def steps_of(view: View) -> object:
        """The run's checkpoints, and the last one if the chosen one is gone."""
        state = selected_run(view)
        steps = checkpoint_names.checkpoint_steps(state.job.directory) if state else []
        choices = [_LAST_CHECKPOINT, *((f"step {number:,}", str(number)) for number in reversed(steps[:-1]))]
        offered = [value for _, value in choices]
        return gr.update(choices=choices, **({} if view.values["resume.step"] in offered else {"value": ""}))

    def setting(name: str, view: View) -> object:
        state = selected_run(view)
        default = _FIELDS[name].default
        return gr.update(value=state.job.settings.get(name, default) if state else default)

    # The fields show the options of the chosen run, and the fold is hidden while it trains.
    page.live.show_when(fold, selected_run, lambda job: job.ended and (job.resumable or job.steps), "train")
    page.live.watch("resume.step", step)
    page.live.panel(step, steps_of, "train")
    for name, widget in zip(CHANGEABLE, widgets, strict=True):
        page.live.panel(widget, partial(setting, name), "train")

    def resume(run: str, checkpoint: str, *values: Value) -> Sequence[object]:
        if not run:
            raise UserError("No run is chosen.", "Choose one in the list, or start a new one.")
        # Only options that differ from the run's are changes.
        settings = load_job(page.workspace, run).settings
        changes = {name: value for name, value in zip(CHANGEABLE, values, strict=True)
                   if not same_value(value, cast(Value, settings.get(name, _FIELDS[name].default)))}
        return page.resume(run, changes, checkpoint or "")

    page.on(button.click, resume, [page.run, step, *widgets], [notice])


def _refresh_on(page: Page, *widgets: gr.Dropdown | gr.Radio | gr.Checkbox) -> None:
    """Refresh as soon as a choice changes. No outputs: Gradio takes `[gr.skip()]` for the value of a single one."""
    for widget in widgets:
        page.live.pending.append(widget.input(lambda: None, None, None, **QUIET))


def selected_run(view: View) -> JobState | None:
    """The chosen run, else the default of `View.newest`. None if the chosen one was deleted."""
    return view.selected_job("run", "train")


def run_choices(view: View) -> object:
    titles = {job.id: f"{job_views.run_name(job)}, {job_views.status_title(job)}" for job in view.jobs
              if job.verb == "train"}
    return gr.update(**view.choices("run", titles, selected_run(view)))


def status_view(view: View) -> Html:
    state = selected_run(view)
    deleted = view.deleted("run")
    if deleted:
        return job_views.job_deleted(deleted)
    if state is None:
        return job_views.empty("No runs yet. Start one below, or use the Start tab, which runs every step.")

    # The card shows the id, as commands need it.
    title = join((job_views.job_title(state), " ", span("id", state.id)))
    extension = state.job.settings.get("extension")
    past = job_views.last_certificate_time(view.jobs, lambda job: job.job.settings.get("extension") == extension)
    proof = next((job for job in view.alive if job.certifies == state.id), None)
    note = job_views.certificate_note(state, past)

    # A finished run can be used before its certificate is complete.
    if state.status == "finished" and records.is_unproven(state):
        usable = "" if job_views.learned_nothing(state) else "The run can be used; "
        comes = "its certificate comes next" if proof else "see Share"
        note = f"Not proven yet. {usable}{comes if usable else comes.capitalize()}."

    return join((job_views.job_card(state, title, note), job_views.training_alarm(state),
                 job_views.training_outcome_view(state),
                 job_views.job_card(proof) if proof and state.status == "finished" else NOTHING,
                 job_views.plan(state.changes, "Changed at the resume"),
                 job_views.run_plan(state), run_views.run_numbers(state)))


def samples_view(view: View) -> Html:
    state, all_samples = selected_run(view), view.values.get("run.all_samples") == "True"
    return run_views.sample_grid(state, all_samples) if state is not None and state.steps else NOTHING


def _build_comparison(page: Page) -> None:
    """Several runs in the same charts, and the options in which they differ."""
    with gr.Accordion("Compare runs", open=False, elem_classes="fold", elem_id="compare-runs") as fold:
        with gr.Row(elem_classes="controls"):
            runs = gr.Dropdown([], label="Runs", multiselect=True,
                               elem_classes="several-choices", max_choices=MAX_COMPARED, scale=4,
                               elem_id="runs-chosen", info=f"Up to {MAX_COMPARED}; empty shows the newest.")
            scale = gr.Radio(list(_SCALES), value=_SCALES[0], label="Scale", scale=1, min_width=200,
                             elem_id="runs-scale")
            x_axis = gr.Radio(list(_X_AXES), value="Steps", label="X axis", scale=1, min_width=160,
                              elem_id="runs-x-axis")
        charts = gr.HTML(elem_id="runs-compared")

    unfolded = gr.Checkbox(False, visible="hidden")
    for name, widget in (("runs", runs), ("runs.scale", scale), ("runs.x_axis", x_axis), ("runs.unfolded", unfolded)):
        page.live.watch(name, widget)
    page.live.panel(runs, lambda view: gr.update(choices=[
        (job_views.run_name(state), state.id) for state in trainings(view.jobs)]), "train")
    page.live.panel(charts, lambda view: comparison_view(
        compared_runs(view), view.values["runs.scale"] == _SCALES[1], view.values["runs.x_axis"] == "Minutes")
        if view.values["runs.unfolded"] == "True" else gr.skip(), "train")  # not drawn while the fold is closed
    for event, value in ((fold.expand, "true"), (fold.collapse, "false")):
        page.live.pending.append(event(None, None, [unfolded], js=f"() => {value}", **QUIET))
    _refresh_on(page, runs, scale, x_axis)


def trainings(states: Sequence[JobState]) -> list[JobState]:
    """Trainings with at least one step, newest first."""
    return [state for state in states if state.verb == "train" and state.steps]


def compared_runs(view: View) -> list[JobState]:
    """The chosen runs, else the newest few."""
    # Deleted runs drop out of the choice.
    available = trainings(view.jobs)
    chosen = view.chosen("runs")
    selected = [state for state in available if state.id in chosen]
    return (selected or available[:_COMPARED_BY_DEFAULT])[:MAX_COMPARED]


def comparison_view(states: Sequence[JobState], logarithmic: bool, by_time: bool) -> Html:
    """Each measure with a line per run, then a table of the runs and of the options that differ."""
    if not states:
        return job_views.empty("A run appears here after its first step.")
    x_name = _X_AXES["Minutes" if by_time else "Steps"]
    charts = [chart(title, lines, x_name=x_name, y_log=logarithmic, y_percent=in_percent)
              for title, lines, in_percent in _charts(states, by_time) if any(line.points for line in lines)]
    return join((div("charts", *charts), _run_table(states), _option_table(states)))


def _charts(states: Sequence[JobState], by_time: bool) -> Iterator[tuple[str, list[Series], bool]]:
    """Of each chart the title, the lines, and whether the values are percentages."""

    def x_value(step: Step) -> float:
        return step.seconds / 60 if by_time else float(step.step)

    def step_lines(measure: Callable[..., float | None], smoothed: bool) -> list[Series]:
        lines = []
        for state, colour in zip(states, _RUN_COLOURS, strict=False):
            measured = [(x_value(step), measure(step)) for step in state.steps]
            points: list[Point] = [(x, value) for x, value in measured if value is not None]
            lines.append(Series(_run_label(state), smooth(points) if smoothed else points, colour))
        return lines

    def dots(measure: Callable[..., float | None]) -> list[Series]:
        """One point per validation; a run that did not measure it has no points."""
        lines = []
        for state, colour in zip(states, _RUN_COLOURS, strict=False):
            # By time, a validation is drawn at the time of its training step.
            steps = {step.step: step for step in state.steps}
            points = []
            for entry in state.evaluations:
                value, step = measure(entry), steps.get(entry.step)
                if value is None or (step is None and by_time):
                    continue
                points.append((float(entry.step) if step is None else x_value(step), value))
            lines.append(Series(_run_label(state), points, colour, "dots"))
        return lines

    yield "Speech loss", step_lines(lambda step: step.speech_loss, True), False
    yield "Text loss", step_lines(lambda step: step.text_loss, True), False
    # Curves by language follow the losses of training.
    evaluations = list(chain.from_iterable(state.evaluations for state in states))
    languages = sorted(set(chain.from_iterable(entry.languages for entry in evaluations)))
    for key, title in _HELD_OUT:
        if not languages and key == "speech_loss":
            yield title, dots(lambda entry: entry.speech_loss), False
        for code in languages:
            yield (f"{title}, {job_views.language_name(code)}",
                   dots(lambda entry, code=code, key=key: entry.languages.get(code, {}).get(key)), False)
    for code in languages:
        yield (f"Top-1 accuracy, {job_views.language_name(code)}",
               dots(lambda entry, code=code: entry.languages.get(code, {}).get("accuracy")), True)
    for code in sorted(set(chain.from_iterable(entry.errors for entry in evaluations))):
        yield f"CER, {job_views.language_name(code)}", dots(lambda entry, code=code: entry.errors.get(code)), True

    steps = chain.from_iterable(state.steps for state in states)
    for group in dict.fromkeys(chain.from_iterable(step.learning_rates for step in steps)):
        yield (f"Learning rate, {group}",
               step_lines(lambda step, group=group: step.learning_rates.get(group), False), False)

    yield "Gradient norm", step_lines(lambda step: step.gradient_norm, True), False
    yield "Tokens per second", step_lines(lambda step: step.tokens_per_s, True), False
    yield "Peak memory, GiB", step_lines(lambda step: None if step.memory_bytes is None
                                        else step.memory_bytes / 2**30, False), False


def _run_label(state: JobState) -> str:
    """The name of a run in legends and tables: its id if a person chose it, else its time and the end of its id."""
    short = job_views.short_id(state.id)
    return short if short == state.id else f"{job_views.clock(state.job.created)} ({short})"


def _run_table(states: Sequence[JobState]) -> Html:
    rows = []
    for state in states:
        # Speed, memory and time are those of the last step.
        last = state.steps[-1]
        best = min(state.evaluations, key=lambda entry: entry.speech_loss, default=None)
        time_left = duration_text(state.eta_s) if state.alive and state.eta_s is not None else "–"
        memory = (f"{memory_text(last.memory_bytes)} ({_MEMORY_OF.get(last.memory_of, last.memory_of)})"
                  if last.memory_bytes is not None else "–")
        rows.append((_run_label(state), job_views.badge(state), f"{last.step} of {last.total_steps}",
                     f"{best.speech_loss:.3f} at step {best.step}" if best else "–", f"{last.tokens_per_s:,.0f}",
                     memory, duration_text(last.seconds), time_left))
    return table(("Run", "Status", "Step", "Best held-out loss", "Tokens per second", "Peak memory", "Training time",
                  "Time left"), rows)


def _option_table(states: Sequence[JobState]) -> Html:
    """Options in which the runs differ."""
    if len(states) < 2:
        return NOTHING

    def differs(name: str) -> bool:
        return len({str(state.job.settings.get(name)) for state in states}) > 1

    option_names = dict.fromkeys(chain.from_iterable(state.job.settings for state in states))
    names = [name for name in option_names if name not in _NOT_COMPARED and differs(name)]
    if not names:
        return paragraph("These runs have the same options.", class_="small")

    rows = []
    for name in names:
        title = (name in _FIELDS and _FIELDS[name].title) or name
        rows.append((title, *(str(state.job.settings.get(name, "–")) for state in states)))
    return join((element("h2", "Different options"),
                 table(("Option", *(_run_label(state) for state in states)), rows)))


def _build_new_run(page: Page) -> None:
    """The preset, the form and the preflight check. The accordion is open while there is no run."""
    with gr.Accordion("New run", open=False, elem_classes="fold", elem_id="new-run") as fold:
        choices = {"extension": lambda view: page.workspace.list_extensions(),
                   "dataset": lambda view: verb_form.trainable_datasets(page.workspace, view.values["train.extension"]),
                   "replay_datasets": lambda view: verb_form.replayable_datasets(
                       page.workspace, view.values["train.extension"], view.values["train.replay_datasets"])}

        verb_form.build_prerequisites(page, "train", "train", choices)
        mismatch = gr.HTML(elem_id="train-mismatch")
        selector = build_preset()
        form, _ = verb_form.build_verb_form(
            page, "train", "Train", defaults={"mismatch_action": "stop"}, choices=choices,
            first=("extension", "dataset", "mismatch_action", "scope", "steps", "max_epochs", "max_minutes", "device"),
            on_started={page.run: lambda job: page.show(job.id), fold: lambda job: gr.update(open=False)},
            preset=lambda view: values_without_user_changes(page, view),
            second=("preflight", "Preflight check (1 min)"),
        )

        attach_preset(page, selector, form)
        foreign_settings.build(page, form)
        preflight = gr.HTML(elem_id="preflight")

    # The question about mismatched texts is asked only if the texts are known not to match.
    form.widget("mismatch_action").visible = False
    page.live.panel(mismatch, lambda view: clip_review.match_view(mismatch_of(page, view)), "train")

    def mismatch_choice(view: View) -> object:
        match = mismatch_of(page, view)
        return gr.update(visible=match is not None and match.is_proven)

    page.live.panel(form.widget("mismatch_action"), mismatch_choice, "train")
    page.live.panel(fold, open_without_runs, "train")
    page.live.panel(preflight, preflight_view, "train")
    sweeps.build(page, form, comparison_view)


def mismatch_of(page: Page, view: View) -> TextMatch | None:
    """Whether the texts of the chosen dataset belong to its clips; None if that is not known."""
    name = view.values["train.dataset"]

    def read() -> TextMatch | None:
        return review.text_match_of(page.workspace, name) if name in page.workspace.list_datasets() else None

    return view.once(("texts match", name), read)


def open_without_runs(view: View) -> object:
    """Open the fold while there is no run; else leave it as the person set it."""
    return gr.update(open=True) if view.newest("train") is None else gr.skip()


def preflight_view(view: View) -> Html:
    """The newest preflight check, until a run was started after it."""
    state, run = view.newest("preflight"), view.newest("train")
    if state is None or (run is not None and run.job.created > state.job.created):
        return NOTHING
    result = dict(state.result or {})
    not_checked = str(result.pop("not_tried", ""))
    return join((job_views.job_card(state), job_views.result_facts(result),
                 job_views.notice(f"Not checked: {not_checked}") if not_checked else NOTHING))


@dataclass(frozen=True)
class PresetSelector:
    """The widgets of the preset."""

    name: gr.Dropdown
    memory: gr.Dropdown
    about: gr.HTML
    reset: gr.Button
    notice: gr.HTML
    baseline: gr.State  # JSON: the value that the preset last filled into each field


def build_preset() -> PresetSelector:
    """Lay out the dropdowns, the description and the button that resets the form to the preset."""
    with gr.Row(elem_classes="grid"):
        name = gr.Dropdown([("Auto (by hours of speech)", "auto"),
                            *((presets.TITLES[preset_name], preset_name) for preset_name in presets.NAMES)],
                           value="auto", label="Preset", filterable=False, elem_id="preset", min_width=150,
                           info="Values for this amount of speech. Your changes below stay.")
        memory = gr.Dropdown([("Auto-detected", "auto"), *((f"{size} GB", size)
                                                           for size in get_args(presets.Memory)[1:])],
                             value="auto", label="GPU memory", filterable=False, elem_id="preset-memory",
                             min_width=150, info="Sets the batch size. Between two sizes, choose the smaller.")
    about = gr.HTML(elem_id="preset-about")
    reset = gr.Button("Reset to preset", size="md", visible=False, elem_id="preset-reset", scale=0)
    return PresetSelector(name, memory, about, reset, gr.HTML(elem_classes="notices"), gr.State(""))


def attach_preset(page: Page, selector: PresetSelector, form: OptionsForm) -> None:
    """Let the form follow the preset, and show what it sets and what differs from it."""
    live = page.live
    live.watch("preset", selector.name)
    live.watch("memory", selector.memory)
    live.watch("preset.baseline", selector.baseline)
    for name in _PRESET_FIELDS:
        live.panel(form.widget(name), partial(field_update, page, name), "train")
    live.panel(selector.baseline, lambda view: next_baseline(page, view), "train")
    live.panel(selector.about, lambda view: about_view(current_preset(page, view), user_changes(page, view)), "train")
    live.panel(selector.reset, lambda view: gr.update(visible=bool(user_changes(page, view))), "train")
    page.on(selector.reset.click, reset_preset, [form.widget(name) for name in _PRESET_FIELDS],
            [selector.notice, selector.baseline])


def current_preset(page: Page, view: View) -> FittedPreset:
    """The preset for the values in the form, computed once for all panels of a refresh."""

    def fit() -> FittedPreset:
        on_cpu = view.values["train.device"] == "cpu"
        family = verb_form.family_of_extension(page.workspace, view.values["train.extension"])
        speech = presets.speech_amount_of(page.workspace, view.values["train.dataset"])
        return presets.fit(family.name, speech, () if on_cpu else page.gpus(), view.values["preset"],
                           view.values["memory"], on_cpu=on_cpu)

    return view.once(("preset", *(view.values[name] for name in _PRESET_INPUTS)), fit)


def preset_values(page: Page, view: View) -> Mapping[str, Value]:
    """The value of each field by the preset, else the default of the schema.

    A length in another unit replaces that of the preset: steps, epochs and minutes are units of one thing.
    """
    values = {**_PRESET_DEFAULTS, **current_preset(page, view).values}
    lengths = [name for name in LENGTHS if name in values]
    changed = [name for name in LENGTHS if not is_zero(view.values[f"train.{name}"])
               and (name not in lengths or not _follows(view, name))]
    return {**values, **dict.fromkeys(lengths, 0)} if changed else values


def values_without_user_changes(page: Page, view: View) -> Mapping[str, Value]:
    """The value that each field would have if no person had changed it."""
    return {name: view.values[f"train.{name}"] if _follows(view, name) else value
            for name, value in preset_values(page, view).items()}


def field_update(page: Page, name: str, view: View) -> object:
    """Fill the preset's value into a field that no person changed."""
    value = preset_values(page, view)[name]
    return gr.update(value="" if value is None else value) if _follows(view, name) else gr.skip()


def next_baseline(page: Page, view: View) -> str:
    """The next value of `PresetSelector.baseline`."""
    values = preset_values(page, view)
    return json.dumps({name: values[name] if _follows(view, name) else last
                       for name, last in baseline(view).items()})


def baseline(view: View) -> Mapping[str, Value]:
    """The value that the preset last filled into each field; at first the default of the schema."""
    filled: Mapping[str, Value] = json.loads(view.values["preset.baseline"] or "{}")
    return {**_PRESET_DEFAULTS, **filled}


def _follows(view: View, name: str) -> bool:
    """Whether the field still has the value of the baseline: no person changed it."""
    return same_value(view.values[f"train.{name}"], baseline(view)[name])


def user_changes(page: Page, view: View) -> Mapping[str, str]:
    """By field the values that a person changed and that differ from the preset."""
    values = preset_values(page, view)
    return {name: view.values[f"train.{name}"] for name in _PRESET_FIELDS
            if not _follows(view, name) and not same_value(view.values[f"train.{name}"], values[name])}


def reset_preset(*values: Value) -> Sequence[object]:
    """Treat the present values as filled in by the preset, so that the next refresh replaces them."""
    return [NOTHING, json.dumps(dict(zip(_PRESET_FIELDS, values, strict=True)))]


def about_view(preset: FittedPreset, changed: Mapping[str, str]) -> Html:
    """The purpose of the preset, why it was chosen, what it sets, and what a person changed."""
    values = job_views.facts([(_FIELDS[name].title or name, "as attention" if value is None else value)
                              for name, value in preset.values.items()])
    changes = [f"{_FIELDS[name].title}: {value or 'empty'} (preset: {preset.values.get(name, _PRESET_DEFAULTS[name])})"
               for name, value in changed.items()]
    return join((
        div(f"notice {'good' if preset.measured else 'wait'}", element("strong", preset.title),
            paragraph(preset.words), *(paragraph(reason, class_="small") for reason in preset.reasons)),
        job_views.plan(changes, "Your changes"),
        element("details", element("summary", f"Preset values ({len(preset.values)})"), values),
    ))


def _build_checkpoints(page: Page) -> None:
    """The checkpoints of the chosen run, and the row that pins one by name or unpins it."""

    def pin(run: str, step: str, name: str) -> Sequence[object]:
        if not step or not (name or "").strip():
            raise UserError("Step or name is missing.", "Choose a step, and enter a name for its checkpoint.")
        checkpoint_names.pin(load_job(page.workspace, run).directory, int(step), name.strip())
        return [job_views.notice(f"Checkpoint of step {step} pinned as {name.strip()}.")]

    def unpin(run: str, name: str) -> Sequence[object]:
        if not name:
            raise UserError("No pinned checkpoint is chosen.", "Choose its name in the list.")
        step = checkpoint_names.unpin(load_job(page.workspace, run).directory, name)
        return [job_views.notice(f"Checkpoint of step {step} unpinned; the run may delete it.")]

    def delete(run: str, step: str) -> Sequence[object]:
        if not step:
            raise UserError("No checkpoint is chosen.", "Choose a step in the list.")
        entry = storage.delete(page.workspace, storage.parse(f"run:{run}@{step}"), page.live.board)
        title = title_of(page.workspace, entry.item.reference)
        message = f"{title} is in the bin. Restore it on the Storage tab (under System)."
        return [job_views.notice(message), gr.update(value=None)]

    def choices(view: View, read: Callable[[Path], Iterable[object]], field: str) -> object:
        """The choices, and no value if the one that was chosen is gone: Gradio's script fails at such a value."""
        state = selected_run(view)
        offered = [str(choice) for choice in read(state.job.directory)] if state else []
        current = view.values[field]
        return gr.update(choices=offered, **({} if current in offered else {"value": None}))

    with gr.Accordion("Checkpoints", open=False, elem_classes="fold", elem_id="checkpoints"):
        listing = gr.HTML(elem_id="run-checkpoints")
        with gr.Row(elem_classes="controls"):
            step = gr.Dropdown([], label="Checkpoint (step)", filterable=False, elem_id="pin-step", min_width=140)
            name = gr.Textbox(label="Pin as", max_lines=1, elem_id="pin-name", min_width=140)
            pin_button = gr.Button("Pin", size="md", elem_id="pin", min_width=90)
            delete_button = gr.Button("Delete", size="md", elem_id="delete-checkpoint", min_width=90)
            pinned = gr.Dropdown([], label="Pinned checkpoint", filterable=False, elem_id="pinned-name", min_width=140)
            unpin_button = gr.Button("Unpin", size="md", elem_id="unpin", min_width=90)
        notice = gr.HTML(elem_classes="notices")

    # Steps and names are read from the folder of the run, where its worker deletes old checkpoints.
    page.live.panel(listing, lambda view: checkpoints_view(selected_run(view)), "train")
    page.live.watch("checkpoint.step", step)
    page.live.watch("checkpoint.name", pinned)
    page.live.panel(step, partial(choices, read=checkpoint_names.checkpoint_steps, field="checkpoint.step"), "train")
    page.live.panel(pinned, partial(choices, read=checkpoint_names.pinned_names, field="checkpoint.name"), "train")
    page.on(pin_button.click, pin, [page.run, step, name], [notice])
    page.on(delete_button.click, delete, [page.run, step], [notice, step])
    page.on(unpin_button.click, unpin, [page.run, pinned], [notice])


def checkpoints_view(state: JobState | None) -> Html:
    """Each checkpoint with its size, and why it is kept."""
    steps = checkpoint_names.checkpoint_steps(state.job.directory) if state else []
    if state is None or not steps:
        return job_views.empty("No checkpoints yet. The last, the best, the one you use and the pinned ones are kept.")
    # Pinned checkpoints are never deleted by the run.
    names = checkpoint_names.pinned_names(state.job.directory)
    best = checkpoints.read_ranking(state.job.directory).best

    rows = []
    for step in steps:
        folder = checkpoint_names.folder_of(state.job.directory, step)
        # Sizes tell which checkpoint to delete.
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        # A checkpoint may be kept for several reasons.
        reasons = ["best"] * (step == best) + ["last"] * (step == steps[-1])
        reasons += ["your choice" if name == checkpoint_names.CHOICE else f"“{name}”"
                    for name, pinned_step in names.items() if pinned_step == step]

        rows.append((f"{step:,}", size_text(size), ", ".join(reasons)))

    # Lists show a pinned checkpoint by its title, and commands need its reference.
    references = [f"run:{state.id}@{name}" for name in names if name != checkpoint_names.CHOICE]
    titles = "; ".join(title_of(state.job.workspace, reference) for reference in references)
    pinned = (paragraph(f"Pinned checkpoints on Listen: {titles}", class_="small"),
              paragraph("In commands: ", span("id", ", ".join(references)), class_="small"))
    return join((table(("Step", "Size", "Reason"), rows), *(pinned if references else ())))
