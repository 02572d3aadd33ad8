"""The quality of a ranking of policies, the regret of selecting by it, and its shuffle control.

With rewards shuffled between episodes, nothing of a ranking should be left. If much is left, something else than the
rewards causes it, such as the lengths of episodes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from rl_training.core.errors import DatasetError
from rl_training.core.statistics import rank_correlation
from rl_training.ope import EvaluationLog, FitSettings, Floats, ValueFitter, policy_inputs

FEWEST_POLICIES = 5
"""With four or fewer, chance alone gives the same ranks twice in more than 4 % of cases."""
DRAWS = 10_000


def spearman(truth: ArrayLike, estimates: ArrayLike) -> float:
    """Correlation of ranks; not a number if all values of one side are equal.

    With few policies it proves little: chance alone exceeds 0.64 in 5 % of cases with ten, and 0.9 with five.
    """
    return rank_correlation(*_pair(truth, estimates))


def regret_at_k(truth: ArrayLike, estimates: ArrayLike, k: int) -> float:
    """The loss from trying only the k policies with the highest estimates, as a share of the range of values."""
    values, guesses = _pair(truth, estimates)
    if not 1 <= k <= len(values):
        raise DatasetError(f"k must be from 1 to {len(values)}, the number of policies, got {k}")
    tried = np.argsort(-guesses, kind="stable")[:k]
    spread = values.max() - values.min()
    return float((values.max() - values[tried].max()) / spread) if spread > 0 else 0.0


def _pair(truth: ArrayLike, estimates: ArrayLike) -> tuple[Floats, Floats]:
    x, y = np.asarray(truth, dtype=np.float64), np.asarray(estimates, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1 or len(x) < 2:
        raise DatasetError(f"a ranking needs two values each of at least 2 policies, got {x.shape} and {y.shape}")
    return x, y


@dataclass(frozen=True)
class ShuffleControl:
    """The correlation of a ranking with one by rewards that are shuffled between episodes."""

    correlation: float | None
    """Rank correlation of the values with those by shuffled rewards; None if all of either are the same."""
    limit: float
    """The correlation that chance alone exceeds in 5 % of cases."""
    values: dict[str, float]
    """The values by shuffled rewards."""

    @property
    def passes(self) -> bool:
        """Whether the correlation may be chance."""
        return self.correlation is None or self.correlation <= self.limit


def shuffle_control(
    policies: Mapping[str, Any], values: Mapping[str, float], log: EvaluationLog, settings: FitSettings
) -> ShuffleControl | None:
    """Fit the policies with these values again, to shuffled rewards; None if there are too few for a ranking."""
    if len(values) < FEWEST_POLICIES:
        return None
    options, shuffled = settings.options, {}
    fitter = ValueFitter(_shuffled(log, options.seed), replace(options, members=0))
    for name in values:
        progress = settings.progress_of(f"{name}, shuffled rewards")
        shuffled[name] = float(fitter.fit_policy(policy_inputs(policies[name], log, name), progress=progress).values[0])
    correlation = spearman(list(values.values()), list(shuffled.values()))
    return ShuffleControl(None if math.isnan(correlation) else correlation, _limit(len(values)), shuffled)


def _shuffled(log: EvaluationLog, seed: int) -> EvaluationLog:
    """The log with its rewards in random order."""
    order = torch.from_numpy(np.random.default_rng([seed, len(log.dataset)]).permutation(len(log.dataset)))
    return EvaluationLog(log.dataset.with_fields(rewards=log.dataset.rewards[order]), log.spaces)


def _limit(policies: int) -> float:
    """The rank correlation that 5 % of random rankings exceed."""
    rng, ranks = np.random.default_rng(0), np.arange(policies) - (policies - 1) / 2
    drawn = np.array([rng.permutation(policies) for _ in range(DRAWS)])
    return float(np.quantile(drawn @ ranks / (ranks @ ranks), 0.95))
