"""Critics, which value actions, and value networks, which value states."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from typing_extensions import Unpack

from rl_training.models.encoders import DropoutOptions, Network, NetworkOptions
from rl_training.models.mlp import EnsembleMLP, EnsembleRenormMLP, Members, join


class Critic(Network):
    """E critics of the same input. Each gives values (B,), all together (E, B).

    `size` is E. Every critic has one output, its value, unless a subclass makes the value from several.
    """

    def __init__(
        self, obs_dim: int, action_dim: int, *, size: int = 2, output_size: int = 1, **options: Unpack[DropoutOptions]
    ) -> None:
        options["network"] = partial(options.get("network", EnsembleMLP), size)
        super().__init__(obs_dim, output_size, beside=action_dim, **options)

    def forward(self, obs: Tensor, actions: Tensor, **which: Unpack[Members]) -> Tensor:
        """Values (E, B); several actions per state, (samples, B, dim), give (samples, E, B).

        With `first`, only that number of critics is evaluated; with `members`, only those at these indices. Critics
        with batch renormalisation take neither. Dropout, if there is any, acts in training only.
        """
        return self.mlp(join(self.encoder(obs), actions), **which).squeeze(-1).movedim(0, -2)


class QEnsemble(Critic):
    """Critics with one output each.

    Dropout acts after a linear layer, before normalisation and activation.
    """

    mlp: EnsembleMLP

    def forward_each(self, obs: Tensor, actions: Tensor) -> Tensor:
        """Values (E, B) of actions (E, B, dim): each critic values actions of its own."""
        return self.mlp.forward_each(join(self.encoder(obs), actions)).squeeze(-1)


class QuantileEnsemble(Critic):
    """Critics that each estimate M quantiles of the return; the value is their mean."""

    def __init__(
        self, obs_dim: int, action_dim: int, *, size: int, num_quantiles: int, **options: Unpack[NetworkOptions]
    ) -> None:
        super().__init__(obs_dim, action_dim, size=size, output_size=num_quantiles, **options)

    def forward(self, obs: Tensor, actions: Tensor, **which: Unpack[Members]) -> Tensor:
        """Values (E, B), or (samples, E, B)."""
        return self.quantiles(obs, actions, **which).mean(-1).movedim(0, -2)

    def quantiles(self, obs: Tensor, actions: Tensor, **which: Unpack[Members]) -> Tensor:
        """Quantiles (E, B, M), in no particular order."""
        return self.mlp(join(self.encoder(obs), actions), **which)


class RenormCritic(Critic):
    """Critics with batch renormalisation before each layer; they have no dropout."""

    mlp: EnsembleRenormMLP

    def __init__(self, obs_dim: int, action_dim: int, **options: Any) -> None:
        super().__init__(obs_dim, action_dim, network=EnsembleRenormMLP, **options)

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


class ValueNetwork(Network):
    """The value (B,) of states (B, dim): the network's output times `scale`. It has no dropout."""

    def __init__(self, obs_dim: int, *, scale: float = 1.0, **options: Unpack[NetworkOptions]) -> None:
        super().__init__(obs_dim, 1, **options)
        self.scale = scale

    def forward(self, obs: Tensor) -> Tensor:
        """Values (B,)."""
        return self.scale * self.mlp(self.encoder(obs)).squeeze(-1)


def best_action(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """Of several actions per state, (samples, B, dim), the one that the first critic values most."""
    values: Tensor = critic(obs, actions, first=1).squeeze(-2)
    index = values.argmax(0)[None, :, None].expand(1, *actions.shape[1:])
    return actions.gather(0, index).squeeze(0)
