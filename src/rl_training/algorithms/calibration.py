"""Cal-QL's calibration, which is an option of CQL: values of the policy's actions are bounded by logged returns.

    in the penalty, Q_i(s, a_j) counts as max(Q_i(s, a_j), G(s)) for a_j from pi(s) and from pi(s')

G(s) is the discounted return that was logged from s.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_training.algorithms.hyper import Hyper
from rl_training.binding import option, options, refuse_unused
from rl_training.types import Metrics


@options
class CalibrationHyper(Hyper):
    """Hyper-parameters of the calibration."""

    calibrated: bool = option(False, "bound the policy's values by logged returns: Cal-QL")
    online_calibrated: bool = option(True, "go on with the bounds in an online phase")
    failure_reward: float | None = option(None, "reward per step of a failed episode, whose return counts as endless")

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "failure_reward", "online_calibrated", unless="calibrated: true", holds=self.calibrated)


def calibrate(values: Tensor, bounds: Tensor | None) -> Tensor:
    """Values (..., B), at least the bounds (B,) where there are any."""
    return values if bounds is None else values.maximum(bounds)


def calibration_bounds(returns: Tensor, hyper: CalibrationHyper, online_share: Tensor) -> Tensor:
    """The logged returns as bounds; minus infinity in an online phase, if that is not calibrated."""
    return returns if hyper.online_calibrated else torch.where(online_share > 0, -math.inf, returns)


def calibration_report(*, policy_q_values: Tensor, next_policy_q_values: Tensor, bounds: Tensor) -> Metrics:
    """Shares of the values, before calibration, that are below their bounds."""
    return {
        "calibration_bound_rate_pi": (policy_q_values < bounds).to(bounds.dtype).mean(),
        "calibration_bound_rate_next": (next_policy_q_values < bounds).to(bounds.dtype).mean(),
    }
