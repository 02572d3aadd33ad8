"""Statistics over several seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray


def interquartile_mean(values: Sequence[float] | NDArray[np.float64]) -> float:
    """Mean of the middle half: a quarter of the values, rounded down, is left out at each end."""
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    cut = len(ordered) // 4
    return float(ordered[cut : len(ordered) - cut].mean())


def bootstrap_interval(
    values: Sequence[float],
    *,
    statistic: Callable[[NDArray[np.float64]], float] = interquartile_mean,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic over resampled runs; with one run it is that run."""
    array = np.asarray(values, dtype=np.float64)
    draws = np.random.default_rng(seed).integers(len(array), size=(resamples, len(array)))
    estimates = np.array([statistic(array[draw]) for draw in draws])
    low, high = np.quantile(estimates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def bootstrap_band(
    values: NDArray[np.float64], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Percentile interval of the mean over resampled rows, for every column."""
    runs = len(values)
    draws = np.random.default_rng(seed).integers(runs, size=(resamples, runs))
    # How often each run was drawn: a mean over a resample is a weighted mean over runs.
    shares = (draws[:, :, None] == np.arange(runs)).sum(axis=1) / runs
    low, high = np.quantile(shares @ values, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """P-values adjusted for their number: rejecting those below 5 % errs in at most 5 % of families of tests."""
    array = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    factors = np.arange(len(array), 0, -1)
    adjusted = np.empty_like(array)
    # A hypothesis is rejected only if all with smaller p-values are.
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * array[order]), 1)
    return adjusted


def score_profile(
    scores: Sequence[float] | NDArray[np.float64], thresholds: Sequence[float] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """For every run, a row that is 1 where its score is above a threshold; their mean is the performance profile."""
    above = np.asarray(scores, dtype=np.float64)[:, None] > np.asarray(thresholds, dtype=np.float64)
    return above.astype(np.float64)


def probability_of_improvement(
    first: Sequence[float] | NDArray[np.float64], second: Sequence[float] | NDArray[np.float64]
) -> float:
    """The probability that a run of the first kind scores higher than one of the second; equal scores count half."""
    return float(_wins(first, second).mean())


def improvement_interval(
    first: Sequence[float], second: Sequence[float], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[float, float]:
    """Percentile interval of the probability of improvement, over resampled runs of both kinds."""
    wins, rng = _wins(first, second), np.random.default_rng(seed)
    rows, columns = (rng.integers(count, size=(resamples, count)) for count in wins.shape)
    estimates = wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2))
    low, high = np.quantile(estimates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


MOST_SPLITS = 200_000
"""Ways to deal scores out to two groups that are all looked at; of more, as many are drawn at random."""


def rank_test(first: Sequence[float], second: Sequence[float], *, seed: int = 0) -> float:
    """P-value of the hypothesis that two kinds of runs score alike, two-sided.

    It is the share of ways to deal all scores out to the two kinds in which one wins as clearly as here.
    """
    scores, count = np.asarray([*first, *second], dtype=np.float64), len(first)
    gap = abs(probability_of_improvement(first, second) - 0.5)
    if math.comb(len(scores), count) <= MOST_SPLITS:
        splits = np.array(list(itertools.combinations(range(len(scores)), count)))
    else:
        rng = np.random.default_rng(seed)
        splits = np.argsort(rng.random((MOST_SPLITS, len(scores))), axis=1)[:, :count]
    ranks = 0.5 * (1 + np.sign(np.subtract.outer(scores, scores)))
    chosen = np.zeros((len(splits), len(scores)))
    np.put_along_axis(chosen, splits, 1.0, axis=1)
    wins = ((chosen @ ranks) * (1 - chosen)).sum(axis=1) / (count * (len(scores) - count))
    return float((np.abs(wins - 0.5) >= gap - 1e-12).mean())


def _wins(
    first: Sequence[float] | NDArray[np.float64], second: Sequence[float] | NDArray[np.float64]
) -> NDArray[np.float64]:
    """For every pair of runs, 1 where the first scores higher, 0 where the second does, 1/2 where they are equal."""
    gaps = np.subtract.outer(np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64))
    wins: NDArray[np.float64] = 0.5 * (1 + np.sign(gaps))
    return wins
