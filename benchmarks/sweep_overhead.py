"""What a sweep costs beside its training: on this machine, and on a Ray cluster of two nodes on this machine.

    python benchmarks/sweep_overhead.py ratio [--runs 12] [--updates 6000]
    python benchmarks/sweep_overhead.py tiny [--runs 1000]
    python benchmarks/sweep_overhead.py memory [--megabytes 500]

`ratio`: the same sweep by two local workers and on a cluster with two processors, and the ratio of their times. `tiny`:
runs of two updates, so that nearly all of the time is overhead; its growth is measured with fewer runs too. `memory`:
what four workers on a cluster of two nodes hold of a dataset, in pages of their own and in shared ones.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from typing import Any

import numpy as np

from rl_training.experiment import run_sweep


@contextmanager
def cluster(nodes: int, cpus: int) -> Iterator[str]:
    """A Ray cluster on this machine whose head trains nothing; its address."""
    import ray
    from ray.cluster_utils import Cluster

    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(nodes):
        made.add_node(num_cpus=cpus)
    try:
        yield made.address
    finally:
        ray.shutdown()
        made.shutdown()


def pendulum(updates: int, count: int, **more: Any) -> dict[str, Any]:
    """A sweep of this many runs."""
    kwargs = {"dataset_kind": "random", "dataset_size": 10_000, "compile": "never", "eval_interval": None, **more}
    options = {"env_id": "Pendulum-v1", "total_timesteps": updates, "eval_episodes": 1, "algo_kwargs": kwargs}
    return {"config": "td3_bc", "options": options, "seeds": list(range(count))}


def timed(spec: dict[str, Any], folder: Path, **where: Any) -> float:
    """Seconds of a sweep, all of whose runs must end well."""
    start = time.perf_counter()
    found = run_sweep(spec, folder, **where)
    seconds = time.perf_counter() - start
    assert all(each.progress.status == "done" for each in found)
    return seconds


def ratio(args: argparse.Namespace, place: Path) -> None:
    """Local and on Ray, one after the other."""
    spec = pendulum(args.updates, args.runs)
    local = timed(spec, place / "local", workers=2)
    with cluster(2, 1) as address:
        remote = timed(spec, place / "ray", ray=address)
    each = 2 * local / args.runs
    print(f"{args.runs} runs of {each:.0f} s: local {local:.1f} s, Ray {remote:.1f} s, ratio {remote / local:.3f}")


def tiny(args: argparse.Namespace, place: Path) -> None:
    """Overhead per run, with a tenth of the runs and with all of them."""
    for count in (args.runs // 10, args.runs):
        spec = pendulum(2, count, dataset_size=200, hidden_sizes=[8], batch_size=8)
        local = timed(spec, place / f"local{count}", workers=2)
        again = timed(spec, place / f"local{count}", workers=2)
        with cluster(2, 1) as address:
            remote = timed(spec, place / f"ray{count}", ray=address)
        shown = [
            f"{name} {seconds:.1f} s, {1000 * seconds / count:.0f} ms per run"
            for name, seconds in (("local", local), ("Ray", remote), ("nothing left to do", again))
        ]
        print(f"{count} runs: {'; '.join(shown)}", flush=True)
        for folder in (f"local{count}", f"ray{count}"):
            shutil.rmtree(place / folder)


def memory(args: argparse.Namespace, place: Path) -> None:
    """The largest sums over all workers of their own pages, and of their share in common ones."""
    rows = args.megabytes * 2**20 // (4 * (17 + 17 + 6 + 1))
    data = place / "log.npz"
    rng = np.random.default_rng(0)
    obs = rng.standard_normal((rows + 1, 17), dtype=np.float32)
    ends = np.arange(1, rows + 1) % 1000 == 0
    np.savez(
        data,
        observations=obs[:-1],
        actions=rng.uniform(-1, 1, (rows, 6)).astype(np.float32),
        rewards=rng.standard_normal(rows, dtype=np.float32),
        next_observations=obs[1:],
        terminals=np.zeros(rows, bool),
        timeouts=ends,
    )
    bounds = {"action_low": [-1.0] * 6, "action_high": [1.0] * 6, "accept_audit": True}
    kwargs = {"dataset_path": str(data), "validation_fraction": 0.0, **bounds}

    spec = {"config": "bc", "options": {"total_timesteps": 300, "algo_kwargs": kwargs}, "seeds": [0, 1, 2, 3]}
    size = data.stat().st_size / 2**20
    with cluster(2, 2) as address, watched() as peak:
        timed(spec, place / "out", ray=address)
    own, shared, workers = peak()
    print(f"data {size:.0f} MiB; {workers} workers at the peak: own pages {own:.0f} MiB, shared ones {shared:.0f} MiB")


@contextmanager
def watched() -> Iterator[Callable[[], tuple[float, float, int]]]:
    """Look at all workers of Ray twice a second."""
    peak, stop = [0.0, 0.0, 0], Event()

    def look() -> None:
        while not stop.wait(0.5):
            found = [each for each in map(_pages, _workers()) if each is not None]
            own, shared = sum(each[0] for each in found), sum(each[1] for each in found)
            if own + shared > peak[0] + peak[1]:
                peak[:] = [own, shared, len(found)]

    thread = Thread(target=look, daemon=True)
    thread.start()
    try:
        yield lambda: (peak[0], peak[1], int(peak[2]))
    finally:
        stop.set()
        thread.join()


def _workers() -> Iterator[int]:
    """Processes of Ray that train."""
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            try:
                name = (path / "cmdline").read_bytes()
            except OSError:
                continue
            # A task has the name of its run.
            if name.startswith(b"ray::bc_"):
                yield int(path.name)


def _pages(process: int) -> tuple[float, float] | None:
    """MiB that a process has for itself, and its part of pages that it shares."""
    try:
        lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]
    except OSError:
        return None
    found = {line.split(":")[0]: int(line.split()[1]) / 1024 for line in lines}
    return found["Pss_Anon"], found["Pss_File"] + found["Pss_Shmem"]


def main() -> None:
    """Measure one thing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["ratio", "tiny", "memory"])
    parser.add_argument("--runs", type=int)
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument("--megabytes", type=int, default=500)
    args = parser.parse_args()
    args.runs = args.runs or {"ratio": 12, "tiny": 1000}.get(args.what, 4)
    os.environ.setdefault("RAY_DISABLE_USAGE_STATS", "1")
    with tempfile.TemporaryDirectory() as place:
        {"ratio": ratio, "tiny": tiny, "memory": memory}[args.what](args, Path(place))


if __name__ == "__main__":
    main()
