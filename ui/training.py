"""A training run as numbers and curves. Pure functions of its state."""

from __future__ import annotations

from core.job.state import JobState
from ui import present
from ui.curves import Series, chart, smooth
from ui.markup import NOTHING, Html, div, element, span

_MEMORY = {"gpu": "Peak memory, GPU", "process": "Peak memory, process"}
_COLOURS = ("var(--series-1)", "var(--series-2)", "var(--series-3)", "var(--series-4)")


def loss_series(state: JobState) -> list[Series]:
    """Speech loss as measured and smoothed, then text loss, then the held-out speech loss."""
    speech = [(float(step.step), step.speech_loss) for step in state.steps]
    text = [(float(step.step), step.text_loss) for step in state.steps]
    held_out = [(float(one.step), one.speech_loss) for one in state.evaluations]
    return [
        Series("measured", speech, _COLOURS[0], "faint"), Series("speech", smooth(speech), _COLOURS[0]),
        Series("text", smooth(text), _COLOURS[1]), Series("speech, held out", held_out, _COLOURS[2], "dots"),
    ]


def error_series(state: JobState) -> list[Series]:
    """The judge's error at each checkpoint, by language."""
    codes = sorted({code for one in state.evaluations for code in one.errors})
    return [
        Series(present.language_name(code), [(float(one.step), one.errors[code]) for one in state.evaluations
                                             if code in one.errors], _COLOURS[index % len(_COLOURS)], "dots")
        for index, code in enumerate(codes)
    ]


def curves(state: JobState) -> Html:
    """Losses, judged errors and the learning rate."""
    most = float(state.steps[-1].total_steps) if state.steps else None
    series = loss_series(state)
    return div(
        "charts",
        chart("Speech loss", [series[0], series[1], series[3]], x_most=most),
        chart("Text loss", [series[2]], x_most=most),
        chart("Errors that the judge heard", error_series(state), x_most=most, y_percent=True, y_low=0.0),
        chart("Learning rate", [Series("rate", [(float(step.step), step.learning_rate) for step in state.steps],
                                       _COLOURS[3])], x_most=most, y_low=0.0),
    )


def numbers(state: JobState) -> Html:
    """Where the run stands, in tiles."""
    if not state.steps:
        return NOTHING
    last = state.steps[-1]
    tiles: list[tuple[str, object]] = [
        ("Step", f"{last.step} of {last.total_steps}"), ("Speech loss", f"{last.speech_loss:.3f}"),
        ("Text loss", f"{last.text_loss:.3f}"), ("Rate", f"{last.tokens_per_s:,.0f} tokens/s"),
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
    return f"{state.id} ({present.STATUS_WORDS[state.status]})"


def plan_view(state: JobState) -> Html:
    """What will change, as the worker counted it."""
    return present.plan(state.plan.lines) if state.plan else NOTHING
