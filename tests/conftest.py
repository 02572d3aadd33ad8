"""What tests share: where optional data is, and small runs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import rl_training
from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig, load_config
from rl_training.core.batches import Rollout
from rl_training.experiment import pools

# Tests train tiny networks, in this process and in others: more threads would only get in each other's way.
os.environ["OMP_NUM_THREADS"] = "1"
torch.set_num_threads(1)
# The package may be found through a relative PYTHONPATH; processes that tests start elsewhere must find it too.
os.environ["PYTHONPATH"] = str(Path(rl_training.__file__).parents[1])
# Runs that tests make do not belong into the index of the user's own runs.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="rl-training-tests-")

# Started with `nohup` or in the background of a script, the tests ignore some signals, and so would the processes that
# they start and send these signals to. A handler is not inherited, in contrast to ignoring: this process survives a
# closed terminal, and those that it starts have the system's defaults.
for _name, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", lambda *_: None)):
    _number = getattr(signal, _name, None)
    if _number is not None and signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _handler)

DATA_FOLDER = Path(os.environ.get("RL_TRAINING_DATA", Path(__file__).parents[2] / "shared" / "data"))
"""Real datasets to test on; not part of the project."""


@pytest.fixture(scope="session", autouse=True)
def _prepared_workers() -> Iterator[None]:
    """Workers of sweeps are copies of one process that has imported the package, instead of importing it one by one.

    As workers do, they know nothing of this process. Commands in processes of their own start theirs as users do.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pytest", "rl_training.experiment.pools", "rl_training.runtime.trainer"])
    calls = SimpleNamespace(get_context=lambda _: context, current_process=multiprocessing.current_process)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "mp", calls)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real datasets; the test is skipped where it is absent."""
    if not DATA_FOLDER.is_dir():
        pytest.skip(f"needs the real datasets, which are not in {DATA_FOLDER} (set RL_TRAINING_DATA)")
    return DATA_FOLDER


@pytest.fixture(params=[1, 2], ids="{} threads".format)
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Compute with one thread, and with two."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def float64() -> Iterator[None]:
    """Networks are made in float64, those of other packages too."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture
def tiny_config(tmp_path: Path) -> Callable[..., TrainConfig]:
    """A run of seconds: tiny networks, Pendulum or the bundled goal task; arguments are `--set` overrides.

    Offline, on a small random dataset; online, with updates from the fifth step on, in episodes of five.
    """

    def make(algo: str = "td3_bc", *overrides: str) -> TrainConfig:
        tiny = [
            "total_timesteps=20",
            "eval_episodes=1",
            "log_interval=10",
            "checkpoint_interval=10",
            f"output_dir={tmp_path / 'runs'}",
            "algo_kwargs.batch_size=16",
            "algo_kwargs.eval_interval=10",
            "algo_kwargs.hidden_sizes=[8, 8]",
        ]
        if ALGORITHMS[algo].mode != "online":
            tiny.append("algo_kwargs.dataset_size=400")
        if isinstance(ALGORITHMS[algo].reads, Rollout):
            tiny += [
                "algo_kwargs.rollout_steps=5",
                "algo_kwargs.epochs=5",
                "num_envs=1",
                "env_kwargs.max_episode_steps=7",
            ]
        elif ALGORITHMS[algo].mode != "offline":
            tiny += ["algo_kwargs.learning_starts=5", "algo_kwargs.update_to_data=1", "env_kwargs.max_episode_steps=5"]
        return load_config(packaged(algo), overrides=[*tiny, *overrides])

    return make


def packaged(algo: str) -> str:
    """The smallest config that is shipped for an algorithm."""
    own = {"her": "her/point_goal", "ppo": "ppo/cartpole"}
    is_discrete = "continuous" not in ALGORITHMS[algo].action_kinds
    return own.get(algo, f"{algo}/cartpole" if is_discrete else f"{algo}/pendulum")


def transitions(rows: int = 60, *, episode: int = 20, obs_dim: int = 3, seed: int = 0) -> dict[str, NDArray[Any]]:
    """Consecutive episodes of equal length in D4RL's names, each cut by a time limit."""
    rng = np.random.default_rng(seed)
    obs = rng.normal(size=(rows + 1, obs_dim)).astype(np.float32)
    timeouts = np.arange(1, rows + 1) % episode == 0
    return {
        "observations": obs[:-1],
        "actions": rng.uniform(-1, 1, size=(rows, 1)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "next_observations": obs[1:],
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": timeouts,
    }
