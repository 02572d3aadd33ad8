"""Rewards summed over several steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rl_training.core.batches import Batch
from rl_training.data.rows import Rows

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset


def sum_rewards(rewards: Tensor, dones: Tensor, follows: Tensor, gamma: float) -> tuple[Tensor, Tensor, Tensor]:
    """Discounted sums over windows (B, n), the discount of the value after each, and the place of its last row.

    `follows` is true where a row belongs to the episode of the first. A window ends with its episode, and with the
    first row of `dones`; the row on which it ends counts.
    """
    counts = follows & (dones.cumsum(1) <= dones)
    lengths = counts.sum(1)
    weights = gamma ** torch.arange(rewards.shape[1], dtype=rewards.dtype, device=rewards.device)
    return (rewards * weights * counts).sum(1), weights.new_tensor(gamma) ** lengths, lengths - 1


def sum_windows(
    rows: Rows, names: Sequence[str], window: Tensor, follows: Tensor, *, rewards: Tensor, dones: Tensor, gamma: float
) -> Batch:
    """The batch of windows (B, n): their first rows, the sums of their rewards, and what came after their last.

    `rewards` and `dones` (B, n) take the place of those that are stored.
    """
    sums, discounts, last = sum_rewards(rewards, dones, follows, gamma)
    end, final = (values.gather(1, last[:, None])[:, 0] for values in (window, dones))
    now = [name for name in names if not name.startswith("next_") and name not in ("rewards", "dones")]
    after = [name for name in names if name.startswith("next_")]
    batch = rows.take(now, window[:, 0]) | rows.take(after, end)
    return batch | {"rewards": sums, "dones": final, "discounts": discounts}


def with_n_step(dataset: TransitionDataset, n_step: int, gamma: float) -> TransitionDataset:
    """The dataset whose rows reach over `n_step` steps: rewards are sums, and the next row is that after the last.

    `discounts` is the factor on the value after a row's last step; returns-to-go stay those of the first. Since rows
    overlap, they are no longer in episode order.
    """
    rows = dataset.rows
    window, follows = rows.window(rows.numbers(), n_step)
    after = ("next_obs", "next_actions", "next_action_mask", "next_valid_actions")
    names = [name for name in after if name in rows.columns]
    rewards, dones = rows.get("rewards", window), rows.get("dones", window)
    stepped = sum_windows(rows, names, window, follows, rewards=rewards, dones=dones, gamma=gamma)
    mask = stepped.pop("next_action_mask", None)
    return replace(dataset.with_fields(**stepped), next_action_mask=mask, is_ordered=False)
