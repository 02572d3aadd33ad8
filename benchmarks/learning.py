"""How well every algorithm learns: final scores on two datasets, as one command that continues where it was stopped.

    python benchmarks/learning.py [--tasks pendulum hopper] [--algos iql cql] [--seeds 0 1 2] [--workers 2]

pendulum: d3rlpy's replay buffer of Pendulum, 20,000 updates, 100 episodes with fixed seeds.
hopper:   200,000 steps regenerated with D4RL's hopper-medium policy, the settings of `<algo>/hopper_medium`, 20,000
          updates, 20 episodes, as D4RL's normalised score; two for 100,000 updates too, where fine-tuning begins.

Runs are kept in --output; one that has ended is not repeated, one that was stopped is resumed. The table is written to
benchmarks/results/offline_learning.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("RL_TRAINING_DATA", ROOT.parent / "shared" / "data"))
RESULTS = ROOT / "benchmarks" / "results" / "offline_learning.md"
SHORT = 5_000
"""Updates of algorithms whose update costs as much as many of another's."""

SMALL: dict[str, Any] = {"hidden_sizes": [256, 256]}
BOLD: dict[str, Any] = {
    **SMALL,
    "learning_rate": 1e-3,
    "actor_learning_rate": 1e-3,
    "tau": 0.01,
    "conservative_weight": 1.0,
}
PENDULUM: dict[str, dict[str, Any]] = {
    "awac": SMALL,
    "awr": {},
    "bc": {},
    "bcq": {**SMALL, "vae_hidden_sizes": [256, 256]},
    # The paper's warm-up is longer than the run.
    "bear": {"vae_hidden_sizes": [256, 256], "mmd_warmup_updates": 2000},
    # So few updates take larger steps, and broad data less conservatism; the published gap is for AntMaze.
    "cal_ql": {**BOLD, "critic_hidden_sizes": None, "conservative_gap": None, "updates": SHORT, "seeds": [0]},
    "cql": {**BOLD, "updates": SHORT, "seeds": [0]},
    "crr": {},
    "edac": {**SMALL, "learning_rate": 1e-3, "tau": 0.01, "updates": SHORT, "seeds": [0]},
    "iql": {},
    "marwil": {"batch_size": 256},
    "rebrac": {**SMALL, "batch_size": 256},
    "sac_n": {**SMALL, "num_critics": 5},
    "td3_bc": {},
    "xql": {},
}
"""Where the options differ from the defaults: networks of one size, and what a run of this length needs."""

PUBLISHED = {
    "awac": "63.0 (CORL)",
    "bcq": "63.9 (robomimic)",
    "bear": "30.8 (authors' code, v0)",
    "cql": "59.1 (CORL)",
    "iql": "66.3 (paper)",
    "rebrac": "102.0 (paper)",
    "td3_bc": "59.3 (paper)",
}
"""Normalised scores on hopper-medium-v2 after a million updates, for orientation."""

HOPPER: dict[str, dict[str, Any]] = {algo: {"seeds": [0]} for algo in PUBLISHED}
HOPPER["cql"]["updates"] = SHORT
for algo, seeds in (("iql", [0, 1]), ("td3_bc", [0])):
    HOPPER[f"{algo}_long"] = {"algo": algo, "updates": 100_000, "eval_interval": 10_000, "seeds": seeds}
GOALS = {"bc": -300.0, "marwil": -300.0}
GOAL = -250.0


@dataclass(frozen=True)
class Job:
    """One run."""

    task: str
    name: str
    algo: str
    seed: int
    updates: int
    options: dict[str, Any]
    output: Path
    data: Path

    @property
    def folder(self) -> Path:
        """Where its run directory goes."""
        return self.output / self.task / self.name / f"seed_{self.seed}"

    def overrides(self) -> list[str]:
        """The options as the command line takes them."""
        top = {
            "total_timesteps": self.updates,
            "eval_episodes": 100 if self.task == "pendulum" else 20,
            "output_dir": str(self.folder),
            "seed": self.seed,
            "checkpoint_interval": 1000,
        }
        inner = {"dataset_kind": "hdf5", "dataset_path": str(self.data), "eval_interval": None, **self.options}
        pairs = {**top, **{f"algo_kwargs.{name}": value for name, value in inner.items()}}
        return [f"{name}={json.dumps(value)}" for name, value in pairs.items()]

    def command(self) -> list[str]:
        """What a user would type; a run that was stopped is resumed instead."""
        run = next(self.folder.glob("*/checkpoints/latest.pt"), None)
        program = [sys.executable, "-m", "rl_training"]
        if run is not None:
            return [*program, "resume", str(run.parents[1])]
        config = f"{self.algo}/hopper_medium"
        if self.task == "pendulum":
            config = str(self._plain_config())
        return [*program, "train", "--config", config, "--set", *self.overrides()]

    def _plain_config(self) -> Path:
        """A config with nothing but the task, so that all else is the algorithm's default."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / "config.yaml"
        path.write_text(f"algo: {self.algo}\nenv_id: Pendulum-v1\n", encoding="utf-8")
        return path

    def result(self) -> dict[str, Any] | None:
        """What the run came to, if it has ended."""
        path = next(self.folder.glob("*/result.json"), None)
        result = {} if path is None else json.loads(path.read_text(encoding="utf-8"))
        # One that was interrupted has a result too, of less than it should become.
        return result if result.get("update_count") == self.updates else None


def own_options(options: dict[str, Any]) -> dict[str, Any]:
    """The algorithm's options in an entry of a table."""
    return {name: value for name, value in options.items() if name not in ("algo", "updates", "seeds")}


def jobs(args: argparse.Namespace) -> list[Job]:
    """All runs, those of the first seed first."""
    data = {"pendulum": DATA / "pendulum" / "pendulum_replay_v1.1.0.h5", "hopper": args.output / "hopper_medium.hdf5"}
    found = []
    for task, table in (("pendulum", PENDULUM), ("hopper", HOPPER)):
        for name, options in table.items() if task in args.tasks else ():
            algo, updates = options.get("algo", name), options.get("updates", 20_000)
            if args.algos is None or algo in args.algos:
                found += [
                    Job(task, name, algo, seed, updates, own_options(options), args.output, data[task])
                    for seed in options.get("seeds", args.seeds)
                ]
    return sorted(found, key=lambda job: job.seed)


def make_hopper_data(path: Path) -> None:
    """The regenerated dataset, once."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part.hdf5")
        program = [sys.executable, str(DATA / "regenerate_d4rl.py"), "hopper-medium", str(part)]
        subprocess.run([*program, "--steps", "200000", "--seed", "0"], check=True)
        part.rename(path)


def run(job: Job) -> None:
    """One run to its end, in a process of its own with one thread."""
    if job.result() is None:
        log = job.folder / "log.txt"
        job.folder.mkdir(parents=True, exist_ok=True)
        with log.open("a", encoding="utf-8") as stream:
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            subprocess.run(job.command(), check=True, stdout=stream, stderr=stream, env=environment, cwd=ROOT)


def describe(task: str, found: list[Job]) -> str:
    """The table of one task, of the runs that have ended."""
    metric = "return_mean" if task == "pendulum" else "normalized_score"
    rows: dict[tuple[str, int], dict[int, float]] = {}
    for job in found:
        result = job.result()
        if job.task == task and result is not None:
            rows.setdefault((job.algo, job.updates), {})[job.seed] = result["metrics"][metric]
    head = ["Algorithm", "Updates", "Final score by seed", "Mean", "Asked" if task == "pendulum" else "Published"]
    lines = [head, ["---"] * len(head)]
    for (algo, updates), scores in sorted(rows.items()):
        last = f"{GOALS.get(algo, GOAL):.0f}" if task == "pendulum" else PUBLISHED[algo]
        shown = ", ".join(f"{score:.1f}" for _, score in sorted(scores.items()))
        lines.append([f"`{algo}`", f"{updates}", shown, f"{statistics.mean(scores.values()):.1f}", last])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def courses(found: list[Job]) -> str:
    """The returns at the evaluations of long runs, a line per run."""
    lines = []
    for job in found:
        path = next(job.folder.glob("*/metrics.jsonl"), None) if job.name.endswith("_long") else None
        rows = [] if path is None else map(json.loads, path.read_text(encoding="utf-8").splitlines())
        if returns := [f"{row['return_mean']:.0f}" for row in rows if row["kind"] == "eval"]:
            lines.append(f"- `{job.algo}`, seed {job.seed}: {', '.join(returns)}")
    return "\n".join(sorted(lines))


def write_results(found: list[Job]) -> None:
    """The tables, and how they were made."""
    options = "\n".join(
        f"- `{algo}`: " + ", ".join(f"`{name}: {json.dumps(value)}`" for name, value in changed.items())
        for algo in PENDULUM
        if (changed := own_options(PENDULUM[algo]))
    )
    RESULTS.write_text(
        f"""# What the offline algorithms learn

Written by `make bench-learning` (`benchmarks/learning.py`), one thread per run. The score is that of the final policy.

## Pendulum

d3rlpy's replay buffer `pendulum_replay_v1.1.0.h5` (99,500 rows, mean return -180.5), 100 episodes with fixed seeds.
Options are the algorithms' defaults, but for

{options}

{describe("pendulum", found)}

CQL's and Cal-QL's options were chosen after looking at this score: with the default steps and weight CQL had -516, with
an actor step of 3e-4 and a weight of 1 it had -302, and Cal-QL with its gap of 0.8 had -565. EDAC with its default
steps had -770: after so few updates its values were far from converged. Other rows are first runs.

## Hopper

200,000 steps regenerated with D4RL's policies (`regenerate_d4rl.py hopper-medium --steps 200000 --seed 0`), the
packaged settings `<algo>/hopper_medium`, 20 episodes, D4RL's normalised score. Published values are for D4RL's own data
of a million steps after a million updates, and stand here for orientation only.

{describe("hopper", found)}

BEAR's 20,000 updates lie within the 40,000 of its warm-up, in which the actor only imitates. What it imitates is as
good as its neighbours: by its mean action the same policy scores 43.0, and its model of the behaviour 44.0 (10
episodes). What costs the rest is the choice among sampled actions by critics of that age, which is how BEAR acts.

ReBRAC's weight on imitation is a thirteenth of TD3+BC's, so it depends on its critics, and these have not converged:
their mean grows by 5 to 6 per thousand updates, 133 after 20,000, 180 after 30,000, while the policy still comes
nearer to the data. Continued, the run scores 15.3 after 30,000 updates and 20.1 after 40,000. d3rlpy's ReBRAC with the
same settings on the same file is no faster: it scores 8.5, 5.8, 2.7, 3.3, 2.8, 4.0, 3.1 and 15.4, every 2,500 updates.

IQL's score after 20,000 updates is a peak of a course that rises and falls widely. Returns of the long runs, every
10,000 updates (the data's mean is 1223):

{courses(found)}

d3rlpy's IQL with the same settings on the same file returns 430, 961, 1591, 797, 824, 1316, 1291, 1375, 1354, 1382.
""",
        encoding="utf-8",
    )


def main() -> None:
    """Run what is missing, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=["pendulum", "hopper"], choices=["pendulum", "hopper"])
    parser.add_argument("--algos", nargs="+", choices=sorted(PENDULUM))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "learning")
    args = parser.parse_args()
    if not DATA.is_dir():
        parser.exit(2, f"needs the real datasets, which are not in {DATA} (set RL_TRAINING_DATA)\n")
    args.output = args.output.resolve()
    found = jobs(args)
    if "hopper" in args.tasks:
        make_hopper_data(args.output / "hopper_medium.hdf5")
    every = jobs(argparse.Namespace(**{**vars(args), "tasks": ["pendulum", "hopper"], "algos": None}))
    with ThreadPoolExecutor(args.workers) as pool:
        waiting = {pool.submit(run, job): job for job in found}
        try:
            for done in as_completed(waiting):
                job, error = waiting[done], done.exception()
                state = "ended" if error is None else f"failed, see {job.folder / 'log.txt'}"
                print(f"{job.task} {job.name} seed {job.seed}: {state}", flush=True)
                write_results(every)
        except KeyboardInterrupt:
            # The runs have been interrupted too, and leave a checkpoint to resume from.
            pool.shutdown(cancel_futures=True)
            parser.exit(130, "interrupted: the same command continues from here\n")


if __name__ == "__main__":
    main()
