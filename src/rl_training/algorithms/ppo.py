"""PPO: several passes over each rollout, with a policy that may not move far from the one that acted.

    minimises  - mean min(rho * A, clip(rho, 1 - clip_range, 1 + clip_range) * A)
               + value_weight * 1/2 mean (V(s) - R)^2  -  entropy_weight * mean entropy
               rho = pi(a | s) / pi_old(a | s)
               A_t = delta_t + gamma * gae_lambda * A_{t+1},  delta_t = r_t + gamma * (1 - done) * V(s_{t+1}) - V(s_t)
               R = A + V(s)

pi_old is the policy that acted, and V in A and R are its values. The sum over A ends where an episode does; a cut
episode, by its time limit or by the end of the rollout, continues with the value of its last observation. A is brought
to mean 0 and standard deviation 1 in each minibatch. With a `value_clip`, the value's error is the larger of two: its
own, and that of a value that may move from the old one by `value_clip` only.

Schulman et al., "Proximal Policy Optimization Algorithms", 2017; Huang et al., "The 37 Implementation Details of
Proximal Policy Optimization", 2022.

Differs from Stable-Baselines3: the value's error is halved, its clipped form is the larger of two, and there is no
early stop by `target_kl`. Actions are in [-1, 1] for the policy, whatever the bounds of the environment. The last
observation of a cut episode is normalised by the statistics at the end of the rollout.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Hyper, Step, losses, register
from rl_training.core.batches import Batch, Column, Metrics, Rollout
from rl_training.core.options import option, options
from rl_training.core.rewards import generalized_advantages
from rl_training.models import MLPPPOModel, gaussian_log_prob, pick


@options
class PPOHyper(Hyper, hidden_sizes=(64, 64), activation="tanh", max_grad_norm=0.5):
    """Hyper-parameters of PPO."""

    adam_eps: float = option(1e-5, "what Adam adds to its denominator", gt=0)
    gamma: float = option(0.99, "discount per step", ge=0, le=1)
    gae_lambda: float = option(0.95, "mixture of long advantages (1) and one-step ones (0)", ge=0, le=1)
    rollout_steps: int = option(2048, "transitions in a rollout, of all environments together", ge=1)
    epochs: int = option(10, "passes over each rollout", ge=1)
    clip_range: float = option(0.2, "how far the ratio of probabilities may leave 1", gt=0)
    value_clip: float | None = option(None, "how far a value may move from the old one; null: no bound", gt=0)
    value_weight: float = option(0.5, "weight of the value's error", ge=0)
    entropy_weight: float = option(0.0, "weight of the policy's entropy", ge=0)
    normalize_rewards: bool = option(False, "divide rewards by the running standard deviation of discounted returns")
    normalize_advantage: bool = option(True, "standardise advantages in each minibatch")
    log_std: float = option(0.0, "logarithm of the policy's standard deviation at the start; continuous actions")


def ppo_loss(
    *,
    log_probs: Tensor,
    old_log_probs: Tensor,
    advantages: Tensor,
    values: Tensor,
    old_values: Tensor,
    returns: Tensor,
    entropy: Tensor,
    clip_range: float = 0.2,
    value_clip: float | None = None,
    value_weight: float = 0.5,
    entropy_weight: float = 0.0,
    normalize_advantage: bool = True,
) -> Metrics:
    """The whole objective, from tensors (B,) alone."""
    policy = policy_objective(
        log_probs=log_probs,
        old_log_probs=old_log_probs,
        advantages=standardize(advantages) if normalize_advantage else advantages,
        clip_range=clip_range,
    )
    value = value_objective(values=values, old_values=old_values, returns=returns, value_clip=value_clip)
    mean_entropy = entropy.mean()
    loss = policy["policy_gradient_loss"] + value_weight * value["value_loss"] - entropy_weight * mean_entropy
    return {"ppo_loss": loss, **policy, **value, "entropy": mean_entropy}


def standardize(advantages: Tensor) -> Tensor:
    """Advantages with mean 0 and standard deviation 1; a single one is left as it is."""
    if len(advantages) == 1:
        return advantages
    return (advantages - advantages.mean()) / (advantages.std() + 1e-8)


def policy_objective(*, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor, clip_range: float) -> Metrics:
    """The clipped surrogate, and how far the policy has moved."""
    log_ratio = log_probs - old_log_probs
    ratio = log_ratio.exp()
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range)
    return {
        "policy_gradient_loss": -torch.minimum(ratio * advantages, clipped * advantages).mean(),
        "approx_kl": (ratio - 1 - log_ratio).mean(),
        "clip_fraction": ((ratio - 1).abs() > clip_range).to(ratio.dtype).mean(),
    }


def value_objective(*, values: Tensor, old_values: Tensor, returns: Tensor, value_clip: float | None) -> Metrics:
    """Half the squared error of the value, and the share of the returns' variance that it explains."""
    errors = (values - returns).square()
    if value_clip is not None:
        near = old_values + (values - old_values).clamp(-value_clip, value_clip)
        errors = torch.maximum(errors, (near - returns).square())
    unexplained = (returns - values).var(correction=0) / returns.var(correction=0).clamp_min(1e-12)
    return {"value_loss": 0.5 * errors.mean(), "explained_variance": 1 - unexplained}


@register("ppo", mode="online")
class PPO(Algorithm[PPOHyper, MLPPPOModel]):
    """Proximal policy optimisation."""

    action_kinds = ("continuous", "discrete")
    steps = (Step("ppo", trains=("actor", "value"), shared=True),)
    reads = Rollout("epochs", ("inputs", "actions", "log_probs", "values", "advantages", "lambda_returns"))
    annotates = ("advantages", "lambda_returns")
    defaults = {"batch_size": 64, "learning_starts": 0, "learning_rate_schedule": "linear"}

    def extra_columns(self) -> dict[str, Column]:
        """Inputs, log-probabilities and values at acting time; scaled rewards if they are asked for."""
        columns = {"inputs": self.spaces.obs_column, "log_probs": Column(), "values": Column()}
        return columns | {"scaled_rewards": Column()} if self.hyper.normalize_rewards else columns

    @torch.no_grad()
    def annotate(self, rows: Batch, ends: Tensor) -> Batch:
        """Advantages and returns by the values as they were when the policy acted."""
        rows = {**rows, "rewards": rows.get("scaled_rewards", rows["rewards"])}
        final_values = self.model.value(self.normalize(rows["next_obs"][ends]))
        return generalized_advantages(
            rows, ends, rows["values"], final_values, gamma=self.hyper.gamma, td_lambda=self.hyper.gae_lambda
        )

    def ppo_loss(self, batch: Batch) -> Metrics:
        """Actor and value by one loss, with one gradient norm."""
        inputs = batch["inputs"]
        log_probs, entropy, report = self._likelihood(inputs, batch["actions"])
        return report | ppo_loss(
            log_probs=log_probs,
            old_log_probs=batch["log_probs"],
            advantages=batch["advantages"],
            values=self.model.value(inputs),
            old_values=batch["values"],
            returns=batch["lambda_returns"],
            entropy=entropy,
            **self.hyper.only("clip_range", "value_clip", "value_weight", "entropy_weight", "normalize_advantage"),
        )

    def _likelihood(self, inputs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Metrics]:
        """Log-probabilities of actions and the policy's entropy, (B,) each, and metrics."""
        if self.action_space.kind == "discrete":
            log_probs: Tensor = self.model.actor(inputs)
            return pick(log_probs, actions), losses.entropies(log_probs), {}
        mean, log_std = self.model.actor(inputs)
        entropy = (log_std + 0.5 * math.log(2 * math.pi * math.e)).sum(-1).expand(len(inputs))
        return gaussian_log_prob(actions, mean, log_std), entropy, {"std": log_std.exp().mean()}


PPOAlgorithm = PPO
