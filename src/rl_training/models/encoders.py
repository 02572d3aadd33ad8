"""Encoders of observations: those of the package and those of users."""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, TypedDict, cast

import torch
from torch import Tensor, nn
from typing_extensions import Required

from rl_training.core.errors import ConfigError
from rl_training.core.user_code import class_path, failure, find_class
from rl_training.models.initializers import Init
from rl_training.models.mlp import MLP, ActivationFunction, Norm, Perceptron


class Encoder(Protocol):
    """The interface of the module in front of a network."""

    output_size: int

    def __call__(self, obs: Tensor) -> Tensor:
        """Features (..., output_size)."""


class VectorEncoder(nn.Identity):
    """The identity, for observations (..., output_size); it has no parameters."""

    def __init__(self, output_size: int) -> None:
        super().__init__()
        self.output_size = output_size


class SkipMask(nn.Module):
    """An encoder of observations that begin with an action mask, which it hides from the encoder behind it."""

    def __init__(self, encoder: Encoder, mask_dim: int) -> None:
        super().__init__()
        self.encoder, self.mask_dim, self.output_size = encoder, mask_dim, encoder.output_size

    def forward(self, obs: Tensor) -> Tensor:
        """Features of the rest of the observation."""
        return self.encoder(obs[..., self.mask_dim :])


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

    def mask_invalid(self, values: Tensor, obs: Tensor) -> Tensor:
        """Values (..., B, actions) with minus infinity for actions that the mask in the observations excludes.

        So no maximum, no softmax and no gradient ever sees them. Without a mask, all actions are valid. So they are
        under a mask that excludes all of them, as it may where a task has ended: what a termination takes out of a
        target must be a number.
        """
        if not isinstance(self.encoder, SkipMask):
            return values
        excluded = obs[..., : self.encoder.mask_dim] == 0
        return values.masked_fill(excluded & ~excluded.all(-1, keepdim=True), -math.inf)


ROWS = 8
"""Observations in the batch that an encoder is tried on."""


def encoder_path(given: object) -> object:
    """The import path of an encoder that is given as a class or as such a path; anything else is returned as it is."""
    if isinstance(given, nn.Module):
        name = type(given).__name__
        raise ConfigError(f"encoder must be a class, got an object of {name}: pass {name}, and encoder_kwargs")
    if not isinstance(given, (str, type)):
        return given
    path = given if isinstance(given, str) else class_path(given, what="encoder")
    _find(path)
    return path


def _find(path: str) -> type[nn.Module]:
    cls = find_class(path, what="encoder")
    if not issubclass(cls, nn.Module):
        raise ConfigError(f"encoder {path} is not a subclass of torch.nn.Module")
    return cls


def make_encoder(path: str, obs_dim: int, kwargs: Mapping[str, Any]) -> nn.Module:
    """A new encoder for observations (B, obs_dim). One that cannot stand in front of a network is refused."""
    cls = _find(path)
    file = inspect.getsourcefile(cls)
    arguments = ", ".join([str(obs_dim), *(f"{name}={value!r}" for name, value in kwargs.items())])
    try:
        encoder = cls(obs_dim, **kwargs)
    except Exception as error:
        raise ConfigError(f"encoder {path}: {cls.__name__}({arguments}){failure(error, file)}") from None
    size = getattr(encoder, "output_size", None)
    if not isinstance(size, int) or size < 1:
        found = f", got {size!r}" if size is not None else ""
        raise ConfigError(f"encoder {path} needs an attribute output_size, the number of its features{found}")
    # The encoder that is used stays as it was made, and training draws the numbers that it would have drawn.
    with torch.random.fork_rng(devices=[]):
        try:
            problem = _problem(copy.deepcopy(encoder), obs_dim, size)
        except Exception as error:
            shape = f"observations ({ROWS}, {obs_dim})"
            raise ConfigError(f"encoder {path}: its call with {shape}{failure(error, file)}") from None
    if problem:
        raise ConfigError(f"encoder {path} {problem}")
    return encoder


def _problem(encoder: nn.Module, obs_dim: int, size: int) -> str | None:
    """The problem with an encoder, found by a call with a batch of observations; None if there is none."""
    given = torch.linspace(-1, 1, ROWS * obs_dim).reshape(ROWS, obs_dim)
    obs = given.clone()
    features = encoder(obs)
    shape = tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
    if shape != (ROWS, size):
        return f"gives {shape} for observations {tuple(obs.shape)}, expected {(ROWS, size)}: output_size is {size}"
    if features.dtype != obs.dtype:
        return f"gives {features.dtype} for observations of {obs.dtype}"
    if not torch.equal(obs, given):
        return "changes the observations that it is called with: other networks see them too"
    if not torch.equal(encoder.eval()(obs), encoder.train()(obs)):
        return "computes other features in training than in evaluation, as Dropout and BatchNorm do: use LayerNorm"
    trained = {name: value for name, value in encoder.named_parameters() if value.requires_grad}
    if trained:
        total = encoder(obs).sum()
        used = torch.autograd.grad(total, list(trained.values()), allow_unused=True) if total.requires_grad else ()
        unused = [
            name for name, gradient in zip(trained, used or [None] * len(trained), strict=True) if gradient is None
        ]
        if unused:
            return f"does not use its parameter {unused[0]!r}: remove it, or freeze it by requires_grad_(False)"
    return None
