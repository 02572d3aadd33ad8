"""The shuffle control of a ranking: with rewards shuffled between episodes, nothing of it should be left.

If much is left, the ranking does not come from the rewards. Lengths of episodes may make it, for example.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from rl_training.experiment.estimation import Progress, part_of
from rl_training.experiment.ranking import spearman
from rl_training.runtime.evaluation_data import as_inputs
from rl_training.runtime.fitting import EvaluationLog, FitOptions, ValueFitter

FEWEST_POLICIES = 5
"""Of four or fewer, chance alone gives the same ranks twice in more than 4 % of cases."""
DRAWS = 10_000


@dataclass(frozen=True)
class ShuffleControl:
    """How much of a ranking is left if rewards are shuffled between episodes."""

    correlation: float | None
    """Rank correlation of the values with those by shuffled rewards; None if all of either are the same."""
    limit: float
    """What chance alone exceeds in 5 % of cases."""
    values: dict[str, float]
    """The values by shuffled rewards."""

    @property
    def passes(self) -> bool:
        """Whether what is left of the ranking may be chance."""
        return self.correlation is None or self.correlation <= self.limit


def shuffle_control(
    policies: Mapping[str, Any],
    values: Mapping[str, float],
    log: EvaluationLog,
    options: FitOptions,
    progress: Progress | None = None,
) -> ShuffleControl | None:
    """Fit these policies again to shuffled rewards, each once; None where there are too few for a ranking."""
    if len(values) < FEWEST_POLICIES:
        return None
    fitter = ValueFitter(_shuffled(log, options.seed), replace(options, members=0))
    shuffled = {}
    for name in values:
        told = part_of(progress, f"{name}, shuffled rewards")
        shuffled[name] = float(fitter.fit_policy(as_inputs(policies[name], log, name), progress=told).values[0])
    correlation = spearman(list(values.values()), list(shuffled.values()))
    return ShuffleControl(None if math.isnan(correlation) else correlation, _limit(len(values)), shuffled)


def _shuffled(log: EvaluationLog, seed: int) -> EvaluationLog:
    """The log with every reward at the place of another."""
    order = torch.from_numpy(np.random.default_rng([seed, len(log.dataset)]).permutation(len(log.dataset)))
    return EvaluationLog(log.dataset.with_fields(rewards=log.dataset.rewards[order]), log.spaces)


def _limit(policies: int) -> float:
    """The rank correlation that 5 % of random rankings exceed."""
    rng, ranks = np.random.default_rng(0), np.arange(policies)
    return float(np.quantile([spearman(ranks, rng.permutation(policies)) for _ in range(DRAWS)], 0.95))
