"""The networks of TQC."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn

from rl_training.models.bundle import Model
from rl_training.models.layers import EnsembleMLP, join
from rl_training.models.mlp_sac import WIDE, temperature
from rl_training.models.policies import TanhGaussianActor


class QuantileEnsemble(nn.Module):
    """E critics over one input, each of which knows M quantiles of the return; its value is their mean."""

    def __init__(
        self, obs_dim: int, action_dim: int, *, hidden_sizes: Sequence[int], size: int, num_quantiles: int
    ) -> None:
        super().__init__()
        self.mlp = EnsembleMLP(size, obs_dim + action_dim, hidden_sizes, num_quantiles)

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (E, B)."""
        return self.quantiles(obs, actions).mean(-1)

    def quantiles(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Quantiles (E, B, M); nothing makes them ascend."""
        quantiles: Tensor = self.mlp(join(obs, actions))
        return quantiles


class MLPTQCModel(Model):
    """As SAC's, but with critics that know quantiles."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = None,
        num_critics: int = 2,
        num_quantiles: int = 25,
        alpha: float | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        self.actor = TanhGaussianActor(
            obs_dim, action_dim, hidden_sizes=actor_hidden_sizes or hidden_sizes, log_std_range=WIDE
        )
        self.critic = QuantileEnsemble(
            obs_dim,
            action_dim,
            hidden_sizes=critic_hidden_sizes or hidden_sizes,
            size=num_critics,
            num_quantiles=num_quantiles,
        )
        self.temperature = temperature(alpha)
