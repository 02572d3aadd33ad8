"""The networks of algorithms that learn a value of states beside the critics: IQL and XQL."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.models.bundle import Model
from rl_training.models.init import orthogonal
from rl_training.models.layers import QEnsemble, ValueNetwork
from rl_training.models.policies import DeterministicActor, GaussianActor, Spread


class MLPIQLModel(Model):
    """An actor, twin critics, and a value of states."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        policy: str = "stochastic",
        spread: Spread = "clipped",
        actor_dropout: float = 0.0,
        value_layer_norm: bool = False,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        actor_sizes, critic_sizes = actor_hidden_sizes or hidden_sizes, critic_hidden_sizes or hidden_sizes
        if policy == "deterministic":
            self.actor = DeterministicActor(
                obs_dim, action_dim, hidden_sizes=actor_sizes, init=orthogonal, dropout=actor_dropout
            )
        else:
            self.actor = GaussianActor(
                obs_dim, action_dim, hidden_sizes=actor_sizes, spread=spread, init=orthogonal, dropout=actor_dropout
            )
        self.critic = QEnsemble(obs_dim, action_dim, hidden_sizes=critic_sizes, init=orthogonal)
        self.value = ValueNetwork(
            obs_dim, hidden_sizes=critic_sizes, init=orthogonal, norm="before" if value_layer_norm else "none"
        )
