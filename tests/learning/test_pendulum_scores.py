"""Scores on real Pendulum data: 20,000 updates, the final policy over 100 episodes with fixed seeds."""

from __future__ import annotations

from pathlib import Path

import pytest

from rl_training.config import TrainConfig
from rl_training.runtime import train

pytestmark = pytest.mark.slow
SEEDS = (0, 1, 2)


def _final_return(algo: str, data: Path, seed: int, output: Path) -> float:
    config = TrainConfig(
        algo=algo,
        env_id="Pendulum-v1",
        seed=seed,
        total_timesteps=20_000,
        output_dir=str(output),
        eval_episodes=100,
        algo_kwargs={"dataset_path": str(data), "eval_interval": None, "compile": "never"},
    )
    return train(config, threads=1).metrics["return_mean"]


@pytest.mark.parametrize("seed", SEEDS)
def test_td3_bc_on_a_replay_buffer_reaches_minus_200_and_beats_cloning(
    seed: int, shared_data: Path, tmp_path: Path
) -> None:
    data = shared_data / "pendulum" / "pendulum_replay_v1.1.0.h5"
    score = _final_return("td3_bc", data, seed, tmp_path)
    assert score >= -200
    assert score > _final_return("bc", data, seed, tmp_path)


@pytest.mark.parametrize("seed", SEEDS)
def test_cloning_an_expert_reaches_minus_201(seed: int, shared_data: Path, tmp_path: Path) -> None:
    assert _final_return("bc", shared_data / "pendulum" / "pendulum_expert_sac.npz", seed, tmp_path) >= -201
