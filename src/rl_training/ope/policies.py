"""Policies and a log: their action probabilities, samples of them, what is backed, and values during training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.acting import Policy
from rl_training.core.errors import ConfigError
from rl_training.core.seeds import forked
from rl_training.core.spaces import DiscreteActions
from rl_training.models import Novelty, fit_novelty, novelty_split
from rl_training.ope.fqe import (
    Actions,
    EvaluationLog,
    FitOptions,
    ValueFitter,
    discount_options,
    in_chunks,
    policy_inputs,
)

DRAWS = 10
"""Actions that are drawn for a mean over a policy's continuous actions."""

ROWS = 4096
"""Rows whose distance from the log is measured at a time."""

LogProbs = Callable[[NDArray[Any], NDArray[Any]], Any]


@dataclass(frozen=True, eq=False)
class Likelihood:
    """The action probabilities of a policy."""

    log_probs: NDArray[np.float64]
    """Of the logged actions, one per row; densities in [-1, 1] where actions are continuous."""
    inputs: Actions
    """From observations to probabilities of discrete actions, or to drawn actions."""
    draws: int = 1
    """Calls per observation for a mean over actions: one where the answer is a distribution."""
    is_drawn: bool = False
    """True if the policy draws actions where its deterministic form takes the likeliest one: another policy."""
    forbidden: float | None = None
    """Mean probability of masked actions; None without masks."""
    bandwidth: float | None = None
    """Half the width of the noise that was added to a deterministic policy, with actions in [-1, 1]."""


def likelihood(policy: Any, log: EvaluationLog, name: str) -> Likelihood | None:
    """How likely a policy's actions are; None where it has no density, as deterministic continuous actions.

    A method `log_probs(obs, actions)` of the policy is used if there is one; `predict(obs, deterministic=False)` then
    draws. Any other policy with discrete actions gives probabilities of all actions, or one action for certain.
    """
    own: LogProbs | None = getattr(policy, "log_probs", None)
    if isinstance(log.spaces.action, DiscreteActions):
        return _of_discrete(policy, own, log, name)
    return None if own is None else _of_densities(policy, own, log, name)


def _of_discrete(policy: Any, own: LogProbs | None, log: EvaluationLog, name: str) -> Likelihood:
    data, inputs = log.dataset, policy_inputs(policy, log, name)
    has_own = own is not None and all(each is not None for each in _each_log_probs(own, log, data.obs[:1]))
    if own is not None and has_own:
        inputs = partial(_all_probabilities, own, log, name)
    probabilities = in_chunks(inputs, data.obs).double().numpy(force=True)
    is_drawn = has_own and not bool(np.isin(probabilities, (0.0, 1.0)).all())
    taken = probabilities[np.arange(len(data)), data.actions.numpy(force=True)]
    forbidden = None
    if "valid_actions" in data.fields:
        is_valid = data.fields["valid_actions"].numpy(force=True) > 0
        forbidden = float((probabilities * ~is_valid).sum(1).mean())
    with np.errstate(divide="ignore"):
        return Likelihood(np.log(taken), inputs, is_drawn=is_drawn, forbidden=forbidden)


def _each_log_probs(own: LogProbs, log: EvaluationLog, obs: Tensor) -> list[Any]:
    """The policy's answers about one discrete action after the other."""
    space, rows = log.spaces.action, obs.numpy(force=True)
    actions = [space.decode(torch.full((len(obs),), number)).numpy() for number in range(space.size)]
    return [own(rows, each) for each in actions]


def _all_probabilities(own: LogProbs, log: EvaluationLog, name: str, obs: Tensor) -> Tensor:
    """Probabilities (B, actions) of discrete actions."""
    found = _each_log_probs(own, log, obs)
    if any(each is None for each in found):
        raise ConfigError(f"{name} gives log_probs for some observations only")
    return torch.from_numpy(np.exp(np.stack([_checked(each, len(obs), name) for each in found], axis=1))).float()


def _of_densities(policy: Any, own: LogProbs, log: EvaluationLog, name: str) -> Likelihood | None:
    data, space = log.dataset, log.spaces.action
    found = own(data.obs.numpy(force=True), space.decode(data.actions).numpy(force=True))
    if found is None:
        return None

    def draw(obs: Tensor) -> Tensor:
        drawn = np.asarray(policy.predict(obs.numpy(force=True), deterministic=False), dtype=np.float32)
        return space.encode(torch.from_numpy(drawn))

    return Likelihood(_checked(found, len(data), name), draw, DRAWS, is_drawn=True)


def _checked(log_probs: Any, rows: int, name: str) -> NDArray[np.float64]:
    found = np.asarray(log_probs, dtype=np.float64)
    if found.shape != (rows,) or np.isnan(found).any() or np.isposinf(found).any():
        raise ConfigError(f"{name}: log_probs must give one number per row, finite or minus infinity, for {rows} rows")
    return found


def novelty_of_log(log: EvaluationLog, *, seed: int = 0) -> tuple[Novelty, NDArray[np.int64]]:
    """The distance from a log, and the numbers of the episodes that were held out to calibrate it."""
    data, held_out = log.dataset, novelty_split(log.episodes, seed=seed)
    count = log.spaces.action_dim if data.is_discrete else 0
    return fit_novelty(data.obs, data.actions, log.episodes, held_out=held_out, num_actions=count, seed=seed), held_out


class Support:
    """How much of what a policy does is backed by the log.

    Where states repeat, a discrete action is backed if it was logged in that state. Elsewhere, an action is backed if
    it is not farther from all logged rows than rows of held-out episodes are.
    """

    novelty: Novelty | None = None
    missing: float | None = None
    """Where states repeat, the share of the behaviour policy's own actions that a log of this size lacks; else None."""

    def __init__(self, log: EvaluationLog, *, seed: int = 0) -> None:
        self.log = log
        if log.states is not None:
            self._count_pairs(log.states)
        elif len(log.bounds) > 1:
            self.novelty, _ = novelty_of_log(log, seed=seed)

    def _count_pairs(self, states: NDArray[np.int64]) -> None:
        """Find out which actions were logged in which state.

        The rows whose pair of state and action no other episode has are as many as the log would lack if it were one
        episode shorter. That is Good and Turing's estimate of the share that it lacks.
        """
        count, actions = int(states.max()) + 1, self.log.spaces.action_dim
        pairs = states * actions + self.log.dataset.actions.numpy(force=True)
        by_episode = np.unique(np.stack([pairs, self.log.episodes.numpy()]), axis=1)
        episodes = np.bincount(by_episode[0], minlength=count * actions)
        self.unlogged = torch.from_numpy((episodes == 0).reshape(count, actions)[states]).float()
        self.missing = float((episodes[pairs] == 1).mean())

    def novel_share(self, policy: Actions) -> float:
        """The share of a policy's actions, for all logged observations, that the log does not back."""
        obs = self.log.dataset.obs
        actions = in_chunks(policy, obs)
        if self.log.dataset.is_discrete:
            return float((self._unbacked(obs) * actions).sum(1).mean())
        return 0.0 if self.novelty is None else float(self._is_far(obs, actions).mean())

    def _unbacked(self, obs: Tensor) -> Tensor:
        """1 for each discrete action (rows, actions) that the log does not back; an invalid one never is."""
        count, mask = self.log.spaces.action_dim, self.log.spaces.mask_of(obs)
        if self.missing is not None:
            unbacked = self.unlogged
        elif self.novelty is not None:
            unbacked = torch.stack([self._is_far(obs, torch.full((len(obs),), each)) for each in range(count)], dim=1)
        else:
            unbacked = torch.zeros(len(obs), count)
        return unbacked if mask is None else torch.maximum(unbacked, 1 - mask)

    def _is_far(self, obs: Tensor, actions: Tensor) -> Tensor:
        assert self.novelty is not None  # noqa: S101 - for the type checker
        parts = zip(torch.split(obs, ROWS), torch.split(actions, ROWS), strict=True)
        return torch.cat([(self.novelty(*part) > 1).float() for part in parts])


VALUE = "fqe_value"
"""The metric: a discounted return in the units of logged rewards."""

KAPPA = 3.0


class PolicyValue:
    """A small FQE, one network and few updates, at every evaluation of a run.

    The logged behaviour is fitted too, once. The value is the logged mean plus the difference of both fits, so errors
    that they share cancel. All fits have the same seed, so evaluations differ by the policy alone.
    """

    def __init__(self, log: EvaluationLog) -> None:
        self.log = log
        self.options = FitOptions(**discount_options(log.dataset), members=0, kappa=KAPPA)

    @cached_property
    def _reference(self) -> tuple[ValueFitter, float]:
        """The fitter, and the logged mean minus its estimate of the logged behaviour."""
        fitter = ValueFitter(self.log, self.options)
        estimated = float(fitter.fit_behavior().values[0])
        return fitter, float(fitter.mean_values(fitter.logged_returns())[0]) - estimated

    def measure(self, policy: Policy) -> dict[str, float]:
        """The value of the present policy; the random generators of the run are not used."""
        device = policy.obs_mean.device
        act = policy_inputs(lambda obs: policy.act(torch.from_numpy(obs).to(device)).numpy(force=True), self.log, "it")
        with forked(self.options.seed, device):
            fitter, missing = self._reference
            return {VALUE: float(fitter.fit_policy(act).values[0]) + missing}
