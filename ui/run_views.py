"""A training run as numbers, curves and a grid of samples. Pure functions of its state.

The grid has a row per sentence and a column per step, in the order of the steps: new columns come last, so that no cell
moves during playback. A cell is a button of one player, which `sample_grid.js` keeps across refreshes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

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
_FEW_POINTS = 120  # points of a line in a small chart
MAX_STEPS, _MAX_ROWS = 16, 30  # shown until all are requested
_MAX_CELLS = 6000  # cells of a whole grid
_NEWEST_STEPS = 6  # always shown, with the first and the best


def run_curves(state: JobState, logarithmic: bool = False) -> Html:
    """Losses and error rates, then small charts of learning rates, gradients, speed and memory.

    `logarithmic`: the axes of losses, learning rates and gradients.
    """
    x_end = float(state.steps[-1].total_steps) if state.steps else None

    charts = [chart("Speech loss", loss_series(state), x_most=x_end, y_log=logarithmic),
              chart("Text loss", loss_series(state, "text_loss"), x_most=x_end, y_log=logarithmic)]

    # Losses by language are drawn only if there are several languages.
    for title, name in (("Held-out speech loss by language", "speech_loss"),
                        ("Held-out text loss by language", "text_loss")):
        series = by_language(state, name)
        if len(series) > 1:
            charts.append(chart(title, series, x_most=x_end, y_log=logarithmic))

    if any(entry.errors for entry in state.evaluations):
        charts.append(chart("Character error rate (CER)", error_series(state), x_most=x_end, y_percent=True, y_low=0.0))
    for name in dict.fromkeys(chain.from_iterable(entry.metrics for entry in state.evaluations)):
        points = [(float(entry.step), entry.metrics[name]) for entry in state.evaluations if name in entry.metrics]
        charts.append(chart(METRICS[name].title if name in METRICS else name,
                            [Series("samples", points, _COLOURS[0], "dots")], x_most=x_end,
                            y_percent=name in METRICS and METRICS[name].percent))

    notes = []
    if state.job.settings.get("scope") in ("rows", "gated"):
        notes.append("Base languages have no curve: in this scope their loss cannot change.")
    unseen_count = len(_languages(state)) - len(_COLOURS)
    if unseen_count > 0:
        notes.append(f"{unseen_count} more languages are measured; those with the largest rise are shown.")

    return join((div("charts loss-charts", *charts), paragraph(" ".join(notes), class_="small") if notes else NOTHING,
                 div("charts small-charts", *_small_charts(state, logarithmic, x_end)),
                 paragraph(element("a", "Download the curves (CSV)", href=media.curves_url(state.id), download=True),
                           class_="small")))


def loss_series(state: JobState, name: str = "speech_loss") -> list[Series]:
    """A training loss, raw and smoothed, and the loss of held-out clips of the new language."""
    trained = _along(state, lambda step: getattr(step, name))
    evaluated = [(float(entry.step), getattr(entry, name)) for entry in state.evaluations]
    held_out = [(step, value) for step, value in evaluated if value is not None]
    language = next((f", {job_views.language_name(code)}" for code in _languages(state)), "")
    return [Series("measured", trained, _COLOURS[0], "faint"), Series("training", smooth(trained), _COLOURS[0]),
            Series(f"held-out{language}", held_out, _COLOURS[2], "dots")]


def by_language(state: JobState, name: str) -> list[Series]:
    """A held-out loss per language, as many as there are colours: the new one, then by the size of the rise."""
    lines: list[tuple[str, list[Point]]] = []
    for code in _languages(state):
        points = [(float(entry.step), entry.languages[code][name]) for entry in state.evaluations
                  if name in entry.languages.get(code, {})]
        if points:
            lines.append((code, points))

    # Languages whose loss rose most come first.
    lines[1:] = sorted(lines[1:], key=lambda line: line[1][0][1] - line[1][-1][1])
    return [Series(job_views.language_name(code), points, colour, "dots")
            for (code, points), colour in zip(lines, _COLOURS, strict=False)]


def _languages(state: JobState) -> list[str]:
    """The languages of validation, the new one first."""
    return list(dict.fromkeys(chain.from_iterable(entry.languages for entry in state.evaluations)))


def _small_charts(state: JobState, logarithmic: bool, x_end: float | None) -> list[Html]:
    learning_rates = [Series(name, thin(points, _FEW_POINTS), colour)
                      for (name, points), colour in zip(learning_rates_by_group(state).items(), _COLOURS, strict=False)]

    drawn = [chart("Learning rate", learning_rates, x_most=x_end, y_low=0.0, y_log=logarithmic)]
    for title, every, log in (("Gradient norm", _along(state, lambda step: step.gradient_norm), logarithmic),
                              ("Tokens per second", _along(state, lambda step: step.tokens_per_s), False)):
        points = thin(every, _FEW_POINTS)
        if len(points) < len(every):  # the last is a single value, which would stand out beside the means
            points = points[:-1]
        drawn.append(chart(title, [Series("measured", points, _COLOURS[3], "faint"),
                                   Series("smoothed", smooth(points), _COLOURS[3])], x_most=x_end, y_log=log))

    # On some devices memory is not measured.
    memory = [(step, bytes_ / 2**30) for step, bytes_ in _along(state, lambda step: step.memory_bytes)]
    if memory:
        title = f"{_MEMORY.get(state.steps[-1].memory_of, 'Peak memory')}, GiB"
        drawn.append(chart(title, [Series("peak", thin(memory, _FEW_POINTS), _COLOURS[1])], x_most=x_end, y_low=0.0))
    return drawn


def _along(state: JobState, measure: Callable[[Step], float | None]) -> list[Point]:
    """Step and measured value; steps without one are skipped."""
    measured = [(float(step.step), measure(step)) for step in state.steps]
    return [(step, value) for step, value in measured if value is not None]


def learning_rates_by_group(state: JobState) -> dict[str, list[Point]]:
    """Step and learning rate of each parameter group."""
    by_group: dict[str, list[Point]] = {}
    for step in state.steps:
        for name, learning_rate in step.learning_rates.items():
            by_group.setdefault(name, []).append((float(step.step), learning_rate))
    return by_group


def error_series(state: JobState) -> list[Series]:
    """The character error rate at each checkpoint, by language."""
    codes = sorted(set(chain.from_iterable(entry.errors for entry in state.evaluations)))
    series = []
    for index, code in enumerate(codes):
        points = [(float(entry.step), entry.errors[code]) for entry in state.evaluations if code in entry.errors]
        series.append(Series(job_views.language_name(code), points, _COLOURS[index % len(_COLOURS)], "dots"))
    return series


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
    first: int  # the first step with a sample of the new language; in scope `full` the base speaks before it
    best: int | None
    all_rows: int
    all_steps: int

    @property
    def whole(self) -> bool:
        return len(self.rows) == self.all_rows and len(self.steps) == self.all_steps


def sample_rows(samples: Sequence[SampleGenerated]) -> list[SampleRow]:
    """One row per sentence and voice, the new language first; a sample that a resumed run repeated counts once."""
    unique = {(sample.step, sample.path): sample for sample in samples}
    by_sentence: dict[tuple[str, str, int], dict[int, SampleGenerated]] = {}
    # Voices are told apart by their order within a step.
    seen = Counter[tuple[int, str, str]]()
    for sample in unique.values():
        key = sample.step, sample.language, sample.text
        by_sentence.setdefault((sample.language, sample.text, seen[key]), {})[sample.step] = sample
        seen[key] += 1
    last = max((sample.step for sample in samples), default=0)
    order = list(dict.fromkeys(sample.language for sample in (
        *(sample for sample in samples if sample.step == last), *samples)))
    rows = [SampleRow(language, text, by_step) for (language, text, _), by_step in by_sentence.items()]
    return sorted(rows, key=lambda row: order.index(row.language))


def sample_columns(steps: Sequence[int], marked: Collection[int | None], limit: int) -> list[int]:
    """Of rising `steps` the first, the newest, those `marked`, and every second, fourth, ... of the others.

    A stride that doubles keeps the columns the same while a few more steps come.
    """
    always = {*steps[:1], *steps[-_NEWEST_STEPS:], *(step for step in steps if step in marked)}
    stride = 1
    while len(always | set(steps[::stride])) > max(limit, len(always)):
        stride *= 2
    return sorted(always | set(steps[::stride]))


def select_samples(state: JobState, everything: bool = False) -> SampleSelection:
    """The samples of a run to show; with `everything`, as many as a page can hold."""

    rows = sample_rows(state.samples)
    steps = sorted(set(chain.from_iterable(row.samples for row in rows)))
    # The newest mark counts, as a later step may have been better.
    best = next((saved.step for saved in reversed(state.checkpoints) if saved.best), None)
    first_step = min(rows[0].samples) if rows else 0
    listed, limit = rows, max(MAX_STEPS, _MAX_CELLS // max(1, len(rows)))

    if not everything:  # the first rows of each language, in equal shares where there are too many
        limit, counts, ranks = MAX_STEPS, Counter[str](), {}
        for row in rows:
            ranks[id(row)] = counts[row.language]
            counts[row.language] += 1
        chosen = {id(row) for row in sorted(rows, key=lambda row: ranks[id(row)])[:_MAX_ROWS]}
        listed = [row for row in rows if id(row) in chosen]
    return SampleSelection(listed, sample_columns(steps, (first_step, best), limit),
                           first_step, best, len(rows), len(steps))


def sample_grid(state: JobState, everything: bool = False) -> Html:
    """The grid: a header, a row of error rates per language, and a row per sentence."""
    if not state.samples:
        return job_views.empty("Samples appear here at each checkpoint.")
    chosen = select_samples(state, everything)
    outcomes = _outcomes(state)

    # The head of each column names the step and what is special about it.
    heads = []
    for step in chosen.steps:
        badges = [span("badge", "before")] * (step == 0) + [span("badge", "first")] * (step == chosen.first)
        badges += [span("badge busy", "best")] * (step == chosen.best)
        outcome = outcomes.get(step)
        if outcome is not None and outcome.bad:
            badges.append(span("badge bad", outcome.label))
        heads.append(div(_cell_class(step, chosen), element("span", f"step {step:,}"), *badges, role="columnheader"))

    rows = [div("takes-row takes-head", div("takes-name", "Sentence", role="columnheader"), *heads, role="row")]
    for language in dict.fromkeys(row.language for row in chosen.rows):
        errors = {entry.step: entry.errors[language] for entry in state.evaluations if language in entry.errors}
        if errors:
            scores = {step: _score(error, step, min(errors.items()))[0] for step, error in errors.items()}
            cells = [div(_cell_class(step, chosen), scores.get(step, "–"), role="cell") for step in chosen.steps]
            title = div("takes-name", f"All scored sentences, {job_views.language_name(language)}", role="rowheader")
            rows.append(div("takes-row takes-total", title, *cells, role="row"))

    rows += [_row(state.id, row, chosen) for row in chosen.rows]
    grid = div("takes", *rows, role="table", aria_label="Samples by step", style=f"--steps:{len(chosen.steps)}")
    # The newest step decides whether the run needs an alarm.
    last = outcomes.get(chosen.steps[-1]) if chosen.steps else None
    alarm = NOTHING if last is None or not last.bad else div(
        "notice bad", element("strong", f"Step {chosen.steps[-1]:,}: {last.label}."),
        paragraph("The buttons below play what there is: it is not the language."), role="alert")

    return join((element("h2", "Samples by step"), alarm, _legend(state, chosen),
                 div("takes-box", grid, data_run=state.id, tabindex=0, role="region",
                     aria_label="Samples by step, scrollable")))


def _outcomes(state: JobState) -> Mapping[int, Learning]:
    """What was learned up to each step that was checked."""
    try:
        return {report.step: report.learning for report in read_learning(state.job.directory).reports.values()}
    except UserError:
        return {}


def _legend(state: JobState, chosen: SampleSelection) -> Html:
    """How to play and read the grid, and what it leaves out."""
    scored = {row.language for row in chosen.rows if row.first is not None}
    languages = list(dict.fromkeys(row.language for row in chosen.rows))
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
    omissions = [f"{len(part)} of {count} {name}" for part, count, name in (
        (chosen.rows, chosen.all_rows, "sentences"), (chosen.steps, chosen.all_steps, "steps")) if len(part) < count]
    if omissions:
        texts.append(f"Showing {' and '.join(omissions)}.")
    return paragraph(" ".join(texts), class_="small takes-note")


def _cell_class(step: int, chosen: SampleSelection) -> str:
    """The first and the best step stay visible while the grid scrolls."""
    return "take" + (" is-first" if step == chosen.first else " is-best" if step == chosen.best else "")


def _row(run: str, row: SampleRow, chosen: SampleSelection) -> Html:
    play_all = element("button", "Play all", type="button", class_="turn", aria_pressed="false",
                       title="Play all steps of this sentence") if len(row.samples) > 1 else NOTHING
    name = div("takes-name", div("ends", span("small", job_views.language_name(row.language)), play_all),
               element("span", shortened(row.text), lang=row.language), role="rowheader")

    cells = []
    for step in chosen.steps:
        cell = span("take-none", "–", title="No sample at this step")
        sample = row.samples.get(step)
        if sample:
            score, label = _score(sample.error, step, row.first)
            # Tab stops at the last step; the arrow keys go on from there.
            # Its name is the hidden words and what is seen; the arrow of a change is read by its title.
            cell = element("button", span("take-mark", aria_hidden="true"), span("unseen", f"Play step {step:,}, "),
                           score, type="button", class_="hear", aria_pressed="false",
                           data_sound=media.url("runs", run, sample.path),
                           tabindex=None if step == chosen.steps[-1] else -1, title=label)
        cells.append(div(_cell_class(step, chosen), cell, role="cell"))
    return div("takes-row", name, *cells, role="row")


def _score(error: float | None, step: int, first_score: tuple[int, float] | None) -> tuple[Html, str]:
    """A character error rate and its change since `first` (step, error), as HTML and as a label."""
    if error is None:
        return span("take-error unjudged", "no score"), f"step {step:,}, no score"
    share, label = f"{error:.0%}", f"step {step:,}, CER {error:.0%}"
    if first_score is None or first_score[0] == step:
        return span("take-error", share), label
    # Points are rounded first, so that they agree with the percentages shown.
    change = round(100 * error) - round(100 * first_score[1])
    if not change:
        return span("take-error", share, element("small", "=")), f"{label}, same as step {first_score[0]:,}"
    sign, look = ("↑", "worse") if change > 0 else ("↓", "better")
    points = "1 point" if abs(change) == 1 else f"{abs(change)} points"
    return (span("take-error", share, element("small", f"{sign}{abs(change)}", class_=look)),
            f"{label}, {points} {look} than step {first_score[0]:,}")
