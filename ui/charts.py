"""Line and bar charts as inline SVG. Pure functions.

The drawing stretches with the page; labels are HTML on top of it, so that text keeps its size at every width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from statistics import fmean

from core.dataset.clip_index import LEARNABLE, DatasetPlots, Histogram
from core.jobs.reporter import pluralize
from ui.markup import NOTHING, Html, div, element, join, paragraph, span

Point = tuple[float, float]
_MOST_POINTS = 240
_MANY_DOTS = 16  # more points are drawn smaller
_HEIGHT = 100.0
_WIDTH = 300.0


@dataclass(frozen=True)
class Series:
    """One line: its name, its points by rising x, and its style ("line", "faint" or "dots")."""

    name: str
    points: Sequence[Point]
    colour: str = "var(--series-1)"
    style: str = "line"


def thin(points: Sequence[Point], limit: int = _MOST_POINTS) -> list[Point]:
    """At most `limit` points: the mean of each run of neighbours; the last point is kept as it is."""
    if len(points) <= limit:
        return list(points)
    size = math.ceil(len(points) / (limit - 1))
    runs = [points[start:start + size] for start in range(0, len(points) - 1, size)]
    thinned: list[Point] = []
    for run in runs:
        xs, ys = zip(*run, strict=True)
        thinned.append((fmean(xs), fmean(ys)))
    return [*thinned, points[-1]]


def smooth(points: Sequence[Point], weight: float = 0.9) -> list[Point]:
    """Exponential mean of y, corrected for its start."""
    result: list[Point] = []
    total = norm = 0.0
    for x, y in points:
        total = weight * total + (1 - weight) * y
        norm = weight * norm + (1 - weight)
        result.append((x, total / norm))
    return result


def ticks(low: float, high: float, count: int = 4) -> list[float]:
    """Round numbers within [low, high], about `count` of them."""
    # Equal or undefined limits have a single mark.
    if not high > low:
        return [low]
    rough = (high - low) / count
    power = math.floor(math.log10(rough))
    scale = 10.0 ** power
    # The next round step, with room for rounding errors.
    step = next(factor * scale for factor in (1, 2, 2.5, 5, 10) if factor * scale >= rough * 0.999)
    start = math.ceil(low / step - 1e-9)
    return [round(index * step, 1 - power) for index in range(start, math.floor(high / step + 1e-9) + 1)]


def chart(title: str, series: Sequence[Series], *, x_most: float | None = None, y_percent: bool = False,
          x_name: str = "step", y_low: float | None = None, y_log: bool = False) -> Html:
    """A chart with title and legend.

    `y_log`: logarithmic y axis; values that are not positive are skipped.
    """

    # Dots are drawn as they are; lines are thinned to what the eye can tell apart.
    curves = [line if line.style == "dots" else replace(line, points=thin(line.points)) for line in series]
    if y_log:
        curves = [replace(line, points=_logarithms(line.points)) for line in curves]
    # A series without a point has no place in the legend.
    drawn = [line for line in curves if line.points]
    named = [line for line in drawn if line.style != "faint"]
    legend = div(
        "legend", *(span("key", span("swatch", style=f"background:{line.colour}"), line.name) for line in named))
    caption = div("chart-head", element("h2", title), legend)
    if not drawn:
        return div("chart", caption, div("plot empty", "Nothing measured yet."))

    # The grid is drawn inside the plot, its labels beside it.
    box = _box(drawn, x_most, None if y_log else y_low, y_log)
    marks = box.marks()
    heights = [f"{box.down(y) * _HEIGHT:.2f}" for y in marks]
    grid = [element("line", x1="0", x2=f"{_WIDTH:g}", y1=height, y2=height, class_="rule") for height in heights]
    names = tick_labels([box.value(y) for y in marks], y_percent)
    labels = [span("y-label", name, style=f"top:{box.down(y):.2%}") for y, name in zip(marks, names, strict=True)]
    lines = (_line(line, box) for line in drawn)
    drawing = element("svg", *grid, *lines, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", preserveAspectRatio="none",
                      role="img",
                      aria_label=f"{title}; last: {', '.join(_last(line, box, y_percent) for line in named)}")

    # A mark further right would collide with the name of the axis.
    x_marks = [x for x in ticks(box.left, box.right) if box.across(x) <= 0.84]
    return div("chart", caption, div("plot", drawing, _dots(drawn, box), *labels),
               div("x-labels", *(span("x-label", name, style=f"left:{box.across(x):.2%}")
                                  for x, name in zip(x_marks, tick_labels(x_marks), strict=True)),
                   span("x-name", x_name)))


@dataclass(frozen=True)
class _Box:
    """The drawn part of the plane, with heights as logarithms to base ten where `log` is set."""

    left: float
    right: float
    low: float
    high: float
    log: bool = False

    def marks(self) -> list[float]:
        """Heights of the grid lines."""
        if not self.log:
            return ticks(self.low, self.high)
        exponents = log_ticks(self.low, self.high)
        if len(exponents) > 1:
            return exponents
        return [math.log10(value) for value in ticks(10.0**self.low, 10.0**self.high) if value > 0]

    def value(self, height: float) -> float:
        """The value at a height."""
        return 10.0**height if self.log else height

    def across(self, x: float) -> float:
        """0 at the left edge, 1 at the right."""
        return (x - self.left) / (self.right - self.left or 1.0)

    def down(self, y: float) -> float:
        """0 at the top edge, 1 at the bottom; points outside stay at the edge."""
        return min(1.0, max(0.0, 1.0 - (y - self.low) / (self.high - self.low)))


def _logarithms(points: Sequence[Point]) -> list[Point]:
    return [(x, math.log10(y)) for x, y in points if math.isfinite(y) and y > 0]


def log_ticks(low: float, high: float, limit: int = 6) -> list[float]:
    """Logarithms within [low, high] of round multiples of powers of ten, or of the powers alone if these are many."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1, 1.5, 2, 3, 4, 5, 7), (1, 2, 5), (1, 3), (1,)):
        marks = [power + math.log10(factor) for power, factor in product(powers, factors)]
        heights = [height for height in marks if low <= height <= high]
        if len(heights) <= limit:
            return heights
    return heights[::math.ceil(len(heights) / limit)]


def _last(series: Series, box: _Box, percent: bool) -> str:
    """The last value, for screen readers."""
    value = box.value(series.points[-1][1])
    return f"{series.name} {value:.0%}" if percent else f"{series.name} {value:.4g}"


def _box(series: Sequence[Series], x_most: float | None, y_low: float | None, log: bool = False) -> _Box:
    points = list(chain.from_iterable(line.points for line in series))
    xs = [x for x, _ in points]
    ys = sorted(y for _, y in points if math.isfinite(y))

    if not ys:
        return _Box(0.0, max(xs), 0.0, 1.0, log)
    low, high = ys[0], ys[-1]
    if len(ys) > 20 and not log:  # the first losses would flatten all that follows
        high = min(high, ys[int(0.97 * (len(ys) - 1))] * 1.15)
    low = low if y_low is None else min(low, y_low)

    flat = high - low <= 1e-6 * max(abs(high), abs(low))  # a constant line, except for rounding
    # A constant line is drawn in the middle of some room.
    margin = (abs(high) * 0.1 or 0.5) if flat else (high - low) * 0.06
    bottom = low if y_low is not None and low == y_low else low - margin

    return _Box(min(0.0, min(xs)), max(max(xs), x_most or 0.0), bottom, high + margin, log)


def _line(series: Series, box: _Box) -> Html:
    if series.style == "dots" and len(series.points) < 2:
        return Html("")
    points = " ".join(
        f"{box.across(x) * _WIDTH:.1f},{box.down(y) * _HEIGHT:.2f}"
        for x, y in thin(series.points) if math.isfinite(y)
    )
    return element("polyline", points=points, class_=f"line {series.style}", style=f"stroke:{series.colour}")


def _dots(series: Sequence[Series], box: _Box) -> Html:
    """Markers as HTML: a circle in the stretched drawing would be an ellipse."""
    dots: list[Html] = []
    for line in series:
        if line.style != "dots":
            continue
        class_ = "dot many" if len(line.points) > _MANY_DOTS else "dot"
        for x, y in line.points:
            dots.append(span(class_, title=f"{line.name}: {box.value(y):.3g} at {x:g}",
                             style=f"left:{box.across(x):.2%};top:{box.down(y):.2%};background:{line.colour}"))
    return Html("".join(dots))


def tick_labels(values: Sequence[float], percent: bool = False) -> list[str]:
    """The values of an axis with as many digits as are needed to read every one of them exactly."""
    scaled = [100 * value for value in values] if percent else list(values)
    names: list[str] = []
    for digits in range(6, 17):
        names = [f"{value:.{digits}g}" for value in scaled]
        if all(math.isclose(float(name), value, rel_tol=1e-12) for name, value in zip(names, scaled, strict=True)):
            break
    return [f"{name}%" for name in names] if percent else names


def dataset_charts(plots: DatasetPlots) -> Html:
    """Histograms of a dataset, and its characters."""
    if not plots.histograms:
        return NOTHING
    return div("charts", *map(histogram, plots.histograms), character_chart(plots.characters),
               rarest_characters(plots.rarest))


def histogram(bins: Histogram) -> Html:
    """A histogram with the median."""
    drawn = sum(bins.counts)
    if not drawn:
        return div("chart", div("chart-head", element("h2", bins.title)),
                   paragraph(f"None of {bins.among:,} clips.", class_="small"))

    step = (bins.high - bins.low) / len(bins.counts)
    digits = max(0, -math.floor(math.log10(step)))  # digits that tell one edge from the next
    titles = [f"{bins.low + index * step:.{digits}f} to {bins.low + (index + 1) * step:.{digits}f} {bins.unit}: "
              f"{pluralize(count, 'clip')}" for index, count in enumerate(bins.counts)]
    across = (bins.median - bins.low) / (bins.high - bins.low)
    # The median is a line across the bars.
    median = element("line", x1=f"{_WIDTH * across:.1f}", x2=f"{_WIDTH * across:.1f}", y1="0", y2=f"{_HEIGHT:g}",
                     class_="median")

    marks = ticks(bins.low, bins.high)
    labels = [span("x-label", name, style=f"left:{(value - bins.low) / (bins.high - bins.low):.1%}")
              for value, name in zip(marks, tick_labels(marks), strict=True)]
    share = f"{drawn:,} of {bins.among:,} clips; " if bins.among else ""
    head = div("legend", span("key", f"{share}median {_short(bins.median)} {bins.unit}"))
    return div("chart", div("chart-head", element("h2", bins.title), head),
               _bars(bins.title, bins.counts, titles, median), div("x-labels", *labels, aria_hidden="true"))


def character_chart(characters: Sequence[tuple[str, int]]) -> Html:
    """A bar chart of the most frequent characters."""
    if not characters:
        return NOTHING
    counts = [count for _, count in characters]
    titles = [f"{name}: {count:,} times" for name, count in characters]
    names = [span("x-label", name, style=f"left:{(index + 0.5) / len(characters):.2%}", title=title)
             for index, ((name, _), title) in enumerate(zip(characters, titles, strict=True))]

    return div("chart wide", div("chart-head", element("h2", "Characters"),
                                 div("legend", span("key", f"the {len(characters)} most frequent, after text rules"))),
               _bars("Characters", counts, titles), div("x-labels letters", *names, aria_hidden="true"))


def rarest_characters(characters: Sequence[tuple[str, int]]) -> Html:
    """The rarest characters with their counts, which bars are too low to show."""
    if not characters:
        return NOTHING
    rare_count = sum(count < LEARNABLE for _, count in characters)
    bound = "at least " if rare_count == len(characters) else ""  # there may be more of them than are listed
    about = f"{bound}{rare_count} characters occur fewer than {LEARNABLE} times: too rare to learn"

    marks = [span("badge bad" if count < LEARNABLE else "badge", f"{name} {count:,}",
                  title=f"{name}: {'once' if count == 1 else f'{count:,} times'}") for name, count in characters]
    return div("chart wide", div("chart-head", element("h2", "Rarest characters"), div("legend", span("key", about))),
               div("rare", *marks))


def _bars(title: str, counts: Sequence[int], titles: Sequence[str], over: Html = NOTHING) -> Html:
    highest, width = max(counts), _WIDTH / len(counts)
    bars = join(element("rect", element("title", label), x=f"{index * width + width * 0.06:.2f}",
                        y=f"{_HEIGHT * (1 - count / highest):.2f}", width=f"{width * 0.88:.2f}",
                        height=f"{_HEIGHT * count / highest:.2f}", class_="bar-of")
                for index, (count, label) in enumerate(zip(counts, titles, strict=True)))
    drawing = element("svg", bars, over, viewBox=f"0 0 {_WIDTH:g} {_HEIGHT:g}", preserveAspectRatio="none", role="img",
                      aria_label=f"{title}: {max(zip(counts, titles, strict=True))[1]} is the most")
    return div("plot low", drawing, span("y-label", f"{highest:,}", style="top:0"),
               span("y-label", "0", style="top:100%"))


def _short(value: float) -> str:
    if 0 < abs(value) < 0.1:
        return f"{value:.2g}"
    return f"{value:.1f}" if abs(value) < 10 and value != round(value) else f"{value:.0f}"
