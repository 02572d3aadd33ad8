"""Environments: made, wrapped, checked, rendered and saved."""

from __future__ import annotations

from gymnasium.vector import AutoresetMode

from rl_training.core.rewards import RewardTransformConfig
from rl_training.envs.check import EnvReport, Task, check_env, try_out
from rl_training.envs.factory import (
    GIVEN,
    env_id_for,
    is_known,
    make_env,
    make_native_env,
    make_vector_env,
    named_env,
    reward_transform,
    space_spec,
)
from rl_training.envs.goals import GoalTask, goal_task
from rl_training.envs.rendering import rendering_kwargs
from rl_training.envs.rewards import RewardClipWrapper, RewardScaleWrapper, RewardShiftWrapper, apply_reward_wrappers

__all__ = [
    "GIVEN", "AutoresetMode", "EnvReport", "GoalTask", "RewardClipWrapper", "RewardScaleWrapper", "RewardShiftWrapper",
    "RewardTransformConfig", "Task", "apply_reward_wrappers", "check_env", "env_id_for", "goal_task", "is_known",
    "make_env", "make_native_env", "make_vector_env", "named_env", "rendering_kwargs", "reward_transform",
    "space_spec", "try_out",
]  # fmt: skip
