"""SAC-N: SAC that believes the most pessimistic of many critics.

    temperature minimises  - mean log(alpha) (log pi(a_pi | s) + target_entropy),    a_pi ~ pi(s)
    actor minimises        mean (alpha log pi(a_pi | s) - min_j Q_j(s, a_pi))
    critic minimises       sum_j mean (Q_j(s, a) - y)^2
                           y = r + gamma * (1 - done) * (min_j Q'_j(s', a') - alpha log pi(a' | s')),  a' ~ pi(s')

in this order, each with the networks as the step before left them.

An et al., "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble", NeurIPS 2021.

Differs from the authors' code: the order of steps is CORL's; lagged copies start equal to the critics.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Sizes, Step, register
from rl_training.algorithms.losses import bellman, critic_objective, soft_actor_objective, temperature_objective
from rl_training.algorithms.sac import SACHyper
from rl_training.binding import options
from rl_training.models import MLPSACNModel
from rl_training.types import Batch, Metrics


@options
class SACNHyper(SACHyper):
    """Hyper-parameters of SAC-N."""

    hidden_sizes: Sizes = Field(default=(256, 256, 256), min_length=1, description="widths of the hidden layers")
    num_critics: int = Field(default=10, ge=1, description="critics; the narrower the data, the more it takes")


def sac_n_loss(
    *,
    log_temperature: Tensor,
    policy_log_probs: Tensor,
    policy_q_values: Tensor,
    q_values: Tensor,
    target_q_values: Tensor,
    target_entropy: float,
) -> Metrics:
    """The whole objective, from tensors alone; values (N, B), log-densities (B,)."""
    temperature = temperature_objective(
        log_temperature=log_temperature, log_probs=policy_log_probs, target_entropy=target_entropy
    )
    actor = actor_objective(
        policy_q_values=policy_q_values, policy_log_probs=policy_log_probs, temperature=log_temperature.exp()
    )
    return temperature | actor | critic_objective(q_values=q_values, target_q_values=target_q_values)


def actor_objective(*, policy_q_values: Tensor, policy_log_probs: Tensor, temperature: Tensor) -> Metrics:
    """Entropy and the smallest of the critics (N, B) at the policy's own action."""
    metrics = soft_actor_objective(values=policy_q_values.amin(0), log_probs=policy_log_probs, temperature=temperature)
    return metrics | {"q_policy_std": policy_q_values.std(0, correction=0).mean()}


@register("sac_n", mode="offline")
class SACN(Algorithm):
    """SAC with an ensemble of critics."""

    hyper: SACNHyper
    model: MLPSACNModel
    target: MLPSACNModel
    steps = (Step("temperature"), Step("actor"), Step("critic", tracks=("critic",)))

    def temperature_loss(self, batch: Batch) -> Metrics:
        """The temperature, by the entropy of the policy."""
        with torch.no_grad():
            actions, log_probs = self.model.actor.sample(batch["obs"])
        target = -actions.shape[-1] if self.hyper.target_entropy is None else self.hyper.target_entropy
        return temperature_objective(
            log_temperature=self.model.temperature.log_value, log_probs=log_probs, target_entropy=target
        )

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own action."""
        actions, log_probs = self.model.actor.sample(batch["obs"])
        return actor_objective(
            policy_q_values=self.model.critic(batch["obs"], actions),
            policy_log_probs=log_probs,
            temperature=self.model.temperature(),
        )

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of the target critics, entropy included."""
        q = self.model.critic(batch["obs"], batch["actions"])
        return critic_objective(q_values=q, target_q_values=self.targets(batch))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """What the critics should be, by the smallest of the target critics and the entropy at s'."""
        next_obs = batch["next_obs"]
        next_actions, log_probs = self.model.actor.sample(next_obs)
        next_q = self.target.critic(next_obs, next_actions).amin(0) - self.model.temperature() * log_probs
        return bellman(batch, next_q, self.hyper.gamma)


SACNAlgorithm = SACN
