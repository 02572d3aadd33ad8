"""Gymnasium in, [-1, 1] actions and flat float32 observations out."""

from gymnasium.vector import AutoresetMode

from rl_training.envs.factory import make_env, make_native_env, make_vector_env, reward_transform, space_spec, try_out
from rl_training.envs.goals import GoalTask, goal_task
from rl_training.envs.rewards import (
    RewardClipWrapper,
    RewardScaleWrapper,
    RewardShiftWrapper,
    RewardTransformConfig,
    apply_reward_wrappers,
)

__all__ = [
    "AutoresetMode",
    "GoalTask",
    "RewardClipWrapper",
    "RewardScaleWrapper",
    "RewardShiftWrapper",
    "RewardTransformConfig",
    "apply_reward_wrappers",
    "goal_task",
    "make_env",
    "make_native_env",
    "make_vector_env",
    "reward_transform",
    "space_spec",
    "try_out",
]
