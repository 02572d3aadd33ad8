"""A task in which only some actions are valid, and others fail: for tests of masks."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from numpy.typing import NDArray

GATES = 6
"""Gates to pass; gate number k opens by action k % 3."""


class Gates(gym.Env[NDArray[np.float32], int]):
    """A walk through gates. Action 3 waits, and one of the others opens the next gate; all else is impossible.

    Its `info` says what is possible.
    """

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (2,), dtype=np.float32)
        self.action_space: Any = Discrete(4)
        self.gate = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.gate = int(self.np_random.integers(3))
        return self._observe()

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.mask()[int(action)], f"action {action} at gate {self.gate}"
        self.gate += int(action) != 3
        is_over = self.gate >= GATES
        obs, info = self._observe()
        return obs, float(is_over) - 0.05, is_over, False, info

    def mask(self) -> NDArray[np.int8]:
        """What is possible at this gate."""
        return np.array([action in (self.gate % 3, 3) for action in range(4)], dtype=np.int8)

    def state_dict(self) -> dict[str, Any]:
        return {"gate": self.gate}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.gate = int(state["gate"])

    def _observe(self) -> tuple[NDArray[np.float32], dict[str, Any]]:
        obs = np.array([self.gate / GATES, self.np_random.uniform(-1, 1)], dtype=np.float32)
        return obs, self.info()

    def info(self) -> dict[str, Any]:
        return {"action_mask": self.mask()}


class SilentGates(Gates):
    """The same task, which says by a method what is possible."""

    def info(self) -> dict[str, Any]:
        return {}

    def action_masks(self) -> NDArray[np.bool_]:
        return self.mask().astype(bool)


class PairedGates(SilentGates):
    """The same task with two actions at once: whether to go, and which way. Masks of both stand side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = MultiDiscrete([2, 3])

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        goes, way = action
        assert way == self.gate % 3, f"way {way} at gate {self.gate}"
        return super().step(int(way) if goes else 3)

    def action_masks(self) -> NDArray[np.bool_]:
        return np.array([True, True, *(way == self.gate % 3 for way in range(3))])


class ForgetfulGates(Gates):
    """The same task, which says what is possible at the start only."""

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return (*super().step(action)[:4], {})


class MisnamedGates(Gates):
    """The same task, which calls a part of its observations as a mask is called here."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space: Any = Dict({"valid_actions": self.observation_space})


gym.register("Gates-v0", entry_point="gates:Gates", max_episode_steps=30)
gym.register("SilentGates-v0", entry_point="gates:SilentGates", max_episode_steps=30)
gym.register("PairedGates-v0", entry_point="gates:PairedGates", max_episode_steps=30)
