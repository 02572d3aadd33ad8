"""Checks of an environment: it is stepped for a while, and its answers are looked at."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.core.errors import ConfigError
from rl_training.core.spaces import SpaceSpec
from rl_training.envs.factory import GIVEN, as_native, check_spaces, describe_env, make_bare_env, named_env, space_spec
from rl_training.envs.inspection import Inspection, without_own_wrappers
from rl_training.envs.snapshots import Snapshot

STEPS = 1000

EPISODES = 10

BRIEF_STEPS = 3


@dataclass(frozen=True)
class EnvReport:
    """The mistakes of an environment, the checks that it passed, its spaces and its episodes."""

    env_id: str
    mistakes: tuple[str, ...]
    notes: tuple[str, ...]
    passed: tuple[str, ...]
    spaces: SpaceSpec | None
    """None where they are not supported."""
    time_limit: int | None
    steps: int
    returns: tuple[float, ...]
    """Of the episodes of random actions that came to an end."""
    lengths: tuple[int, ...]


@dataclass(frozen=True)
class Task:
    """The environment of a run, as known before the run begins."""

    spaces: SpaceSpec
    about: Mapping[str, Any]
    """Class, wrappers and spaces of the environment, for the run's metadata."""
    time_limit: int | None

    def describe(self) -> str:
        """Observations and time limit in a few words."""
        limit = "no registered time limit" if self.time_limit is None else f"time limit {self.time_limit}"
        return f"observations of {self.spaces.obs_dim} numbers, {limit}"


def check_env(
    env: str | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]],
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    steps: int = STEPS,
) -> EnvReport:
    """Take a few episodes of random actions in an environment, and report its mistakes.

    `env` is its name, an environment, or a function that makes one. One that cannot be made is an error.
    """
    with _quiet(), named_env(env) as env_id, closing(make_bare_env(env_id, env_kwargs, checked=False)) as made:
        bare, limit = without_own_wrappers(made)
        inspection = Inspection(bare, limit)
        spaces = _spaces(made, env_id, inspection)
        if inspection.has_spaces:
            inspection.compare_seeds()
            inspection.run(steps, episodes=EPISODES)
        return EnvReport(
            env_id,
            mistakes=tuple(inspection.mistakes.values()),
            notes=tuple(_notes(bare, inspection)),
            passed=tuple(inspection.passed()),
            spaces=spaces,
            time_limit=limit,
            steps=inspection.steps,
            returns=tuple(inspection.returns),
            lengths=tuple(inspection.lengths),
        )


def try_out(env_id: str, env_kwargs: Mapping[str, Any]) -> Task:
    """The facts that a run needs about an environment, after a few steps in a separate instance.

    What would stop a run is refused before it begins, all of it at once. Other mistakes are left to `check_env`.
    """
    with _quiet(), _generators_kept(), closing(make_bare_env(env_id, env_kwargs, checked=False)) as made:
        bare, limit = without_own_wrappers(made)
        inspection = Inspection(bare, limit)
        spaces = _spaces(made, env_id, inspection)
        if inspection.has_spaces:
            inspection.run(BRIEF_STEPS, episodes=BRIEF_STEPS)
        problems = [text for kind, text in inspection.mistakes.items() if kind in inspection.fatal]
        if problems or spaces is None:
            refusal = ConfigError(*problems, where=_described(env_id, env_kwargs))
            refusal.trace = inspection.trace
            raise refusal
        return Task(spaces, describe_env(bare), limit)


def _spaces(env: gym.Env[Any, Any], env_id: str, inspection: Inspection) -> SpaceSpec | None:
    """The spaces as networks see them; problems with them are added to the mistakes."""
    inspection.check_presence()
    if not inspection.has_spaces:
        return None
    try:
        check_spaces(env_id, env)
    except ConfigError as error:
        for problem in error.problems:
            inspection.mistake("spaces", problem)
        return None
    return space_spec(as_native(env))


def _notes(env: gym.Env[Any, Any], inspection: Inspection) -> Iterator[str]:
    """Hints that are not about mistakes."""
    if inspection.has_run and inspection.steps and not inspection.lengths and inspection.time_limit is None:
        yield (
            f"no episode ended within {inspection.steps} steps and there is no time limit: register the environment "
            "with max_episode_steps, since an evaluation waits for episodes to end and gives up after 100,000 steps"
        )
    if "rgb_array" not in (env.metadata.get("render_modes") or ()):
        yield "there is no render mode 'rgb_array': `record` cannot make a video of it"
    if inspection.has_run and Snapshot(env).snapshot is None:
        yield "its state cannot be saved: a resumed run begins new episodes; state_dict and load_state_dict change that"


def _described(env_id: str, env_kwargs: Mapping[str, Any]) -> str:
    """An environment with its arguments, and where to learn more about its mistakes."""
    kwargs = {name: value for name, value in env_kwargs.items() if name != "wrappers"}
    made = f"{env_id} with env_kwargs {', '.join(f'{name}={value!r}' for name, value in kwargs.items())}"
    words = " ".join([f"rl-training env check {env_id}", *(f"{name}={value}" for name, value in kwargs.items())])
    more = "rl_training.envs.check_env(env)" if env_id.startswith(GIVEN) else words
    return f"{made if kwargs else env_id} cannot be used ({more} says more)"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Gymnasium's repeated warnings about mistakes that are reported here once."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"\x1b\[33mWARN")
        yield


@contextmanager
def _generators_kept() -> Iterator[None]:
    """Leave the generators of the process as they were: some environments draw from them."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 - the generator that such environments use
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
