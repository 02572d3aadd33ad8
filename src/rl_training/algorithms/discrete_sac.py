"""Discrete SAC: SAC whose policy is categorical, so that all expectations over actions are exact.

    critic minimises       sum_i mean (Q_i(s, a) - y)^2 + conservative_weight * D_i
                           y = r + gamma * (1 - done) * sum_b pi(b | s') (min_i Q'_i(s', b) - alpha log pi(b | s'))
    actor minimises        mean sum_b pi(b | s) (alpha log pi(b | s) - min_i Q_i(s, b)) - bc_weight * mean log pi(a | s)
    temperature minimises  log(alpha) mean (H(pi(s)) - target_entropy_ratio * log(number of valid actions))

in this order; actor and temperature move together. D_i is the penalty of discrete CQL. It and the cloning term keep a
policy near the data offline, where the expectations ask for actions that were never logged. Both are off online, and
in an online phase the penalty may have another weight.

Christodoulou, "Soft Actor-Critic for Discrete Action Settings", 2019.

Differs from the paper: target networks follow softly (`tau: 1` with `target_update_interval: 8000` copies them, as
most code does); a target entropy of half the largest one instead of 0.98 of it, which keeps a policy almost uniform.
The logarithm of the temperature stays between -20 and 2.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Alpha, Step, ValueHyper, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options, refuse_unused
from rl_training.models import MLPDiscreteSACModel, expectation, pick


@options
class DiscreteSACHyper(ValueHyper):
    """Hyper-parameters of discrete SAC."""

    alpha: Alpha = option("auto", "entropy temperature: a number, or auto to learn it")
    target_entropy_ratio: float = option(0.5, "entropy to reach, relative to that of uniform actions", ge=0, le=1)
    temperature_learning_rate: float | None = option(None, "learning rate of temperature; null: learning_rate", gt=0)
    conservative_weight: float = option(0.0, "weight of the penalty of discrete CQL", ge=0)
    online_conservative_weight: float | None = option(None, "penalty's weight online; null: conservative_weight", ge=0)
    bc_weight: float = option(0.0, "weight of the logged actions' likelihood in the actor's loss", ge=0)
    huber_delta: float | None = option(None, "error from which the critics' loss is linear; null: always squared", gt=0)
    num_critics: int = option(2, "number of critics; the minimum is used", ge=1, le=1000)
    target_update_interval: int = option(1, "updates between moves of the target networks", ge=1)

    def __post_init__(self) -> None:
        super().__post_init__()
        learned = self.alpha == "auto"
        refuse_unused(self, "target_entropy_ratio", "temperature_learning_rate", unless="alpha: auto", holds=learned)


def soft_values(*, log_probs: Tensor, q_values: Tensor, temperature: Tensor | float) -> Tensor:
    """Values (B,) of states: the expectation of the smallest critic, action by action, plus the entropy."""
    return expectation(log_probs.exp(), q_values.amin(0)) + temperature * losses.entropies(log_probs)


def actor_objective(
    *, q_values: Tensor, log_probs: Tensor, actions: Tensor, log_temperature: Tensor, bc_weight: float = 0.0
) -> Metrics:
    """Value and entropy of the policy by critics (E, B, actions), and the likelihood of the logged actions (B,).

    Only the log-probabilities (B, actions) are trained by it.
    """
    values = soft_values(log_probs=log_probs, q_values=q_values.detach(), temperature=log_temperature.detach().exp())
    loss = -values.mean()
    if bc_weight:
        loss = loss - bc_weight * pick(log_probs, actions).mean()
    return {
        "actor_loss": loss,
        "entropy": losses.entropies(log_probs).mean(),
        "entropy_normalized": losses.normalized_entropy(log_probs.detach()),
    }


def temperature_objective(*, log_temperature: Tensor, log_probs: Tensor, target_entropy_ratio: float) -> Metrics:
    """The temperature, by log-probabilities (B, actions): it rises while the policy's entropy is too low."""
    log_probs = log_probs.detach()
    excess = losses.entropies(log_probs) - target_entropy_ratio * losses.largest_entropies(log_probs)
    return {"temperature_loss": (log_temperature * excess).mean(), "temperature": log_temperature.exp()}


discrete_sac_loss = losses.combine(
    "discrete_sac_loss",
    losses.discrete_critic_objective,
    actor_objective,
    temperature_objective,
    target_entropy_ratio=0.5,
)


@register("discrete_sac", mode="online")
class DiscreteSAC(Algorithm[DiscreteSACHyper, MLPDiscreteSACModel]):
    """Soft actor-critic for discrete actions."""

    action_kinds = ("discrete",)
    steps = (
        Step("critic", tracks=("critic",), track_every="target_update_interval"),
        Step("actor", trains=("actor", "temperature")),
    )
    defaults = {
        "learning_starts": 1_000,
        "offline": {"alpha": 0.05, "conservative_weight": 0.5},
        "offline_to_online": {"conservative_weight": 0.5, "online_conservative_weight": 0.0},
    }

    def critic_loss(self, batch: Batch) -> Metrics:
        """All critics against the expectation of the smallest target critic, entropy included."""
        hyper = self.hyper
        return losses.discrete_critic_objective(
            q_values=self.model.critic.all_values(batch["obs"]),
            actions=batch["actions"],
            target_q_values=self.targets(batch),
            conservative_weight=losses.online_value(self, hyper.conservative_weight, hyper.online_conservative_weight),
            huber_delta=hyper.huber_delta,
        )

    @torch.no_grad()
    def targets(self, batch: Batch) -> Tensor:
        """Targets (B,) of the critics, by the expectation over actions at s' and the entropy there."""
        next_obs, model = batch["next_obs"], self.model
        next_values = soft_values(
            log_probs=model.actor(next_obs),
            q_values=self.target.critic.all_values(next_obs),
            temperature=model.temperature(),
        )
        return losses.bellman(batch, next_values, self.hyper.gamma)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value and entropy of the policy, and the temperature by the same probabilities."""
        model, obs, log_temperature = self.model, batch["obs"], self.model.temperature.log_value
        log_probs = model.actor(obs)
        with torch.no_grad():
            q = model.critic.all_values(obs)
        metrics = actor_objective(
            q_values=q,
            log_probs=log_probs,
            actions=batch["actions"],
            log_temperature=log_temperature,
            bc_weight=self.hyper.bc_weight,
        )
        if not model.temperature.learned:
            return metrics | {"temperature": model.temperature()}
        return metrics | temperature_objective(
            log_temperature=log_temperature,
            log_probs=log_probs,
            target_entropy_ratio=self.hyper.target_entropy_ratio,
        )


DiscreteSACAlgorithm = DiscreteSAC
