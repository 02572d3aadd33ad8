"""How well values are estimated from a log: ten Pendulum policies, six trained and four made worse, against the truth.

The truth is the discounted return over 1,000 steps of the exact dynamics from the 500 logged first states. Prints a
table of estimates, errors and intervals; with --json, all numbers. Needs the real datasets, in RL_TRAINING_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from stored_policies import DATA, Act, Array, read_policy

from rl_training import estimate
from rl_training.data import load_transition_dataset
from rl_training.ope import student_interval
from rl_training.selection import spearman

TRAINED = ("a2c", "ars", "ppo", "sac", "tqc", "trpo")
DISTINCT = ("sac", "half-sac", "pd", "zero", "-sac")
"""Policies of clearly different quality."""
GAMMA = 0.99


def policies(folder: Path) -> dict[str, Act]:
    """The ten policies by name."""
    found = {name: read_policy(folder / f"sb3-{name}-Pendulum-v1.npz", bound=2) for name in TRAINED}
    sac = found["sac"]
    return {
        **found,
        "zero": lambda obs: np.zeros((len(obs), 1)),
        "pd": lambda obs: np.clip(-10 * np.arctan2(obs[:, 1:2], obs[:, :1]) - 2 * obs[:, 2:], -2, 2),
        "half-sac": lambda obs: 0.5 * sac(obs),
        "-sac": lambda obs: -sac(obs),
    }


def true_value(act: Act, obs: Array, *, gamma: float = GAMMA, steps: int = 1000) -> float:
    """The discounted return from these states, by the equations of the pendulum."""
    angle, speed, total = np.arctan2(obs[:, 1], obs[:, 0]), obs[:, 2].astype(np.float64), 0.0
    for step in range(steps):
        torque = np.clip(act(np.stack([np.cos(angle), np.sin(angle), speed], axis=1))[:, 0], -2, 2)
        wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
        total += gamma**step * float(-(wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2).mean())
        speed = np.clip(speed + 0.05 * (15 * np.sin(angle) + 3 * torque), -8, 8)
        angle = angle + 0.05 * speed
    return total


def between(interval: tuple[float, float] | None) -> str:
    """An interval in words."""
    return "-" if interval is None else f"{interval[0]:.0f} to {interval[1]:.0f}"


def main() -> None:
    """Estimate, compare and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--kappa", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--policies", nargs="*", default=None)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    log = DATA / "pendulum" / "pendulum_replay_v1.1.0.h5"
    dataset = load_transition_dataset(log)
    first = dataset.obs[dataset.episode_bounds()[:, 0]].numpy()
    chosen = {name: act for name, act in policies(DATA / "policies").items() if name in (arguments.policies or [name])}
    truths = {name: true_value(act, first) for name, act in chosen.items()}
    begin = time.perf_counter()
    how: dict[str, Any] = {"hidden_sizes": (arguments.width, arguments.width), "kappa": arguments.kappa}
    result = estimate(chosen, log, gamma=GAMMA, members=arguments.members, threads=1, split="held-out", **how)
    seconds = time.perf_counter() - begin
    if arguments.json:
        print(json.dumps({"truths": truths, "seconds": seconds, **result.to_plain()}))
        return
    print(
        f"control: {result.behavior_value:.1f}, logged {result.logged_value:.1f}, within {result.control_tolerance:.1f}"
    )
    print("| policy | truth | raw | error | members alone | value | 95 % interval | verdict |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    covered = {"members alone": 0, "intervals": 0}
    for name, truth in truths.items():
        one = result[name]
        own = student_interval(np.array([one.raw_value, *one.members]))
        covered["members alone"] += own[0] <= truth <= own[1]
        covered["intervals"] += one.interval is not None and one.interval[0] <= truth <= one.interval[1]
        cells = [f"{truth:.1f}", f"{one.raw_value:.1f}", f"{one.raw_value - truth:+.1f}", between(own)]
        cells += ["-" if one.value is None else f"{one.value:.1f}", between(one.interval), one.verdict]
        print(f"| {name} | {' | '.join(cells)} |")
    distinct = [name for name in DISTINCT if name in truths]
    ranks = spearman([truths[name] for name in distinct], [result[name].raw_value for name in distinct])
    judged = sum(one.interval is not None for one in result.policies)
    alone, whole = covered["members alone"], covered["intervals"]
    print(f"covered by members alone {alone} of {len(truths)}, by intervals {whole} of {judged}")
    print(f"Spearman of {len(distinct)} distinct policies {ranks:.2f}")
    print(f"not distinguishable from the best: {', '.join(result.best)}; {seconds:.0f} s in all")


if __name__ == "__main__":
    main()
