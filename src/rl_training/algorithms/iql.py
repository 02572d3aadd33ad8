"""IQL: learn how good the best logged actions are without asking for any other action.

    value minimises   mean |expectile - 1[u < 0]| u^2,    u = min_i Q'_i(s, a) - V(s)
    actor minimises   - mean w * log pi(a | s),           w = min(exp(beta * (min_i Q'_i(s, a) - V(s))), max_weight)
    critic minimises  sum_i mean (Q_i(s, a) - y)^2,       y = r + gamma * (1 - done) * V(s')

in this order, each with the networks as the step before left them.

Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning", 2021.

No known differences from the authors' code. With `policy: deterministic`, as CORL has it for some datasets, the squared
distance to the logged action takes the place of - log pi.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, ValueHyper, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options, refuse_unused
from rl_training.models import MLPIQLModel, gaussian_log_prob


@options
class ImplicitHyper(ValueHyper):
    """Hyper-parameters that IQL and its variants share."""

    beta: float = option(3.0, "inverse temperature of the advantage; 0 clones", ge=0)
    max_weight: float = option(100.0, "bound on the weight of an action", gt=0)
    value_learning_rate: float | None = option(None, "learning rate of the value; null: learning_rate", gt=0)
    policy: Literal["stochastic", "deterministic"] = option("stochastic", "likelihood of a Gaussian, or regression")
    spread: Literal["clipped", "sigmoid"] = option("clipped", "how the log of the standard deviation stays in [-5, 2]")
    huber_delta: float | None = option(None, "error from which the critics' loss is linear; null: always squared", gt=0)
    actor_dropout: float = option(0.0, "share of the actor's units dropped in training", ge=0, lt=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "spread", unless="policy: stochastic", holds=self.policy == "stochastic")


@options
class IQLHyper(ImplicitHyper):
    """Hyper-parameters of IQL."""

    expectile: float = option(0.7, "how far the value leans to the best actions", gt=0, lt=1)


def value_objective(*, values: Tensor, target_q_values: Tensor, expectile: float) -> Metrics:
    """Expectile regression of the state's value on the values of the logged actions, all (B,)."""
    errors = target_q_values - values
    weights = (expectile - (errors < 0).to(errors.dtype)).abs()
    return {"value_loss": (weights * errors.square()).mean(), "v_mean": values.mean()}


def actor_objective(
    *, values: Tensor, target_q_values: Tensor, log_probs: Tensor, beta: float, max_weight: float = 100.0
) -> Metrics:
    """Weighted likelihood of the logged actions, all (B,)."""
    advantages = (target_q_values - values).detach()
    weights = losses.exp_weights(beta * advantages, max_weight)
    clipped = (weights >= max_weight).to(weights.dtype).mean()
    metrics = losses.imitation_objective(log_probs=log_probs, weights=weights, advantages=advantages)
    return metrics | {"weight_clip_fraction": clipped}


def bootstrap_objective(*, q_values: Tensor, bellman_targets: Tensor, huber_delta: float | None = None) -> Metrics:
    """Error of the critics (E, B) against targets (B,): squared, or linear beyond `huber_delta`."""
    metrics = losses.critic_objective(q_values=q_values, target_q_values=bellman_targets)
    if huber_delta is None:
        return metrics
    errors = losses.huber(q_values - bellman_targets, huber_delta)
    return metrics | {"critic_loss": errors.mean(-1).sum()}


iql_loss = losses.combine("iql_loss", value_objective, actor_objective, bootstrap_objective)


def expectile_loss(algorithm: Algorithm, batch: Batch) -> Metrics:
    """The value of a state as an expectile over its logged actions."""
    target_q = algorithm.target.critic(batch["obs"], batch["actions"]).amin(0)
    values = algorithm.model.value(batch["obs"])
    return value_objective(values=values, target_q_values=target_q, expectile=algorithm.hyper.expectile)


class ImplicitAlgorithm(Algorithm[ImplicitHyper, MLPIQLModel]):
    """Actor and critics of IQL and its variants, which differ in the value of a state."""

    defaults = {
        "reward_normalize": "return_range",
        "offline_batch_ratio": "proportional",
        # A rate that ends at zero is for data that does not change.
        "offline": {"actor_learning_rate_schedule": "cosine"},
    }

    def actor_loss(self, batch: Batch) -> Metrics:
        """Likelihood of the logged actions, weighted by their advantage over the value of the state."""
        obs, actions, report = batch["obs"], batch["actions"], {}
        with torch.no_grad():
            values, target_q = self.model.value(obs), self.target.critic(obs, actions).amin(0)
        if self.hyper.policy == "deterministic":
            log_probs = -(self.model.actor(obs, training=self.training) - actions).square().sum(-1)
        else:
            mean, log_std = self.model.actor(obs, training=self.training)
            log_probs = gaussian_log_prob(actions, mean, log_std)
            report["log_std_mean"] = log_std.mean()
        weighting = self.hyper.only("beta", "max_weight")
        return report | actor_objective(values=values, target_q_values=target_q, log_probs=log_probs, **weighting)

    def critic_loss(self, batch: Batch) -> Metrics:
        """Twin critics against the value of the next state."""
        with torch.no_grad():
            target_q = losses.bellman(batch, self.model.value(batch["next_obs"]), self.hyper.gamma)
        q = self.model.critic(batch["obs"], batch["actions"])
        return bootstrap_objective(q_values=q, bellman_targets=target_q, huber_delta=self.hyper.huber_delta)


@register("iql", mode="offline")
class IQL(ImplicitAlgorithm):
    """Implicit Q-learning."""

    hyper: IQLHyper
    steps = (Step("value"), Step("actor"), Step("critic", tracks=("critic",)))
    value_loss = expectile_loss


IQLAlgorithm = IQL
