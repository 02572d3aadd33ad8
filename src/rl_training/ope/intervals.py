"""Estimates over episodes and their confidence intervals: means, importance-weighted means, and their differences.

An estimate keeps the contribution of every episode, so that it can be computed again for resampled episodes::

    value = sum_j ( sum_i numerators[i, j] / sum_i denominators[i, j] )

A plain mean has one column and denominators of one. A self-normalised mean has its weights as denominators. An
estimator that normalises at every step has one column per step.

The unit is the episode, never the row. Resampling depends on the number of episodes and the seed only, so estimates of
several policies from one log are resampled together.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.core.errors import DatasetError
from rl_training.core.statistics import NORMAL

Floats = NDArray[np.float64]

RESAMPLES = 2000
FEWEST_EPISODES = 10
"""With fewer episodes no interval has its nominal coverage."""
CHUNK = 4_000_000
"""Numbers of resampled episodes that are in memory at once."""


@dataclass(frozen=True, eq=False)
class EpisodeEstimate:
    """A sum of ratios of sums over independent episodes."""

    numerators: Floats
    """(episodes, columns)"""
    denominators: Floats
    """(episodes, columns)"""

    @classmethod
    def of_mean(cls, values: ArrayLike) -> EpisodeEstimate:
        """The mean of one value per episode."""
        column = np.asarray(values, dtype=np.float64).reshape(-1, 1)
        return cls(column, np.ones_like(column))

    @classmethod
    def of_weighted_mean(cls, values: ArrayLike, weights: ArrayLike) -> EpisodeEstimate:
        """The mean of values with weights that are divided by their sum."""
        column = np.asarray(weights, dtype=np.float64).reshape(-1, 1)
        return cls(column * np.asarray(values, dtype=np.float64).reshape(-1, 1), column)

    def __post_init__(self) -> None:
        if self.numerators.shape != self.denominators.shape or self.numerators.ndim != 2 or not len(self.numerators):
            shapes = f"{self.numerators.shape} and {self.denominators.shape}"
            raise DatasetError(f"an estimate needs two arrays (episodes, columns) of equal shape, got {shapes}")

    def __sub__(self, other: EpisodeEstimate) -> EpisodeEstimate:
        """The difference of two estimates from the same episodes: an episode is resampled for both at once."""
        if len(self) != len(other):
            raise DatasetError(f"a paired difference needs the same episodes, got {len(self)} and {len(other)}")
        return EpisodeEstimate(
            np.concatenate([self.numerators, -other.numerators], axis=1),
            np.concatenate([self.denominators, other.denominators], axis=1),
        )

    def __len__(self) -> int:
        return len(self.numerators)

    @property
    def value(self) -> float:
        """The estimate from all episodes."""
        return float(self.replicate(np.ones((1, len(self)))).values[0])

    @property
    def standard_error(self) -> float:
        """Standard error of the value, by the influence of each episode."""
        return float(self.replicate(np.ones((1, len(self)))).errors[0])

    @property
    def degrees(self) -> int:
        """Degrees of freedom: one less than the episodes for means, their number for ratios."""
        return len(self) - int(bool(np.all(self.denominators == 1)))

    def replicate(self, counts: ArrayLike) -> Replicates:
        """The estimate and its standard error if episode i had been logged counts[b, i] times, for every b."""
        repeats = np.asarray(counts, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            scales = len(self) / (repeats @ self.denominators)
            ratios = (repeats @ self.numerators) * scales / len(self)
            influence = self.numerators @ scales.T - self.denominators @ (ratios * scales).T
            errors = np.sqrt((repeats * influence.T**2).sum(axis=1) / (len(self) * self.degrees))
        return Replicates(ratios.sum(axis=1), errors)

    def leave_one_out(self) -> Floats:
        """The estimates without each of the episodes: the jackknife."""
        with np.errstate(divide="ignore", invalid="ignore"):
            numerators = self.numerators.sum(axis=0) - self.numerators
            ratios = numerators / (self.denominators.sum(axis=0) - self.denominators)
        estimates: Floats = ratios.sum(axis=1)
        return estimates


@dataclass(frozen=True, eq=False)
class Replicates:
    """One estimate and its standard error per resample of the episodes."""

    values: Floats
    errors: Floats


class Interval(NamedTuple):
    """A two-sided confidence interval and how it was computed."""

    low: float
    high: float
    method: str


def episode_interval(
    estimate: EpisodeEstimate, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """The interval to report for logged or weighted returns: studentised; None below ten episodes."""
    if len(estimate) < FEWEST_EPISODES:
        return None
    return studentised_interval(estimate, confidence=confidence, resamples=resamples, seed=seed)


def studentised_interval(
    estimate: EpisodeEstimate, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Bootstrap of the estimate's distance from the truth in standard errors, the best interval for skewed returns.

    Resamples with hardly any spread have no such distance. If they are more than 1 %, the interval is BCa.
    """
    replicates = bootstrap(estimate, resamples=resamples, seed=seed)
    error = estimate.standard_error
    usable = np.isfinite(replicates.errors) & (replicates.errors >= 1e-3 * error) & (replicates.errors > 0)
    if usable.mean() < 0.99:
        return _bca(estimate, _finite(replicates.values), confidence)
    distances = (replicates.values[usable] - estimate.value) / replicates.errors[usable]
    low, high = np.quantile(distances, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(estimate.value - high * error), float(estimate.value - low * error), "studentised")


def bootstrap(estimate: EpisodeEstimate, *, resamples: int = RESAMPLES, seed: int = 0) -> Replicates:
    """The estimate and its standard error for resampled episodes; equal seeds draw equal episodes."""
    if len(estimate) < 2:
        raise DatasetError("an interval needs at least 2 episodes, got 1")
    parts = [estimate.replicate(counts) for counts in _resampled_counts(len(estimate), resamples, seed)]
    return Replicates(np.concatenate([part.values for part in parts]), np.concatenate([part.errors for part in parts]))


def acceleration(jackknife: ArrayLike) -> float:
    """The rate at which the standard error changes with the estimate, from estimates without each episode."""
    values = np.asarray(jackknife, dtype=np.float64)
    moves = values.mean() - values
    scale = float((moves**2).sum())
    return float((moves**3).sum()) / (6 * scale**1.5) if scale > 0 else 0.0


def _bca(estimate: EpisodeEstimate, values: Floats, confidence: float) -> Interval:
    share = float((values < estimate.value).mean())
    # A share of 0 or 1 is known to one resample only.
    bias = NORMAL.inv_cdf(min(max(share, 0.5 / len(values)), 1 - 0.5 / len(values)))
    skew = acceleration(_finite(estimate.leave_one_out()))
    levels = []
    for p in ((1 - confidence) / 2, (1 + confidence) / 2):
        z = bias + NORMAL.inv_cdf(p)
        levels.append(NORMAL.cdf(bias + z / (1 - skew * z)))
    low, high = np.quantile(values, levels)
    return Interval(float(low), float(high), "BCa")


def _resampled_counts(episodes: int, resamples: int, seed: int) -> Iterator[Floats]:
    """How often each episode was drawn in each resample, a few resamples at a time."""
    rng = np.random.default_rng(seed)
    rows = max(1, CHUNK // episodes)
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        draws = rng.integers(episodes, size=(size, episodes)) + episodes * np.arange(size)[:, None]
        counts = np.bincount(draws.ravel(), minlength=size * episodes)
        yield counts.reshape(size, episodes).astype(np.float64)


def _finite(values: Floats) -> Floats:
    """Values without those of resamples in which all weights were zero."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise DatasetError("no interval can be computed: the weights of all resampled episodes are zero or infinite")
    return finite
