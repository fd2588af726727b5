"""Several trainings on the same charts, and what was set differently. Below the run that Train shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import gradio as gr

from core.jobs.events import Step
from core.jobs.state import JobState
from ui import present, training
from ui.curves import Point, Series, chart, smooth
from ui.live import QUIET, View
from ui.markup import NOTHING, Html, div, element, join, paragraph
from ui.page import Page

MOST = 6  # runs, as there are colours
_BY_ITSELF = 3  # newest runs that are shown when none is chosen
_COLOURS = tuple(f"var(--series-{number})" for number in range(1, MOST + 1))
_ALONG = {"Steps": "step", "Minutes": "minute"}
_MEASURES: tuple[tuple[str, Callable[[Step], float | None], bool], ...] = (
    ("Speech loss", lambda step: step.speech_loss, True), ("Text loss", lambda step: step.text_loss, True),
    ("Gradient norm", lambda step: step.gradient_norm, True),
    ("Tokens a second", lambda step: step.tokens_per_s, True),
    ("Peak memory, GB", lambda step: None if step.memory_bytes is None else step.memory_bytes / 1e9, False),
)
"""Title, what of a step (None where it was not measured), and whether it is smoothed."""

_HELD_OUT = (("speech_loss", "Held-out speech loss"), ("text_loss", "Held-out text loss"))
_WHOSE = {"gpu": "GPU"}
_UNTOLD = ("device",)  # options that change nothing of a run


def build(page: Page) -> None:
    """Lay out the fold; `page.live` keeps it up to date."""
    with gr.Accordion("Compare runs", open=False, elem_classes="fold", elem_id="compare-runs"):
        with gr.Row(elem_classes="controls"):
            runs = gr.Dropdown([], label="Runs", multiselect=True, max_choices=MOST, scale=4, elem_id="runs-chosen",
                               info=f"At most {MOST}; none chosen shows the newest.")
            scale = gr.Radio(["Linear", "Logarithmic"], value="Linear", label="Scale", scale=1, min_width=200,
                             elem_id="runs-scale")
            along = gr.Radio(list(_ALONG), value="Steps", label="Along", scale=1, min_width=160, elem_id="runs-along")
        shown = gr.HTML(elem_id="runs-compared")
    for name, widget in (("runs", runs), ("runs.scale", scale), ("runs.along", along)):
        page.live.watch(name, widget)
    page.live.panel(runs, lambda view: gr.update(choices=[
        (present.run_name(state), state.id) for state in trainings(view.jobs)]), "train")
    page.live.panel(shown, lambda view: comparison(chosen(view), view.chosen["runs.scale"] == "Logarithmic",
                                                   view.chosen["runs.along"] == "Minutes"), "train")
    refresh_on(page, runs, scale, along)


def refresh_on(page: Page, *widgets: gr.Dropdown | gr.Radio | gr.Checkbox) -> None:
    """Show at once what follows from a choice. No output: `[gr.skip()]` for a single one is taken for its value."""
    for widget in widgets:
        page.live.pending.append(widget.input(lambda: None, None, None, **QUIET))


def trainings(states: Sequence[JobState]) -> list[JobState]:
    """Trainings that made a step, newest first."""
    return [state for state in states if state.verb == "train" and state.steps]


def chosen(view: View) -> list[JobState]:
    """The runs that are chosen, else the newest few."""
    there = trainings(view.jobs)
    found = [state for state in there if repr(state.id) in view.chosen.get("runs", "")]  # a list, as text
    return (found or there[:_BY_ITSELF])[:MOST]


def comparison(states: Sequence[JobState], logarithmic: bool, by_time: bool) -> Html:
    """Each measure with a line a run, then a table of the runs and of what was set differently."""
    if not states:
        return present.empty("Runs appear here when they have made a step.")
    x_name = _ALONG["Minutes" if by_time else "Steps"]
    charts = [chart(title, lines, x_name=x_name, y_log=logarithmic, y_percent=percent)
              for title, lines, percent in _charts(states, by_time) if any(line.points for line in lines)]
    return join((div("charts", *charts), _table(states), _differences(states)))


def _charts(states: Sequence[JobState], by_time: bool) -> Iterator[tuple[str, list[Series], bool]]:
    """Title, lines and whether it is a share, of each chart."""
    for title, measure, smoothed in _MEASURES[:2]:
        yield title, _step_lines(states, measure, smoothed, by_time), False
    languages = sorted({code for state in states for one in state.evaluations for code in one.languages})
    for key, title in _HELD_OUT:
        if not languages and key == "speech_loss":
            yield title, _dots(states, by_time, lambda one: one.speech_loss), False
        for code in languages:
            yield (f"{title}, {present.language_name(code)}",
                   _dots(states, by_time, lambda one, code=code, key=key: one.languages.get(code, {}).get(key)), False)
    for code in languages:
        yield (f"Likeliest code right, {present.language_name(code)}",
               _dots(states, by_time, lambda one, code=code: one.languages.get(code, {}).get("accuracy")), True)
    for code in sorted({code for state in states for one in state.evaluations for code in one.errors}):
        yield (f"Misheard, {present.language_name(code)}",
               _dots(states, by_time, lambda one, code=code: one.errors.get(code)), True)
    for group in dict.fromkeys(name for state in states for step in state.steps for name in training.rates_of(step)):
        yield f"Learning rate, {group}", _step_lines(states, _rate_of(group), False, by_time), False
    for title, measure, smoothed in _MEASURES[2:]:
        yield title, _step_lines(states, measure, smoothed, by_time), False


def _rate_of(group: str) -> Callable[[Step], float | None]:
    return lambda step: training.rates_of(step).get(group)


def _step_lines(states: Sequence[JobState], measure: Callable[[Step], float | None], smoothed: bool,
                by_time: bool) -> list[Series]:
    lines = []
    for state, colour in zip(states, _COLOURS, strict=False):
        points: list[Point] = [(_place(step, by_time), value) for step in state.steps
                               if (value := measure(step)) is not None]
        lines.append(Series(_name(state), smooth(points) if smoothed else points, colour))
    return lines


def _dots(states: Sequence[JobState], by_time: bool, measure: Callable[..., float | None]) -> list[Series]:
    """What was measured at each validation; a run that did not measure it has no points."""
    lines = []
    for state, colour in zip(states, _COLOURS, strict=False):
        times = {step.step: step for step in state.steps}
        points = [(_place(times[one.step], by_time) if one.step in times else float(one.step), value)
                  for one in state.evaluations if (value := measure(one)) is not None
                  and (one.step in times or not by_time)]
        lines.append(Series(_name(state), points, colour, "dots"))
    return lines


def _place(step: Step, by_time: bool) -> float:
    return step.seconds / 60 if by_time else float(step.step)


def _name(state: JobState) -> str:
    """Of a run in legends and tables: a person's name for it, else its time and the digits that the list has too."""
    short = present.short_id(state.id)
    return short if short == state.id else f"{present.clock(state.job.created)} ({short})"


def _table(states: Sequence[JobState]) -> Html:
    head = ("Run", "State", "Step", "Best held out", "Tokens a second", "Peak memory", "Trained for", "Time left")
    return present.table_of(head, [_row(state) for state in states])


def _row(state: JobState) -> tuple[object, ...]:
    last = state.steps[-1]
    best = min(state.evaluations, key=lambda one: one.speech_loss, default=None)
    held_out = f"{best.speech_loss:.3f} at step {best.step}" if best else "–"
    left = present.duration(state.eta_s) if state.alive and state.eta_s is not None else "–"
    return (_name(state), present.badge(state), f"{last.step} of {last.total_steps}", held_out,
            f"{last.tokens_per_s:,.0f}", memory_words(last), present.duration(last.seconds), left)


def memory_words(step: Step) -> str:
    """Such as `5.10 GB of the GPU`; a dash where it was not measured."""
    if step.memory_bytes is None:
        return "–"
    return f"{present.size(step.memory_bytes)} of the {_WHOSE.get(step.memory_of, step.memory_of)}"


def _differences(states: Sequence[JobState]) -> Html:
    """Options in which the runs differ."""
    if len(states) < 2:
        return NOTHING
    names = [name for name in dict.fromkeys(name for state in states for name in state.job.settings)
             if name not in _UNTOLD and len({str(state.job.settings.get(name)) for state in states}) > 1]
    if not names:
        return paragraph("They were started with the same options.", class_="small")
    rows = [(name.replace("_", " ").capitalize(), *(str(state.job.settings.get(name, "–")) for state in states))
            for name in names]
    return join((element("h3", "What was set differently"),
                 present.table_of(("Option", *(_name(state) for state in states)), rows)))
