"""No guard fires on a configuration that is shipped."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import DATA_FOLDER

from rl_training.config import load_config
from rl_training.core.batches import Rollout
from rl_training.experiment import list_algorithms
from rl_training.runtime import train
from rl_training.runtime.run_options import bind_options
from rl_training.storage.run_directory import read_metrics

HOPPER = DATA_FOLDER / "d4rl" / "mujoco" / "hopper_medium-v2.hdf5"
UPDATES = 200


def _shortened(config: str, output: Path) -> list[str]:
    """Overrides that end a run after some hundred updates; networks, batches and rates are as shipped."""
    record = load_config(config)
    options = bind_options(record)
    short = [f"output_dir={output}", "eval_episodes=1", "log_interval=100", "algo_kwargs.eval_interval=null"]
    short += ["algo_kwargs.compile=never"]
    if options.data.dataset_path is not None:
        short += [f"algo_kwargs.dataset_path={HOPPER}"]
    if options.mode == "offline_to_online":
        short += [f"algo_kwargs.offline_pretrain_updates={UPDATES // 2}"]
    if options.mode == "offline":
        return [*short, f"total_timesteps={UPDATES}"]
    if isinstance(options.algorithm.reads, Rollout):
        return [*short, "total_timesteps=8192"]
    return [*short, "algo_kwargs.learning_starts=100", f"total_timesteps={UPDATES // 2 + 100}"]


@pytest.mark.slow
@pytest.mark.parametrize("config", [config for spec in list_algorithms() for config in spec.configs])
def test_no_guard_fires_on_a_packaged_config(config: str, tmp_path: Path) -> None:
    if load_config(config).algo_kwargs.get("dataset_path") is not None and not HOPPER.is_file():
        pytest.skip(f"needs {HOPPER}")

    result = train(load_config(config, overrides=_shortened(config, tmp_path)))

    kinds = [row["kind"] for row in read_metrics(result.run_dir)]
    assert kinds.count("train") >= 2
    assert "guard" not in kinds
