"""Critics, which value actions, and value networks, which value states."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from rl_training.models.encoders import encoder_for
from rl_training.models.initializers import Init, uniform
from rl_training.models.layers import MLP, EnsembleMLP, EnsembleRenormMLP, Norm, join


class Critic(nn.Module):
    """An ensemble of E critics over one input: (B,) values each, (E, B) together."""

    def __init__(self, obs_dim: int, encoder: nn.Module | None) -> None:
        super().__init__()
        self.encoder = encoder_for(obs_dim, encoder)

    def forward(self, obs: Tensor, actions: Tensor, *, training: bool = False) -> Tensor:
        """Values (E, B)."""
        raise NotImplementedError


class QEnsemble(Critic):
    """Critics with one output each.

    Dropout acts after a linear layer, before normalisation and activation.
    """

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        hidden_sizes: Sequence[int],
        size: int = 2,
        encoder: nn.Module | None = None,
        init: Init = uniform,
        norm: Norm = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__(obs_dim, encoder)
        inputs = self.encoder.output_size + action_dim
        self.mlp = EnsembleMLP(size, inputs, hidden_sizes, 1, init=init, norm=norm, dropout=dropout)

    def forward(
        self,
        obs: Tensor,
        actions: Tensor,
        *,
        count: int | None = None,
        chosen: Tensor | None = None,
        training: bool = False,
    ) -> Tensor:
        """Values (E, B); several actions per state, (samples, B, dim), give (samples, E, B).

        With `count`, only the first `count` critics are evaluated; with `chosen`, only those at these indices.
        Dropout, if there is any, acts in training only.
        """
        inputs = join(self.encoder(obs), actions)
        values: Tensor = self.mlp(inputs, count=count, chosen=chosen, training=training).squeeze(-1)
        return values.movedim(0, -2)

    def forward_each(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (E, B) of actions (E, B, dim): each critic values actions of its own."""
        return self.mlp.forward_each(join(self.encoder(obs), actions)).squeeze(-1)


class QuantileEnsemble(Critic):
    """Critics that know M quantiles of the return each; the value is their mean."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        hidden_sizes: Sequence[int],
        size: int,
        num_quantiles: int,
        encoder: nn.Module | None = None,
    ) -> None:
        super().__init__(obs_dim, encoder)
        self.mlp = EnsembleMLP(size, self.encoder.output_size + action_dim, hidden_sizes, num_quantiles)

    def forward(self, obs: Tensor, actions: Tensor, *, training: bool = False) -> Tensor:
        """Values (E, B)."""
        return self.quantiles(obs, actions).mean(-1)

    def quantiles(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Quantiles (E, B, M), in no particular order."""
        quantiles: Tensor = self.mlp(join(self.encoder(obs), actions))
        return quantiles


class RenormCritic(Critic):
    """Critics with batch renormalisation before each layer; they have no dropout."""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        *,
        hidden_sizes: Sequence[int],
        size: int,
        encoder: nn.Module | None = None,
        **norm: Any,
    ) -> None:
        super().__init__(obs_dim, encoder)
        self.mlp = EnsembleRenormMLP(size, self.encoder.output_size + action_dim, hidden_sizes, 1, **norm)

    def forward(self, obs: Tensor, actions: Tensor, *, training: bool = False) -> Tensor:
        """Values (E, B), normalised by the batch in training, else by running statistics."""
        values: Tensor = self.mlp(join(self.encoder(obs), actions), training=training).squeeze(-1)
        return values

    @torch.no_grad()
    def norm_report(self) -> dict[str, Tensor]:
        """The norm of all running means together, the share of r that was clipped, and the number of passes."""
        norms = self.mlp.norms
        means = torch.cat([norm.running_mean.flatten() for norm in norms])
        return {
            "bn_running_mean_norm": means.norm(),
            "bn_r_clip_share": torch.stack([norm.clip_share for norm in norms]).mean(),
            "bn_steps": norms[0].steps.to(means.dtype),
        }


class ValueNetwork(nn.Module):
    """The value (B,) of states (B, dim): the network's output times `scale`. It has no dropout."""

    def __init__(
        self,
        obs_dim: int,
        *,
        hidden_sizes: Sequence[int],
        scale: float = 1.0,
        encoder: nn.Module | None = None,
        init: Init = uniform,
        norm: Norm = "none",
        activation: Callable[[Tensor], Tensor] = functional.relu_,
    ) -> None:
        super().__init__()
        self.scale = scale
        self.encoder = encoder_for(obs_dim, encoder)
        self.mlp = MLP(self.encoder.output_size, hidden_sizes, 1, init=init, norm=norm, activation=activation)

    def forward(self, obs: Tensor) -> Tensor:
        """Values (B,)."""
        values: Tensor = self.scale * self.mlp(self.encoder(obs)).squeeze(-1)
        return values


def best_action(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """Of several actions per state, (samples, B, dim), the one that the first critic values most."""
    values: Tensor = critic(obs, actions, count=1).squeeze(-2)
    index = values.argmax(0)[None, :, None].expand(1, *actions.shape[1:])
    return actions.gather(0, index).squeeze(0)
