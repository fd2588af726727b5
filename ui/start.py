"""Start tab: pick a language and a dataset, press one button, watch, then listen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gradio as gr

from config.errors import UserError
from core.jobs import checkpoint_names, control
from core.jobs.directory import create_job
from core.jobs.state import JobState
from core.library.catalog import FAMILIES
from core.submission import demo_chain
from ui import present, proof_time, teach
from ui.curves import chart
from ui.live import View
from ui.markup import NOTHING, Html, div, element, paragraph, span
from ui.page import Page
from ui.proof_time import Past
from ui.training import loss_series


@dataclass(frozen=True)
class _Widgets:
    """What the tab consists of."""

    model: gr.Dropdown
    language: gr.Dropdown
    dataset: gr.Dropdown
    length: gr.Dropdown
    teach: gr.Button
    notice: gr.HTML
    steps: gr.HTML
    stop: gr.Button
    go_on: gr.Button
    hear: gr.Button
    details: gr.Button
    curve: gr.HTML
    following: gr.State  # the training whose end opens Listen
    told: gr.State  # the training whose choices this page was shown


def build(page: Page) -> None:
    """Lay out the tab and make it live."""
    widgets = _lay_out()
    _follow(page, widgets)
    _open_listen_at_the_end(page, widgets.following)
    page.on(widgets.teach.click, lambda *chosen: _teach(page, *chosen),
            [widgets.model, widgets.language, widgets.dataset, widgets.length],
            [widgets.notice, widgets.following, page.run, page.pair])
    page.on(widgets.stop.click, lambda: _stop(page), [], [widgets.notice])
    page.on(widgets.go_on.click, lambda: _go_on(page), [], [widgets.notice, widgets.following])
    page.go(widgets.hear, "listen")
    page.go(widgets.details, "train")


def _lay_out() -> _Widgets:
    with gr.Row(elem_classes="hero"):
        with gr.Column(scale=5, min_width=300):
            gr.HTML(_introduction())
            with gr.Row(elem_classes="grid"):
                model = gr.Dropdown([(FAMILIES[0].title, FAMILIES[0].name)], value=FAMILIES[0].name,
                                    label="Voice to teach", filterable=False, elem_id="start-model", min_width=200)
                language = gr.Dropdown([("Amharic", "am")], value="am", label="Language to teach", filterable=False,
                                       elem_id="start-language", min_width=140)
                dataset = gr.Dropdown([(teach.DEMO_LABEL, teach.DEMO)], value=teach.DEMO,
                                      label="Recordings to learn from", filterable=False,
                                      elem_id="start-dataset", min_width=200)
                length = gr.Dropdown([("Until it speaks (5 min)", teach.FULL)], value=teach.FULL,
                                     label="How long it practises", filterable=False,
                                     elem_id="start-length", min_width=200)
            button = gr.Button("Teach it Amharic", variant="primary", size="lg", elem_id="teach")
            notice = gr.HTML(elem_classes="notices")
        with gr.Column(scale=4, min_width=300):
            steps = gr.HTML(elem_id="chain")
            with gr.Row(elem_classes="controls"):
                stop = gr.Button("Stop", size="md", visible=False, elem_id="start-stop", min_width=90)
                go_on = gr.Button("Continue", variant="primary", size="md", visible=False, elem_id="start-resume",
                                  min_width=90)
                hear = gr.Button("Listen to it", variant="primary", size="md", visible=False, elem_id="start-listen",
                                 min_width=120)
                details = gr.Button("Details", size="md", visible=False, elem_id="start-details", min_width=90)
            curve = gr.HTML(elem_id="start-curve")
    return _Widgets(model, language, dataset, length, button, notice, steps, stop, go_on, hear, details, curve,
                    gr.State(""), gr.State(""))


def _follow(page: Page, widgets: _Widgets) -> None:
    """Let every part show how the newest chain stands."""
    live = page.live
    live.watch("following", widgets.following)
    live.watch("start_told", widgets.told)
    for name in ("model", "language", "dataset", "length"):
        live.watch(f"start_{name}", getattr(widgets, name))
    workspace = page.workspace

    def settled(view: View) -> View:
        return teach.settled(workspace, view, chain_of(view.jobs))

    live.panel(widgets.model, lambda view: teach.model_choices(workspace, settled(view)), "start")
    live.panel(widgets.language, lambda view: teach.language_choices(workspace, settled(view)), "start")
    live.panel(widgets.dataset, lambda view: teach.dataset_choices(workspace, settled(view)), "start")
    live.panel(widgets.length, lambda view: teach.length_choices(workspace, settled(view), page.gpus()), "start")
    live.panel(widgets.told, lambda view: next((state.id for state in chain_of(view.jobs) if state.verb == "train"),
                                               ""), "start")
    live.panel(widgets.notice, said_until_the_end, "start")
    live.panel(widgets.teach, _teach_button, "start")
    live.panel(widgets.steps, lambda view: chain_view(chain_of(view.jobs), teach.pace(workspace, view),
                                                       teach.last_proof(workspace, view)), "start")
    live.panel(widgets.curve, _curve, "start")
    for button, shown in ((widgets.stop, _can_stop), (widgets.go_on, _can_go_on), (widgets.hear, _has_voice),
                          (widgets.details, _has_training)):
        live.panel(button, _visible_when(shown), "start")


def said_until_the_end(view: View) -> object:
    """What a button said of the chain stays while that lives; then its steps say how it ended."""
    return gr.skip() if any(state.alive for state in chain_of(view.jobs)) else gr.update(value=NOTHING)


def _visible_when(shown: Callable[[Sequence[JobState]], bool]) -> Callable[[View], object]:
    return lambda view: gr.update(visible=shown(chain_of(view.jobs)))


def _introduction() -> Html:
    return div(
        "intro", element("h1", "Teach a voice a new language"),
        paragraph("Lisan takes a voice and teaches it a language that it has never heard. What it could say before, it "
                  "says exactly as before. You hear the difference, and you get the proof."),
    )


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


def chain_view(states: Sequence[JobState], pace: str, proof: Past | None) -> Html:
    """The chain's steps as they stand, or what they will be, at which pace, with how long a `proof`."""
    if states:
        return div("card", present.chain(states, {state.id: proof_time.during(state, proof) for state in states}))
    steps = (
        ("Press the button.", "Lisan gets the base model, reads the recordings, learns the new letters and practises."),
        ("Watch it learn.", f"{pace} Close the page if you like."),
        ("Wait for the proof.", proof_time.before(proof)),
        ("Listen.", "The same sentence before and after, with a score for how well it can be understood."),
    )
    items = [element("li", span("mark", str(number)), div("step", element("strong", title), paragraph(text)),
                     class_="link wait") for number, (title, text) in enumerate(steps, 1)]
    return div("card", element("h3", "What will happen"), element("ol", *items, class_="chain"))


def _training(states: Sequence[JobState]) -> JobState | None:
    return next((state for state in states if state.verb == "train" and (state.steps or state.alive)), None)


def _has_training(states: Sequence[JobState]) -> bool:
    return _training(states) is not None


def _has_voice(states: Sequence[JobState]) -> bool:
    return any(state.verb == "train" and state.checkpoints for state in states)


def _can_stop(states: Sequence[JobState]) -> bool:
    return any(state.alive and state.status != "stopping" for state in states)


def _can_go_on(states: Sequence[JobState]) -> bool:
    return not any(state.alive for state in states) and any(state.resumable for state in states)


def _curve(view: View) -> Html:
    state = _training(chain_of(view.jobs))
    if state is None or not state.steps:
        return NOTHING
    return chart("Loss: how surprised it is by real speech", loss_series(state)[:2], x_most=state.steps[-1].total_steps)


def _teach_button(view: View) -> object:
    name = present.language_name(view.chosen["start_language"] or "am")
    states = chain_of(view.jobs)
    if any(state.alive for state in states):
        return gr.update(value=f"Teaching it {name}", interactive=False, variant="primary")
    if _can_go_on(states):  # to begin anew is then the second choice
        return gr.update(value=f"Teach it {name} anew", interactive=True, variant="secondary")
    again = bool(states) and all(state.status == "finished" for state in states)
    return gr.update(value=f"Teach it {name}{' again' if again else ''}", interactive=True, variant="primary")


def _teach(page: Page, model: str, language: str, dataset: str, length: str) -> Sequence[object]:
    """Queue the chain, and a comparison to listen to at its end; start all of it."""
    states = page.live.board.states()
    if any(state.alive for state in chain_of(states)):
        raise UserError("It is learning already.", "Wait for it, or stop it first.")
    options = teach.chain_options(page.workspace, model, language, dataset, length, states, page.gpus())
    made = demo_chain.create_chain(page.workspace, options)
    training = made[-1]
    pair = teach.pair(page.workspace, options, training.id)
    listening = create_job(page.workspace, "compare", pair, after=(training.id,))
    for job in (*made, listening):
        control.start(job)
    return [present.notice("It goes on by itself now, also when you close this page."), training.id,
            page.show(training.id), page.show(listening.id)]


def _stop(page: Page) -> Sequence[object]:
    living = [state for state in chain_of(page.live.board.states()) if state.alive]
    for state in reversed(living):
        control.stop(state.job)
    return [present.notice(present.stop_words(living[0]) if living else "It has ended already.")]


def _go_on(page: Page) -> Sequence[object]:
    states = chain_of(page.live.board.states())
    for state in states:
        if state.resumable:
            control.resume(state.job)
    last = next((state.job for state in reversed(states) if state.resumable and state.started_at), None)
    return [present.notice(checkpoint_names.resume_point(last) if last else "It goes on."),
            next((state.id for state in states if state.verb == "train"), "")]


def _open_listen_at_the_end(page: Page, following: gr.State) -> None:
    """A browser that watched the chain run is taken to Listen when it has finished."""

    def done(view: View) -> bool:
        states = chain_of(view.jobs)
        return bool(view.chosen["following"] and view.tab == "start" and states
                    and all(state.status == "finished" for state in states))

    page.live.panel(page.tabs, lambda view: gr.update(selected="listen") if done(view) else gr.skip())
    page.live.panel(page.tab, lambda view: "listen" if done(view) else gr.skip())
    page.live.panel(following, follow)


def follow(view: View) -> str:
    """The training that the browser watches; none when the chain has finished and it looks elsewhere by now.

    On Start it stays, because Listen is opened by it, in another answer than this one.
    """
    states = chain_of(view.jobs)
    if view.tab != "start" and all(state.status == "finished" for state in states):
        return ""
    running = next((state.id for state in states if state.verb == "train" and state.alive), "")
    return running or view.chosen["following"]
