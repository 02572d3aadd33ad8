"""SAC-N: SAC that believes the most pessimistic of many critics.

    temperature minimises  - mean log(alpha) (log pi(a_pi | s) + target_entropy),    a_pi ~ pi(s)
    actor minimises        mean (alpha log pi(a_pi | s) - min_j Q_j(s, a_pi))
    critic minimises       sum_j mean (Q_j(s, a) - y)^2
                           y = r + gamma * (1 - done) * (min_j Q'_j(s', a') - alpha log pi(a' | s')),  a' ~ pi(s')

in this order, each with the networks as the step before left them.

An et al., "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble", NeurIPS 2021.

Differs from the authors' code: the order of steps is CORL's; target networks start equal to the critics; the
log-density of the tanh is exact, where theirs adds 1e-6 in its logarithm.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, losses, register
from rl_training.algorithms.sac import SACHyper
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPSACNModel


@options
class SACNHyper(SACHyper, hidden_sizes=(256, 256, 256)):
    """Hyper-parameters of SAC-N."""

    num_critics: int = option(10, "number of critics; narrow data needs more", ge=1, le=1000)


def actor_objective(*, policy_q_values: Tensor, policy_log_probs: Tensor, log_temperature: Tensor) -> Metrics:
    """Entropy and the smallest of the critics (N, B) at the policy's own actions."""
    metrics = losses.soft_actor_objective(policy_q_values.amin(0), policy_log_probs, log_temperature)
    return metrics | {"q_policy_std": policy_q_values.std(0, correction=0).mean()}


sac_n_loss = losses.combine("sac_n_loss", losses.temperature_objective, actor_objective, losses.critic_objective)


@register("sac_n", mode="offline")
class SACN(Algorithm[SACNHyper, MLPSACNModel]):
    """SAC with an ensemble of critics."""

    steps = (Step("temperature"), Step("actor"), Step("critic", tracks=("critic",)))
    targets = losses.soft_targets

    def temperature_loss(self, batch: Batch) -> Metrics:
        """The temperature, by the entropy of the policy."""
        with torch.no_grad():
            _, log_probs = self.model.actor.sample(batch["obs"])
        return losses.temperature_loss(self, log_probs)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own actions."""
        actions, log_probs = self.model.actor.sample(batch["obs"])
        return actor_objective(
            policy_q_values=self.model.critic(batch["obs"], actions),
            policy_log_probs=log_probs,
            log_temperature=self.model.temperature.log_value,
        )

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of the target critics, entropy included."""
        q = self.model.critic(batch["obs"], batch["actions"])
        return losses.critic_objective(q_values=q, target_q_values=self.targets(batch))


SACNAlgorithm = SACN
