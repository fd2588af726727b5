"""What the tabs of single steps share: a form, its button, the equal command, and the last job's card."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import gradio as gr
from gradio.blocks import Block

from config.loading import parse_options
from config.schema import Options
from core.jobs.directory import Job
from core.jobs.state import JobState
from core.jobs.verbs import VERBS
from ui import present, suggest
from ui.form import Fold, Form, Value, build_form, command_line
from ui.live import View
from ui.markup import Html, div, element, join, paragraph
from ui.page import Page
from ui.suggest import Offered, Wanted

Suggested = tuple[Wanted, Callable[[], Collection[Value]]]
"""What a field should hold, and every value that Lisan may have put there."""
Begun = Mapping[Block, Callable[[Job], object]]
"""What else of the page changes when the button has started a job."""


@dataclass(frozen=True)
class Step:
    """What is laid out of a verb: its form, its buttons, and the place where is said what came of them."""

    verb: str
    form: Form
    buttons: gr.Row
    start: gr.Button
    notice: gr.HTML


def lead(title: str, *words: str) -> gr.HTML:
    """The head of a tab: its title and what it is for, in a sentence or two."""
    return gr.HTML(div("lead", element("h2", title), *(paragraph(text) for text in words)))


def step_form(page: Page, verb: str, button: str, *, first: Sequence[str], choices: Mapping[str, Offered],
              suggested: Mapping[str, Suggested] | None = None, begun: Begun | None = None,
              preset: Callable[[View], Mapping[str, Value]] | None = None) -> Step:
    """The form of `verb` with its start button and the equal command; `choices` are read anew on each refresh.

    `suggested` follows what else is chosen, until a person types something else. The folds tell what differs from
    `preset`.
    """
    tab = VERBS[verb].tab
    form = build_form(VERBS[verb].options, first=first, choices=dict.fromkeys(choices, ()))
    with gr.Row(elem_classes="controls") as buttons:
        start = gr.Button(button, variant="primary", size="lg", elem_id=f"run-{verb}", min_width=140)
    notice = gr.HTML(elem_classes="notices")
    with gr.Accordion("The same on the command line", open=False, elem_classes="fold"):
        command = gr.HTML(elem_id=f"command-{verb}")
    for name, offered in choices.items():
        page.live.panel(form.widget(name), _offer(verb, name, offered, choices), tab)
    for name, suggestion in (suggested or {}).items():
        page.live.panel(form.widget(name), _suggest(verb, name, suggestion, choices), tab)
    for name, widget in zip(form.names, form.widgets, strict=True):
        page.live.watch(f"{verb}.{name}", widget)
    for part in form.folds:
        page.live.panel(part.block, _label(verb, part, preset), tab)
    page.live.panel(command, lambda view: command_view(page, form, verb, view), tab)
    then = begun or {}
    page.on(start.click, _starter(page, form, verb, tuple(then.values())), form.widgets, [notice, *then])
    return Step(verb, form, buttons, start, notice)


def add_trial(page: Page, step: Step, verb: str, button: str) -> None:
    """A second button, which tries what the first would start: a job of `verb`, which takes the same options."""
    with step.buttons:
        attempt = gr.Button(button, size="lg", elem_id=f"run-{verb}", min_width=140)
    page.on(attempt.click, _trier(page, step.form, step.verb, verb), step.form.widgets, [step.notice])


def _label(verb: str, fold: Fold, preset: Callable[[View], Mapping[str, Value]] | None) -> Callable[[View], object]:
    def render(view: View) -> object:
        values: dict[str, Value] = {entry.name: view.chosen[f"{verb}.{entry.name}"] for entry in fold.entries}
        return gr.update(label=fold.label(values, preset(view) if preset else {}))

    return render


def _offer(verb: str, name: str, offered: Offered, choices: Mapping[str, Offered]) -> Callable[[View], object]:
    def render(view: View) -> object:
        now = suggest.settled(view, verb, choices)
        return gr.update(choices=list(offered(now)), value=now.chosen[f"{verb}.{name}"] or None)

    return render


def _suggest(verb: str, name: str, suggestion: Suggested, choices: Mapping[str, Offered]) -> Callable[[View], object]:
    wanted, own = suggestion

    def render(view: View) -> object:
        return suggest.free(view.chosen[f"{verb}.{name}"], wanted(suggest.settled(view, verb, choices)), own())

    return render


def _starter(page: Page, form: Form, verb: str, then: Sequence[Callable[[Job], object]],
             ) -> Callable[..., Sequence[object]]:
    def run(*values: Value) -> Sequence[object]:
        suggest.missing(verb, form.names, values)
        job = page.start(verb, form.options(values))
        return [page.begun(job), *(changed(job) for changed in then)]

    return run


def _trier(page: Page, form: Form, verb: str, tried: str) -> Callable[..., Sequence[object]]:
    def run(*values: Value) -> Sequence[object]:
        suggest.missing(verb, form.names, values)
        return [page.begun(page.start(tried, parse_options(VERBS[tried].options, form.options(values).model_dump())))]

    return run


def command_view(page: Page, form: Form, verb: str, view: View) -> Html:
    """The command that does what the form says now; faults are shown in its place."""
    values = [view.chosen[f"{verb}.{name}"] for name in form.names]
    suggest.missing(verb, form.names, values)
    options: Options = form.options(values)
    return element("pre", command_line(verb, options, page.workspace.path), class_="command")


def last_job(verb: str, nothing: str, result: Callable[[JobState], Html] | None = None) -> Callable[[View], Html]:
    """A panel: the newest job of `verb`, and what came of it."""

    def render(view: View) -> Html:
        state = view.newest(verb)
        if state is None:
            return present.empty(nothing)
        if result is not None and state.status == "finished":
            return join((present.job_card(state), result(state)))
        return join((present.job_card(state), present.result_facts(state.result)))

    return render
