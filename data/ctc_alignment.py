"""Where in a recording each word of a text is said: forced alignment over what a CTC recogniser heard, frame by frame.

Viterbi's search (Graves et al. 2006 for the states) in a window of states that follows the likeliest one, so that an
hour of sound and its text need the memory of two minutes. Between sentences the path may rest on anything that is
heard, for a price a sound: music, an announcement, what nobody wrote down. A whole sentence may be left out, for a
price a letter: what nobody said. Both keep a text and a recording that do not quite belong together from dragging all
that follows along. Frames come in blocks; `finish` says when each label was heard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_BLANK, _STAR, _GAP = -1, -2, -3  # columns behind those of the labels
_STAY, _NEXT, _OVER, _LEAVE_OUT = 0, 1, 2, 3
_MOVE_EVERY = 16  # frames
_NEVER = np.float32(-1e30)


@dataclass(frozen=True)
class AlignmentCosts:
    """In nats. `star` for a sound outside of the text; `left_out` for each label of a sentence that was not said."""

    star: float = 4.0
    left_out: float = 2.5
    gap: float = 0.12  # for each frame without a sound inside the first or last word of a sentence
    states: int = 4096  # of the window
    held_frames: int = 3000  # that may still be changed by what follows


@dataclass(frozen=True)
class AlignedLabels:
    """When each label was heard, in frames [begin, end), -1 for one that was left out; and how sure that is."""

    begins: np.ndarray  # (N,) int
    ends: np.ndarray  # (N,) int
    scores: np.ndarray  # (N,) mean log-probability of the label over its frames; -inf where it was left out
    foreign: np.ndarray  # (sentences + 1,) int: sounds heard before each sentence, and after the last
    frames: int


class CTCAligner:
    """Aligns sentences, each a sequence of label ids, with blocks of log-probabilities (F, V).

    `edges`, for each sentence: how many labels its first and its last word have. A sound in the pause beside a sentence
    can pass for the first or last label, which was heard less surely where it was said; the price of a gap keeps the
    word together.
    """

    def __init__(self, sentences: Sequence[Sequence[int]], blank: int, prices: AlignmentCosts = AlignmentCosts(),
                 edges: Sequence[tuple[int, int]] | None = None) -> None:
        self._prices, self._blank = prices, blank
        self._lay_out(sentences, edges or [(0, 0)] * len(sentences))
        self._window = min(prices.states, len(self._labels))
        self._base = 0
        self._scores = np.full(self._window, _NEVER, np.float32)
        self._heard: list[np.ndarray] = []  # blocks of which frames are still held
        self._back: list[np.ndarray] = []
        self._bases: list[int] = []
        self._path: list[np.ndarray] = []
        self._told: list[np.ndarray] = []
        self._loud: list[np.ndarray] = []
        self._frames = 0
        self._origins: dict[int, tuple[int, np.ndarray]] = {}  # of sentences left out, by frame

    def _lay_out(self, sentences: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]]) -> None:
        """States: a star before each sentence and after the last, labels, and blanks between the labels of one."""
        labels, owners = [_STAR], [-1]  # of each state; the label's number in the text
        stars, costs = [0], [0.0]
        number = 0
        for sentence, (first, last) in zip(sentences, edges, strict=True):
            for place, label in enumerate(sentence):
                gap = _GAP if place < first or place > len(sentence) - last else _BLANK
                labels += [gap, label] if place else [label]
                owners += [-1, number] if place else [number]
                number += 1
            labels.append(_STAR)
            owners.append(-1)
            stars.append(len(labels) - 1)
            costs.append(costs[-1] + self._prices.left_out * len(sentence))
        self._labels, self._owners = np.array(labels), np.array(owners)
        self._count = number
        self._over = np.zeros(len(labels), bool)  # reached from two states before, over a blank or a star
        self._over[2:] = (self._labels[2:] >= 0) & (self._labels[:-2] >= 0) & (self._labels[2:] != self._labels[:-2])
        self._star_places, self._star_costs = np.array(stars), np.array(costs)  # of all sentences before each

    def push(self, heard: np.ndarray) -> None:
        """The next frames (F, V), log-probabilities."""
        blank = heard[:, self._blank]
        others = np.delete(heard, self._blank, axis=1).max(1)
        star = np.maximum(blank, others - np.float32(self._prices.star))
        gap = blank - np.float32(self._prices.gap)
        table = np.column_stack([heard, gap, star, blank]).astype(np.float32)  # `_GAP`, `_STAR`, `_BLANK`
        for row in table:
            if self._frames % _MOVE_EVERY == 0:
                self._move()
            self._step(row)
            self._frames += 1
        self._heard.append(table)
        if len(self._back) > 2 * self._prices.held_frames:
            self._commit(len(self._back) - self._prices.held_frames)

    def _step(self, row: np.ndarray) -> None:
        base, size, before = self._base, self._window, self._scores
        states = slice(base, base + size)
        if self._frames == 0:
            after = np.full(size, _NEVER, np.float32)
            after[:2] = 0.0
            back = np.zeros(size, np.uint8)
        else:
            after, back = before.copy(), np.zeros(size, np.uint8)
            _better(after[1:], back[1:], before[:-1], _NEXT)
            _better(after[2:], back[2:], np.where(self._over[states][2:], before[:-2], _NEVER), _OVER)
            first, last = np.searchsorted(self._star_places, [base, base + size])
            if last - first > 1:
                self._leave_out(first, last, before, after, back)
        self._scores = after + row[self._labels[states]]
        self._back.append(back)
        self._bases.append(base)

    def _leave_out(self, first: int, last: int, before: np.ndarray, after: np.ndarray, back: np.ndarray) -> None:
        """From each star of the window to every later one, for the price of the sentences between."""
        places = self._star_places[first:last] - self._base
        costs = self._star_costs[first:last]
        offered = before[places] + costs
        highest = np.maximum.accumulate(offered)
        origins = np.maximum.accumulate(np.where(offered >= highest, np.arange(first, last), 0))
        left_out = np.concatenate([[_NEVER], highest[:-1] - costs[1:]])
        better = left_out > after[places]
        if better.any():
            after[places[better]], back[places[better]] = left_out[better], _LEAVE_OUT
            self._origins[self._frames] = (first, np.concatenate([[first], origins[:-1]]))

    def _move(self) -> None:
        """Let the window follow the likeliest state, and keep numbers small."""
        best = int(np.argmax(self._scores))
        if self._frames:
            self._scores = np.maximum(self._scores - self._scores[best], _NEVER)
        wanted = min(max(self._base, self._base + best - self._window // 2), len(self._labels) - self._window)
        if (moved := wanted - self._base) > 0:
            self._scores = np.concatenate([self._scores[moved:], np.full(moved, _NEVER, np.float32)])
            self._base = wanted

    def _trace(self, state: int) -> np.ndarray:
        """The states (F,) of the frames that are held, on the best way to `state`."""
        path = np.empty(len(self._back), np.int64)
        for frame in range(len(self._back) - 1, -1, -1):
            path[frame] = state
            if frame:
                step = self._back[frame][state - self._bases[frame]]
                state = self._origin(frame, state) if step == _LEAVE_OUT else state - int(step)
                state = max(state, self._bases[frame - 1])
        return path

    def _origin(self, frame: int, state: int) -> int:
        """The star from which sentences were left out to get to that at `state`."""
        first, origins = self._origins[self._frames - len(self._back) + frame]
        return int(self._star_places[origins[np.searchsorted(self._star_places, state) - first]])

    def _commit(self, frames: int) -> None:
        """Settle the first `frames` of those that are held."""
        path = self._trace(self._base + int(np.argmax(self._scores)))[:frames]
        self._settle(path)
        self._back, self._bases = self._back[frames:], self._bases[frames:]
        settled = self._frames - len(self._back)
        self._origins = {frame: origin for frame, origin in self._origins.items() if frame >= settled}

    def _settle(self, path: np.ndarray) -> None:
        heard = np.concatenate(self._heard)
        rows = heard[np.arange(len(path)), self._labels[path]]
        loud = (self._labels[path] == _STAR) & (heard[:len(path), _STAR] > heard[:len(path), _BLANK])
        self._path.append(path)
        self._told.append(rows)
        self._loud.append(loud)
        self._heard = [heard[len(path):]]

    def finish(self) -> AlignedLabels:
        """When each label was heard; what the window never reached was left out."""
        begins, ends = np.full(self._count, -1), np.full(self._count, -1)
        scores = np.full(self._count, -np.inf)
        foreign = np.zeros(len(self._star_places), int)
        if self._frames:
            last = len(self._labels) - 1 - self._base
            ending = [place for place in (last, last - 1) if 0 <= place < self._window]
            best = max(ending, key=lambda place: self._scores[place], default=-1)
            reached = best >= 0 and self._scores[best] > _NEVER / 2
            self._settle(self._trace(self._base + (best if reached else int(np.argmax(self._scores)))))
            path = np.maximum.accumulate(np.concatenate(self._path))
            self._read(path, np.concatenate(self._told), np.concatenate(self._loud), begins, ends, scores, foreign)
        return AlignedLabels(begins, ends, scores, foreign, self._frames)

    def _read(self, path: np.ndarray, told: np.ndarray, loud: np.ndarray, begins: np.ndarray, ends: np.ndarray,
              scores: np.ndarray, foreign: np.ndarray) -> None:
        edges = np.flatnonzero(np.diff(path)) + 1
        for begin, end in zip([0, *edges], [*edges, len(path)], strict=True):
            owner = int(self._owners[path[begin]])
            if owner >= 0:
                begins[owner], ends[owner] = begin, end
                scores[owner] = float(told[begin:end].mean())
        # a run of loud frames is one sound
        starts = np.flatnonzero(loud & ~np.concatenate([[False], loud[:-1]]))
        np.add.at(foreign, np.searchsorted(self._star_places, path[starts]), 1)


def _better(after: np.ndarray, back: np.ndarray, offered: np.ndarray, step: int) -> None:
    """Take what is offered where it is more, in place."""
    better = offered > after
    np.copyto(after, offered, where=better)
    back[better] = step
