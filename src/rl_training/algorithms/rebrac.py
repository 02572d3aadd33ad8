"""ReBRAC: TD3+BC that stays near the data in the critic's target too, with deeper, normalised critics.

    critic minimises  sum_i mean (Q_i(s, a) - y)^2
                      y = r + gamma * (1 - done) * (min_i Q'_i(s', a') - critic_bc_weight * |a' - a'_data|^2)
                      a' = pi'(s') + noise,  a'_data the action that was logged next
    actor minimises   mean (actor_bc_weight * |pi(s) - a|^2 - actor_q_weight * w * q),   q = min_i Q_i(s, pi(s))
                      w = 1 / mean |q|, or 1 without normalize_q

In an online phase critic_bc_weight is dropped. actor_bc_weight falls by the share of the phase that is over, to one
half in the middle of it, and stays there, as in the authors' code.

Tarasov et al., "Revisiting the Minimalist Approach to Offline Reinforcement Learning", NeurIPS 2023.

Differs from the authors' code: the target actor follows the actor after its step, not one step behind; the mean of |q|
is kept above 1e-6, for a critic that is zero everywhere; the actor moves on updates 2, 4, 6, not 1, 3, 5; layer
normalisation adds PyTorch's 1e-5 to the variance, not 1e-6.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, SmoothingHyper, Step, losses, register
from rl_training.core.batches import TRANSITION, Batch, Metrics, Transitions
from rl_training.core.options import option, options
from rl_training.models import MLPReBRACModel


@options
class ReBRACHyper(SmoothingHyper, learning_rate=1e-3, hidden_sizes=(256, 256, 256)):
    """Hyper-parameters of ReBRAC."""

    actor_bc_weight: float = option(0.01, "weight of the actor's distance to the data", ge=0)
    critic_bc_weight: float = option(0.01, "weight of the next action's distance to the data", ge=0)
    actor_q_weight: float = option(1.0, "weight of the value in the actor's loss", ge=0)
    normalize_q: bool = option(True, "divide the value in the actor's loss by its mean magnitude")
    online_actor_bc_factor: float = option(
        0.5, "share of actor_bc_weight at which its linear fall to 0 in an online phase stops", ge=0, le=1
    )
    online_critic_bc_factor: float = option(0.0, "factor on critic_bc_weight in an online phase", ge=0)
    critic_layer_norm: bool = option(True, "layer normalisation in the critics")


def penalized_values(
    *, next_q_values: Tensor, next_policy_actions: Tensor, next_actions: Tensor, critic_bc_weight: float | Tensor
) -> tuple[Tensor, Tensor]:
    """Next values (B,) less the squared distance to the action that was logged next, and that distance."""
    penalty = (next_policy_actions - next_actions).square().sum(-1)
    return next_q_values - critic_bc_weight * penalty, penalty


def actor_objective(
    *,
    policy_q_values: Tensor,
    policy_actions: Tensor,
    actions: Tensor,
    actor_bc_weight: float | Tensor,
    actor_q_weight: float = 1.0,
    normalize_q: bool = True,
) -> Metrics:
    """Cloning minus the value (B,) by the smaller critic."""
    distance = (policy_actions - actions).square().sum(-1)
    scale = policy_q_values.detach().abs().mean().clamp_min(1e-6)
    q_lambda = 1 / scale if normalize_q else torch.ones_like(scale)
    return {
        "actor_loss": (actor_bc_weight * distance - actor_q_weight * q_lambda * policy_q_values).mean(),
        "bc_mse_policy": distance.mean(),
        "q_lambda": q_lambda,
        "policy_q_min": policy_q_values.mean(),
    }


rebrac_loss = losses.combine("rebrac_loss", losses.critic_objective, actor_objective)


@register("rebrac", mode="offline")
class ReBRAC(Algorithm[ReBRACHyper, MLPReBRACModel]):
    """TD3 with penalties on leaving the data, in the actor and in the critic."""

    steps = (Step("critic"), Step("actor", every="policy_delay", tracks=("actor", "critic")))
    reads = Transitions((*TRANSITION, "next_actions"))
    defaults = {"batch_size": 1024}

    def critic_loss(self, batch: Batch) -> Metrics:
        """Twin critics against the smaller target critic, at a smoothed action that should be near the logged one."""
        hyper, next_obs = self.hyper, batch["next_obs"]
        factor = losses.online_value(self, 1.0, hyper.online_critic_bc_factor)
        with torch.no_grad():
            next_policy_actions = losses.smooth(self.target.actor(next_obs), hyper.policy_noise, hyper.noise_clip)
            next_q, penalty = penalized_values(
                next_q_values=self.target.critic(next_obs, next_policy_actions).amin(0),
                next_policy_actions=next_policy_actions,
                next_actions=batch["next_actions"],
                critic_bc_weight=hyper.critic_bc_weight * factor,
            )
        return losses.bootstrap_loss(self, batch, next_q) | {"critic_penalty": penalty.mean()}

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of the policy's own action, and its distance to the data's."""
        hyper, obs, actions = self.hyper, batch["obs"], batch["actions"]
        policy_actions = self.model.actor(obs)
        weight = hyper.actor_bc_weight * (1 - self.online_share).clamp_min(hyper.online_actor_bc_factor)
        metrics = actor_objective(
            policy_q_values=self.model.critic(obs, policy_actions).amin(0),
            policy_actions=policy_actions,
            actions=actions,
            actor_bc_weight=weight,
            **hyper.only("actor_q_weight", "normalize_q"),
        )
        # The mean distance of uniform actions, whose variance is 1/3, for comparison with the policy's.
        return metrics | {"bc_mse_random": (1 / 3 + actions.square()).sum(-1).mean(), "actor_bc_weight": weight}


ReBRACAlgorithm = ReBRAC
