"""Policies as probabilities: how likely they would have taken the logged actions, and what they would draw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.errors import ConfigError
from rl_training.core.spaces import DiscreteActions
from rl_training.ope.fitting import EvaluationLog, in_chunks
from rl_training.selection.evaluation_data import as_inputs

DRAWS = 10
"""Actions that are drawn where the mean over a policy's continuous actions is needed."""

LogProbs = Callable[[NDArray[Any], NDArray[Any]], Any]


@dataclass(frozen=True, eq=False)
class Likelihood:
    """A policy as probabilities of its actions."""

    log_probs: NDArray[np.float64]
    """Of the logged actions, one per row; densities in [-1, 1] where actions are continuous."""
    inputs: Callable[[Tensor], Tensor]
    """From observations to actions as members of a fit see them: probabilities of choices, or drawn actions."""
    draws: int
    """How often an observation is to be asked for a mean over actions: once where it is answered by probabilities."""
    is_drawn: bool
    """Whether it draws actions where its deterministic form takes the likeliest one: that is another policy."""
    forbidden: float | None = None
    """The mean probability of choices that the log says were not allowed, where it does."""


def likelihood(policy: Any, log: EvaluationLog, name: str) -> Likelihood | None:
    """How likely a policy's actions are; None where it has no density, as deterministic continuous actions.

    A policy with a method `log_probs(obs, actions)` is asked by it, and draws by `predict(obs, deterministic=False)`.
    Another one with choices is what `estimate` takes: probabilities of all choices, or one choice for certain.
    """
    own: LogProbs | None = getattr(policy, "log_probs", None)
    if isinstance(log.spaces.action, DiscreteActions):
        return _of_choices(policy, own, log, name)
    return None if own is None else _of_densities(policy, own, log, name)


def _of_choices(policy: Any, own: LogProbs | None, log: EvaluationLog, name: str) -> Likelihood:
    data, inputs, is_drawn = log.dataset, as_inputs(policy, log, name), False
    if own is not None:
        asked = _all_choices(own, log, name)
        answer = asked(data.obs[:1])
        if answer is not None:
            inputs = lambda obs: _answered(asked(obs), name)  # noqa: E731 - one line of the same kind as above
            is_drawn = True
    probabilities = in_chunks(inputs, data.obs).double().numpy(force=True)
    is_drawn = is_drawn and not bool(np.isin(probabilities, (0.0, 1.0)).all())
    taken = probabilities[np.arange(len(data)), data.actions.numpy(force=True)]
    forbidden = None
    if "valid_actions" in data.fields:
        allowed = data.fields["valid_actions"].numpy(force=True) > 0
        forbidden = float((probabilities * ~allowed).sum(1).mean())
    with np.errstate(divide="ignore"):
        return Likelihood(np.log(taken), inputs, 1, is_drawn, forbidden)


def _all_choices(own: LogProbs, log: EvaluationLog, name: str) -> Callable[[Tensor], Tensor | None]:
    """The probabilities (B, choices) of a policy that is asked for one choice after the other."""
    space = log.spaces.action

    def ask(obs: Tensor) -> Tensor | None:
        rows = obs.numpy(force=True)
        choices = [space.decode(torch.full((len(obs),), number)).numpy() for number in range(space.size)]
        found = [own(rows, each) for each in choices]
        if any(each is None for each in found):
            return None
        return torch.from_numpy(np.exp(np.stack([_checked(each, len(obs), name) for each in found], axis=1))).float()

    return ask


def _of_densities(policy: Any, own: LogProbs, log: EvaluationLog, name: str) -> Likelihood | None:
    data, space = log.dataset, log.spaces.action
    native = space.decode(data.actions).numpy(force=True)
    found = own(data.obs.numpy(force=True), native)
    if found is None:
        return None

    def draw(obs: Tensor) -> Tensor:
        drawn = np.asarray(policy.predict(obs.numpy(force=True), deterministic=False), dtype=np.float32)
        return space.encode(torch.from_numpy(drawn))

    return Likelihood(_checked(found, len(data), name), draw, DRAWS, is_drawn=True)


def _answered(probabilities: Tensor | None, name: str) -> Tensor:
    if probabilities is None:
        raise ConfigError(f"{name} gives log_probs for some observations only")
    return probabilities


def _checked(log_probs: Any, rows: int, name: str) -> NDArray[np.float64]:
    found = np.asarray(log_probs, dtype=np.float64)
    if found.shape != (rows,) or np.isnan(found).any() or np.isposinf(found).any():
        raise ConfigError(f"{name}: log_probs must give one number per row, finite or minus infinity, for {rows} rows")
    return found
