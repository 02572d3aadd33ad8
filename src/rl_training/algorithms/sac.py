"""SAC: a stochastic actor that is paid for entropy as well as for value.

    critic minimises       1/2 sum_i mean (Q_i(s, a) - y)^2
                           y = r + gamma * (1 - done) * (min_i Q'_i(s', a') - alpha log pi(a' | s')),  a' ~ pi(s')
    actor minimises        mean (alpha log pi(a_pi | s) - min_i Q_i(s, a_pi)),                         a_pi ~ pi(s)
    temperature minimises  - mean log(alpha) (log pi(a_pi | s) + target_entropy)

in this order; actor and temperature move together, by gradients at the same sample.

Haarnoja et al., "Soft Actor-Critic Algorithms and Applications", 2018.

Differs from the paper: the temperature's gradient is that of log(alpha), as in most code bases.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, ValueHyper, register
from rl_training.algorithms.hyper import EntropyHyper
from rl_training.algorithms.losses import (
    bellman,
    combine,
    critic_objective,
    entropy_objective,
    soft_actor_objective,
    soft_policy_loss,
)
from rl_training.binding import option, options
from rl_training.models import MLPSACModel
from rl_training.types import Batch, Metrics


@options
class SACHyper(ValueHyper, EntropyHyper):
    """Hyper-parameters of SAC."""

    num_critics: int = option(2, "critics; the smallest of them counts", ge=1)


def critic_half(*, q_values: Tensor, target_q_values: Tensor) -> Metrics:
    """Half the squared error, summed over critics."""
    metrics = critic_objective(q_values=q_values, target_q_values=target_q_values)
    return metrics | {"critic_loss": 0.5 * metrics["critic_loss"]}


def actor_objective(policy_q_values: Tensor, *, policy_log_probs: Tensor, log_temperature: Tensor) -> Metrics:
    """Entropy and the smallest of the critics (E, B) at the policy's own actions."""
    return soft_actor_objective(
        values=policy_q_values.amin(0), log_probs=policy_log_probs, temperature=log_temperature.exp()
    )


sac_loss = combine("sac_loss", critic_half, actor_objective, entropy_objective)


@register("sac", mode="online")
class SAC(Algorithm[SACHyper, MLPSACModel]):
    """Soft actor-critic with a learned temperature."""

    steps = (Step("critic", tracks=("critic",)), Step("actor", trains=("actor", "temperature")))
    defaults = {"learning_starts": 5_000}

    @property
    def target_entropy(self) -> float:
        """The entropy that the temperature is to bring about."""
        return self.hyper.target_entropy_for(self.model.action_dim)

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of the target critics, entropy included."""
        q = self.model.critic(batch["obs"], batch["actions"])
        return critic_half(q_values=q, target_q_values=self.targets(batch))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """What the critics should be, by the smallest of the target critics and the entropy at s'."""
        next_actions, log_probs = self.model.actor.sample(batch["next_obs"])
        next_q = self.target.critic(batch["next_obs"], next_actions).amin(0) - self.model.temperature() * log_probs
        return bellman(batch, next_q, self.hyper.gamma)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own actions, and the temperature by the same sample."""
        return soft_policy_loss(self, batch["obs"], self.model.critic, actor_objective)


SACAlgorithm = SAC
