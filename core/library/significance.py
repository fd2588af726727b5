"""Intervals and tests of ratios of sums: bootstrap, sign-flip permutation and exact binomial, by scipy.

Never loads torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]
RESAMPLES, PERMUTATIONS = 2000, 9999
_SEED = 0


def ratio(numerators: Values, denominators: Values) -> float:
    """The ratio of the sums of (N,) and (N,)."""
    return float(numerators.sum() / denominators.sum())


def bootstrap_interval(numerators: Values, denominators: Values) -> tuple[float, float]:
    """The 95% percentile interval of the ratio of sums over resampled sentences; its own value for one sentence."""
    from scipy import stats  # slow to import

    value = ratio(numerators, denominators)
    if len(numerators) < 2:
        return value, value
    found = stats.bootstrap((numerators, denominators), lambda a, b, axis: a.sum(axis) / b.sum(axis), paired=True,
                            vectorized=True, n_resamples=RESAMPLES, method="percentile", confidence_level=0.95,
                            rng=np.random.default_rng(_SEED))
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def paired_test(first: tuple[Values, Values], second: tuple[Values, Values]) -> tuple[float, float, float, float]:
    """Difference of two ratios over the same sentences, second minus first, its 95% interval, and the p-value.

    Sentences are resampled for the interval. For the two-sided p-value the two models are exchanged at random in each
    sentence; equal values everywhere give 1.
    """
    from scipy import stats  # slow to import

    difference = ratio(*second) - ratio(*first)
    if len(first[0]) < 2 or (np.array_equal(first[0], second[0]) and np.array_equal(first[1], second[1])):
        return difference, difference, difference, 1.0
    found = stats.bootstrap(
        (*first, *second), lambda a, b, c, d, axis: c.sum(axis) / d.sum(axis) - a.sum(axis) / b.sum(axis), paired=True,
        vectorized=True, n_resamples=RESAMPLES, method="percentile", confidence_level=0.95,
        rng=np.random.default_rng(_SEED))
    flips = np.random.default_rng(_SEED).random((PERMUTATIONS, len(first[0]))) < 0.5
    sums = [np.where(flips, one, other).sum(1) for one, other in (
        (second[0], first[0]), (second[1], first[1]), (first[0], second[0]), (first[1], second[1]))]
    exchanged = np.abs(sums[2] / sums[3] - sums[0] / sums[1])
    p_value = (1 + int((exchanged >= abs(difference) - 1e-12).sum())) / (1 + PERMUTATIONS)
    return difference, float(found.confidence_interval.low), float(found.confidence_interval.high), p_value


def crossed_interval(numerators: Values, denominators: Values, listeners: Sequence[object],
                     sentences: Sequence[object]) -> tuple[float, float]:
    """The 95% percentile interval of the ratio of sums of (N,) and (N,), answers of `listeners` to `sentences`.

    Listeners and sentences are drawn apart, each with replacement, and an answer counts as often as both were drawn
    (the pigeonhole bootstrap: A. B. Owen 2007), so that many answers of one person are not many persons. What there
    is one of is not drawn.
    """
    rng = np.random.default_rng(_SEED)
    weights = np.ones((RESAMPLES, len(numerators)))
    for names in (listeners, sentences):
        kinds, places = np.unique(np.array([str(name) for name in names]), return_inverse=True)
        if len(kinds) > 1:
            weights *= rng.multinomial(len(kinds), np.full(len(kinds), 1 / len(kinds)), RESAMPLES)[:, places]
    drawn = weights @ denominators
    values = (weights @ numerators)[drawn > 0] / drawn[drawn > 0]
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)


def exact_binomial(successes: int, trials: int, alternative: Literal["two-sided", "greater"] = "two-sided"
                   ) -> tuple[float, float, float]:
    """The 95% interval of a share (Clopper and Pearson 1934), and the p-value of a half; no trial says nothing."""
    from scipy import stats  # slow to import

    if trials == 0:
        return 0.0, 1.0, 1.0
    interval = stats.binomtest(successes, trials, 0.5).proportion_ci(0.95, "exact")
    return float(interval.low), float(interval.high), float(
        stats.binomtest(successes, trials, 0.5, alternative).pvalue)
