"""Train tab: what will change, start, watch, stop, go on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gradio as gr

from config.errors import UserError
from core.jobs import checkpoint_names, control
from core.jobs.directory import Job, load_job
from core.jobs.state import JobState
from ui import checkpoints, needs, present, presets, proof_time, runs, sample_grid, steps, suggest, training
from ui.live import View
from ui.markup import NOTHING, Html, join, span
from ui.page import Page

_GRID = """const shown = () => window.lisanGrid && window.lisanGrid(element);
shown();
watch('value', shown);"""

_SCALES = ("Linear", "Logarithmic")


@dataclass(frozen=True)
class _Run:
    """What shows the run that is looked at, and acts on it."""

    stop: gr.Button
    resume: gr.Button
    force: gr.Button
    confirm: gr.Group
    sure: gr.Button
    not_sure: gr.Button
    notice: gr.HTML
    status: gr.HTML
    drawn: gr.Row  # holds `scale`
    scale: gr.Radio  # of the axes of the curves
    curves: gr.HTML
    samples: gr.HTML
    more: gr.Row  # holds `everything`
    everything: gr.Checkbox  # whether the grid of samples shows all steps and sentences


def build(page: Page) -> None:
    """Lay out the tab: the run on top, the form for a new one below."""
    steps.lead("Train", "The model practises on the recordings. What may change is stated first, "
               "and only that changes.")
    run = _lay_out_run(page)
    runs.build(page)
    with gr.Accordion("Log", open=False, elem_classes="fold"):
        log = gr.HTML(elem_id="run-log")
    _lay_out_new_run(page)
    checkpoints.build(page, chosen)
    page.live.panel(log, log_view, "train")
    _follow(page, run)
    _act(page, run)


def _lay_out_run(page: Page) -> _Run:
    with gr.Row(elem_classes="controls"):
        page.run.render()
        stop = gr.Button("Stop", size="md", visible=False, elem_id="stop", min_width=100)
        resume = gr.Button("Continue", variant="primary", size="md", visible=False, elem_id="resume", min_width=100)
        force = gr.Button("Force stop", variant="stop", size="md", visible=False, elem_id="force-stop", min_width=120)
    with gr.Group(visible=False, elem_classes="confirm") as confirm, gr.Row():
        gr.HTML(present.notice("This ends the process at once. Steps that were not saved in a checkpoint are lost."))
        sure = gr.Button("Yes, end it now", variant="stop", size="md", elem_id="force-sure")
        not_sure = gr.Button("No, let it finish", size="md")
    notice = gr.HTML(elem_classes="notices")
    status = gr.HTML(elem_id="run-status")
    with gr.Row(visible=False, elem_classes="controls") as drawn:
        scale = gr.Radio(list(_SCALES), value=_SCALES[0], label="Axis of losses, rates and gradients",
                         elem_id="run-scale")
    curves = gr.HTML(elem_id="run-curves")
    samples = gr.HTML(elem_id="run-samples", js_on_load=_GRID)
    with gr.Row(visible=False, elem_classes="controls") as more:
        everything = gr.Checkbox(False, label="Show every step and sentence", elem_id="run-everything")
    return _Run(stop, resume, force, confirm, sure, not_sure, notice, status, drawn, scale, curves, samples, more,
                everything)


def _lay_out_new_run(page: Page) -> None:
    """The preset, the form and the trial. The fold is opened while there is no run, and never closed by a refresh."""
    with gr.Accordion("Start a new run", open=False, elem_classes="fold", elem_id="new-run") as fold:
        choices = {"extension": lambda view: page.workspace.list_extensions(),
                   "dataset": lambda view: suggest.fitting_datasets(page.workspace, view.chosen["train.extension"]),
                   "replay_datasets": lambda view: suggest.replayable_datasets(
                       page.workspace, view.chosen["train.extension"], view.chosen["train.replay_datasets"])}
        needs.build(page, "train", "train", choices)
        choice = presets.lay_out()
        step = steps.step_form(
            page, "train", "Start training",
            first=("extension", "dataset", "scope", "steps", "max_minutes", "device"), choices=choices,
            begun={page.run: lambda job: page.show(job.id), fold: lambda job: gr.update(open=False)},  # it is seen
            preset=lambda view: presets.unchanged(page, view),
        )
        steps.add_trial(page, step, "preflight", "Check first (a minute)")
        presets.follow(page, choice, step.form)
        trial = gr.HTML(elem_id="preflight")
    page.live.panel(fold, opened, "train")
    page.live.panel(trial, preflight_view, "train")


def opened(view: View) -> object:
    """Open while there is no run; else as the person left it, also before the first refresh."""
    return gr.update(open=True) if view.newest("train") is None else gr.skip()


def _follow(page: Page, run: _Run) -> None:
    """Let every part show how the run that is looked at stands."""
    live = page.live
    live.watch("run", page.run)
    live.watch("run.everything", run.everything)
    live.watch("run.scale", run.scale)
    live.panel(run.notice, lambda view: gr.update(value="") if view.gone("run") else gr.skip(), "train")
    for component, render in ((page.run, run_choices), (run.status, status_view), (run.curves, curves_view),
                              (run.samples, samples_view), (run.more, _more),
                              (run.drawn, lambda view: gr.update(visible=_trains(chosen(view))))):
        live.panel(component, render, "train")
    runs.refresh_on(page, run.everything, run.scale)
    for button, shown in ((run.stop, lambda job: job.alive and job.status != "stopping"),
                          (run.resume, lambda job: job.resumable), (run.force, lambda job: job.status == "stopping")):
        live.panel(button, _visible_when(shown), "train")


def _act(page: Page, run: _Run) -> None:
    """What the buttons of the run do."""
    page.on(run.stop.click, lambda name: _stop(page, name), [page.run], [run.notice])
    page.on(run.resume.click, lambda name: _resume(page, name), [page.run], [run.notice])
    page.on(run.force.click, lambda: [NOTHING, gr.update(visible=True)], [], [run.notice, run.confirm])
    page.on(run.not_sure.click, lambda: [NOTHING, gr.update(visible=False)], [], [run.notice, run.confirm])
    page.on(run.sure.click, lambda name: _force(page, name), [page.run], [run.notice, run.confirm])


def chosen(view: View) -> JobState | None:
    """The run that is looked at: the chosen one; when none is, one that trains, else the newest. None: it is gone."""
    return view.looked_at("run", "train")


def run_choices(view: View) -> object:
    titles = {job.id: training.run_title(job) for job in view.jobs if job.verb == "train"}
    return gr.update(**view.choices("run", titles, chosen(view)))


def status_view(view: View) -> Html:
    state = chosen(view)
    if gone := view.gone("run"):
        return present.gone(gone)
    if state is None:
        return present.empty("No run yet. The Start tab does everything with one button; here you choose the details.")
    title = join((present.title_of(state), " ", span("id", state.id)))
    extension = state.job.settings.get("extension")
    past = proof_time.last(view.jobs, lambda one: one.job.settings.get("extension") == extension)
    card = present.job_card(state, title, proof_time.during(state, past))
    return join((card, training.plan_view(state), training.numbers(state)))


def curves_view(view: View) -> Html:
    state = chosen(view)
    logarithmic = view.chosen.get("run.scale") == _SCALES[1]
    return training.curves(state, logarithmic) if state is not None and state.steps else NOTHING


def _trains(state: JobState | None) -> bool:
    """Whether there is a step to draw."""
    return state is not None and bool(state.steps)


def samples_view(view: View) -> Html:
    state = chosen(view)
    return sample_grid.grid(state, _everything(view)) if state is not None and state.steps else NOTHING


def _everything(view: View) -> bool:
    return view.chosen.get("run.everything") == "True"


def _more(view: View) -> object:
    """Offer to show all where the grid does not."""
    state = chosen(view)
    return gr.update(visible=state is not None and not sample_grid.shown(state).whole)


def preflight_view(view: View) -> Html:
    """The newest trial of a training, until it is an old story: a run was started after it."""
    state, run = view.newest("preflight"), view.newest("train")
    if state is None or (run is not None and run.job.created > state.job.created):
        return NOTHING
    result = dict(state.result or {})
    left_out = str(result.pop("not_tried", ""))
    return join((present.job_card(state), present.result_facts(result),
                 present.notice(f"Not tried: {left_out}") if left_out else NOTHING))


def log_view(view: View) -> Html:
    state = chosen(view)
    return present.log(control.log_tail(state.job, 6000)) if state is not None else NOTHING


def _visible_when(shown: Callable[[JobState], bool]) -> Callable[[View], object]:
    def render(view: View) -> object:
        state = chosen(view)
        return gr.update(visible=state is not None and shown(state))

    return render


def _job(page: Page, name: str) -> Job:
    if not name:
        raise UserError("No run is chosen.", "Choose one in the list, or start a new one.")
    return load_job(page.workspace, name)


def _stop(page: Page, name: str) -> Sequence[object]:
    job = _job(page, name)
    told = present.stop_words(control.read_state(job))
    control.stop(job)
    return [present.notice(told)]


def _resume(page: Page, name: str) -> Sequence[object]:
    """Go on with a run, and with what waited for it and gave up when it stopped."""
    job = _job(page, name)
    control.resume_with_dependents(job, page.live.board.states())
    return [present.notice(checkpoint_names.resume_point(job))]


def _force(page: Page, name: str) -> Sequence[object]:
    job = _job(page, name)
    control.force_stop(job)
    return [present.notice(f"Stopped by force. {checkpoint_names.resume_point(job)}"), gr.update(visible=False)]
