"""Spending a few real episodes on the choice among policies."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.experiment.claims import probability_text
from rl_training.experiment.selection import NormalSelection
from rl_training.runtime.evaluation import EVAL_SEED
from rl_training.runtime.fitting import EvaluationLog
from rl_training.runtime.saved_policy import SavedPolicy
from rl_training.text import number_text
from rl_training.types import ConfigError

SEEDS_APART = 1000
"""Between the first episodes of two seeds, so that they have no episode in common."""


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
