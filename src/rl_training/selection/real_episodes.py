"""Selection with a few real episodes.

`NormalSelection` takes estimates from the log as a prior, and spends every real episode where it may matter most.
Candidate k has the prior mean mu_k; tau2 is the prior variance, s2 the variance of an episode's return::

    precision   P_k = 1 / tau2 + n_k / s2
    mean        M_k = (mu_k / tau2 + sum of returns / s2) / P_k
    next        argmax M_k + c / sqrt(P_k)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
"""Distance between the first episodes of two seeds, so that they have no episode in common."""
NOISE_EPISODES = 4
"""Degrees of freedom that the logged spread of returns counts for, beside those of real episodes."""


class NormalSelection:
    """Normal prior from estimates, normal returns: the candidate to run next, and the best so far."""

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
        default = max(float(self.prior_means.var()), spread**2)
        self.prior_variance = default if prior_variance is None else prior_variance
        if not (self.prior_variance > 0 and math.isfinite(self.prior_variance)):
            raise ConfigError(f"the prior variance must be above 0, got {self.prior_variance}")
        self.exploration = exploration
        self.counts = np.zeros(len(self.prior_means), dtype=np.int64)
        self.sample_means = np.zeros(len(self.prior_means))
        self.squares = np.zeros(len(self.prior_means))

    @classmethod
    def without_estimates(cls, candidates: int, logged_mean: float, spread: float) -> NormalSelection:
        """A prior from the log alone, with more exploration."""
        return cls(np.full(candidates, logged_mean), spread, prior_variance=spread**2, exploration=3.0)

    def observe(self, candidate: int, episode_return: float) -> None:
        """Add the return of one real episode of a candidate."""
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
        """One over the posterior variance of each candidate's mean return."""
        precisions: Floats = 1 / self.prior_variance + self.counts / self.noise_variance
        return precisions

    @property
    def means(self) -> Floats:
        """The posterior mean of each candidate's mean return."""
        observed = self.counts * self.sample_means / self.noise_variance
        means: Floats = (self.prior_means / self.prior_variance + observed) / self.precisions
        return means

    @property
    def deviations(self) -> Floats:
        """The posterior standard deviation of each candidate's mean return."""
        deviations: Floats = 1 / np.sqrt(self.precisions)
        return deviations

    def next(self) -> int:
        """The candidate to run next."""
        return int(np.argmax(self.means + self.exploration * self.deviations))

    def best(self) -> int:
        """The candidate to select: among those that were run, or by the prior if none was."""
        tried = self.counts > 0
        return int(np.argmax(np.where(tried, self.means, -np.inf) if tried.any() else self.means))

    def doubt(self) -> float:
        """The largest probability that one of the others has a higher mean than the best; 0 without others."""
        best, means, variances = self.best(), self.means, 1 / self.precisions
        others = [k for k in range(len(means)) if k != best]
        distances = [(means[k] - means[best]) / math.sqrt(variances[k] + variances[best]) for k in others]
        return max((NORMAL.cdf(distance) for distance in distances), default=0.0)

    def is_decided(self, doubt: float = 0.05) -> bool:
        """Whether more episodes would hardly change the selection; never before the first one."""
        return bool(self.counts.any()) and self.doubt() < doubt


@dataclass(frozen=True)
class Pull:
    """One real episode, and the beliefs after it. Returns are not discounted."""

    number: int
    policy: str
    episode_return: float
    believed: float
    """The expected return of this policy now."""
    believed_std: float
    best: str
    """The policy to select if no more episodes are spent."""
    best_believed: float
    doubt: float
    """The largest probability that another one is better."""

    @property
    def sentence(self) -> str:
        """The episode and the beliefs after it, in words."""
        believed = f"{number_text(self.believed)} ± {number_text(self.believed_std)}"
        best = f"best so far {self.best} ({number_text(self.best_believed)})"
        doubt = f"another is better with probability {probability_text(self.doubt)}"
        episode = f"episode {self.number}: {self.policy} returned {number_text(self.episode_return)}"
        return f"{episode}, now believed {believed}; {best}; {doubt}"


@dataclass(frozen=True)
class Prior:
    """The beliefs about returns before the first real episode."""

    means: dict[str, float]
    """The expected return of each policy, not discounted."""
    spread: float
    """The standard deviation of the logged returns."""
    is_flat: bool = False
    """True if nothing is known about the policies beyond the log."""

    def start(self) -> NormalSelection:
        """The rule, before the first episode."""
        means = list(self.means.values())
        if self.is_flat:
            return NormalSelection.without_estimates(len(means), means[0], self.spread)
        return NormalSelection(means, self.spread)


def prior_from_values(values: Mapping[str, float], log: EvaluationLog, *, gamma: float, logged_value: float) -> Prior:
    """Expected returns of policies with these discounted values, on a line through the means of the log.

    Its slope is the ratio of the undiscounted and the discounted mean. If rewards have both signs, that ratio may be
    anything, and the slope is that of a constant reward.
    """
    mean, spread = logged_returns(log)
    low, high = log.reward_range
    if low * high < 0 or mean == 0 or logged_value == 0:
        lengths = log.bounds[:, 1] - log.bounds[:, 0]
        ends = log.dataset.dones.numpy(force=True)[log.bounds[:, 1] - 1]
        # A truncated episode counts as endless.
        slope = float(lengths.mean()) / float(((1 - gamma**lengths * ends) / (1 - gamma)).mean()) if gamma < 1 else 1.0
    else:
        slope = mean / logged_value
    return Prior({name: mean + slope * (value - logged_value) for name, value in values.items()}, spread)


def logged_returns(log: EvaluationLog) -> tuple[float, float]:
    """Mean and standard deviation of the returns of logged episodes; the latter is never 0."""
    returns: NDArray[np.float64] = log.dataset.episode_returns().double().numpy(force=True)
    mean, std = float(returns.mean()), float(returns.std(ddof=1)) if len(returns) > 1 else 0.0
    return mean, std or 0.1 * abs(mean) or 1.0


@dataclass(frozen=True)
class RealEpisodes:
    """Real episodes that may be spent on a selection."""

    budget: int = 0
    policies: Mapping[str, SavedPolicy] = field(default_factory=dict)
    env: Any = None
    """Default: the environment of the runs."""
    tell: Callable[[Pull], None] = lambda pull: None
    """Called after each episode."""

    @classmethod
    def up_to(
        cls, budget: int, policies: Mapping[str, Any], env: Any = None, tell: Callable[[Pull], None] = lambda pull: None
    ) -> RealEpisodes:
        """Episodes of policies, all of which must be able to run in an environment."""
        if budget < 0:
            raise ConfigError(f"episodes must be at least 0, got {budget}")
        for name, policy in policies.items() if budget else ():
            if not isinstance(policy, SavedPolicy):
                raise ConfigError(f"real episodes are run with runs and checkpoints; {name} is neither")
            if env is None and policy.config.env_id is None:
                raise ConfigError(f"{name} has no env_id: name the environment of the episodes, with --env or as env=")
        return cls(budget, policies, env, tell)

    def spend(self, prior: Prior, seed: int = 0) -> tuple[NormalSelection, list[Pull]]:
        """Run one episode after the other, each of the policy that may matter most; stop early if it is clear.

        The n-th episode of every policy has the same seed, so all policies meet the same episodes.
        """
        names, rule, pulls = list(prior.means), prior.start(), list[Pull]()
        while len(pulls) < self.budget and not rule.is_decided():
            index = rule.next()
            first = EVAL_SEED + SEEDS_APART * seed + int(rule.counts[index])
            found = self.policies[names[index]].evaluate(env=self.env, episodes=1, seed=first, num_envs=1)
            rule.observe(index, found.returns[0])
            best = rule.best()
            pulls.append(
                Pull(
                    number=len(pulls) + 1,
                    policy=names[index],
                    episode_return=found.returns[0],
                    believed=float(rule.means[index]),
                    believed_std=float(rule.deviations[index]),
                    best=names[best],
                    best_believed=float(rule.means[best]),
                    doubt=rule.doubt(),
                )
            )
            self.tell(pulls[-1])
        return rule, pulls
