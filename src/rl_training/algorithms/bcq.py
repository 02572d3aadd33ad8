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

from rl_training.algorithms.base import Algorithm, Step, VAEHyper, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPBCQModel


@options
class BCQHyper(VAEHyper, learning_rate=1e-3, hidden_sizes=(400, 300)):
    """Hyper-parameters of BCQ."""

    phi: float = option(0.05, "bound on the perturbation of an action", ge=0, le=2)


bcq_loss = losses.combine("bcq_loss", losses.behavior_objective, losses.critic_objective, losses.value_actor_objective)


@register("bcq", mode="offline")
class BCQ(Algorithm[BCQHyper, MLPBCQModel]):
    """Batch-constrained Q-learning."""

    steps = (Step("vae"), Step("critic"), Step("actor", tracks=("actor", "critic")))
    defaults = {"batch_size": 100}
    vae_loss = losses.behavior_loss

    def critic_loss(self, batch: Batch) -> Metrics:
        """Twin critics against the best of several perturbed samples of the behaviour."""
        hyper, next_obs, vae = self.hyper, batch["next_obs"], self.model.vae
        with torch.no_grad():
            samples = vae.decode(next_obs, vae.draw(next_obs, count=hyper.num_target_samples))
            next_q = self.target.critic(next_obs, self.target.actor(next_obs, samples))
            best_q = losses.soft_clipped_max(next_q, hyper.min_q_weight)
        return losses.bootstrap_loss(self, batch, best_q) | {"next_q_max": best_q.amax()}

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of one perturbed sample of the behaviour."""
        obs, vae = batch["obs"], self.model.vae
        with torch.no_grad():
            samples = vae.decode(obs, vae.draw(obs))
        actions = self.model.actor(obs, samples)
        (q,) = self.model.critic(obs, actions, first=1)
        metrics = losses.value_actor_objective(policy_q_values=q)
        return metrics | {"perturbation_abs_mean": (actions - samples).abs().mean()}


BCQAlgorithm = BCQ
