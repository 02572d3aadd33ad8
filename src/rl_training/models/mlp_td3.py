"""The networks of the TD3 family."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from rl_training.models.bundle import Model
from rl_training.models.init import small_last
from rl_training.models.layers import QEnsemble
from rl_training.models.policies import DeterministicActor


class MLPTD3Model(Model):
    """A deterministic actor and critics, two unless told otherwise."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        num_critics: int = 2,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = DeterministicActor(obs_dim, action_dim, hidden_sizes=actor_hidden_sizes or hidden_sizes)
        self.critic = QEnsemble(obs_dim, action_dim, hidden_sizes=critic_hidden_sizes or hidden_sizes, size=num_critics)

    def q_values(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        """The value of each critic, (B,) each."""
        values: Tensor = self.critic(obs, actions)
        return values.unbind(-2)


class MLPDDPGModel(MLPTD3Model):
    """A deterministic actor and one critic."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
    ) -> None:
        super().__init__(
            obs_dim=obs_dim,
            action_dim=action_dim,
            hidden_sizes=hidden_sizes,
            actor_hidden_sizes=actor_hidden_sizes,
            critic_hidden_sizes=critic_hidden_sizes,
            num_critics=1,
        )


class MLPReBRACModel(Model):
    """A deterministic actor and twin critics with layer normalisation after each activation."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        critic_layer_norm: bool = True,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = DeterministicActor(
            obs_dim, action_dim, hidden_sizes=actor_hidden_sizes or hidden_sizes, init=small_last(1e-3)
        )
        self.critic = QEnsemble(
            obs_dim,
            action_dim,
            hidden_sizes=critic_hidden_sizes or hidden_sizes,
            init=small_last(3e-3),
            norm="after" if critic_layer_norm else "none",
        )
