"""Distributions, tests and bootstrap intervals, over seeds and over tasks with several seeds each.

Interquartile means, profiles and probabilities of improvement are as rliable defines them. SciPy is imported inside
functions, since it takes long to load.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = "NDArray[np.float64]"
Scores: TypeAlias = "Sequence[float] | NDArray[np.float64]"
"""A score per run."""
NORMAL = NormalDist()


def histogram(values: NDArray[np.floating], bins: int | Scores) -> tuple[list[int], list[float]]:
    """The counts and edges of a histogram, for JSON; `bins` are a number of equal ones, or their edges."""
    counts, edges = np.histogram(values, bins=bins)
    return counts.tolist(), edges.tolist()


def student_cdf(x: float, df: float) -> float:
    """Probability that a Student variable with `df` degrees of freedom is at most x."""
    from scipy.special import stdtr

    return float(stdtr(df, x))


def student_quantile(p: float, df: float) -> float:
    """The x below which a Student variable with `df` degrees of freedom falls with probability p."""
    from scipy.special import stdtrit

    return float(stdtrit(df, p))


def rank_correlation(first: Scores, second: Scores) -> float:
    """Spearman's correlation, where equal values share their mean rank; not a number if all values of one are equal."""
    from scipy.stats import spearmanr

    if not np.ptp(first) or not np.ptp(second):
        return math.nan
    return float(spearmanr(first, second).statistic)


def interquartile_mean(values: Scores | Numbers) -> float:
    """Mean of the middle half of all values: a quarter of them, rounded down, is left out at each end.

    Of a matrix of runs and tasks, all values count together, so that this is rliable's `aggregate_iqm`.
    """
    return float(_middle_means(np.ravel(np.asarray(values, dtype=np.float64))[None])[0])


def _middle_means(rows: Numbers) -> Numbers:
    """The interquartile mean of every row."""
    ordered, cut = np.sort(rows, axis=1), rows.shape[1] // 4
    means: Numbers = ordered[:, cut : rows.shape[1] - cut].mean(axis=1)
    return means


def bootstrap_interval(
    tasks: Sequence[Scores],
    *,
    statistic: Callable[[Numbers], float] = interquartile_mean,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of a statistic of all scores; the runs of each task are resampled by themselves."""
    rng, arrays = np.random.default_rng(seed), [np.asarray(scores, dtype=np.float64) for scores in tasks]
    drawn = np.concatenate([array[_draws(rng, len(array), resamples)] for array in arrays], axis=1)
    if statistic is interquartile_mean:
        # All resamples at once: a sweep may have many rows.
        estimates = _middle_means(drawn)
    else:
        estimates = np.array([statistic(each) for each in drawn])
    return _percentiles(estimates, confidence)


def bootstrap_band(
    tasks: Sequence[Numbers], *, confidence: float = 0.95, resamples: int = 2000, seed: int = 0
) -> tuple[Numbers, Numbers]:
    """Percentile interval of the mean over all rows for every column; each task's rows are resampled alone."""
    rng, total = np.random.default_rng(seed), sum(map(len, tasks))
    # How often each run was drawn: a mean over a resample is a weighted mean over runs.
    counts = [(_draws(rng, len(rows), resamples)[:, :, None] == np.arange(len(rows))).sum(axis=1) for rows in tasks]
    means = np.concatenate(counts, axis=1) / total @ np.concatenate(tasks)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def _draws(rng: np.random.Generator, count: int, resamples: int) -> NDArray[np.int64]:
    """Which of `count` runs each resample has."""
    return rng.integers(count, size=(resamples, count))


def _percentiles(estimates: Numbers, confidence: float) -> tuple[float, float]:
    low, high = np.quantile(estimates, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def holm(p_values: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """P-values adjusted for their number: rejecting those below 5 % errs in at most 5 % of families of tests."""
    array = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(array, kind="stable")
    factors = np.arange(len(array), 0, -1)
    adjusted = np.empty_like(array)
    # A hypothesis is rejected only if all with smaller p-values are.
    adjusted[order] = np.minimum(np.maximum.accumulate(factors * array[order]), 1)
    return adjusted


def score_profile(scores: Scores, thresholds: Scores) -> Numbers:
    """For every run, a row that is 1 where its score is above a threshold; their mean is the performance profile."""
    above = np.asarray(scores, dtype=np.float64)[:, None] > np.asarray(thresholds, dtype=np.float64)
    return above.astype(np.float64)


def improvement_over_tasks(first: Sequence[Scores], second: Sequence[Scores]) -> float:
    """The mean over tasks of the probability of improvement; scores of different tasks are never compared."""
    return float(np.mean([_wins(*pair).mean() for pair in zip(first, second, strict=True)]))


MOST_SPLITS = 200_000
"""Ways to deal scores out to two groups that are all looked at; of more, as many are drawn at random."""


def rank_test(first: Sequence[Scores], second: Sequence[Scores], *, seed: int = 0) -> tuple[float, float]:
    """P-values of "the first kind of runs scores no higher" and of "it scores no lower", by the scores on each task.

    They are the shares of ways to deal the scores of each task out to the two kinds in which one wins as clearly as
    here. Both are doubled, since either kind may be the better one: the smaller is that of a two-sided test.
    """
    tasks = list(zip(first, second, strict=True))
    is_exact = math.prod(math.comb(len(a) + len(b), len(a)) for a, b in tasks) <= MOST_SPLITS
    rng, observed = np.random.default_rng(seed), sum(float(_wins(a, b).mean()) for a, b in tasks)
    sums = np.zeros(1)
    for a, b in tasks:
        wins = _dealt_wins(a, b, None if is_exact else rng)
        sums = np.add.outer(sums, wins).ravel() if is_exact else sums + wins
    # Of ways that are drawn, the one that was seen is one too: no p-value is 0.
    sums = sums if is_exact else np.append(sums, observed)
    higher, lower = (float((gaps >= -1e-9).mean()) for gaps in (sums - observed, observed - sums))
    return min(2 * higher, 1.0), min(2 * lower, 1.0)


def _dealt_wins(first: Scores, second: Scores, rng: np.random.Generator | None) -> Numbers:
    """The share of pairs that the first group wins for every way to deal all scores out, or for ways that are drawn."""
    scores, count = np.asarray([*first, *second], dtype=np.float64), len(first)
    if rng is None:
        splits = np.array(list(itertools.combinations(range(len(scores)), count)))
    else:
        splits = np.argsort(rng.random((MOST_SPLITS, len(scores))), axis=1)[:, :count]
    chosen = np.zeros((len(splits), len(scores)))
    np.put_along_axis(chosen, splits, 1.0, axis=1)
    wins: Numbers = ((chosen @ _wins(scores, scores)) * (1 - chosen)).sum(axis=1) / (count * (len(scores) - count))
    return wins


def bootstrap_improvement(
    first: Sequence[Scores],
    second: Sequence[Scores],
    *,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile interval of the mean over tasks, where the runs of each task and kind are resampled by themselves."""
    rng, estimates = np.random.default_rng(seed), []
    for pair in zip(first, second, strict=True):
        wins = _wins(*pair)
        rows, columns = (_draws(rng, count, resamples) for count in wins.shape)
        estimates.append(wins[rows[:, :, None], columns[:, None, :]].mean(axis=(1, 2)))
    return _percentiles(np.mean(estimates, axis=0), confidence)


def _wins(first: Scores, second: Scores) -> Numbers:
    """For every pair of runs, 1 where the first scores higher, 0 where the second does, 1/2 where they are equal."""
    gaps = np.subtract.outer(np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64))
    wins: Numbers = 0.5 * (1 + np.sign(gaps))
    return wins
