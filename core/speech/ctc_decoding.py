"""Reading the output of a CTC model: prefix beam search with a character n-gram."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

_NEVER = -math.inf
_MOST_LABELS = 20  # labels that are tried in a frame


class CharacterNGram:
    """Interpolated n-gram over labels, smoothed by Witten and Bell (1991); it knows no words."""

    def __init__(self, sequences: Iterable[Sequence[int]], labels: int, order: int = 6) -> None:
        self._labels, self._order = labels, order
        self._counts: dict[tuple[int, ...], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        self._totals: dict[tuple[int, ...], int] = defaultdict(int)
        self._cache: dict[tuple[tuple[int, ...], int], float] = {}
        for sequence in sequences:
            padded = (-1, *sequence)
            for end in range(1, len(padded)):
                for start in range(max(0, end - order + 1), end + 1):
                    self._counts[padded[start:end]][padded[end]] += 1
                    self._totals[padded[start:end]] += 1

    def log_probability(self, prefix: Sequence[int], label: int) -> float:
        """Of `label` after `prefix`, which begins at the begin of a text."""
        context = (-1, *prefix)[-(self._order - 1):] if self._order > 1 else ()
        key = (tuple(context), label)
        if key not in self._cache:
            self._cache[key] = math.log(self._probability(*key))
        return self._cache[key]

    def _probability(self, context: tuple[int, ...], label: int) -> float:
        lower = self._probability(context[1:], label) if context else 1 / self._labels
        total = self._totals.get(context, 0)
        if not total:
            return lower
        followers = self._counts[context]
        return (followers.get(label, 0) + len(followers) * lower) / (total + len(followers))


def greedy(log_probs: np.ndarray, blank: int = 0) -> list[int]:
    """The labels of the likeliest path through (F, V)."""
    best = log_probs.argmax(1)
    return [int(label) for frame, label in enumerate(best)
            if label != blank and (frame == 0 or best[frame - 1] != label)]


def beam_search(log_probs: np.ndarray, language_model: CharacterNGram, weight: float = 0.5, bonus: float = 1.0,
                width: int = 24, threshold: float = 1e-3, blank: int = 0) -> list[int]:
    """The likeliest labels for (F, V) by prefix beam search (Hannun et al. 2014).

    `weight`: of the language model. `bonus`: nats for each label, against its preference for short texts.
    `threshold`: labels of a frame with a lower probability are not tried.
    """
    beams: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, _NEVER)}  # log-probability ending in blank, in label
    language_scores: dict[tuple[int, ...], float] = {(): 0.0}
    for frame in log_probs:
        likeliest = np.argsort(-frame)[:_MOST_LABELS]
        labels = [int(label) for label in likeliest if label != blank and frame[label] > math.log(threshold)]
        grown: dict[tuple[int, ...], list[float]] = defaultdict(lambda: [_NEVER, _NEVER])
        for prefix, (in_blank, in_label) in beams.items():
            # The prefix stays as it is: with a blank, or with its last label again.
            total = _add(in_blank, in_label)
            stay = grown[prefix]
            stay[0] = _add(stay[0], total + float(frame[blank]))
            if prefix:
                stay[1] = _add(stay[1], in_label + float(frame[prefix[-1]]))

            # Or it grows by a label; equal labels in a row need a blank between them.
            for label in labels:
                repeats = bool(prefix) and prefix[-1] == label
                score = (in_blank if repeats else total) + float(frame[label])
                if score == _NEVER:
                    continue
                longer = (*prefix, label)
                if longer not in language_scores:
                    language_scores[longer] = (language_scores[prefix] + bonus
                                               + weight * language_model.log_probability(prefix, label))
                new = grown[longer]
                new[1] = _add(new[1], score)

        # Keep the best prefixes by both models.
        ranked = sorted(grown.items(), key=lambda item: _add(*item[1]) + language_scores[item[0]], reverse=True)
        beams = {prefix: (scores[0], scores[1]) for prefix, scores in ranked[:width]}

    best = max(beams, key=lambda prefix: _add(*beams[prefix]) + language_scores[prefix])
    return list(best)


def _add(log_p: float, log_q: float) -> float:
    """The logarithm of the sum of two probabilities."""
    if log_p < log_q:
        log_p, log_q = log_q, log_p
    return log_p if log_q == _NEVER else log_p + math.log1p(math.exp(log_q - log_p))
