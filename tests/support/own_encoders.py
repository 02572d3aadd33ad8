"""Encoders as a user might write them, good and bad ones."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


class Waves(nn.Module):
    """Observations, and sines of learned mixtures of them."""

    def __init__(self, obs_dim: int, count: int = 4) -> None:
        super().__init__()
        self.output_size = obs_dim + count
        self.mixture = nn.Linear(obs_dim, count)

    def forward(self, obs: Tensor) -> Tensor:
        return torch.cat([obs, self.mixture(obs).sin()], dim=-1)


class FrozenWaves(Waves):
    """Sines of mixtures that are not learned."""

    def __init__(self, obs_dim: int) -> None:
        super().__init__(obs_dim)
        self.mixture.requires_grad_(False)


class Sizeless(nn.Module):
    """Does not say how many features it gives."""

    def __init__(self, obs_dim: int) -> None:
        super().__init__()


class Folded(Waves):
    """Gives features of another shape than it says."""

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs)[:, None]


class Paired(Waves):
    """Gives a tuple."""

    def forward(self, obs: Tensor) -> Any:
        return super().forward(obs), obs


class Doubled(Waves):
    """Gives features of another type."""

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs).double()


class Dropping(Waves):
    """Drops features in training."""

    def forward(self, obs: Tensor) -> Tensor:
        return functional.dropout(super().forward(obs), 0.5, self.training)


class Overwriting(Waves):
    """Changes what it is given."""

    def forward(self, obs: Tensor) -> Tensor:
        return super().forward(obs.mul_(2))


class Wasteful(Waves):
    """Has a layer that it does not use."""

    def __init__(self, obs_dim: int) -> None:
        super().__init__(obs_dim)
        self.head = nn.Linear(2, 2)


class Failing(Waves):
    """Raises an error when it is called."""

    def forward(self, obs: Tensor) -> Tensor:
        return obs @ obs


class NoModule:
    """No module at all."""


class Branching(Waves):
    """Looks at the numbers of a batch to decide what to do, which no graph can."""

    def forward(self, obs: Tensor) -> Tensor:
        features = super().forward(obs)
        return features if float(features.detach().sum()) > 0 else 2 * features
