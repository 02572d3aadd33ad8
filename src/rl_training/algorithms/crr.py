"""CRR: imitate the data, but only or mostly where the critic prefers its actions to the policy's own.

    critic minimises  sum_i mean (Q_i(s, a) - y)^2,     y = r + gamma * (1 - done) * min_i Q'_i(s', a'),  a' ~ pi'(s')
    actor minimises   - mean w * log pi(a | s),         A = Q(s, a) - mean_j Q(s, a_j),  a_j ~ pi(s)
                      w = min(exp(A / beta), max_weight), or 1[A > 0], or 1

Both gradients are taken before either moves.

Wang et al., "Critic Regularized Regression", NeurIPS 2020.

Differs from the paper: scalar critics, two of them with the smaller one used, and a single Gaussian around tanh(mean)
instead of distributional critics and a mixture; target networks follow softly (`tau: 1` with
`target_update_interval: 100` copies them, as the authors do); the critics' error is not halved.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, ValueHyper, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options, refuse_unused
from rl_training.models import MLPCRRModel, gaussian_log_prob

Weights = Literal["exp", "binary", "constant"]


@options
class FilterHyper(ValueHyper):
    """Hyper-parameters that CRR has for continuous and discrete actions."""

    weights: Weights = option("exp", "clipped exponential, 1 where the advantage is positive, or 1")
    beta: float = option(1.0, "temperature of the advantage in exponential weights", gt=0)
    max_weight: float = option(20.0, "bound on exponential weights", gt=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "beta", "max_weight", unless="weights: exp", holds=self.weights == "exp")


@options
class CRRHyper(FilterHyper):
    """Hyper-parameters of CRR."""

    advantage: Literal["mean", "max"] = option("mean", "how the policy's values are reduced")
    num_action_samples: int = option(4, "actions of the policy in the advantage", ge=1)
    num_critics: int = option(2, "number of critics; the minimum is used", ge=1, le=1000)
    critic_layer_norm: bool = option(False, "layer normalisation in the critics")
    target_update_interval: int = option(1, "updates between moves of the target networks", ge=1)


def actor_objective(
    *,
    data_q_values: Tensor,
    policy_q_values: Tensor,
    log_probs: Tensor,
    weights: Weights = "exp",
    advantage: Literal["mean", "max"] = "mean",
    beta: float = 1.0,
    max_weight: float = 20.0,
) -> Metrics:
    """Weighted likelihood; values (B,) of the logged actions, and (samples, B) of the policy's."""
    baseline = policy_q_values.mean(0) if advantage == "mean" else policy_q_values.amax(0)
    advantages = (data_q_values - baseline).detach()
    return weighted_imitation(
        advantages=advantages, log_probs=log_probs, weights=weights, beta=beta, max_weight=max_weight
    )


def weighted_imitation(
    *, advantages: Tensor, log_probs: Tensor, weights: Weights, beta: float, max_weight: float
) -> Metrics:
    """Likelihood (B,) of the logged actions, weighted by their advantages (B,)."""
    better = (advantages > 0).to(advantages.dtype)
    factors = {
        "exp": losses.exp_weights(advantages / beta, max_weight),
        "binary": better,
        "constant": torch.ones_like(advantages),
    }[weights]
    metrics = losses.imitation_objective(log_probs=log_probs, weights=factors, advantages=advantages)
    return metrics | {"filter_rate": better.mean()}


crr_loss = losses.combine("crr_loss", losses.critic_objective, actor_objective)


@register("crr", mode="offline")
class CRR(Algorithm[CRRHyper, MLPCRRModel]):
    """Critic-regularised regression."""

    steps = (
        Step("joint", trains=("critic", "actor"), tracks=("critic", "actor"), track_every="target_update_interval"),
    )

    def joint_loss(self, batch: Batch) -> Metrics:
        """Critics and actor, each by its own loss at the same point."""
        return self.critic_loss(batch) | self.actor_loss(batch)

    def critic_loss(self, batch: Batch) -> Metrics:
        """Critics against the smallest of the target critics, at an action of the target policy."""
        return losses.evaluation_loss(self, batch, self.target.actor.sample(batch["next_obs"])[0])

    def actor_loss(self, batch: Batch) -> Metrics:
        """Likelihood of the logged actions, weighted by their advantage over the policy's."""
        hyper, obs, actions = self.hyper, batch["obs"], batch["actions"]
        mean, log_std = self.model.actor(obs)
        with torch.no_grad():
            samples, _ = self.model.actor.sample(obs, count=hyper.num_action_samples)
            q = self.model.critic(obs, torch.cat([actions[None], samples])).amin(-2)
        metrics = actor_objective(
            data_q_values=q[0],
            policy_q_values=q[1:],
            log_probs=gaussian_log_prob(actions, mean, log_std),
            **hyper.only("weights", "advantage", "beta", "max_weight"),
        )
        return metrics | {"log_std_mean": log_std.mean()}


CRRAlgorithm = CRR
