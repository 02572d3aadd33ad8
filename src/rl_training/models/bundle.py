"""What the networks of every algorithm have in common."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn


class Model(nn.Module):
    """The networks of one algorithm. Children are named by their role: actor, critic, value, vae, ..."""

    actor: Any
    critic: Any

    def __init__(self, *, obs_dim: int, action_dim: int) -> None:
        super().__init__()
        self.obs_dim = obs_dim
        self.action_dim = action_dim

    def act(self, obs: Tensor, *, deterministic: bool) -> Tensor:
        """Actions as networks see them, for observations as they see them."""
        actions: Tensor = self.actor.act(obs, deterministic=deterministic)
        return actions

    def values(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (B,) of actions by the smallest of the critics, for models that have critics."""
        values: Tensor = self.critic(obs, actions).amin(-2)
        return values
