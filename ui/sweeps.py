"""The Sweep section of the Train tab: runs over a grid, their ranking and curves, and "train this one further"."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

import gradio as gr

from config.errors import UserError
from config.loading import parse_options
from config.schema import SweepOptions
from core.jobs import control
from core.jobs.job import load_job
from core.jobs.state import JobState
from core.library import sweeps
from core.library.sweeps import SweepRecord, SweepTrial
from ui import job_views, verb_form
from ui.charts import Series, chart
from ui.form import OptionsForm, Value, build_fields
from ui.live import View
from ui.markup import NOTHING, Html, div, element, join, paragraph, table
from ui.page import Page

TAB = "train"
_FIELDS = ("search", "vary", "trials", "prune")
_COLOURS = tuple(f"var(--series-{number})" for number in range(1, 7))
_BEST = ("the best", "")
Comparison = Callable[[Sequence[JobState], bool, bool], Html]
"""The comparison of runs of the Train tab: runs, logarithmic axis, by time."""


def build(page: Page, form: OptionsForm, compare: Comparison) -> None:
    """Lay out the fields, the buttons and the result. `form`: the options of a run, which all trials share."""
    with gr.Accordion("Sweep", open=False, elem_classes="fold", elem_id="sweep"):
        gr.HTML(paragraph("Several runs with the options of the form above, which differ in some of them. They are "
                          "queued one after another, and ranked by outcome, CER and held-out loss.", class_="small"))
        widgets = build_fields(SweepOptions, _FIELDS, "sweep")
        with gr.Row(elem_classes="controls"):
            start = gr.Button("Start sweep", variant="primary", size="md", elem_id="run-sweep", min_width=140)
            find = gr.Button("Find the learning rate", size="md", elem_id="find-learning-rate", min_width=180)
            stop = gr.Button("Stop", size="md", visible=False, elem_id="stop-sweep", min_width=100)
            resume = gr.Button("Resume", size="md", visible=False, elem_id="resume-sweep", min_width=100)
        notice = gr.HTML(elem_classes="notices")
        command = verb_form.command_fold("sweep")
        chosen = gr.Dropdown([], label="Sweep", elem_id="sweep-chosen", filterable=False)
        result = gr.HTML(elem_id="sweep-result")
        with gr.Row(visible=False, elem_classes="controls") as further_row:
            trial = gr.Dropdown([_BEST], value="", label="Trial", filterable=False, elem_id="sweep-trial",
                                min_width=180)
            further = gr.Button("Train this one further", size="md", elem_id="sweep-further", min_width=180)
        curves = gr.HTML(elem_id="sweep-curves")

    live = page.live
    for name, widget in zip(_FIELDS, widgets, strict=True):
        live.watch(f"sweep.{name}", widget)
    live.watch("sweep", chosen)
    live.watch("sweep.trial", trial)

    def equal_command(view: View) -> Html:
        values = [view.values[f"train.{name}"] for name in form.names]
        verb_form.require_choices("train", form.names, values)
        return verb_form.command_view(page, "sweep", options_of(form, values, [
            view.values[f"sweep.{name}"] for name in _FIELDS]))

    live.panel(command, equal_command, TAB)
    live.panel(chosen, sweep_choices, TAB)
    live.panel(result, result_view, TAB)
    live.panel(trial, trial_choices, TAB)
    live.panel(curves, partial(curves_view, compare=compare), TAB)
    live.show_when(stop, selected_sweep, lambda job: job.alive and job.status != "stopping", TAB)
    live.show_when(resume, selected_sweep, lambda job: job.resumable, TAB)
    live.show_when(further_row, selected_sweep, lambda job: any(
        candidate.status == "finished" for candidate in trials_of(job)), TAB)

    def begin(*values: Value, search: str = "") -> Sequence[object]:
        shared, sweep_values = values[:len(form.names)], list(values[len(form.names):])
        verb_form.require_choices("train", form.names, shared)
        if search:
            sweep_values = [search, "", 0, sweep_values[_FIELDS.index("prune")]]
        job = page.start("sweep", options_of(form, shared, sweep_values))
        return [page.started_notice(job), page.show(job.id)]

    inputs = [*form.widgets, *widgets]
    page.on(start.click, begin, inputs, [notice, chosen])
    page.on(find.click, partial(begin, search="learning_rate"), inputs, [notice, chosen])
    page.on(stop.click, lambda name: page.stop(name or newest_id(page)), [chosen], [notice])
    page.on(resume.click, lambda name: page.resume(name or newest_id(page)), [chosen], [notice])
    page.on(further.click, partial(train_further, page), [chosen, trial], [notice])


def train_further(page: Page, name: str, run: str) -> Sequence[object]:
    """Start a run from the weights of a trial: the best one if `run` is empty, of the newest sweep if `name` is."""
    state = control.read_state(load_job(page.workspace, name or newest_id(page)))
    options, record = options_of_sweep(state), sweeps.read_sweep(state.job.directory)
    finished = [trial for trial in sweeps.rank(record, options) if trial.status == "finished"] if record else []
    chosen_trial = next((trial for trial in finished if run in ("", trial.run)), None)
    if chosen_trial is None:
        raise UserError("No trial of this sweep has finished.", "Wait for one, or resume the sweep.")
    return [page.started_notice(page.start("train", sweeps.further_options(options, chosen_trial)))]


def options_of(form: OptionsForm, shared: Sequence[Value], sweep_values: Sequence[Value]) -> SweepOptions:
    """The options of a sweep: those of the form of a run, and its own."""
    training = form.options(shared).model_dump(mode="json")
    values = dict(zip(_FIELDS, sweep_values, strict=True))
    # Watched values are text.
    values["prune"] = str(values["prune"]) == "True"
    return parse_options(SweepOptions, {**training, **values})


def options_of_sweep(state: JobState) -> SweepOptions:
    """The options of a sweep that was started."""
    return parse_options(SweepOptions, state.job.settings)


def newest_id(page: Page) -> str:
    """The id of the newest sweep; `UserError` if there is none."""
    states = [state for state in page.live.board.states() if state.verb == "sweep"]
    if not states:
        raise UserError("No sweep is chosen.", "Choose one in the list, or start one.")
    return states[0].id


def selected_sweep(view: View) -> JobState | None:
    """The chosen sweep, else the newest."""
    return view.selected_job("sweep", "sweep")


def sweep_choices(view: View) -> object:
    """The sweeps, newest first."""
    titles = {state.id: f"{state.title or state.id}, {job_views.status_title(state)}" for state in view.jobs
              if state.verb == "sweep"}
    return gr.update(**view.choices("sweep", titles, selected_sweep(view)))


def trials_of(state: JobState) -> list[SweepTrial]:
    """The trials of a sweep, best first; none where its record is missing or damaged."""
    with suppress(UserError):
        record = sweeps.read_sweep(state.job.directory)
        return sweeps.rank(record, options_of_sweep(state)) if record else []
    return []


def trial_choices(view: View) -> object:
    """The finished trials, best first; no value if the chosen one is of another sweep."""
    state = selected_sweep(view)
    finished = [trial for trial in trials_of(state) if trial.status == "finished"] if state else []
    choices = [_BEST, *((f"{trial.run}: {trial.description}", trial.run) for trial in finished)]
    current = view.values["sweep.trial"]
    return gr.update(choices=choices, **({} if current in [run for _, run in choices] else {"value": ""}))


def result_view(view: View) -> Html:
    """The job, the recommendation and the ranking."""
    state = selected_sweep(view)
    if state is None:
        return NOTHING
    record = sweeps.read_sweep(state.job.directory)
    if record is None:
        return job_views.job_card(state)
    options = options_of_sweep(state)
    recommendation = (paragraph(element("strong", sweeps.recommend(record, options)))
                      if any(trial.status == "finished" for trial in record.trials) else NOTHING)
    return join((job_views.job_card(state), recommendation, ranking_table(record, options)))


def ranking_table(record: SweepRecord, options: SweepOptions) -> Html:
    """The trials, best first, with their intervals."""
    rows = []
    ranked = sweeps.rank(record, options)
    best = ranked[0] if ranked and ranked[0].status == "finished" else None
    for place, trial in enumerate(ranked, 1):
        cer = trial.cer
        tied = best is not None and trial is not best and trial.status == "finished" and sweeps.is_tied(best, trial)
        rows.append((
            f"{place}", f"{record.number(trial)}", trial.description, trial.status, trial.learning.label,
            f"{cer.mean:.1%} ({cer.low:.1%} to {cer.high:.1%})" if cer else "–",
            f"{trial.loss:.3f} at step {trial.step}" if trial.losses else "–",
            str(trial.change) if trial.change else "–", "may be chance" if tied else trial.message or "–"))
    waiting = record.count - len(record.trials)
    note = paragraph(f"{waiting} more to come.", class_="small") if waiting else NOTHING
    return join((table(("Place", "Trial", "Varied", "Status", "Outcome", "CER (95%)", "Held-out loss",
                        "Loss since step 0 (nats)", "Difference to the best"), rows), note))


def curves_view(view: View, *, compare: Comparison) -> Html:
    """The held-out losses of all trials in one chart, then the comparison of the best six."""
    state = selected_sweep(view)
    trials = trials_of(state) if state else []
    # A running trial has its curve in its journal.
    jobs = {trial.run: job for trial in trials if (job := view.job(trial.run)) is not None}
    lines = []
    for index, trial in enumerate(trials):
        losses = trial.losses or {entry.step: entry.speech_loss for entry in
                                  (jobs[trial.run].evaluations if trial.run in jobs else ())}
        lines.append(Series(trial.description, sorted(losses.items()), _COLOURS[index % len(_COLOURS)]))
    if not any(line.points for line in lines):
        return NOTHING
    compared = [jobs[trial.run] for trial in trials if trial.run in jobs and jobs[trial.run].steps][:len(_COLOURS)]
    return join((div("charts", chart("Held-out speech loss of all trials", lines)),
                 compare(compared, False, False) if compared else NOTHING))
