"""Environments as networks see them: flat float32 observations, and actions in [-1, 1] or numbered from 0."""

from __future__ import annotations

import copy
import operator
import os
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, flatdim
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, RescaleAction, TransformAction, TransformObservation

from rl_training.core.batches import Column
from rl_training.core.errors import ConfigError, MissingExtraError, UserError, import_extra, nearest
from rl_training.core.rewards import RewardTransformConfig
from rl_training.core.spaces import MASK, BoxActions, DiscreteActions, SpaceSpec
from rl_training.core.user_code import FILES, check_trust, own_code_failed
from rl_training.envs.discrete import MultiDiscreteToDiscrete, PrependMask, gives_masks, parts_of, refusal
from rl_training.envs.goals import FlattenGoal, has_goal
from rl_training.envs.guarded import CheckedEnv, SubprocessVectorEnv
from rl_training.envs.rewards import apply_reward_wrappers, as_reward_transform
from rl_training.envs.snapshots import Snapshot

WRAPPERS = ("reward",)
ROBOTICS = ("PointMaze", "AntMaze", "Fetch", "HandReach", "HandManipulate", "AdroitHand", "FrankaKitchen")
"""Families of tasks that come with Gymnasium-Robotics."""


def make_native_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, raw_rewards: bool = False, with_achieved: bool = False
) -> gym.Env[Any, Any]:
    """The environment with flat float32 observations and actions in its own units.

    `env_kwargs` are passed to gymnasium.make, except `wrappers`, whose `reward` is a reward transform; `raw_rewards`
    leaves that transform out, as evaluation does. In a task with goals an observation ends with the goal desired and,
    `with_achieved`, then the goal achieved.
    """
    transform = reward_transform(env_kwargs or {})
    env: gym.Env[Any, Any] = CheckedEnv(make_bare_env(env_id, env_kwargs), env_id)
    check_spaces(env_id, env)
    env = env if raw_rewards else apply_reward_wrappers(env, transform)
    if with_achieved and not has_goal(env):
        raise ConfigError(f"{env_id} has no goals (observation, desired_goal, achieved_goal): set replay: uniform")
    return as_native(env, with_achieved=with_achieved)


def as_native(env: gym.Env[Any, Any], *, with_achieved: bool = False) -> gym.Env[Any, Any]:
    """An environment of supported spaces with flat float32 observations, which begin with its action mask, if any.

    Combinations of several discrete actions are numbered as one.
    """
    env = MultiDiscreteToDiscrete(env) if isinstance(env.action_space, MultiDiscrete) else env
    flat = FlattenGoal(env, with_achieved=with_achieved) if has_goal(env) else _flatten(env)
    return PrependMask(flat) if gives_masks(flat) else flat


GIVEN = "given/"
"""The namespace of environments that were passed as objects."""


def env_id_for(env: str | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]], *, known_as: str | None = None) -> str:
    """The name of an environment. An object, or a function that makes environments, is registered under a name.

    An object is copied whenever an environment is needed; a function is called. The name is one that nothing else has,
    or `known_as`, that of a run which was given its environment as an object.
    """
    if known_as is not None and not known_as.startswith(GIVEN):
        raise ConfigError(f"the run has the environment {known_as}, and env= cannot replace it: leave it out")
    if isinstance(env, str) and known_as is None:
        return env
    if not callable(env) and not isinstance(env, gym.Env):
        kinds = "the name of an environment, a Gymnasium environment, or a function that makes one"
        raise ConfigError(f"env must be {kinds}, got {type(env).__name__}")
    make: Any = partial(_copied, env) if isinstance(env, gym.Env) else env
    source: Any = type(env.unwrapped) if isinstance(env, gym.Env) else env
    name = re.sub(r"\W", "", getattr(source, "__name__", type(source).__name__))
    names = (f"{GIVEN}{name}{number or ''}-v0" for number in count())
    env_id = known_as or next(each for each in names if each not in gym.registry)
    gym.registry.pop(env_id, None)
    gym.register(env_id, entry_point=make)
    return env_id


def is_known(env_id: str) -> bool:
    """Whether an environment is registered under this name."""
    return env_id in gym.registry


@contextmanager
def named_env(env: str | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]]) -> Iterator[str]:
    """The name of an environment, as `env_id_for` gives it; that of an object is forgotten after the block."""
    env_id = env_id_for(env)
    try:
        yield env_id
    finally:
        if not isinstance(env, str):
            gym.registry.pop(env_id, None)


def _copied(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    try:
        return copy.deepcopy(env)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigError(f"env cannot be copied ({reason}): pass a function that makes it instead") from None


def reward_transform(env_kwargs: Mapping[str, Any]) -> RewardTransformConfig | None:
    """The reward transform in a configuration's `env_kwargs`, checked; None where there is none."""
    wrappers = env_kwargs.get("wrappers") or {}
    if not isinstance(wrappers, Mapping):
        raise ConfigError(f"env_kwargs.wrappers must be a mapping, got {wrappers!r}")
    for name in wrappers:
        if name not in WRAPPERS:
            raise ConfigError(f"env_kwargs.wrappers: unknown wrapper {name!r}{nearest(name, WRAPPERS)}")
    reward = wrappers.get("reward")
    return None if reward is None else as_reward_transform(reward)


def make_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, native: bool = False, **options: bool
) -> gym.Env[Any, Any]:
    """The environment with flat float32 observations, actions as networks give them, and a state that can be saved.

    Continuous actions are in [-1, 1], discrete ones are numbered from 0, unless actions are to be `native`. Not every
    environment has a state that can be saved.
    """
    env = make_native_env(env_id, env_kwargs, **options)
    actions = env.action_space
    if isinstance(actions, Box) and not native:
        env = RescaleAction(env, np.float32(-1), np.float32(1))
    elif isinstance(actions, Discrete) and actions.start and not native:
        env = TransformAction(env, partial(operator.add, int(actions.start)), Discrete(int(actions.n)))
    return Snapshot(env)


def describe_env(env: gym.Env[Any, Any]) -> dict[str, Any]:
    """The class of an environment, the wrappers around it, from the outermost on, its spaces, as text, and its dt."""
    spaces = {"observation_space": str(env.observation_space), "action_space": str(env.action_space)}
    wrappers, inner = [], env
    while isinstance(inner, gym.Wrapper):
        wrappers.append(type(inner).__name__)
        inner = inner.env
    name = f"{type(inner).__module__}.{type(inner).__qualname__}"
    return {"class": name, "wrappers": wrappers, **spaces, "dt": _step_time(inner)}


def _step_time(env: gym.Env[Any, Any]) -> float | None:
    """The time that a step takes, if the environment says it in the attribute `dt`, as simulations do."""
    try:
        found: Any = getattr(env, "dt", None)
    except Exception:  # a property of the user's own may raise anything, and a run can do without it
        return None
    is_number = isinstance(found, (int, float, np.number)) and not isinstance(found, bool)
    return float(found) if is_number and 0 < float(found) < float("inf") else None


def make_vector_env(
    env_id: str,
    env_kwargs: Mapping[str, Any] | None = None,
    *,
    num_envs: int,
    kind: Literal["sync", "async"] = "sync",
    **options: bool,
) -> SyncVectorEnv | SubprocessVectorEnv:
    """Several such environments stepped together, `async` ones in processes of their own.

    They never reset themselves: the code that steps them does.
    """
    make = partial(make_env, env_id, env_kwargs, **options)
    if kind == "sync":
        return SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED)
    return SubprocessVectorEnv([partial(_make_apart, make, os.getpid())] * num_envs)


def _make_apart(make: Callable[[], gym.Env[Any, Any]], leader: int) -> gym.Env[Any, Any]:
    """An environment for a process of its own, out of the reach of signals to the group: only the leader obeys them."""
    if os.getpid() != leader and hasattr(os, "setpgid"):
        os.setpgid(0, 0)
    elif os.getpid() != leader:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return make()


def space_spec(env: gym.Env[Any, Any]) -> SpaceSpec:
    """The spaces of an environment that `make_native_env` made."""
    actions = env.action_space
    if isinstance(actions, Discrete):
        return SpaceSpec(_obs_parts(env), DiscreteActions(int(actions.n), int(actions.start), parts_of(env)))
    if not isinstance(actions, Box):
        raise TypeError(f"expected Box or Discrete actions, got {actions}; use make_native_env")
    return SpaceSpec(_obs_parts(env), BoxActions(tuple(map(float, actions.low)), tuple(map(float, actions.high))))


def _obs_parts(env: gym.Env[Any, Any]) -> dict[str, Column]:
    """The parts of an observation before it is flattened, in the order of the flat vector."""
    inner = env
    while isinstance(inner, gym.Wrapper):
        if isinstance(inner, PrependMask):
            return {MASK: Column((inner.prepended_mask_dim,)), **_obs_parts(inner.env)}
        whole = inner.env.observation_space
        if isinstance(whole, Dict) and isinstance(inner, (FlattenGoal, FlattenObservation)):
            names = inner.parts if isinstance(inner, FlattenGoal) else list(whole.keys())
            return {name: _column(whole[name]) for name in names}
        inner = inner.env
    return {"obs": Column(env.observation_space.shape or ())}


def _column(space: gym.Space[Any]) -> Column:
    """A part of an observation; the number of a state is seen as one 1 among as many 0s as there are states."""
    return Column((flatdim(space),) if isinstance(space, Discrete) else space.shape or ())


def make_bare_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, checked: bool = True
) -> gym.Env[Any, Any]:
    """The environment as gymnasium.make gives it, or without Gymnasium's own checks."""
    kwargs = {name: value for name, value in (env_kwargs or {}).items() if name != "wrappers"}
    if not checked:
        kwargs["disable_env_checker"] = True
    if env_id.startswith(GIVEN) and not is_known(env_id):
        raise ConfigError(f"{env_id} was passed as an object: pass it again, as env=, or name another one")
    if env_id.startswith(ROBOTICS):
        # Nothing but the import of Gymnasium-Robotics makes its tasks known.
        gym.register_envs(import_extra("gymnasium_robotics", "robotics", f"env_id {env_id!r}"))
    named = kwargs.get("env_id")
    for name in (name for name in (env_id, named) if isinstance(name, str) and ":" in name):
        check_trust(name.partition(":")[0], f"the environment {name}")
    module, _, name = env_id.partition(":")
    if module in FILES:
        # Its file was imported by --import, and has registered what it has.
        env_id = name
    with _explained(env_id), warnings.catch_warnings():
        # Published data was made with old versions of tasks, so a hint at newer versions does not help.
        warnings.simplefilter("ignore", DeprecationWarning)
        return gym.make(env_id, **kwargs)


@contextmanager
def _explained(env_id: str) -> Iterator[None]:
    """Explain errors in the name, the arguments or the code of an environment that cannot be made."""
    try:
        yield
    except UserError:
        raise
    except (gym.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        for package, extra in (("mujoco", "mujoco"), ("Box2D", "box2d")):
            if extra in str(error).lower():
                raise MissingExtraError(package, extra, f"env_id {env_id!r}") from None
        raise ConfigError(f"env_id {env_id!r}: {error}") from None
    except gym.error.Error as error:
        known = [name for name in gym.registry if "/" not in name]
        raise ConfigError(f"unknown env_id {env_id!r}{nearest(env_id, known) or f' ({error})'}") from None
    # The environment's own code may raise anything.
    except (Exception, SystemExit) as error:
        if isinstance(error, TypeError) and "gymnasium.Env" in str(error):
            raise ConfigError(f"{env_id} is no Gymnasium environment: derive its class from gymnasium.Env") from None
        if isinstance(error, TypeError) and "argument" in str(error):
            raise ConfigError(f"env_kwargs: {error}") from None
        failed = own_code_failed(f"{env_id} cannot be made: it", error)
        refusal = ConfigError(str(failed))
        refusal.trace = failed.trace
        raise refusal from error


def check_spaces(env_id: str, env: gym.Env[Any, Any]) -> None:
    """Refuse spaces that are not supported."""
    actions, observations = env.action_space, env.observation_space
    if isinstance(actions, MultiDiscrete):
        wrong = refusal(actions)
        if wrong is not None:
            raise ConfigError(f"{env_id} has the action space {actions}; {wrong}")
    elif not isinstance(actions, Discrete):
        if not isinstance(actions, Box) or len(actions.shape) != 1:
            known = "only Box vectors (continuous actions), Discrete and MultiDiscrete (discrete actions) are supported"
            raise ConfigError(f"{env_id} has the action space {actions}; {known}")
        if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
            raise ConfigError(f"{env_id} has unbounded actions {actions}; wrap it so that they have finite bounds")
    if isinstance(observations, Dict) and MASK in observations.spaces:
        hint = "provide masks by a method action_masks() or in info, and give other observations another name"
        raise ConfigError(f"{env_id} has observations with a part {MASK!r}, the name of the action mask: {hint}")
    parts = observations.spaces.values() if isinstance(observations, Dict) else [observations]
    if not all(isinstance(part, Discrete) or (isinstance(part, Box) and part.dtype != np.uint8) for part in parts):
        known = "only vectors (Box) and numbers of states (Discrete), alone or in a Dict, are supported"
        raise ConfigError(f"{env_id} has the observation space {observations}; {known}")
    for shape in (part.shape for part in parts if part.shape is not None and len(part.shape) > 2):
        flat = "they look like images, which are not supported; flatten them in the environment if they are none"
        raise ConfigError(f"{env_id} has observations of shape {shape}: {flat}")


def _flatten(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    space = env.observation_space
    if not isinstance(space, Box) or len(space.shape) != 1:
        env = FlattenObservation(env)
        space = env.observation_space
    if space.dtype == np.float32 or not isinstance(space, Box):
        return env
    flat = Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return TransformObservation(env, lambda obs: np.asarray(obs, dtype=np.float32), flat)
