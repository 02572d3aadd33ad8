"""BEAR: improve the policy only within the support of the behaviour, measured by a kernel distance between samples.

    vae minimises       mean (decoded - a)^2 + vae_kl_weight * KL(latent | N(0, 1))
    critic minimises    sum_i mean (Q_i(s, a) - y)^2
                        y = r + gamma * (1 - done) * max_j (lambda * min_i + (1 - lambda) * max_i) Q'_i(s', a_j)
                        a_j ~ pi(s')
    actor minimises     mean (- min_i Q_i(s, a_pi) + multiplier * (MMD(s) - mmd_threshold))
    lagrange minimises  - mean multiplier * (MMD(s) - mmd_threshold),  multiplier = exp(x) with x kept in [-5, 10]

MMD(s) compares samples of the behaviour model and of the policy before their tanh. For `mmd_warmup_updates` the actor's
loss has no value in it. The policy takes the best by Q_1 of `num_action_samples` of its actions.

Kumar et al., "Stabilizing Off-Policy Q-Learning via Bootstrapping Error Reduction", NeurIPS 2019, in the authors' later
version for D4RL; `target_policy: lagged`, `policy_value: mean` and other values of the options come near the original.

Differs from the authors' code: the multiplier's gradient is taken at the policy before its step, not after; the
policy's samples come from noise that is drawn once per model, so that an observation always gets the same action.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from rl_training.algorithms.base import Algorithm, Step, VAEHyper, losses, register
from rl_training.core.batches import Batch, Metrics
from rl_training.core.options import option, options
from rl_training.models import MLPBEARModel

Kernel = Literal["laplacian", "gaussian"]


@options
class BEARHyper(VAEHyper, actor_learning_rate=1e-4):
    """Hyper-parameters of BEAR."""

    mmd_kernel: Kernel = option("laplacian", "kernel of the distance between samples")
    mmd_sigma: float = option(20.0, "width of the kernel", gt=0)
    mmd_threshold: float = option(0.05, "distance that the policy may have from the behaviour", gt=0)
    mmd_warmup_updates: int = option(40_000, "updates without the value in the actor's loss", ge=0)
    num_mmd_samples: int = option(4, "samples of behaviour and of policy in the distance", ge=1)
    lagrange_learning_rate: float | None = option(1e-3, "learning rate of the multiplier; null: learning_rate", gt=0)
    target_policy: Literal["current", "lagged"] = option("current", "target's policy: the actor, or its target network")
    policy_value: Literal["first", "mean"] = option("first", "value in the actor's loss: one sample's, or the mean")


def mmd_distance(behavior: Tensor, policy: Tensor, *, kernel: Kernel, sigma: float) -> Tensor:
    """Maximum mean discrepancy (B,) between samples (n, B, dim) of two distributions, over all pairs."""

    def mean_kernel(left: Tensor, right: Tensor) -> Tensor:
        gaps = left[:, None] - right[None, :]
        distance = gaps.abs().sum(-1) if kernel == "laplacian" else gaps.square().sum(-1)
        return (-distance / (2 * sigma)).exp().mean((0, 1))

    square = mean_kernel(behavior, behavior) + mean_kernel(policy, policy) - 2 * mean_kernel(behavior, policy)
    return (square + 1e-6).sqrt()


def actor_objective(
    *,
    policy_q_values: Tensor,
    mmd: Tensor,
    multiplier: Tensor,
    mmd_threshold: float = 0.05,
    value_weight: Tensor | float = 1.0,
) -> Metrics:
    """Value against distance for the actor, and the same distance for the multiplier, all (B,)."""
    excess = mmd - mmd_threshold
    return {
        "actor_loss": (multiplier.detach() * excess - value_weight * policy_q_values).mean(),
        "lagrange_loss": -(multiplier * excess.detach()).mean(),
        "mmd": mmd.mean(),
        "mmd_multiplier": multiplier.detach(),
    }


bear_loss = losses.combine("bear_loss", losses.behavior_objective, losses.critic_objective, actor_objective)


@register("bear", mode="offline")
class BEAR(Algorithm[BEARHyper, MLPBEARModel]):
    """Bootstrapping error accumulation reduction."""

    steps = (Step("vae"), Step("critic"), Step("actor", trains=("actor", "lagrange"), tracks=("critic",)))
    vae_loss = losses.behavior_loss

    @classmethod
    def make_steps(cls, hyper: Any) -> tuple[Step, ...]:
        """The actor has a target network only where the target asks for it."""
        if hyper.target_policy == "current":
            return cls.steps
        return (*cls.steps[:2], Step("actor", trains=("actor", "lagrange"), tracks=("actor", "critic")))

    def critic_loss(self, batch: Batch) -> Metrics:
        """Twin critics against the best of several actions of the policy."""
        hyper, next_obs = self.hyper, batch["next_obs"]
        actor = self.model.actor if hyper.target_policy == "current" else self.target.actor
        with torch.no_grad():
            samples = actor.sample_raw(next_obs, count=hyper.num_target_samples).tanh()
            best_q = losses.soft_clipped_max(self.target.critic(next_obs, samples), hyper.min_q_weight)
        return losses.bootstrap_loss(self, batch, best_q)

    def actor_loss(self, batch: Batch) -> Metrics:
        """Value of the policy's action, and the distance of its samples to those of the behaviour."""
        hyper, obs, vae = self.hyper, batch["obs"], self.model.vae
        with torch.no_grad():
            behavior = vae.decode_raw(obs, vae.draw(obs, count=hyper.num_mmd_samples))
        policy = self.model.actor.sample_raw(obs, count=hyper.num_mmd_samples)
        valued = policy[:1] if hyper.policy_value == "first" else policy
        metrics = actor_objective(
            policy_q_values=self.model.critic(obs, valued.tanh()).mean(0).amin(0),
            mmd=mmd_distance(behavior, policy, kernel=hyper.mmd_kernel, sigma=hyper.mmd_sigma),
            multiplier=self.model.lagrange(),
            mmd_threshold=hyper.mmd_threshold,
            value_weight=(self.clock >= hyper.mmd_warmup_updates).to(obs.dtype),
        )
        return metrics | {
            "warmup": (self.clock < hyper.mmd_warmup_updates).to(obs.dtype),
            "action_divergence_raw": (policy.mean(0) - behavior.mean(0)).square().mean(),
        }


BEARAlgorithm = BEAR
