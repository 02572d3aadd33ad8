"""AWAC: imitate the data, weighted by how much better each action is than the policy's own.

    critic minimises  sum_i mean (Q_i(s, a) - y)^2,    y = r + gamma * (1 - done) * min_i Q'_i(s', a'),  a' ~ pi(s')
    actor minimises   - mean w * log pi(a | s),        w = min(exp(A / awac_lambda), max_weight)
                      A = min_i Q_i(s, a) - min_i Q_i(s, a_pi),  a_pi ~ pi(s)

With `weights: softmax`, w is the softmax of A / awac_lambda over the batch, times the size of the batch.

Nair et al., "AWAC: Accelerating Online Reinforcement Learning with Offline Datasets", 2020.

Differs from the paper: clipped exponential weights, a smaller awac_lambda and three layers by default, as CORL found
best for offline data; initial weights are PyTorch's own.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, ValueHyper, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options, refuse_unused
from rl_training.models import MLPAWACModel, gaussian_log_prob


@options
class AWACHyper(ValueHyper, hidden_sizes=(256, 256, 256)):
    """Hyper-parameters of AWAC."""

    awac_lambda: float = option(1 / 3, "temperature of the advantage; small is greedy", gt=0)
    weights: Literal["exp", "softmax"] = option("exp", "clipped exponential, or softmax over the batch times its size")
    max_weight: float = option(100.0, "bound on exponential weights", gt=0)
    baseline: Literal["sample", "mean"] = option("sample", "the policy's action in the baseline: samples, or its mean")
    num_action_samples: int = option(1, "samples in the baseline", ge=1)
    spread: Literal["clipped", "sigmoid"] = option("clipped", "log of the standard deviation: in [-20, 2], or [-6, 0]")
    squash_mean: bool = option(True, "the policy's mean goes through tanh")
    actor_weight_decay: float = option(0.0, "L2 penalty on the actor, in its gradient", ge=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "max_weight", unless="weights: exp", holds=self.weights == "exp")
        refuse_unused(self, "num_action_samples", unless="baseline: sample", holds=self.baseline == "sample")


def actor_objective(
    *,
    data_q_values: Tensor,
    policy_q_values: Tensor,
    log_probs: Tensor,
    awac_lambda: float,
    weights: Literal["exp", "softmax"] = "exp",
    max_weight: float = 100.0,
) -> Metrics:
    """Weighted likelihood; values (B,) of the logged actions and of the policy's own."""
    advantages = (data_q_values - policy_q_values).detach()
    scaled = advantages / awac_lambda
    factors = losses.exp_weights(scaled, max_weight) if weights == "exp" else scaled.softmax(0) * len(scaled)
    return losses.imitation_objective(log_probs=log_probs, weights=factors, advantages=advantages)


awac_loss = losses.combine("awac_loss", losses.critic_objective, actor_objective)


@register("awac", mode="offline")
class AWAC(Algorithm[AWACHyper, MLPAWACModel]):
    """Advantage-weighted actor-critic."""

    steps = (Step("critic"), Step("actor", tracks=("critic",)))
    defaults = {"normalize_obs": True, "offline_batch_ratio": "proportional"}

    def critic_loss(self, batch: Batch) -> Metrics:
        """Twin critics against the smaller of the target critics, at a sampled action."""
        with torch.no_grad():
            next_actions, _ = self.model.actor.sample(batch["next_obs"])
        return losses.evaluation_loss(self, batch, next_actions)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Likelihood of the logged actions, weighted by their advantage over the policy's."""
        obs, actions = batch["obs"], batch["actions"]
        mean, log_std = self.model.actor(obs)
        with torch.no_grad():
            if self.hyper.baseline == "mean":
                policy_actions = self.model.actor.act(obs, deterministic=True)[None]
            else:
                policy_actions, _ = self.model.actor.sample(obs, count=self.hyper.num_action_samples)
            q = self.model.critic(obs, torch.cat([actions[None], policy_actions])).amin(-2)
        metrics = actor_objective(
            data_q_values=q[0],
            policy_q_values=q[1:].mean(0),
            log_probs=gaussian_log_prob(actions, mean, log_std),
            **self.hyper.only("awac_lambda", "weights", "max_weight"),
        )
        return metrics | {"log_std_mean": log_std.mean()}


AWACAlgorithm = AWAC
