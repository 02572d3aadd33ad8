"""Values of a policy from logs of single decisions, such as which item was shown.

Every row is an episode. `weights` are `pi(a | x) / b(a | x)`, `q` is a model's reward of the logged action and `v` the
mean of that model over the policy's actions. A model must come from other rows than those that it corrects.

| Estimator | Call |
| --- | --- |
| inverse propensity scores (IPS) | `ips(rewards, weights)` |
| self-normalised IPS | `snips(rewards, weights)` |
| doubly robust (DR) | `dr(rewards, weights, q, v)` |
| self-normalised DR | `sndr(rewards, weights, q, v)` |
| clipped IPS | `ips(rewards, clipped(weights, cap))` |
| continuous actions | any of them, with `kernel_weights` |
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from rl_training.core.errors import DatasetError
from rl_training.core.statistics import student_quantile
from rl_training.ope.intervals import EpisodeEstimate, Floats


def ips(rewards: ArrayLike, weights: ArrayLike) -> EpisodeEstimate:
    """Mean of weighted rewards; unbiased."""
    return EpisodeEstimate.of_mean(_floats(weights) * _floats(rewards))


def snips(rewards: ArrayLike, weights: ArrayLike) -> EpisodeEstimate:
    """IPS with weights divided by their sum; inside the range of rewards."""
    return EpisodeEstimate.of_weighted_mean(rewards, weights)


def dr(rewards: ArrayLike, weights: ArrayLike, q: ArrayLike, v: ArrayLike) -> EpisodeEstimate:
    """The model, corrected by weighted residuals."""
    return EpisodeEstimate.of_mean(_floats(v) + _floats(weights) * (_floats(rewards) - _floats(q)))


def sndr(rewards: ArrayLike, weights: ArrayLike, q: ArrayLike, v: ArrayLike) -> EpisodeEstimate:
    """DR with the weights of residuals divided by their sum."""
    values, scales = _floats(v), _floats(weights)
    residuals = scales * (_floats(rewards) - _floats(q))
    return EpisodeEstimate(np.stack([values, residuals], axis=1), np.stack([np.ones_like(values), scales], axis=1))


def clipped(weights: ArrayLike, cap: float) -> Floats:
    """Weights of at most `cap`."""
    return np.minimum(_floats(weights), cap)


def kernel_weights(
    policy_actions: ArrayLike, actions: ArrayLike, behavior_densities: ArrayLike, bandwidth: float
) -> Floats:
    """Weights of a deterministic policy with continuous actions (rows, dimensions): near actions stand for equal ones.

    The product over dimensions of the Epanechnikov kernel `0.75 max(0, 1 - u^2) / h` at `u = (pi(x) - a) / h`, divided
    by the density of the logged action. It estimates the value of the policy with noise of this shape.
    """
    if not bandwidth > 0:
        raise DatasetError(f"the bandwidth must be above 0, got {bandwidth}")
    chosen, taken, densities = _floats(policy_actions), _floats(actions), _floats(behavior_densities)
    if chosen.shape != taken.shape or len(taken) != len(densities):
        shapes = f"{chosen.shape}, {taken.shape} and {densities.shape}"
        raise DatasetError(
            f"actions of the policy, logged actions and their densities do not belong together: {shapes}"
        )
    distances = ((chosen - taken) / bandwidth).reshape(len(taken), -1)
    kernels = 0.75 * np.maximum(0, 1 - distances**2) / bandwidth
    weights: Floats = kernels.prod(axis=1) / densities
    return weights


def slope(candidates: Sequence[EpisodeEstimate], *, delta: float = 0.1) -> int:
    """The number of the estimate to trust among those of one estimator with several hyper-parameters (SLOPE).

    From the least certain on, estimates are followed as long as they agree with all before them within their
    uncertainty: a more certain one that does not agree pays for its certainty with bias.
    """
    values = [estimate.value for estimate in candidates]
    widths = [student_quantile(1 - delta, len(one) - 1) * one.standard_error for one in candidates]
    order = sorted(range(len(candidates)), key=lambda number: -widths[number])
    kept = [order[0]]
    for number in order[1:]:
        reach = [widths[number] + (math.sqrt(6) - 1) * widths[other] for other in kept]
        if any(abs(values[number] - values[other]) > most for other, most in zip(kept, reach, strict=True)):
            break
        kept.append(number)
    return kept[-1]


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
