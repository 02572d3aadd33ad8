"""Networks for discrete actions, with an output for each action."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from typing_extensions import Unpack

from rl_training.models.encoders import Network, NetworkOptions
from rl_training.models.mlp import EnsembleMLP


class CategoricalActor(Network):
    """Probabilities of actions: softmax(mlp(obs)). It has no dropout."""

    def __init__(self, obs_dim: int, action_dim: int, **options: Unpack[NetworkOptions]) -> None:
        super().__init__(obs_dim, action_dim, **options)

    def forward(self, obs: Tensor) -> Tensor:
        """Log-probabilities (B, actions)."""
        return self.logits(obs).log_softmax(-1)

    def logits(self, obs: Tensor) -> Tensor:
        """Inputs of the softmax, (B, actions)."""
        return self.mask_invalid(self.mlp(self.encoder(obs)), obs)

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities (B,) of actions (B,)."""
        return pick(self(obs), actions)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The most likely action (B,), or a sample."""
        log_probs: Tensor = self(obs)
        return log_probs.argmax(-1) if deterministic else draw(log_probs)


class DiscreteCritic(Network):
    """The value of every action: obs (B, dim) to (B, actions).

    With `dueling`, the network gives the value of the state and the advantage of each action. The value of an action is
    the sum of both, minus the mean advantage of all valid actions. With `num_quantiles`, all of these are so many
    quantiles of the return, and the value of an action is the mean of its quantiles.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        dueling: bool = False,
        num_quantiles: int | None = None,
        **options: Unpack[NetworkOptions],
    ) -> None:
        super().__init__(obs_dim, (action_dim + dueling) * (num_quantiles or 1), **options)
        self.dueling, self.num_quantiles = dueling, num_quantiles

    def forward(self, obs: Tensor) -> Tensor:
        """Values (B, actions)."""
        if self.num_quantiles is not None:
            return self.quantiles(obs).mean(-1)
        return self._values(self.mlp(self.encoder(obs)), obs)

    def quantiles(self, obs: Tensor) -> Tensor:
        """Quantiles of the return of every action, (B, actions, quantiles), in no particular order."""
        # By quantile first, so that masks and duels are over the last axis, as they are over values.
        outputs = self.mlp(self.encoder(obs))
        outputs = outputs.reshape(*outputs.shape[:-1], -1, self.num_quantiles or 1).movedim(-1, 0)
        return self._values(outputs, obs).movedim(0, -1)

    def _values(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Values (..., actions) from outputs whose last axis has one for each action, or one more if dueling."""
        if not self.dueling:
            return self.mask_invalid(outputs, obs)
        return duel(outputs[..., :1], self.mask_invalid(outputs[..., 1:], obs))


class DiscreteEnsemble(Network):
    """E critics with an output for every action."""

    def __init__(self, obs_dim: int, action_dim: int, *, size: int = 2, **options: Unpack[NetworkOptions]) -> None:
        options["network"] = partial(EnsembleMLP, size)
        super().__init__(obs_dim, action_dim, **options)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (E, B) of actions (B,), or expected values under probabilities (B, actions)."""
        if actions.is_floating_point():
            return expectation(actions, self.all_values(obs))
        return pick(self.all_values(obs), actions)

    def all_values(self, obs: Tensor) -> Tensor:
        """Values (E, B, actions) of all actions."""
        return self.mask_invalid(self.mlp(self.encoder(obs)), obs)


def duel(values: Tensor, advantages: Tensor) -> Tensor:
    """Values (..., actions) from values of states (..., 1) and advantages (..., actions).

    Invalid actions have the advantage minus infinity, and no part in the mean that is taken out.
    """
    valid = advantages != -math.inf
    total = advantages.masked_fill(~valid, 0).sum(-1, keepdim=True)
    return values + advantages - total / valid.sum(-1, keepdim=True)


def pick(values: Tensor, actions: Tensor) -> Tensor:
    """The numbers (..., B) of the given actions (B,), out of the numbers (..., B, actions) of all actions."""
    return values.gather(-1, actions.expand(values.shape[:-1])[..., None]).squeeze(-1)


def draw(log_probs: Tensor) -> Tensor:
    """Actions (B,) by their log-probabilities (B, actions)."""
    return log_probs.exp().multinomial(1)[:, 0]


def expectation(probs: Tensor, values: Tensor) -> Tensor:
    """The mean of values (..., actions) by the probabilities of actions (..., actions).

    Invalid actions have the value minus infinity and the probability 0. They count for nothing, and get
    no gradient: 0 times infinity would be no number.
    """
    return (probs * values.masked_fill(values == -math.inf, 0)).sum(-1)


def likely_actions(log_probs: Tensor, threshold: float) -> Tensor:
    """Flags (B, actions) of actions that are more likely than `threshold` times the likeliest, which always is."""
    ratios = log_probs - log_probs.amax(-1, keepdim=True)
    return ratios > (math.log(threshold) if threshold > 0 else -math.inf)


def certain(taken: Tensor, actions: Tensor) -> Tensor:
    """Log-probabilities (B,) of actions for a policy that takes other given actions (B,) for certain."""
    return torch.where(actions == taken, 0.0, -math.inf)
