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
from torch import Tensor

from rl_training.algorithms.base import Step, losses, register
from rl_training.algorithms.iql import ImplicitAlgorithm, ImplicitHyper, actor_objective, bootstrap_objective
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options


@options
class XQLHyper(ImplicitHyper, huber_delta=20.0):
    """Hyper-parameters of XQL."""

    loss_temperature: float = option(2.0, "how soft the maximum in the value is", gt=0)
    gumbel_clip: float = option(7.0, "upper bound on z, the scaled error of the value", gt=0)
    two_sided_clip: bool = option(False, "bound z from below by - gumbel_clip too")
    value_updates: int = option(1, "steps of the value per update", ge=1)
    value_layer_norm: bool = option(True, "layer normalisation in the value")
    random_actions: int = option(0, "uniform actions per state added to the value's batch", ge=0)
    action_noise: float = option(0.0, "standard deviation of noise on logged actions, clipped at 0.5", ge=0)


def value_objective(
    *,
    values: Tensor,
    target_q_values: Tensor,
    loss_temperature: float,
    gumbel_clip: float = 7.0,
    two_sided_clip: bool = False,
) -> Metrics:
    """Gumbel regression of the state's value on the values of the logged actions, all (B,)."""
    errors = (target_q_values - values) / loss_temperature
    z = errors.clamp(-gumbel_clip if two_sided_clip else None, gumbel_clip)
    top = z.detach().amax().clamp_min(-1)
    return {
        "value_loss": ((z - top).exp() - (z + 1) * (-top).exp()).mean(),
        "v_mean": values.mean(),
        "gumbel_z_max": errors.detach().amax(),
        "gumbel_clip_fraction": (errors != z).to(errors.dtype).mean(),
    }


xql_loss = losses.combine("xql_loss", value_objective, actor_objective, bootstrap_objective, beta=3.0, huber_delta=20.0)


@register("xql", mode="offline")
class XQL(ImplicitAlgorithm):
    """Extreme Q-learning."""

    hyper: XQLHyper
    steps = (Step("value", repeat="value_updates"), Step("actor"), Step("critic", tracks=("critic",)))

    def value_loss(self, batch: Batch) -> Metrics:
        """The value of a state as the soft maximum over its logged actions."""
        obs, actions = batch["obs"], self._value_actions(batch["actions"])
        target_q = self.target.critic(obs, actions).amin(-2)
        return value_objective(
            values=self.model.value(obs).expand_as(target_q),
            target_q_values=target_q,
            **self.hyper.only("loss_temperature", "gumbel_clip", "two_sided_clip"),
        )

    def _value_actions(self, actions: Tensor) -> Tensor:
        """Logged actions, with noise if there is any, then uniform ones, (1 + random_actions, B, dim)."""
        hyper = self.hyper
        if hyper.action_noise:
            actions = losses.smooth(actions, hyper.action_noise, 0.5)
        if not hyper.random_actions:
            return actions[None]
        uniform = torch.rand(hyper.random_actions, *actions.shape, dtype=actions.dtype, device=actions.device)
        return torch.cat([actions[None], 2 * uniform - 1])


XQLAlgorithm = XQL
