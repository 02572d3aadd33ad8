"""How long a policy takes for one observation: exported, in onnxruntime and with numpy alone, and in torch.

Networks have their default sizes and random weights, 11 observations and 3 actions, continuous or discrete, one thread.
Novelty with 1,024 codes is part of all of them. The table is written to benchmarks/results/export_latency.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import runpy
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
import torch

from rl_training.algorithms import ALGORITHMS
from rl_training.config import TrainConfig
from rl_training.core.spaces import ActionSpace, BoxActions, DiscreteActions, SpaceSpec
from rl_training.policies.export.bundle import write_bundle
from rl_training.policies.export.log import Log
from rl_training.runtime import Policy, SavedPolicy, bind_hyper
from rl_training.storage import package_version

RESULTS = Path(__file__).parent / "results" / "export_latency.md"
WIDTH, ACTIONS, ROWS, EPISODES = 11, 3, 10_000, 50
CALLS = 300


def main() -> None:
    """Measure every algorithm and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algos", nargs="*", default=sorted(ALGORITHMS))
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for algo in arguments.algos:
        for kind in ALGORITHMS[algo].action_kinds:
            rows.append(
                measure(algo, BoxActions((-1.0,) * 3, (2.0,) * 3) if kind == "continuous" else DiscreteActions(3))
            )
            print(rows[-1], flush=True)
    arguments.out.write_text(table(rows), encoding="utf-8")


def measure(algo: str, action: ActionSpace) -> dict[str, Any]:
    """Export one algorithm, and time what was written."""
    torch.manual_seed(0)
    config, spaces = TrainConfig(algo=algo), SpaceSpec.vector(WIDTH, action)
    algorithm = ALGORITHMS[algo].build(spaces, bind_hyper(config))
    saved = SavedPolicy(Policy.of(algorithm, spaces), config, {})
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        result = write_bundle(saved, Path(folder, "out"), make_log(action))
        seconds = time.perf_counter() - start
        return {
            "algorithm": algo if action.kind == "continuous" else f"{algo} (discrete)",
            "kB": result.sizes["policy.onnx"] / 1000,
            "difference": result.differences["action"],
            "onnxruntime": result.about["latency_us"]["onnxruntime"],
            "torch": result.about["latency_us"]["torch"],
            "numpy": time_numpy(result.path),
            "export_s": seconds,
        }


def make_log(action: ActionSpace) -> Log:
    """Random rows, enough for 1,024 codes."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(ROWS, WIDTH)).astype(np.float32)
    is_box = isinstance(action, BoxActions)
    actions = rng.uniform(-1, 1, (ROWS, ACTIONS)).astype(np.float32) if is_box else rng.integers(ACTIONS, size=ROWS)
    episodes = np.repeat(np.arange(EPISODES), ROWS // EPISODES)
    ends = (obs.min(0), obs.max(0))
    return Log(torch.from_numpy(obs), torch.from_numpy(actions), episodes, np.arange(10), *ends, "random rows")


def time_numpy(folder: Path) -> float | None:
    """Microseconds of the plain policy with its novelty; None where there is none."""
    if not (folder / "policy_numpy.npz").is_file():
        return None
    policy = runpy.run_path(str(folder / "policy_numpy.py"))["Policy"](folder / "policy_numpy.npz")
    obs, times = np.zeros((1, WIDTH), dtype=np.float32), []
    for _ in range(CALLS):
        start = time.perf_counter()
        policy.novelty(obs)
        times.append(time.perf_counter() - start)
    return float(np.median(times)) * 1e6


def table(rows: list[dict[str, Any]]) -> str:
    """The results as Markdown."""
    versions = ", ".join(
        f"{name} {package_version(name)}" for name in ("torch", "onnx", "onnxscript", "onnxruntime", "numpy")
    )
    lines = [
        "# Latency of exported policies",
        "",
        "Microseconds for one observation with `action` and `novelty`: medians, one thread. Written by",
        "`benchmarks/export_latency.py`.",
        f"{WIDTH} observations, {ACTIONS} actions, networks of default sizes with random weights, 1,024 codes.",
        f"Python {platform.python_version()}, {versions}.",
        "",
        "| Algorithm | onnxruntime | torch | torch / onnxruntime | numpy | kB | largest difference | export, s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        ratio, plain = row["torch"] / row["onnxruntime"], "-" if row["numpy"] is None else f"{row['numpy']:.0f}"
        lines.append(
            f"| {row['algorithm']} | {row['onnxruntime']:.0f} | {row['torch']:.0f} | {ratio:.1f} | {plain} | "
            f"{row['kB']:.0f} | {row['difference']:.0e} | {row['export_s']:.1f} |"
        )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
