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
from rl_training.models import Novelty, fit_novelty, novelty_split
from rl_training.ope.fqe import EvaluationLog, as_inputs, in_chunks

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


ROWS = 4096
"""Rows whose distance from the log is measured at a time."""


REPEATED = 0.5
"""The share of distinct observations up to which a log of choices is taken to have states that repeat."""


def novelty_of_log(log: EvaluationLog, *, seed: int = 0) -> tuple[Novelty, NDArray[np.int64]]:
    """The distance from a log, and the numbers of the episodes that were held out to calibrate it."""
    data, held_out = log.dataset, novelty_split(log.episodes, seed=seed)
    choices = log.spaces.action_dim if data.is_discrete else 0
    return fit_novelty(data.obs, data.actions, log.episodes, held_out=held_out, choices=choices, seed=seed), held_out


class Support:
    """How much of what a policy does is backed by the log.

    Where states of a log of choices repeat, an action is backed that was logged in that state. Elsewhere, an action is
    backed that is not farther from all logged rows than rows of held-out episodes are.
    """

    novelty: Novelty | None = None
    missing: float | None = None
    """Where states repeat, the share of the behaviour's own actions that a log of this size lacks; else None."""

    def __init__(self, log: EvaluationLog, *, seed: int = 0) -> None:
        self.log, data = log, log.dataset
        if data.is_discrete:
            states, numbers = np.unique(data.obs.numpy(force=True), axis=0, return_inverse=True)
            if len(states) <= REPEATED * len(data):
                self._count_pairs(numbers.reshape(-1), len(states))
        if self.missing is None and len(log.bounds) > 1:
            self.novelty, _ = novelty_of_log(log, seed=seed)

    def _count_pairs(self, numbers: NDArray[np.int64], states: int) -> None:
        """Which actions were logged in which state.

        The rows whose pair of state and action no other episode has are as many as the log would lack if it were one
        episode shorter. That is Good and Turing's estimate of the share that it lacks.
        """
        self.numbers, choices = numbers, self.log.spaces.action_dim
        pairs = numbers * choices + self.log.dataset.actions.numpy(force=True)
        by_episode = np.unique(np.stack([pairs, self.log.episodes.numpy()]), axis=1)
        episodes = np.bincount(by_episode[0], minlength=states * choices)
        self.logged = (episodes > 0).reshape(states, choices)
        self.missing = float((episodes[pairs] == 1).mean())

    def novel_share(self, actions: Tensor) -> float:
        """The share of a policy's actions, given for all logged observations, that the log does not back."""
        obs = self.log.dataset.obs
        if self.log.dataset.is_discrete:
            return float((self._unbacked_choices(obs) * actions).sum(1).mean())
        if self.novelty is None:
            return 0.0
        return float(torch.cat([self._is_far(*part) for part in _parts(obs, actions)]).mean())

    def _unbacked_choices(self, obs: Tensor) -> Tensor:
        """1 for each choice (rows, choices) that the log does not back; one that a mask excludes never is."""
        count, mask = self.log.spaces.action_dim, self.log.spaces.mask_of(obs)
        if self.missing is not None:
            unbacked = torch.from_numpy(~self.logged[self.numbers]).float()
        elif self.novelty is not None:
            taken = [torch.full((len(obs),), choice) for choice in range(count)]
            shares = [torch.cat([self._is_far(*part) for part in _parts(obs, choices)]) for choices in taken]
            unbacked = torch.stack(shares, dim=1)
        else:
            unbacked = torch.zeros(len(obs), count)
        return unbacked if mask is None else torch.maximum(unbacked, 1 - mask)

    def _is_far(self, obs: Tensor, actions: Tensor) -> Tensor:
        assert self.novelty is not None  # noqa: S101 - for the type checker
        novelty: Tensor = self.novelty(obs, actions)
        return (novelty > 1).float()


def _parts(obs: Tensor, actions: Tensor) -> list[tuple[Tensor, Tensor]]:
    return list(zip(torch.split(obs, ROWS), torch.split(actions, ROWS), strict=True))
