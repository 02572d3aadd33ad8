"""XQL: IQL whose value is the soft maximum over logged actions, fitted by Gumbel regression.

    value minimises   mean (e^z - z - 1) / e^M
                      z = min((min_i Q'_i(s, a) - V(s)) / loss_temperature, gumbel_clip)
                      M = max(max over the batch of z, -1), held constant
    actor minimises   - mean w * log pi(a | s),        w = min(exp(beta * (min_i Q'_i(s, a) - V(s))), max_weight)
    critic minimises  sum_i mean huber(Q_i(s, a) - y), y = r + gamma * (1 - done) * V(s'), quadratic within huber_delta

in this order; the value moves `value_updates` times.

Garg et al., "Extreme Q-Learning: MaxEnt RL without Entropy", 2023.

Differs from the paper: z is clipped from above only, as in the authors' code; `two_sided_clip` clips it from below too.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Step, register
from rl_training.algorithms.iql import IQL, ImplicitHyper, actor_objective
from rl_training.algorithms.losses import critic_objective
from rl_training.binding import options
from rl_training.types import Batch, Metrics


@options
class XQLHyper(ImplicitHyper):
    """Hyper-parameters of XQL."""

    loss_temperature: float = Field(default=2.0, gt=0, description="how soft the maximum in the value is")
    gumbel_clip: float = Field(default=7.0, gt=0, description="upper bound on z, the scaled error of the value")
    two_sided_clip: bool = Field(default=False, description="bound z from below by - gumbel_clip too")
    huber_delta: float | None = Field(
        default=20.0, gt=0, description="error from which the critics' loss is linear; null: squared throughout"
    )
    value_updates: int = Field(default=1, ge=1, description="steps of the value per update")
    value_layer_norm: bool = Field(default=True, description="layer normalisation in the value")
    random_actions: int = Field(default=0, ge=0, description="uniform actions per state added to the value's batch")
    action_noise: float = Field(default=0.0, ge=0, description="deviation of noise, clipped at 0.5, on its actions")


def xql_loss(
    *,
    values: Tensor,
    target_q_values: Tensor,
    log_probs: Tensor,
    q_values: Tensor,
    bellman_targets: Tensor,
    loss_temperature: float,
    gumbel_clip: float = 7.0,
    two_sided_clip: bool = False,
    beta: float = 3.0,
    max_weight: float = 100.0,
    huber_delta: float | None = 20.0,
) -> Metrics:
    """The whole objective, from tensors alone."""
    value = value_objective(
        values=values,
        target_q_values=target_q_values,
        loss_temperature=loss_temperature,
        gumbel_clip=gumbel_clip,
        two_sided_clip=two_sided_clip,
    )
    actor = actor_objective(
        values=values, target_q_values=target_q_values, log_probs=log_probs, beta=beta, max_weight=max_weight
    )
    critic = critic_objective(q_values=q_values, target_q_values=bellman_targets, huber_delta=huber_delta)
    return value | actor | critic


def value_objective(
    *,
    values: Tensor,
    target_q_values: Tensor,
    loss_temperature: float,
    gumbel_clip: float,
    two_sided_clip: bool = False,
) -> Metrics:
    """Gumbel regression of the value on those of the logged actions, all (B,)."""
    errors = (target_q_values - values) / loss_temperature
    z = errors.clamp(-gumbel_clip if two_sided_clip else None, gumbel_clip)
    top = z.detach().amax().clamp_min(-1)
    return {
        "value_loss": ((z - top).exp() - (z + 1) * (-top).exp()).mean(),
        "v_mean": values.mean(),
        "gumbel_z_max": errors.detach().amax(),
        "gumbel_clip_fraction": (errors != z).to(errors.dtype).mean(),
    }


@register("xql", mode="offline")
class XQL(IQL):
    """Extreme Q-learning."""

    hyper: XQLHyper  # type: ignore[assignment]
    steps = (Step("value", repeat="value_updates"), Step("actor"), Step("critic", tracks=("critic",)))

    def value_loss(self, batch: Batch) -> Metrics:
        """The value of a state as the soft maximum over its logged actions."""
        hyper, obs = self.hyper, batch["obs"]
        actions = self._value_actions(batch["actions"])
        with torch.no_grad():
            target_q = self.target.critic(obs, actions).amin(-2)
        return value_objective(
            values=self.model.value(obs).expand_as(target_q),
            target_q_values=target_q,
            loss_temperature=hyper.loss_temperature,
            gumbel_clip=hyper.gumbel_clip,
            two_sided_clip=hyper.two_sided_clip,
        )

    def _value_actions(self, actions: Tensor) -> Tensor:
        """The logged actions, (1 + random_actions, B, dim) with what the options add to them."""
        hyper = self.hyper
        if hyper.action_noise:
            noise = (torch.randn_like(actions) * hyper.action_noise).clamp(-0.5, 0.5)
            actions = (actions + noise).clamp(-1, 1)
        if not hyper.random_actions:
            return actions[None]
        uniform = torch.rand(hyper.random_actions, *actions.shape, dtype=actions.dtype, device=actions.device)
        return torch.cat([actions[None], 2 * uniform - 1])


XQLAlgorithm = XQL
