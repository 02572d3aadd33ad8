"""Encoders: from observations to the features that actors, critics and value networks are computed from.

Every network has an encoder in front of its perceptron. An encoder is a module that maps observations to features
(..., output_size) and has the attribute `output_size`. Vectors need none: they are their own features.
"""

from __future__ import annotations

from typing import Protocol, cast

from torch import Tensor, nn


class Encoder(Protocol):
    """What a network expects of the module in front of it."""

    output_size: int

    def __call__(self, obs: Tensor) -> Tensor:
        """Features (..., output_size)."""


class VectorEncoder(nn.Module):
    """The identity, for observations (..., output_size); it has no parameters."""

    def __init__(self, output_size: int) -> None:
        super().__init__()
        self.output_size = output_size

    def forward(self, obs: Tensor) -> Tensor:
        """The observations."""
        return obs


def encoder_for(obs_dim: int, encoder: nn.Module | None) -> Encoder:
    """The encoder that was given; if none was, the identity for vectors."""
    return VectorEncoder(obs_dim) if encoder is None else cast("Encoder", encoder)
