"""How well values are estimated from logs of locomotion: six policies per task, of known value, on five logs.

    python benchmarks/fqe_locomotion.py regenerate_d4rl.py --out locomotion

The script named first rolls out D4RL's medium policies. Clones and learners are trained on other episodes than those of
the logs. The truth is the mean discounted return of real episodes. All parts are stored in --out: run it again to
continue. Needs the policies of the real datasets, in RL_TRAINING_DATA, and gymnasium[mujoco].
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from stored_policies import DATA, Act, Array, read_policy

from rl_training import estimate
from rl_training.policies import load_policy
from rl_training.selection import spearman

TASKS = {"hopper": "Hopper-v4", "halfcheetah": "HalfCheetah-v4", "ant": "Ant-v4"}
LOGS = (("hopper", 0), ("hopper", 1), ("halfcheetah", 0), ("halfcheetah", 1), ("ant", 0))
SHAPES = {"hopper": (3, 11), "halfcheetah": (6, 17), "ant": (8, 111)}
"""The size of actions, and of the observations of the logged policies."""
OTHERS = 9
"""The seed of the episodes that train the clone and the learner."""
STEPS = {"hopper": 45_000, "halfcheetah": 50_000, "ant": 50_000}
TRAINED = {"clone": ("bc", 5000), "td3_bc": ("td3_bc", 6000)}
GAMMAS = (0.98, 0.99, 0.995, 1.0)
EPISODES = 50


def stored(path: Path, make: Callable[[], Any]) -> Any:
    """What the file has, or what is made now and written to it."""
    if not path.exists():
        path.write_text(json.dumps(make()))
    return json.loads(path.read_text())


def make_log(script: Path, folder: Path, task: str, seed: int) -> Path:
    """The log of one task and seed."""
    path = folder / f"{task}_{seed}.hdf5"
    if not path.exists():
        more = ["--steps", str(STEPS[task]), "--seed", str(seed)]
        subprocess.run([sys.executable, str(script), f"{task}-medium", str(path), *more], check=True)
    return path


def policies(script: Path, folder: Path, task: str) -> dict[str, Act]:
    """The policies by name: the logged one without its noise, with more noise and halved, none, and trained ones."""
    others, found = make_log(script, folder, task, OTHERS), {}
    for name, (algo, updates) in TRAINED.items():
        run = folder / f"{task}_{name}"
        if not (run / "result.json").exists():
            train = [sys.executable, "-m", "rl_training", "train", algo, "--data", str(others)]
            train += ["--run-name", run.name, "--out", str(folder), "--total-timesteps", str(updates)]
            subprocess.run([*train, "--quiet"], check=True, stdout=subprocess.DEVNULL)
        found[name] = load_policy(run).predict
    path, rng = DATA / "policies" / f"d4rl-{task}-medium-v2.npz", np.random.default_rng(0)
    logged, (size, width) = read_policy(path, bound=1), SHAPES[task]

    def medium(obs: Array) -> Array:
        # That of the ant was trained with contact forces, which are 0 in the versions of today.
        return logged(np.pad(obs, ((0, 0), (0, width - obs.shape[1]))))

    return found | {
        "medium": medium,
        "noisy": lambda obs: np.clip(medium(obs) + 0.3 * rng.normal(size=(len(obs), size)), -1, 1),
        "half": lambda obs: 0.5 * medium(obs),
        "still": lambda obs: np.zeros((len(obs), size)),
    }


def true_values(act: Act, task: str) -> dict[str, tuple[float, float]]:
    """Mean discounted return of real episodes and its standard error, by discount."""
    env, returns = gym.make(TASKS[task]), []
    for seed in range(EPISODES):
        obs, rewards, is_over = env.reset(seed=seed)[0], [], False
        while not is_over:
            action: Array = act(obs[None].astype(np.float32))[0]
            obs, reward, terminated, truncated, _ = env.step(action.astype(np.float32))
            rewards.append(float(reward))
            is_over = terminated or truncated
        returns.append([float(np.dot(rewards, gamma ** np.arange(len(rewards)))) for gamma in GAMMAS])
    means, errors = np.mean(returns, axis=0), np.std(returns, axis=0, ddof=1) / np.sqrt(EPISODES)
    return {str(gamma): (float(each), float(error)) for gamma, each, error in zip(GAMMAS, means, errors, strict=True)}
