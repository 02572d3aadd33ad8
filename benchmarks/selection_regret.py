"""What is lost by choosing among 20 Pendulum policies from a log, alone and with a few real episodes.

The policies are checkpoints of a SAC run and of a TD3+BC run, and trained policies that were scaled, negated or left
alone. The log is `pendulum_replay`. `select` values them; then the rules spend episodes that are drawn from a table of
returns, many times. Regret is the best mean return minus that of the choice, as a share of the range of means. Runs,
values and returns are kept in --out, so that a second call only repeats the draws. Needs the real datasets, in
RL_TRAINING_DATA.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fqe_pendulum import GAMMA
from stored_policies import DATA, Act, Array, read_policy

from rl_training import SAC, TD3BC, select
from rl_training.data import load_transition_dataset
from rl_training.runtime import load_policy
from rl_training.selection import NormalSelection, Selection, data_given
from rl_training.selection.real_episodes import Prior, prior_from_values
from rl_training.storage import policy_files

LOG = DATA / "pendulum" / "pendulum_replay_v1.1.0.h5"
BUDGETS = (0, 1, 5, 10, 20, 40)
STEPS, EPISODES = 200, 300
"""Steps of an episode, and episodes per policy in the table."""
Rule = Callable[[Array, int, np.random.Generator], int]
"""From a table of returns (policies, episodes) and a budget to the choice."""


def train_runs(out: Path) -> tuple[list[Path], list[Path]]:
    """The checkpoints of two short runs, one that acts and one that learns from the log; made once."""
    common: Any = {"output_dir": str(out), "log_interval": 1000, "hidden_sizes": (64, 64), "seed": 1}
    if not (out / "sac" / "result.json").is_file():
        SAC(env="Pendulum-v1", run_name="sac", total_timesteps=3000, checkpoint_interval=500, learning_starts=500,
            eval_interval=None, eval_episodes=1, **common).learn()  # fmt: skip
    if not (out / "td3_bc" / "result.json").is_file():
        TD3BC(dataset_path=str(LOG), run_name="td3_bc", total_timesteps=3000, checkpoint_interval=500, bc_alpha=30.0,
              eval_interval=None, **common).learn()  # fmt: skip
    return policy_files(out / "sac")[1:], policy_files(out / "td3_bc")[1:]


def candidates(out: Path) -> dict[str, Act]:
    """The twenty policies: six checkpoints of each run, and eight others."""
    found: dict[str, Act] = {}
    for name, files in zip(("sac", "td3_bc"), train_runs(out), strict=True):
        found |= {f"{name} {number}": load_policy(file).predict for number, file in enumerate(files, start=1)}
    sac, a2c = (read_policy(DATA / "policies" / f"sb3-{name}-Pendulum-v1.npz", bound=2) for name in ("sac", "a2c"))
    return {
        **found,
        "trained": sac,
        "trained, 0.75": lambda obs: 0.75 * sac(obs),
        "trained, half": lambda obs: 0.5 * sac(obs),
        "trained, quarter": lambda obs: 0.25 * sac(obs),
        "trained, negated": lambda obs: -sac(obs),
        "other, half": lambda obs: 0.5 * a2c(obs),
        "zero": lambda obs: np.zeros((len(obs), 1)),
        "pd": lambda obs: np.clip(-10 * np.arctan2(obs[:, 1:2], obs[:, :1]) - 2 * obs[:, 2:], -2, 2),
    }


def table_of_returns(policies: Sequence[Act]) -> Array:
    """Returns (policies, episodes) by the equations of the pendulum; all meet the same first states."""
    rng = np.random.default_rng(0)
    start = rng.uniform([-np.pi, -1], [np.pi, 1], (EPISODES, 2))
    return np.stack([_returns(act, start[:, 0].copy(), start[:, 1].copy()) for act in policies])


def _returns(act: Act, angle: Array, speed: Array) -> Array:
    total = np.zeros(len(angle))
    for _ in range(STEPS):
        obs = np.stack([np.cos(angle), np.sin(angle), speed], axis=1).astype(np.float32)
        torque = np.clip(act(obs)[:, 0], -2, 2)
        wrapped = (angle + np.pi) % (2 * np.pi) - np.pi
        total -= wrapped**2 + 0.1 * speed**2 + 0.001 * torque**2
        speed = np.clip(speed + 0.05 * (15 * np.sin(angle) + 3 * torque), -8, 8)
        angle = angle + 0.05 * speed
    return total


def spend(rule: NormalSelection, table: Array, budget: int, rng: np.random.Generator) -> int:
    """Episodes by the rule, each drawn from the table, until the choice is clear or the budget is spent."""
    order = rng.permutation(table.shape[1])
    for _ in range(budget):
        if rule.is_decided():
            break
        chosen = rule.next()
        rule.observe(chosen, float(table[chosen, order[rule.counts[chosen]]]))
    return rule.best()


def uniform(table: Array, budget: int, rng: np.random.Generator) -> int:
    """Random policies in turn, each as often as the others; the highest mean wins, or a random policy."""
    order, episodes = rng.permutation(len(table)), rng.permutation(table.shape[1])
    if not budget:
        return int(order[0])
    counts = np.array([budget // len(table) + (k < budget % len(table)) for k in range(len(table))])
    tried = [k for k in range(len(table)) if counts[k]]
    return int(order[max(tried, key=lambda k: table[order[k], episodes[: counts[k]]].mean())])


def regrets(table: Array, rule: Rule, repetitions: int) -> dict[int, tuple[float, float]]:
    """Mean regret and its standard error at every budget."""
    means = table.mean(1)
    found = {}
    for budget in BUDGETS:
        lost = []
        for number in range(repetitions):
            chosen = rule(table, budget, np.random.default_rng([number, budget]))
            lost.append((means.max() - means[chosen]) / (means.max() - means.min()))
        found[budget] = float(np.mean(lost)), float(np.std(lost) / np.sqrt(repetitions))
    return found


def valued(out: Path, policies: dict[str, Act]) -> dict[str, Any]:
    """What `select` says about the policies; made once."""
    file = out / "values.json"
    if not file.is_file():
        begin = time.perf_counter()
        found: Selection = select(policies, LOG, gamma=GAMMA, threads=1, split="held-out")
        file.write_text(json.dumps({"seconds": time.perf_counter() - begin, **found.to_plain()}))
    stored: dict[str, Any] = json.loads(file.read_text())
    return stored


def make_rules(names: Sequence[str], prior: Prior, logged_mean: float) -> dict[str, Rule]:
    """The rules that are compared, by name."""
    ranked = [names.index(name) for name in prior.means]
    last = [number for number, name in enumerate(names) if name in ("sac 6", "td3_bc 6")]

    def permuted(rows: Array, budget: int, rng: np.random.Generator) -> int:
        shuffled = rng.permutation(list(prior.means.values()))
        return ranked[spend(NormalSelection(shuffled, prior.spread), rows[ranked], budget, rng)]

    def flat(rows: Array, budget: int, rng: np.random.Generator) -> int:
        # Among equals the first is taken, so that their order must be drawn.
        order = rng.permutation(len(rows))
        rule = NormalSelection.without_estimates(len(rows), logged_mean, prior.spread)
        return int(order[spend(rule, rows[order], budget, rng)])

    return {
        "estimates as prior": lambda rows, budget, rng: ranked[spend(prior.start(), rows[ranked], budget, rng)],
        "the same values, permuted": permuted,
        "no estimates: flat prior": flat,
        "uniform, highest mean": uniform,
        "last checkpoint": lambda rows, budget, rng: last[rng.integers(len(last))],
    }


def main() -> None:
    """Make the policies, value them, choose many times, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/selection_regret"))
    parser.add_argument("--repetitions", type=int, default=400)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    policies = candidates(arguments.out)
    names = list(policies)
    table, found = table_of_returns(list(policies.values())), valued(arguments.out, policies)
    values = {each["name"]: each["value"] for each in found["candidates"] if each["value"] is not None}
    logged = found["estimates"]["logged_value"]
    log = data_given(load_transition_dataset(LOG), []).log
    print(f"{len(names)} policies, {len(values)} of them valued, in {found['seconds']:.0f} s")
    best = names[int(np.argmax(table.mean(1)))]
    for title, kept in (
        ("all policies", names),
        (f"without {best!r}, the best by far", [n for n in names if n != best]),
    ):
        known = {name: values[name] for name in kept if name in values}
        prior = prior_from_values(known, log, gamma=GAMMA, logged_value=logged)
        print(f"\n{title}\n\n| rule | {' | '.join(map(str, BUDGETS))} |\n| --- |{' --- |' * len(BUDGETS)}")
        rows = table[[names.index(name) for name in kept]]
        for rule_name, rule in make_rules(kept, prior, float(log.dataset.episode_returns().mean())).items():
            lost = regrets(rows, rule, arguments.repetitions).values()
            print(f"| {rule_name} | {' | '.join(f'{mean:.3f} ± {error:.3f}' for mean, error in lost)} |")
    print("\n| policy | mean return | value from the log | verdict |\n| --- | --- | --- | --- |")
    verdicts = {each["name"]: each["verdict"] or "outside the shortlist" for each in found["candidates"]}
    for number in np.argsort(-table.mean(1)):
        value = "-" if names[number] not in values else f"{values[names[number]]:.1f}"
        print(f"| {names[number]} | {table[number].mean():.0f} | {value} | {verdicts[names[number]]} |")
    claim = found["claim"]
    print(f"\nchosen by the log alone: {found['chosen']}; {claim['basis']}: {claim['value']:.1f}, {claim['verdict']}")


if __name__ == "__main__":
    main()
