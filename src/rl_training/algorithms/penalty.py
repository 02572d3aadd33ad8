"""CQL's penalty: its options, and its formula with and without a learned multiplier."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rl_training.algorithms.calibration import CalibrationHyper
from rl_training.binding import option, options, refuse_unused
from rl_training.types import ConfigError, Metrics

LagrangeForm = Literal["weight_outside", "weight_inside"]


@options
class PenaltyHyper(CalibrationHyper):
    """Hyper-parameters of the penalty on values of sampled actions."""

    conservative_weight: float = option(10.0, "weight of the penalty", ge=0)
    online_conservative_weight: float | None = option(None, "penalty's weight online; null: conservative_weight", ge=0)
    num_action_samples: int = option(10, "actions of each of the three kinds in the penalty", ge=1)
    penalty_temperature: float = option(1.0, "how soft the maximum in the penalty is", gt=0)
    importance_sampled: bool = option(True, "correct for the samples' densities; false: add the logged action to them")
    penalty_clip_min: float | None = option(None, "lower bound on a row's part of the penalty")
    penalty_clip_max: float | None = option(None, "upper bound on a row's part of the penalty")
    conservative_gap: float | None = option(None, "penalty to reach by learning its multiplier; null: no multiplier")
    lagrange_form: LagrangeForm = option("weight_outside", "whether the weight applies to the gap too")
    initial_log_lagrange: float = option(1.0, "logarithm of the multiplier at the start")
    lagrange_learning_rate: float | None = option(None, "learning rate of the multiplier; null: the critics'", gt=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        names = ("lagrange_form", "initial_log_lagrange", "lagrange_learning_rate")
        refuse_unused(self, *names, unless="a conservative_gap", holds=self.conservative_gap is not None)
        low, high = self.penalty_clip_min, self.penalty_clip_max
        if low is not None and high is not None and low > high:
            raise ConfigError(f"penalty_clip_min must be <= penalty_clip_max, got {low:g} and {high:g}")

    def conservative_weight_at(self, online_share: Tensor) -> float | Tensor:
        """The weight of the penalty, which may be another in an online phase."""
        offline, online = self.conservative_weight, self.online_conservative_weight
        return offline if online is None else torch.where(online_share > 0, online, offline)


def conservative_gaps(
    *,
    q_values: Tensor,
    sampled_q_values: Tensor,
    log_densities: Tensor | None,
    temperature: float,
    clip_min: float | None = None,
    clip_max: float | None = None,
) -> Tensor:
    """D (E,): by how much the soft maximum over sampled values (samples, E, B) exceeds the logged ones (E, B).

    Without log-densities (samples, B), the logged action is one of the samples.
    """
    if log_densities is None:
        z = torch.cat([sampled_q_values, q_values[None]])
    else:
        z = sampled_q_values - log_densities.detach()[:, None]
    differences = temperature * (z / temperature).logsumexp(0) - q_values
    if clip_min is not None or clip_max is not None:
        differences = differences.clamp(clip_min, clip_max)
    return differences.mean(-1)


def lagrange_objective(
    *,
    gaps: Tensor,
    multiplier: Tensor,
    conservative_weight: float | Tensor,
    conservative_gap: float,
    form: LagrangeForm,
) -> tuple[Tensor, Metrics]:
    """The critics' penalty under a learned multiplier, and the multiplier's own loss."""
    multiplier = multiplier.clamp(0, 1e6)
    if form == "weight_outside":
        excess = conservative_weight * (gaps - conservative_gap)
    else:
        excess = conservative_weight * gaps - conservative_gap
    penalty = (multiplier.detach() * excess).sum()
    return penalty, {"lagrange_loss": -(multiplier * excess.detach()).mean(), "lagrange": multiplier.detach()}
