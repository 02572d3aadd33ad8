"""How good is a ranking of policies by estimates, and what does choosing the best of them cost?"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from rl_training.experiment.distributions import NORMAL
from rl_training.experiment.episode_estimates import Floats
from rl_training.types import DatasetError


def average_ranks(values: ArrayLike) -> Floats:
    """Ranks from 1 on; equal values share the mean of their ranks."""
    _, inverse, counts = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    ranks: Floats = (last - (counts - 1) / 2)[inverse]
    return ranks


def spearman(truth: ArrayLike, estimates: ArrayLike) -> float:
    """Correlation of ranks; not a number if all values of one side are equal.

    With few policies it proves little: chance alone exceeds 0.64 in 5 % of cases with ten, and 0.9 with five.
    """
    x, y = _pair(truth, estimates)
    a, b = average_ranks(x), average_ranks(y)
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt((a @ a) * (b @ b))
    return float(a @ b) / scale if scale > 0 else math.nan


def regret_at_k(truth: ArrayLike, estimates: ArrayLike, k: int) -> float:
    """What is lost if only the k policies with the highest estimates are tried, as a share of the range of values."""
    values, guesses = _pair(truth, estimates)
    if not 1 <= k <= len(values):
        raise DatasetError(f"k must be from 1 to {len(values)}, the number of policies, got {k}")
    chosen = np.argsort(-guesses, kind="stable")[:k]
    spread = values.max() - values.min()
    return float((values.max() - values[chosen].max()) / spread) if spread > 0 else 0.0


def winners_curse(candidates: int) -> float:
    """By how many standard errors the highest of several equally good policies is over-estimated.

    It is the expected maximum of `candidates` independent standard normal variables.
    """
    if candidates < 1:
        raise DatasetError(f"the number of candidates must be at least 1, got {candidates}")
    # Equal steps sum a smooth density that vanishes at both ends to many digits.
    x = np.linspace(-12, 12, 2401)
    below = np.array([NORMAL.cdf(value) for value in x])
    density = np.array([NORMAL.pdf(value) for value in x])
    return float((x * candidates * density * below ** (candidates - 1)).sum() * (x[1] - x[0]))


def expected_online_performance(values: ArrayLike, budget: int) -> float:
    """Mean of the best of `budget` candidates that are picked at random, with replacement, and tried once each.

    Every way of choosing must beat it. `values` are the true means of all candidates.
    """
    if budget < 1:
        raise DatasetError(f"the budget must be at least 1, got {budget}")
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    chances = np.diff((np.arange(len(ordered) + 1) / len(ordered)) ** budget)
    return float(ordered @ chances)


def _pair(truth: ArrayLike, estimates: ArrayLike) -> tuple[Floats, Floats]:
    x, y = np.asarray(truth, dtype=np.float64), np.asarray(estimates, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise DatasetError(f"a ranking needs two values each of at least 2 policies, got {x.shape} and {y.shape}")
    return x, y
