"""Rewards: how they are transformed, and the returns and advantages made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.batches import Batch
from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.options import option, options

RewardPreset = Literal["sign_clip", "clip_1", "sparse_goal_zero_one"]

_PRESETS: dict[str, dict[str, Any]] = {
    "sign_clip": {"sign": True},
    "clip_1": {"clip_min": -1.0, "clip_max": 1.0},
    "sparse_goal_zero_one": {"shift": 1.0, "clip_min": 0.0, "clip_max": 1.0},
}


@options
class RewardTransformConfig:
    """A transform of rewards, in this order: times scale, plus shift, sign, clip.

    A preset fills the fields it needs; a field given beside it overrides the preset's value or composes with it.
    """

    preset: RewardPreset | None = option(None, "named transform to start from")
    scale: float | None = option(None, "factor on the reward; default 1")
    shift: float | None = option(None, "added after scaling; default 0")
    clip_min: float | None = option(None, "lower bound after scale and shift")
    clip_max: float | None = option(None, "upper bound after scale and shift")

    def __post_init__(self) -> None:
        low, high = self._resolved["clip_min"], self._resolved["clip_max"]
        if low is not None and high is not None and low > high:
            raise ConfigError(f"clip_min must be <= clip_max, got {low} and {high}")

    @cached_property
    def _resolved(self) -> dict[str, Any]:
        given = {key: value for key, value in asdict(self).items() if key != "preset" and value is not None}
        plain = {"scale": 1.0, "shift": 0.0, "sign": False, "clip_min": None, "clip_max": None}
        return plain | _PRESETS.get(self.preset or "", {}) | given

    def resolve(self) -> dict[str, Any]:
        """Every field with its final value: scale, shift, sign, clip_min, clip_max."""
        return dict(self._resolved)

    def apply(self, rewards: Tensor) -> Tensor:
        """A tensor of rewards, transformed."""
        how = self._resolved
        rewards = rewards * how["scale"] + how["shift"]
        rewards = rewards.sign() if how["sign"] else rewards
        low, high = how["clip_min"], how["clip_max"]
        return rewards if low is None and high is None else rewards.clamp(low, high)


CHUNK = 8192
"""Rows whose values are computed at a time."""

Values = Callable[[Tensor], Tensor]
"""From observations to their values."""


def episode_bounds(ends: NDArray[np.bool_]) -> NDArray[np.int64]:
    """First row and row after the last of each episode, (episodes, 2), from flags that are true on last rows."""
    stops = np.flatnonzero(ends) + 1
    return np.stack([np.append(0, stops[:-1]), stops], axis=1)


def returns_to_go(
    rewards: Tensor, ends: Tensor, *, gamma: float, tails: Tensor | None = None, failure_reward: float | None = None
) -> Tensor:
    """The discounted sum of rewards from each row to its episode's end, for rows in episode order.

    `ends` is true on last rows, the last of all among them. `tails` are rewards that came after these, NaN where there
    is none. An episode all of whose rewards equal `failure_reward` counts as if it continued like that for ever.
    """
    returns = backward_recursion(rewards, gamma, ends, None if tails is None else gamma * tails.nan_to_num())
    if failure_reward is None:
        return returns
    if gamma >= 1:
        raise DatasetError("failure_reward needs gamma < 1: the return of an endless failure is infinite")
    other = rewards != failure_reward
    if tails is not None:
        other |= ~tails.isnan() & (tails != failure_reward)
    others = np.append(0, np.cumsum(other.numpy(force=True)))
    starts, stops = episode_bounds(ends.numpy(force=True)).T
    failed = torch.from_numpy(np.repeat(others[stops] == others[starts], stops - starts)).to(rewards.device)
    return torch.where(failed, failure_reward / (1 - gamma), returns)


@torch.no_grad()
def lambda_returns(rows: Batch, ends: Tensor, values: Values, *, gamma: float, td_lambda: float) -> Batch:
    """`lambda_returns` and `advantages` of rows in the order of their episodes, whose last rows are at `ends`.

    R_t = r_t + gamma * ((1 - td_lambda) * V(s_{t+1}) + td_lambda * R_{t+1}) within an episode; its last row has
    r + gamma * V(s') where the episode was cut and r alone where the task terminated. Advantages are R - V(s): those
    of generalised advantage estimation.
    """
    state_values = _evaluate(values, rows["obs"])
    final_values = _evaluate(values, rows["next_obs"][ends])
    return generalized_advantages(rows, ends, state_values, final_values, gamma=gamma, td_lambda=td_lambda)


def generalized_advantages(
    rows: Batch, ends: Tensor, state_values: Tensor, final_values: Tensor, *, gamma: float, td_lambda: float
) -> Batch:
    """As `lambda_returns`, where the values of all rows are known, and of what came after the rows at `ends`."""
    next_values = state_values.roll(-1)
    next_values[ends] = final_values
    next_values *= 1 - rows["dones"]
    continues = torch.ones_like(state_values)
    continues[ends] = 0
    terms = rows["rewards"] + gamma * (1 - td_lambda * continues) * next_values
    returns = backward_recursion(terms, gamma * td_lambda, continues == 0)
    return {"lambda_returns": returns, "advantages": returns - state_values}


def _evaluate(values: Values, obs: Tensor) -> Tensor:
    return torch.cat([values(chunk) for chunk in torch.split(obs, CHUNK)])


def backward_recursion(terms: Tensor, factor: float, ends: Tensor, more: Tensor | None = None) -> Tensor:
    """sums[t] = terms[t] + more[t] + factor * sums[t + 1], from the last row to the first, starting anew at each end.

    Computed in double precision outside of torch, since not every device has it.
    """
    values = terms.numpy(force=True).astype(np.float64)
    if more is not None:
        values += more.numpy(force=True)
    sums, running = [], 0.0
    for value, end in zip(reversed(values.tolist()), reversed(ends.tolist()), strict=True):
        running = value if end else value + factor * running
        sums.append(running)
    return torch.tensor(sums[::-1], dtype=terms.dtype, device=terms.device)
