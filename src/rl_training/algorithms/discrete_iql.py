"""Discrete IQL: learn how good the best logged actions are without asking for any other action.

    value minimises   mean |expectile - 1[u < 0]| u^2,    u = min_i Q'_i(s, a) - V(s)
    actor minimises   - mean w * log pi(a | s),           w = min(exp(beta * (min_i Q'_i(s, a) - V(s))), max_weight)
    critic minimises  sum_i mean (Q_i(s, a) - y)^2,       y = r + gamma * (1 - done) * V(s')

in this order, each with the networks as the step before left them. The critics have an output for every action, but
only those of logged actions are ever trained or asked for: the best action by the critics is not the policy.

With `extraction: weighted`, the policy is the actor. Otherwise the actor is a clone, w = 1. With `constrained`, the
policy takes the action with the highest min_i Q_i(s, a) among those with pi(a | s) > threshold * max_a pi(a | s). With
`shifted`, it takes the one with the highest log pi(a | s) + beta * min_i Q_i(s, a).

Kostrikov, Nair and Levine, "Offline Reinforcement Learning with Implicit Q-Learning", 2021; `shifted` is from Snell et
al., "Offline RL for Natural Language Generation with Implicit Language Q Learning", 2022.

The authors have no code for discrete actions: these are their losses, with a categorical actor. Snell et al. also add
the penalty of CQL, which is not here. `beta` is relative to the returns: where they are between 0 and 1, it should be
between 10 and 30.
"""

from __future__ import annotations

from typing import Literal

import torch

from rl_training.algorithms.base import Algorithm, Step, ValueHyper, losses, register
from rl_training.algorithms.iql import actor_objective, bootstrap_objective, expectile_loss, value_objective
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options, refuse_unused
from rl_training.models import MLPDiscreteIQLModel, pick


@options
class DiscreteIQLHyper(ValueHyper):
    """Hyper-parameters of discrete IQL."""

    expectile: float = option(0.7, "how far the value leans to the best actions", gt=0, lt=1)
    beta: float = option(3.0, "inverse temperature of the advantage; 0 clones", ge=0)
    max_weight: float = option(100.0, "bound on the weight of an action", gt=0)
    value_learning_rate: float | None = option(None, "learning rate of the value; null: learning_rate", gt=0)
    extraction: Literal["weighted", "constrained", "shifted"] = option(
        "weighted", "the policy: trained with weights; best of likely actions; shifted log-probabilities", agree=True
    )
    threshold: float = option(0.3, "how likely an action must be, relative to the likeliest", ge=0, lt=1, agree=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        refuse_unused(self, "threshold", unless="extraction: constrained", holds=self.extraction == "constrained")
        refuse_unused(self, "max_weight", unless="extraction: weighted", holds=self.extraction == "weighted")


discrete_iql_loss = losses.combine("discrete_iql_loss", value_objective, actor_objective, bootstrap_objective)


@register("discrete_iql", mode="offline")
class DiscreteIQL(Algorithm[DiscreteIQLHyper, MLPDiscreteIQLModel]):
    """Implicit Q-learning for discrete actions."""

    action_kinds = ("discrete",)
    steps = (Step("value"), Step("actor"), Step("critic", tracks=("critic",)))
    value_loss = expectile_loss
    defaults = {"offline_batch_ratio": "proportional"}

    def actor_loss(self, batch: Batch) -> Metrics:
        """Likelihood of the logged actions, weighted by their advantage over the value of the state."""
        obs, actions, hyper = batch["obs"], batch["actions"], self.hyper
        with torch.no_grad():
            values, target_q = self.model.value(obs), self.target.critic(obs, actions).amin(0)
        log_probs = self.model.actor(obs)
        metrics = actor_objective(
            values=values,
            target_q_values=target_q,
            log_probs=pick(log_probs, actions),
            beta=hyper.beta if hyper.extraction == "weighted" else 0.0,
            max_weight=hyper.max_weight,
        )
        return metrics | {
            "agreement": losses.share(log_probs.argmax(-1) == actions, log_probs.dtype),
            "entropy_normalized": losses.normalized_entropy(log_probs.detach()),
        }

    def critic_loss(self, batch: Batch) -> Metrics:
        """Twin critics against the value of the next state."""
        with torch.no_grad():
            target_q = losses.bellman(batch, self.model.value(batch["next_obs"]), self.hyper.gamma)
        return bootstrap_objective(q_values=self.model.critic(batch["obs"], batch["actions"]), bellman_targets=target_q)


DiscreteIQLAlgorithm = DiscreteIQL
