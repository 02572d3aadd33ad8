"""Encoders of the user's own, named by an import path, and what is asked of them."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rl_training.core.errors import ConfigError
from rl_training.core.user_code import class_path, failure, find_class

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
    """What is wrong with an encoder, found by a call with a batch of observations."""
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
