"""Runs of a moment, and what they come to."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import probe as _probe  # noqa: F401  registers its environments
import torch
from conftest import packaged

from rl_training.config import TrainConfig, load_config
from rl_training.runtime import TrainerState
from rl_training.storage import load_checkpoint, read_metrics

SMALL = (
    "total_timesteps=40",
    "eval_episodes=1",
    "log_interval=10",
    "checkpoint_interval=20",
    "algo_kwargs.batch_size=8",
    "algo_kwargs.eval_interval=20",
    "algo_kwargs.hidden_sizes=[8, 8]",
    "algo_kwargs.learning_starts=12",
)
"""Overrides that make a packaged config of a run that acts one of a moment."""

PROBE = ("env_id=SavedProbe-v0", "algo_kwargs.reward_scale=0.001")
"""Overrides for the environment whose every transition is known."""

PRIOR = (
    "algo_kwargs.mode=offline_to_online",
    "algo_kwargs.dataset_size=400",
    "algo_kwargs.offline_pretrain_updates=15",
)
"""Overrides that let an offline algorithm continue online."""


def online_config(output: Path, algo: str = "sac", *overrides: str) -> TrainConfig:
    """The packaged config of an algorithm, made small."""
    return load_config(packaged(algo), overrides=[*SMALL, f"output_dir={output}", *overrides])


def blank_state(total: int = 100, *, run_dir: Path = Path(), **counters: Any) -> TrainerState:
    """Where a run is that has only a name and counters."""
    algorithm: Any = SimpleNamespace(name="td3_bc")
    policy: Any = None
    return TrainerState(algorithm, policy, TrainConfig(algo="td3_bc"), run_dir, total, **counters)


def differences(ours: Any, theirs: Any, where: str = "") -> list[str]:
    """The places at which two trees of tensors and plain values are not the same to the last bit."""
    if isinstance(ours, torch.Tensor) and isinstance(theirs, torch.Tensor):
        same = ours.dtype == theirs.dtype and torch.equal(ours, theirs)
        return [] if same else [where]
    if isinstance(ours, dict) and isinstance(theirs, dict):
        names = [*ours, *(name for name in theirs if name not in ours)]
        return [
            place
            for name in names
            for place in differences(ours.get(name), theirs.get(name), f"{where}.{name}" if where else str(name))
        ]
    if isinstance(ours, (list, tuple)) and isinstance(theirs, (list, tuple)) and len(ours) == len(theirs):
        return [
            place
            for number, pair in enumerate(zip(ours, theirs, strict=True))
            for place in differences(*pair, f"{where}[{number}]")
        ]
    return [] if ours == theirs and type(ours) is type(theirs) else [where]


def small(output: Path, *overrides: str) -> TrainConfig:
    """A run of a moment on random data."""
    options = [
        "total_timesteps=40",
        "eval_episodes=1",
        "env_kwargs.max_episode_steps=20",
        "log_interval=10",
        "checkpoint_interval=10",
        f"output_dir={output}",
        "algo_kwargs.batch_size=16",
        "algo_kwargs.eval_interval=20",
        "algo_kwargs.hidden_sizes=[8, 8]",
        "algo_kwargs.dataset_size=400",
    ]
    algo = next((each.removeprefix("algo=") for each in overrides if each.startswith("algo=")), "td3_bc")
    return load_config(f"{algo}/pendulum", overrides=[*options, *overrides])


def state_of(run: Path) -> dict[str, object]:
    """What decides how a run continues, in its last checkpoint."""
    tree = load_checkpoint(run / "checkpoints" / "latest.pt")
    return {"algorithm": tree["algorithm"], "random": tree["random"], "state": tree["trainer"]["state"]}


def rows_of(run: Path) -> list[dict[str, object]]:
    """The metrics of a run without those of the clock."""
    return [{name: value for name, value in row.items() if "per_second" not in name} for row in read_metrics(run)]
