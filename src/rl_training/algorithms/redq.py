"""REDQ: SAC with many critics of which a random few make the target, so that many updates per step do no harm.

    critic minimises       sum_i mean (Q_i(s, a) - y)^2
                           y = r + gamma * (1 - done) * (min_{k in K} Q'_k(s', a') - alpha log pi(a' | s')), a' ~ pi(s')
                           K = num_target_critics of the num_critics, drawn anew for every update
    actor minimises        mean (alpha log pi(a_pi | s) - mean_i Q_i(s, a_pi)),                             a_pi ~ pi(s)
    temperature minimises  - mean log(alpha) (log pi(a_pi | s) + target_entropy)

in this order; actor and temperature move on every `policy_delay`-th update, by gradients at the same sample.

Chen et al., "Randomized Ensembled Double Q-Learning: Learning Fast Without a Model", ICLR 2021.

DroQ is REDQ with `num_critics: 2`, `num_target_critics: 2`, `critic_dropout: 0.01` and `critic_layer_norm: true`: few
critics, each made an ensemble by dropout. Dropout acts in every pass of an update, also through target critics.

Hiraoka et al., "Dropout Q-Functions for Doubly Efficient Reinforcement Learning", ICLR 2022.

Differs from the papers: the entropy to reach is minus half the action's dimension, not a number per task; the actor
follows the critics as the same update left them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, losses, register
from rl_training.algorithms.sac import SACHyper
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPREDQModel


@options
class REDQHyper(SACHyper):
    """Hyper-parameters of REDQ."""

    num_critics: int = option(10, "number of critics; the actor follows their mean", ge=1, le=1000)
    num_target_critics: float = option(2.0, "random target critics whose smallest counts; 1.5: one or two", ge=1)
    policy_delay: int = option(20, "critic updates per update of actor and temperature", ge=1)
    target_entropy: float | None = option(None, "entropy to reach; null: minus half the action's dimension")
    backup_entropy: bool = option(True, "whether the critics' target pays for entropy")
    critic_dropout: float = option(0.0, "share of the critics' units dropped in updates", ge=0, lt=1)
    critic_layer_norm: bool = option(False, "layer normalisation in the critics")
    entropy_per_dimension: ClassVar[float] = -0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("num_target_critics", "<=", "num_critics")


def actor_objective(policy_q_values: Tensor, *, policy_log_probs: Tensor, log_temperature: Tensor) -> Metrics:
    """Entropy and the mean of the critics (N, B) at the policy's own actions."""
    return losses.soft_actor_objective(policy_q_values.mean(0), policy_log_probs, log_temperature)


redq_loss = losses.combine("redq_loss", losses.critic_objective, actor_objective, losses.temperature_objective)


def draw_subset(size: int, of: int, device: torch.device) -> Tensor:
    """`size` different numbers below `of`, all subsets being equally likely; draws from the global generator."""
    return torch.randperm(of, device=device)[:size]


def smallest(values: Tensor, number: float) -> Tensor:
    """The minimum (B,) over K sampled critics (K, B).

    With a fractional `number` such as 1.5, the last critic is included with the probability 0.5.
    """
    if number == len(values):
        return values.amin(0)
    counts = torch.rand((), device=values.device) < number % 1
    return torch.where(counts, values.amin(0), values[:-1].amin(0))


@register("redq", mode="online")
class REDQ(Algorithm[REDQHyper, MLPREDQModel]):
    """Randomized ensembled double Q-learning."""

    steps = (Step("critic", tracks=("critic",)), Step("actor", trains=("actor", "temperature"), every="policy_delay"))
    defaults = {"learning_starts": 5_000, "update_to_data": 20}

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the smallest of a few target critics, entropy included."""
        q = self.model.critic(batch["obs"], batch["actions"], training=self.training)
        return losses.critic_objective(q_values=q, target_q_values=self.targets(batch))

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Targets of the critics; one subset of the target critics for the whole batch."""
        hyper, next_obs = self.hyper, batch["next_obs"]
        next_actions, log_probs = self.model.actor.sample(next_obs)
        number, members = hyper.num_target_critics, None
        if number < hyper.num_critics:
            members = draw_subset(math.ceil(number), hyper.num_critics, next_obs.device)
        next_q = smallest(self.target.critic(next_obs, next_actions, members=members, training=self.training), number)
        if hyper.backup_entropy:
            next_q = next_q - self.model.temperature() * log_probs
        return losses.bellman(batch, next_q, hyper.gamma)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy's own actions, and the temperature by the same sample."""
        critic = partial(self.model.critic, training=self.training)
        return losses.soft_policy_loss(self, batch["obs"], critic, actor_objective)


REDQAlgorithm = REDQ
