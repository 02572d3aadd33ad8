"""Estimates of policies for ICU-Sepsis from a log of its clinicians, against exact values.

The log is drawn from the clinicians' policy. A state is observed as the 47 numbers of its cluster's centre. The
policies lean to what is good by the clinicians' own values, more and more (tilts 1 to 50), up to the greedy choice.
Prints a table; with --json, all numbers. With --logs, how often weights are refused in as many logs, without fits.
Needs the real datasets, in RL_TRAINING_DATA.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np

from rl_training import estimate
from rl_training.ope.weights import check_weights, diagnose, second_moment_radius
from rl_training.selection import Estimates

# The task is that of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from sepsis import Floats, Sepsis

DATA = Path(os.environ.get("RL_TRAINING_DATA", Path(__file__).parents[2] / "shared" / "data"))
GAMMA = 0.99
TILTS = (1, 5, 10, 20, 50)


def tables(task: Sepsis) -> dict[str, Floats]:
    """The policies by name, as probabilities of actions in every state."""
    tilted = {f"tilt {eta}": task.tilted(eta) for eta in TILTS}
    return {"clinicians": task.clinicians, **tilted, "greedy": task.greedy()}


def row(name: str, table: Floats, found: Estimates, task: Sepsis) -> str:
    """One policy as a line of the table."""
    fit, weighted = found[name], found.by_weights(name)
    _, _, radius = task.variance(table)
    by_fit = f"refused ({fit.raw_value:.3f})"
    if fit.value is not None and fit.interval is not None:
        by_fit = _text(fit.value, fit.interval)
    numbers = ["refused", "-", "-"]
    if weighted.headline is not None and weighted.headline.interval is not None:
        others = [f"{weighted[each].value:.3f}" for each in ("IS", "WDR")]
        numbers = [_text(weighted.headline.value, weighted.headline.interval), *others]
    effective = f"{weighted.weights['effective_sample_size']:.0f}"
    estimated = f"{radius:.2f} ({weighted.weights['second_moment_radius']:.2f})"
    return " | ".join([name, f"{task.value(table, GAMMA):.3f}", by_fit, *numbers, effective, estimated])


def refusals(task: Sepsis, episodes: int, logs: int) -> None:
    """How often the weights of each policy are refused: by the table of limits, by second moments, by one of both."""
    policies = tables(task)
    counts = {name: np.zeros(3, dtype=int) for name in policies}
    for seed in range(logs):
        log = task.sample(episodes, np.random.default_rng(seed))
        known, states = np.unique(log.states, return_inverse=True)
        places = np.searchsorted(known, log.next_states).clip(max=len(known) - 1)
        after = np.where(known[places] == log.next_states, places, -1)
        behavior = task.clinicians[log.states, log.actions]
        for name, table in policies.items():
            chances = table[log.states, log.actions]
            by_limits = check_weights(diagnose(task.weighted(log, table).weights)).level == "refuse"
            by_squares = second_moment_radius(states, log.actions, after, chances, behavior) >= 1
            counts[name] += [by_limits, by_squares, by_limits or by_squares]
    print(
        f"refused in {logs} logs of {episodes} episodes\n\npolicy | by the limits | by second moments | by one of both"
    )
    print(" | ".join(["---"] * 4))
    for name, found in counts.items():
        print(" | ".join([name, *map(str, found)]))


def _text(value: float, interval: tuple[float, float]) -> str:
    return f"{value:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"


def main() -> None:
    """Draw a log, judge all policies by it, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1000)
    parser.add_argument("--updates", type=int, help="default as many as kappa 5 needs")
    parser.add_argument("--members", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--logs", type=int, help="only count refusals of weights, in as many logs")
    parser.add_argument("--json", type=Path, help="write all numbers to this file")
    options = parser.parse_args()
    task = Sepsis(DATA / "icu_sepsis" / "dynamics.npz")
    if options.logs is not None:
        refusals(task, options.episodes, options.logs)
        return
    log = task.arrays(task.sample(options.episodes, np.random.default_rng(options.seed)))
    policies = {name: task.function(table) for name, table in tables(task).items()}
    begin = time.perf_counter()
    how = {"updates": options.updates, "members": options.members, "seed": options.seed, "split": "held-out"}
    found = estimate(policies, log, gamma=GAMMA, **how)
    took = time.perf_counter() - begin
    about = f"{found.rows} rows, {found.updates} updates, kappa {found.kappa:.1f}"
    print(f"{options.episodes} episodes, {about}, {took:.0f} s")
    print(f"control: the behaviour is estimated {found.behavior_value:.3f}, logged {found.logged_value:.3f}\n")
    print("policy | truth | fit | PDWIS | IS | WDR | episodes that count | radius (by the log)")
    print(" | ".join(["---"] * 8))
    for name, table in tables(task).items():
        print(row(name, table, found, task))
    for each in found.policies:
        for reason in each.reasons:
            print(f"{each.name}, fit: {reason}")
    for weighted in found.weighted:
        for reason in weighted.reasons:
            print(f"{weighted.name}, weights, {weighted.level}: {reason}")
    if options.json is not None:
        options.json.write_text(json.dumps(found.to_plain(), indent=1) + "\n")


if __name__ == "__main__":
    main()
