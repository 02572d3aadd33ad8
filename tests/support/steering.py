"""A task whose values are easy to find by running it: keep a point near 0, by small steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from numpy.typing import NDArray

Array = NDArray[Any]
Act = Callable[[Array], Array]

STEPS = 25
QUICK: dict[str, Any] = {"gamma": 0.9, "tau": 0.2, "members": 6, "hidden_sizes": (32,), "learning_rate": 3e-3}
QUICK["split"] = "held-out"
"""Options of a fit of a second; the log did not train the policies."""


def towards(obs: Array) -> Array:
    """The good policy, in native units."""
    return np.where(obs > 0, -2.0, 2.0)


def away(obs: Array) -> Array:
    """The bad policy: to 0.8 on the side where the point is."""
    actions: Array = np.clip(10 * (np.where(obs > 0, 0.8, -0.8) - obs), -2, 2)
    return actions


def rest(obs: Array) -> Array:
    """As good as random steps, nearly."""
    return np.zeros_like(obs)


def steering_log(episodes: int = 40, *, seed: int = 0) -> dict[str, Any]:
    """Episodes of random steps in [-2, 2], cut after 25 of them."""
    rng = np.random.default_rng(seed)
    position = rng.uniform(-1, 1, (episodes, 1))
    rows = []
    for step in range(STEPS):
        action = rng.uniform(-2, 2, (episodes, 1))
        moved = _move(position, action)
        rows.append((position, action, _reward(position), moved, np.full(episodes, step == STEPS - 1)))
        position = moved
    names = ("observations", "actions", "rewards", "next_observations", "timeouts")
    columns = (np.stack(column, axis=1) for column in zip(*rows, strict=True))
    log = {name: column.reshape(-1, *column.shape[2:]) for name, column in zip(names, columns, strict=True)}
    floats = {name: value.astype(np.float32) for name, value in log.items() if name != "timeouts"}
    return {**floats, "timeouts": log["timeouts"], "terminals": np.zeros(len(log["timeouts"]), dtype=bool)}


def true_value(act: Act, log: dict[str, Any], *, gamma: float = 0.9) -> float:
    """The discounted return of a policy from the logged first states, by running it."""
    position, total = log["observations"][::STEPS].astype(np.float64), 0.0
    for step in range(150):
        total += gamma**step * float(_reward(position).mean())
        position = _move(position, act(position))
    return total


def _move(position: Array, action: Array) -> Array:
    return np.clip(position + 0.1 * action, -1, 1)


def _reward(position: Array) -> Array:
    reward: Array = -np.square(position[:, 0])
    return reward


class Steering(gym.Env[Any, Any]):
    """The task as an environment, `steering:Steering-v0`."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (1,), np.float32)
        self.action_space = Box(-2.0, 2.0, (1,), np.float32)
        self.position = np.zeros((1, 1))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(-1, 1, (1, 1))
        return self.position[0].astype(np.float32), {}

    def step(self, action: Array) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        reward = float(_reward(self.position)[0])
        self.position = _move(self.position, action[None])
        return self.position[0].astype(np.float32), reward, False, False, {}


gym.register("Steering-v0", entry_point="steering:Steering", max_episode_steps=STEPS, disable_env_checker=True)
