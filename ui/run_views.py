"""A training run as numbers, curves and a grid of samples. Pure functions of its state.

The grid has a row per sentence and a column per step, in the order of the steps: new columns come last, so that no cell
moves during playback. A cell is a button of one player, which `sample_grid.js` keeps across refreshes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from config.errors import UserError
from core.jobs.events import SampleGenerated, Step
from core.jobs.reporter import duration_text, memory_text
from core.jobs.state import JobState
from core.library.evaluation_report import METRICS
from core.library.learning import Learning, read_learning
from ui import job_views, media
from ui.charts import Point, Series, chart, smooth, thin
from ui.markup import NOTHING, Html, div, element, join, paragraph, shortened, span

_MEMORY = {"gpu": "Peak memory, GPU", "process": "Peak memory, process"}
_COLOURS = tuple(f"var(--series-{number})" for number in range(1, 7))
_FEW_POINTS = 120  # of a line in a small chart
MAX_STEPS, _MAX_ROWS = 16, 30  # shown until all are requested
_MAX_CELLS = 6000  # of a whole grid
_NEWEST_STEPS = 6  # always shown, with the first and the best


def run_curves(state: JobState, logarithmic: bool = False) -> Html:
    """Losses and error rates, then small charts of learning rates, gradients, speed and memory.

    `logarithmic`: the axes of losses, learning rates and gradients.
    """
    most = float(state.steps[-1].total_steps) if state.steps else None
    charts = [chart("Speech loss", loss_series(state), x_most=most, y_log=logarithmic),
              chart("Text loss", loss_series(state, "text_loss"), x_most=most, y_log=logarithmic)]
    for title, name in (("Held-out speech loss by language", "speech_loss"),
                        ("Held-out text loss by language", "text_loss")):
        if len(series := by_language(state, name)) > 1:
            charts.append(chart(title, series, x_most=most, y_log=logarithmic))
    if any(one.errors for one in state.evaluations):
        charts.append(chart("Character error rate (CER)", error_series(state), x_most=most, y_percent=True, y_low=0.0))
    for name in dict.fromkeys(name for one in state.evaluations for name in one.metrics):
        points = [(float(one.step), one.metrics[name]) for one in state.evaluations if name in one.metrics]
        charts.append(chart(METRICS[name].title if name in METRICS else name,
                            [Series("samples", points, _COLOURS[0], "dots")], x_most=most,
                            y_percent=name in METRICS and METRICS[name].percent))
    notes = []
    if state.job.settings.get("scope") in ("rows", "gated"):
        notes.append("Base languages have no curve: in this scope their loss cannot change.")
    if (more := len(_languages(state)) - len(_COLOURS)) > 0:
        notes.append(f"{more} more languages are measured; those with the largest rise are shown.")
    return join((div("charts loss-charts", *charts), paragraph(" ".join(notes), class_="small") if notes else NOTHING,
                 div("charts small-charts", *_small_charts(state, logarithmic, most)),
                 paragraph(element("a", "Download the curves (CSV)", href=media.curves_url(state.id), download=True),
                           class_="small")))


def loss_series(state: JobState, name: str = "speech_loss") -> list[Series]:
    """A training loss, raw and smoothed, and the loss of held-out clips of the new language."""
    trained = _along(state, lambda step: getattr(step, name))
    held_out = [(float(one.step), value) for one in state.evaluations if (value := getattr(one, name)) is not None]
    language = next((f", {job_views.language_name(code)}" for code in _languages(state)), "")
    return [Series("measured", trained, _COLOURS[0], "faint"), Series("training", smooth(trained), _COLOURS[0]),
            Series(f"held-out{language}", held_out, _COLOURS[2], "dots")]


def by_language(state: JobState, name: str) -> list[Series]:
    """A held-out loss per language, as many as there are colours: the new one, then by the size of the rise."""
    points_of = {code: [(float(one.step), one.languages[code][name]) for one in state.evaluations
                        if name in one.languages.get(code, {})] for code in _languages(state)}
    lines = [(code, points) for code, points in points_of.items() if points]
    lines[1:] = sorted(lines[1:], key=lambda line: line[1][0][1] - line[1][-1][1])
    return [Series(job_views.language_name(code), points, colour, "dots")
            for (code, points), colour in zip(lines, _COLOURS, strict=False)]


def _languages(state: JobState) -> list[str]:
    """The languages of validation, the new one first."""
    return list(dict.fromkeys(code for one in state.evaluations for code in one.languages))


def _small_charts(state: JobState, logarithmic: bool, most: float | None) -> list[Html]:
    learning_rates = [Series(name, thin(points, _FEW_POINTS), colour)
                      for (name, points), colour in zip(learning_rates_by_group(state).items(), _COLOURS, strict=False)]
    drawn = [chart("Learning rate", learning_rates, x_most=most, y_low=0.0, y_log=logarithmic)]
    for title, every, log in (("Gradient norm", _along(state, lambda step: step.gradient_norm), logarithmic),
                              ("Tokens per second", _along(state, lambda step: step.tokens_per_s), False)):
        points = thin(every, _FEW_POINTS)
        if len(points) < len(every):  # the last is a single value, which would stand out beside the means
            points = points[:-1]
        drawn.append(chart(title, [Series("measured", points, _COLOURS[3], "faint"),
                                   Series("smoothed", smooth(points), _COLOURS[3])], x_most=most, y_log=log))
    memory = [(step, bytes_ / 2**30) for step, bytes_ in _along(state, lambda step: step.memory_bytes)]
    if memory:
        title = f"{_MEMORY.get(state.steps[-1].memory_of, 'Peak memory')}, GiB"
        drawn.append(chart(title, [Series("peak", thin(memory, _FEW_POINTS), _COLOURS[1])], x_most=most, y_low=0.0))
    return drawn


def _along(state: JobState, measure: Callable[[Step], float | None]) -> list[Point]:
    """Step and measured value; steps without one are skipped."""
    return [(float(step.step), value) for step in state.steps if (value := measure(step)) is not None]


def learning_rates_by_group(state: JobState) -> dict[str, list[Point]]:
    """Step and learning rate of each parameter group."""
    by_group: dict[str, list[Point]] = {}
    for step in state.steps:
        for name, learning_rate in step.learning_rates.items():
            by_group.setdefault(name, []).append((float(step.step), learning_rate))
    return by_group


def error_series(state: JobState) -> list[Series]:
    """The character error rate at each checkpoint, by language."""
    codes = sorted({code for one in state.evaluations for code in one.errors})
    return [
        Series(job_views.language_name(code), [(float(one.step), one.errors[code]) for one in state.evaluations
                                               if code in one.errors], _COLOURS[index % len(_COLOURS)], "dots")
        for index, code in enumerate(codes)
    ]


def run_numbers(state: JobState) -> Html:
    """Step, losses, speed and times, as tiles."""
    if not state.steps:
        return NOTHING
    last = state.steps[-1]
    tiles: list[tuple[str, object]] = [
        ("Step", f"{last.step} of {last.total_steps}"), ("Speech loss", f"{last.speech_loss:.3f}"),
        ("Text loss", f"{last.text_loss:.3f}"), ("Speed", f"{last.tokens_per_s:,.0f} tokens/s"),
        ("Training time", duration_text(last.seconds)),
    ]
    if last.memory_bytes is not None:
        tiles.append((_MEMORY.get(last.memory_of, "Peak memory"), memory_text(last.memory_bytes)))
    if state.alive and state.eta_s is not None:
        tiles.append(("Time left", duration_text(state.eta_s)))
    best = next((saved for saved in reversed(state.checkpoints) if saved.best), None)
    if best is not None:
        tiles.append(("Best checkpoint", f"step {best.step}"))
    return job_views.facts(tiles)


@dataclass(frozen=True)
class SampleRow:
    """A sentence and its samples by step."""

    language: str
    text: str
    samples: Mapping[int, SampleGenerated]

    @property
    def first(self) -> tuple[int, float] | None:
        """Step and error of the first sample with a score, which the others are compared with."""
        return next(((step, sample.error) for step, sample in sorted(self.samples.items())
                     if sample.error is not None), None)


@dataclass(frozen=True)
class SampleSelection:
    """The samples that a grid shows."""

    rows: Sequence[SampleRow]
    steps: Sequence[int]
    first: int  # with a sample of the new language; in scope `full` the base speaks before it
    best: int | None
    all_rows: int
    all_steps: int

    @property
    def whole(self) -> bool:
        return len(self.rows) == self.all_rows and len(self.steps) == self.all_steps


def sample_rows(samples: Sequence[SampleGenerated]) -> list[SampleRow]:
    """One row per sentence and voice, the new language first; a sample that a resumed run repeated counts once."""
    unique = {(sample.step, sample.path): sample for sample in samples}
    found: dict[tuple[str, str, int], dict[int, SampleGenerated]] = {}
    seen = Counter[tuple[int, str, str]]()
    for sample in unique.values():
        key = sample.step, sample.language, sample.text
        found.setdefault((sample.language, sample.text, seen[key]), {})[sample.step] = sample
        seen[key] += 1
    last = max((sample.step for sample in samples), default=0)
    order = list(dict.fromkeys(sample.language for sample in (
        *(sample for sample in samples if sample.step == last), *samples)))
    rows = [SampleRow(language, text, by_step) for (language, text, _), by_step in found.items()]
    return sorted(rows, key=lambda row: order.index(row.language))


def sample_columns(steps: Sequence[int], marked: Collection[int | None], most: int) -> list[int]:
    """Of rising `steps` the first, the newest, those `marked`, and every second, fourth, ... of the others.

    A stride that doubles keeps the columns the same while a few more steps come.
    """
    always = {*steps[:1], *steps[-_NEWEST_STEPS:], *(step for step in steps if step in marked)}
    stride = 1
    while len(always | set(steps[::stride])) > max(most, len(always)):
        stride *= 2
    return sorted(always | set(steps[::stride]))


def select_samples(state: JobState, everything: bool = False) -> SampleSelection:
    """The samples of a run to show; with `everything`, as many as a page can hold."""
    rows = sample_rows(state.samples)
    steps = sorted({step for row in rows for step in row.samples})
    best = next((saved.step for saved in reversed(state.checkpoints) if saved.best), None)
    first = min(rows[0].samples) if rows else 0
    shown, most = rows, max(MAX_STEPS, _MAX_CELLS // max(1, len(rows)))
    if not everything:  # the first rows of each language, in equal shares where there are too many
        most, counts, ranks = MAX_STEPS, Counter[str](), {}
        for row in rows:
            ranks[id(row)] = counts[row.language]
            counts[row.language] += 1
        chosen = {id(row) for row in sorted(rows, key=lambda row: ranks[id(row)])[:_MAX_ROWS]}
        shown = [row for row in rows if id(row) in chosen]
    return SampleSelection(shown, sample_columns(steps, (first, best), most), first, best, len(rows), len(steps))


def sample_grid(state: JobState, everything: bool = False) -> Html:
    """The grid: a header, a row of error rates per language, and a row per sentence."""
    if not state.samples:
        return job_views.empty("Samples appear here at each checkpoint.")
    shown = select_samples(state, everything)
    outcomes = _outcomes(state)
    heads = []
    for step in shown.steps:
        badges = [span("badge", "before")] * (step == 0) + [span("badge", "first")] * (step == shown.first)
        badges += [span("badge busy", "best")] * (step == shown.best)
        if (outcome := outcomes.get(step)) is not None and outcome.bad:
            badges.append(span("badge bad", outcome.label))
        heads.append(div(_cell_class(step, shown), element("span", f"step {step:,}"), *badges, role="columnheader"))
    rows = [div("takes-row takes-head", div("takes-name", "Sentence", role="columnheader"), *heads, role="row")]
    for language in dict.fromkeys(row.language for row in shown.rows):
        errors = {one.step: one.errors[language] for one in state.evaluations if language in one.errors}
        if errors:
            scores = {step: _score(error, step, min(errors.items()))[0] for step, error in errors.items()}
            cells = [div(_cell_class(step, shown), scores.get(step, "–"), role="cell") for step in shown.steps]
            title = div("takes-name", f"All scored sentences, {job_views.language_name(language)}", role="rowheader")
            rows.append(div("takes-row takes-total", title, *cells, role="row"))
    rows += [_row(state.id, row, shown) for row in shown.rows]
    grid = div("takes", *rows, role="table", aria_label="Samples by step", style=f"--steps:{len(shown.steps)}")
    last = outcomes.get(shown.steps[-1]) if shown.steps else None
    alarm = NOTHING if last is None or not last.bad else div(
        "notice bad", element("strong", f"Step {shown.steps[-1]:,}: {last.label}."),
        paragraph("The buttons below play what there is: it is not the language."), role="alert")
    return join((element("h2", "Samples by step"), alarm, _legend(state, shown),
                 div("takes-box", grid, data_run=state.id, tabindex=0, role="region",
                     aria_label="Samples by step, scrollable")))


def _outcomes(state: JobState) -> Mapping[int, Learning]:
    """What was learned up to each step that was checked."""
    try:
        return {report.step: report.learning for report in read_learning(state.job.directory).reports.values()}
    except UserError:
        return {}


def _legend(state: JobState, shown: SampleSelection) -> Html:
    """How to play and read the grid, and what it leaves out."""
    scored = {row.language for row in shown.rows if row.first is not None}
    languages = list(dict.fromkeys(row.language for row in shown.rows))
    unscored = [job_views.language_name(language) for language in languages if language not in scored]
    texts = ["Click a cell to play it; the arrow keys move between steps and sentences."]
    if scored:
        texts.append("Each cell shows the character error rate (CER) and its change in points since the sentence's "
                     "first step: ↓ better, ↑ worse.")
    if unscored:
        texts.append(f"No recogniser (ASR) for {' or '.join(unscored)}: compare by listening.")
    if state.job.settings.get("scope") in ("rows", "gated"):
        texts.append("Base languages have no samples: in this scope their output is bit-identical.")
    elif len(languages) > 1:
        texts.append("The last rows are base languages: check them for drift.")
    some = [f"{len(part)} of {count} {name}" for part, count, name in (
        (shown.rows, shown.all_rows, "sentences"), (shown.steps, shown.all_steps, "steps")) if len(part) < count]
    if some:
        texts.append(f"Showing {' and '.join(some)}.")
    return paragraph(" ".join(texts), class_="small takes-note")


def _cell_class(step: int, shown: SampleSelection) -> str:
    """The first and the best step stay visible while the grid scrolls."""
    return "take" + (" is-first" if step == shown.first else " is-best" if step == shown.best else "")


def _row(run: str, row: SampleRow, shown: SampleSelection) -> Html:
    play_all = element("button", "Play all", type="button", class_="turn", aria_pressed="false",
                       title="Play all steps of this sentence") if len(row.samples) > 1 else NOTHING
    name = div("takes-name", div("ends", span("small", job_views.language_name(row.language)), play_all),
               element("span", shortened(row.text), lang=row.language), role="rowheader")
    cells = []
    for step in shown.steps:
        cell = span("take-none", "–", title="No sample at this step")
        if sample := row.samples.get(step):
            score, label = _score(sample.error, step, row.first)
            # Tab stops at the last step; the arrow keys go on from there
            # its name is the hidden words and what is seen; the arrow of a change is read by its title
            cell = element("button", span("take-mark", aria_hidden="true"), span("unseen", f"Play step {step:,}, "),
                           score, type="button", class_="hear", aria_pressed="false",
                           data_sound=media.url("runs", run, sample.path),
                           tabindex=None if step == shown.steps[-1] else -1, title=label)
        cells.append(div(_cell_class(step, shown), cell, role="cell"))
    return div("takes-row", name, *cells, role="row")


def _score(error: float | None, step: int, first: tuple[int, float] | None) -> tuple[Html, str]:
    """A character error rate and its change since `first` (step, error), as HTML and as a label."""
    if error is None:
        return span("take-error unjudged", "no score"), f"step {step:,}, no score"
    share, label = f"{error:.0%}", f"step {step:,}, CER {error:.0%}"
    if first is None or first[0] == step:
        return span("take-error", share), label
    more = round(100 * error) - round(100 * first[1])
    if not more:
        return span("take-error", share, element("small", "=")), f"{label}, same as step {first[0]:,}"
    sign, look = ("↑", "worse") if more > 0 else ("↓", "better")
    points = "1 point" if abs(more) == 1 else f"{abs(more)} points"
    return (span("take-error", share, element("small", f"{sign}{abs(more)}", class_=look)),
            f"{label}, {points} {look} than step {first[0]:,}")
