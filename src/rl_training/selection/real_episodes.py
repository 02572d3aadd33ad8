"""Spending a few real episodes on the choice among policies.

`NormalSelection` is the rule to use: estimates from the log are a prior, and every real episode goes where it may
matter most. Candidate k has the prior mean mu_k; tau2 is the prior variance, s2 the variance of an episode's return::

    precision   P_k = 1 / tau2 + n_k / s2
    mean        M_k = (mu_k / tau2 + sum of returns / s2) / P_k
    next        argmax M_k + c / sqrt(P_k)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rl_training.acting import EVAL_SEED
from rl_training.core.errors import ConfigError
from rl_training.core.statistics import NORMAL
from rl_training.core.text import number_text
from rl_training.ope import EvaluationLog, Floats, probability_text
from rl_training.policies import SavedPolicy

SEEDS_APART = 1000
"""Between the first episodes of two seeds, so that they have no episode in common."""
NOISE_EPISODES = 4
"""How many degrees of freedom the logged spread of returns counts for, beside those of real episodes."""


class NormalSelection:
    """Normal prior from estimates, normal returns: which candidate to run next, and which is the best so far."""

    def __init__(
        self, prior_means: ArrayLike, spread: float, *, prior_variance: float | None = None, exploration: float = 2.0
    ) -> None:
        """`prior_means` are in units of an episode's return, `spread` is the standard deviation of logged returns.

        Without `prior_variance` it is the variance of the prior means, and at least that of logged returns.
        """
        self.prior_means = np.asarray(prior_means, dtype=np.float64)
        if self.prior_means.ndim != 1 or not len(self.prior_means) or not np.isfinite(self.prior_means).all():
            raise ConfigError(f"selection needs one finite prior mean per candidate, got {self.prior_means}")
        if not (spread > 0 and math.isfinite(spread)):
            raise ConfigError(f"the standard deviation of logged returns must be above 0, got {spread}")
        self.spread = spread
        chosen = max(float(self.prior_means.var()), spread**2) if prior_variance is None else prior_variance
        if not (chosen > 0 and math.isfinite(chosen)):
            raise ConfigError(f"the prior variance must be above 0, got {chosen}")
        self.prior_variance = chosen
        self.exploration = exploration
        self.counts = np.zeros(len(self.prior_means), dtype=np.int64)
        self.sample_means = np.zeros(len(self.prior_means))
        self.squares = np.zeros(len(self.prior_means))

    @classmethod
    def without_estimates(cls, candidates: int, logged_mean: float, spread: float) -> NormalSelection:
        """A prior that knows only the log; it explores more, since it is easily wrong."""
        return cls(np.full(candidates, logged_mean), spread, prior_variance=spread**2, exploration=3.0)

    def observe(self, candidate: int, episode_return: float) -> None:
        """Take the return of one real episode of a candidate into account."""
        if not 0 <= candidate < len(self.counts):
            raise ConfigError(f"candidates are numbered from 0 to {len(self.counts) - 1}, got {candidate}")
        if not math.isfinite(episode_return):
            raise ConfigError(f"the return of candidate {candidate} must be a finite number, got {episode_return}")
        distance = episode_return - self.sample_means[candidate]
        self.counts[candidate] += 1
        self.sample_means[candidate] += distance / self.counts[candidate]
        self.squares[candidate] += distance * (episode_return - self.sample_means[candidate])

    @property
    def noise_variance(self) -> float:
        """Variance of one episode's return, pooled over candidates and the log."""
        degrees = np.maximum(self.counts - 1, 0).sum()
        return float((NOISE_EPISODES * self.spread**2 + self.squares.sum()) / (NOISE_EPISODES + degrees))

    @property
    def precisions(self) -> Floats:
        """One over the variance of what is known about each candidate's mean."""
        precisions: Floats = 1 / self.prior_variance + self.counts / self.noise_variance
        return precisions

    @property
    def means(self) -> Floats:
        """What each candidate's mean return is taken to be."""
        observed = self.counts * self.sample_means / self.noise_variance
        means: Floats = (self.prior_means / self.prior_variance + observed) / self.precisions
        return means

    @property
    def deviations(self) -> Floats:
        """Standard deviations of what is known about each candidate's mean."""
        deviations: Floats = 1 / np.sqrt(self.precisions)
        return deviations

    def next(self) -> int:
        """The candidate to run next."""
        return int(np.argmax(self.means + self.exploration * self.deviations))

    def best(self) -> int:
        """The candidate to take: among those that were run, or by the prior as long as none was."""
        tried = self.counts > 0
        return int(np.argmax(np.where(tried, self.means, -np.inf) if tried.any() else self.means))

    def doubt(self) -> float:
        """The largest probability that one of the others has a higher mean than the best; 0 without others."""
        best, means, variances = self.best(), self.means, 1 / self.precisions
        others = [k for k in range(len(means)) if k != best]
        distances = [(means[k] - means[best]) / math.sqrt(variances[k] + variances[best]) for k in others]
        return max((NORMAL.cdf(distance) for distance in distances), default=0.0)

    def is_decided(self, doubt: float = 0.05) -> bool:
        """Whether more episodes are hardly worth their price; never before the first one."""
        return bool(self.counts.any()) and self.doubt() < doubt


@dataclass(frozen=True)
class Pull:
    """One real episode, and what is believed after it. Returns are not discounted."""

    number: int
    policy: str
    episode_return: float
    believed: float
    """What the mean return of this policy is taken to be now."""
    believed_std: float
    best: str
    """The policy to take if no more episodes are spent."""
    best_believed: float
    doubt: float
    """The largest probability that one of the others is better than that."""

    @property
    def sentence(self) -> str:
        """The episode, and what is believed after it, in words."""
        believed = f"{number_text(self.believed)} ± {number_text(self.believed_std)}"
        best = f"best so far {self.best} ({number_text(self.best_believed)})"
        doubt = f"another is better with probability {probability_text(self.doubt)}"
        episode = f"episode {self.number}: {self.policy} returned {number_text(self.episode_return)}"
        return f"{episode}, now believed {believed}; {best}; {doubt}"


@dataclass(frozen=True)
class Prior:
    """What is believed about returns before the first real episode."""

    means: dict[str, float]
    """The expected return of each policy, not discounted."""
    spread: float
    """The standard deviation of the logged returns."""
    is_flat: bool = False
    """Whether only the log is known, and nothing about the policies."""

    def start(self) -> NormalSelection:
        """The rule, before the first episode."""
        means = list(self.means.values())
        if self.is_flat:
            return NormalSelection.without_estimates(len(means), means[0], self.spread)
        return NormalSelection(means, self.spread)


def prior_from_values(values: Mapping[str, float], log: EvaluationLog, *, gamma: float, logged_value: float) -> Prior:
    """Returns that one expects of policies with these discounted values: on a line through the means of the log.

    Its slope is the ratio of the undiscounted and the discounted mean. Where rewards have both signs, that ratio may be
    anything, and the slope is that of a constant reward.
    """
    mean, spread = logged_returns(log)
    low, high = log.reward_range
    if low * high < 0 or mean == 0 or logged_value == 0:
        slope = _steps(log) / _discounted_steps(log, gamma)
    else:
        slope = mean / logged_value
    return Prior({name: mean + slope * (value - logged_value) for name, value in values.items()}, spread)


def logged_returns(log: EvaluationLog) -> tuple[float, float]:
    """Mean and standard deviation of the returns of logged episodes; the latter is never 0."""
    returns: NDArray[np.float64] = log.dataset.episode_returns().double().numpy(force=True)
    mean, std = float(returns.mean()), float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    return mean, std or 0.1 * abs(mean) or 1.0


def _steps(log: EvaluationLog) -> float:
    return float((log.bounds[:, 1] - log.bounds[:, 0]).mean())


def _discounted_steps(log: EvaluationLog, gamma: float) -> float:
    """The discounted number of steps of an episode; one that was cut goes on for ever."""
    lengths = log.bounds[:, 1] - log.bounds[:, 0]
    ends = log.dataset.dones.numpy(force=True)[log.bounds[:, 1] - 1]
    return float(((1 - gamma**lengths * ends) / (1 - gamma)).mean())


def check_can_run(policies: Mapping[str, Any], env: Any) -> dict[str, SavedPolicy]:
    """The policies, if all of them can be run in an environment."""
    for name, policy in policies.items():
        if not isinstance(policy, SavedPolicy):
            raise ConfigError(f"real episodes are run with runs and checkpoints; {name} is neither")
        if env is None and policy.config.env_id is None:
            raise ConfigError(f"{name} has no env_id: name the environment of the episodes, with --env or as env=")
    return dict(policies)


def spend_episodes(
    policies: Mapping[str, SavedPolicy],
    prior: Prior,
    budget: int,
    *,
    env: Any = None,
    seed: int = 0,
    tell: Callable[[Pull], None] = lambda pull: None,
) -> tuple[NormalSelection, list[Pull]]:
    """Run one episode after the other, each of the policy that may matter most; fewer if the choice is clear before.

    The first episode of every policy has the same seed, and so on, so that all meet the same episodes.
    """
    names, rule, pulls = list(prior.means), prior.start(), list[Pull]()
    for number in range(1, budget + 1):
        if rule.is_decided():
            break
        chosen = rule.next()
        first = EVAL_SEED + SEEDS_APART * seed + int(rule.counts[chosen])
        found = policies[names[chosen]].evaluate(env=env, episodes=1, seed=first, num_envs=1)
        rule.observe(chosen, found.returns[0])
        best = rule.best()
        pulls.append(
            Pull(
                number=number,
                policy=names[chosen],
                episode_return=found.returns[0],
                believed=float(rule.means[chosen]),
                believed_std=float(rule.deviations[chosen]),
                best=names[best],
                best_believed=float(rule.means[best]),
                doubt=rule.doubt(),
            )
        )
        tell(pulls[-1])
    return rule, pulls
