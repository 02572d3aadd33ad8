"""Cal-QL: CQL that never values the policy below what the data achieved, so that fine-tuning does not unlearn first.

    CQL with `calibrated`: in the penalty, Q_i(s, a_j) counts as max(Q_i(s, a_j), G(s)) for a_j from pi(s) and pi(s')

G(s) is the discounted return that was logged from s. Uniform actions and the logged one are not bounded.

Nakamoto et al., "Cal-QL: Calibrated Offline RL Pre-Training for Efficient Online Fine-Tuning", NeurIPS 2023.

Differs from the authors' code as CQL does. Defaults are the authors' for AntMaze, whose rewards they map to 10 r - 5
and whose `failure_reward` is then -5; without one, episodes that were cut look better than they were.
"""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rl_training.algorithms.base import TRANSITION, Sizes, register
from rl_training.algorithms.cql import CQL, CQLHyper, cql_loss
from rl_training.binding import options


@options
class CalQLHyper(CQLHyper):
    """Hyper-parameters of Cal-QL: CQL's, with other defaults."""

    calibrated: bool = Field(default=True, description="bound the policy's values by logged returns")
    hidden_sizes: Sizes = Field(default=(256, 256), min_length=1, description="widths of the hidden layers")
    critic_hidden_sizes: Sizes | None = Field(
        default=(256, 256, 256, 256), min_length=1, description="widths of the critics, if their own"
    )
    orthogonal_actor: bool = Field(default=True, description="the actor starts orthogonal too, as the critics do")
    actor_learning_rate: float | None = Field(default=1e-4, gt=0, description="step size of the actor")
    conservative_weight: float = Field(default=5.0, ge=0, description="weight of the penalty")
    conservative_gap: float | None = Field(
        default=0.8, description="penalty to reach by learning its multiplier; null: no multiplier"
    )
    max_backup: Literal["none", "max_of_min", "min_of_max"] = Field(
        default="max_of_min",
        description="best of num_action_samples actions in the target: by the smaller critic, or by each",
    )


cal_ql_loss = cql_loss


@register("cal_ql", mode="offline")
class CalQL(CQL):
    """Calibrated Q-learning."""

    hyper: CalQLHyper
    needs = (*TRANSITION, "returns_to_go")
    defaults = {}


CalQLAlgorithm = CalQL
