"""Bar charts as inline SVG with HTML labels, beside the lines of `ui.curves`. Pure: numbers in, HTML out."""

from __future__ import annotations

from collections.abc import Sequence

from core.dataset.clip_index import LEARNABLE, DatasetPlots, Histogram
from ui.curves import ticks
from ui.markup import NOTHING, Html, div, element, join, paragraph, span

_WIDTH, _HEIGHT = 300.0, 100.0


def plots(found: DatasetPlots) -> Html:
    """How the clips of a dataset are spread."""
    if not found.histograms:
        return NOTHING
    return div("charts", *map(histogram, found.histograms), letters(found.characters), rarest(found.rarest))


def histogram(one: Histogram) -> Html:
    """How many clips there are of each size, with the median."""
    drawn = sum(one.counts)
    if not drawn:
        return div("chart", div("chart-head", element("h4", one.title)),
                   paragraph(f"None of {one.among:,} clips.", class_="small"))
    step = (one.high - one.low) / len(one.counts)
    titles = [f"{_short(one.low + at * step)} to {_short(one.low + (at + 1) * step)} {one.unit}: {count:,} clips"
              for at, count in enumerate(one.counts)]
    across = (one.median - one.low) / (one.high - one.low)
    median = element("line", x1=f"{_WIDTH * across:.1f}", x2=f"{_WIDTH * across:.1f}", y1="0", y2=f"{_HEIGHT:g}",
                     class_="median")
    labels = [span("x-label", _short(value), style=f"left:{(value - one.low) / (one.high - one.low):.1%}")
              for value in ticks(one.low, one.high)]
    of = f"{drawn:,} of {one.among:,} clips; " if one.among else ""
    head = div("legend", span("key", f"{of}median {_short(one.median)} {one.unit}"))
    return div("chart", div("chart-head", element("h4", one.title), head),
               div("plot low", _drawing(one.title, one.counts, titles, median), _most(one.counts)),
               div("x-labels", *labels, aria_hidden="true"))


def letters(found: Sequence[tuple[str, int]]) -> Html:
    """The most frequent characters, each with its bar."""
    if not found:
        return NOTHING
    counts = [count for _, count in found]
    titles = [f"{name}: {count:,} times" for name, count in found]
    names = [span("x-label", name, style=f"left:{(at + 0.5) / len(found):.2%}", title=title)
             for at, ((name, _), title) in enumerate(zip(found, titles, strict=True))]
    return div("chart wide", div("chart-head", element("h4", "Characters"),
                                 div("legend", span("key", f"the {len(found)} most frequent, as they are spoken"))),
               div("plot low", _drawing("Characters", counts, titles), _most(counts)),
               div("x-labels letters", *names, aria_hidden="true"))


def rarest(found: Sequence[tuple[str, int]]) -> Html:
    """The rarest characters with their counts, so that none has to be guessed from the height of a bar."""
    if not found:
        return NOTHING
    few = sum(count < LEARNABLE for _, count in found)
    many = "at least " if few == len(found) else ""  # there may be more of them than are listed
    about = f"{many}{few} characters are seen fewer than {LEARNABLE} times: too few to learn from"
    marks = [span("badge bad" if count < LEARNABLE else "badge", f"{name} {count:,}",
                  title=f"{name}: {'once' if count == 1 else f'{count:,} times'}") for name, count in found]
    return div("chart wide", div("chart-head", element("h4", "Rarest characters"), div("legend", span("key", about))),
               div("rare", *marks))


def _drawing(title: str, counts: Sequence[int], titles: Sequence[str], over: Html = NOTHING) -> Html:
    most, width = max(counts), _WIDTH / len(counts)
    bars = join(element("rect", element("title", said), x=f"{at * width + width * 0.06:.2f}",
                        y=f"{_HEIGHT * (1 - count / most):.2f}", width=f"{width * 0.88:.2f}",
                        height=f"{_HEIGHT * count / most:.2f}", class_="bar-of")
                for at, (count, said) in enumerate(zip(counts, titles, strict=True)))
    return element("svg", bars, over, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", preserveAspectRatio="none", role="img",
                   aria_label=f"{title}: {max(zip(counts, titles, strict=True))[1]} is the most")


def _most(counts: Sequence[int]) -> Html:
    return join((span("y-label", f"{max(counts):,}", style="top:0"), span("y-label", "0", style="top:100%")))


def _short(value: float) -> str:
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.1f}" if abs(value) < 10 and value != round(value) else f"{value:.0f}"
