"""Environments with discrete actions: action masks in observations, and several actions at once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from numpy.typing import NDArray

from rl_training.core.errors import UserCodeError, UserError
from rl_training.core.spaces import split_actions
from rl_training.core.user_code import own_code_failed

METHOD = "action_masks"

NAMES = ("action_mask", "action_masks", "valid_actions")
"""The names under which `info` may hold an action mask."""


class PrependMask(gym.Wrapper[Any, Any, Any, Any]):
    """Prepends the action mask (1 = valid) to the flat observation."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        rest: Any = env.observation_space
        self.prepended_mask_dim = action_count(env)
        low, high = (np.full(self.prepended_mask_dim, value, dtype=np.float32) for value in (0, 1))
        self.observation_space = Box(np.concatenate([low, rest.low]), np.concatenate([high, rest.high]))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation of an episode, and further facts."""
        obs, info = self.env.reset(seed=seed, options=options)
        return self._joined(obs, info, over=False), info

    def step(self, action: Any) -> Any:
        """Observation, reward, the two ends, and further facts."""
        obs, reward, terminated, truncated, info = self.env.step(action)
        return self._joined(obs, info, over=bool(terminated)), reward, terminated, truncated, info

    def _joined(self, obs: NDArray[np.float32], info: Mapping[str, Any], *, over: bool) -> NDArray[np.float32]:
        # After the end of the task no action follows, whatever the environment says.
        mask = np.ones(self.prepended_mask_dim) if over else read_mask(self.env, info)
        if mask is None:
            names = ", ".join(map(repr, NAMES))
            raise UserCodeError(f"the environment gave an action mask before, but now info has none of {names}")
        return np.concatenate([mask, obs]).astype(np.float32)


def action_count(env: gym.Env[Any, Any]) -> int:
    """The number of discrete actions of an environment."""
    actions: Any = env.action_space
    return int(actions.n)


def parts_of(env: gym.Env[Any, Any]) -> tuple[int, ...]:
    """The sizes of the parts of an environment's actions, also where their combinations are numbered as one."""
    found: tuple[int, ...] = env.get_wrapper_attr("action_parts") if env.has_wrapper_attr("action_parts") else ()
    return found or part_sizes(env.action_space)


def gives_masks(env: gym.Env[Any, Any]) -> bool:
    """Whether an environment provides action masks. One without the method is reset to look at its `info`."""
    if not isinstance(env.action_space, Discrete):
        return False
    if env.has_wrapper_attr(METHOD):
        return True
    try:
        _, info = env.reset()
        return any(name in info for name in NAMES)
    # An environment that cannot be reset fails again where it is used, and is named there.
    except Exception:
        return False


def read_mask(env: gym.Env[Any, Any], info: Mapping[str, Any]) -> NDArray[np.float32] | None:
    """The action mask of an environment, checked; None where it provides none.

    Where an action has several parts, their masks follow one after the other.
    """
    source, mask = _find(env, info)
    if mask is None:
        return None
    parts = parts_of(env)
    count = sum(parts) or action_count(env)
    try:
        found = np.asarray(mask, dtype=np.float32)
    except (TypeError, ValueError):
        raise UserCodeError(f"{source} gives {mask!r}, expected {count} numbers that are 0 or 1") from None
    if found.shape != (count,) or not np.isin(found, (0, 1)).all():
        raise UserCodeError(f"{source} gives {found.tolist()}, expected {count} numbers that are 0 or 1")
    if parts:
        found = combined_mask(found, parts)
    if not found.any():
        raise UserCodeError(f"{source} marks no action as valid: at least one must be, unless the task has ended")
    return found


def _find(env: gym.Env[Any, Any], info: Mapping[str, Any]) -> tuple[str, Any]:
    if env.has_wrapper_attr(METHOD):
        try:
            return f"{METHOD}()", env.get_wrapper_attr(METHOD)()
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise own_code_failed(f"{METHOD}()", error) from error
    name = next((name for name in NAMES if name in info), None)
    return f"info[{name!r}]", None if name is None else info[name]


MOST_COMBINATIONS = 10_000
"""Networks have an output for every combination."""


class MultiDiscreteToDiscrete(gym.Wrapper[Any, Any, Any, Any]):
    """An environment with MultiDiscrete actions, whose combinations are numbered as discrete actions."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        space: Any = env.action_space
        self.action_parts = part_sizes(space)
        self.first_actions: NDArray[Any] = space.start
        self.action_space: Any = Discrete(math.prod(self.action_parts))

    def step(self, action: Any) -> Any:
        """Observation, reward, the two ends, and further facts."""
        return self.env.step(split_actions(np.asarray(action), self.action_parts) + self.first_actions)


def part_sizes(space: gym.Space[Any]) -> tuple[int, ...]:
    """The number of values that each part of an action has; empty where actions have no parts."""
    return tuple(map(int, space.nvec)) if isinstance(space, MultiDiscrete) else ()


def refusal(space: MultiDiscrete) -> str | None:
    """The reason why a MultiDiscrete space is not supported; None if it is."""
    if space.nvec.ndim != 1:
        return "the parts of a MultiDiscrete action must be a vector"
    count = math.prod(part_sizes(space))
    if count > MOST_COMBINATIONS:
        return f"there are {count:,} combinations, and each is an action of its own: at most {MOST_COMBINATIONS:,}"
    return None


def combined_mask(mask: NDArray[np.float32], parts: tuple[int, ...]) -> NDArray[np.float32]:
    """The mask of all combinations, from the masks of the parts one after the other."""
    found = np.ones((), dtype=np.float32)
    for part in np.split(mask, np.cumsum(parts)[:-1]):
        found = np.multiply.outer(found, part)
    return found.ravel()
