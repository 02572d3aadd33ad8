"""The runs that are tortured: every algorithm, small enough to be killed thousands of times."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from conftest import packaged
from small_runs import PRIOR, SMALL

from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig, load_config

NAME = "victim"
OFFLINE = (
    "total_timesteps=12",
    "eval_episodes=1",
    "log_interval=4",
    "checkpoint_interval=4",
    "algo_kwargs.dataset_size=400",
    "algo_kwargs.batch_size=8",
    "algo_kwargs.eval_interval=6",
    "algo_kwargs.hidden_sizes=[8, 8]",
)
SAVED = ("env_id=SavedProbe-v0", "algo_kwargs.reward_scale=0.001", "algo_kwargs.save_replay=true")
ROLLOUTS = ("total_timesteps=64", "eval_episodes=1", "log_interval=16", "checkpoint_interval=16")
ONLINE: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("sac", "td3", "ddpg", "redq", "tqc", "crossq"), (*SMALL, *SAVED)),
    "rlpd": (*SMALL, "algo_kwargs.dataset_size=400"),
    "her": SMALL,
    "dqn": SMALL,
    "discrete_sac": SMALL,
    "ppo": ROLLOUTS,
}
"""What makes the run of an algorithm small that acts; all others are offline."""
GOING_BACK = (
    "algo_kwargs.on_divergence=rollback",
    "algo_kwargs.guard_saturation=null",
    "algo_kwargs.guard_action_spread=null",
    "algo_kwargs.guard_value_slack=null",
)
TOO_FAST = ("algo_kwargs.learning_rate=16", "algo_kwargs.guard_weight_growth=100")
SLOWER = ("algo_kwargs.learning_rate=1", "algo_kwargs.guard_weight_growth=12", "algo_kwargs.buffer_capacity=4")


class Case(NamedTuple):
    """A run to be killed."""

    algo: str
    """An algorithm, or a packaged name."""
    overrides: tuple[str, ...]
    """What makes the run small."""
    seeds: tuple[int, ...] = ()
    """Seeds that are trained side by side; none for a single run."""
    compiled: bool = False

    def arguments(self) -> list[str]:
        """The run as `train` takes it; it has a name, so that the same command starts and continues it."""
        name = self.algo if "/" in self.algo else packaged(self.algo)
        compile_option = f"algo_kwargs.compile={'always' if self.compiled else 'never'}"
        return [name, *self.overrides, compile_option, "output_dir=runs", f"run_name={NAME}"]

    def config(self) -> TrainConfig:
        """The same as a configuration."""
        name, *overrides = self.arguments()
        return load_config(name, overrides=overrides)


CASES: dict[str, Case] = {
    **{algo: Case(algo, ONLINE.get(algo, OFFLINE)) for algo in ALGORITHMS},
    "td3_bc_fine_tuning": Case("td3_bc", (*SMALL, *PRIOR)),
    "iql_fine_tuning": Case("iql", (*SMALL, *PRIOR)),
    "cal_ql_fine_tuning": Case("cal_ql", (*SMALL, *PRIOR)),
    "dqn_offline": Case("dqn/cartpole_offline", OFFLINE),
    "bc_seeds": Case("bc", OFFLINE, seeds=(0, 1)),
    "sac_seeds": Case("sac", (*SMALL, *SAVED), seeds=(0, 1)),
    "going_back": Case("td3_bc", (*OFFLINE, *GOING_BACK, *TOO_FAST)),
    "going_back_online": Case("td3", (*SMALL, *GOING_BACK, *SLOWER, "checkpoint_interval=6", "keep_checkpoints=1")),
    "td3_bc_compiled": Case("td3_bc", OFFLINE, compiled=True),
    "iql_compiled": Case("iql", OFFLINE, compiled=True),
    "sac_compiled": Case("sac", (*SMALL, *SAVED), compiled=True),
}
"""What is tortured, by name."""
