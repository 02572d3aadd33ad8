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
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Alpha, Step, ValueHyper, register
from rl_training.algorithms.losses import (
    bellman,
    critic_objective,
    saturation,
    soft_actor_objective,
    soft_policy_objective,
    temperature_objective,
)
from rl_training.binding import options, refuse_unused
from rl_training.models import MLPSACModel
from rl_training.types import Batch, Metrics


@options
class SACHyper(ValueHyper):
    """Hyper-parameters of SAC."""

    num_critics: int = Field(default=2, ge=1, description="critics; the smallest of them counts")
    alpha: Alpha = Field(default="auto", description="entropy temperature: a number, or auto to learn it")
    target_entropy: float | None = Field(
        default=None, description="entropy to reach; null: minus the action's dimension"
    )
    temperature_learning_rate: float | None = Field(
        default=None, gt=0, description="step size of the temperature, if its own"
    )

    def __post_init__(self) -> None:
        learned = self.alpha == "auto"
        refuse_unused(self, "target_entropy", "temperature_learning_rate", unless="alpha: auto", holds=learned)


def sac_loss(
    *,
    q_values: Tensor,
    target_q_values: Tensor,
    policy_q_values: Tensor,
    policy_log_probs: Tensor,
    log_temperature: Tensor,
    target_entropy: float,
) -> Metrics:
    """The whole objective, from tensors alone; `q_values` and `policy_q_values` (E, B), the others (B,)."""
    return critic_half(q_values=q_values, target_q_values=target_q_values) | soft_policy_objective(
        values=policy_q_values.amin(0),
        log_probs=policy_log_probs,
        log_temperature=log_temperature,
        target_entropy=target_entropy,
    )


def critic_half(*, q_values: Tensor, target_q_values: Tensor) -> Metrics:
    """Half the squared error, summed over critics."""
    metrics = critic_objective(q_values=q_values, target_q_values=target_q_values)
    return metrics | {"critic_loss": 0.5 * metrics["critic_loss"]}


@register("sac", mode="online")
class SAC(Algorithm):
    """Soft actor-critic with a learned temperature."""

    hyper: SACHyper
    model: MLPSACModel
    target: MLPSACModel
    steps = (Step("critic", tracks=("critic",)), Step("actor", trains=("actor", "temperature")))
    defaults = {"learning_starts": 5_000}

    @property
    def target_entropy(self) -> float:
        """The entropy that the temperature is to bring about."""
        given: float | None = self.hyper.target_entropy
        return -float(self.model.action_dim) if given is None else given

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
        """Value and entropy of the policy's own action, and the temperature by the same sample."""
        actor, temperature = self.model.actor, self.model.temperature
        mean, log_std = actor(batch["obs"], training=self.training)
        actions, log_probs = actor.draw(mean, log_std)
        metrics = soft_actor_objective(
            values=self.policy_values(batch["obs"], actions), log_probs=log_probs, temperature=temperature()
        )
        metrics |= {"action_saturation": saturation(actions), "log_std_mean": log_std.mean()}
        if not temperature.learned:
            return metrics
        return metrics | temperature_objective(
            log_temperature=temperature.log_value, log_probs=log_probs, target_entropy=self.target_entropy
        )

    def policy_values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B,) that the actor is to raise: by the smallest of the critics."""
        values: Tensor = self.model.critic(obs, actions).amin(0)
        return values


SACAlgorithm = SAC
