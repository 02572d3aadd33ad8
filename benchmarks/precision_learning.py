"""What algorithms learn with products in float32 and in bfloat16: one command that continues where it was stopped.

    python benchmarks/precision_learning.py [--tasks pendulum online hopper] [--seeds 0 1 2] [--workers 2]

pendulum:  d3rlpy's replay buffer of Pendulum, 10,000 updates (CQL 3,000), 100 episodes with fixed seeds.
online:    Pendulum from scratch, SAC for 10,000 steps, REDQ for 3,000 with five updates per step, 100 episodes.
hopper:    200,000 steps regenerated with D4RL's hopper-medium policy, the settings of `<algo>/hopper_medium`, 20,000
           updates, 20 episodes, as D4RL's normalised score. ReBRAC has batches of 256 and stays nearer to the data,
           with actor_bc_weight 0.1: with its own settings it is far from its best score after 20,000 updates.

Every run is made twice, with everything but the precision alike. Runs are kept in --output. The table is written to
benchmarks/results/precision_learning.md. Needs the real datasets, in RL_TRAINING_DATA, but for `online`.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from learning import BOLD, DATA, SMALL, make_hopper_data

from rl_training import run_sweep

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "precision_learning.md"
PRECISIONS = ("float32", "bfloat16")
UPDATES = {"pendulum": 10_000, "hopper": 20_000}
CASES: dict[str, dict[str, dict[str, Any]]] = {
    "pendulum": {
        "td3_bc": {},
        "iql": {},
        "cql": {**BOLD, "updates": 3_000},
        "rebrac": {**SMALL, "batch_size": 256},
    },
    "online": {"sac": {}, "redq": {"update_to_data": 5, "policy_delay": 5, "compile": "always"}},
    "hopper": {"td3_bc": {}, "iql": {}, "rebrac": {"batch_size": 256, "actor_bc_weight": 0.1}},
}
"""By task and algorithm, the options that differ from the task's configuration."""
METRIC = {"pendulum": "return_mean", "online": "return_mean", "hopper": "normalized_score"}
Scores = dict[str, list[float]]
"""By precision, the final score of every seed."""


def case(task: str, algo: str, output: Path) -> dict[str, Any]:
    """The options of an algorithm's runs on a task."""
    own = dict(CASES[task][algo])
    kwargs: dict[str, Any] = {"eval_interval": None}
    top: dict[str, Any] = {"eval_episodes": 20 if task == "hopper" else 100}
    if task == "online":
        top["config"] = f"{algo}/pendulum"
    else:
        top["total_timesteps"] = own.pop("updates", UPDATES[task])
        kwargs["dataset_kind"] = "hdf5"
    if task == "pendulum":
        top |= {"algo": algo, "env_id": "Pendulum-v1"}
        kwargs["dataset_path"] = str(DATA / "pendulum" / "pendulum_replay_v1.1.0.h5")
    if task == "hopper":
        top["config"] = f"{algo}/hopper_medium"
        kwargs["dataset_path"] = str(output / "hopper_medium.hdf5")
    return top | {f"algo_kwargs.{name}": value for name, value in (kwargs | own).items()}


def scores(task: str, algo: str, args: argparse.Namespace) -> Scores:
    """Train what is missing, and give the final scores."""
    found: Scores = {}
    for precision in PRECISIONS:
        options = case(task, algo, args.output) | {"algo_kwargs.precision": precision}
        spec = {"cases": [options], "seeds": args.seeds}
        runs = run_sweep(spec, args.output / task / algo / precision, workers=args.workers)
        found[precision] = [float((run.progress.metrics or {})[METRIC[task]]) for run in runs]
    return found


def row(algo: str, found: Scores) -> str:
    """An algorithm in a table."""
    shown = [", ".join(f"{score:.1f}" for score in found[precision]) for precision in PRECISIONS]
    means = [f"{statistics.mean(found[precision]):.1f}" for precision in PRECISIONS]
    return f"| `{algo}` | {shown[0]} | {means[0]} | {shown[1]} | {means[1]} |"


def main() -> None:
    """Train what is missing, and write the tables of the tasks that were asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "precision_learning")
    args = parser.parse_args()
    args.output = args.output.resolve()
    args.output.mkdir(parents=True, exist_ok=True)
    head = ["| Algorithm | float32 by seed | Mean | bfloat16 by seed | Mean |", "| --- | --- | --- | --- | --- |"]
    for task in args.tasks:
        if task == "hopper":
            make_hopper_data(args.output / "hopper_medium.hdf5")
        rows = [row(algo, scores(task, algo, args)) for algo in CASES[task]]
        section = "\n".join([f"## {task.capitalize()}", "", *head, *rows, ""])
        (args.output / f"{task}.md").write_text(section, encoding="utf-8")
        print(section, flush=True)
    about = (__doc__ or "").split("\n\n", 2)[2].rsplit("\n\n", 1)[0]
    sections = [path.read_text(encoding="utf-8") for task in CASES if (path := args.output / f"{task}.md").exists()]
    title = "# What algorithms learn in both precisions\n\nWritten by `benchmarks/precision_learning.py`.\n"
    RESULTS.write_text("\n".join([title, f"```text\n{about}\n```\n", *sections]), encoding="utf-8")


if __name__ == "__main__":
    main()
