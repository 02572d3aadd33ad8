"""Networks for discrete actions: a number for each choice."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from typing_extensions import Unpack

from rl_training.models.encoders import Network, NetworkOptions
from rl_training.models.mlp import EnsembleMLP


class CategoricalActor(Network):
    """Probabilities of choices: softmax(mlp(obs)). It has no dropout."""

    def __init__(self, obs_dim: int, action_dim: int, **options: Unpack[NetworkOptions]) -> None:
        super().__init__(obs_dim, action_dim, **options)

    def forward(self, obs: Tensor) -> Tensor:
        """Log-probabilities (B, choices)."""
        return self.logits(obs).log_softmax(-1)

    def logits(self, obs: Tensor) -> Tensor:
        """What the softmax is taken of, (B, choices)."""
        return self.mask_invalid(self.mlp(self.encoder(obs)), obs)

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities (B,) of choices (B,)."""
        return pick(self(obs), actions)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The most likely choice (B,), or a sample."""
        log_probs: Tensor = self(obs)
        return log_probs.argmax(-1) if deterministic else draw(log_probs)


class DiscreteCritic(Network):
    """The value of every choice: obs (B, dim) to (B, choices).

    With `dueling`, the network gives the value of the state and the advantage of each choice. The value of a choice is
    the sum of both, minus the mean advantage of all possible choices. With `num_quantiles`, all of these are so many
    quantiles of the return, and the value of a choice is the mean of its quantiles.
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
        """Values (B, choices)."""
        if self.num_quantiles is not None:
            return self.quantiles(obs).mean(-1)
        return self._choices(self.mlp(self.encoder(obs)), obs)

    def quantiles(self, obs: Tensor) -> Tensor:
        """Quantiles of the return of every choice, (B, choices, quantiles), in no particular order."""
        # By quantile first, so that masks and duels are over the last axis, as they are over values.
        outputs = self.mlp(self.encoder(obs))
        outputs = outputs.reshape(*outputs.shape[:-1], -1, self.num_quantiles or 1).movedim(-1, 0)
        return self._choices(outputs, obs).movedim(0, -1)

    def _choices(self, outputs: Tensor, obs: Tensor) -> Tensor:
        """Values (..., choices) of choices by the last axis of the outputs."""
        if not self.dueling:
            return self.mask_invalid(outputs, obs)
        return duel(outputs[..., :1], self.mask_invalid(outputs[..., 1:], obs))


class DiscreteEnsemble(Network):
    """E critics with an output for every choice."""

    def __init__(self, obs_dim: int, action_dim: int, *, size: int = 2, **options: Unpack[NetworkOptions]) -> None:
        options["network"] = partial(EnsembleMLP, size)
        super().__init__(obs_dim, action_dim, **options)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (E, B) of choices (B,), or expected values under probabilities (B, choices)."""
        if actions.is_floating_point():
            return expectation(actions, self.choices(obs))
        return pick(self.choices(obs), actions)

    def choices(self, obs: Tensor) -> Tensor:
        """Values (E, B, choices) of all choices."""
        return self.mask_invalid(self.mlp(self.encoder(obs)), obs)


def duel(values: Tensor, advantages: Tensor) -> Tensor:
    """Values (..., choices) from values of states (..., 1) and advantages (..., choices).

    Choices that are not possible have the advantage minus infinity, and no part in the mean that is taken out.
    """
    possible = advantages != -math.inf
    total = advantages.masked_fill(~possible, 0).sum(-1, keepdim=True)
    return values + advantages - total / possible.sum(-1, keepdim=True)


def pick(values: Tensor, actions: Tensor) -> Tensor:
    """The numbers (..., B) of the given choices (B,), out of the numbers (..., B, choices) of all choices."""
    return values.gather(-1, actions.expand(values.shape[:-1])[..., None]).squeeze(-1)


def draw(log_probs: Tensor) -> Tensor:
    """Choices (B,) by their log-probabilities (B, choices)."""
    return log_probs.exp().multinomial(1)[:, 0]


def expectation(probs: Tensor, values: Tensor) -> Tensor:
    """The mean of values (..., choices) by the probabilities of choices (..., choices).

    Choices that are not possible have the value minus infinity and the probability 0. They count for nothing, and get
    no gradient: 0 times infinity would be no number.
    """
    return (probs * values.masked_fill(values == -math.inf, 0)).sum(-1)


def allowed_choices(log_probs: Tensor, threshold: float) -> Tensor:
    """Which choices (B, choices) are more likely than `threshold` times the likeliest: that one always is."""
    ratios = log_probs - log_probs.amax(-1, keepdim=True)
    return ratios > (math.log(threshold) if threshold > 0 else -math.inf)


def certain(choices: Tensor, actions: Tensor) -> Tensor:
    """Log-probabilities (B,) of actions for a policy that takes these choices (B,) for certain."""
    return torch.where(actions == choices, 0.0, -math.inf)
