"""Start tab: pick a language and a dataset, press one button, watch, then listen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import gradio as gr

from config.errors import UserError
from core.jobs import checkpoint_names, control
from core.jobs.directory import create_job
from core.jobs.state import JobState
from core.library.catalog import FAMILIES
from core.submission import demo_chain
from ui import job_views, start_options
from ui.charts import chart
from ui.job_views import ProofTime
from ui.live import View
from ui.markup import NOTHING, Html, div, element, paragraph, span
from ui.page import Page
from ui.run_views import loss_series


@dataclass(frozen=True)
class _Widgets:
    """What the tab consists of."""

    model: gr.Dropdown
    language: gr.Dropdown
    dataset: gr.Dropdown
    length: gr.Dropdown
    start: gr.Button
    notice: gr.HTML
    steps: gr.HTML
    stop: gr.Button
    resume: gr.Button
    listen: gr.Button
    details: gr.Button
    curve: gr.HTML
    followed: gr.State  # the training whose end opens Listen
    shown_run: gr.State  # the training whose choices this page has shown


def build(page: Page) -> None:
    """Lay out the tab and add its listeners."""
    widgets = _lay_out()
    _add_panels(page, widgets)
    _open_listen_at_the_end(page, widgets.followed)
    page.on(widgets.start.click, lambda *chosen: _start(page, *chosen),
            [widgets.model, widgets.language, widgets.dataset, widgets.length],
            [widgets.notice, widgets.followed, page.run, page.pair])
    page.on(widgets.stop.click, lambda: _stop(page), [], [widgets.notice])
    page.on(widgets.resume.click, lambda: _resume(page), [], [widgets.notice, widgets.followed])
    page.go(widgets.listen, "listen")
    page.go(widgets.details, "train")


def _lay_out() -> _Widgets:
    with gr.Row(elem_classes="hero"):
        with gr.Column(scale=5, min_width=300):
            gr.HTML(div(
                "intro", element("h1", "Teach a voice a new language"),
                paragraph("Lisan trains a text-to-speech model on a new language. The languages it speaks already "
                          "stay exactly as they are, and a certificate proves it."),
            ))
            with gr.Row(elem_classes="grid"):
                model = gr.Dropdown([(FAMILIES[0].title, FAMILIES[0].name)], value=FAMILIES[0].name,
                                    label="Voice model", filterable=False, elem_id="start-model", min_width=200)
                language = gr.Dropdown([("Amharic", "am")], value="am", label="New language", filterable=False,
                                       elem_id="start-language", min_width=140)
                dataset = gr.Dropdown([(start_options.DEMO_LABEL, start_options.DEMO)], value=start_options.DEMO,
                                      label="Recordings", filterable=False, elem_id="start-dataset", min_width=200)
                length = gr.Dropdown([("Full (about 5 min)", start_options.FULL)], value=start_options.FULL,
                                     label="Training length", filterable=False, elem_id="start-length", min_width=200)
            button = gr.Button("Train Amharic", variant="primary", size="lg", elem_id="teach")
            notice = gr.HTML(elem_classes="notices")
        with gr.Column(scale=4, min_width=300):
            steps = gr.HTML(elem_id="chain")
            with gr.Row(elem_classes="controls"):
                stop = gr.Button("Stop", size="md", visible=False, elem_id="start-stop", min_width=90)
                resume = gr.Button("Resume", variant="primary", size="md", visible=False, elem_id="start-resume",
                                   min_width=90)
                listen = gr.Button("Listen", variant="primary", size="md", visible=False, elem_id="start-listen",
                                   min_width=120)
                details = gr.Button("Details", size="md", visible=False, elem_id="start-details", min_width=90)
            curve = gr.HTML(elem_id="start-curve")
    return _Widgets(model, language, dataset, length, button, notice, steps, stop, resume, listen, details, curve,
                    gr.State(""), gr.State(""))


def _add_panels(page: Page, widgets: _Widgets) -> None:
    """Let every part show the state of the newest chain."""
    live, workspace = page.live, page.workspace
    live.watch("followed", widgets.followed)
    live.watch("start_shown_run", widgets.shown_run)
    for name in ("model", "language", "dataset", "length"):
        live.watch(f"start_{name}", getattr(widgets, name))

    def resolved(view: View) -> View:
        return start_options.resolved_selection(workspace, view, chain_of(view.jobs))

    def curve(view: View) -> Html:
        state = _training(chain_of(view.jobs))
        if state is None or not state.steps:
            return NOTHING
        return chart("Training loss (lower is better)", loss_series(state)[:2], x_most=state.steps[-1].total_steps)

    def visible(view: View, shown: Callable[[Sequence[JobState]], bool]) -> object:
        return gr.update(visible=shown(chain_of(view.jobs)))

    for component, render in (
        (widgets.model, lambda view: start_options.model_choices(workspace, resolved(view))),
        (widgets.language, lambda view: start_options.language_choices(workspace, resolved(view))),
        (widgets.dataset, lambda view: start_options.dataset_choices(workspace, resolved(view))),
        (widgets.length, lambda view: start_options.length_choices(workspace, resolved(view), page.gpus())),
        (widgets.shown_run, lambda view: next(
            (state.id for state in chain_of(view.jobs) if state.verb == "train"), "")),
        (widgets.notice, notice_while_running), (widgets.start, _start_button),
        (widgets.steps, lambda view: chain_view(chain_of(view.jobs), start_options.pace(workspace, view),
                                                start_options.last_proof(workspace, view))),
        (widgets.curve, curve),
    ):
        live.panel(component, render, "start")
    for button, shown in (
        (widgets.stop, lambda states: any(state.alive and state.status != "stopping" for state in states)),
        (widgets.resume, _resumable),
        (widgets.listen, lambda states: any(state.verb == "train" and state.checkpoints for state in states)),
        (widgets.details, lambda states: _training(states) is not None),
    ):
        live.panel(button, partial(visible, shown=shown), "start")


def notice_while_running(view: View) -> object:
    """A button's notice stays while a job of the chain lives; then the steps show the result."""
    return gr.skip() if any(state.alive for state in chain_of(view.jobs)) else gr.update(value=NOTHING)


def chain_of(states: Sequence[JobState]) -> list[JobState]:
    """The newest training that waited for other jobs, with those before and after it, in order."""
    by_id = {state.id: state for state in states}
    last = next((state for state in states if state.verb == "train" and state.job.after), None)
    if last is None:
        return []
    found = [last]
    while found[0].job.after and found[0].job.after[0] in by_id:
        found.insert(0, by_id[found[0].job.after[0]])
    found += [state for state in reversed(states) if last.id in state.job.after]
    return found


def chain_view(states: Sequence[JobState], pace: str, proof: ProofTime | None) -> Html:
    """The steps of the chain, or before there is one, what will happen at which `pace`."""
    if states:
        notes = {state.id: job_views.proof_note(state, proof) for state in states}
        return div("card", job_views.chain_view(states, notes))
    steps = (
        ("Train.", "Lisan gets the base model, prepares the recordings, builds the tokenizer and trains."),
        ("Watch.", f"{pace} You can close this page."),
        ("Certificate.", job_views.before_proof(proof)),
        ("Compare.", "Hear the same sentence before and after, with a score for how well it can be understood."),
    )
    items = [element("li", span("mark", str(number)), div("step", element("strong", title), paragraph(text)),
                     class_="link wait") for number, (title, text) in enumerate(steps, 1)]
    return div("card", element("h3", "What will happen"), element("ol", *items, class_="chain"))


def _training(states: Sequence[JobState]) -> JobState | None:
    return next((state for state in states if state.verb == "train" and (state.steps or state.alive)), None)


def _resumable(states: Sequence[JobState]) -> bool:
    return not any(state.alive for state in states) and any(state.resumable for state in states)


def _start_button(view: View) -> object:
    name = job_views.language_name(view.chosen["start_language"] or "am")
    states = chain_of(view.jobs)
    if any(state.alive for state in states):
        return gr.update(value=f"Training {name}", interactive=False, variant="primary")
    again = _resumable(states) or (bool(states) and all(state.status == "finished" for state in states))
    return gr.update(value=f"Train {name}{' again' if again else ''}", interactive=True,
                     variant="secondary" if _resumable(states) else "primary")


def _start(page: Page, model: str, language: str, dataset: str, length: str) -> Sequence[object]:
    """Queue the chain and a comparison after it, and start all of it."""
    states = page.live.board.states()
    if any(state.alive for state in chain_of(states)):
        raise UserError("A training is running already.", "Wait for it, or stop it first.")
    options = start_options.chain_options(page.workspace, model, language, dataset, length, states, page.gpus())
    made = demo_chain.create_chain(page.workspace, options)
    training = made[-1]
    pair = start_options.pair(page.workspace, options, training.id)
    comparison = create_job(page.workspace, "compare", pair, after=(training.id,))
    for job in (*made, comparison):
        control.start(job)
    return [job_views.notice("Training started. It continues when you close this page."), training.id,
            page.show(training.id), page.show(comparison.id)]


def _stop(page: Page) -> Sequence[object]:
    alive = [state for state in chain_of(page.live.board.states()) if state.alive]
    for state in reversed(alive):
        control.stop(state.job)
    return [job_views.notice(job_views.stop_message(alive[0]) if alive else "It has ended already.")]


def _resume(page: Page) -> Sequence[object]:
    states = chain_of(page.live.board.states())
    for state in states:
        if state.resumable:
            control.resume(state.job)
    last = next((state.job for state in reversed(states) if state.resumable and state.started_at), None)
    return [job_views.notice(checkpoint_names.resume_point(last) if last else "Resumed."),
            next((state.id for state in states if state.verb == "train"), "")]


def _open_listen_at_the_end(page: Page, followed: gr.State) -> None:
    """A browser that watched the chain on Start is taken to Listen when it has finished."""

    def done(view: View) -> bool:
        states = chain_of(view.jobs)
        return bool(view.chosen["followed"] and view.tab == "start" and states
                    and all(state.status == "finished" for state in states))

    page.live.panel(page.tabs, lambda view: gr.update(selected="listen") if done(view) else gr.skip())
    page.live.panel(page.tab, lambda view: "listen" if done(view) else gr.skip())
    page.live.panel(followed, follow)


def follow(view: View) -> str:
    """The training that this browser watches; none when the chain has finished and another tab is open.

    On Start it stays: Listen is opened by it, in another answer than this one.
    """
    states = chain_of(view.jobs)
    if view.tab != "start" and all(state.status == "finished" for state in states):
        return ""
    running = next((state.id for state in states if state.verb == "train" and state.alive), "")
    return running or view.chosen["followed"]
