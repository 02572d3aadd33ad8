"""A check of a policy before its run begins, so that a user's own model does not fail at the first evaluation."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rl_training.acting import SCALED_REWARDS, Policy
from rl_training.algorithms import Algorithm
from rl_training.core.errors import ConfigError
from rl_training.core.seeds import forked
from rl_training.core.user_code import failure
from rl_training.models import Model

ROWS = 2
"""Observations that the model is called with."""


@torch.no_grad()
def check_model(policy: Policy, algorithm: Algorithm, *, acts: bool) -> None:
    """Call the model as a run will: act, explore if the run acts, and values of actions.

    The error names what it cannot do. No random numbers are drawn from the run's generators.
    """
    model, device = policy.model, policy.obs_mean.device
    column = policy.spaces.action.column
    obs = torch.zeros(ROWS, *policy.spaces.obs_column.shape, device=device)
    # A mask, if there is one, allows all actions.
    obs[:, : policy.spaces.mask_dim] = 1
    _check_actor(model, algorithm)
    with forked(0, device):
        actions = obs
        for deterministic in (False, True):
            actions = _answer(model, "act", obs, deterministic=deterministic)
            _check_shape(model, "act", actions, column.shape)
        if acts:
            _check_explore(model, algorithm, _answer(model, "explore", obs), column.shape)
        if hasattr(model, "critic"):
            _check_shape(model, "values", _answer(model, "values", obs, actions), ())


def _check_actor(model: Model, algorithm: Algorithm) -> None:
    if type(model).act is not Model.act:
        return
    owner = f"{type(model).__name__}, the model of {type(algorithm).__name__},"
    if not hasattr(model, "actor"):
        raise ConfigError(f"{owner} cannot act: it needs a network called actor or a method act(obs, *, deterministic)")
    if not callable(getattr(model.actor, "act", None)):
        kind = type(model.actor).__name__
        raise ConfigError(f"{owner} cannot act: its actor, {kind}, needs a method act(obs, *, deterministic)")


def _answer(model: Model, method: str, *arguments: Tensor, **options: bool) -> Any:
    shapes = [str(tuple(argument.shape)) for argument in arguments]
    call = ", ".join([*shapes, *(f"{name}={value}" for name, value in options.items())])
    try:
        return getattr(model, method)(*arguments, **options)
    except Exception as error:
        file = inspect.getsourcefile(type(model))
        raise ConfigError(f"{type(model).__name__}.{method}({call}){failure(error, file)}") from error


def _check_shape(model: Model, method: str, found: Any, shape: Sequence[int]) -> None:
    expected = (ROWS, *shape)
    got = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
    if got != expected:
        raise ConfigError(f"{type(model).__name__}.{method} gives {got} for {ROWS} observations, expected {expected}")


def _check_explore(model: Model, algorithm: Algorithm, found: Any, shape: Sequence[int]) -> None:
    """Actions, and the columns that the algorithm declares."""
    owner, declared = f"{type(model).__name__}.explore", algorithm.extra_columns().keys() - {SCALED_REWARDS}
    if not (isinstance(found, tuple) and len(found) == 2 and isinstance(found[1], dict)):
        raise ConfigError(f"{owner} must give actions and a mapping of columns, got {type(found).__name__}")
    _check_shape(model, "explore", found[0], shape)
    if found[1].keys() != declared:
        names = [", ".join(sorted(each)) or "none" for each in (set(found[1]), declared)]
        raise ConfigError(f"{owner} gives the columns {names[0]}, extra_columns of the algorithm names {names[1]}")
