"""Cal-QL: CQL that never values the policy below what the data achieved, so that fine-tuning does not unlearn first.

    CQL with `calibrated`: in the penalty, Q_i(s, a_j) counts as max(Q_i(s, a_j), G(s)) for a_j from pi(s) and pi(s')

G(s) is the discounted return that was logged from s. Uniform actions and the logged one are not bounded.
`calibration` computes the bounds, and `cql_loss` applies them.

Nakamoto et al., "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning", NeurIPS 2023.

Differs from the authors' code as CQL does. Defaults are the authors' for AntMaze, whose rewards they map to 10 r - 5
and whose `failure_reward` is then -5; without one, episodes that were cut look better than they were.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_training.algorithms.base import register
from rl_training.algorithms.cql import CQL, CQLHyper, cql_loss
from rl_training.core.batches import TRANSITION, Metrics, Transitions
from rl_training.core.options import options


@options
class CalQLHyper(
    CQLHyper,
    calibrated=True,
    hidden_sizes=(256, 256),
    critic_hidden_sizes=(256, 256, 256, 256),
    orthogonal_actor=True,
    actor_learning_rate=1e-4,
    conservative_weight=5.0,
    conservative_gap=0.8,
    max_backup="max_of_min",
):
    """Hyper-parameters of Cal-QL: CQL's, with other defaults."""


cal_ql_loss = cql_loss


def calibration_bounds(algorithm: CQL, returns: Tensor) -> Tensor:
    """The logged returns (B,) as bounds; minus infinity in an online phase, if that is not calibrated."""
    if algorithm.hyper.online_calibrated:
        return returns
    return torch.where(algorithm.online_share > 0, -math.inf, returns)


def calibration(
    algorithm: CQL, returns: Tensor, policy_q_values: Tensor, next_policy_q_values: Tensor
) -> tuple[Tensor, Metrics]:
    """The bounds of the policy's values, and which share of these values is below them."""
    bounds = calibration_bounds(algorithm, returns)
    return bounds, {
        "calibration_bound_rate_pi": (policy_q_values < bounds).to(bounds.dtype).mean(),
        "calibration_bound_rate_next": (next_policy_q_values < bounds).to(bounds.dtype).mean(),
        "mc_return_mean": returns.mean(),
    }


@register("cal_ql", mode="offline")
class CalQL(CQL):
    """Calibrated Q-learning."""

    hyper: CalQLHyper
    reads = Transitions((*TRANSITION, "returns_to_go"))
    defaults = {}


CalQLAlgorithm = CalQL
