"""Reward transforms: one definition for environments and for logged data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.data import TransitionDataset
from rl_training.envs import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardShiftWrapper,
    RewardTransformConfig,
    apply_reward_wrappers,
    make_env,
    make_native_env,
)
from rl_training.envs.rewards import RewardSignWrapper
from rl_training.runtime import bind_options, evaluate_policy, find_task, load_data

REWARDS = (-3.0, -0.5, 0.0, 0.25, 2.0)


class _Script(gym.Env[Any, Any]):
    """Pays the rewards of a list, one after the other, then ends."""

    observation_space = Box(-1, 1, (1,), np.float32)
    action_space = Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.time = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return np.zeros(1, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return np.zeros(1, dtype=np.float32), REWARDS[self.time - 1], self.time == len(REWARDS), False, {}


def _make(**_: Any) -> gym.Env[Any, Any]:
    return _Script()


@pytest.fixture
def script_id() -> Iterator[str]:
    gym.register("Script-v0", entry_point=_make)
    yield "Script-v0"
    gym.registry.pop("Script-v0")


def _paid(env: gym.Env[Any, Any]) -> list[float]:
    env.reset()
    return [float(env.step(np.zeros(1, dtype=np.float32))[1]) for _ in REWARDS]


CASES: list[tuple[dict[str, Any], list[float]]] = [
    ({"scale": 2.0}, [-6.0, -1.0, 0.0, 0.5, 4.0]),
    ({"shift": 1.0}, [-2.0, 0.5, 1.0, 1.25, 3.0]),
    ({"clip_min": -1.0}, [-1.0, -0.5, 0.0, 0.25, 2.0]),
    ({"clip_max": 0.0}, [-3.0, -0.5, 0.0, 0.0, 0.0]),
    ({"preset": "sign_clip"}, [-1.0, -1.0, 0.0, 1.0, 1.0]),
    ({"preset": "clip_1"}, [-1.0, -0.5, 0.0, 0.25, 1.0]),
    ({"preset": "sparse_goal_zero_one"}, [0.0, 0.5, 1.0, 1.0, 1.0]),
    # Scale before shift: 2 r + 1, not 2 (r + 1).
    ({"scale": 2.0, "shift": 1.0}, [-5.0, 0.0, 1.0, 1.5, 5.0]),
    # Clip last: bounds are on the transformed reward.
    ({"scale": 2.0, "shift": 1.0, "clip_min": -1.0, "clip_max": 1.0}, [-1.0, 0.0, 1.0, 1.0, 1.0]),
    # Sign after shift and before clip.
    ({"preset": "sign_clip", "shift": 0.5, "clip_max": 0.5}, [-1.0, 0.0, 0.5, 0.5, 0.5]),
    # An explicit field takes the place of the preset's, or joins it.
    ({"preset": "clip_1", "clip_max": 0.5}, [-1.0, -0.5, 0.0, 0.25, 0.5]),
    ({"preset": "clip_1", "scale": 4.0}, [-1.0, -1.0, 0.0, 1.0, 1.0]),
    ({"preset": "sparse_goal_zero_one", "shift": 0.5}, [0.0, 0.0, 0.5, 0.75, 1.0]),
]


@pytest.mark.parametrize(("fields", "expected"), CASES)
def test_rewards_are_scaled_shifted_signed_and_clipped_in_this_order(
    fields: dict[str, Any], expected: list[float]
) -> None:
    assert _paid(apply_reward_wrappers(_Script(), fields)) == pytest.approx(expected)
    assert _paid(apply_reward_wrappers(_Script(), RewardTransformConfig(**fields))) == pytest.approx(expected)


@pytest.mark.parametrize(("fields", "expected"), CASES)
def test_a_dataset_transforms_rewards_to_the_same_numbers(fields: dict[str, Any], expected: list[float]) -> None:
    rows = len(REWARDS)
    dataset = TransitionDataset.from_dict(
        {
            "obs": np.zeros((rows, 1)),
            "actions": np.zeros((rows, 1)),
            "rewards": np.asarray(REWARDS),
            "next_obs": np.zeros((rows, 1)),
            "dones": np.zeros(rows),
        }
    )

    transformed = dataset.with_reward_transform(**RewardTransformConfig(**fields).resolve())

    assert transformed.rewards.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("fields", "layers"),
    [
        ({}, []),
        ({"scale": 1.0, "shift": 0.0}, []),
        ({"scale": 2.0}, [RewardScaleWrapper]),
        ({"shift": 2.0}, [RewardShiftWrapper]),
        ({"preset": "sign_clip"}, [RewardSignWrapper]),
        ({"clip_min": 0.0}, [RewardClipWrapper]),
        ({"scale": 2.0, "shift": 1.0, "clip_max": 1.0}, [RewardClipWrapper, RewardShiftWrapper, RewardScaleWrapper]),
    ],
)
def test_only_transforms_that_change_something_become_wrappers(fields: dict[str, Any], layers: list[type]) -> None:
    env = apply_reward_wrappers(_Script(), fields)

    found = []
    while isinstance(env, gym.Wrapper):
        found.append(type(env))
        env = env.env
    assert found == layers


def test_without_a_transform_the_environment_itself_is_returned() -> None:
    env = _Script()

    assert apply_reward_wrappers(env, None) is env
    assert apply_reward_wrappers(env, {}) is env


def test_the_environment_of_a_config_is_wrapped_unless_raw_rewards_are_asked_for(script_id: str) -> None:
    kwargs = {"wrappers": {"reward": {"scale": 10.0}}}

    assert _paid(make_native_env(script_id, kwargs)) == pytest.approx([10 * reward for reward in REWARDS])
    assert _paid(make_env(script_id, kwargs)) == pytest.approx([10 * reward for reward in REWARDS])
    assert _paid(make_env(script_id, kwargs, raw_rewards=True)) == pytest.approx(REWARDS)


def test_making_an_environment_leaves_its_arguments_as_they_were(script_id: str) -> None:
    kwargs = {"wrappers": {"reward": {"scale": 10.0}}}

    make_env(script_id, kwargs)

    assert kwargs == {"wrappers": {"reward": {"scale": 10.0}}}


def test_evaluation_is_on_raw_reward_whatever_the_wrappers_say(script_id: str) -> None:
    result = evaluate_policy(
        lambda obs: torch.zeros(len(obs), 1), script_id, {"wrappers": {"reward": {"preset": "sign_clip"}}}, episodes=2
    )

    assert result.returns == pytest.approx([sum(REWARDS)] * 2)


def test_data_collected_on_the_spot_has_transformed_rewards(
    script_id: str, tiny_config: Callable[..., TrainConfig]
) -> None:
    config = tiny_config("td3_bc", f"env_id={script_id}", "env_kwargs.wrappers.reward.scale=10.0")

    data = load_data(config, bind_options(config), find_task(config))

    assert sorted(set(data.dataset.rewards.tolist())) == pytest.approx([10 * reward for reward in REWARDS])


def test_wrappers_are_refused_where_they_could_not_reach_the_rewards(tiny_config: Callable[..., TrainConfig]) -> None:
    config = tiny_config(
        "td3_bc",
        "env_kwargs.wrappers.reward.scale=10.0",
        "algo_kwargs.dataset_kind=npz",
        "algo_kwargs.dataset_size=null",
        "algo_kwargs.dataset_path=log.npz",
    )

    with pytest.raises(ConfigError, match="does not change rewards in a file; use reward_preset"):
        load_data(config, bind_options(config), find_task(config))


def test_a_transform_is_resolved_once_and_its_values_are_its_own() -> None:
    transform = RewardTransformConfig(preset="clip_1", scale=2.0)
    transform.resolve()["scale"] = 7.0

    assert transform.apply(torch.tensor([0.25, 3.0])).tolist() == [0.5, 1.0]
    assert transform._resolved is transform._resolved
    assert transform == RewardTransformConfig(preset="clip_1", scale=2.0)
