"""Networks for discrete actions: a number for each choice."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor
from typing_extensions import Unpack

from rl_training.models.encoders import Network, NetworkOptions
from rl_training.models.model import Model, Shape
from rl_training.models.perceptrons import EnsembleMLP


class CategoricalActor(Network):
    """Probabilities of choices: softmax(mlp(obs)). It has no dropout."""

    def __init__(self, obs_dim: int, action_dim: int, **options: Unpack[NetworkOptions]) -> None:
        super().__init__(obs_dim, action_dim, **options)

    def forward(self, obs: Tensor) -> Tensor:
        """Log-probabilities (B, choices)."""
        return self.mlp(self.encoder(obs)).log_softmax(-1)

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Log-probabilities (B,) of choices (B,)."""
        return pick(self(obs), actions)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The most likely choice (B,), or a sample."""
        log_probs: Tensor = self(obs)
        return log_probs.argmax(-1) if deterministic else log_probs.exp().multinomial(1)[:, 0]


class ChoiceCritic(Network):
    """The value of every choice: obs (B, dim) to (B, choices).

    With `dueling`, the network gives the value of the state and the advantage of each choice. The value of a choice is
    the sum of both, minus the mean advantage.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, *, dueling: bool = False, **options: Unpack[NetworkOptions]
    ) -> None:
        super().__init__(obs_dim, action_dim + dueling, **options)
        self.dueling = dueling

    def forward(self, obs: Tensor) -> Tensor:
        """Values (B, choices)."""
        outputs = self.mlp(self.encoder(obs))
        return duel(outputs[:, :1], outputs[:, 1:]) if self.dueling else outputs


class ChoiceEnsemble(Network):
    """E critics with an output for every choice; the values of given choices, or of given probabilities of all."""

    def __init__(self, obs_dim: int, action_dim: int, *, size: int, **options: Unpack[NetworkOptions]) -> None:
        options["network"] = partial(EnsembleMLP, size)
        super().__init__(obs_dim, action_dim, **options)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (E, B) of choices (B,), or expected values under probabilities (B, choices)."""
        values = self.mlp(self.encoder(obs))
        if actions.is_floating_point():
            return (values * actions).sum(-1)
        return pick(values, actions.expand(values.shape[:-1]))


def duel(values: Tensor, advantages: Tensor) -> Tensor:
    """Values (B, choices) from values of states (B, 1) and advantages (B, choices)."""
    return values + advantages - advantages.mean(-1, keepdim=True)


def pick(values: Tensor, actions: Tensor) -> Tensor:
    """The numbers (B,) of the given choices (B,), out of the numbers (B, choices) of all choices."""
    return values.gather(-1, actions[..., None]).squeeze(-1)


class MLPDQNModel(Model):
    """A critic; the policy takes the choice that it values most."""

    def __init__(self, *, dueling: bool = False, **shape: Unpack[Shape]) -> None:
        super().__init__(**shape)
        self.critic = ChoiceCritic(**self.critic_shape, dueling=dueling)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The choice (B,) of the highest value; there is nothing to sample."""
        values: Tensor = self.critic(obs)
        return values.argmax(-1)

    def log_probs(self, obs: Tensor, actions: Tensor) -> Tensor:
        """0 for the choice of the highest value, minus infinity for the others."""
        is_taken = actions == self.act(obs, deterministic=True)
        return torch.where(is_taken, 0.0, -math.inf)

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B,) of choices."""
        return pick(self.critic(obs), actions)
