"""What a run spoke at its checkpoints: a row a sentence, a column a step, so that the same words are compared.

Columns stand in the order of the steps and new ones come last, so that no cell moves while it is listened to. A cell is
a button of one player, which `sample_grid.js` keeps outside of what is sent anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from core.jobs.events import SampleGenerated
from core.jobs.state import JobState
from ui import media, present
from ui.markup import NOTHING, Html, div, element, join, paragraph, shortened, span

MOST_STEPS, MOST_LINES = 16, 30  # shown until all are asked for
_MOST_CELLS = 6000  # shown ever
_NEWEST = 6  # steps that are always shown, with the first and the best
_NOT_SPOKEN = "not spoken at this step"


@dataclass(frozen=True)
class Line:
    """A sentence, as it was spoken at the steps."""

    language: str
    text: str
    takes: Mapping[int, SampleGenerated]

    @property
    def first(self) -> SampleGenerated | None:
        """The first take that was judged, against which the others are held."""
        return next((take for _, take in sorted(self.takes.items()) if take.error is not None), None)


@dataclass(frozen=True)
class Shown:
    """The part of all that was spoken which a grid shows."""

    lines: Sequence[Line]
    steps: Sequence[int]
    first: int  # at which the language that is taught was spoken; in `full` the base is heard before it
    best: int | None
    all_lines: int
    all_steps: int

    @property
    def whole(self) -> bool:
        return len(self.lines) == self.all_lines and len(self.steps) == self.all_steps


def lines(samples: Sequence[SampleGenerated]) -> list[Line]:
    """The sentences, those of the language that is taught first. One told twice, by a resumed run, counts once.

    A text that is spoken several times at a step, in several voices, is as many sentences.
    """
    told = {(sample.step, sample.path): sample for sample in samples}
    found: dict[tuple[str, str, int], dict[int, SampleGenerated]] = {}
    seen = Counter[tuple[int, str, str]]()
    for sample in told.values():
        before = sample.step, sample.language, sample.text
        found.setdefault((sample.language, sample.text, seen[before]), {})[sample.step] = sample
        seen[before] += 1
    last = max((sample.step for sample in samples), default=0)
    order = list(dict.fromkeys(sample.language for sample in (
        *(sample for sample in samples if sample.step == last), *samples)))
    made = [Line(language, text, takes) for (language, text, _), takes in found.items()]
    return sorted(made, key=lambda line: order.index(line.language))


def columns(steps: Sequence[int], marked: Collection[int | None], most: int) -> list[int]:
    """Of rising `steps` the first, the newest and those that are `marked`, and as many others as there is room for.

    These are every second, fourth, ... so that they stay the same while a few more steps come.
    """
    kept = {*steps[:1], *steps[-_NEWEST:], *(step for step in steps if step in marked)}
    stride = 1
    while len(kept | set(steps[::stride])) > max(most, len(kept)):
        stride *= 2
    return sorted(kept | set(steps[::stride]))


def shown(state: JobState, everything: bool = False) -> Shown:
    """What is shown of a run's samples; with `everything`, all that a page can hold."""
    there = lines(state.samples)
    steps = sorted({step for line in there for step in line.takes})
    best = next((saved.step for saved in reversed(state.checkpoints) if saved.best), None)
    first = min(there[0].takes) if there else 0
    some = there if everything else _some(there)
    most = max(MOST_STEPS, _MOST_CELLS // max(1, len(there))) if everything else MOST_STEPS
    return Shown(some, columns(steps, (first, best), most), first, best, len(there), len(steps))


def _some(there: Sequence[Line]) -> list[Line]:
    """The first lines of each language, by turns where there are too many."""
    places = Counter[str]()
    ranked = []
    for line in there:
        ranked.append((places[line.language], line))
        places[line.language] += 1
    kept = {id(line) for _, line in sorted(ranked, key=lambda item: item[0])[:MOST_LINES]}
    return [line for line in there if id(line) in kept]


def grid(state: JobState, everything: bool = False) -> Html:
    """All of it, with what the numbers mean."""
    if not state.samples:
        return present.empty("At each checkpoint it speaks some sentences; they appear here.")
    seen = shown(state, everything)
    rows = [_head(seen), *_totals(state, seen), *(_row(state.id, line, seen) for line in seen.lines)]
    table = div("takes", *rows, role="table", aria_label="Sentences by step", style=f"--steps:{len(seen.steps)}")
    return join((element("h3", "The same sentences, step by step"), _meaning(state, seen),
                 div("takes-box", table, data_run=state.id, tabindex=0, role="region",
                     aria_label="Sentences by step, to be scrolled sideways")))


def _meaning(state: JobState, seen: Shown) -> Html:
    """How to hear and read it, what is not in it, and why."""
    scored = {line.language for line in seen.lines if line.first is not None}
    languages = list(dict.fromkeys(line.language for line in seen.lines))
    unjudged = [present.language_name(language) for language in languages if language not in scored]
    said = ["Press a cell to hear it; the arrow keys go from step to step and from sentence to sentence."]
    if scored:
        said.append("The share is what the judge misheard. ↓ is better than the sentence's first step, ↑ is worse, "
                    "by so many points.")
    if unjudged:
        said.append(f"No judge knows {' or '.join(unjudged)}: listen and compare.")
    if state.job.settings.get("scope") in ("rows", "gated"):
        said.append("The languages of the base are not spoken here: in this scope their speech stays equal to the bit.")
    elif len(languages) > 1:
        said.append("The last rows are of languages of the base: hear whether they drift.")
    some = [f"{len(part)} of {count} {name}" for part, count, name in (
        (seen.lines, seen.all_lines, "sentences"), (seen.steps, seen.all_steps, "steps")) if len(part) < count]
    if some:
        said.append(f"Shown are {' and '.join(some)}.")
    return paragraph(" ".join(said), class_="small takes-note")


def _head(seen: Shown) -> Html:
    heads = [div(_place(step, seen), element("span", f"step {step:,}"), *_badges(step, seen), role="columnheader")
             for step in seen.steps]
    return div("takes-row takes-head", div("takes-name", "Sentence", role="columnheader"), *heads, role="row")


def _badges(step: int, seen: Shown) -> list[Html]:
    names = (("badge", "first", seen.first), ("badge busy", "best", seen.best))
    before = [span("badge", "before")] if step == 0 else []
    return [*before, *(span(look, name) for look, name, where in names if step == where)]


def _place(step: int, seen: Shown) -> str:
    """Classes of a cell: the first and the best step stay in sight."""
    return "take" + (" is-first" if step == seen.first else " is-best" if step == seen.best else "")


def _totals(state: JobState, seen: Shown) -> list[Html]:
    """The error over all judged sentences of a language, as it was measured; nothing where it was not."""
    rows = []
    for language in dict.fromkeys(line.language for line in seen.lines):
        errors = {one.step: one.errors[language] for one in state.evaluations if language in one.errors}
        if errors:
            first = min(errors.items())
            told = {step: _told(error, step, first)[0] for step, error in errors.items()}
            cells = [div(_place(step, seen), told.get(step, "–"), role="cell") for step in seen.steps]
            name = div("takes-name", f"All {present.language_name(language)} sentences that were judged",
                       role="rowheader")
            rows.append(div("takes-row takes-total", name, *cells, role="row"))
    return rows


def _row(run: str, line: Line, seen: Shown) -> Html:
    """A sentence with its takes."""
    turn = element("button", "Play in turn", type="button", class_="turn", aria_pressed="false",
                   title="Play the steps of this sentence one after another") if len(line.takes) > 1 else NOTHING
    name = div("takes-name", div("ends", span("small", present.language_name(line.language)), turn),
               element("span", shortened(line.text), lang=line.language), role="rowheader")
    first = line.first
    against = None if first is None or first.error is None else (first.step, first.error)
    cells = [div(_place(step, seen), _take(run, line.takes.get(step), against, step == seen.steps[-1]), role="cell")
             for step in seen.steps]
    return div("takes-row", name, *cells, role="row")


def _take(run: str, take: SampleGenerated | None, first: tuple[int, float] | None, reached: bool) -> Html:
    """A player as a button; `reached`: the tabulator stops at it, and the arrow keys go on from there."""
    if take is None:
        return span("take-none", "–", title=_NOT_SPOKEN)
    words, told = _told(take.error, take.step, first)
    return element(
        "button", span("take-mark", aria_hidden="true"), words, type="button", class_="hear", aria_pressed="false",
        data_sound=media.url("runs", run, take.path), tabindex=None if reached else -1,
        title=told, aria_label=f"Play {told}",
    )


def _told(error: float | None, step: int, first: tuple[int, float] | None) -> tuple[Html, str]:
    """An error, and by how much it is better or worse than the `first` (step, error): to be seen, and in words."""
    if error is None:
        return span("take-error unjudged", "not judged"), f"step {step:,}, not judged"
    share, words = f"{error:.0%}", f"step {step:,}, {error:.0%} misheard"
    if first is None or first[0] == step:
        return span("take-error", share), words
    more = round(100 * error) - round(100 * first[1])
    if not more:
        return span("take-error", share, element("small", "=")), f"{words}, as at step {first[0]:,}"
    sign, look = ("↑", "worse") if more > 0 else ("↓", "better")
    points = "1 point" if abs(more) == 1 else f"{abs(more)} points"
    return (span("take-error", share, element("small", f"{sign}{abs(more)}", class_=look)),
            f"{words}, {points} {look} than at step {first[0]:,}")
