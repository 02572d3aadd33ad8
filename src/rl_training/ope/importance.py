"""Values of a policy from episodes of another one, by importance sampling.

The behaviour policy b is known by the probabilities of its actions. With discount g and weights
`w_t = prod_{k <= t} pi(a_k | s_k) / b(a_k | s_k)`, `w_{-1} = 1`, and G the discounted return of an episode:

| Estimator | Formula |
| --- | --- |
| IS | `mean_i w_{T-1} G_i` |
| PDIS | `mean_i sum_t g^t w_t r_t` |
| WIS | `sum_i w_{T-1} G_i / sum_i w_{T-1}` |
| PDWIS | `sum_t g^t sum_i w_t r_t / sum_i w_t` |
| DR | `mean_i sum_t g^t [w_t (r_t - Q(s_t, a_t)) + w_{t-1} V(s_t)]` |
| WDR | DR with every weight divided by its mean over episodes |

An episode that has ended keeps its last weight and has no more rewards: the task stays in its final state, where both
policies do the same. Sums of weights therefore run over all episodes at every step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.core.errors import DatasetError
from rl_training.core.statistics import student_quantile
from rl_training.data import TransitionDataset
from rl_training.ope.intervals import EpisodeEstimate, Floats

LARGEST_LOG_WEIGHT = 700.0
"""exp(700) is near the largest float64."""


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Episodes as arrays (episodes, steps), padded with zeros after their last step."""

    rewards: Floats
    weights: Floats
    """Products of the ratios of probabilities up to and including each step; constant after the last one."""
    lengths: NDArray[np.int64]

    @classmethod
    def from_rows(
        cls, rewards: ArrayLike, log_probs: ArrayLike, behavior_log_probs: ArrayLike, lengths: ArrayLike
    ) -> Trajectories:
        """Consecutive episodes of the given lengths, from one value per row.

        `log_probs` are those of the logged actions under the policy in question, `behavior_log_probs` those under the
        behaviour policy.
        """
        sizes = np.asarray(lengths, dtype=np.int64)
        behavior = pad_rows(behavior_log_probs, sizes)
        return cls(pad_rows(rewards, sizes), cumulative_weights(pad_rows(log_probs, sizes), behavior), sizes)

    @classmethod
    def from_dataset(cls, dataset: TransitionDataset, log_probs: ArrayLike) -> Trajectories:
        """The episodes of a log, with the policy's log-probabilities of its actions, one per row.

        Those of continuous actions are of densities in [-1, 1], as `behavior_log_probs` are. The reward of a last row
        that was dropped for lack of a next observation does not count: its action is unknown.
        """
        if "behavior_log_probs" not in dataset.fields:
            hint = "log them as 'behavior_log_probs', or probabilities as 'propensities'"
            raise DatasetError(
                f"importance weights need probabilities of logged actions, and the data has none: {hint}"
            )
        rewards, behavior = (dataset.fields[name].numpy(force=True) for name in ("rewards", "behavior_log_probs"))
        bounds = dataset.episode_bounds().numpy(force=True)
        return cls.from_rows(rewards, log_probs, behavior, bounds[:, 1] - bounds[:, 0])

    @property
    def final_weights(self) -> Floats:
        """The weight of each whole episode."""
        return self.weights[:, -1]

    @property
    def previous_weights(self) -> Floats:
        """The weight before each step's action."""
        return np.concatenate([np.ones((len(self.weights), 1)), self.weights[:, :-1]], axis=1)

    def discounts(self, gamma: float) -> Floats:
        """Powers of the discount, one per step."""
        return gamma ** np.arange(self.rewards.shape[1], dtype=np.float64)

    def returns(self, gamma: float) -> Floats:
        """The discounted return of each episode."""
        returns: Floats = self.rewards @ self.discounts(gamma)
        return returns


def pad_rows(rows: ArrayLike, lengths: NDArray[np.int64]) -> Floats:
    """Rows of consecutive episodes as (episodes, longest), with zeros after the last step of each."""
    values = np.asarray(rows, dtype=np.float64)
    if values.ndim != 1 or not len(lengths) or lengths.min() < 1 or lengths.sum() != len(values):
        raise DatasetError(
            f"episodes of at least one row must add up to all rows: {len(lengths)} episodes have {lengths.sum()} rows, "
            f"the array has the shape {values.shape}"
        )
    running = np.arange(lengths.max()) < lengths[:, None]
    padded = np.zeros(running.shape)
    padded[running] = values
    return padded


def cumulative_weights(log_probs: Floats, behavior_log_probs: Floats) -> Floats:
    """Importance weights (episodes, steps) from log-probabilities, which are summed before they are exponentiated.

    Their logarithms are kept in [-700, 700]. After an action that the policy never takes, the weight stays at the
    smallest.
    """
    with np.errstate(invalid="ignore"):
        sums = np.cumsum(log_probs - behavior_log_probs, axis=1)
        log_weights = np.clip(sums, -LARGEST_LOG_WEIGHT, LARGEST_LOG_WEIGHT)
    impossible = np.logical_or.accumulate(np.isneginf(log_probs), axis=1)
    weights: Floats = np.exp(np.where(impossible, -LARGEST_LOG_WEIGHT, log_weights))
    if np.isnan(weights).any():
        episode = int(np.flatnonzero(np.isnan(weights).any(axis=1))[0])
        raise DatasetError(f"log-probabilities must be numbers; in episode {episode} they are not")
    return weights


def importance_sampling(log: Trajectories, gamma: float) -> EpisodeEstimate:
    """IS: returns weighted by whole episodes; unbiased, with the largest variance."""
    return EpisodeEstimate.of_mean(log.final_weights * log.returns(gamma))


def per_decision(log: Trajectories, gamma: float) -> EpisodeEstimate:
    """PDIS: every reward weighted by the actions before it; unbiased."""
    return EpisodeEstimate.of_mean((log.weights * log.rewards) @ log.discounts(gamma))


def weighted_importance_sampling(log: Trajectories, gamma: float) -> EpisodeEstimate:
    """WIS: IS with weights divided by their sum; biased for few episodes, inside the range of returns."""
    return EpisodeEstimate.of_weighted_mean(log.returns(gamma), log.final_weights)


def weighted_per_decision(log: Trajectories, gamma: float) -> EpisodeEstimate:
    """PDWIS: PDIS with the weights of each step divided by their sum; the estimator to use without a Q."""
    return EpisodeEstimate(log.weights * log.rewards * log.discounts(gamma), log.weights)


def doubly_robust(log: Trajectories, gamma: float, q: Floats, v: Floats) -> EpisodeEstimate:
    """DR: a learned Q, corrected by weighted residuals; unbiased if Q was fitted on other episodes.

    `q` is Q of the logged actions and `v` the policy's mean of Q, both (episodes, steps).
    """
    q, v = _only_running(log, q), _only_running(log, v)
    parts = log.weights * (log.rewards - q) + log.previous_weights * v
    return EpisodeEstimate.of_mean(parts @ log.discounts(gamma))


def weighted_doubly_robust(log: Trajectories, gamma: float, q: Floats, v: Floats) -> EpisodeEstimate:
    """WDR: DR with every weight divided by its mean over episodes; the estimator to use with Q of FQE."""
    q, v, discounts = _only_running(log, q), _only_running(log, v), log.discounts(gamma)
    residuals, values = log.weights * (log.rewards - q), log.previous_weights * v
    return EpisodeEstimate(
        np.concatenate([residuals * discounts, values * discounts], axis=1),
        np.concatenate([log.weights, log.previous_weights], axis=1),
    )


def episode_folds(episodes: int, folds: int = 2, *, seed: int = 0) -> NDArray[np.int64]:
    """A random fold for every episode; the sizes of folds differ by one at most."""
    if not 2 <= folds <= episodes:
        raise DatasetError(f"cross-fitting needs 2 to {episodes} folds for {episodes} episodes, got {folds}")
    return np.random.default_rng(seed).permutation(np.arange(episodes) % folds)


def _only_running(log: Trajectories, values: Floats) -> Floats:
    """Values with zeros after the end of episodes."""
    if values.shape != log.rewards.shape:
        raise DatasetError(f"values must have the shape of the rewards, {log.rewards.shape}, got {values.shape}")
    running = np.arange(values.shape[1]) < log.lengths[:, None]
    return np.where(running, values, 0.0)


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
    """Weights of a deterministic policy with continuous actions (rows, dimensions), which count near actions as equal.

    The product over dimensions of the Epanechnikov kernel `0.75 max(0, 1 - u^2) / h` at `u = (pi(x) - a) / h`, divided
    by the density of the logged action. It estimates the value of the policy with noise of this shape.
    """
    if not bandwidth > 0:
        raise DatasetError(f"the bandwidth must be above 0, got {bandwidth}")
    own, taken, densities = _floats(policy_actions), _floats(actions), _floats(behavior_densities)
    if own.shape != taken.shape or len(taken) != len(densities):
        shapes = f"{own.shape}, {taken.shape} and {densities.shape}"
        raise DatasetError(f"actions of the policy, logged actions and their densities differ in shape: {shapes}")
    distances = ((own - taken) / bandwidth).reshape(len(taken), -1)
    kernels = 0.75 * np.maximum(0, 1 - distances**2) / bandwidth
    weights: Floats = kernels.prod(axis=1) / densities
    return weights


def slope(candidates: Sequence[EpisodeEstimate], *, delta: float = 0.1) -> int:
    """The index of the estimate to trust among those of one estimator with several hyper-parameters (SLOPE).

    Going from the least to the most certain estimate, it is the last one before an estimate that disagrees with an
    earlier one beyond their uncertainty: that one must be biased.
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
