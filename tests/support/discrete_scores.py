"""Bars for algorithms for discrete actions: CartPole from a replay buffer, ICU-Sepsis from a log of its clinicians.

Each case is an algorithm with its options, a number of updates, and a bar on the mean over three seeds. The bars are
frozen. The options of discrete CQL and SAC on ICU-Sepsis were chosen on the first of these logs, and so was the falling
step size of BCQ on 50,000 episodes.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sepsis import ACTIONS, RUNNING, Floats, Log, Sepsis

from rl_training.config import TrainConfig
from rl_training.runtime import load_policy, train

SEEDS = (0, 1, 2)
DATA = Path(os.environ.get("RL_TRAINING_DATA", Path(__file__).parents[3] / "shared" / "data"))
CARTPOLE_DATA = DATA / "cartpole" / "cartpole_replay_v1.1.0.h5"
SEPSIS_DATA = DATA / "icu_sepsis" / "dynamics.npz"


@dataclass(frozen=True)
class Case:
    """An algorithm, its options, and what it must reach."""

    algo: str
    bar: float
    options: Mapping[str, Any] = field(default_factory=dict)
    updates: int = 20_000


OFFLINE = {"mode": "offline"}
CARTPOLE = {
    "bc": Case("bc", 63, updates=5_000),
    "bc, best 10 %": Case("bc", 150, {"best_fraction": 0.1}, updates=5_000),
    "dqn": Case("dqn", 180, OFFLINE),
    "qr_dqn": Case("dqn", 180, {**OFFLINE, "num_quantiles": 32}),
    "discrete_bcq": Case("discrete_bcq", 180, {"batch_size": 256}),
    "discrete_cql": Case("discrete_cql", 180, {"conservative_weight": 0.5}),
    "discrete_cql, quantiles": Case("discrete_cql", 180, {"conservative_weight": 0.5, "num_quantiles": 32}),
    "discrete_iql": Case("discrete_iql", 180),
    "discrete_crr": Case("discrete_crr", 160),
    "discrete_sac": Case("discrete_sac", 160, {**OFFLINE, "conservative_weight": 0.5, "alpha": 0.05}),
}
"""The mean return of 100 episodes of at most 200 steps; that of the data is 63."""


def cartpole_config(case: Case, seed: int, output: Path, data: Path = CARTPOLE_DATA) -> TrainConfig:
    """A run on logged CartPole, whose final policy plays 100 episodes as long as those of the log could be."""
    return TrainConfig(
        algo=case.algo,
        env_id="CartPole-v1",
        env_kwargs={"max_episode_steps": 200},
        seed=seed,
        total_timesteps=case.updates,
        output_dir=str(output),
        eval_episodes=100,
        algo_kwargs={"dataset_path": str(data), "eval_interval": None, **case.options},
    )


def cartpole_return(case: Case, seed: int, output: Path) -> float:
    """The mean return of the final policy."""
    return train(cartpole_config(case, seed, output), threads=1).metrics["return_mean"]


TABULAR: dict[str, Any] = {
    "encoder": "sepsis:OneHotStates",
    "hidden_sizes": [],
    "normalize_obs": False,
    "batch_size": 256,
    "learning_rate": 3e-3,
    "guard_weight_growth": None,
}
"""Linear networks on one-hot states are tables, whose entries begin near 0 and end where the answer is."""
UNDISCOUNTED = {"gamma": 1.0}
"""Survival counts whenever it comes."""
SEPSIS = {
    "bc": Case("bc", 0.781, updates=5_000),
    "dqn": Case("dqn", 0.79, {**OFFLINE, **UNDISCOUNTED}),
    "qr_dqn": Case("dqn", 0.79, {**OFFLINE, **UNDISCOUNTED, "num_quantiles": 32, "huber_delta": 0.01}),
    "discrete_bcq": Case("discrete_bcq", 0.797, UNDISCOUNTED),
    # Each step adds up to the weight to the value of a frequent action: it must be small where episodes are long.
    "discrete_cql": Case("discrete_cql", 0.790, {"conservative_weight": 0.02}),
    "discrete_iql": Case("discrete_iql", 0.790, {**UNDISCOUNTED, "beta": 30.0}),
    "discrete_crr": Case("discrete_crr", 0.790, {**UNDISCOUNTED, "beta": 0.05}),
    "discrete_sac": Case("discrete_sac", 0.785, {**OFFLINE, "conservative_weight": 0.05, "alpha": 0.01}),
}
"""The exact chance of survival under the final policy: 0.782 by the clinicians, 0.780 by chance, 0.875 at best."""
UNCONSTRAINED = ("dqn", "qr_dqn")
"""For these the bar is from above: nothing keeps them near the log, and they must fail, while claiming 0.90 or more."""


@dataclass(frozen=True)
class Survival:
    """What a policy is worth, and what its own networks say."""

    policy: Floats
    """Probabilities of actions in every state."""
    truth: float
    claim: float


def sepsis_log(task: Sepsis, seed: int, episodes: int = 10_000) -> Log:
    """A log of the clinicians."""
    return task.sample(episodes, np.random.default_rng(seed))


def survival(task: Sepsis, case: Case, log: Log, seed: int, output: Path) -> Survival:
    """Train on a log whose states networks see one-hot, and compute what the policy is worth."""
    arrays = task.arrays(log) | {"observations": log.states[:, None], "next_observations": log.next_states[:, None]}
    config = TrainConfig(
        algo=case.algo,
        seed=seed,
        total_timesteps=case.updates,
        output_dir=str(output),
        algo_kwargs={"num_actions": ACTIONS, "validation_fraction": 0.0, **TABULAR, **case.options},
    )
    saved = load_policy(train(config, dataset=arrays, threads=1).run_dir)
    states = np.arange(RUNNING)[:, None]
    taken = saved.predict(states)
    policy: Floats = np.eye(ACTIONS)[taken]
    has_critic = case.algo != "bc"
    claim = float(task.starts @ saved.predict_value(states, taken)) if has_critic else math.nan
    return Survival(policy, task.value(policy, 1.0), claim)
