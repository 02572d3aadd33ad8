"""Speed and memory of the present code beside an earlier revision, as ratios from one interleaved run.

    python benchmarks/beside.py --against 64d0dc4 [--what updates steps commands memory] [--rounds 7] [--seconds 2]
        [--write]

The earlier revision is checked out into a temporary worktree. Both trees do the same in processes of their own, which
take turns (before, now, before, now, ...), so that what else the machine does falls on both. A ratio is the median over
rounds of the present code by the earlier one in the same round, with its range. Everything has one thread.

`updates`: updates per second of whole runs on a log of 100,000 rows of HalfCheetah's sizes, log lines included, eager
and compiled. `steps`: environment steps per second of SAC and PPO on HalfCheetah-v4, updates included. Bar: at least
0.98. `commands`: seconds of `--help` and `list`, from the start of the process to its end. Bar: at most 1.02, which is
what such a measurement can tell from no change. `memory`: the most memory of a short run on a million rows. Bar: at
most 1.01. Run it on a machine that does nothing else.

Both trees are used by public names and commands only.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from interleaving import Ratio, Report, Script, make_parser, rates, table
from same_numbers import ROOT, worktree
from start_up import PEAK, write_log

if TYPE_CHECKING:
    from rl_training.runtime import TrainerState

OBS_DIM, ACTION_DIM, ROWS, EPISODE = 17, 6, 100_000, 1000
LARGE_ROWS = 1_000_000
WARM_UP = 200
"""Updates before the first that count."""
NEVER = 10**9
RATE_BAR, TIME_BAR, MEMORY_BAR = 0.98, 1.02, 1.01
UPDATES = ("td3_bc", "iql", "cql", "sac", "dqn")
STEPS: dict[str, dict[str, Any]] = {
    "sac": {"learning_starts": 300, "buffer_capacity": 100_000},
    "ppo": {"rollout_steps": 2048, "batch_size": 64, "epochs": 10},
}
HEADER = ("What", "Before", "Now", "Ratio", "Range", "Bar", "")
Measure = Callable[[Path], float]


def serve(kind: str, algo: str, compiled: str, connection: Connection) -> None:
    """A run that continues for as long as it is told, in the process of one tree."""
    from rl_training import train
    from rl_training.runtime import Callback

    class Gate(Callback):
        """Hold the run at a log line until it is told to continue, and tell how fast it went."""

        def __init__(self) -> None:
            self.seconds, self.start, self.first = 0.0, 0.0, -1

        def on_update_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
            """Answer and wait, once the time is over."""
            passed = time.perf_counter() - self.start
            if state.update_count < WARM_UP or passed < self.seconds:
                return
            connection.send(None if self.first < 0 else (state.global_step - self.first) / passed)
            self.seconds = connection.recv()
            if self.seconds <= 0:
                raise SystemExit
            self.start, self.first = time.perf_counter(), state.global_step

    # Everything but the events of the loop is as users have it.
    kwargs: dict[str, Any] = {"eval_interval": None, "compile": compiled}
    config: dict[str, Any] = {"algo": algo, "total_timesteps": NEVER, "checkpoint_interval": NEVER, "log_interval": 50}
    log = None
    if kind == "updates":
        low, high = [-1.0] * ACTION_DIM, [1.0] * ACTION_DIM
        log = make_log(discrete=algo == "dqn")
        kwargs |= {"num_actions": ACTION_DIM} if algo == "dqn" else {"action_low": low, "action_high": high}
        kwargs |= {"mode": "offline", "accept_audit": True, "validation_fraction": 0.0}
    else:
        kwargs |= STEPS[algo]
        config |= {"env_id": "HalfCheetah-v4", "num_envs": 8 if algo == "ppo" else 1}
        config |= {"log_interval": kwargs["rollout_steps"]} if algo == "ppo" else {}
    with tempfile.TemporaryDirectory() as folder:
        train({**config, "output_dir": folder, "algo_kwargs": kwargs}, dataset=log, callbacks=[Gate()], threads=1)


def make_log(*, discrete: bool) -> dict[str, Any]:
    """Random transitions of HalfCheetah's sizes."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((ROWS + 1, OBS_DIM), dtype=np.float32)
    continuous = rng.uniform(-1, 1, (ROWS, ACTION_DIM)).astype(np.float32)
    return {
        "observations": obs[:-1],
        "next_observations": obs[1:],
        "actions": rng.integers(ACTION_DIM, size=ROWS) if discrete else continuous,
        "rewards": rng.standard_normal(ROWS, dtype=np.float32),
        "terminals": np.zeros(ROWS, dtype=bool),
        "timeouts": np.arange(1, ROWS + 1) % EPISODE == 0,
    }


def in_tree(tree: Path) -> list[str]:
    """The beginning of a command that uses a tree; byte code is stored, as it is of an installed package."""
    state = Path(tempfile.gettempdir()) / "beside"
    chosen = {"PYTHONPATH": tree / "src", "PYTHONDONTWRITEBYTECODE": "", "OMP_NUM_THREADS": 1, "XDG_STATE_HOME": state}
    return ["env", *(f"{name}={value}" for name, value in chosen.items()), sys.executable]


def output(tree: Path, *arguments: str) -> str:
    """What Python prints in a tree."""
    return subprocess.run([*in_tree(tree), *arguments], check=True, stdout=subprocess.PIPE, text=True).stdout


def compare_rates(trees: Mapping[str, Path], args: argparse.Namespace, kind: str) -> list[Sequence[str]]:
    """Updates or steps per second of both trees, algorithm by algorithm."""
    rows: list[Sequence[str]] = []
    for algo in UPDATES if kind == "updates" else STEPS:
        for compiled in ("never", "always"):
            served = [__file__, "--serve", kind, algo, compiled]
            scripts = {name: Script([*in_tree(tree), *served]) for name, tree in trees.items()}
            found = rates(scripts, args.seconds, args.rounds)
            what = f"{algo}, {'eager' if compiled == 'never' else 'compiled'}, {kind}/s"
            rows.append(row(what, found["before"], found["now"], RATE_BAR))
            print(*rows[-1], sep="  ", file=sys.stderr, flush=True)
    return rows


def row(
    what: str, before: Sequence[float], now: Sequence[float], bar: float, *, at_most: bool = False
) -> Sequence[str]:
    """A row of the table."""
    ratio = Ratio.of(now, before)
    medians = (f"{statistics.median(values):.4g}" for values in (before, now))
    return (
        what,
        *medians,
        f"{ratio.median:.3f}",
        f"{ratio.low:.3f} to {ratio.high:.3f}",
        *ratio.verdict(bar, at_most=at_most),
    )


def in_turns(what: str, trees: Mapping[str, Path], measure: Measure, rounds: int, bar: float) -> Sequence[str]:
    """A row of something that is measured from outside; the first round stores byte code, and does not count."""
    found: dict[str, list[float]] = {name: [] for name in trees}
    for number in range(rounds + 1):
        for name, tree in trees.items():
            value = measure(tree)
            if number > 0:
                found[name].append(value)
    return row(what, found["before"], found["now"], bar, at_most=True)


def seconds_of(*arguments: str) -> Measure:
    """The time of a command."""

    def measure(tree: Path) -> float:
        start = time.perf_counter()
        output(tree, "-m", "rl_training", *arguments)
        return time.perf_counter() - start

    return measure


def peak_of(data: Path) -> Measure:
    """The most memory of a short run on a log, in MB."""
    limits = ("total_timesteps=50", "algo_kwargs.compile=never", "algo_kwargs.accept_audit=true")
    bounds = (f"algo_kwargs.action_low={[-1.0] * ACTION_DIM}", f"algo_kwargs.action_high={[1.0] * ACTION_DIM}")

    def measure(tree: Path) -> float:
        with tempfile.TemporaryDirectory() as out:
            train = ["-m", "rl_training", "train", "td3_bc", "--data", str(data), "--out", out, "--quiet"]
            found = output(tree, "-c", PEAK, sys.executable, *train, *limits, *bounds)
        return int(found) * (1 if sys.platform == "darwin" else 1024) / 1e6

    return measure


def compare_commands(trees: Mapping[str, Path], args: argparse.Namespace) -> list[Sequence[str]]:
    """The time until commands have answered."""
    return [in_turns(f"`{name}`, s", trees, seconds_of(name), args.rounds, TIME_BAR) for name in ("--help", "list")]


def compare_memory(trees: Mapping[str, Path], args: argparse.Namespace) -> list[Sequence[str]]:
    """The most memory of a run."""
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "large.npz"
        write_log(data, LARGE_ROWS, OBS_DIM, ACTION_DIM, next_obs=True)
        return [in_turns("td3_bc on a million rows, MB", trees, peak_of(data), min(args.rounds, 3), MEMORY_BAR)]


def main() -> None:
    """Measure, and print a table for each part."""
    parser = make_parser(__doc__)
    parts = ("updates", "steps", "commands", "memory")
    parser.add_argument("--against", required=True, metavar="REVISION", help="the earlier revision")
    parser.add_argument("--what", nargs="+", default=parts, choices=parts)
    parser.add_argument("--seconds", type=float, default=2.0, help="of training in a round")
    args = parser.parse_args()
    report = Report(f"Beside {args.against}", f"One thread, {args.rounds} rounds of {args.seconds:g} s.", args)
    with tempfile.TemporaryDirectory() as folder, worktree(args.against, Path(folder)) as earlier:
        trees = {"before": earlier, "now": ROOT}
        for part in args.what:
            if part in {"updates", "steps"}:
                rows = compare_rates(trees, args, part)
            else:
                rows = (compare_commands if part == "commands" else compare_memory)(trees, args)
            report.add(f"## {part.capitalize()}", table(HEADER, rows))
    report.finish()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        serve(sys.argv[2], sys.argv[3], sys.argv[4], Connection(int(sys.argv[5])))
    else:
        main()
