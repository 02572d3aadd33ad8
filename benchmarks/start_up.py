"""What it takes until a command answers, until a run learns, and how much memory a run on a large log needs.

    python benchmarks/start_up.py [--parts help first_update memory] [--rounds 7]

`help` is `rl-training --help` beside an empty program of Typer: at most twice as long. `first_update` is `rl-training
train`, not compiled, from the start of its process to the end of its first update: under 3 seconds on an idle machine;
the ratio is to `import torch` alone. `memory` is the most memory of a run on one million rows of HalfCheetah's size: at
most 600 MB beside the data. Every variant is a process of its own and has its turn in every round; a first round, which
does not count, lets Python store its byte code. Times are medians over rounds, and ratios medians of the ratios in a
round. CPU time says less about a user's wait than time on the clock, and suffers less from other programs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

EMPTY = """
import typer

app = typer.Typer()

@app.command()
def nothing() -> None:
    \"\"\"Do nothing.\"\"\"

app()
"""
TORCH = """
import os, time, torch

print("reached", time.monotonic(), time.process_time(), flush=True)
os._exit(0)
"""
COMMAND = "from rl_training.cli import main; main()"
FIRST_UPDATE = """
import os, time

from rl_training.cli import SPINS, main

os.environ.setdefault("GOMP_SPINCOUNT", SPINS)  # As main does, before torch is loaded.
from rl_training.algorithms.base import Algorithm

update = Algorithm.update

def first(self, batch):
    update(self, batch)
    print("reached", time.monotonic(), time.process_time(), flush=True)
    os._exit(0)

Algorithm.update = first
main()
"""
# A process begins with the peak of the one it was started from, so a small one starts it and asks for its peak.
PEAK = """
import resource, subprocess, sys

subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""
ROWS, EPISODE, OBS_DIM, ACTION_DIM = 1_000_000, 1000, 17, 6
FEW_ROWS = 1000


class Times(NamedTuple):
    """Seconds on the clock, and of processors."""

    clock: float
    cpu: float


Measure = Callable[[], Times]


def environment(folder: Path) -> dict[str, str]:
    """Byte code is stored, as it is of an installed package; runs are not remembered as the user's own."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "XDG_STATE_HOME": str(folder)}


def whole(code: str, *arguments: str, folder: Path) -> Times:
    """The times of a program from its start to its end."""
    start = time.monotonic()
    command = [sys.executable, "-c", code, *arguments]
    process = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    clock = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    return Times(clock, used.ru_utime + used.ru_stime)


def until(code: str, *arguments: str, folder: Path) -> Times:
    """The times of a program from its start to the moment that it prints."""
    start = time.monotonic()
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True, check=True)
    _, clock, cpu = done.stdout.splitlines()[-1].split()
    return Times(float(clock) - start, float(cpu))


def peak(*arguments: str, folder: Path) -> float:
    """The most memory of a run, in MB."""
    command = [sys.executable, "-c", PEAK, sys.executable, "-c", COMMAND, "train", *arguments, "--quiet"]
    done = subprocess.run(command, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout) * (1 if sys.platform == "darwin" else 1024) / 1e6


def write_log(path: Path, rows: int, obs_dim: int, action_dim: int, *, next_obs: bool) -> float:
    """A random log, not compressed; returns the size of its arrays in MB."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows + 1, obs_dim), dtype=np.float32)
    arrays = {
        "observations": obs[:-1],
        "actions": rng.uniform(-1, 1, (rows, action_dim)).astype(np.float32),
        "rewards": rng.standard_normal(rows, dtype=np.float32),
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": np.arange(1, rows + 1) % min(EPISODE, rows // 2) == 0,
    }
    if next_obs:
        arrays["next_observations"] = obs[1:]
    np.savez(path, **arrays)
    return float(sum(array.nbytes for array in arrays.values()) / 1e6)


def compare(variants: Mapping[str, Measure], rounds: int) -> None:
    """Print times and ratios to the first variant."""
    found: dict[str, list[Times]] = {name: [] for name in variants}
    for number in range(rounds + 1):
        for name, measure in variants.items():
            times = measure()
            if number > 0:
                found[name].append(times)
    print("| Variant | Seconds | CPU seconds | Ratio | Ratio of CPU seconds |")
    print("| --- | --- | --- | --- | --- |")
    reference = next(iter(found.values()))
    for name, each in found.items():
        clock, cpu = (statistics.median(times) for times in zip(*each, strict=True))
        pairs = list(zip(each, reference, strict=True))
        ratios = [statistics.median(mine[kind] / theirs[kind] for mine, theirs in pairs) for kind in (0, 1)]
        print(f"| {name} | {clock:.2f} | {cpu:.2f} | {ratios[0]:.2f} | {ratios[1]:.2f} |", flush=True)
    print()


def compare_help(folder: Path, rounds: int) -> None:
    """`--help` beside that of an empty program."""
    compare(
        {
            "empty program of Typer, `--help`": partial(whole, EMPTY, "--help", folder=folder),
            "`rl-training --help`": partial(whole, COMMAND, "--help", folder=folder),
        },
        rounds,
    )


def compare_first_updates(folder: Path, rounds: int) -> None:
    """The first updates of an offline and an online run beside the import of torch."""
    write_log(folder / "log.npz", FEW_ROWS, 3, 1, next_obs=False)
    offline = ("td3_bc", "--data", "log.npz", "--env", "Pendulum-v1")
    online = ("sac", "--env", "Pendulum-v1", "algo_kwargs.learning_starts=256")
    run = partial(until, FIRST_UPDATE, "train", "--quiet", "--set", "algo_kwargs.compile=never", folder=folder)
    variants: dict[str, Measure] = {"`import torch`": partial(until, TORCH, folder=folder)}
    variants |= {f"`train {' '.join(arguments)}`": partial(run, *arguments) for arguments in (offline, online)}
    compare(variants, rounds)


def compare_memory(folder: Path) -> None:
    """The most memory of runs on large logs, beside their data."""
    print("| Run | Data, MB | Peak, MB | Beside the data, MB |")
    print("| --- | --- | --- | --- |")
    for name in ("with next_observations", "without"):
        size = write_log(folder / "large.npz", ROWS, OBS_DIM, ACTION_DIM, next_obs=name != "without")
        for algo in ("td3_bc", "iql"):
            most = peak(algo, "--data", "large.npz", "total_timesteps=20", folder=folder)
            print(f"| `{algo}`, {name} | {size:.0f} | {most:.0f} | {most - size:.0f} |", flush=True)


def main() -> None:
    """Print a table for each part."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    every = ("help", "first_update", "memory")
    parser.add_argument("--parts", nargs="+", choices=every, default=every)
    parser.add_argument("--rounds", type=int, default=7)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "help" in args.parts:
            compare_help(folder, args.rounds)
        if "first_update" in args.parts:
            compare_first_updates(folder, args.rounds)
        if "memory" in args.parts:
            compare_memory(folder)


if __name__ == "__main__":
    main()
