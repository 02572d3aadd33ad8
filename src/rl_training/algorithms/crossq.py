"""CrossQ: SAC without target networks, whose critics normalise (s, a) and (s', a') together.

    [Q_i(s, a); Q_i(s', a')] = one pass of critic i over both halves, normalised by the statistics of the whole
    critic minimises       1/2 sum_i mean (Q_i(s, a) - y)^2
                           y = r + gamma * (1 - done) * (min_i Q_i(s', a') - alpha log pi(a' | s')),  a' ~ pi(s')
    actor minimises        mean (alpha log pi(a_pi | s) - min_i Q_i(s, a_pi)),                        a_pi ~ pi(s)
    temperature minimises  - mean log(alpha) (log pi(a_pi | s) + target_entropy)

in this order; actor and temperature move together, on every `policy_delay`-th update. y is held constant, the
statistics that went into Q_i(s, a) are not. The critics normalise by the batch in their own step only, the actor in
its own only; everywhere else running statistics are used and stay as they are.

Bhatt, Palenicek et al., "CrossQ: Batch Normalization in Deep Reinforcement Learning for Greater Sample Efficiency and
Simplicity", ICLR 2024.

Differs from the paper: critics have 2x1024 units instead of 2x2048; the temperature's gradient is that of log(alpha);
layers start as PyTorch's do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import (
    ActorCriticHyper,
    Algorithm,
    EntropyHyper,
    Step,
    losses,
    network_option,
    register,
)
from rl_training.algorithms.sac import actor_objective, half_squared_error
from rl_training.core.batches import Batch, Metrics
from rl_training.core.errors import ConfigError
from rl_training.core.options import option, options
from rl_training.models import MLPCrossQModel, Norm


@options
class CrossQHyper(ActorCriticHyper, EntropyHyper, learning_rate=1e-3, critic_hidden_sizes=(1024, 1024)):
    """Hyper-parameters of CrossQ."""

    actor_beta1: float = option(0.5, "decay of Adam's first moment, for the actor", ge=0, lt=1)
    critic_beta1: float = option(0.5, "decay of Adam's first moment, for the critics", ge=0, lt=1)
    num_critics: int = option(2, "number of critics; the minimum is used", ge=1, le=1000)
    policy_delay: int = option(3, "critic updates per actor update", ge=1)
    norm_momentum: float = option(0.01, "rate at which running statistics follow", gt=0, le=1)
    norm_warmup: int = option(100_000, "training passes before a batch is corrected by running statistics", ge=0)
    layer_norm: Norm = network_option("none", "none: CrossQ normalises by the batch")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer_norm != "none":
            raise ConfigError("layer_norm does not go with crossq, which normalises its layers by the batch")


def joint_critic_objective(
    *,
    joint_q_values: Tensor,
    next_log_probs: Tensor,
    rewards: Tensor,
    dones: Tensor,
    log_temperature: Tensor,
    gamma: float | Tensor = 0.99,
) -> Metrics:
    """SAC's objective for values (E, 2 B), of (s, a) first, of (s', a') after it; the latter are held constant."""
    q, next_q = joint_q_values.chunk(2, dim=-1)
    with torch.no_grad():
        next_values = next_q.amin(0) - log_temperature.exp() * next_log_probs
        target_q = losses.bellman({"rewards": rewards, "dones": dones}, next_values, gamma)
    return half_squared_error(q_values=q, target_q_values=target_q)


crossq_loss = losses.combine("crossq_loss", joint_critic_objective, actor_objective, losses.temperature_objective)


@register("crossq", mode="online")
class CrossQ(Algorithm[CrossQHyper, MLPCrossQModel]):
    """Soft actor-critic with batch-renormalised networks and no target networks."""

    steps = (Step("critic"), Step("actor", trains=("actor", "temperature"), every="policy_delay"))
    defaults = {"learning_starts": 5_000}

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of themselves at s', entropy included, in one pass over both."""
        with torch.no_grad():
            next_actions, log_probs = self.model.actor.sample(batch["next_obs"])
        obs = torch.cat([batch["obs"], batch["next_obs"]])
        actions = torch.cat([batch["actions"], next_actions])
        metrics = joint_critic_objective(
            joint_q_values=self.model.critic(obs, actions, training=self.training),
            next_log_probs=log_probs,
            rewards=batch["rewards"],
            dones=batch["dones"],
            log_temperature=self.model.temperature.log_value,
            gamma=batch.get("discounts", self.hyper.gamma),
        )
        return metrics | self.model.critic.norm_report()

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own actions, and the temperature by the same sample."""
        return losses.soft_policy_loss(self, batch["obs"], self.model.critic, actor_objective)


CrossQAlgorithm = CrossQ
