"""Where a long recording is cut: from what was heard, atoms of speech that stay whole, to clips of 2 to 15 seconds.

Cuts are chosen for a whole recording at once, by dynamic programming: no clip outside of the bounds where that can be
had, then as few cuts within speech as the bounds allow, then cuts at long pauses, and clips that are neither short nor
full of silence. Every atom is in exactly one clip, and clips do not overlap. Knows no audio; times are in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

IN_SPEECH_COST = 1e4  # price of a cut where no pause is: more than all else of a clip and its neighbours
_BROKEN = 1e9  # price of a clip outside of the bounds
_FULL_PAUSE_S = 0.5  # a pause so long costs nothing to cut at
_QUIET_INSIDE_S = 0.8  # of a pause within a clip, what is longer costs
_WINDOW = 16  # frames in each of which an uninterrupted voice may be cut once, at its quietest


@dataclass(frozen=True)
class SegmentLimits:
    """Bounds of a clip, padding included."""

    min_clip_s: float = 2.0
    max_clip_s: float = 15.0
    padding_s: float = 0.2  # of silence left before and after the speech, where there is so much


@dataclass(frozen=True)
class ClipSpan:
    """A clip: the atoms `first` to `last`, from `begin_s` to `end_s`."""

    first: int
    last: int
    begin_s: float
    end_s: float

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True)
class SpeechSpans:
    """Stretches of speech in order. `prices` (n - 1,): what a cut between two neighbours costs; `walls`: where one
    must be."""

    begins: np.ndarray  # (n,)
    ends: np.ndarray  # (n,)
    prices: np.ndarray
    walls: np.ndarray  # (n - 1,) bool

    @classmethod
    def of_pauses(cls, begins: Sequence[float], ends: Sequence[float]) -> SpeechSpans:
        """Atoms with pauses between them, which are cheaper to cut at the longer they are; none is in speech."""
        begin, end = np.asarray(begins, float), np.asarray(ends, float)
        pauses = begin[1:] - end[:-1]
        return cls(begin, end, pause_cost(pauses), np.zeros(len(pauses), bool))


def pause_cost(pauses_s: np.ndarray) -> np.ndarray:
    """What a cut in a pause of this length costs; none at all is speech."""
    short = 2.0 * np.clip(1 - pauses_s / _FULL_PAUSE_S, 0, 1)
    return np.where(pauses_s > 0, short, IN_SPEECH_COST)


def voiced_runs(probabilities: np.ndarray, threshold: float = 0.5, shortest: int = 3,
                pause: int = 4) -> list[tuple[int, int]]:
    """Frames [begin, end) with a voice: it begins at `threshold` and ends 0.15 below it.

    Gaps of fewer than `pause` frames are part of the speech; what is shorter than `shortest` frames is a click.
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
    return [(first, last) for first, last in runs if last - first >= shortest]


def speech_spans(runs: Sequence[tuple[int, int]], levels: np.ndarray, frame_s: float) -> SpeechSpans:
    """Runs of frames as atoms. A voice without a pause may be cut too, dearly, at the quietest of each half second.

    `levels` (N,): how loud each frame is.
    """
    edges: list[tuple[int, int]] = []
    prices: list[float] = []
    loudest = float(levels.max()) if len(levels) else 1.0
    for number, (begin, end) in enumerate(runs):
        if number:
            prices.append(float(pause_cost(np.array([(begin - runs[number - 1][1]) * frame_s]))[0]))
        start = begin
        for window in range(begin + _WINDOW // 2, end - _WINDOW // 2, _WINDOW):
            at = window + int(np.argmin(levels[window:min(window + _WINDOW, end - _WINDOW // 2)]))
            edges.append((start, at))
            prices.append(IN_SPEECH_COST * (1 + 0.5 * float(levels[at]) / max(loudest, 1e-9)))
            start = at
        edges.append((start, end))
    table = np.array(edges, float).reshape(-1, 2) * frame_s
    return SpeechSpans(table[:, 0], table[:, 1], np.array(prices), np.zeros(len(prices), bool))


def group_spans(atoms: SpeechSpans, total_s: float, limits: SegmentLimits = SegmentLimits()) -> list[ClipSpan]:
    """The clips of a recording of `total_s`. One is outside of the bounds only where no choice of cuts avoids it."""
    count = len(atoms.begins)
    if count == 0:
        return []
    middles = np.concatenate([[0.0], (atoms.ends[:-1] + atoms.begins[1:]) / 2, [max(total_s, float(atoms.ends[-1]))]])
    prices = np.concatenate([atoms.prices, [0.0]])
    silence = np.concatenate([[0.0], np.cumsum(_inside(atoms.begins[1:] - atoms.ends[:-1])), [0.0]])
    walled = np.concatenate([[0], np.maximum.accumulate(np.where(atoms.walls, np.arange(1, count), 0))]).astype(int)
    best, before = np.zeros(count + 1), np.zeros(count + 1, int)
    for end in range(1, count + 1):
        least = int(np.searchsorted(atoms.begins, atoms.ends[end - 1] - limits.max_clip_s - 1e-9))
        least = min(max(least, int(walled[end - 1])), end - 1)
        lengths = atoms.ends[end - 1] - atoms.begins[least:end]
        room = middles[end] - middles[least:end]
        broken = (lengths > limits.max_clip_s + 1e-9) | (room < limits.min_clip_s - 1e-9)
        inside = silence[end - 1] - silence[least:end]
        costs = best[least:end] + inside + _short(lengths, limits) + _BROKEN * broken
        chosen = int(np.argmin(costs))
        best[end], before[end] = costs[chosen] + prices[end - 1], least + chosen
    points = [count]
    while points[-1] > 0:
        points.append(int(before[points[-1]]))
    points.reverse()
    return [_extent(atoms, middles, first, end, limits) for first, end in zip(points, points[1:], strict=False)]


def _inside(pauses: np.ndarray) -> np.ndarray:
    return 3.0 * np.clip(pauses - _QUIET_INSIDE_S, 0, None)


def _short(lengths: np.ndarray, limits: SegmentLimits) -> np.ndarray:
    """A clip costs something, and more below a third of what it may have."""
    return 1.0 + np.square(np.clip(limits.max_clip_s / 3 - lengths, 0, None) / 2)


def _extent(atoms: SpeechSpans, middles: np.ndarray, first: int, end: int, limits: SegmentLimits) -> ClipSpan:
    """The atoms from `first` to before `end` with their padding: no further than the middle of the pauses around."""
    low, high = float(middles[first]), float(middles[end])
    voice, quiet = float(atoms.begins[first]), float(atoms.ends[end - 1])
    begin, stop = max(low, voice - limits.padding_s), min(high, quiet + limits.padding_s)
    if stop - begin > limits.max_clip_s:
        share = max(0.0, limits.max_clip_s - (quiet - voice)) / ((voice - begin) + (stop - quiet))
        begin, stop = voice - share * (voice - begin), quiet + share * (stop - quiet)
    elif (lacking := limits.min_clip_s - (stop - begin)) > 0:
        left = min(begin - low, lacking / 2)
        right = min(high - stop, lacking - left)
        left = min(begin - low, lacking - right)
        begin, stop = begin - left, stop + right
    return ClipSpan(first, end - 1, begin, stop)
