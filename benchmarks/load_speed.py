"""How long one million transitions of HalfCheetah's size take to load, and how much memory beside their file.

The aim is under 3 seconds and at most 1.3 times the size of the file. Prints one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROWS, EPISODE, OBS_DIM, ACTION_DIM = 1_000_000, 1000, 17, 6

# A process begins with the peak of the one it was started from, so the one that measures is started from a small one.
SMALL_PARENT = "import subprocess, sys; sys.exit(subprocess.call(sys.argv[1:]))"


def write_log(path: Path) -> None:
    """Five float32 fields, uncompressed: episodes cut by a time limit that the file does not mention."""
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((ROWS, OBS_DIM), dtype=np.float32)
    next_obs = np.roll(obs, -1, axis=0)
    next_obs[EPISODE - 1 :: EPISODE] = rng.standard_normal((ROWS // EPISODE, OBS_DIM), dtype=np.float32)
    np.savez(
        path,
        obs=obs,
        actions=rng.uniform(-1, 1, (ROWS, ACTION_DIM)).astype(np.float32),
        rewards=rng.standard_normal(ROWS, dtype=np.float32),
        next_obs=next_obs,
        dones=np.zeros(ROWS, dtype=np.float32),
    )


def peak_memory() -> int:
    """Bytes of resident memory that this process had at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(path: Path) -> dict[str, float]:
    """Time and memory of loading a file in this process, which has done nothing but its imports."""
    from rl_training.data import load_transition_dataset

    before, start = peak_memory(), time.perf_counter()
    dataset = load_transition_dataset(dataset_path=str(path))
    seconds = time.perf_counter() - start
    return {
        "rows": len(dataset),
        "episodes": len(dataset.episode_bounds()),
        "seconds": round(seconds, 3),
        "memory_ratio": round((peak_memory() - before) / path.stat().st_size, 3),
    }


def main() -> None:
    """Write the file into a folder, and measure loading it in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, help="where the file of 168 MB is written; default: a temporary folder")
    parser.add_argument("--measure", type=Path, metavar="FILE", help="only load this file in this process")
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "log.npz"
        write_log(path)
        measuring = [sys.executable, __file__, "--measure", str(path)]
        subprocess.run([sys.executable, "-c", SMALL_PARENT, *measuring], check=True)


if __name__ == "__main__":
    main()
