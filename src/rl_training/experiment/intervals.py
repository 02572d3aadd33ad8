"""Confidence intervals over episodes, and bounds that assume no distribution.

The unit is the episode, never the row. Resampling depends on the number of episodes and the seed only, so that
estimates for several policies from one log are resampled together.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from rl_training.experiment.distributions import NORMAL, student_quantile
from rl_training.experiment.episode_estimates import EpisodeEstimate, Floats, Replicates
from rl_training.types import DatasetError

RESAMPLES = 2000
FEWEST_EPISODES = 10
"""With fewer episodes no interval keeps its promise."""
CHUNK = 4_000_000
"""Numbers of resampled episodes that are in memory at once."""


class Interval(NamedTuple):
    """A two-sided confidence interval and how it was computed."""

    low: float
    high: float
    method: str


def episode_interval(
    estimate: EpisodeEstimate, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval | None:
    """The interval to report for logged or weighted returns: studentised, and none below ten episodes."""
    if len(estimate) < FEWEST_EPISODES:
        return None
    return studentised_interval(estimate, confidence=confidence, resamples=resamples, seed=seed)


def t_interval(estimate: EpisodeEstimate, *, confidence: float = 0.95) -> Interval:
    """Student's interval: exact for normal values, too high or too low for skewed ones."""
    _check_episodes(estimate)
    reach = student_quantile((1 + confidence) / 2, len(estimate) - 1) * estimate.standard_error
    return Interval(estimate.value - reach, estimate.value + reach, "t")


def percentile_interval(
    estimate: EpisodeEstimate, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Quantiles of the estimates from resampled episodes."""
    values = _finite(bootstrap(estimate, resamples=resamples, seed=seed).values)
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high), "percentile")


def bca_interval(
    estimate: EpisodeEstimate, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Quantiles of resampled estimates at levels that are corrected for bias and skewness."""
    values = _finite(bootstrap(estimate, resamples=resamples, seed=seed).values)
    return _bca(estimate, values, confidence)


def studentised_interval(
    estimate: EpisodeEstimate, *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Bootstrap of the estimate's distance from the truth in standard errors: the best choice for skewed returns.

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


def simultaneous_lower_bounds(
    estimates: Sequence[EpisodeEstimate], *, confidence: float = 0.95, resamples: int = RESAMPLES, seed: int = 0
) -> list[float]:
    """Lower bounds that hold for all estimates at once with the given confidence.

    The estimates come from the same episodes, such as the differences of several policies from the logged one.
    """
    errors = np.array([estimate.standard_error for estimate in estimates])
    values = np.array([estimate.value for estimate in estimates])
    draws = np.stack([bootstrap(one, resamples=resamples, seed=seed).values for one in estimates], axis=1)
    moves = draws - values
    # An estimate without spread has a bound at its value; it must not decide about the others.
    distances = np.divide(moves, errors, out=np.zeros_like(moves), where=errors > 0)
    reach = np.quantile(_finite(distances.max(axis=1)), confidence)
    return [float(bound) for bound in values - reach * errors]


def bootstrap(estimate: EpisodeEstimate, *, resamples: int = RESAMPLES, seed: int = 0) -> Replicates:
    """The estimate and its standard error for resampled episodes; equal seeds draw equal episodes."""
    _check_episodes(estimate)
    parts = [estimate.replicate(counts) for counts in _resampled_counts(len(estimate), resamples, seed)]
    return Replicates(np.concatenate([part.values for part in parts]), np.concatenate([part.errors for part in parts]))


def acceleration(jackknife: ArrayLike) -> float:
    """How fast the standard error changes with the estimate, from the estimates without each episode."""
    values = np.asarray(jackknife, dtype=np.float64)
    moves = values.mean() - values
    scale = float((moves**2).sum())
    return float((moves**3).sum()) / (6 * scale**1.5) if scale > 0 else 0.0


def t_lower_bound(values: ArrayLike, *, delta: float = 0.05) -> float:
    """One-sided Student bound: the mean is above it with probability 1 - delta if values are normal."""
    return t_interval(EpisodeEstimate.of_mean(values), confidence=1 - 2 * delta).low


def hoeffding_lower_bound(values: ArrayLike, *, low: float, high: float, delta: float = 0.05) -> float:
    """The mean is above it with probability 1 - delta, for values in a range that is known beforehand."""
    x = _in_range(values, low, high)
    return float(x.mean()) - (high - low) * math.sqrt(math.log(1 / delta) / (2 * len(x)))


def hoeffding_interval(values: ArrayLike, *, low: float, high: float, confidence: float = 0.95) -> Interval:
    """Two-sided Hoeffding interval, for values in a range that is known beforehand."""
    x = _in_range(values, low, high)
    reach = (high - low) * math.sqrt(math.log(2 / (1 - confidence)) / (2 * len(x)))
    return Interval(float(x.mean()) - reach, float(x.mean()) + reach, "Hoeffding")


def bernstein_lower_bound(values: ArrayLike, *, low: float, high: float, delta: float = 0.05) -> float:
    """Empirical Bernstein bound: tighter than Hoeffding's where the variance is small against the range."""
    x = _in_range(values, low, high)
    log = math.log(2 / delta)
    return float(x.mean()) - math.sqrt(2 * x.var(ddof=1) * log / len(x)) - 7 * (high - low) * log / (3 * (len(x) - 1))


def anderson_lower_bound(values: ArrayLike, *, low: float, high: float, delta: float = 0.05) -> float:
    """The smallest mean of any distribution inside the Dvoretzky-Kiefer-Wolfowitz band around the values."""
    x = _in_range(values, low, high)
    n = len(x)
    gaps = np.diff(np.concatenate([[low], np.sort(x), [high]]))
    below = np.minimum(1, np.arange(n + 1) / n + math.sqrt(math.log(1 / delta) / (2 * n)))
    return float(high - (gaps * below).sum())


def clipped_lower_bound(values: ArrayLike, *, cap: float, delta: float = 0.05) -> float:
    """Bound for values of at least 0 without a known maximum, such as weighted returns: clip them, then Bernstein.

    It holds for every `cap` that was fixed without looking at these values.
    """
    return bernstein_lower_bound(np.minimum(_in_range(values, 0, math.inf), cap), low=0, high=cap, delta=delta)


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


def _check_episodes(estimate: EpisodeEstimate) -> None:
    if len(estimate) < 2:
        raise DatasetError("an interval needs at least 2 episodes, got 1")


def _finite(values: Floats) -> Floats:
    """Values without those of resamples in which all weights were zero."""
    finite = values[np.isfinite(values)]
    if not len(finite):
        raise DatasetError("no interval can be computed: the weights of all resampled episodes are zero or infinite")
    return finite


def _in_range(values: ArrayLike, low: float, high: float) -> Floats:
    x = np.asarray(values, dtype=np.float64).ravel()
    if len(x) < 2:
        raise DatasetError(f"a bound needs at least 2 values, got {len(x)}")
    if not (x.min() >= low and x.max() <= high):
        raise DatasetError(f"the bound holds for values in [{low:g}, {high:g}], got [{x.min():g}, {x.max():g}]")
    return x
