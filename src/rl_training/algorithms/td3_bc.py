"""TD3+BC: TD3 whose actor is also asked to stay near the data.

    critic minimises  sum_i mean (Q_i(s, a) - y)^2,      y = r + gamma * (1 - done) * min_i Q'_i(s', pi'(s') + noise)
    actor minimises   mean (pi(s) - a)^2  -  w * mean Q_1(s, pi(s)),      w = bc_alpha / mean |Q_1(s, pi(s))|

Fujimoto and Gu, "A Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2021.

Differs from the paper: observations are normalised by the algorithm, not by rewriting the dataset; the mean of |Q| is
kept above 1e-6, for a critic that is zero everywhere.
"""

from __future__ import annotations

from torch import Tensor

from rl_training.algorithms.base import losses, register
from rl_training.algorithms.td3 import TD3, TD3Hyper
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options


@options
class TD3BCHyper(TD3Hyper):
    """Hyper-parameters of TD3+BC."""

    bc_alpha: float = option(2.5, "weight of value against cloning", gt=0)


def actor_objective(*, policy_q_values: Tensor, policy_actions: Tensor, actions: Tensor, bc_alpha: float) -> Metrics:
    """Cloning minus the normalised value (B,) by the first critic."""
    bc_loss = (policy_actions - actions).square().mean()
    scale = policy_q_values.detach().abs().mean()
    bc_lambda = bc_alpha / scale.clamp_min(1e-6)
    return {
        "actor_loss": bc_loss - bc_lambda * policy_q_values.mean(),
        "bc_loss": bc_loss,
        "bc_lambda": bc_lambda,
        "policy_q_abs_mean": scale,
    }


td3_bc_loss = losses.combine("td3_bc_loss", losses.critic_objective, actor_objective)


@register("td3_bc", mode="offline")
class TD3BC(TD3):
    """TD3 with a behaviour-cloning term."""

    hyper: TD3BCHyper
    defaults = {"normalize_obs": True, "exploration_noise": 0.1}

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of the policy's own action, and its distance to the data's."""
        actions = self.model.actor(batch["obs"])
        (q,) = self.model.critic(batch["obs"], actions, first=1)
        return actor_objective(
            policy_q_values=q, policy_actions=actions, actions=batch["actions"], bc_alpha=self.hyper.bc_alpha
        )


TD3BCAlgorithm = TD3BC
