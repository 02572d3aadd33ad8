"""Estimates that are sums of ratios of sums over episodes: means, importance-weighted means, and their differences.

An estimate keeps what every episode adds to it, so that it can be computed again for resampled episodes::

    value = sum_j ( sum_i numerators[i, j] / sum_i denominators[i, j] )

A plain mean has one column and denominators of one. A self-normalised mean has its weights as denominators. An
estimator that normalises at every step has one column per step.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.types import DatasetError

Floats = NDArray[np.float64]


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
        """Standard error of the value, by how much each episode moves it."""
        return float(self.replicate(np.ones((1, len(self)))).errors[0])

    @property
    def degrees(self) -> int:
        """What squared deviations are divided by: one less than the episodes for means, their number for ratios."""
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
