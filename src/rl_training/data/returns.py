"""Returns of the rewards alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from rl_training.types import DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset


def returns_to_go(dataset: TransitionDataset, *, gamma: float, failure_reward: float | None = None) -> Tensor:
    """The discounted sum of rewards from each row to its episode's end, rewards of dropped last rows included.

    An episode all of whose rewards equal `failure_reward` counts as if it went on like that for ever.
    """
    tails = None if dataset.tail_rewards is None else gamma * dataset.tail_rewards.nan_to_num()
    returns = backward_recursion(dataset.rewards, gamma, dataset.episode_ends, tails)
    if failure_reward is not None:
        if gamma >= 1:
            raise DatasetError("failure_reward needs gamma < 1: the return of an endless failure is infinite")
        returns = torch.where(_rows_of_failures(dataset, failure_reward), failure_reward / (1 - gamma), returns)
    return returns


def _rows_of_failures(dataset: TransitionDataset, reward: float) -> Tensor:
    """True on the rows of episodes that have no other reward than this one."""
    other = dataset.rewards != reward
    if dataset.tail_rewards is not None:
        other |= ~dataset.tail_rewards.isnan() & (dataset.tail_rewards != reward)
    first, stop = dataset.episode_bounds().unbind(1)
    counts = torch.cat([other.new_zeros(1, dtype=torch.int64), other.long().cumsum(0)])
    return (counts[stop] == counts[first]).repeat_interleave(stop - first)


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
