"""Environments as the package sees them: actions in [-1, 1] and flat float32 observations."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation, RescaleAction, TransformObservation

from rl_training.config import RewardTransformConfig
from rl_training.envs.rewards import apply_reward_wrappers, as_reward_transform
from rl_training.types import ConfigError, MissingExtraError, SpaceSpec, nearest

WRAPPERS = ("reward",)


def make_native_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, raw_rewards: bool = False
) -> gym.Env[Any, Any]:
    """The environment with flat float32 observations and actions in its own units.

    `env_kwargs` are passed to gymnasium.make, except `wrappers`, whose `reward` is a reward transform; `raw_rewards`
    leaves that transform out, as evaluation does.
    """
    kwargs = {name: value for name, value in (env_kwargs or {}).items() if name != "wrappers"}
    transform = reward_transform(env_kwargs or {})
    env = _make(env_id, kwargs)
    _check_spaces(env_id, env)
    return _flatten(env if raw_rewards else apply_reward_wrappers(env, transform))


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
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, raw_rewards: bool = False
) -> gym.Env[Any, Any]:
    """The environment with flat float32 observations and actions in [-1, 1]."""
    env = make_native_env(env_id, env_kwargs, raw_rewards=raw_rewards)
    return RescaleAction(env, np.float32(-1), np.float32(1))


def make_vector_env(
    env_id: str, env_kwargs: Mapping[str, Any] | None = None, *, num_envs: int, raw_rewards: bool = False
) -> SyncVectorEnv:
    """Several such environments stepped together; they are reset by whoever steps them, never by themselves."""
    makers = [partial(make_env, env_id, env_kwargs, raw_rewards=raw_rewards)] * num_envs
    return SyncVectorEnv(makers, autoreset_mode=AutoresetMode.DISABLED)


def space_spec(env: gym.Env[Any, Any]) -> SpaceSpec:
    """The spaces of an environment whose actions are in native units."""
    actions, observations = env.action_space, env.observation_space
    if not (isinstance(actions, Box) and isinstance(observations, Box)):
        raise TypeError(f"expected Box spaces, got {actions} and {observations}; use make_native_env")
    return SpaceSpec(
        obs_dim=int(np.prod(observations.shape)),
        action_dim=int(np.prod(actions.shape)),
        action_low=tuple(map(float, actions.low)),
        action_high=tuple(map(float, actions.high)),
    )


def _make(env_id: str, kwargs: dict[str, Any]) -> gym.Env[Any, Any]:
    try:
        with warnings.catch_warnings():
            # Old versions of tasks are what published data was made with; that newer ones exist is no news.
            warnings.simplefilter("ignore", DeprecationWarning)
            return gym.make(env_id, **kwargs)
    except gym.error.DependencyNotInstalled as error:
        if "mujoco" in str(error).lower():
            raise MissingExtraError("mujoco", "mujoco", f"env_id {env_id!r}") from None
        raise ConfigError(f"env_id {env_id!r}: {error}") from None
    except ModuleNotFoundError as error:
        raise ConfigError(f"env_id {env_id!r}: {error}") from None
    except gym.error.Error as error:
        known = [name for name in gym.registry if "/" not in name]
        raise ConfigError(f"unknown env_id {env_id!r}{nearest(env_id, known) or f' ({error})'}") from None
    except TypeError as error:
        raise ConfigError(f"env_kwargs: {error}") from None


def _check_spaces(env_id: str, env: gym.Env[Any, Any]) -> None:
    actions, observations = env.action_space, env.observation_space
    if not isinstance(actions, Box) or len(actions.shape) != 1:
        raise ConfigError(
            f"{env_id} has the action space {actions}; only Box vectors (continuous actions) are supported"
        )
    if not (np.isfinite(actions.low).all() and np.isfinite(actions.high).all()):
        raise ConfigError(f"{env_id} has unbounded actions {actions}; wrap it so that they have finite bounds")
    if not isinstance(observations, Box) or observations.dtype == np.uint8:
        raise ConfigError(f"{env_id} has the observation space {observations}; only Box vectors are supported")


def _flatten(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
    space = env.observation_space
    if isinstance(space, Box) and len(space.shape) != 1:
        env = FlattenObservation(env)
        space = env.observation_space
    if space.dtype == np.float32 or not isinstance(space, Box):
        return env
    flat = Box(space.low.astype(np.float32), space.high.astype(np.float32), dtype=np.float32)
    return TransformObservation(env, _to_float32, flat)


def _to_float32(obs: Any) -> Any:
    return np.asarray(obs, dtype=np.float32)
