"""Checks of importance weights: diagnostics, and when an estimate is refused.

No check can see what a log does not contain. A variance that is infinite because of episodes that are too rare to be
logged passes all of them. Where states repeat, a log can show it before such episodes come: the mean squared weight of
episodes grows from step to step by the matrix

    M[s, s'] = sum_a pi(a | s)^2 / b(a | s) * P(s' | s, a)

If its spectral radius is 1 or more and episodes have no fixed length, the variance is infinite, even if no logged
episode is long enough to show it in its weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.core.statistics import NORMAL
from rl_training.ope.intervals import EpisodeEstimate, Floats

Level = Literal["proceed", "warn", "refuse"]
LEVELS: tuple[Level, ...] = ("proceed", "warn", "refuse")

ROUNDING = 1e-5
"""Weights that should be equal differ by rounding: logarithms of probabilities are stored in single precision."""
ROUNDED = 1e-3
"""A mean weight this close to 1 is 1: logged probabilities have few digits."""

Numbers = NDArray[np.int64]
POOLED = 10.0
"""Rows of the whole state that are added to those of a pair of state and action, which may be few."""
ROUNDS = 200
LAST = 50
"""Rounds at the end whose growth is averaged, since it may alternate."""


class WeightVerdict(NamedTuple):
    """Whether importance weights support an estimate, with a sentence per reason."""

    level: Level
    reasons: tuple[str, ...]


class WeightCheck(NamedTuple):
    """Level and reason of a check that warns or refuses."""

    level: Level
    reason: str


@dataclass(frozen=True, eq=False)
class WeightDiagnostics:
    """Diagnostics of importance weights; arrays have one value per step."""

    episodes: int
    effective_sample_sizes: Floats
    """`(sum w)^2 / sum w^2`: the number of equally weighted episodes that would be as good."""
    largest_shares: Floats
    """Share of the largest weight in the sum."""
    means: Floats
    """Mean weights; 1 is expected at every step."""
    mean_errors: Floats
    """Standard errors of the mean weights."""
    tail_index: float
    """Index k of a generalised Pareto distribution fitted to the largest final weights; the variance is infinite from
    0.5 on. Not a number if the tail is too short."""
    zero_propensities: float
    """Share of rows whose logged action has no probability under the behaviour policy."""
    unsupported: float | None
    """The policy's mean probability of actions that the behaviour policy never takes; None if unknown."""


def diagnose(
    weights: ArrayLike, *, behavior_log_probs: ArrayLike | None = None, unsupported: float | None = None
) -> WeightDiagnostics:
    """Diagnostics of weights (episodes, steps), or (rows,) where every row is an episode."""
    array = np.asarray(weights, dtype=np.float64)
    count = len(array)
    array = array.reshape(count, -1)
    zero = 0.0 if behavior_log_probs is None else float(np.isneginf(np.asarray(behavior_log_probs)).mean())
    with np.errstate(over="ignore", invalid="ignore"):
        errors = array.std(axis=0, ddof=1) / math.sqrt(count) if count > 1 else np.full(array.shape[1], np.inf)
    return WeightDiagnostics(
        episodes=count,
        effective_sample_sizes=np.array([effective_sample_size(column) for column in array.T]),
        largest_shares=np.array([largest_share(column) for column in array.T]),
        means=array.mean(axis=0),
        mean_errors=errors,
        tail_index=tail_index(array[:, -1]),
        zero_propensities=zero,
        unsupported=unsupported,
    )


def effective_sample_size(weights: ArrayLike) -> float:
    """The number of equally weighted episodes that would be as good; 0 if all weights are 0."""
    array = np.asarray(weights, dtype=np.float64)
    largest = array.max()
    if largest == 0:
        return 0.0
    scaled = array / largest  # squares of large weights would be infinite
    return float(scaled.sum() ** 2 / (scaled**2).sum())


def largest_share(weights: ArrayLike) -> float:
    """Share of the largest weight in their sum; 1 if all weights are 0."""
    array = np.asarray(weights, dtype=np.float64)
    return float(1 / (array / array.max()).sum()) if array.max() > 0 else 1.0


def tail_index(weights: ArrayLike) -> float:
    """Index k of the largest min(n/5, 3 sqrt(n)) weights, shrunk a little towards 1/2 since they may be few.

    The fit is that of Zhang and Stephens (2009), the shrinkage that of "Pareto Smoothed Importance Sampling". Equal
    weights have the index 0; not a number if fewer than five weights stand out.
    """
    array = np.sort(np.asarray(weights, dtype=np.float64))
    size = math.ceil(min(0.2 * len(array), 3 * math.sqrt(len(array))))
    if size < 5:
        return math.nan
    cutoff = array[-size - 1]
    above = array[-size:] - cutoff
    # Only values that are above the cutoff by more than rounding belong to a tail.
    tail = above[above > ROUNDING * array[-1]]
    if not len(tail):
        return 0.0
    if len(tail) < 5:
        return math.nan
    return (len(tail) * _pareto_index(tail / tail[-1]) + 10 * 0.5) / (len(tail) + 10)


def check_weights(diagnostics: WeightDiagnostics, *others: WeightCheck | None) -> WeightVerdict:
    """Proceed, warn or refuse: the worst level of all checks and of `others`, with the reasons of those that fail."""
    checks = [*(check(diagnostics) for check in (_effective, _share, _mean, _tail, _support)), *others]
    failed = [each for each in checks if each is not None]
    worst = max((LEVELS.index(each.level) for each in failed), default=0)
    return WeightVerdict(LEVELS[worst], tuple(each.reason for each in failed))


def check_cuts(lengths: ArrayLike, truncated: ArrayLike, final_weights: ArrayLike) -> WeightCheck | None:
    """Refuse episodes of different lengths at truncation if the policy's would be truncated elsewhere.

    An estimate counts rewards up to the truncation. That is fair only if all policies are truncated alike.
    """
    is_cut = np.asarray(truncated, dtype=bool)
    cuts = np.asarray(lengths, dtype=np.float64)[is_cut]
    if len(np.unique(cuts)) < 2:
        return None
    weighted = EpisodeEstimate.of_weighted_mean(cuts, np.asarray(final_weights)[is_cut])
    move = weighted - EpisodeEstimate.of_mean(cuts)
    said = f"{len(cuts)} episodes were truncated, after {cuts.min():.0f} to {cuts.max():.0f} steps"
    if not abs(move.value) <= 3 * move.standard_error + ROUNDING * cuts.max():
        means = f"{cuts.mean():.1f} steps on average in the log and {weighted.value:.1f} under the policy"
        return WeightCheck("refuse", f"{said}; truncation depends on the policy: {means}")
    return WeightCheck("warn", f"{said}; the estimate is of the return up to the truncation")


def _effective(found: WeightDiagnostics) -> WeightCheck | None:
    effective, n = found.effective_sample_sizes[-1], found.episodes
    said = f"the effective sample size is {effective:.1f} of {n} episodes"
    if not (effective >= 30 and effective >= 0.01 * n):
        return WeightCheck("refuse", f"{said}; at least 30 and 1 % are needed")
    if not (effective >= 100 and effective >= 0.1 * n):
        return WeightCheck("warn", f"{said}; 100 and 10 % would be safe")
    return None


def _share(found: WeightDiagnostics) -> WeightCheck | None:
    share = found.largest_shares[-1]
    said = f"one episode has {share:.1%} of all weight"
    if not share < 0.1:
        return WeightCheck("refuse", f"{said}; at most 10 % can be accepted")
    return WeightCheck("warn", f"{said}; below 2 % would be safe") if share >= 0.02 else None


def _mean(found: WeightDiagnostics) -> WeightCheck | None:
    with np.errstate(divide="ignore", invalid="ignore"):
        distances = np.maximum(np.abs(found.means - 1) - ROUNDED, 0) / found.mean_errors
    distances[np.abs(found.means - 1) <= ROUNDED] = 0
    said = f"the mean weight is {found.means[-1]:.4g}, {distances[-1]:.1f} standard errors from 1"
    why = "the logged probabilities are wrong, or the policy takes actions that are not in the log"
    if not (distances[-1] <= 3 and math.isfinite(found.mean_errors[-1])):
        return WeightCheck("refuse", f"{said}: {why}")
    if distances[-1] > 2:
        return WeightCheck("warn", said)
    # As unlikely for the worst of all steps as three standard errors are for one.
    if distances.max() > -NORMAL.inv_cdf(NORMAL.cdf(-3) / len(distances)):
        step = int(distances.argmax())
        return WeightCheck("warn", f"at step {step} the mean weight is {found.means[step]:.4g} instead of 1: {why}")
    return None


def _tail(found: WeightDiagnostics) -> WeightCheck | None:
    if math.isnan(found.tail_index) or found.tail_index < 0.5:
        return None
    said = f"the tail index of the weights is {found.tail_index:.2f}; from 0.5 on their variance is infinite"
    return WeightCheck("refuse" if found.tail_index >= 0.7 else "warn", said)


def _support(found: WeightDiagnostics) -> WeightCheck | None:
    if found.zero_propensities > 0:
        return WeightCheck("refuse", f"{found.zero_propensities:.2%} of the logged actions have a probability of zero")
    if not found.unsupported:
        return None
    said = f"the policy gives {found.unsupported:.2%} of its probability to actions that the log never has"
    return WeightCheck("refuse" if found.unsupported >= 1e-3 else "warn", said)


def _pareto_index(tail: Floats) -> float:
    """Index k of a generalised Pareto distribution for sorted positive values, by a mean over likely scales."""
    n = len(tail)
    count = 30 + math.isqrt(n)
    steps = 1 - np.sqrt(count / (np.arange(1, count + 1) - 0.5))
    slopes = 1 / tail[-1] + steps / (3 * tail[int(n / 4 + 0.5) - 1])
    slopes = slopes[slopes != 0]  # the fit has no scale there
    indices = np.log1p(-slopes[:, None] * tail).mean(axis=1)
    likelihoods = n * (np.log(-slopes / indices) - indices - 1)
    chances = np.exp(likelihoods - likelihoods.max())
    slope = (slopes * chances).sum() / chances.sum()
    return float(np.log1p(-slope * tail).mean())


def number_states(obs: NDArray[np.float32], next_obs: NDArray[np.float32]) -> tuple[Numbers, Numbers]:
    """Equal observations get equal numbers; -1 for next observations from which nothing was logged."""
    distinct, numbers = np.unique(np.concatenate([obs, next_obs]), axis=0, return_inverse=True)
    states, after = numbers.reshape(-1)[: len(obs)], numbers.reshape(-1)[len(obs) :]
    is_logged = np.zeros(len(distinct), dtype=bool)
    is_logged[states] = True
    order = np.cumsum(is_logged) - 1
    return order[states], np.where(is_logged[after], order[after], -1)


def second_moment_radius(
    states: Numbers, actions: Numbers, next_states: Numbers, probabilities: Floats, behavior: Floats
) -> float:
    """The spectral radius of M from logged rows; `next_states` are -1 where the episode has ended.

    `probabilities` and `behavior` are those of the logged actions. Actions that were never logged are left out, so the
    radius is rather too small.
    """
    width = int(actions.max()) + 1
    found, pair = np.unique(states * width + actions, return_inverse=True)
    pair = pair.reshape(-1)
    owner, rows = found // width, np.bincount(pair)
    with np.errstate(divide="ignore", invalid="ignore"):
        squares = np.where(probabilities > 0, probabilities**2 / behavior, 0.0)
    squares = np.bincount(pair, squares) / rows
    per_state = np.bincount(states)
    vector: Floats = np.ones(len(per_state))
    growths: list[float] = []
    for _ in range(ROUNDS):
        reached = np.where(next_states >= 0, vector[next_states], 0.0)
        own, pooled = np.bincount(pair, reached), np.bincount(states, reached) / per_state
        means = (own + POOLED * pooled[owner]) / (rows + POOLED)
        vector = np.bincount(owner, squares * means).astype(np.float64)
        growth = float(vector.max())
        if not 0 < growth < np.inf:
            return growth
        vector, growths = vector / growth, [*growths, growth]
    return float(np.exp(np.log(growths[-LAST:]).mean()))
