"""TD3+BC: TD3 whose actor is also asked to stay near the data.

    critic minimises  sum_i mean (Q_i(s, a) - y)^2,      y = r + gamma * (1 - done) * min_i Q'_i(s', pi'(s') + noise)
    actor minimises   mean (pi(s) - a)^2  -  w * mean Q_1(s, pi(s)),      w = bc_alpha / mean |Q_1(s, pi(s))|

Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2021.

Differs from the paper: observations are normalised by the algorithm, not by rewriting the dataset; the mean of |Q| is
kept above 1e-6, for a critic that is zero everywhere.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, ValueHyper, register
from rl_training.algorithms.losses import bellman, critic_objective, smooth
from rl_training.binding import options
from rl_training.models import MLPTD3Model
from rl_training.types import Batch, Metrics


@options
class TD3BCHyper(ValueHyper):
    """Hyper-parameters of TD3+BC."""

    policy_noise: float = Field(default=0.2, ge=0, description="standard deviation of target smoothing")
    noise_clip: float = Field(default=0.5, ge=0, description="bound on the smoothing noise")
    policy_delay: int = Field(default=2, ge=1, description="critic updates per actor update")
    bc_alpha: float = Field(default=2.5, gt=0, description="weight of value against cloning")


def td3_bc_loss(
    *,
    q_values: Tensor,
    target_q_values: Tensor,
    policy_q_values: Tensor,
    policy_actions: Tensor,
    actions: Tensor,
    bc_alpha: float,
) -> Metrics:
    """The whole objective, from tensors alone."""
    return critic_objective(q_values=q_values, target_q_values=target_q_values) | actor_objective(
        policy_q_values=policy_q_values, policy_actions=policy_actions, actions=actions, bc_alpha=bc_alpha
    )


def actor_objective(*, policy_q_values: Tensor, policy_actions: Tensor, actions: Tensor, bc_alpha: float) -> Metrics:
    """Cloning minus normalised value, the value (B,) being that of the first critic."""
    bc_loss = (policy_actions - actions).square().mean()
    scale = policy_q_values.detach().abs().mean()
    bc_lambda = bc_alpha / scale.clamp_min(1e-6)
    return {
        "actor_loss": bc_loss - bc_lambda * policy_q_values.mean(),
        "bc_loss": bc_loss,
        "bc_lambda": bc_lambda,
        "policy_q_abs_mean": scale,
    }


@register("td3_bc", mode="offline")
class TD3BC(Algorithm):
    """TD3 with a behaviour-cloning term."""

    hyper_class = TD3BCHyper
    model_class = MLPTD3Model
    steps = (Step("critic"), Step("actor", every="policy_delay", tracks=("actor", "critic")))
    defaults = {"normalize_obs": True}

    def critic_loss(self, batch: Batch) -> Metrics:
        """Twin critics against the smaller of the target critics, at a smoothed target action."""
        hyper, next_obs = self.hyper, batch["next_obs"]
        with torch.no_grad():
            next_actions = smooth(self.target.actor(next_obs), hyper.policy_noise, hyper.noise_clip)
            next_q = self.target.critic(next_obs, next_actions).amin(0)
            target_q = bellman(batch, next_q, hyper.gamma)
        q = self.model.critic(batch["obs"], batch["actions"])
        return critic_objective(q_values=q, target_q_values=target_q)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of the policy's own action, and its distance to the data's."""
        actions = self.model.actor(batch["obs"])
        (q,) = self.model.critic(batch["obs"], actions, count=1)
        return actor_objective(
            policy_q_values=q, policy_actions=actions, actions=batch["actions"], bc_alpha=self.hyper.bc_alpha
        )


TD3BCAlgorithm = TD3BC
