"""Rewards summed over several steps, where an algorithm is to look further than one."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rl_training.data.offline_dataset import TransitionDataset


def sum_rewards(rewards: Tensor, dones: Tensor, follows: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Discounted sums over windows (B, n), what the value after each is worth, and the place of its last row.

    `follows` is true where a row belongs to the episode of the first. A window ends with its episode, and with the
    first row of `dones`; the row on which it ends counts.
    """
    counts = follows & (dones.cumsum(1) <= dones)
    lengths = counts.sum(1)
    weights = gamma ** torch.arange(rewards.shape[1], dtype=rewards.dtype, device=rewards.device)
    return (rewards * weights * counts).sum(1), weights.new_tensor(gamma) ** lengths, lengths - 1


def with_n_step(dataset: TransitionDataset, n_step: int, gamma: float) -> TransitionDataset:
    """The dataset whose rows reach over `n_step` steps: rewards are sums, what comes next comes after the last.

    `discounts` says what the value after a row's last step is worth; returns-to-go stay those of the first. Since rows
    overlap, they are no longer in episode order.
    """
    bounds = dataset.episode_bounds()
    lengths = bounds[:, 1] - bounds[:, 0]
    rows = torch.arange(len(dataset), device=dataset.device)
    stops = bounds[:, 1].repeat_interleave(lengths)
    window = rows[:, None] + torch.arange(n_step, device=dataset.device)
    follows = window < stops[:, None]
    window = torch.where(follows, window, rows[:, None])
    data = dataset.fields
    rewards, discounts, last = sum_rewards(data["rewards"][window], data["dones"][window], follows, gamma)
    end = rows + last
    after = {name: data[name][end] for name in ("next_obs", "next_actions", "dones") if name in data}
    mask = dataset.next_action_mask
    stepped = dataset.with_fields(rewards=rewards, discounts=discounts, **after)
    return replace(stepped, next_action_mask=None if mask is None else mask[end], is_ordered=False)
