"""One trajectory as tensors, and when rows seem to belong to none."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

SHUFFLED = 0.9
"""Share of rows that end an episode without termination from which they seem shuffled."""
SHUFFLED_HINT = "the rows seem shuffled; give next_actions as a field, or rows in episode order"


@dataclass(frozen=True)
class Episode:
    """One trajectory of T steps: T + 1 observations, and T of everything else."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    terminations: Tensor
    truncations: Tensor
    achieved_goals: Tensor | None = None
    """What was achieved after each step, in a task with goals."""

    def __len__(self) -> int:
        return len(self.rewards)
