"""Discrete CRR: imitate the data, but only or mostly where the critic prefers its actions to the policy's own.

    critic minimises  sum_i mean (Q_i(s, a) - y)^2 + conservative_weight * D_i
                      y = r + gamma * (1 - done) * sum_a' pi'(a' | s') min_i Q'_i(s', a')
    actor minimises   - mean w * log pi(a | s),    A = Q(s, a) - sum_b pi(b | s) Q(s, b),    Q = min_i Q_i
                      w = min(exp(A / beta), max_weight), or 1[A > 0], or 1

Expectations over actions are exact, so nothing is sampled. D_i is the penalty of discrete CQL, which is off by default.
Both gradients are taken before either moves. AWAC is `target_policy: online` with `max_weight: 100`: the policy in the
target is the one that learns, and not its target network.

Wang et al., "Critic Regularized Regression", NeurIPS 2020; Nair et al., "AWAC: Accelerating Online Reinforcement
Learning with Offline Datasets", 2020.

Differs from the papers: scalar critics, two of them with the smaller one used; target networks follow softly.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, losses, register
from rl_training.algorithms.crr import FilterHyper, Weights, weighted_imitation
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPDiscreteCRRModel, expectation, pick


@options
class DiscreteCRRHyper(FilterHyper):
    """Hyper-parameters of discrete CRR."""

    target_policy: Literal["target", "online"] = option("target", "policy in the target: target network, or the actor")
    conservative_weight: float = option(0.0, "weight of the penalty of discrete CQL", ge=0)
    num_critics: int = option(2, "number of critics; the minimum is used", ge=1, le=1000)
    target_update_interval: int = option(1, "updates between moves of the target networks", ge=1)


def actor_objective(
    *,
    q_values: Tensor,
    log_probs: Tensor,
    actions: Tensor,
    weights: Weights = "exp",
    beta: float = 1.0,
    max_weight: float = 20.0,
) -> Metrics:
    """Weighted likelihood of the logged actions (B,), by critics (E, B, actions) and log-probabilities (B, actions)."""
    q = q_values.amin(0).detach()
    advantages = pick(q, actions) - expectation(log_probs.detach().exp(), q)
    metrics = weighted_imitation(
        advantages=advantages, log_probs=pick(log_probs, actions), weights=weights, beta=beta, max_weight=max_weight
    )
    return metrics | {"entropy_normalized": losses.normalized_entropy(log_probs.detach())}


discrete_crr_loss = losses.combine("discrete_crr_loss", losses.discrete_critic_objective, actor_objective)


@register("discrete_crr", mode="offline")
class DiscreteCRR(Algorithm[DiscreteCRRHyper, MLPDiscreteCRRModel]):
    """Critic-regularised regression for discrete actions."""

    action_kinds = ("discrete",)
    steps = (
        Step("joint", trains=("critic", "actor"), tracks=("critic", "actor"), track_every="target_update_interval"),
    )
    defaults = {"offline_batch_ratio": "proportional"}

    def joint_loss(self, batch: Batch) -> Metrics:
        """Critics and actor, each by its own loss at the same point."""
        obs, actions, hyper = batch["obs"], batch["actions"], self.hyper
        q = self.model.critic.all_values(obs)
        critic = losses.discrete_critic_objective(
            q_values=q,
            actions=actions,
            target_q_values=self.targets(batch),
            conservative_weight=hyper.conservative_weight,
        )
        weighting = hyper.only("weights", "beta", "max_weight")
        return critic | actor_objective(q_values=q, log_probs=self.model.actor(obs), actions=actions, **weighting)

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Targets (B,) of the critics, by the expectation over actions at s'."""
        next_obs = batch["next_obs"]
        policy = self.target.actor if self.hyper.target_policy == "target" else self.model.actor
        next_q = expectation(policy(next_obs).exp(), self.target.critic.all_values(next_obs).amin(0))
        return losses.bellman(batch, next_q, self.hyper.gamma)


DiscreteCRRAlgorithm = DiscreteCRR
