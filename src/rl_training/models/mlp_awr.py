"""The networks of algorithms that imitate by weight and learn only a value of states: AWR and MARWIL."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rl_training.models.bundle import Model
from rl_training.models.init import xavier, xavier_small_last
from rl_training.models.layers import ValueNetwork
from rl_training.models.policies import GaussianActor


class MLPAWRModel(Model):
    """A Gaussian actor of constant deviation and a value of states; the mean is not squashed."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (128, 64),
        action_std: float = 0.4,
        value_scale: float = 100.0,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = GaussianActor(
            obs_dim,
            action_dim,
            hidden_sizes=hidden_sizes,
            spread="fixed",
            log_std=math.log(action_std),
            squash_mean=False,
            init=xavier_small_last,
        )
        self.value = ValueNetwork(obs_dim, hidden_sizes=hidden_sizes, scale=value_scale, init=xavier)


class MLPMARWILModel(Model):
    """A Gaussian actor and a value of states, with tanh between the layers."""

    def __init__(self, *, obs_dim: int, action_dim: int, hidden_sizes: Sequence[int] = (256, 256)) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = GaussianActor(obs_dim, action_dim, hidden_sizes=hidden_sizes, activation=torch.tanh)
        self.value = ValueNetwork(obs_dim, hidden_sizes=hidden_sizes, activation=torch.tanh)
