"""A training run as numbers and curves. Pure functions of its state."""

from __future__ import annotations

from collections.abc import Callable

from core.jobs.events import Step
from core.jobs.state import JobState
from ui import present
from ui.curves import Point, Series, chart, smooth, thin
from ui.markup import NOTHING, Html, div, element, join, paragraph, span

_MEMORY = {"gpu": "Peak memory, GPU", "process": "Peak memory, process"}
_COLOURS = tuple(f"var(--series-{number})" for number in range(1, 7))
_FEW_POINTS = 120  # of a line in a small chart


def curves(state: JobState, logarithmic: bool = False) -> Html:
    """Losses and judged errors, then in small rates, gradients, speed and memory.

    `logarithmic`: the axes of losses, rates and gradients, whose ratios mean something.
    """
    most = float(state.steps[-1].total_steps) if state.steps else None
    charts = [chart("Speech loss", loss_series(state), x_most=most, y_log=logarithmic),
              chart("Text loss", loss_series(state, "text_loss"), x_most=most, y_log=logarithmic)]
    for title, name in (("Held-out speech loss by language", "speech_loss"),
                        ("Held-out text loss by language", "text_loss")):
        if len(series := by_language(state, name)) > 1:
            charts.append(chart(title, series, x_most=most, y_log=logarithmic))
    if any(one.errors for one in state.evaluations):
        charts.append(chart("Errors that the judge heard", error_series(state), x_most=most, y_percent=True, y_low=0.0))
    small = div("charts small-charts", *_small(state, logarithmic, most))
    return join((div("charts loss-charts", *charts), _unmeasured(state), small))


def loss_series(state: JobState, name: str = "speech_loss") -> list[Series]:
    """A loss of the batches as measured and smoothed, and of held-out clips of the language that is taught."""
    trained = _along(state, lambda step: getattr(step, name))
    held_out = [(float(one.step), value) for one in state.evaluations if (value := getattr(one, name)) is not None]
    whose = next((f", {present.language_name(code)}" for code in _languages(state)), "")
    return [Series("measured", trained, _COLOURS[0], "faint"), Series("trained on", smooth(trained), _COLOURS[0]),
            Series(f"held out{whose}", held_out, _COLOURS[2], "dots")]


def by_language(state: JobState, name: str) -> list[Series]:
    """A held-out loss of each language, as many as there are colours: the one that is taught, then by how it rose."""
    found = {code: [(float(one.step), one.languages[code][name]) for one in state.evaluations
                    if name in one.languages.get(code, {})] for code in _languages(state)}
    lines = [(code, points) for code, points in found.items() if points]
    lines[1:] = sorted(lines[1:], key=lambda line: line[1][0][1] - line[1][-1][1])
    return [Series(present.language_name(code), points, colour, "dots")
            for (code, points), colour in zip(lines, _COLOURS, strict=False)]


def _languages(state: JobState) -> list[str]:
    """Those that validation measures, the one that is taught first."""
    return list(dict.fromkeys(code for one in state.evaluations for code in one.languages))


def _unmeasured(state: JobState) -> Html:
    """What no curve shows, and why."""
    said = []
    if state.job.settings.get("scope") in ("rows", "gated"):
        said.append("The base languages have no curve: in this scope they are predicted as before, to the bit.")
    if (more := len(_languages(state)) - len(_COLOURS)) > 0:
        said.append(f"{more} more languages are measured; shown are those whose loss rose most.")
    return paragraph(" ".join(said), class_="small") if said else NOTHING


def _small(state: JobState, logarithmic: bool, most: float | None) -> list[Html]:
    """Rates by parameter group, and how the machine does."""
    rates = [Series(name, thin(points, _FEW_POINTS), colour)
             for (name, points), colour in zip(_rates(state).items(), _COLOURS, strict=False)]
    measured = [("Gradient norm", _means(_along(state, lambda step: step.gradient_norm)), logarithmic),
                ("Tokens a second", _means(_along(state, lambda step: step.tokens_per_s)), False)]
    drawn = [chart("Learning rate", rates, x_most=most, y_low=0.0, y_log=logarithmic)]
    drawn += [chart(title, [Series("measured", points, _COLOURS[3], "faint"),
                            Series("smoothed", smooth(points), _COLOURS[3])],
                    x_most=most, y_log=log) for title, points, log in measured]
    memory = [(step, bytes_ / 1e9) for step, bytes_ in _along(state, lambda step: step.memory_bytes)]
    if memory:
        title = f"{_MEMORY.get(state.steps[-1].memory_of, 'Peak memory')}, GB"
        drawn.append(chart(title, [Series("peak", thin(memory, _FEW_POINTS), _COLOURS[1])], x_most=most, y_low=0.0))
    return drawn


def _means(points: list[Point]) -> list[Point]:
    """What a small chart can show; without the last single value, which would stand out beside means."""
    few = thin(points, _FEW_POINTS)
    return few[:-1] if len(few) < len(points) else few


def _along(state: JobState, measure: Callable[[Step], float | None]) -> list[Point]:
    """What was measured of the steps; nothing where it was not."""
    return [(float(step.step), value) for step in state.steps if (value := measure(step)) is not None]


def _rates(state: JobState) -> dict[str, list[Point]]:
    """By parameter group."""
    found: dict[str, list[Point]] = {}
    for step in state.steps:
        for name, rate in rates_of(step).items():
            found.setdefault(name, []).append((float(step.step), rate))
    return found


def rates_of(step: Step) -> dict[str, float]:
    """The learning rates of a step by parameter group; before there were groups they told the rows' alone."""
    return step.rates or {"rows": step.learning_rate}


def error_series(state: JobState) -> list[Series]:
    """The judge's error at each checkpoint, by language."""
    codes = sorted({code for one in state.evaluations for code in one.errors})
    return [
        Series(present.language_name(code), [(float(one.step), one.errors[code]) for one in state.evaluations
                                             if code in one.errors], _COLOURS[index % len(_COLOURS)], "dots")
        for index, code in enumerate(codes)
    ]


def numbers(state: JobState) -> Html:
    """Where the run stands, in tiles."""
    if not state.steps:
        return NOTHING
    last = state.steps[-1]
    tiles: list[tuple[str, object]] = [
        ("Step", f"{last.step} of {last.total_steps}"), ("Speech loss", f"{last.speech_loss:.3f}"),
        ("Text loss", f"{last.text_loss:.3f}"), ("Speed", f"{last.tokens_per_s:,.0f} tokens/s"),
        ("Trained for", present.duration(last.seconds)),
    ]
    if last.memory_bytes is not None:
        tiles.append((_MEMORY.get(last.memory_of, "Peak memory"), present.size(last.memory_bytes)))
    if state.alive and state.eta_s is not None:
        tiles.append(("Time left", present.duration(state.eta_s)))
    best = next((saved for saved in reversed(state.checkpoints) if saved.best), None)
    if best is not None:
        tiles.append(("Best checkpoint", f"step {best.step}"))
    return present.facts(tiles)


def player(address: str, label: str = "") -> Html:
    """A plain player; its sound is fetched when it is played."""
    return element("audio", controls=True, preload="none", src=address, aria_label=label or None)


def error_word(error: float | None) -> Html:
    """How much of a clip the judge got wrong, coloured by how bad it is."""
    if error is None:
        return NOTHING
    tone = "good" if error <= 0.2 else "wait" if error <= 0.5 else "bad"
    return span(f"badge {tone}", f"{error:.0%} misheard")


def run_title(state: JobState) -> str:
    """A run as it stands in a list of choices."""
    return f"{present.run_name(state)}, {present.STATUS_WORDS[state.status]}"


def plan_view(state: JobState) -> Html:
    """What will change, as the worker counted it."""
    return present.plan(state.plan.lines) if state.plan else NOTHING
