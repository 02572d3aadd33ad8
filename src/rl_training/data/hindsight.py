"""Hindsight experience replay: part of each batch gets goals that its episodes reached later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.rows import Rows
from rl_training.types import Batch

Strategy = Literal["future", "final", "episode"]
GoalFunction = Callable[[NDArray[Any], NDArray[Any]], Any]
"""From goals achieved and goals desired, row by row, to rewards, or to whether the task has ended."""


@dataclass(frozen=True)
class Hindsight:
    """How goals are exchanged, in rings and in logs alike.

    Observations end with the desired goal, and the column `achieved_goals` holds what was achieved after each row.
    `her_ratio` is the chance of a row to be relabelled. The new goal is what was achieved after a row drawn from the
    rest of the episode, its own step included (`future`), after the last row (`final`) or after any (`episode`).
    Rewards are computed anew, and where the task ends on success, terminations too.
    """

    goal_dim: int
    compute_reward: GoalFunction
    compute_terminated: GoalFunction | None = None
    her_ratio: float = 0.8
    strategy: Strategy = "future"

    def choose(self, rows: Rows, numbers: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Which rows are relabelled (B,), and the goals that these get."""
        chosen, place = (torch.rand(len(numbers), generator=generator).to(rows.device) for _ in range(2))
        is_chosen = chosen < self.her_ratio
        return is_chosen, self._goals(rows, numbers, place)[is_chosen]

    def _goals(self, rows: Rows, numbers: Tensor, place: Tensor) -> Tensor:
        """What the episode of each row achieved, at a `place` in [0, 1) of the rows that the strategy allows."""
        starts, stops = rows.bounds(numbers)
        if self.strategy == "final":
            source = stops - 1
        else:
            low = numbers if self.strategy == "future" else starts
            source = torch.minimum(low + ((stops - low) * place).long(), stops - 1)
        return rows.get("achieved_goals", source)

    def outcomes(self, rows: Rows, window: Tensor, goals: Tensor) -> tuple[Tensor, Tensor | None]:
        """Raw rewards of windows (B, n) for one goal each, and terminations where they depend on the goal."""
        achieved = rows.get("achieved_goals", window)
        desired = goals[:, None].expand_as(achieved)
        rewards = self._compute(self.compute_reward, achieved, desired)
        if self.compute_terminated is None:
            return rewards, None
        return rewards, self._compute(self.compute_terminated, achieved, desired)

    def _compute(self, function: GoalFunction, achieved: Tensor, desired: Tensor) -> Tensor:
        flat = (values.reshape(-1, self.goal_dim).numpy(force=True) for values in (achieved, desired))
        values = np.asarray(function(*flat), dtype=np.float32)
        return torch.from_numpy(values).reshape(achieved.shape[:-1]).to(achieved.device)

    def exchange(self, batch: Batch, is_chosen: Tensor, goals: Tensor) -> None:
        """Write the new goals into the observations of a batch."""
        for name in ("obs", "next_obs"):
            batch[name][is_chosen, -self.goal_dim :] = goals
