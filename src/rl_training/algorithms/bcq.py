"""BCQ: choose by value among actions that a model of the behaviour would take, slightly perturbed.

    vae minimises     mean (decoded - a)^2 + vae_kl_weight * KL(latent | N(0, 1))
    critic minimises  sum_i mean (Q_i(s, a) - y)^2
                      y = r + gamma * (1 - done) * max_j (lambda * min_i + (1 - lambda) * max_i) Q'_i(s', a_j)
                      a_j = perturb'(s', decode(s', z_j)),  z_j ~ N(0, 1) clipped to [-0.5, 0.5]
    actor minimises   - mean Q_1(s, perturb(s, decode(s, z)))

The policy takes the best by Q_1 of `num_action_samples` perturbed samples.

Fujimoto, Meger and Precup, "Off-Policy Deep Reinforcement Learning without Exploration", ICML 2019.

Differs from the authors' code: the policy's samples come from latents that are drawn once per model, so that the same
observation always gets the same action.
"""

from __future__ import annotations

import torch
from pydantic import Field
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Sizes, Step, ValueHyper, register
from rl_training.algorithms.losses import bellman, critic_objective, soft_clipped_max, vae_objective
from rl_training.binding import options
from rl_training.models import MLPBCQModel
from rl_training.types import Batch, Metrics


@options
class BCQHyper(ValueHyper):
    """Hyper-parameters of BCQ."""

    learning_rate: float = Field(default=1e-3, gt=0, description="step size of Adam")
    hidden_sizes: Sizes = Field(default=(400, 300), min_length=1, description="widths of actor and critics")
    vae_hidden_sizes: Sizes = Field(default=(750, 750), min_length=1, description="widths of the model of behaviour")
    vae_learning_rate: float | None = Field(default=None, gt=0, description="step size of that model, if its own")
    vae_kl_weight: float = Field(default=0.5, ge=0, description="weight of the latents' divergence in its loss")
    phi: float = Field(default=0.05, ge=0, le=2, description="bound on the perturbation of an action")
    min_q_weight: float = Field(default=0.75, ge=0, le=1, description="weight of the smaller critic: lambda")
    num_target_samples: int = Field(default=10, ge=1, description="candidate actions in the target")
    num_action_samples: int = Field(default=100, ge=1, description="candidate actions when acting")


def bcq_loss(
    *,
    reconstructions: Tensor,
    actions: Tensor,
    latent_mean: Tensor,
    latent_log_std: Tensor,
    q_values: Tensor,
    target_q_values: Tensor,
    policy_q_values: Tensor,
    vae_kl_weight: float = 0.5,
) -> Metrics:
    """The whole objective, from tensors alone; `soft_clipped_max` makes the next values of its target."""
    vae = vae_objective(
        reconstructions=reconstructions,
        actions=actions,
        mean=latent_mean,
        log_std=latent_log_std,
        kl_weight=vae_kl_weight,
    )
    critic = critic_objective(q_values=q_values, target_q_values=target_q_values)
    return vae | critic | {"actor_loss": -policy_q_values.mean()}


@register("bcq", mode="offline")
class BCQ(Algorithm):
    """Batch-constrained Q-learning."""

    hyper: BCQHyper
    model: MLPBCQModel
    target: MLPBCQModel
    steps = (Step("vae"), Step("critic"), Step("actor", tracks=("actor", "critic")))
    defaults = {"batch_size": 100}

    def vae_loss(self, batch: Batch) -> Metrics:
        """The model of the behaviour."""
        reconstructions, mean, log_std = self.model.vae(batch["obs"], batch["actions"])
        return vae_objective(
            reconstructions=reconstructions,
            actions=batch["actions"],
            mean=mean,
            log_std=log_std,
            kl_weight=self.hyper.vae_kl_weight,
        )

    def critic_loss(self, batch: Batch) -> Metrics:
        """Twin critics against the best of several perturbed samples of the behaviour."""
        hyper, next_obs, vae = self.hyper, batch["next_obs"], self.model.vae
        with torch.no_grad():
            samples = vae.decode(next_obs, vae.draw(next_obs, count=hyper.num_target_samples))
            next_q = self.target.critic(next_obs, self.target.actor(next_obs, samples))
            best_q = soft_clipped_max(next_q, hyper.min_q_weight)
            target_q = bellman(batch, best_q, hyper.gamma)
        q = self.model.critic(batch["obs"], batch["actions"])
        return critic_objective(q_values=q, target_q_values=target_q) | {"next_q_max": best_q.amax()}

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of one perturbed sample of the behaviour."""
        obs, vae = batch["obs"], self.model.vae
        with torch.no_grad():
            samples = vae.decode(obs, vae.draw(obs))
        actions = self.model.actor(obs, samples)
        (q,) = self.model.critic(obs, actions, count=1)
        return {"actor_loss": -q.mean(), "perturbation_abs_mean": (actions - samples).abs().mean()}


BCQAlgorithm = BCQ
