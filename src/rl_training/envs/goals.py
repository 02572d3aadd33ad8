"""Tasks with a goal in their observation: flattening, and a task that needs no further package."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

PARTS = ("observation", "desired_goal", "achieved_goal")
"""The keys of an observation with a goal, in the order in which they are flattened."""


class PointGoal(gym.Env[dict[str, NDArray[np.float32]], NDArray[np.float32]]):
    """A point in the square [-1, 1]^2 that has to come within 0.05 of a goal, by moves of at most 0.05 on each axis.

    Start and goal are uniform, the reward is 0 at the goal and -1 elsewhere, and nothing but the time limit ends it.
    """

    metadata = {"render_modes": []}
    reach = 0.05
    tolerance = 0.05

    def __init__(self) -> None:
        arena = Box(-1.0, 1.0, (2,), dtype=np.float32)
        self.observation_space: Any = Dict(dict.fromkeys(PARTS, arena))
        self.action_space = Box(-1.0, 1.0, (2,), dtype=np.float32)
        self.position = self.goal = np.zeros(2, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """A new start and a new goal."""
        super().reset(seed=seed)
        self.position, self.goal = self.np_random.uniform(-1, 1, (2, 2)).astype(np.float32)
        return self._observe(), {"is_success": self._is_success()}

    def step(self, action: NDArray[np.float32]) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Move the point."""
        move = self.reach * np.clip(action, -1, 1)
        self.position = np.clip(self.position + move, -1, 1).astype(np.float32)
        reward = float(self.compute_reward(self.position, self.goal, {}))
        return self._observe(), reward, False, False, {"is_success": self._is_success()}

    def compute_reward(self, achieved: NDArray[Any], desired: NDArray[Any], info: Any) -> NDArray[np.float32]:
        """0 where a goal is reached, else -1; one number per row."""
        distance: NDArray[Any] = np.linalg.norm(np.asarray(achieved) - np.asarray(desired), axis=-1)
        return np.where(distance > self.tolerance, np.float32(-1), np.float32(0))

    def state_dict(self) -> dict[str, Any]:
        """The state that a resumed run needs."""
        return {"position": self.position, "goal": self.goal}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that `state_dict` returned."""
        self.position, self.goal = (np.asarray(state[name], dtype=np.float32) for name in ("position", "goal"))

    def _observe(self) -> dict[str, NDArray[np.float32]]:
        place, goal = self.position, self.goal
        return {"observation": place.copy(), "desired_goal": goal.copy(), "achieved_goal": place.copy()}

    def _is_success(self) -> bool:
        return bool(self.compute_reward(self.position, self.goal, {}) == 0)


gym.register("PointGoal-v0", entry_point="rl_training.envs.goals:PointGoal", max_episode_steps=50)


class FlattenGoal(gym.ObservationWrapper[Any, Any, Any]):
    """Observation and desired goal as one vector; the goal achieved comes after them where it is asked for."""

    def __init__(self, env: gym.Env[Any, Any], *, with_achieved: bool = False) -> None:
        super().__init__(env)
        self.parts = PARTS if with_achieved else PARTS[:2]
        whole: Any = env.observation_space
        spaces = [whole[part] for part in self.parts]
        low, high = (np.concatenate([getattr(space, end).ravel() for space in spaces]) for end in ("low", "high"))
        self.observation_space = Box(low.astype(np.float32), high.astype(np.float32), dtype=np.float32)

    def observation(self, observation: Any) -> NDArray[np.float32]:
        """The parts, one after the other."""
        self.achieved_goal = np.ravel(observation["achieved_goal"]).astype(np.float32)
        return np.concatenate([np.ravel(observation[part]) for part in self.parts]).astype(np.float32)


def has_goal(env: gym.Env[Any, Any]) -> bool:
    """Whether observations are dictionaries of an observation, a goal desired and a goal achieved."""
    space = env.observation_space
    return isinstance(space, Dict) and set(PARTS) <= set(space.keys())


@dataclass(frozen=True)
class GoalTask:
    """A task for relabelling goals: the size of a goal, and functions of many goals at a time."""

    goal_dim: int
    compute_reward: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]
    compute_terminated: Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]] | None


def goal_task(env: gym.Env[Any, Any]) -> GoalTask:
    """The goal task of an environment, which must stay open, since the functions use it."""
    base: Any = env.unwrapped
    ends: Any = getattr(base, "compute_terminated", None)

    def terminated(achieved: NDArray[Any], desired: NDArray[Any]) -> NDArray[Any]:
        # Unlike rewards, terminations need not be computed for many rows at a time by Gymnasium-Robotics' interface.
        return np.array([ends(*pair, {}) for pair in zip(achieved, desired, strict=True)], dtype=bool)

    size = int(np.prod(base.observation_space["desired_goal"].shape))
    return GoalTask(size, lambda *goals: base.compute_reward(*goals, {}), None if ends is None else terminated)
