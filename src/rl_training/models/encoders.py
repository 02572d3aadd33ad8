"""Encoders, from observations to features, and networks: a perceptron behind an encoder.

An encoder is a module that maps observations to features (..., output_size) and has the attribute `output_size`. Every
network has one in front of its perceptron. For vectors it is the identity: they are their own features. Encoders of
the user's own are made in `models/own_encoders.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypedDict, cast

from torch import Tensor, nn
from typing_extensions import Required

from rl_training.models.activations import ActivationFunction
from rl_training.models.initializers import Init
from rl_training.models.mlp import MLP, Norm, Perceptron


class Encoder(Protocol):
    """What a network expects of the module in front of it."""

    output_size: int

    def __call__(self, obs: Tensor) -> Tensor:
        """Features (..., output_size)."""


class VectorEncoder(nn.Identity):
    """The identity, for observations (..., output_size); it has no parameters."""

    def __init__(self, output_size: int) -> None:
        super().__init__()
        self.output_size = output_size


class BehindMask(nn.Module):
    """An encoder of observations that begin with a mask: 1 for every choice that is possible, 0 for the others.

    The encoder behind it does not see the mask.
    """

    def __init__(self, encoder: Encoder, choices: int) -> None:
        super().__init__()
        self.encoder, self.choices, self.output_size = encoder, choices, encoder.output_size

    def forward(self, obs: Tensor) -> Tensor:
        """Features of the rest of the observation."""
        return self.encoder(obs[..., self.choices :])


def encoder_for(obs_dim: int, encoder: nn.Module | None) -> Encoder:
    """The encoder that was given; if none was, the identity for vectors."""
    return VectorEncoder(obs_dim) if encoder is None else cast("Encoder", encoder)


class NetworkOptions(TypedDict, total=False):
    """The options of every network: widths of hidden layers, encoder, kind of perceptron, and options of that."""

    hidden_sizes: Required[Sequence[int]]
    encoder: nn.Module | None
    network: Callable[..., Perceptron]
    init: Init
    norm: Norm
    activation: ActivationFunction


class DropoutOptions(NetworkOptions, total=False):
    """The options of networks with dropout."""

    dropout: float


class Network(nn.Module):
    """A perceptron behind an encoder. `beside` is the number of its inputs beside the features, such as actions."""

    def __init__(
        self,
        obs_dim: int,
        output_size: int,
        *,
        hidden_sizes: Sequence[int],
        beside: int = 0,
        encoder: nn.Module | None = None,
        network: Callable[..., Perceptron] = MLP,
        **options: Any,
    ) -> None:
        super().__init__()
        self.encoder = encoder_for(obs_dim, encoder)
        self.mlp = network(self.encoder.output_size + beside, hidden_sizes, output_size, **options)

    def only_valid(self, values: Tensor, obs: Tensor) -> Tensor:
        """Values (..., B, choices) with minus infinity for choices that the mask in the observations excludes.

        So no maximum, no softmax and no gradient ever sees them. Without a mask, all choices are possible. So they are
        under a mask that excludes every one of them, as it may where a task has ended: what a termination takes out of
        a target must be a number.
        """
        if not isinstance(self.encoder, BehindMask):
            return values
        excluded = obs[..., : self.encoder.choices] == 0
        return values.masked_fill(excluded & ~excluded.all(-1, keepdim=True), -math.inf)
