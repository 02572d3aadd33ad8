"""Train online for hours with two workers, kill everything every few minutes, and compare with a run left alone.

    python tests/endurance/soak.py --minutes 120 --between 3 --out soak

Two folders are trained at the same time by the same command: two seeds, a worker for each. In one of them, all
processes are killed (SIGKILL) again and again, and the command is repeated. When the time is up, both are told to stop.
Every checkpoint and every row of metrics that both folders have must be the same, and memory must stay flat.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from small_runs import differences

from rl_training.storage import load_checkpoint, read_metrics

CAPACITY = 5_000
COMMAND = (
    *("train", "sac/pendulum", "--seeds", "0,1", "--workers", "2", "--quiet"),
    *("--total-timesteps", "100000000", "--set", "checkpoint_interval=2000", "--set", "keep_checkpoints=all"),
    *("--set", f"algo_kwargs.buffer_capacity={CAPACITY}", "--set", "algo_kwargs.compile=never"),
    *("--set", "algo_kwargs.hidden_sizes=[64, 64]", "--set", "algo_kwargs.batch_size=64"),
)
"""A run that does not end by itself; its replay buffer is full early, so that memory has no reason to grow."""
SPEEDS = ("updates_per_second", "steps_per_second")
WORKER_MEMORY = 100_000_000
"""Bytes; a process of the group that uses less is none that trains."""


class Training:
    """The command in a folder, with its workers: started, killed, stopped, measured."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kills = 0
        self.memory: list[tuple[float, float]] = []
        folder.mkdir(parents=True, exist_ok=True)
        self.start()

    def start(self) -> None:
        """Begin, or continue."""
        log = (self.folder / "output.txt").open("a", encoding="utf-8")
        command = [sys.executable, "-m", "rl_training", *COMMAND]
        settings = {**os.environ, "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            command, stdout=log, stderr=log, env=settings, cwd=self.folder, start_new_session=True
        )
        log.close()

    def kill(self) -> None:
        """Kill the leader and its workers at the same moment."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self.kills += 1

    def stop(self) -> int:
        """Let it save and end; its status."""
        self.process.terminate()
        return self.process.wait(timeout=300)

    def runs(self) -> list[Path]:
        """The directories of the two runs, by seed."""
        return sorted(path.parent for path in self.folder.glob("runs/*/metrics.jsonl"))

    def measure(self, began: float) -> None:
        """Note the memory that the largest process of the group takes, once its replay buffer is full."""
        sizes = [size for size in map(resident, group(self.process.pid)) if size > WORKER_MEMORY]
        rows = [newest_step(run) for run in self.runs()]
        if len(sizes) >= 2 and rows and min(rows) > CAPACITY:
            self.memory.append((time.monotonic() - began, float(max(sizes))))


def group(leader: int) -> list[int]:
    """The processes of a group."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if entry.name.isdigit() and int(fields[2]) == leader:
                found.append(int(entry.name))
    return found


def resident(process: int) -> int:
    """Bytes that a process has in memory; 0 if it is gone."""
    with contextlib.suppress(OSError, ValueError):
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return 0


def newest_step(run: Path) -> int:
    """Up to which step a run has metrics."""
    with contextlib.suppress(OSError):
        rows = read_metrics(run)
        return int(rows[-1].get("global_step", 0)) if rows else 0
    return 0


def compare(killed: Path, alone: Path) -> dict[str, Any]:
    """All checkpoints and rows of metrics that two runs have in common, and where they differ."""
    names = sorted(path.name for path in (killed / "checkpoints").glob("*_0*.pt"))
    common = [name for name in names if (alone / "checkpoints" / name).is_file()]
    different = []
    for name in common:
        ours, theirs = (load_checkpoint(run / "checkpoints" / name) for run in (killed, alone))
        # A run has an identity of its own.
        places = differences({**ours, "run": None}, {**theirs, "run": None})
        different += [f"{name}: {place}" for place in places]
    our_rows, their_rows = (
        [{name: value for name, value in row.items() if name not in SPEEDS} for row in read_metrics(run)]
        for run in (killed, alone)
    )
    rows = min(len(our_rows), len(their_rows))
    different += ["metrics"] * (our_rows[:rows] != their_rows[:rows])
    return {"run": killed.name, "checkpoints": len(common), "newest": common[-1:], "rows": rows, "different": different}


def growth(memory: list[tuple[float, float]]) -> float | None:
    """By which share memory grew from the first fifth of the samples to the last."""
    fifth = len(memory) // 5
    if fifth == 0:
        return None
    first, last = (statistics.median(size for _, size in part) for part in (memory[:fifth], memory[-fifth:]))
    return last / first - 1


def soak(options: argparse.Namespace) -> dict[str, Any]:
    """Train, kill and compare; what came of it."""
    began, generator = time.monotonic(), random.Random(0)
    alone, killed = Training(options.out / "alone"), Training(options.out / "killed")
    next_kill = began + 60 * options.between
    while time.monotonic() - began < 60 * options.minutes:
        time.sleep(5)
        for training in (alone, killed):
            if training.process.poll() is not None:
                sys.exit(f"{training.folder} ended with status {training.process.returncode}; see its output.txt")
            training.measure(began)
        if time.monotonic() >= next_kill:
            killed.kill()
            killed.start()
            next_kill = time.monotonic() + 60 * options.between * generator.uniform(0.5, 1.5)
    statuses = [training.stop() for training in (alone, killed)]
    pairs = zip(killed.runs(), alone.runs(), strict=True)
    compared = [compare(*pair) for pair in pairs]
    return {
        "minutes": (time.monotonic() - began) / 60,
        "kills": killed.kills,
        "statuses": statuses,
        "compared": compared,
        "growth alone": growth(alone.memory),
        "growth killed": growth(killed.memory),
        "samples": len(alone.memory),
    }


def main() -> None:
    """Soak, print what came of it, and end with status 1 if anything differs or memory grows by 2 %."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--between", type=float, default=3, help="minutes between kills, on average")
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder of the runs; must be empty")
    options = parser.parse_args()
    if options.out.exists() and any(options.out.iterdir()):
        sys.exit(f"{options.out} is not empty")
    result = soak(options)
    print(json.dumps(result, indent=1))
    grown = [result[name] for name in ("growth alone", "growth killed") if result[name] is not None]
    sys.exit(any(one["different"] for one in result["compared"]) or any(share > 0.02 for share in grown))


if __name__ == "__main__":
    main()
