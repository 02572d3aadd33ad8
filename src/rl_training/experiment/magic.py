"""MAGIC: a mixture of a model's value and doubly robust estimates that trust the model from some step on.

With WDR's weights, `g_j` corrects the model up to step j and believes it afterwards. `g_{-1}` is the model alone, and
the last one is WDR::

    g_j = sum_{t <= j} g^t [w_t (r_t - Q_t) + w_{t-1} V_t] + g^{j+1} w_j V_{j+1}

The mixture x on the simplex has the smallest `x^T (Omega + beta beta^T) x`: Omega is the covariance of the parts, and
beta their distance from an interval of WDR, which stands for the bias of the model.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.episode_estimates import Floats
from rl_training.experiment.importance import Trajectories, weighted_doubly_robust
from rl_training.experiment.intervals import percentile_interval
from rl_training.types import DatasetError


class Magic(NamedTuple):
    """The estimate, what it was mixed from, and in which shares."""

    value: float
    parts: Floats
    """From the model alone to WDR, one per step and one more."""
    shares: Floats


def magic(
    log: Trajectories, gamma: float, q: Floats, v: Floats, *, interval: tuple[float, float] | None = None
) -> Magic:
    """The mixture for q and v (episodes, steps) of other episodes; by default with a 90 % bootstrap interval of WDR."""
    if interval is None:
        low, high, _ = percentile_interval(weighted_doubly_robust(log, gamma, q, v), confidence=0.9)
    else:
        low, high = interval
    episodes = episode_parts(log, gamma, q, v)
    if len(episodes) < 2:
        raise DatasetError("a mixture needs at least 2 episodes, got 1")
    parts = episodes.sum(axis=0)
    bias = parts - np.clip(parts, low, high)
    centred = episodes - episodes.mean(axis=0)
    covariance = centred.T @ centred * len(centred) / (len(centred) - 1)
    shares = smallest_on_simplex(covariance + np.outer(bias, bias))
    return Magic(float(parts @ shares), parts, shares)


def episode_parts(log: Trajectories, gamma: float, q: Floats, v: Floats) -> Floats:
    """What each episode adds to each part: (episodes, steps + 1)."""
    running = np.arange(v.shape[1]) < log.lengths[:, None]
    q, v = np.where(running, q, 0.0), np.where(running, v, 0.0)
    weights = log.weights / log.weights.sum(axis=0)
    before = log.previous_weights / log.previous_weights.sum(axis=0)
    discounts = log.discounts(gamma)
    corrected = np.cumsum((weights * (log.rewards - q) + before * v) * discounts, axis=1)
    zeros = np.zeros((len(v), 1))
    # What the model says of the rest, from before the first step on; after the last step there is no rest.
    rest = np.concatenate([before * v * discounts, zeros], axis=1)
    parts: Floats = np.concatenate([zeros, corrected], axis=1) + rest
    return parts


def smallest_on_simplex(matrix: Floats) -> Floats:
    """The x >= 0 with sum 1 for which x^T M x is smallest, M being symmetric and not negative.

    The x >= 0 that minimises `x^T M x + c (sum x - 1)^2` is a multiple of it, for any c. An active set finds it.
    """
    scale = max(float(np.trace(matrix)) / len(matrix), 1e-300)
    hessian = matrix / scale + 1.0
    free = np.zeros(len(matrix), dtype=bool)
    x = np.zeros(len(matrix))
    for _ in range(10 * len(matrix)):
        slopes = np.where(free, -np.inf, 1 - hessian @ x)
        if slopes.max() <= 1e-12:
            break
        free[slopes.argmax()] = True
        x, free = _step_to_optimum(hessian, x, free)
    shares: Floats = x / x.sum()
    return shares


def _step_to_optimum(hessian: Floats, x: Floats, free: NDArray[np.bool_]) -> tuple[Floats, NDArray[np.bool_]]:
    """The optimum over the free entries, without those that would become negative, and which entries stay free."""
    while True:
        target = np.zeros_like(x)
        rows = np.flatnonzero(free)
        target[rows] = np.linalg.lstsq(hessian[np.ix_(rows, rows)], np.ones(len(rows)), rcond=None)[0]
        negative = free & (target <= 0)
        if not negative.any():
            return target, free
        step = (x[negative] / (x[negative] - target[negative])).min()
        x = x + step * (target - x)
        free = free & (x > 1e-14)
        x = np.where(free, x, 0.0)
