"""Forced alignment of a text with the frames of a CTC model (Graves et al. 2006).

Viterbi search in a window of states that follows the most likely one, so an hour of audio needs the memory of two
minutes. Between sentences a "star" state matches any sound at a cost: music, announcements, speech that is not in the
text. A whole sentence may be skipped at a cost for each label: text that was not spoken. Both keep an error local when
text and recording differ. Frames come in blocks; `finish` returns the times of the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_BLANK, _STAR, _GAP = -1, -2, -3  # columns behind those of the labels
_STAY, _NEXT, _OVER, _LEAVE_OUT = 0, 1, 2, 3
_MOVE_INTERVAL = 16  # frames
_NEVER = np.float32(-1e30)


@dataclass(frozen=True)
class AlignmentCosts:
    """In nats. `star`: a sound outside the text; `left_out`: each label of a skipped sentence."""

    star: float = 4.0
    left_out: float = 2.5
    gap: float = 0.12  # per frame without a sound inside the first or last word of a sentence
    states: int = 4096  # states in the window
    held_frames: int = 3000  # whose path later frames may still change


@dataclass(frozen=True)
class AlignedLabels:
    """The frames [begin, end) of each label, -1 for a skipped one, and its score."""

    begins: np.ndarray  # (N,) int
    ends: np.ndarray  # (N,) int
    scores: np.ndarray  # (N,) mean log-probability of the label over its frames; -inf for a skipped one
    foreign: np.ndarray  # (sentences + 1,) int: sounds before each sentence, and after the last
    frames: int


class CTCAligner:
    """Aligns sentences, each a sequence of label ids, with blocks of log-probabilities (F, V).

    `edges`: the number of labels in the first and the last word of each sentence. A sound in the pause beside a
    sentence may score higher for its first or last label than the true frames; the cost of a gap keeps the word
    together.
    """

    def __init__(self, sentences: Sequence[Sequence[int]], blank: int, costs: AlignmentCosts = AlignmentCosts(),
                 edges: Sequence[tuple[int, int]] | None = None) -> None:
        self._costs, self._blank = costs, blank
        self._build_states(sentences, edges or [(0, 0)] * len(sentences))
        self._window = min(costs.states, len(self._labels))
        self._base = 0
        self._scores = np.full(self._window, _NEVER, np.float32)
        self._tables: list[np.ndarray] = []  # scores of the frames that are not committed
        self._back: list[np.ndarray] = []
        self._bases: list[int] = []
        self._path: list[np.ndarray] = []
        self._label_scores: list[np.ndarray] = []
        self._loud: list[np.ndarray] = []
        self._frames = 0
        self._origins: dict[int, tuple[int, np.ndarray]] = {}  # origins of sentences left out, keyed by frame

    def _build_states(self, sentences: Sequence[Sequence[int]], edges: Sequence[tuple[int, int]]) -> None:
        """States: a star before each sentence and after the last, labels, and blanks between the labels of one."""
        # Each state has a label, and as its owner the number of that label in the text, or -1.
        labels, owners = [_STAR], [-1]
        stars, costs = [0], [0.0]
        number = 0
        for sentence, (first_length, last_length) in zip(sentences, edges, strict=True):
            for place, label in enumerate(sentence):
                # A gap costs more than a blank: it keeps the first and the last word together.
                gap = _GAP if place < first_length or place > len(sentence) - last_length else _BLANK
                labels += [gap, label] if place else [label]
                owners += [-1, number] if place else [number]
                number += 1
            labels.append(_STAR)
            owners.append(-1)
            stars.append(len(labels) - 1)
            costs.append(costs[-1] + self._costs.left_out * len(sentence))
        self._labels, self._owners = np.array(labels), np.array(owners)
        self._count = number
        # These states can be reached from two states before, over a blank or a star.
        self._over = np.zeros(len(labels), bool)
        self._over[2:] = (self._labels[2:] >= 0) & (self._labels[:-2] >= 0) & (self._labels[2:] != self._labels[:-2])
        self._star_places = np.array(stars)
        self._star_costs = np.array(costs)  # costs of all sentences before each star

    def push(self, log_probs: np.ndarray) -> None:
        """The next frames (F, V), log-probabilities."""
        blank = log_probs[:, self._blank]
        best_other = np.delete(log_probs, self._blank, axis=1).max(1)
        star = np.maximum(blank, best_other - np.float32(self._costs.star))
        gap = blank - np.float32(self._costs.gap)
        table = np.column_stack([log_probs, gap, star, blank]).astype(np.float32)  # `_GAP`, `_STAR`, `_BLANK`
        for row in table:
            if self._frames % _MOVE_INTERVAL == 0:
                self._move()
            self._step(row)
            self._frames += 1
        self._tables.append(table)

        # Frames far behind the current one are traced back and dropped, so that memory stays bounded.
        if len(self._back) > 2 * self._costs.held_frames:
            self._commit(len(self._back) - self._costs.held_frames)

    def _step(self, row: np.ndarray) -> None:
        base, size, scores = self._base, self._window, self._scores
        states = slice(base, base + size)
        # The first frame is at the first star or the first label.
        if self._frames == 0:
            after = np.full(size, _NEVER, np.float32)
            after[:2] = 0.0
            back = np.zeros(size, np.uint8)
        else:
            after, back = scores.copy(), np.zeros(size, np.uint8)
            _better(after[1:], back[1:], scores[:-1], _NEXT)
            _better(after[2:], back[2:], np.where(self._over[states][2:], scores[:-2], _NEVER), _OVER)

            # A sentence without a sound is left out: from star to star, at a cost.
            first_star, last_star = np.searchsorted(self._star_places, [base, base + size])
            if last_star - first_star > 1:
                self._leave_out(first_star, last_star, scores, after, back)
        self._scores = after + row[self._labels[states]]
        self._back.append(back)
        self._bases.append(base)

    def _leave_out(self, first_star: int, last_star: int, scores: np.ndarray, after: np.ndarray,
                   back: np.ndarray) -> None:
        """From each star of the window to every later one, at the cost of the sentences between."""
        places = self._star_places[first_star:last_star] - self._base
        costs = self._star_costs[first_star:last_star]
        offered = scores[places] + costs
        highest = np.maximum.accumulate(offered)
        origins = np.maximum.accumulate(np.where(offered >= highest, np.arange(first_star, last_star), 0))
        left_out = np.concatenate([[_NEVER], highest[:-1] - costs[1:]])
        better = left_out > after[places]
        if better.any():
            after[places[better]], back[places[better]] = left_out[better], _LEAVE_OUT
            self._origins[self._frames] = (first_star, np.concatenate([[first_star], origins[:-1]]))

    def _move(self) -> None:
        """Let the window follow the most likely state, and keep the scores small."""
        best = int(np.argmax(self._scores))
        if self._frames:
            self._scores = np.maximum(self._scores - self._scores[best], _NEVER)
        middle = self._base + best - self._window // 2
        base = min(max(self._base, middle), len(self._labels) - self._window)
        shift = base - self._base
        if shift > 0:
            self._scores = np.concatenate([self._scores[shift:], np.full(shift, _NEVER, np.float32)])
            self._base = base

    def _trace(self, state: int) -> np.ndarray:
        """The states (F,) of the uncommitted frames on the best path to `state`."""
        path = np.empty(len(self._back), np.int64)
        for frame in range(len(self._back) - 1, -1, -1):
            path[frame] = state
            if frame:
                step = self._back[frame][state - self._bases[frame]]
                state = self._origin(frame, state) if step == _LEAVE_OUT else state - int(step)
                state = max(state, self._bases[frame - 1])
        return path

    def _origin(self, frame: int, state: int) -> int:
        """The star from which sentences were skipped to reach the star at `state`."""
        first_star, origins = self._origins[self._frames - len(self._back) + frame]
        return int(self._star_places[origins[np.searchsorted(self._star_places, state) - first_star]])

    def _commit(self, frames: int) -> None:
        """Fix the path of the first `frames` uncommitted frames."""
        path = self._trace(self._base + int(np.argmax(self._scores)))[:frames]
        self._append_path(path)
        self._back, self._bases = self._back[frames:], self._bases[frames:]
        committed = self._frames - len(self._back)
        self._origins = {frame: origin for frame, origin in self._origins.items() if frame >= committed}

    def _append_path(self, path: np.ndarray) -> None:
        table = np.concatenate(self._tables)
        rows = table[np.arange(len(path)), self._labels[path]]
        loud = (self._labels[path] == _STAR) & (table[:len(path), _STAR] > table[:len(path), _BLANK])
        self._path.append(path)
        self._label_scores.append(rows)
        self._loud.append(loud)
        self._tables = [table[len(path):]]

    def finish(self) -> AlignedLabels:
        """The times of the labels; a label that the window never reached is skipped."""
        begins, ends = np.full(self._count, -1), np.full(self._count, -1)
        scores = np.full(self._count, -np.inf)
        foreign = np.zeros(len(self._star_places), int)
        if self._frames:
            # The text ends at its last label or at the star behind it, if either was reached.
            last = len(self._labels) - 1 - self._base
            ending = [place for place in (last, last - 1) if 0 <= place < self._window]
            best = max(ending, key=lambda place: self._scores[place], default=-1)
            reached = best >= 0 and self._scores[best] > _NEVER / 2
            self._append_path(self._trace(self._base + (best if reached else int(np.argmax(self._scores)))))
            path = np.maximum.accumulate(np.concatenate(self._path))
            self._read(path, np.concatenate(self._label_scores), np.concatenate(self._loud),
                       begins, ends, scores, foreign)
        return AlignedLabels(begins, ends, scores, foreign, self._frames)

    def _read(self, path: np.ndarray, label_scores: np.ndarray, loud: np.ndarray, begins: np.ndarray, ends: np.ndarray,
              scores: np.ndarray, foreign: np.ndarray) -> None:
        edges = np.flatnonzero(np.diff(path)) + 1
        for begin, end in zip([0, *edges], [*edges, len(path)], strict=True):
            owner = int(self._owners[path[begin]])
            if owner >= 0:
                begins[owner], ends[owner] = begin, end
                scores[owner] = float(label_scores[begin:end].mean())
        # a run of loud frames is one sound
        starts = np.flatnonzero(loud & ~np.concatenate([[False], loud[:-1]]))
        np.add.at(foreign, np.searchsorted(self._star_places, path[starts]), 1)


def _better(after: np.ndarray, back: np.ndarray, offered: np.ndarray, step: int) -> None:
    """Take the higher score, in place."""
    better = offered > after
    np.copyto(after, offered, where=better)
    back[better] = step
