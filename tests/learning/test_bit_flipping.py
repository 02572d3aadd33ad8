"""DQN with hindsight learns to flip ten bits; the reward alone would hardly ever be seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from rl_training.config import TrainConfig
from rl_training.runtime import train

BITS = 10


class BitFlip(gym.Env[Any, Any]):
    """A row of bits, of which each action flips one, and the row that they are to become."""

    def __init__(self) -> None:
        bits = Box(0.0, 1.0, (BITS,), dtype=np.float32)
        self.observation_space = Dict(dict.fromkeys(("observation", "desired_goal", "achieved_goal"), bits))
        self.action_space = Discrete(BITS)
        self.bits = self.goal = np.zeros(BITS, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.bits, self.goal = self.np_random.integers(2, size=(2, BITS)).astype(np.float32)
        return self._observe(), {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.bits[action] = 1 - self.bits[action]
        reward = float(self.compute_reward(self.bits, self.goal, {}))
        return self._observe(), reward, reward == 0, False, {"is_success": reward == 0}

    def compute_reward(self, achieved: NDArray[Any], desired: NDArray[Any], info: Any) -> NDArray[Any]:
        return np.where((achieved == desired).all(-1), np.float32(0), np.float32(-1))

    def compute_terminated(self, achieved: NDArray[Any], desired: NDArray[Any], info: Any) -> Any:
        return bool((achieved == desired).all(-1))

    def _observe(self) -> dict[str, NDArray[Any]]:
        return {"observation": self.bits.copy(), "desired_goal": self.goal.copy(), "achieved_goal": self.bits.copy()}


gym.register("BitFlip-v0", entry_point=f"{__name__}:BitFlip", max_episode_steps=BITS)


def _success(tmp_path: Path, **options: Any) -> float:
    kwargs = {
        "learning_starts": 500,
        "update_to_data": 0.5,
        "tau": 0.05,
        "target_update_interval": 1,
        "gamma": 0.98,
        "exploration_schedule": {"kind": "linear", "final_ratio": 0.05, "fraction": 0.5},
        "batch_size": 128,
        "eval_interval": None,
        "compile": "never",
    }
    config = TrainConfig(
        algo="dqn",
        env_id="BitFlip-v0",
        total_timesteps=15_000,
        eval_episodes=100,
        output_dir=str(tmp_path),
        algo_kwargs=kwargs | options,
    )
    return train(config, threads=1).metrics["success_rate"]


@pytest.mark.slow
def test_hindsight_learns_what_the_reward_alone_does_not(tmp_path: Path) -> None:
    assert _success(tmp_path, replay="hindsight") > 0.9
    assert _success(tmp_path, replay="uniform") < 0.3
