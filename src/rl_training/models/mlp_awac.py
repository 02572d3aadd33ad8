"""The networks of algorithms that imitate by weight and learn critics: AWAC and CRR."""

from __future__ import annotations

from collections.abc import Sequence

from rl_training.models.bundle import Model
from rl_training.models.layers import QEnsemble
from rl_training.models.policies import GaussianActor, Spread

AWAC_LOG_STD_RANGES: dict[Spread, tuple[float, float]] = {"clipped": (-20.0, 2.0), "sigmoid": (-6.0, 0.0)}


class MLPAWACModel(Model):
    """A Gaussian actor whose deviation does not depend on the observation, and twin critics."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        spread: Spread = "clipped",
        squash_mean: bool = True,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = GaussianActor(
            obs_dim,
            action_dim,
            hidden_sizes=actor_hidden_sizes or hidden_sizes,
            spread=spread,
            log_std_range=AWAC_LOG_STD_RANGES[spread],
            squash_mean=squash_mean,
        )
        self.critic = QEnsemble(obs_dim, action_dim, hidden_sizes=critic_hidden_sizes or hidden_sizes)


class MLPCRRModel(Model):
    """A Gaussian actor whose deviation depends on the observation, and critics."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        num_critics: int = 2,
        critic_layer_norm: bool = False,
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = GaussianActor(obs_dim, action_dim, hidden_sizes=actor_hidden_sizes or hidden_sizes)
        self.critic = QEnsemble(
            obs_dim,
            action_dim,
            hidden_sizes=critic_hidden_sizes or hidden_sizes,
            size=num_critics,
            norm="before" if critic_layer_norm else "none",
        )
