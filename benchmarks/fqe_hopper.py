"""How well values are estimated from hopper-medium: policies of a zoo, trained ones and worse ones, against rollouts.

    python regenerate_d4rl.py hopper-medium hopper.hdf5 --steps 100000
    rl-training train bc --data hopper.hdf5 --out runs ...
    python benchmarks/fqe_hopper.py hopper.hdf5 --runs runs

The truth is the discounted return of 50 episodes of up to 1,000 steps. Needs the policies of the real datasets, in
RL_TRAINING_DATA, and gymnasium[mujoco].
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from fqe_pendulum import between
from stored_policies import DATA, Act, Array, read_policy

from rl_training import estimate
from rl_training.policies import load_policy
from rl_training.selection import regret_at_k, spearman
from rl_training.storage import find_checkpoints

GAMMA = 0.99
TRAINED = ("a2c", "ars", "ppo", "sac", "tqc", "trpo")
TASK = "Hopper-v4"


def policies(runs: Path | None) -> dict[str, Act]:
    """The policies by name: the logged one without its noise, the zoo's, worse ones, and those of runs."""
    folder = DATA / "policies"
    medium = read_policy(folder / "d4rl-hopper-medium-v2.npz", bound=1)
    found: dict[str, Act] = {"medium": medium}
    found |= {f"zoo {name}": read_policy(folder / f"sb3-{name}-Hopper-v3.npz", bound=1) for name in TRAINED}
    found |= {"zero": lambda obs: np.zeros((len(obs), 3)), "half medium": lambda obs: 0.5 * medium(obs)}
    found["medium + noise 0.3"] = _noisy(medium)
    for path in [] if runs is None else find_checkpoints([runs]):
        found[path.parent.parent.name] = load_policy(path).predict
    return found


def _noisy(policy: Act) -> Act:
    """The policy with an error that depends on the observation alone."""
    directions = np.random.default_rng(0).normal(size=(11, 3))
    return lambda obs: np.clip(policy(obs) + 0.3 * np.sin(5 * obs @ directions), -1, 1)


def true_value(act: Act, *, episodes: int = 50) -> tuple[float, float]:
    """Mean discounted return of real episodes, and its standard error."""
    env, returns = gym.make(TASK), []
    for seed in range(episodes):
        obs, total, discount, is_over = env.reset(seed=seed)[0], 0.0, 1.0, False
        while not is_over:
            action: Array = act(obs[None].astype(np.float32))[0]
            obs, reward, terminated, truncated, _ = env.step(action.astype(np.float32))
            total, discount = total + discount * float(reward), discount * GAMMA
            is_over = terminated or truncated
        returns.append(total)
    return float(np.mean(returns)), float(np.std(returns, ddof=1) / np.sqrt(episodes))


def main() -> None:
    """Estimate, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--tau", type=float, default=0.05)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    chosen = policies(arguments.runs)
    truths = {name: true_value(act) for name, act in chosen.items()}
    how: dict[str, Any] = {"hidden_sizes": (arguments.width, arguments.width), "tau": arguments.tau}
    result = estimate(chosen, arguments.data, gamma=GAMMA, threads=1, split="held-out", **how)
    if arguments.json:
        print(json.dumps({"truths": truths, **result.to_plain()}))
        return
    behaviour = f"{result.behavior_value:.1f}, logged {result.logged_value:.1f}, within {result.control_tolerance:.1f}"
    print(f"control: {behaviour}\n")
    print("| policy | truth | raw | value | 95 % interval | novel actions | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, (truth, error) in truths.items():
        one = result[name]
        cells = [f"{truth:.1f} ± {error:.1f}", f"{one.raw_value:.1f}"]
        cells += ["-" if one.value is None else f"{one.value:.1f}", between(one.interval)]
        cells += [f"{one.novel_share:.0%}", one.verdict]
        print(f"| {name} | {' | '.join(cells)} |")
    judged = [one for one in result.policies if one.interval is not None and one.value is not None]
    covered = sum(one.interval[0] <= truths[one.name][0] <= one.interval[1] for one in judged if one.interval)
    every = [truths[one.name][0] for one in result.policies]
    print(f"\ncovered by intervals {covered} of {len(judged)}")
    print(f"Spearman of all raw estimates {spearman([one.raw_value for one in result.policies], every):.2f}")
    if len(judged) > 1:
        known = [truths[one.name][0] for one in judged]
        values = [float(one.value or 0) for one in judged]
        print(f"Spearman of estimates {spearman(known, values):.2f}, regret@1 {regret_at_k(known, values, 1):.2f}")
    print(f"not distinguishable from the best: {', '.join(result.best)}")


if __name__ == "__main__":
    main()
