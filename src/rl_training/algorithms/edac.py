"""EDAC: SAC-N whose critics must disagree in how they would change an action, so that fewer of them suffice.

    critic minimises  SAC-N's loss + diversity_weight / (N - 1) * mean sum_{i != j} <g_i, g_j>
                      g_j = the gradient of Q_j(s, a) with respect to the logged action, at length 1

An et al., "Uncertainty-Based Offline Reinforcement Learning with Diversified Q-Ensemble", NeurIPS 2021.

Differs from the authors' code as SAC-N does.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import losses, register
from rl_training.algorithms.sac_n import SACN, SACNHyper, actor_objective
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options


@options
class EDACHyper(SACNHyper):
    """Hyper-parameters of EDAC."""

    num_critics: int = option(10, "number of critics; narrow data needs more", ge=2, le=1000)
    diversity_weight: float = option(1.0, "weight of the agreement between critics: eta", ge=0)


def diversity_objective(action_gradients: Tensor) -> Metrics:
    """Agreement of the directions of N gradients (N, B, dim): N where they are equal, 0 where they are orthogonal."""
    count = len(action_gradients)
    directions = action_gradients / (action_gradients.norm(dim=-1, keepdim=True) + 1e-10)
    # The sum over all pairs is the square of the sum; pairs of a critic with itself are taken out.
    pairs = directions.sum(0).square().sum(-1) - directions.square().sum((0, -1))
    agreement = pairs.mean() / (count - 1)
    return {"diversity_loss": agreement, "grad_cosine_mean": agreement / count}


def diverse_critic_objective(
    *, q_values: Tensor, target_q_values: Tensor, action_gradients: Tensor, diversity_weight: float
) -> Metrics:
    """Squared error of N critics, and the agreement of their gradients (N, B, dim) at the logged actions."""
    metrics = losses.critic_objective(q_values=q_values, target_q_values=target_q_values)
    diversity = diversity_objective(action_gradients)
    loss = metrics["critic_loss"] + diversity_weight * diversity["diversity_loss"]
    return metrics | diversity | {"critic_loss": loss}


edac_loss = losses.combine("edac_loss", losses.temperature_objective, actor_objective, diverse_critic_objective)


@register("edac", mode="offline")
class EDAC(SACN):
    """Ensemble-diversified actor-critic."""

    hyper: EDACHyper

    def critic_loss(self, batch: Batch) -> Metrics:
        """SAC-N's loss, and the agreement of the critics' gradients at the logged actions."""
        # A copy of the actions for each critic, so that one pass gives the gradients of all.
        actions = batch["actions"].expand(self.hyper.num_critics, *batch["actions"].shape).clone().requires_grad_()
        q = self.model.critic.forward_each(batch["obs"], actions)
        (gradients,) = torch.autograd.grad(q.sum(), actions, create_graph=True)
        targets, weight = self.targets(batch), self.hyper.diversity_weight
        return diverse_critic_objective(
            q_values=q, target_q_values=targets, action_gradients=gradients, diversity_weight=weight
        )


EDACAlgorithm = EDAC
