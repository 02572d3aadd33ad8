"""AWR: regression of the value on returns, and of the policy on the actions that did better than it.

    value minimises  0.5 mean ((R - V(s)) / value_scale)^2
    actor minimises  - mean w * log pi(a | s) + bound_weight * 0.5 mean |mean(s) beyond [-1, 1]|^2
                     w = min(exp(A / temperature), max_weight)

R are TD(lambda) returns, A = R - V(s) standardised over the whole dataset; both are computed over it every
`recompute_interval` updates.

Peng et al., "Advantage-Weighted Regression", 2019.

Differs from the authors' code: on fixed data observations are normalised by its statistics and not by running ones;
Adam takes the place of SGD with momentum; value and policy move together instead of in turns of 200 and 1000 steps.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional

from rl_training.algorithms.base import Algorithm, LambdaReturnHyper, Step, losses, register
from rl_training.core.batches import Batch, Metrics, Transitions
from rl_training.core.options import option, options
from rl_training.models import MLPAWRModel, gaussian_log_prob


@options
class AWRHyper(LambdaReturnHyper, hidden_sizes=(128, 64), value_learning_rate=1e-3):
    """Hyper-parameters of AWR."""

    temperature: float = option(1.0, "temperature of the standardised advantage", gt=0)
    action_std: float = option(0.4, "standard deviation of the policy, which is not learned", gt=0)
    bound_weight: float = option(10.0, "weight of the mean's excess over the action bounds", ge=0)
    value_scale: float = option(100.0, "what the network's value is multiplied by", gt=0)


def value_objective(*, lambda_returns: Tensor, values: Tensor, value_scale: float = 100.0) -> Metrics:
    """Regression of the value on the returns, in the network's units."""
    loss = 0.5 * ((lambda_returns - values) / value_scale).square().mean()
    return {"value_loss": loss, "v_mean": values.mean(), "lambda_return_mean": lambda_returns.mean()}


def actor_objective(
    *,
    advantages: Tensor,
    log_probs: Tensor,
    means: Tensor,
    temperature: float = 1.0,
    max_weight: float = 20.0,
    bound_weight: float = 10.0,
) -> Metrics:
    """Likelihood of the logged actions, weighted by standardised advantages, and the price of means out of bounds."""
    weights = losses.exp_weights(advantages / temperature, max_weight)
    metrics = losses.imitation_objective(log_probs=log_probs, weights=weights, advantages=advantages)
    excess = 0.5 * functional.relu(means.abs() - 1).square().sum(-1).mean()
    return metrics | {
        "actor_loss": metrics["actor_loss"] + bound_weight * excess,
        "bound_loss": excess,
        "advantage_std": advantages.std(correction=0),
        "weight_min": weights.amin(),
    }


awr_loss = losses.combine("awr_loss", value_objective, actor_objective)


@register("awr", mode="offline")
class AWR(Algorithm[AWRHyper, MLPAWRModel]):
    """Advantage-weighted regression."""

    steps = (Step("value", tracks=("value",), tau=1.0, track_every="recompute_interval"), Step("actor"))
    reads = Transitions(("obs", "actions", "lambda_returns", "advantages"))
    annotates = ("lambda_returns", "advantages")
    standardizes = ("advantages",)
    annotate_every = "recompute_interval"
    annotate = losses.annotate_returns
    defaults = {"normalize_obs": True}

    def value_loss(self, batch: Batch) -> Metrics:
        """The value of a state as the mean of its returns."""
        values = self.model.value(batch["obs"])
        return value_objective(
            lambda_returns=batch["lambda_returns"], values=values, value_scale=self.hyper.value_scale
        )

    def actor_loss(self, batch: Batch) -> Metrics:
        """Likelihood of the logged actions, weighted by their advantage."""
        mean, log_std = self.model.actor(batch["obs"])
        return actor_objective(
            advantages=batch["advantages"],
            log_probs=gaussian_log_prob(batch["actions"], mean, log_std),
            means=mean,
            **self.hyper.only("temperature", "max_weight", "bound_weight"),
        )


AWRAlgorithm = AWR
