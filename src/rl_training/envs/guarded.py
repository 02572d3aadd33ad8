"""Environments whose failures are named: which call, in which step of which episode, in which line of their code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Dict, Discrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from rl_training.core.errors import UserCodeError, UserError
from rl_training.core.signals import name_of
from rl_training.core.user_code import own_code_failed
from rl_training.envs.inspection import Inspection


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Checks every reset and step against the declared spaces; failures raise `UserCodeError`.

    These are exceptions of any kind, `sys.exit`, and results that a run cannot use: other shapes, text, numbers that
    are not finite.
    """

    def __init__(self, env: gym.Env[Any, Any], env_id: str) -> None:
        super().__init__(env)
        self.env_id = env_id
        self.episodes, self.steps = 0, 0
        self.seed: int | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """The first observation of an episode, and further facts."""
        # A second reset without a step between begins the same episode again.
        self.episodes += self.steps > 0 or self.episodes == 0
        self.steps, self.seed = 0, seed
        result = self._call("reset", self.env.reset, seed=seed, options=options)
        if not (type(result) is tuple and len(result) == 2 and _fits(self.env.observation_space, result[0])):
            self._examine("reset", result)
        return result

    def step(self, action: Any) -> Any:
        """Observation, reward, the two ends, and further facts."""
        self.steps += 1
        result = self._call("step", self.env.step, action)
        if not (type(result) is tuple and len(result) == 5 and self._is_sound(*result)):
            self._examine("step", result)
        return result

    def render(self) -> Any:
        """The picture that the environment draws of itself."""
        return self._call("render", self.env.render)

    def close(self) -> None:
        """Close the environment; failures here only warn."""
        try:
            super().close()
        except (Exception, SystemExit) as error:
            warnings.warn(str(own_code_failed(f"{self.env_id}: close", error)), stacklevel=2)

    def _call(self, name: str, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            raise own_code_failed(f"{self._place()}: {name}", error) from error

    def _is_sound(self, obs: Any, reward: Any, terminated: Any, truncated: Any, info: Any) -> bool:
        """Whether a step is of the usual form. If not, it is examined more closely."""
        flags = isinstance(terminated, (bool, np.bool_)) and isinstance(truncated, (bool, np.bool_))
        is_number = isinstance(reward, (float, int)) and isfinite(reward)
        return flags and is_number and isinstance(info, dict) and _fits(self.env.observation_space, obs)

    def _examine(self, call: Literal["reset", "step"], result: Any) -> None:
        inspection = Inspection(self.env, None)
        inspection.steps = self.steps
        if mistakes := inspection.examine(call, result):
            raise UserCodeError(f"{self._place()}: {'; '.join(mistakes)}")

    def _place(self) -> str:
        seed = "" if self.seed is None else f" (seed {self.seed})"
        # A resumed run has put the environment into the middle of an episode.
        episode = f"episode {self.episodes}{seed}" if self.episodes else "the episode that the run resumed"
        return f"the environment {self.env_id}, in step {self.steps} of {episode}"


def _fits(space: gym.Space[Any], obs: Any) -> bool:
    if isinstance(space, Dict):
        return isinstance(obs, Mapping) and all(name in obs and _fits(part, obs[name]) for name, part in space.items())
    if isinstance(space, Discrete):
        return bool(space.contains(obs))
    return (
        isinstance(obs, np.ndarray)
        and obs.shape == space.shape
        and obs.dtype.kind in "fiub"
        and bool(np.isfinite(obs).all())
    )


class SubprocessVectorEnv(AsyncVectorEnv):
    """Environments in processes of their own; one whose process ends is named."""

    def __init__(self, makers: list[Callable[[], gym.Env[Any, Any]]]) -> None:
        super().__init__(makers, autoreset_mode=AutoresetMode.DISABLED)
        # Gymnasium prints the traceback of a process, which goes to a log here.
        warnings.filterwarnings("ignore", message=r"\x1b\[31mERROR")

    def reset(self, **named: Any) -> Any:
        """New episodes."""
        return self._answer(super().reset, **named)

    def step(self, actions: Any) -> Any:
        """All environments, by one step."""
        return self._answer(super().step, actions)

    def call(self, name: str, *values: Any, **named: Any) -> Any:
        """A method or an attribute of all environments."""
        return self._answer(super().call, name, *values, **named)

    def _answer(self, function: Callable[..., Any], *values: Any, **named: Any) -> Any:
        try:
            return function(*values, **named)
        except (EOFError, ConnectionError):
            for process in self.processes:
                process.join(timeout=1)
            ended = [(number, each.exitcode) for number, each in enumerate(self.processes) if each.exitcode is not None]
            number, status = ended[0] if ended else (0, None)
            self._state = type(self._state).DEFAULT
            self.close(terminate=True)
            how = f"by {name_of(-status)}" if status is not None and status < 0 else f"with status {status}"
            memory = ", as systems do when memory runs out" if how == "by SIGKILL" else ""
            raise UserCodeError(f"the process of environment {number} was ended {how}{memory}") from None
