"""Policies judged by weights, beside the fit, where the log says how probable its actions were.

Doubly robust estimates take the values of each episode from a member that has not learned from it. A deterministic
policy with continuous actions is smoothed by a little noise, so that it has a density.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.ope import importance
from rl_training.ope.fqe import EvaluationLog, FitOptions, ValueFitter, as_inputs, in_chunks
from rl_training.ope.importance import Trajectories
from rl_training.ope.intervals import EpisodeEstimate, Floats, episode_interval
from rl_training.ope.policies import Likelihood, likelihood
from rl_training.ope.weights import (
    LEVELS,
    Finding,
    Level,
    WeightDiagnostics,
    WeightVerdict,
    diagnose,
    effective_sample_size,
    judge,
    judge_cuts,
    number_states,
    second_moment_radius,
)

NO_PROBABILITIES = (
    "the data does not say how probable its actions were (behavior_log_probs, or propensities), and weights need that"
)
NO_DENSITY = (
    "the policy is deterministic, so its continuous actions have no density; only logs of single decisions can be "
    "weighted then"
)
CAPS = (2.0, 5.0, 10.0, 20.0, 50.0, 100.0, math.inf)
"""The largest weights among which SLOPE chooses for clipped IPS."""
BINS = 20
FOLDS = 5
"""Parts of the episodes; each has values from a member that has learned from the others."""
BANDWIDTHS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.8)
"""Half widths of the noise, with actions in [-1, 1], among which SLOPE chooses."""
FEWEST_EFFECTIVE = 30
"""A bandwidth whose weights are worth fewer rows is no candidate."""


@dataclass(frozen=True)
class WeightedValue:
    """What one estimator says, in the units of logged rewards."""

    estimator: str
    value: float
    standard_error: float
    interval: tuple[float, float] | None
    """95 % interval over resampled episodes; None below ten of them."""


@dataclass(frozen=True)
class WeightedEstimate:
    """What weights say of one policy, and how far they can be trusted."""

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
    """Whether its interval and that of the fit have values in common; None where they cannot be compared."""
    is_drawn: bool = False
    """The weights are those of a policy that draws its actions; the fit takes the likeliest action."""
    bandwidth: float | None = None
    """Half the width of the noise that stands for a deterministic policy, with actions in [-1, 1]."""
    cap: float | None = None
    """The largest weight of clipped IPS."""
    weights: dict[str, Any] = field(default_factory=dict)
    """Diagnostics; lists have a value per step."""

    def __getitem__(self, estimator: str) -> WeightedValue:
        """What one estimator says."""
        found = {each.estimator: each for each in self.estimates}
        if estimator not in found:
            raise KeyError(f"there is no estimate by {estimator!r}; there are {', '.join(found) or 'none: refused'}")
        return found[estimator]

    @property
    def headline(self) -> WeightedValue | None:
        """What the recommended estimator says; None if refused."""
        return None if self.recommended is None else self[self.recommended]


class CrossFit:
    """One member per fold of episodes, fitted to all other folds, for one policy after the other."""

    def __init__(self, log: EvaluationLog, options: FitOptions, *, compiled: bool = False) -> None:
        count = min(FOLDS, len(log.bounds))
        folds = importance.episode_folds(len(log.bounds), count, seed=options.seed)
        learns = torch.from_numpy(folds[None, :] != np.arange(count)[:, None]).long()
        self.log = log
        self.member = folds[log.episodes.numpy()]
        self.fitter = ValueFitter(log, replace(options, members=count - 1), weights=learns, compiled=compiled)

    def values(
        self, policy: Likelihood, progress: Callable[[int, int], None] | None = None
    ) -> tuple[Floats, Floats, Floats]:
        """Per row: the value of the logged action, that of the policy's own, and what follows the cut of an episode."""
        self.fitter.fit_policy(policy.inputs, progress=progress)
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
        """Means over the policy's actions; drawn ones are asked for together, so that they differ."""
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
    gamma: float,
    cross_fit: Callable[[], CrossFit],
    *,
    states_repeat: bool = False,
    progress: Callable[[str], Callable[[int, int], None] | None] = lambda _: None,
) -> tuple[WeightedEstimate, ...]:
    """Estimates by weights, one per policy; refused ones have reasons instead. None where nothing was logged for them.

    `cross_fit` is called if any policy is not refused: doubly robust estimates need a fit of their own.
    """
    weighing = Weighing(log, gamma, states_repeat=states_repeat)
    found: list[WeightedEstimate] = []
    model: CrossFit | None = None
    for name, policy in policies.items():
        chances, bandwidth = weighing.chances(policy, name)
        if chances is None:
            found.append(WeightedEstimate(name, "refuse", (NO_DENSITY,)))
            continue
        judged = weighing.judged(name, chances)
        judged = replace(judged, bandwidth=bandwidth, is_drawn=chances.is_drawn)
        if judged.level != "refuse":
            model = model or cross_fit()
            judged = weighing.valued(judged, chances, model, progress(name))
        found.append(judged)
    return tuple(found)


class Weighing:
    """The logged episodes of several policies' weights."""

    def __init__(self, log: EvaluationLog, gamma: float, *, states_repeat: bool) -> None:
        self.log, self.gamma = log, gamma
        self.lengths: NDArray[np.int64] = log.bounds[:, 1] - log.bounds[:, 0]
        self.is_single = bool((self.lengths == 1).all())
        self.is_cut = ~log.dataset.dones[log.bounds[:, 1] - 1].bool().numpy(force=True) & (not self.is_single)
        self.states = None
        if states_repeat and not self.is_single and not self.is_cut.any():
            obs, next_obs = (log.dataset.fields[name].numpy(force=True) for name in ("obs", "next_obs"))
            self.states = number_states(obs, next_obs)
        self.behavior = log.dataset.fields["behavior_log_probs"].numpy(force=True).astype(np.float64)

    def chances(self, policy: Any, name: str) -> tuple[Likelihood | None, float | None]:
        """How likely the policy's actions are, with the bandwidth if they had to be smoothed."""
        found = likelihood(policy, self.log, name)
        if found is None and self.is_single:
            return smoothed(policy, self.log, self.behavior, name)
        return found, None

    def judged(self, name: str, chances: Likelihood) -> WeightedEstimate:
        """Whether the weights can be trusted, without an estimate."""
        log = Trajectories.from_dataset(self.log.dataset, chances.log_probs)
        found = diagnose(log.weights, behavior_log_probs=self.behavior, unsupported=chances.forbidden)
        findings = [judge_cuts(self.lengths, self.is_cut, log.final_weights)]
        radius = self._radius(chances)
        if radius is not None and radius >= 1:
            said = f"the variance of the weights is infinite: their mean square grows {radius:.2f}-fold with every step"
            findings.append(Finding("refuse", f"{said}, among the states that were logged"))
        verdict = _worst(judge(found), [each for each in findings if each is not None])
        about = _describe(found, log) | {"second_moment_radius": radius}
        return WeightedEstimate(name, verdict.level, verdict.reasons, weights=about)

    def _radius(self, chances: Likelihood) -> float | None:
        if self.states is None:
            return None
        states, after = self.states
        actions, dones = (self.log.dataset.fields[name].numpy(force=True) for name in ("actions", "dones"))
        reached = np.where(dones > 0, -1, after)
        return second_moment_radius(states, actions, reached, np.exp(chances.log_probs), np.exp(self.behavior))

    def valued(
        self,
        judged: WeightedEstimate,
        chances: Likelihood,
        model: CrossFit,
        progress: Callable[[int, int], None] | None,
    ) -> WeightedEstimate:
        """The estimate with its numbers."""
        log = Trajectories.from_dataset(self.log.dataset, chances.log_probs)
        q, v, tails = model.values(chances, progress)
        if self.is_single:
            rewards, weights = log.rewards[:, 0], log.final_weights
            cap, found = _single(rewards, weights, q, v)
            recommended = "SNIPS"
        else:
            padded = [importance.pad_rows(each, self.lengths) for each in (q, v, tails)]
            cap, found = None, _episodes(log, self.gamma, *padded)
            # Cut episodes go on in the model only, as they do in the fit.
            recommended = "WDR" if self.is_cut.any() else "PDWIS"
        difference = None
        if recommended != "WDR":
            difference = found[recommended] - EpisodeEstimate.of_mean(log.returns(self.gamma))
        return replace(
            judged,
            estimates=tuple(_value(name, each) for name, each in found.items()),
            recommended=recommended,
            difference=None if difference is None else difference.value,
            difference_interval=None if difference is None else _interval(difference),
            cap=cap,
        )


def smoothed(policy: Any, log: EvaluationLog, behavior: Floats, name: str) -> tuple[Likelihood, float]:
    """A deterministic policy for single decisions, as one with noise around its action, and the bandwidth of the noise.

    The noise has the shape of the Epanechnikov kernel and stays inside the bounds of actions. More of it uses more
    rows and judges a policy that is farther from the one in question. SLOPE takes the widest that agrees with all
    narrower ones.
    """
    act = as_inputs(policy, log, name)
    chosen = in_chunks(act, log.dataset.obs).double().numpy(force=True)
    taken = log.dataset.actions.double().numpy(force=True)
    rewards = log.dataset.rewards.double().numpy(force=True)
    candidates = {width: kernel_densities(chosen, taken, width) for width in BANDWIDTHS}
    weights = {width: each / np.exp(behavior) for width, each in candidates.items()}
    widths = [each for each in BANDWIDTHS if effective_sample_size(weights[each]) >= FEWEST_EFFECTIVE]
    estimates = [importance.ips(rewards, weights[each]) for each in widths]
    width = widths[importance.slope(estimates)] if widths else BANDWIDTHS[-1]
    with np.errstate(divide="ignore"):
        log_probs = np.log(candidates[width])
    return Likelihood(log_probs, act, draws=1, is_drawn=False), width


def kernel_densities(chosen: Floats, taken: Floats, bandwidth: float) -> Floats:
    """Densities of actions (rows, dimensions) under noise around a policy's own that is kept inside [-1, 1]."""
    inside = _below((1 - chosen) / bandwidth) - _below((-1 - chosen) / bandwidth)
    densities: Floats = importance.kernel_weights(chosen, taken, np.ones(len(taken)), bandwidth) / inside.prod(axis=1)
    return densities


def _below(distance: Floats) -> Floats:
    """The share of the kernel below a distance from its centre, in bandwidths."""
    u = np.clip(distance, -1, 1)
    share: Floats = (2 + 3 * u - u**3) / 4
    return share


def compared(found: WeightedEstimate, interval: tuple[float, float] | None) -> WeightedEstimate:
    """The estimate with whether it agrees with the interval of the fit, where both are of the same policy."""
    own = found.headline
    if own is None or own.interval is None or interval is None or found.is_drawn:
        return found
    return replace(found, agrees=own.interval[0] <= interval[1] and interval[0] <= own.interval[1])


def _single(rewards: Floats, weights: Floats, q: Floats, v: Floats) -> tuple[float | None, dict[str, EpisodeEstimate]]:
    """Estimates from single decisions, and the cap that SLOPE chose."""
    candidates = [importance.ips(rewards, importance.clipped(weights, cap)) for cap in CAPS]
    chosen = importance.slope(candidates)
    found = {
        "SNIPS": importance.snips(rewards, weights),
        "IPS": importance.ips(rewards, weights),
        "SNDR": importance.sndr(rewards, weights, q, v),
        "DR": importance.dr(rewards, weights, q, v),
        "clipped IPS": candidates[chosen],
    }
    return None if math.isinf(CAPS[chosen]) else CAPS[chosen], found


def _episodes(log: Trajectories, gamma: float, q: Floats, v: Floats, tails: Floats) -> dict[str, EpisodeEstimate]:
    """Estimates from whole episodes. With a model they go on beyond a cut, by its value of the last state."""
    ongoing = replace(log, rewards=log.rewards + gamma * tails)
    return {
        "PDWIS": importance.weighted_per_decision(log, gamma),
        "PDIS": importance.per_decision(log, gamma),
        "WIS": importance.weighted_importance_sampling(log, gamma),
        "IS": importance.importance_sampling(log, gamma),
        "WDR": importance.weighted_doubly_robust(ongoing, gamma, q, v),
        "DR": importance.doubly_robust(ongoing, gamma, q, v),
    }


def _worst(verdict: WeightVerdict, findings: list[Finding]) -> WeightVerdict:
    levels = [verdict.level, *(each.level for each in findings)]
    return WeightVerdict(max(levels, key=LEVELS.index), (*verdict.reasons, *(each.reason for each in findings)))


def _value(name: str, estimate: EpisodeEstimate) -> WeightedValue:
    return WeightedValue(name, estimate.value, estimate.standard_error, _interval(estimate))


def _interval(estimate: EpisodeEstimate) -> tuple[float, float] | None:
    found = episode_interval(estimate)
    return None if found is None else (found.low, found.high)


def _describe(found: WeightDiagnostics, log: Trajectories) -> dict[str, Any]:
    """Diagnostics as plain values, with a histogram of the logarithms of final weights."""
    positive = np.log10(np.maximum(log.final_weights, 1e-300))
    shown = positive[log.final_weights > 1e-300]
    counts, edges = np.histogram(shown, bins=BINS) if len(shown) else (np.zeros(0), np.zeros(0))
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
        "log10_histogram": {"counts": counts.tolist(), "edges": edges.tolist(), "zeros": len(positive) - len(shown)},
    }


def _plain(value: float) -> float | None:
    """A number, or None where JSON has no word for it."""
    return float(value) if math.isfinite(value) else None
