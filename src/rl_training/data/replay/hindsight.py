"""Hindsight experience replay: part of each batch gets goals that its episodes reached later."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.batches import Batch
from rl_training.data.rows import Rows

Strategy = Literal["future", "final", "episode"]
GoalFunction = Callable[[NDArray[Any], NDArray[Any]], Any]
"""From goals achieved and goals desired, row by row, to rewards, or to whether the task has ended."""


@dataclass(frozen=True)
class Hindsight:
    """How goals are exchanged, both in rings and in logs.

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
        starts, stops = rows.bounds(numbers)
        low = {"future": numbers, "final": stops - 1, "episode": starts}[self.strategy]
        source = torch.minimum(low + ((stops - low) * place).long(), stops - 1)
        return is_chosen, rows.get("achieved_goals", source)[is_chosen]

    def outcomes(self, rows: Rows, window: Tensor, goals: Tensor) -> tuple[Tensor, Tensor | None]:
        """Raw rewards of windows (B, n) for one goal each, and terminations where they depend on the goal.

        The task computes them with NumPy, so both are on the CPU.
        """
        achieved = rows.get("achieved_goals", window)
        desired = goals[:, None].expand_as(achieved)
        pair = [values.reshape(-1, self.goal_dim).numpy(force=True) for values in (achieved, desired)]

        def compute(function: GoalFunction) -> Tensor:
            return torch.from_numpy(np.asarray(function(*pair), dtype=np.float32)).reshape(window.shape)

        ends = self.compute_terminated
        return compute(self.compute_reward), None if ends is None else compute(ends)

    def exchange(self, batch: Batch, is_chosen: Tensor, goals: Tensor) -> None:
        """Write the new goals into the observations of a batch."""
        for name in ("obs", "next_obs"):
            batch[name][is_chosen, -self.goal_dim :] = goals
