"""What algorithms for discrete actions learn from a log of ICU-Sepsis, against exact values.

    python benchmarks/discrete_icu_sepsis.py [--cases dqn discrete_bcq] [--seeds 0 1 2] [--workers 2]

For every seed a log of 10,000 episodes is drawn from the clinicians' policy, and states are observed one-hot. The true
value of a learned policy is computed from the task's matrices, and stands beside what its own critic claims for the
first states, and beside the estimate of FQE. FQE judges by a second log of as many episodes, which no policy was
trained on. Cases and bars are those of tests/learning/test_discrete_scores.py.

What a run came to is kept in --output, and is not computed again. The table is written to
benchmarks/results/discrete_icu_sepsis.md. Needs the real datasets, in RL_TRAINING_DATA.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from rl_training import estimate

# The task, the cases and their bars are those of the tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from discrete_scores import SEEDS, SEPSIS, SEPSIS_DATA, UNCONSTRAINED, Case, sepsis_log, survival
from sepsis import Sepsis

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "discrete_icu_sepsis.md"

GAMMA = 0.99
"""The discount of FQE, which needs one below 1."""
MEMBERS = 4
FRESH = 1000
"""Added to a seed, that of a log which no policy was trained on."""
Found = dict[str, Any]

ABOUT = """\
# What algorithms for discrete actions learn on ICU-Sepsis

Written by `benchmarks/discrete_icu_sepsis.py`. For each seed, a log of 10,000 episodes of the clinicians, {rows} rows;
states one-hot, linear networks, discount 1, but 0.99 for discrete CQL and SAC. *Worth* is the exact chance of survival
under the greedy policy: 0.7818 by the clinicians, 0.7801 by chance, 0.8751 at best. *Claimed* is what the algorithm's
own critic says of the first states. Seeds are 0, 1 and 2.

| Algorithm | Worth by seed | Mean | Bar | Claimed by seed |
| --- | --- | --- | --- | --- |
{learned}

The bar of {unconstrained} is from above: nothing keeps them near the log, so they must end no better than that,
while they claim 0.90 or more.

## FQE

FQE estimates from a second log of 10,000 episodes, which no policy was trained on, with discount {gamma:g} and
{members} ensemble members. Intervals are to be compared with what the policy is worth at that discount.

| Algorithm | Seed | Worth, discount {gamma:g} | Estimate | 95 % interval | Covered |
| --- | --- | --- | --- | --- | --- |
{judged}
"""


def compute(name: str, case: Case, seed: int, output: Path, *, judged: bool) -> Found:
    """Train, compute what the policy is worth and, if asked, estimate it from another log."""
    task = Sepsis(SEPSIS_DATA)
    log = sepsis_log(task, seed)
    found = survival(task, case, log, seed, output / "runs" / name / str(seed))
    facts = {
        "rows": len(log.states),
        "worth": found.truth,
        "claim": found.claim,
        "discounted": task.value(found.policy, GAMMA),
    }
    if not judged:
        return facts
    fresh = task.arrays(sepsis_log(task, FRESH + seed))
    options: dict[str, Any] = {"gamma": GAMMA, "members": MEMBERS, "weights": False, "seed": seed, "threads": 1}
    fit = estimate({name: task.function(found.policy)}, fresh, split="held-out", **options)[name]
    return facts | {
        "estimate": fit.value,
        "raw_estimate": fit.raw_value,
        "interval": fit.interval,
        "reasons": list(fit.reasons),
    }


def kept(name: str, seed: int, output: Path) -> Path:
    """The file with what a run came to."""
    return output / f"{name}__seed{seed}.json"


def is_missing(path: Path, judged: bool) -> bool:
    """Whether a run has not been made, or not been estimated though it is to be."""
    return not path.exists() or (judged and "estimate" not in json.loads(path.read_text(encoding="utf-8")))


def run(args: argparse.Namespace) -> None:
    """Compute what is missing."""
    every = [(name, seed) for seed in args.seeds for name in args.cases]
    todo = [(name, seed) for name, seed in every if is_missing(kept(name, seed, args.output), seed in args.fqe_seeds)]
    args.output.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(args.workers, mp_context=get_context("spawn")) as pool:
        jobs = {
            pool.submit(compute, name, SEPSIS[name], seed, args.output, judged=seed in args.fqe_seeds): (name, seed)
            for name, seed in todo
        }
        for job in as_completed(jobs):
            (name, seed), found = jobs[job], job.result()
            kept(name, seed, args.output).write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            print(f"{name}, seed {seed}: worth {found['worth']:.4f}, claims {found['claim']:.4f}", flush=True)


def learned_row(name: str, found: list[Found]) -> str:
    """An algorithm in the first table."""
    worth, claims = ([each[key] for each in found] for key in ("worth", "claim"))
    bar = f"{'at most' if name in UNCONSTRAINED else 'at least'} {SEPSIS[name].bar:g}"
    numbers = [", ".join(f"{value:.4f}" for value in values) for values in (worth, claims)]
    claimed = "-" if any(map(math.isnan, claims)) else numbers[1]
    return f"| `{name}` | {numbers[0]} | {statistics.mean(worth):.4f} | {bar} | {claimed} |"


def judged_row(name: str, seed: int, found: Found) -> str:
    """A policy in the second table."""
    start = f"| `{name}` | {seed} | {found['discounted']:.4f} |"
    if found["estimate"] is None or found["interval"] is None:
        return f"{start} refused ({found['raw_estimate']:.4f}) | - | - |"
    low, high = found["interval"]
    covered = "yes" if low <= found["discounted"] <= high else "no"
    return f"{start} {found['estimate']:.4f} | {low:.4f} to {high:.4f} | {covered} |"


def write(args: argparse.Namespace) -> None:
    """The tables of everything that is kept."""
    table = {
        name: {
            seed: json.loads(path.read_text(encoding="utf-8"))
            for seed in SEEDS
            if (path := kept(name, seed, args.output)).exists()
        }
        for name in SEPSIS
    }
    rows = sorted({each["rows"] for found in table.values() for each in found.values()})
    text = ABOUT.format(
        rows=" to ".join(f"{count:,}" for count in (rows[0], rows[-1])),
        gamma=GAMMA,
        members=MEMBERS,
        unconstrained=" and ".join(f"`{name}`" for name in UNCONSTRAINED),
        learned="\n".join(learned_row(name, list(found.values())) for name, found in table.items() if found),
        judged="\n".join(
            judged_row(name, seed, each)
            for name, found in table.items()
            for seed, each in found.items()
            if "estimate" in each
        ),
    )
    RESULTS.write_text(text, encoding="utf-8")


def main() -> None:
    """Compute what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(SEPSIS), choices=list(SEPSIS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--fqe-seeds", nargs="*", type=int, default=list(SEEDS), help="of which policies are estimated")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--output", type=Path, default=ROOT / "runs" / "discrete_icu_sepsis")
    args = parser.parse_args()
    run(args)
    write(args)


if __name__ == "__main__":
    main()
