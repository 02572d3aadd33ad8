"""The networks of algorithms that update often: REDQ, DroQ and RLPD."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rl_training.models.bundle import Model
from rl_training.models.init import xavier
from rl_training.models.layers import QEnsemble
from rl_training.models.mlp_sac import WIDE, temperature
from rl_training.models.policies import TanhGaussianActor


class MLPREDQModel(Model):
    """As SAC's, but with many critics, which may have dropout and layer normalisation, and no biases at the start."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        num_critics: int = 10,
        critic_dropout: float = 0.0,
        critic_layer_norm: bool = False,
        alpha: float | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = TanhGaussianActor(
            obs_dim, action_dim, hidden_sizes=actor_hidden_sizes or hidden_sizes, log_std_range=WIDE, init=xavier
        )
        self.critic = QEnsemble(
            obs_dim,
            action_dim,
            hidden_sizes=critic_hidden_sizes or hidden_sizes,
            size=num_critics,
            init=xavier,
            norm="before" if critic_layer_norm else "none",
            dropout=critic_dropout,
        )
        self.temperature = temperature(alpha)
