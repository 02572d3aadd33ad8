"""CrossQ: SAC without lagged copies, whose critics normalise what they know and what they bootstrap from together.

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
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Alpha, Hyper, Sizes, Step, register
from rl_training.algorithms.losses import bellman
from rl_training.algorithms.sac import SAC, critic_half, sac_loss
from rl_training.binding import options, refuse_unused
from rl_training.models import MLPCrossQModel
from rl_training.types import Batch, Metrics


@options
class CrossQHyper(Hyper):
    """Hyper-parameters of CrossQ."""

    learning_rate: float = Field(default=1e-3, gt=0, description="step size of Adam")
    gamma: float = Field(default=0.99, ge=0, le=1, description="discount per step")
    actor_learning_rate: float | None = Field(default=None, gt=0, description="step size of the actor, if its own")
    critic_learning_rate: float | None = Field(default=None, gt=0, description="step size of the critics, if their own")
    temperature_learning_rate: float | None = Field(
        default=None, gt=0, description="step size of the temperature, if its own"
    )
    actor_beta1: float = Field(default=0.5, ge=0, lt=1, description="decay of Adam's first moment, for the actor")
    critic_beta1: float = Field(default=0.5, ge=0, lt=1, description="decay of Adam's first moment, for the critics")
    actor_hidden_sizes: Sizes | None = Field(default=None, min_length=1, description="widths of the actor, if its own")
    critic_hidden_sizes: Sizes | None = Field(
        default=(1024, 1024), min_length=1, description="widths of the critics; null: hidden_sizes"
    )
    num_critics: int = Field(default=2, ge=1, description="critics; the smallest of them counts")
    policy_delay: int = Field(default=3, ge=1, description="critic updates per actor update")
    norm_momentum: float = Field(default=0.01, gt=0, le=1, description="rate at which running statistics follow")
    norm_warmup: int = Field(
        default=100_000, ge=0, description="training passes before a batch is corrected by running statistics"
    )
    alpha: Alpha = Field(default="auto", description="entropy temperature: a number, or auto to learn it")
    target_entropy: float | None = Field(
        default=None, description="entropy to reach; null: minus the action's dimension"
    )

    def __post_init__(self) -> None:
        learned = self.alpha == "auto"
        refuse_unused(self, "target_entropy", "temperature_learning_rate", unless="alpha: auto", holds=learned)


def crossq_loss(
    *,
    joint_q_values: Tensor,
    next_log_probs: Tensor,
    rewards: Tensor,
    dones: Tensor,
    policy_q_values: Tensor,
    policy_log_probs: Tensor,
    log_temperature: Tensor,
    target_entropy: float,
    gamma: float = 0.99,
) -> Metrics:
    """The whole objective, from tensors alone; `joint_q_values` (E, 2 B) are of (s, a) first, of (s', a') after it."""
    q, target_q = split(
        {"rewards": rewards, "dones": dones},
        joint_q_values=joint_q_values,
        next_log_probs=next_log_probs,
        temperature=log_temperature.exp(),
        gamma=gamma,
    )
    return sac_loss(
        q_values=q,
        target_q_values=target_q,
        policy_q_values=policy_q_values,
        policy_log_probs=policy_log_probs,
        log_temperature=log_temperature,
        target_entropy=target_entropy,
    )


def split(
    batch: Batch, *, joint_q_values: Tensor, next_log_probs: Tensor, temperature: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """The values (E, B) of (s, a), and the targets (B,), held constant, from those of (s', a')."""
    q, next_q = joint_q_values.chunk(2, dim=-1)
    with torch.no_grad():
        return q, bellman(batch, next_q.amin(0) - temperature * next_log_probs, gamma)


@register("crossq", mode="online")
class CrossQ(SAC):
    """Soft actor-critic with batch-renormalised networks and no lagged copies."""

    hyper: CrossQHyper  # type: ignore[assignment]
    model: MLPCrossQModel
    target: MLPCrossQModel
    steps = (Step("critic"), Step("actor", trains=("actor", "temperature"), every="policy_delay"))

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of themselves at s', entropy included, in one pass over both."""
        q, target_q = self._joint(batch, training=self.training)
        report: Metrics = self.model.critic.norm_report()
        return critic_half(q_values=q, target_q_values=target_q) | report

    def targets(self, batch: Batch) -> Tensor:
        """What the critics should be, by running statistics."""
        return self._joint(batch, training=False)[1]

    def _joint(self, batch: Batch, *, training: bool) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            next_actions, log_probs = self.model.actor.sample(batch["next_obs"])
        obs = torch.cat([batch["obs"], batch["next_obs"]])
        actions = torch.cat([batch["actions"], next_actions])
        return split(
            batch,
            joint_q_values=self.model.critic(obs, actions, training=training),
            next_log_probs=log_probs,
            temperature=self.model.temperature(),
            gamma=self.hyper.gamma,
        )


CrossQAlgorithm = CrossQ
