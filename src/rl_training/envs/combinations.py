"""Environments whose actions are several choices at once."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Discrete, MultiDiscrete
from numpy.typing import NDArray

from rl_training.core.action_spaces import split_choices

MOST_COMBINATIONS = 10_000
"""Networks have an output for every combination."""


class Combined(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with MultiDiscrete actions, whose combinations are numbered as single choices."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space: Any = env.action_space
        self.choice_parts = part_sizes(space)
        self.first_choices: NDArray[Any] = space.start
        self.action_space: Any = Discrete(math.prod(self.choice_parts))

    def step(self, action: Any) -> Any:
        """Observation, reward, the two ends, and further facts."""
        return self.env.step(split_choices(np.asarray(action), self.choice_parts) + self.first_choices)


def part_sizes(space: gym.Space[Any]) -> tuple[int, ...]:
    """How many choices each part of an action has; none where actions have no parts."""
    return tuple(map(int, space.nvec)) if isinstance(space, MultiDiscrete) else ()


def refusal(space: MultiDiscrete) -> str | None:
    """What is wrong with a space of several choices at once, if anything is."""
    if space.nvec.ndim != 1:
        return "the parts of a MultiDiscrete action must be a vector"
    count = math.prod(part_sizes(space))
    if count > MOST_COMBINATIONS:
        return f"there are {count:,} combinations, and each is a choice of its own: at most {MOST_COMBINATIONS:,}"
    return None


def combined_mask(mask: NDArray[np.float32], parts: tuple[int, ...]) -> NDArray[np.float32]:
    """Which combinations are possible, by masks of the parts that stand one after the other."""
    found = np.ones((), dtype=np.float32)
    for part in np.split(mask, np.cumsum(parts)[:-1]):
        found = np.multiply.outer(found, part)
    return found.ravel()
