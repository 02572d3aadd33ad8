"""The networks of CrossQ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rl_training.models.batch_renorm import BatchRenorm
from rl_training.models.bundle import Model
from rl_training.models.init import Init, uniform
from rl_training.models.layers import EnsembleLinear, join
from rl_training.models.mlp_sac import WIDE, temperature
from rl_training.models.policies import TanhGaussianActor


class EnsembleRenormMLP(nn.Module):
    """E perceptrons over one input, (B, input) to (E, B, output), with a batch renormalisation before each layer."""

    def __init__(
        self,
        size: int,
        input_size: int,
        hidden_sizes: Sequence[int],
        output_size: int,
        *,
        init: Init = uniform,
        norm_momentum: float = 0.01,
        norm_warmup: int = 100_000,
    ) -> None:
        super().__init__()
        fans = list(pairwise([input_size, *hidden_sizes, output_size]))
        self.size = size
        # Typed as Any, for a module list forgets what it holds.
        self.layers: Any = nn.ModuleList(
            EnsembleLinear(size, *fan, init=init, last=number == len(fans)) for number, fan in enumerate(fans, start=1)
        )
        self.norms: Any = nn.ModuleList(
            BatchRenorm(size, fan_in, momentum=norm_momentum, warmup=norm_warmup) for fan_in, _ in fans
        )

    def forward(self, inputs: Tensor, *, training: bool = False) -> Tensor:
        """The outputs of all members, normalised by the batch in training, else by running statistics."""
        rows = inputs.expand(self.size, *inputs.shape)
        for number, (norm, layer) in enumerate(zip(self.norms, self.layers, strict=True), start=1):
            rows = torch.baddbmm(layer.bias[:, None], norm(rows, training=training), layer.weight)
            if number < len(self.layers):
                rows = rows.relu_()
        return rows


class RenormMLP(EnsembleRenormMLP):
    """One such perceptron: (B, input) to (B, output)."""

    def __init__(self, input_size: int, hidden_sizes: Sequence[int], output_size: int, **options: Any) -> None:
        super().__init__(1, input_size, hidden_sizes, output_size, **options)

    def forward(self, inputs: Tensor, *, training: bool = False) -> Tensor:
        """Outputs (B, output), normalised by the batch in training, else by running statistics."""
        return super().forward(inputs, training=training).squeeze(0)


class RenormCritic(nn.Module):
    """E batch-renormalised critics over one input; (B,) values each, (E, B) together."""

    def __init__(self, obs_dim: int, action_dim: int, *, hidden_sizes: Sequence[int], size: int, **norm: Any) -> None:
        super().__init__()
        self.mlp = EnsembleRenormMLP(size, obs_dim + action_dim, hidden_sizes, 1, **norm)

    def forward(self, obs: Tensor, actions: Tensor, *, training: bool = False) -> Tensor:
        """Values (E, B)."""
        values: Tensor = self.mlp(join(obs, actions), training=training).squeeze(-1)
        return values

    @torch.no_grad()
    def norm_report(self) -> dict[str, Tensor]:
        """The length of all running means together, the share of r that was clipped, over layers, and passes."""
        norms = self.mlp.norms
        means = torch.cat([norm.running_mean.flatten() for norm in norms])
        return {
            "bn_running_mean_norm": means.norm(),
            "bn_r_clip_share": torch.stack([norm.clip_share for norm in norms]).mean(),
            "bn_steps": norms[0].steps.to(means.dtype),
        }


class MLPCrossQModel(Model):
    """As SAC's, but with an actor and critics that normalise by the batch."""

    def __init__(
        self,
        *,
        obs_dim: int,
        action_dim: int,
        hidden_sizes: Sequence[int] = (256, 256),
        actor_hidden_sizes: Sequence[int] | None = None,
        critic_hidden_sizes: Sequence[int] | None = (1024, 1024),
        num_critics: int = 2,
        norm_momentum: float = 0.01,
        norm_warmup: int = 100_000,
        alpha: float | Literal["auto"] = "auto",
    ) -> None:
        super().__init__(obs_dim=obs_dim, action_dim=action_dim)
        norm: dict[str, Any] = {"norm_momentum": norm_momentum, "norm_warmup": norm_warmup}
        self.actor = TanhGaussianActor(
            obs_dim,
            action_dim,
            hidden_sizes=actor_hidden_sizes or hidden_sizes,
            log_std_range=WIDE,
            network=partial(RenormMLP, **norm),
        )
        self.critic = RenormCritic(
            obs_dim, action_dim, hidden_sizes=critic_hidden_sizes or hidden_sizes, size=num_critics, **norm
        )
        self.temperature = temperature(alpha)
