"""BC: imitate the logged actions.

    deterministic   minimises   mean (pi(s) - a)^2            over the batch and the action's dimensions
    stochastic      minimises   - mean log pi(a | s)
    discrete        minimises   - mean log pi(a | s)          of a categorical policy, for discrete actions

Keep only the best trajectories with the data option `best_fraction` (X % BC of Chen et al., "Decision Transformer",
NeurIPS 2021).

No known differences: trajectories are counted, not timesteps.
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from rl_training.algorithms.base import Algorithm, Hyper, Step, losses, register
from rl_training.core.batches import Batch, Metrics, Transitions
from rl_training.core.options import option, options
from rl_training.models import MLPBCModel, gaussian_log_prob, pick


@options
class BCHyper(Hyper):
    """Hyper-parameters of BC."""

    policy: Literal["deterministic", "stochastic"] = option("deterministic", "regression, or likelihood of a Gaussian")


def bc_loss(*, policy_actions: Tensor, actions: Tensor) -> Metrics:
    """The objective of the deterministic policy, from tensors alone."""
    loss = (policy_actions - actions).square().mean()
    return {"actor_loss": loss, "bc_loss": loss}


def stochastic_bc_loss(*, log_probs: Tensor, log_stds: Tensor) -> Metrics:
    """The objective of the stochastic policy, from tensors alone."""
    nll = -log_probs.mean()
    return {"actor_loss": nll, "nll": nll, "log_std_mean": log_stds.mean()}


def discrete_bc_loss(*, log_probs: Tensor, actions: Tensor) -> Metrics:
    """The objective of the categorical policy: log-probabilities (B, actions) of all actions, actions (B,)."""
    nll = -pick(log_probs, actions).mean()
    return {
        "actor_loss": nll,
        "nll": nll,
        "accuracy": losses.share(log_probs.argmax(-1) == actions, log_probs.dtype),
        "entropy_normalized": losses.normalized_entropy(log_probs),
    }


@register("bc", mode="offline")
class BC(Algorithm[BCHyper, MLPBCModel]):
    """Behaviour cloning."""

    steps = (Step("actor"),)
    action_kinds = ("continuous", "discrete")
    reads = Transitions(("obs", "actions"))
    defaults = {"normalize_obs": True}

    def actor_loss(self, batch: Batch) -> Metrics:
        """The distance from the policy to the data."""
        actor, obs, actions = self.model.actor, batch["obs"], batch["actions"]
        if self.action_space.kind == "discrete":
            return discrete_bc_loss(log_probs=actor(obs), actions=actions)
        if self.hyper.policy == "deterministic":
            return bc_loss(policy_actions=actor(obs), actions=actions)
        mean, log_std = actor(obs)
        return stochastic_bc_loss(log_probs=gaussian_log_prob(actions, mean, log_std), log_stds=log_std)


BCAlgorithm = BC
