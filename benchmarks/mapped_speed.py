"""How fast batches are drawn from the mapped form of a log, against the same log in memory, and what memory it takes.

Rounds of both forms alternate; the ratio is the median over pairs. The aim is at least 0.75. Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
from halfcheetah import ACTION_DIM, EPISODE, OBS_DIM

from rl_training.core.batches import TRANSITION
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.data.files.mapped import mapped_writer

PIECE = 100_000


def write_log(path: Path, rows: int) -> None:
    """A log of HalfCheetah's size in the mapped form, a piece at a time."""
    rng = np.random.default_rng(0)
    with mapped_writer(path) as writer:
        for _ in range(rows // PIECE):
            obs = rng.standard_normal((PIECE, OBS_DIM), dtype=np.float32)
            actions = rng.uniform(-1, 1, (PIECE, ACTION_DIM)).astype(np.float32)
            ends = np.arange(1, PIECE + 1) % EPISODE == 0
            writer.append(
                {
                    "obs": obs,
                    "actions": actions,
                    "rewards": rng.standard_normal(PIECE, dtype=np.float32),
                    "next_obs": np.roll(obs, -1, axis=0),
                    "dones": np.zeros(PIECE, dtype=np.float32),
                    "next_actions": np.roll(actions, -1, axis=0),
                    "truncations": ends,
                    "next_action_mask": ~ends,
                }
            )
        writer.finish(table=None, conflict=None, num_dropped=0, has_rewards=True, notes=())


def in_memory(mapped: TransitionDataset) -> TransitionDataset:
    """The rows of a mapped log in memory of this process."""
    return TransitionDataset({name: mapped.fields[name].clone() for name in TRANSITION}, mapped.truncations)


def anonymous_memory() -> float:
    """MiB that this process holds itself; pages of mapped files are the system's, which takes them back at will."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def draw(dataset: TransitionDataset, batches: int) -> float:
    """Batches of 256 rows per second."""
    start = time.perf_counter()
    for _ in range(batches):
        dataset.sample(256)
    return batches / (time.perf_counter() - start)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--batches", type=int, default=1280)
    parser.add_argument("--folder", type=Path, default=None, help="Where the log is written, for the time it takes.")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "log.rlt"
        write_log(path, arguments.rows)
        before, start = anonymous_memory(), time.perf_counter()
        mapped = load_transition_dataset(path).requiring(*TRANSITION)
        seconds = time.perf_counter() - start
        draw(mapped, 64)
        draw(mapped, arguments.batches)
        taken = anonymous_memory() - before
        _, held_out = load_transition_dataset(path).split(0.1)
        with_split = anonymous_memory() - before
        memory = in_memory(mapped)
        rates = [(draw(mapped, arguments.batches), draw(memory, arguments.batches)) for _ in range(arguments.rounds)]
        result = {
            "rows": arguments.rows,
            "bytes": sum(file.stat().st_size for file in path.iterdir()),
            "open_seconds": round(seconds, 3),
            "anonymous_mib": round(taken, 1),
            "anonymous_mib_after_split": round(with_split, 1),
            "held_out_rows": len(held_out),
            "mapped_batches_per_second": round(statistics.median(rate[0] for rate in rates)),
            "memory_batches_per_second": round(statistics.median(rate[1] for rate in rates)),
            "ratio": round(statistics.median(one / other for one, other in rates), 3),
        }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
