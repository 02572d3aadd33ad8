"""Sweeps on a Ray cluster of several nodes: the same results as here, whatever happens to a node."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import TINY
from small_runs import differences
from steering import steering_log

from rl_training import run_pipeline
from rl_training.config import parse_overrides
from rl_training.core.errors import CheckpointError
from rl_training.core.torch_files import read_tree
from rl_training.experiment.pools import Job, ProgressListener, SeedProgress
from rl_training.experiment.ray_pool import RayPool
from rl_training.experiment.sweep import SweepRun, run_sweep
from rl_training.runtime import read_options
from rl_training.storage import read_metrics

ray = pytest.importorskip("ray")

LONG = [*TINY, "total_timesteps=1000", "checkpoint_interval=50", "log_interval=50", "algo_kwargs.eval_interval=500"]
SWEEP = {
    "config": "td3_bc/pendulum",
    "options": parse_overrides(LONG),
    "grid": {"algo_kwargs.batch_size": [16, 24]},
    "seeds": [0],
}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """A head without processors, so that every run is on a node that can be taken away, and two nodes."""
    from ray.cluster_utils import Cluster

    # As where `ray start` is called in the background of a script: its processes ignore Ctrl-C from their beginning.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.add_node(num_cpus=1)
    signal.signal(signal.SIGINT, before)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[SweepRun]:
    """The same sweep, trained here."""
    return run_sweep(SWEEP, tmp_path_factory.mktemp("alone") / "out")


def state(run: str | None) -> Any:
    """Everything in a run's last checkpoint but who it is and where."""
    tree = read_tree(Path(str(run), "checkpoints", "latest.pt"), CheckpointError, what="checkpoint")
    config = {name: value for name, value in tree["config"].items() if name != "output_dir"}
    return {**{name: value for name, value in tree.items() if name not in ("run", "checksum")}, "config": config}


def rows(run: str | None) -> list[dict[str, Any]]:
    """A run's metrics without its speed and its identity."""
    left_out = ("updates_per_second", "run")
    return [
        {name: value for name, value in row.items() if name not in left_out} for row in read_metrics(Path(str(run)))
    ]


def assert_same(ours: list[SweepRun], theirs: list[SweepRun]) -> None:
    assert [each.progress.status for each in ours] == ["done"] * len(theirs)
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.planned.name == other.planned.name
        assert differences(state(mine.progress.run_dir), state(other.progress.run_dir)) == []
        assert rows(mine.progress.run_dir) == rows(other.progress.run_dir)


class Watcher(ProgressListener):
    """Takes a node away as soon as a run on it has saved something."""

    def __init__(self, cluster: Any) -> None:
        self.cluster, self.killed = cluster, False
        self.told: list[SeedProgress] = []

    def on_run(self, progress: SeedProgress) -> None:
        self.told.append(progress)
        if not self.killed and progress.status == "running" and progress.global_step > 100:
            self.killed = True
            # One run is on each of them.
            node = next(each for each in self.cluster.worker_nodes)
            self.cluster.remove_node(node, allow_graceful=False)
            self.cluster.add_node(num_cpus=1)


def test_a_sweep_on_a_cluster_that_loses_a_node_ends_as_one_here(
    cluster: Any, alone: list[SweepRun], tmp_path: Path
) -> None:
    watcher = Watcher(cluster)
    found = run_sweep(SWEEP, tmp_path / "out", ray=cluster.address, watcher=watcher)
    assert watcher.killed
    assert_same(found, alone)
    # How far runs are is told while they run.
    assert len({each.global_step for each in watcher.told}) > 2


def test_a_run_that_is_stopped_saves_its_state_and_one_that_fails_says_why(cluster: Any, tmp_path: Path) -> None:
    config, _ = read_options("td3_bc/pendulum", overrides=[*LONG, "total_timesteps=1000000", f"output_dir={tmp_path}"])
    pool = RayPool(cluster.address)
    try:
        job = Job(config, resume=True, threads=1)
        pool.submit(job)
        assert pool.busy == 1
        last = job.begin()
        end = time.monotonic() + 300
        while not last.global_step:
            last = next(pool.collect())
            assert time.monotonic() < end
        pool.stop(job.key)
        while not last.has_ended:
            last = list(pool.collect())[-1]
            assert time.monotonic() < end
    finally:
        pool.close()
    assert last.status == "interrupted"
    assert (Path(str(last.run_dir)) / "checkpoints" / "latest.pt").is_file()
    (tmp_path / "no.npz").write_bytes(b"PK")
    options = {**parse_overrides(LONG), "env_id": None, "algo_kwargs": {"dataset_path": str(tmp_path / "no.npz")}}
    found = run_sweep({"config": "td3_bc", "options": options}, tmp_path / "out", ray=cluster.address)
    assert found[0].progress.status == "failed"
    assert "no.npz" in str(found[0].progress.error)


@pytest.mark.slow
def test_a_pipeline_trains_there_too(cluster: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **steering_log(40))
    config = {"data": str(tmp_path / "log.npz"), "updates": 20, "seeds": [0], "gamma": 0.8, "members": 2}
    config |= {"fit_updates": 40, "algorithms": ["td3_bc"], "algo_kwargs": {"hidden_sizes": [8], "batch_size": 16}}
    found = run_pipeline(config, tmp_path / "out", ray=cluster.address)
    assert {name: each["status"] for name, each in found.runs.items()} == {"bc_seed0": "done", "td3_bc_seed0": "done"}
    assert found.export.is_dir()


CLUSTER_LONG = [
    *TINY,
    "total_timesteps=1500",
    "checkpoint_interval=100",
    "log_interval=100",
    "algo_kwargs.eval_interval=500",
]
CLUSTER_SWEEP = {
    "options": {**parse_overrides(CLUSTER_LONG), "env_id": "Pendulum-v1"},
    "grid": {"algo": ["td3_bc", "iql"], "algo_kwargs.batch_size": [16, 24]},
    "seeds": "0-2",
}
CLUSTER_SWEEP["options"]["algo_kwargs"]["dataset_kind"] = "random"  # type: ignore[index]
VICTIM = "victim"


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Three nodes, started as a user starts them."""
    monkeypatch.setenv("RAY_DISABLE_USAGE_STATS", "1")
    ray = str(Path(sys.executable).with_name("ray"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    where = f"127.0.0.1:{port}"
    head = [ray, "start", "--head", f"--port={port}", "--num-cpus=1", "--include-dashboard=false"]
    subprocess.run(head, check=True, capture_output=True)
    try:
        for name in ("helper", VICTIM):
            node = [ray, "start", f"--address={where}", "--num-cpus=1", f"--node-name={name}"]
            subprocess.run(node, check=True, capture_output=True)
        yield where
    finally:
        subprocess.run([ray, "stop", "--force"], check=True, capture_output=True)


class Killer(ProgressListener):
    """Kills the main process of one node when half of the runs have begun."""

    def __init__(self) -> None:
        self.begun: set[str] = set()
        self.killed: list[int] = []

    def on_run(self, progress: SeedProgress) -> None:
        self.begun.add(str(progress.name))
        if len(self.begun) >= 5 and not self.killed:
            self.killed = list(_main_processes(VICTIM))
            for process in self.killed:
                os.kill(process, signal.SIGKILL)


def _main_processes(node: str) -> Iterator[int]:
    for path in Path("/proc").glob("[0-9]*"):
        try:
            words = (path / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"/raylet") and f"--node-name={node}".encode() in words:
            yield int(path.name)


@pytest.mark.extras
def test_a_node_that_is_killed_costs_time_alone(address: str, tmp_path: Path) -> None:
    alone = run_sweep(CLUSTER_SWEEP, tmp_path / "alone", workers=2)
    killer = Killer()
    found = run_sweep(CLUSTER_SWEEP, tmp_path / "cluster", ray=address, watcher=killer)
    assert len(killer.killed) == 1
    assert len(found) == 12
    assert_same(found, alone)
