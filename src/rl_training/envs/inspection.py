"""Steps in an environment, whose every answer is checked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from rl_training.core.errors import UserCodeError
from rl_training.core.spaces import split_actions
from rl_training.core.user_code import own_code_failed
from rl_training.envs.discrete import part_sizes, read_mask

SIGNATURE = "def reset(self, *, seed=None, options=None)"


OLD_STEP = "step returns 4 values, as in the old Gym: return observation, reward, terminated, truncated, info"


NEW_STEP = "observation, reward, terminated, truncated, info"


HARMLESS = ("dtype", "array", "bounds", "seed", "flag")
"""Kinds of mistakes that do not stop a run: values are converted, or results are only harder to repeat."""


class _Stopped(Exception):  # noqa: N818 - it is no error, it ends the inspection
    """The environment cannot be stepped any further."""


def without_own_wrappers(env: gym.Env[Any, Any]) -> tuple[gym.Env[Any, Any], int | None]:
    """The environment without the wrappers of gymnasium.make, which trip over mistakes, and its time limit."""
    limit = None
    while isinstance(env, (TimeLimit, OrderEnforcing, PassiveEnvChecker)):
        limit = env._max_episode_steps if isinstance(env, TimeLimit) else limit
        env = env.env
    return env, limit


class Inspection:
    """Resets and random steps in one environment, and the mistakes seen on the way, the first of each kind."""

    def __init__(self, env: gym.Env[Any, Any], time_limit: int | None) -> None:
        self.env, self.time_limit = env, time_limit
        self.mistakes: dict[str, str] = {}
        self.steps = 0
        self.returns: list[float] = []
        self.lengths: list[int] = []
        self.has_run = False
        self.has_masks: bool | None = None
        """Whether the first reset came with an action mask; None before it."""
        self.info: Mapping[str, Any] = {}
        """The `info` of the last reset or step."""
        self.trace = ""
        """The traceback of the first call that failed."""

    @property
    def has_spaces(self) -> bool:
        """Whether there are spaces at all, supported or not."""
        return "presence" not in self.mistakes

    @property
    def fatal(self) -> list[str]:
        """The kinds of mistakes that would stop a run."""
        return [kind for kind in self.mistakes if kind not in HARMLESS]

    def mistake(self, kind: str, text: str) -> None:
        """Remember a mistake, unless there was one of its kind before."""
        self.mistakes.setdefault(kind, text)

    def check_presence(self) -> None:
        """Spaces must be there before anything else can be looked at."""
        examples = {"observation_space": "Box(-1, 1, (3,), np.float32)", "action_space": "Box(-1, 1, (1,), np.float32)"}
        for name, example in examples.items():
            if not isinstance(getattr(self.env, name, None), gym.Space):
                self.mistake("presence", f"{name} is missing: set it to a space of Gymnasium, such as {example}")

    def compare_seeds(self) -> None:
        """The same seed must give the same first observation."""
        try:
            first, second = (_copied(self.reset(seed=0)) for _ in range(2))
        except _Stopped:
            return
        # A reset that takes no seed cannot heed it; that is reported already.
        if "signature" not in self.mistakes and not _equal(first, second):
            self.mistake(
                "seed",
                "reset(seed=0) gives another observation each time: call super().reset(seed=seed) and draw from "
                "self.np_random",
            )

    def run(self, steps: int, *, episodes: int) -> None:
        """Act at random until the given number of steps or episodes is reached, or the environment fails."""
        self.env.action_space.seed(0)
        try:
            while self.steps < steps and len(self.lengths) < episodes:
                self._episode(steps, seed=len(self.lengths))
        except _Stopped:
            return
        self.has_run = True

    def _episode(self, steps: int, *, seed: int) -> None:
        self.reset(seed=seed)
        total, length, over = 0.0, 0, False
        while not over and self.steps < steps:
            reward, over = self.step()
            total, length = total + reward, length + 1
            over = over or length == self.time_limit
        if over:
            self.returns.append(total)
            self.lengths.append(length)

    def reset(self, *, seed: int) -> Any:
        """The first observation of an episode."""
        base, arguments = self.env.unwrapped.reset, {"seed": seed, "options": None}
        missing = [name for name in arguments if not _takes(base, name)]
        reset: Callable[..., Any] = self.env.reset
        if missing:
            names = " and ".join(missing)
            self.mistake("signature", f"reset does not take {names}: write {SIGNATURE}, then super().reset(seed=seed)")
            # A wrapper would pass on arguments that the environment does not take.
            reset, arguments = base, {name: value for name, value in arguments.items() if name not in missing}
        return self._read_reset(self._call("reset", reset, **arguments))

    def _read_reset(self, result: Any) -> Any:
        if not isinstance(result, tuple) or len(result) != 2:
            found = f"{len(result)} values" if isinstance(result, tuple) else "only the observation"
            self.mistake("reset", f"reset returns {found}: return observation, info; info may be {{}}")
            obs = result[0] if isinstance(result, tuple) and result else result
        else:
            obs, info = result
            self._check_info(info, "reset")
        self._check_obs(self.env.observation_space, obs, "the observation from reset")
        return obs

    def step(self) -> tuple[float, bool]:
        """The reward of a random action, and whether the episode is over."""
        result = self._call("step", self.env.step, self._random_action())
        self.steps += 1
        return self._read_step(result)

    def _random_action(self) -> Any:
        """A random action, which is valid where the environment provides action masks."""
        space = self.env.action_space
        if not isinstance(space, (Discrete, MultiDiscrete)):
            return space.sample()
        try:
            mask = read_mask(self.env, self.info)
        except UserCodeError as error:
            self.mistake("action_masks", str(error))
            self.trace = self.trace or error.trace
            raise _Stopped from None
        if self.has_masks is None:
            self.has_masks = mask is not None
        if self.has_masks != (mask is not None):
            here, there = ("step", "reset") if mask is None else ("reset", "step")
            self.mistake("action_masks", f"info from {there} has an action mask and that from {here} has none")
        if mask is None:
            return space.sample()
        if isinstance(space, Discrete):
            return space.sample(mask.astype(np.int8))
        numbers = np.flatnonzero(mask)
        return split_actions(space.np_random.choice(numbers), part_sizes(space)) + space.start

    def _read_step(self, result: Any) -> tuple[float, bool]:
        if isinstance(result, tuple) and len(result) == 4:
            self.mistake("step", OLD_STEP)
            obs, reward, terminated, info = result
            truncated: Any = False
        elif isinstance(result, tuple) and len(result) == 5:
            obs, reward, terminated, truncated, info = result
        else:
            found = f"{len(result)} values" if isinstance(result, tuple) else f"a {type(result).__name__}"
            self.mistake("step", f"step returns {found}: return {NEW_STEP}")
            raise _Stopped
        self._check_obs(self.env.observation_space, obs, "the observation from step")
        self._check_info(info, "step")
        over = [self._flag(name, value) for name, value in (("terminated", terminated), ("truncated", truncated))]
        return self._reward(reward), any(over)

    def examine(self, call: Literal["reset", "step"], result: Any) -> list[str]:
        """The mistakes in a result of a call that would stop a run."""
        read: Callable[[Any], object] = self._read_reset if call == "reset" else self._read_step
        with suppress(_Stopped):
            read(result)
        return [self.mistakes[kind] for kind in self.fatal]

    def _call(self, name: str, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        # The environment's own code may raise anything.
        except (Exception, SystemExit) as error:
            failed = own_code_failed(name, error)
            self.mistake(name, str(failed))
            self.trace = self.trace or failed.trace
            raise _Stopped from None

    def _check_info(self, info: Any, where: str) -> None:
        self.info = info if isinstance(info, dict) else {}
        if not isinstance(info, dict):
            self.mistake("info", f"info from {where} is a {type(info).__name__}: it must be a dict, which may be empty")

    def _reward(self, reward: Any) -> float:
        is_number = np.ndim(reward) == 0
        try:
            value = float(reward) if is_number and not isinstance(reward, str) else None
        except (TypeError, ValueError):
            value = None
        if value is None:
            found = f"an array of shape {np.shape(reward)}" if not is_number else f"a {type(reward).__name__}"
            self.mistake("reward", f"the reward is {found}: it must be one number, such as float(reward)")
            return 0.0
        if not np.isfinite(value):
            self.mistake("reward", f"the reward is {value} in step {self.steps}: rewards must be finite")
        return value

    def _flag(self, name: str, value: Any) -> bool:
        if not isinstance(value, (bool, np.bool_)):
            kind = "flag" if np.ndim(value) == 0 and not isinstance(value, str) else "flag array"
            self.mistake(
                kind, f"{name} is a {type(value).__name__}, {value!r}: it must be True or False, such as bool(...)"
            )
        return bool(np.any(value)) if not isinstance(value, str) else False

    def _check_obs(self, space: gym.Space[Any], obs: Any, what: str) -> None:
        if isinstance(space, Dict):
            self._check_mapping(space, obs, what)
        elif isinstance(space, Box):
            self._check_array(space, obs, what)
        elif isinstance(space, Discrete) and not space.contains(obs):
            last = int(space.start + space.n - 1)
            self.mistake("state", f"{what} is {obs!r}: its space has the whole numbers {space.start} to {last}")

    def _check_mapping(self, space: Dict, obs: Any, what: str) -> None:
        if not isinstance(obs, Mapping):
            self.mistake("keys", f"{what} is a {type(obs).__name__}: its space is a Dict, so it must be a dict")
            raise _Stopped
        if set(obs) != set(space.keys()):
            names = (", ".join(map(repr, each)) for each in (obs, space.keys()))
            self.mistake("keys", "{} has the keys {}, its space {}: make them agree".format(what, *names))
        for name in [name for name in space if name in obs]:
            self._check_obs(space[name], obs[name], f"{name!r} in {what}")

    def _check_array(self, space: Box, obs: Any, what: str) -> None:
        if not isinstance(obs, np.ndarray):
            how = f"np.asarray(obs, dtype=np.{space.dtype})"
            self.mistake("array", f"{what} is a {type(obs).__name__}: return an array, such as {how}")
        try:
            array = np.asarray(obs)
            numbers = array.astype(np.float64)
        except (TypeError, ValueError):
            self.mistake("numbers", f"{what} does not consist of numbers: its space is {space}")
            return
        if isinstance(obs, np.ndarray) and array.dtype != space.dtype:
            how = f"return obs.astype(np.{space.dtype})"
            self.mistake("dtype", f"{what} is {array.dtype}, its space {space.dtype}: {how}, or declare the other")
        if array.shape != space.shape:
            self.mistake("shape", f"{what} has shape {array.shape}, its space {space.shape}: make them agree")
            return
        if not np.isfinite(numbers).all():
            wrong = tuple(np.argwhere(~np.isfinite(numbers))[0].tolist())
            self.mistake("finite", f"{what} is {numbers[wrong]} at {list(wrong)}: observations must be finite")
            return
        outside = (numbers < space.low) | (numbers > space.high)
        if outside.any():
            wrong = tuple(np.argwhere(outside)[0].tolist())
            bounds = f"[{space.low[wrong]:g}, {space.high[wrong]:g}]"
            how = "clip it, or declare wider bounds"
            self.mistake(
                "bounds", f"{what} is {numbers[wrong]:g} at {list(wrong)}, outside {bounds} of its space: {how}"
            )

    def passed(self) -> Iterator[str]:
        """Sentences about the checks that found no mistake."""
        wrong = set(self.mistakes)
        if not wrong & {"presence", "spaces"}:
            yield "observations and actions are of a supported kind"
        if not self.steps:
            return
        if not wrong & {"signature", "reset", "step", "info", "flag", "flag array"}:
            yield "reset and step take and return what Gymnasium says"
        if not wrong & {"dtype", "array", "shape", "finite", "bounds", "numbers", "keys"}:
            yield "observations are in their space"
        if "reward" not in wrong:
            yield "rewards are finite numbers"
        if not wrong & {"seed", "reset", "signature"}:
            yield "the same seed gives the same first observation"


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


def _copied(obs: Any) -> Any:
    return {name: _copied(value) for name, value in obs.items()} if isinstance(obs, Mapping) else np.array(obs)


def _equal(first: Any, second: Any) -> bool:
    if isinstance(first, Mapping):
        return first.keys() == second.keys() and all(_equal(first[name], second[name]) for name in first)
    return np.shape(first) == np.shape(second) and bool(
        np.array_equal(first, second, equal_nan=first.dtype.kind == "f")
    )
