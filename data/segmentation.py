"""Segmentation of a long recording: spans of speech are grouped into clips of 2 to 15 seconds.

The cuts of a whole recording are chosen at once by dynamic programming. In this order of priority: no clip outside the
bounds, few cuts within speech, cuts at long pauses, clips that are neither short nor full of silence. Every span is in
exactly one clip, and clips do not overlap. Knows no audio; times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

IN_SPEECH_COST = 1e4  # cost of a cut without a pause: more than all other costs of a clip and its neighbours
_BROKEN = 1e9  # cost of a clip outside the bounds
_FULL_PAUSE_S = 0.5  # a cut at a pause of this length costs nothing
_QUIET_INSIDE_S = 0.8  # a longer pause within a clip costs
_WINDOW = 16  # frames; uninterrupted speech may be cut once in each window, at its quietest frame


@dataclass(frozen=True)
class SegmentLimits:
    """Bounds of a clip, padding included."""

    min_clip_s: float = 2.0
    max_clip_s: float = 15.0
    padding_s: float = 0.2  # silence before and after the speech, if there is so much


@dataclass(frozen=True)
class ClipSpan:
    """A clip: the spans `first` to `last`, from `begin_s` to `end_s`."""

    first: int
    last: int
    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class SpeechSpans:
    """Spans of speech in order. `costs` (n - 1,): of a cut between two neighbours; `forced`: where a cut must be."""

    begins: np.ndarray  # (n,)
    ends: np.ndarray  # (n,)
    costs: np.ndarray
    forced: np.ndarray  # (n - 1,) bool


def pause_cost(pauses_s: np.ndarray) -> np.ndarray:
    """The cost of a cut in a pause of this length; without a pause it is within speech."""
    short = 2.0 * np.clip(1 - pauses_s / _FULL_PAUSE_S, 0, 1)
    return np.where(pauses_s > 0, short, IN_SPEECH_COST)


def voiced_runs(probabilities: np.ndarray, threshold: float = 0.5, shortest: int = 3,
                pause: int = 4) -> list[tuple[int, int]]:
    """Runs of frames [begin, end) with voice: a run begins at `threshold` and ends 0.15 below it.

    Gaps shorter than `pause` frames belong to the speech; runs shorter than `shortest` frames are clicks.
    """
    runs: list[tuple[int, int]] = []
    on, begin = False, 0
    for index, value in enumerate([*probabilities.tolist(), 0.0]):
        if not on and value >= threshold:
            on, begin = True, index
        elif on and value < min(threshold - 0.15, threshold * 0.7):
            on = False
            if runs and begin - runs[-1][1] < pause:
                runs[-1] = (runs[-1][0], index)
            else:
                runs.append((begin, index))
    return [(begin, end) for begin, end in runs if end - begin >= shortest]


def speech_spans(runs: Sequence[tuple[int, int]], levels: np.ndarray, frame_s: float) -> SpeechSpans:
    """Runs of frames as spans. Speech without a pause may be cut at the quietest frame of each half second, at a cost.

    `levels` (N,): the level of each frame.
    """
    edges: list[tuple[int, int]] = []
    costs: list[float] = []
    loudest = float(levels.max()) if len(levels) else 1.0
    for number, (begin, end) in enumerate(runs):
        if number:
            costs.append(float(pause_cost(np.array([(begin - runs[number - 1][1]) * frame_s]))[0]))
        # Speech without a pause may be cut in each window, at its quietest frame.
        start = begin
        for window in range(begin + _WINDOW // 2, end - _WINDOW // 2, _WINDOW):
            cut = window + int(np.argmin(levels[window:min(window + _WINDOW, end - _WINDOW // 2)]))
            edges.append((start, cut))
            costs.append(IN_SPEECH_COST * (1 + 0.5 * float(levels[cut]) / max(loudest, 1e-9)))
            start = cut
        edges.append((start, end))
    table = np.array(edges, float).reshape(-1, 2) * frame_s
    return SpeechSpans(table[:, 0], table[:, 1], np.array(costs), np.zeros(len(costs), bool))


def group_spans(spans: SpeechSpans, total_s: float, limits: SegmentLimits = SegmentLimits()) -> list[ClipSpan]:
    """The clips of a recording of `total_s`; one is outside the bounds only if no choice of cuts avoids it."""
    count = len(spans.begins)
    if count == 0:
        return []

    # Cuts lie in the middle of pauses. A forced cut is never inside a clip.
    middles = np.concatenate([[0.0], (spans.ends[:-1] + spans.begins[1:]) / 2, [max(total_s, float(spans.ends[-1]))]])
    cut_costs = np.concatenate([spans.costs, [0.0]])
    silence = np.concatenate([[0.0], np.cumsum(_inside(spans.begins[1:] - spans.ends[:-1])), [0.0]])
    last_forced = np.maximum.accumulate(np.where(spans.forced, np.arange(1, count), 0))
    last_forced = np.concatenate([[0], last_forced]).astype(int)

    # Dynamic programming: the cheapest choice of clips that ends before each span.
    best, previous = np.zeros(count + 1), np.zeros(count + 1, int)
    for end in range(1, count + 1):
        least = int(np.searchsorted(spans.begins, spans.ends[end - 1] - limits.max_clip_s - 1e-9))
        least = min(max(least, int(last_forced[end - 1])), end - 1)
        lengths = spans.ends[end - 1] - spans.begins[least:end]
        room = middles[end] - middles[least:end]
        broken = (lengths > limits.max_clip_s + 1e-9) | (room < limits.min_clip_s - 1e-9)
        inside = silence[end - 1] - silence[least:end]
        costs = best[least:end] + inside + _short(lengths, limits) + _BROKEN * broken
        chosen = int(np.argmin(costs))
        best[end], previous[end] = costs[chosen] + cut_costs[end - 1], least + chosen

    # Follow the choices back from the end.
    points = [count]
    while points[-1] > 0:
        points.append(int(previous[points[-1]]))
    points.reverse()
    return [_extent(spans, middles, begin, end, limits) for begin, end in zip(points, points[1:], strict=False)]


def _inside(pauses: np.ndarray) -> np.ndarray:
    return 3.0 * np.clip(pauses - _QUIET_INSIDE_S, 0, None)


def _short(lengths: np.ndarray, limits: SegmentLimits) -> np.ndarray:
    """The cost of a clip, which grows below a third of the maximal length."""
    return 1.0 + np.square(np.clip(limits.max_clip_s / 3 - lengths, 0, None) / 2)


def _extent(spans: SpeechSpans, middles: np.ndarray, begin_span: int, end: int, limits: SegmentLimits) -> ClipSpan:
    """The spans [first, end) with their padding, at most to the middle of the pauses around."""
    low, high = float(middles[begin_span]), float(middles[end])
    voice, quiet = float(spans.begins[begin_span]), float(spans.ends[end - 1])
    begin, stop = max(low, voice - limits.padding_s), min(high, quiet + limits.padding_s)
    if stop - begin > limits.max_clip_s:
        share = max(0.0, limits.max_clip_s - (quiet - voice)) / ((voice - begin) + (stop - quiet))
        begin, stop = voice - share * (voice - begin), quiet + share * (stop - quiet)
    elif stop - begin < limits.min_clip_s:
        # A clip that is too short takes silence from both sides, as far as there is any.
        lacking_s = limits.min_clip_s - (stop - begin)
        before_s = min(begin - low, lacking_s / 2)
        after_s = min(high - stop, lacking_s - before_s)
        before_s = min(begin - low, lacking_s - after_s)
        begin, stop = begin - before_s, stop + after_s
    return ClipSpan(begin_span, end - 1, begin, stop)
