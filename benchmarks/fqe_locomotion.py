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
from collections.abc import Callable, Mapping
from functools import partial
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


def judge(script: Path, folder: Path, task: str, seed: int, how: Mapping[str, Any]) -> dict[str, Any]:
    """The estimates of all policies of a task from one log, and the time that they took."""
    chosen = policies(script, folder, task)
    began = time.monotonic()
    found = estimate(chosen, make_log(script, folder, task, seed), threads=1, compiled=True, **how)
    return {**found.to_plain(), "seconds": time.monotonic() - began}


def show(task: str, seed: int, found: Mapping[str, Any], truths: Mapping[str, Any]) -> dict[str, Any]:
    """Print the estimates from one log beside the truths; coverage, widths and ranks of those that are judged."""
    gamma, std = str(found["gamma"]), found["logged_std"]
    control = f"control {found['behavior_value']:.1f}, logged {found['logged_value']:.1f} ± {std:.1f}"
    updates = f"{found['updates']} updates, {found['seconds']:.0f} s"
    print(f"\n**{task}, log {seed}**: {found['episodes']} episodes, discount {gamma}; {control}; {updates}\n")
    print("| policy | truth | raw | value | 95 % interval | far actions | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    judged = []
    for one in found["policies"]:
        truth, error = truths[one["name"]][gamma]
        low, high = one["interval"] or (None, None)
        cells = [f"{truth:.1f} ± {error:.1f}", f"{one['raw_value']:.1f}"]
        cells += ["-", "-"] if low is None else [f"{one['value']:.1f}", f"{low:.1f} to {high:.1f}"]
        print(f"| {one['name']} | {' | '.join(cells)} | {one['novel_share']:.0%} | {one['verdict']} |")
        if low is not None:
            judged.append((one["value"], truth, low <= truth <= high, high - low, (high - low) / std))
    values, known, covered, widths, relative = (
        (list(column) for column in zip(*judged, strict=True)) if judged else 5 * [[]]
    )
    return {
        "judged": len(judged),
        "covered": sum(covered),
        "width": float(np.mean(widths or np.nan)),
        "width / std": float(np.mean(relative or np.nan)),
        "clone judged": any(one["name"] == "clone" and one["interval"] for one in found["policies"]),
        "rank correlation": spearman(values, known) if len(judged) > 1 else float("nan"),
        "seconds": found["seconds"],
    }


def main() -> None:
    """Make what is missing, then print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("script", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gamma", type=float, default=0.99, choices=GAMMAS)
    parser.add_argument("--kappa", type=float, default=3.0)
    parser.add_argument("--tag", default="now", help="name of these estimates, to keep those of other versions")
    arguments = parser.parse_args()
    script, folder = arguments.script, arguments.out
    folder.mkdir(parents=True, exist_ok=True)
    how = {"gamma": arguments.gamma, "kappa": arguments.kappa}
    rows = {}
    for task, seed in LOGS:
        truths = {
            name: stored(folder / f"truth_{task}_{name}.json", partial(true_values, act, task))
            for name, act in policies(script, folder, task).items()
        }
        path = folder / f"{arguments.tag}_{arguments.gamma:g}_{arguments.kappa:g}_{task}_{seed}.json"
        found = stored(path, partial(judge, script, folder, task, seed, how))
        rows[f"{task} {seed}"] = show(task, seed, found, truths)
    names = list(next(iter(rows.values())))
    print(f"\n| log | {' | '.join(names)} |\n| --- |{' --- |' * len(names)}")
    for log, row in rows.items():
        print(f"| {log} | {' | '.join(f'{row[name]:.3g}' for name in names)} |")
    means = {name: float(np.nanmean([row[name] for row in rows.values()])) for name in names}
    print(f"| mean | {' | '.join(f'{means[name]:.3g}' for name in names)} |")


if __name__ == "__main__":
    main()
