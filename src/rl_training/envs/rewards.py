"""Reward transforms as wrappers; an environment without them is untouched."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
from gymnasium.wrappers import TransformReward

from rl_training.core.errors import ConfigError
from rl_training.core.options import bind
from rl_training.core.rewards import RewardTransformConfig as RewardTransformConfig


class RewardScaleWrapper(TransformReward[Any, Any]):
    """Rewards times a factor."""

    def __init__(self, env: gym.Env[Any, Any], scale: float) -> None:
        super().__init__(env, lambda reward: float(reward) * scale)


class RewardShiftWrapper(TransformReward[Any, Any]):
    """Rewards plus a constant."""

    def __init__(self, env: gym.Env[Any, Any], shift: float) -> None:
        super().__init__(env, lambda reward: float(reward) + shift)


class RewardSignWrapper(TransformReward[Any, Any]):
    """The sign of rewards: -1, 0 or 1."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env, lambda reward: float(float(reward) > 0) - float(float(reward) < 0))


class RewardClipWrapper(TransformReward[Any, Any]):
    """Rewards kept between two bounds, either of which may be open."""

    def __init__(self, env: gym.Env[Any, Any], clip_min: float | None = None, clip_max: float | None = None) -> None:
        low, high = -math.inf if clip_min is None else clip_min, math.inf if clip_max is None else clip_max
        super().__init__(env, lambda reward: min(max(float(reward), low), high))


def as_reward_transform(config: RewardTransformConfig | Mapping[str, Any]) -> RewardTransformConfig:
    """A reward transform from the mapping that a configuration holds."""
    if isinstance(config, RewardTransformConfig):
        return config
    if not isinstance(config, Mapping):
        raise ConfigError(f"env_kwargs.wrappers.reward must be a mapping such as {{preset: clip_1}}, got {config!r}")
    transform: RewardTransformConfig = bind(config, RewardTransformConfig, where="env_kwargs.wrappers.reward")[0]
    return transform


def apply_reward_wrappers(
    env: gym.Env[Any, Any], config: RewardTransformConfig | Mapping[str, Any] | None
) -> gym.Env[Any, Any]:
    """The environment with a reward transform: scale, shift, sign, clip, each only where it changes something."""
    if config is None:
        return env
    fields = as_reward_transform(config).resolve()
    if fields["scale"] != 1:
        env = RewardScaleWrapper(env, fields["scale"])
    if fields["shift"] != 0:
        env = RewardShiftWrapper(env, fields["shift"])
    if fields["sign"]:
        env = RewardSignWrapper(env)
    if fields["clip_min"] is not None or fields["clip_max"] is not None:
        env = RewardClipWrapper(env, fields["clip_min"], fields["clip_max"])
    return env
