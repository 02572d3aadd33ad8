"""Choosing among policies with a few real episodes.

`NormalSelection` is the rule to use: estimates from the log are a prior, and every real episode goes where it may
matter most. Candidate k has the prior mean mu_k; tau2 is the prior variance, s2 the variance of an episode's return::

    precision   P_k = 1 / tau2 + n_k / s2
    mean        M_k = (mu_k / tau2 + sum of returns / s2) / P_k
    next        argmax M_k + c / sqrt(P_k)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from rl_training.experiment.distributions import NORMAL
from rl_training.experiment.episode_estimates import Floats
from rl_training.types import ConfigError

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
class Halving:
    """What sequential halving found."""

    best: int
    returns: tuple[tuple[float, ...], ...]
    """Returns of each candidate's episodes."""


def sequential_halving(run: Callable[[int], float], candidates: int, budget: int) -> Halving:
    """Run all candidates equally often, drop the worse half, and repeat; best where the budget is fixed beforehand.

    `run` plays one episode of a candidate and gives its return. Returns of earlier rounds keep counting.
    """
    rounds = math.ceil(math.log2(candidates)) if candidates > 1 else 0
    if candidates < 1:
        raise ConfigError(f"sequential halving needs at least 1 candidate, got {candidates}")
    if budget < candidates * rounds:
        raise ConfigError(
            f"sequential halving of {candidates} candidates needs {rounds} rounds and at least "
            f"{candidates * rounds} episodes, got {budget}"
        )
    returns: list[list[float]] = [[] for _ in range(candidates)]
    alive = list(range(candidates))
    for _ in range(rounds):
        episodes = budget // (len(alive) * rounds)
        for candidate in alive:
            returns[candidate] += [run(candidate) for _ in range(episodes)]
        alive = _better_half(alive, returns)
    return Halving(alive[0], tuple(tuple(values) for values in returns))


def _better_half(alive: Sequence[int], returns: Sequence[Sequence[float]]) -> list[int]:
    ordered = sorted(alive, key=lambda candidate: -float(np.mean(returns[candidate])))
    return ordered[: (len(alive) + 1) // 2]
