"""Gymnasium in, [-1, 1] actions and flat float32 observations out."""

from gymnasium.vector import AutoresetMode as AutoresetMode

from rl_training.envs.checking import EnvReport as EnvReport
from rl_training.envs.checking import Task as Task
from rl_training.envs.checking import check_env as check_env
from rl_training.envs.checking import try_out as try_out
from rl_training.envs.factory import GIVEN as GIVEN
from rl_training.envs.factory import env_id_for as env_id_for
from rl_training.envs.factory import is_known as is_known
from rl_training.envs.factory import make_env as make_env
from rl_training.envs.factory import make_native_env as make_native_env
from rl_training.envs.factory import make_vector_env as make_vector_env
from rl_training.envs.factory import named_env as named_env
from rl_training.envs.factory import reward_transform as reward_transform
from rl_training.envs.factory import space_spec as space_spec
from rl_training.envs.goals import GoalTask as GoalTask
from rl_training.envs.goals import goal_task as goal_task
from rl_training.envs.rendering import rendering_kwargs as rendering_kwargs
from rl_training.envs.rewards import RewardClipWrapper as RewardClipWrapper
from rl_training.envs.rewards import RewardScaleWrapper as RewardScaleWrapper
from rl_training.envs.rewards import RewardShiftWrapper as RewardShiftWrapper
from rl_training.envs.rewards import RewardTransformConfig as RewardTransformConfig
from rl_training.envs.rewards import apply_reward_wrappers as apply_reward_wrappers
