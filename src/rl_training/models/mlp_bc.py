"""The network of behaviour cloning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rl_training.models.bundle import Model
from rl_training.models.discrete import CategoricalActor
from rl_training.models.policies import DeterministicActor, GaussianActor


class MLPBCModel(Model):
    """An actor: deterministic or Gaussian, or categorical for discrete actions."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        policy: str = "deterministic",
        discrete: bool = False,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        actor_class: Any = DeterministicActor if policy == "deterministic" else GaussianActor
        if discrete:
            actor_class = CategoricalActor
        self.actor = actor_class(obs_dim, action_dim, hidden_sizes=hidden_sizes)
