"""Policies evaluated by importance sampling, beside FQE, on logs with action probabilities.

Doubly robust estimates take the values of each episode from an ensemble member that has not learned from it. A
deterministic policy with continuous actions is smoothed by a little noise, so that it has a density.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.statistics import histogram
from rl_training.ope import importance
from rl_training.ope.fqe import EvaluationLog, FitSettings, ValueFitter, in_chunks, policy_inputs
from rl_training.ope.importance import Trajectories
from rl_training.ope.intervals import EpisodeEstimate, Floats, episode_interval
from rl_training.ope.policies import Likelihood, likelihood
from rl_training.ope.weights import (
    Level,
    WeightCheck,
    WeightDiagnostics,
    check_cuts,
    check_weights,
    diagnose,
    effective_sample_size,
    number_states,
    second_moment_radius,
)

NO_PROBABILITIES = (
    "the data has no action probabilities (behavior_log_probs, or propensities), which importance sampling needs"
)
NO_DENSITY = (
    "the policy is deterministic, so its continuous actions have no density; importance sampling is then possible for "
    "single decisions only"
)
CAPS = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, math.inf)
"""The largest weights among which SLOPE selects for clipped IPS."""
BINS = 20
FOLDS = 5
"""Parts of the episodes; each has values from an ensemble member that has learned from the others."""
BANDWIDTHS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
"""Half widths of the noise, with actions in [-1, 1], among which SLOPE selects."""
FEWEST_EFFECTIVE = 30
"""The least effective sample size of a bandwidth that is a candidate."""


@dataclass(frozen=True)
class WeightedValue:
    """The estimate of one estimator, in the units of logged rewards."""

    estimator: str
    value: float
    standard_error: float
    interval: tuple[float, float] | None
    """95 % interval over resampled episodes; None below ten of them."""


@dataclass(frozen=True)
class WeightedEstimate:
    """The estimates of one policy by importance sampling, and how far they can be trusted."""

    name: str
    level: Level
    """proceed, warn or refuse."""
    reasons: tuple[str, ...]
    """Why it is refused, or what to be careful of."""
    estimates: tuple[WeightedValue, ...] = ()
    """By every estimator; empty if refused."""
    recommended: str | None = None
    """The estimator to look at."""
    difference: float | None = None
    """By the recommended one, how much better than the data the policy is."""
    difference_interval: tuple[float, float] | None = None
    agrees: bool | None = None
    """Whether its interval and that of FQE have values in common; None where they cannot be compared."""
    is_drawn: bool = False
    """Whether this estimates the stochastic policy, while FQE estimates the policy that takes its likeliest action."""
    bandwidth: float | None = None
    """Half the width of the noise that was added to a deterministic policy, with actions in [-1, 1]."""
    cap: float | None = None
    """The largest weight of clipped IPS."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Diagnostics; lists have a value per step."""

    def __getitem__(self, estimator: str) -> WeightedValue:
        """The estimate of one estimator."""
        found = {each.estimator: each for each in self.estimates}
        if estimator not in found:
            raise KeyError(f"there is no estimate by {estimator!r}; there are {', '.join(found) or 'none: refused'}")
        return found[estimator]

    @property
    def headline(self) -> WeightedValue | None:
        """The estimate of the recommended estimator; None if refused."""
        return None if self.recommended is None else self[self.recommended]


class CrossFit:
    """An ensemble with a member per fold of episodes, fitted to all other folds, for one policy after the other."""

    def __init__(self, log: EvaluationLog, settings: FitSettings) -> None:
        options, count = settings.options, min(FOLDS, len(log.bounds))
        folds = importance.episode_folds(len(log.bounds), count, seed=options.seed)
        learns = torch.from_numpy(folds[None, :] != np.arange(count)[:, None]).long()
        self.log, self.settings = log, settings
        self.member = folds[log.episodes.numpy()]
        self.fitter = ValueFitter(log, replace(options, members=count - 1), weights=learns)

    def values(self, name: str, policy: Likelihood) -> tuple[Floats, Floats, Floats]:
        """Per row: the value of the logged action, that of the policy's own, and what follows a truncation."""
        self.fitter.fit_policy(policy.inputs, progress=self.settings.progress_of(f"{name}, folds of episodes"))
        data = self.log.dataset
        rows = torch.arange(len(data))
        q = self._by_member(data.obs, self.log.logged_actions(), rows)
        v = self._of_policy(data.obs, rows, policy)
        last = torch.from_numpy(self.log.bounds[:, 1] - 1)
        cut = last[~data.dones[last].bool()]
        tails = np.zeros(len(data))
        if len(cut):
            tails[cut.numpy()] = self._of_policy(data.next_obs[cut], cut, policy)
        return q, v, tails

    def _of_policy(self, obs: Tensor, rows: Tensor, policy: Likelihood) -> Floats:
        """Means over the policy's actions; all draws are made in one call, so that they differ."""
        repeated, owners = obs.repeat(policy.draws, 1), rows.repeat(policy.draws)
        with torch.no_grad():
            actions = policy.inputs(repeated)
        means: Floats = self._by_member(repeated, actions, owners).reshape(policy.draws, -1).mean(axis=0)
        return means

    def _by_member(self, obs: Tensor, actions: Tensor, rows: Tensor) -> Floats:
        values = self.fitter.q_values(obs, actions)
        own: Floats = values[self.member[rows.numpy()], np.arange(len(obs))]
        return own


def weigh_policies(
    policies: Mapping[str, Any],
    log: EvaluationLog,
    settings: FitSettings,
    intervals: Mapping[str, tuple[float, float] | None],
) -> tuple[WeightedEstimate, ...]:
    """Estimates by importance sampling, one per policy; a refused one has reasons instead.

    Each is compared with one of the `intervals` of FQE.
    """
    evaluation = WeightedEvaluation(log, settings.options.gamma)
    model: CrossFit | None = None
    found: list[WeightedEstimate] = []
    for name, policy in policies.items():
        likelihood = evaluation.likelihood(policy, name)
        if likelihood is None:
            found.append(WeightedEstimate(name, "refuse", (NO_DENSITY,)))
            continue
        episodes = Trajectories.from_dataset(log.dataset, likelihood.log_probs)
        estimate = evaluation.check(name, likelihood, episodes)
        if estimate.level != "refuse":
            model = model or CrossFit(log, settings)
            estimate = evaluation.valued(estimate, episodes, *model.values(name, likelihood))
            estimate = compared(estimate, intervals[name])
        found.append(estimate)
    return tuple(found)


class WeightedEvaluation:
    """Importance sampling of several policies on the same logged episodes."""

    def __init__(self, log: EvaluationLog, gamma: float) -> None:
        self.log, self.gamma = log, gamma
        self.lengths: NDArray[np.int64] = log.bounds[:, 1] - log.bounds[:, 0]
        self.is_single = bool((self.lengths == 1).all())
        self.is_cut = ~log.dataset.dones[log.bounds[:, 1] - 1].bool().numpy(force=True) & (not self.is_single)
        self.behavior = log.dataset.fields["behavior_log_probs"].numpy(force=True).astype(np.float64)
        self.states = None
        if log.states is not None and not self.is_single and not self.is_cut.any():
            obs, next_obs = (log.dataset.fields[name].numpy(force=True) for name in ("obs", "next_obs"))
            self.states = number_states(obs, next_obs)

    def likelihood(self, policy: Any, name: str) -> Likelihood | None:
        """The action probabilities of a policy; a deterministic one is smoothed for single decisions."""
        found = likelihood(policy, self.log, name)
        return smoothed(policy, self.log, self.behavior, name) if found is None and self.is_single else found

    def check(self, name: str, likelihood: Likelihood, episodes: Trajectories) -> WeightedEstimate:
        """Whether the weights can be trusted, without an estimate."""
        found = diagnose(episodes.weights, behavior_log_probs=self.behavior, unsupported=likelihood.forbidden)
        growth, radius = None, self._radius(likelihood)
        if radius is not None and radius >= 1:
            said = f"the variance of the weights is infinite: their mean square grows {radius:.2f}-fold with every step"
            growth = WeightCheck("refuse", f"{said}, among the states that were logged")
        verdict = check_weights(found, check_cuts(self.lengths, self.is_cut, episodes.final_weights), growth)
        about = _describe(found, episodes) | {"second_moment_radius": radius}
        return WeightedEstimate(
            name, *verdict, weights=about, bandwidth=likelihood.bandwidth, is_drawn=likelihood.is_drawn
        )

    def _radius(self, likelihood: Likelihood) -> float | None:
        if self.states is None:
            return None
        states, after = self.states
        actions, dones = (self.log.dataset.fields[name].numpy(force=True) for name in ("actions", "dones"))
        reached = np.where(dones > 0, -1, after)
        return second_moment_radius(states, actions, reached, np.exp(likelihood.log_probs), np.exp(self.behavior))

    def valued(
        self, estimate: WeightedEstimate, episodes: Trajectories, q: Floats, v: Floats, tails: Floats
    ) -> WeightedEstimate:
        """The estimate with its numbers, from the values of a model per row."""
        if self.is_single:
            cap, found = _of_decisions(episodes.rewards[:, 0], episodes.final_weights, q, v)
            recommended = "SNIPS"
        else:
            padded = [importance.pad_rows(each, self.lengths) for each in (q, v, tails)]
            cap, found = None, _of_episodes(episodes, self.gamma, *padded)
            # Only WDR and DR continue beyond a truncation, as FQE does.
            recommended = "WDR" if self.is_cut.any() else "PDWIS"
        values = tuple(
            WeightedValue(name, one.value, one.standard_error, _interval(one)) for name, one in found.items()
        )
        estimate = replace(estimate, estimates=values, recommended=recommended, cap=cap)
        if recommended == "WDR":
            return estimate
        difference = found[recommended] - EpisodeEstimate.of_mean(episodes.returns(self.gamma))
        return replace(estimate, difference=difference.value, difference_interval=_interval(difference))


def smoothed(policy: Any, log: EvaluationLog, behavior: Floats, name: str) -> Likelihood:
    """A deterministic policy for single decisions, as one with noise around its action.

    The noise has the shape of the Epanechnikov kernel and stays inside the bounds of actions. More noise uses more
    rows, but evaluates a policy that is farther from the one in question. SLOPE selects the widest bandwidth that
    agrees with all narrower ones.
    """
    act = policy_inputs(policy, log, name)
    own, taken = (each.double().numpy(force=True) for each in (in_chunks(act, log.dataset.obs), log.dataset.actions))
    rewards = log.dataset.rewards.double().numpy(force=True)
    densities = {width: kernel_densities(own, taken, width) for width in BANDWIDTHS}
    weights = {width: each / np.exp(behavior) for width, each in densities.items()}
    widths = [each for each in BANDWIDTHS if effective_sample_size(weights[each]) >= FEWEST_EFFECTIVE]
    estimates = [importance.ips(rewards, weights[each]) for each in widths]
    width = widths[importance.slope(estimates)] if widths else BANDWIDTHS[-1]
    with np.errstate(divide="ignore"):
        return Likelihood(np.log(densities[width]), act, bandwidth=width)


def kernel_densities(own: Floats, taken: Floats, bandwidth: float) -> Floats:
    """Densities of actions (rows, dimensions) under noise around a policy's own that is kept inside [-1, 1]."""
    inside = _share_below((1 - own) / bandwidth) - _share_below((-1 - own) / bandwidth)
    densities: Floats = importance.kernel_weights(own, taken, np.ones(len(taken)), bandwidth) / inside.prod(axis=1)
    return densities


def _share_below(distance: Floats) -> Floats:
    """The share of the kernel below a distance from its centre, in bandwidths."""
    u = np.clip(distance, -1, 1)
    share: Floats = (2 + 3 * u - u**3) / 4
    return share


def compared(found: WeightedEstimate, interval: tuple[float, float] | None) -> WeightedEstimate:
    """The estimate with whether it agrees with an interval of FQE, if both are of the same policy."""
    own = found.headline
    if own is None or own.interval is None or interval is None or found.is_drawn:
        return found
    return replace(found, agrees=own.interval[0] <= interval[1] and interval[0] <= own.interval[1])


def _of_decisions(
    rewards: Floats, weights: Floats, q: Floats, v: Floats
) -> tuple[float | None, dict[str, EpisodeEstimate]]:
    """Estimates from single decisions, and the cap that SLOPE selected."""
    candidates = [importance.ips(rewards, importance.clipped(weights, cap)) for cap in CAPS]
    selected = importance.slope(candidates)
    found = {
        "SNIPS": importance.snips(rewards, weights),
        "IPS": importance.ips(rewards, weights),
        "SNDR": importance.sndr(rewards, weights, q, v),
        "DR": importance.dr(rewards, weights, q, v),
        "clipped IPS": candidates[selected],
    }
    return None if math.isinf(CAPS[selected]) else CAPS[selected], found


def _of_episodes(log: Trajectories, gamma: float, q: Floats, v: Floats, tails: Floats) -> dict[str, EpisodeEstimate]:
    """Estimates from whole episodes. Those with a model bootstrap from its value of the last state at a truncation."""
    continued = replace(log, rewards=log.rewards + gamma * tails)
    return {
        "PDWIS": importance.weighted_per_decision(log, gamma),
        "PDIS": importance.per_decision(log, gamma),
        "WIS": importance.weighted_importance_sampling(log, gamma),
        "IS": importance.importance_sampling(log, gamma),
        "WDR": importance.weighted_doubly_robust(continued, gamma, q, v),
        "DR": importance.doubly_robust(continued, gamma, q, v),
    }


def _interval(estimate: EpisodeEstimate) -> tuple[float, float] | None:
    found = episode_interval(estimate)
    return None if found is None else (found.low, found.high)


def _describe(found: WeightDiagnostics, log: Trajectories) -> dict[str, Any]:
    """Diagnostics as plain values, with a histogram of the logarithms of final weights."""
    positive = np.log10(np.maximum(log.final_weights, 1e-300))
    shown = positive[log.final_weights > 1e-300]
    counts, edges = histogram(shown, BINS) if len(shown) else ([], [])
    return {
        "episodes": found.episodes,
        "effective_sample_size": float(found.effective_sample_sizes[-1]),
        "largest_share": float(found.largest_shares[-1]),
        "mean": _plain(found.means[-1]),
        "mean_error": _plain(found.mean_errors[-1]),
        "tail_index": _plain(found.tail_index),
        "zero_propensities": found.zero_propensities,
        "forbidden": found.unsupported,
        "effective_sample_sizes": found.effective_sample_sizes.tolist(),
        "largest_shares": found.largest_shares.tolist(),
        "means": [_plain(each) for each in found.means],
        "log10_histogram": {"counts": counts, "edges": edges, "zeros": len(positive) - len(shown)},
    }


def _plain(value: float) -> float | None:
    """A number, or None if it is not finite, which JSON cannot hold."""
    return float(value) if math.isfinite(value) else None
