"""How well algorithms for discrete actions learn: one command, run again to continue.

    python benchmarks/discrete_learning.py [--tasks replay mediocre cartpole lunar_lander] [--seeds 0 1 2]

replay:        d3rlpy's replay buffer of CartPole, episodes of at most 200 steps; cases and bars are those of
               tests/learning/test_discrete_scores.py.
mediocre:      50,000 steps of a PPO policy that was stopped early and samples its actions; episodes of 500 steps,
               10,000 updates.
cartpole:      from scratch, packaged configurations, 100,000 steps.
lunar_lander:  from scratch, packaged configurations, 100,000 steps, beside Stable-Baselines3's DQN with the settings
               that its authors tuned for this task.

The final policy plays 100 episodes. Runs are kept in --output. The tables are written to
benchmarks/results/discrete_learning.md. Needs the real datasets, in RL_TRAINING_DATA, for `replay`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from itertools import pairwise
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import gymnasium as gym

from rl_training import run_sweep
from rl_training.acting import EVAL_SEED
from rl_training.config import read_config
from rl_training.data import load_transition_dataset
from rl_training.runtime import collect, load_policy, train

# The cases and their bars are those of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from discrete_scores import CARTPOLE, CARTPOLE_DATA, Case

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "discrete_learning.md"
EPISODES = 100
SOLVED = 475.0
"""The mean return from which CartPole-v1 counts as solved."""
ONLINE_STEPS = 100_000
MEDIOCRE_STEPS = 12_288
"""Steps that the policy behind the mediocre data has learned from."""
ZOO_DQN: dict[str, Any] = {
    "learning_rate": 6.3e-4,
    "batch_size": 128,
    "buffer_size": 50_000,
    "learning_starts": 0,
    "gamma": 0.99,
    "target_update_interval": 250,
    "train_freq": 4,
    "gradient_steps": -1,
    "exploration_fraction": 0.12,
    "exploration_final_eps": 0.1,
    "policy_kwargs": {"net_arch": [256, 256]},
}
"""Settings of RL Baselines3 Zoo for LunarLander."""
Rows = list[str]
TITLE = """\
# What algorithms for discrete actions learn

Written by `benchmarks/discrete_learning.py`, one thread per run. The final policy plays 100 episodes without noise.
"""


def offline(cases: Mapping[str, Case], options: dict[str, Any], args: argparse.Namespace, task: str) -> Rows:
    """The rows of a table: an algorithm, the final return of every seed, their mean, and the bar."""
    spec = {
        "options": {"env_id": "CartPole-v1", "eval_episodes": EPISODES, "algo_kwargs.eval_interval": None, **options},
        "cases": [
            {"algo": case.algo, "total_timesteps": case.updates}
            | {f"algo_kwargs.{name}": value for name, value in case.options.items()}
            for case in cases.values()
        ],
        "seeds": args.seeds,
    }
    found = run_sweep(spec, args.output / task, workers=args.workers)
    rows = []
    for number, (name, case) in enumerate(cases.items()):
        part = found[number * len(args.seeds) : (number + 1) * len(args.seeds)]
        returns = [float((each.progress.metrics or {})["return_mean"]) for each in part]
        shown = ", ".join(f"{value:.1f}" for value in returns)
        bar = f" {case.bar:g} |" if task == "replay" else ""
        rows.append(f"| `{name}` | {shown} | {statistics.mean(returns):.1f} |{bar}")
    return rows


def replay(args: argparse.Namespace) -> Rows:
    """CartPole from d3rlpy's replay buffer."""
    options = {"env_kwargs": {"max_episode_steps": 200}, "algo_kwargs.dataset_path": str(CARTPOLE_DATA)}
    head = ["| Algorithm | Final return by seed | Mean | Bar |", "| --- | --- | --- | --- |"]
    text = "The mean return of the data is 63.1. Episodes are cut at 200 steps, as those of the data were."
    return ["## CartPole from a replay buffer", "", text, "", *head, *offline(CARTPOLE, options, args, "replay")]


def mediocre(args: argparse.Namespace) -> Rows:
    """CartPole from the log of a policy that was stopped early."""
    path = args.output / "mediocre.npz"
    if not path.exists():
        options = {"total_timesteps": MEDIOCRE_STEPS, "output_dir": str(args.output / "behaviour")}
        run = train({**read_config("ppo/cartpole"), **options})
        collect(str(path), checkpoint=str(run.run_dir), steps=50_000, stochastic=True, seed=0)
    returns = load_transition_dataset(path).episode_returns()
    cases = {name: replace(case, updates=min(case.updates, 10_000)) for name, case in CARTPOLE.items()}
    rows = offline(cases, {"algo_kwargs.dataset_path": str(path)}, args, "mediocre")
    data = f"The mean return of the data is {returns.mean():.1f}, and its best {returns.max():g}."
    text = f"{data} Episodes have up to 500 steps; 10,000 updates, of `bc` 5,000."
    head = ["| Algorithm | Final return by seed | Mean |", "| --- | --- | --- |"]
    return ["## CartPole from a mediocre policy", "", text, "", *head, *rows]


def online(configs: Mapping[str, str], args: argparse.Namespace, task: str) -> dict[str, list[Path]]:
    """By name of a case, the run of every seed."""
    spec = {
        "options": {"total_timesteps": ONLINE_STEPS, "eval_episodes": 20, "algo_kwargs.eval_interval": 5_000},
        "cases": [{"config": config} for config in configs.values()],
        "seeds": args.seeds,
    }
    found = run_sweep(spec, args.output / task, workers=args.workers)
    runs, count = [Path(str(each.progress.run_dir)) for each in found], len(args.seeds)
    return {name: runs[number * count : (number + 1) * count] for number, name in enumerate(configs)}


def final_return(run: Path) -> float:
    """The mean return of the final policy."""
    return statistics.mean(load_policy(run).evaluate(episodes=EPISODES).returns)


def cartpole(args: argparse.Namespace) -> Rows:
    """CartPole from scratch."""
    configs = {"qr_dqn": "dqn/cartpole_quantiles", "discrete_sac": "discrete_sac/cartpole"}
    rows = []
    for name, runs in online(configs, args, "cartpole").items():
        final = ", ".join(f"{final_return(run):.1f}" for run in runs)
        rows.append(f"| `{name}` | {', '.join(map(solved, runs))} | {final} |")
    text = (
        f"{ONLINE_STEPS:,} steps. *Solved* is the first of two consecutive evaluations, every 5,000 steps over "
        f"20 episodes, of at least {SOLVED:g}."
    )
    head = ["| Algorithm | Solved after, by seed | Final return by seed |", "| --- | --- | --- |"]
    return ["## CartPole from scratch", "", text, "", *head, *rows]


def solved(run: Path) -> str:
    """The step after which a run had solved its task."""
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    evaluations = [row for row in map(json.loads, lines) if row["kind"] == "eval"]
    for first, second in pairwise(evaluations):
        if min(first["return_mean"], second["return_mean"]) >= SOLVED:
            return f"{first['global_step']:,}"
    return "never"


def sb3_dqn(seed: int) -> float:
    """The final return of Stable-Baselines3's DQN on LunarLander."""
    import torch
    from stable_baselines3 import DQN

    torch.set_num_threads(1)
    model = DQN("MlpPolicy", gym.make("LunarLander-v3"), seed=seed, **ZOO_DQN)
    model.learn(ONLINE_STEPS)
    env, returns = gym.make("LunarLander-v3"), []
    for episode in range(EPISODES):
        obs, _ = env.reset(seed=EVAL_SEED + episode)
        total, is_over = 0.0, False
        while not is_over:
            obs, reward, terminated, truncated, _ = env.step(model.predict(obs, deterministic=True)[0])
            total, is_over = total + float(reward), terminated or truncated
        returns.append(total)
    return statistics.mean(returns)


def lunar_lander(args: argparse.Namespace) -> Rows:
    """LunarLander from scratch, beside Stable-Baselines3."""
    configs = {"dqn": "dqn/lunar_lander", "discrete_sac": "discrete_sac/lunar_lander"}
    found = online(configs, args, "lunar_lander")
    returns = {f"`{name}`": [final_return(run) for run in runs] for name, runs in found.items()}
    kept = args.output / "sb3_dqn.json"
    theirs = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else {}
    missing = [seed for seed in args.seeds if str(seed) not in theirs]
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        theirs |= dict(zip(map(str, missing), pool.map(sb3_dqn, missing), strict=True))
    kept.write_text(json.dumps(theirs), encoding="utf-8")
    returns["Stable-Baselines3's DQN"] = [theirs[str(seed)] for seed in args.seeds]
    rows = [
        f"| {name} | {', '.join(f'{value:.1f}' for value in values)} | {statistics.mean(values):.1f} |"
        for name, values in returns.items()
    ]
    text = (
        f"LunarLander-v3, {ONLINE_STEPS:,} steps, the final policy over {EPISODES} episodes; 200 counts as solved. "
        "Stable-Baselines3's DQN has the settings of its authors' zoo for this task."
    )
    head = ["| Algorithm | Final return by seed | Mean |", "| --- | --- | --- |"]
    return ["## LunarLander from scratch", "", text, "", *head, *rows]


TASKS: dict[str, Callable[[argparse.Namespace], Rows]] = {
    "replay": replay,
    "mediocre": mediocre,
    "cartpole": cartpole,
    "lunar_lander": lunar_lander,
}


def main() -> None:
    """Train what is missing, and write the tables of the tasks that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "discrete_learning")
    args = parser.parse_args()
    args.output.mkdir(parents=True, exist_ok=True)
    for task in args.tasks:
        section = "\n".join(TASKS[task](args))
        (args.output / f"{task}.md").write_text(section + "\n", encoding="utf-8")
        print(section, flush=True)
    sections = [path.read_text(encoding="utf-8") for task in TASKS if (path := args.output / f"{task}.md").exists()]
    RESULTS.write_text("\n".join([TITLE, *sections]), encoding="utf-8")


if __name__ == "__main__":
    main()
