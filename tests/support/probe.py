"""An environment that tells where its observations come from, so that a test knows every transition there can be."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

LENGTHS = (3, 5, 4, 1, 7)
"""Steps in an episode of environments 0, 1, 2 and so on."""


class Probe(gym.Env[Any, Any]):
    """Observes the number of the environment, of its episode, and of the step; its state cannot be saved.

    The seed is the number. Episodes terminate, are cut by a time limit, or both, in turn; every second one ends in
    success. Observations of an episode are written into one array, over each other.
    """

    def __init__(self, lengths: Sequence[int] = LENGTHS) -> None:
        self.observation_space = Box(-np.inf, np.inf, (3,), np.float32)
        self.action_space = Box(-1.0, 1.0, (1,), np.float32)
        self.lengths = lengths
        self.number = self.episode = self.time = 0
        self.calls: list[str | float] = []
        """What was done to the environment: resets, and actions."""
        # Two arrays in turn: Gymnasium hands on a last observation without copying it before the reset.
        self.arrays = np.zeros((2, 3), dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.number, self.episode = (self.number, self.episode + 1) if seed is None else (seed, 0)
        self.time = 0
        self.calls.append("reset")
        return self._observe(), {"is_success": False}

    def step(self, action: NDArray[Any]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        length = self.lengths[self.number % len(self.lengths)]
        if self.time == length:
            raise RuntimeError("stepped after the end of the episode")
        before = self._observe().copy()
        self.time += 1
        self.calls.append(float(action[0]))
        over, kind = self.time == length, (self.number + self.episode) % 3
        success = over and self.episode % 2 == 0
        return self._observe(), reward(before, action), over and kind != 1, over and kind != 0, {"is_success": success}

    def _observe(self) -> NDArray[np.float32]:
        array: NDArray[np.float32] = self.arrays[self.episode % 2]
        array[:] = self.number, self.episode, self.time
        return array


class SavedProbe(Probe):
    """One whose state can be saved."""

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number, "episode": self.episode, "time": self.time}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number, self.episode, self.time = state["number"], state["episode"], state["time"]


# Gymnasium's own checks would warn of observations that are written over each other, which is the point.
for _kind in (Probe, SavedProbe):
    gym.register(f"{_kind.__name__}-v0", entry_point=f"probe:{_kind.__name__}", disable_env_checker=True)


def reward(obs: NDArray[Any], action: NDArray[Any]) -> float:
    """Different for all steps; a float32 holds it exactly if it holds the action to three digits after the point."""
    number, episode, time = obs
    return float(1000 * number + 10 * episode + time + action[0])


def policy(obs: NDArray[Any]) -> NDArray[np.float32]:
    """An action in [-1, 1) that depends on the observation alone, in eighths, which are exact."""
    actions: NDArray[np.float32] = (obs @ np.array([[3], [5], [7]], dtype=np.float32) % 16 / 8 - 1).astype(np.float32)
    return actions


def episode(number: int, which: int, *, lengths: Sequence[int] = LENGTHS) -> list[tuple[Any, ...]]:
    """An episode under `policy`, without any vector environment: obs, action, reward, next obs, ends of each step."""
    env = Probe(lengths)
    obs = env.reset(seed=number)[0].copy()
    env.episode = which
    obs[1] = which
    rows: list[tuple[Any, ...]] = []
    over = False
    while not over:
        action = policy(obs[None])[0]
        following, value, terminated, truncated, _ = env.step(action)
        rows.append((*obs, *action, value, *following, terminated, truncated and not terminated))
        obs, over = following.copy(), terminated or truncated
    return rows
