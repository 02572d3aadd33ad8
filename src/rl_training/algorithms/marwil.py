"""MARWIL: imitate the data, weighted by how much the return exceeded the value of the state.

    value minimises  value_weight * 0.5 mean A^2,      A = R - V(s)
    actor minimises  - mean w * (log pi(a | s) + log_std_weight * mean log std)
                     w = min(exp(beta * A / sqrt(c)), max_weight),  c <- c + scale_rate * (mean A^2 - c)

R is the discounted return from s, plus the value of the last observation if the episode was cut. It is computed over
the whole dataset every `recompute_interval` updates. Both gradients are taken before either moves. Beta 0 clones.

Wang et al., "Exponentially Weighted Imitation Learning for Batched Historical Data", NeurIPS 2018, as in RLlib.

Differs from RLlib: c starts at the first batch's mean A^2 and moves (RLlib's `scale_start: 100`, `scale_rate: 1e-8`
leave it where it starts), weights are bounded, the policy's mean goes through tanh, and returns are not recomputed for
every batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, LambdaReturnHyper, Step, losses, register
from rl_training.core.batches import Batch, Metrics, Transitions
from rl_training.core.options import option, options
from rl_training.models import MLPMARWILModel, gaussian_log_prob


@options
class MARWILHyper(LambdaReturnHyper, td_lambda=1.0, activation="tanh"):
    """Hyper-parameters of MARWIL."""

    beta: float = option(1.0, "inverse temperature of the scaled advantage; 0 clones", ge=0)
    value_weight: float = option(1.0, "weight of the value's loss", gt=0)
    scale_start: float | None = option(None, "mean squared advantage at the start; null: the first batch's", gt=0)
    scale_rate: float = option(1e-3, "rate at which this mean follows the batches", ge=0, le=1)
    log_std_weight: float = option(0.0, "weight of a bonus on the log of the policy's standard deviation", ge=0)


def marwil_loss(
    *,
    lambda_returns: Tensor,
    values: Tensor,
    log_probs: Tensor,
    scale: Tensor,
    beta: float,
    max_weight: float = 20.0,
    value_weight: float = 1.0,
) -> Metrics:
    """The whole objective, from tensors alone; `scale` is the mean squared advantage to divide by."""
    errors = lambda_returns - values
    advantages = errors.detach()
    weights = losses.exp_weights(beta * advantages / (1e-8 + scale.sqrt()), max_weight)
    unexplained = advantages.var(correction=0) / lambda_returns.var(correction=0).clamp_min(1e-12)
    return losses.imitation_objective(log_probs=log_probs, weights=weights, advantages=advantages) | {
        "value_loss": value_weight * 0.5 * errors.square().mean(),
        "value_explained_variance": 1 - unexplained,
        "lambda_return_mean": lambda_returns.mean(),
    }


def moved_scale(scale: Tensor, advantages: Tensor, rate: float) -> Tensor:
    """The running mean of squared advantages; a mean of 0 has not begun and takes the batch's value."""
    square = advantages.detach().square().mean()
    return torch.where(scale == 0, square, scale + rate * (square - scale))


@register("marwil", mode="offline")
class MARWIL(Algorithm[MARWILHyper, MLPMARWILModel]):
    """Monotonic advantage re-weighted imitation learning."""

    steps = (
        Step(
            "joint",
            trains=("actor", "value"),
            tracks=("value",),
            tau=1.0,
            track_every="recompute_interval",
            updates_buffers=("advantage_scale",),
        ),
    )
    reads = Transitions(("obs", "actions", "lambda_returns"))
    annotates = ("lambda_returns",)
    annotate_every = "recompute_interval"
    annotate = losses.annotate_returns
    defaults = {"batch_size": 2000}
    advantage_scale: Tensor

    def __init__(self, *parts: Any, **values: Any) -> None:
        super().__init__(*parts, **values)
        self.register_buffer("advantage_scale", torch.tensor(self.hyper.scale_start or 0.0))

    def joint_loss(self, batch: Batch) -> Metrics:
        """Actor and value, each by its own loss at the same point."""
        hyper, obs, returns = self.hyper, batch["obs"], batch["lambda_returns"]
        values, (mean, log_std) = self.model.value(obs), self.model.actor(obs)
        scale = moved_scale(self.advantage_scale, returns - values, hyper.scale_rate)
        log_probs = gaussian_log_prob(batch["actions"], mean, log_std)
        metrics = marwil_loss(
            lambda_returns=returns,
            values=values,
            log_probs=log_probs + hyper.log_std_weight * log_std.mean(-1),
            scale=scale,
            **hyper.only("beta", "max_weight", "value_weight"),
        )
        return metrics | {"advantage_scale": scale, "log_prob_data": log_probs.mean(), "log_std_mean": log_std.mean()}


MARWILAlgorithm = MARWIL
