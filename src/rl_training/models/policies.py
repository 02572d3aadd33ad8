"""Actors: from observations to actions in [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from rl_training.models.layers import MLP

LOG_STD_MIN, LOG_STD_MAX = -5.0, 2.0
"""Without a bound, likelihood on near-deterministic data drives the deviation to zero and the loss to infinity."""


class DeterministicActor(nn.Module):
    """actions = tanh(mlp(obs))."""

    def __init__(self, obs_dim: int, action_dim: int, *, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.mlp = MLP(obs_dim, hidden_sizes, action_dim)

    def forward(self, obs: Tensor) -> Tensor:
        """Actions (B, dim)."""
        actions: Tensor = self.mlp(obs).tanh()
        return actions

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The action to take; a deterministic actor has only one."""
        actions: Tensor = self(obs)
        return actions


class GaussianActor(nn.Module):
    """actions ~ N(tanh(mean(obs)), std(obs)^2), clipped to [-1, 1] when acting; the sample itself is not squashed."""

    def __init__(self, obs_dim: int, action_dim: int, *, hidden_sizes: Sequence[int]) -> None:
        super().__init__()
        self.mlp = MLP(obs_dim, hidden_sizes, 2 * action_dim)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean in (-1, 1) and log of the standard deviation, each (B, dim)."""
        mean, log_std = self.mlp(obs).chunk(2, dim=-1)
        return mean.tanh(), log_std.clamp(LOG_STD_MIN, LOG_STD_MAX)

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """The mean, or a clipped sample."""
        mean, log_std = self(obs)
        actions: Tensor = mean if deterministic else mean + log_std.exp() * torch.randn_like(mean)
        return actions.clamp(-1, 1)


def gaussian_log_prob(actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Log-density of a diagonal Gaussian, summed over the last axis."""
    error = (actions - mean) * (-log_std).exp()
    return (-0.5 * error.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
