"""A sweep on a Ray cluster of three nodes in processes of their own, one of which is killed with SIGKILL."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from command_line import TINY
from test_ray_sweep import assert_same

from rl_training.config import parse_overrides
from rl_training.experiment.pools import ProgressListener, SeedProgress
from rl_training.experiment.sweep import run_sweep

pytestmark = pytest.mark.extras

LONG = [*TINY, "total_timesteps=1500", "checkpoint_interval=100", "log_interval=100", "algo_kwargs.eval_interval=500"]
SWEEP = {
    "options": {**parse_overrides(LONG), "env_id": "Pendulum-v1"},
    "grid": {"algo": ["td3_bc", "iql"], "algo_kwargs.batch_size": [16, 24]},
    "seeds": "0-2",
}
SWEEP["options"]["algo_kwargs"]["dataset_kind"] = "random"  # type: ignore[index]
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


def test_a_node_that_is_killed_costs_time_alone(address: str, tmp_path: Path) -> None:
    alone = run_sweep(SWEEP, tmp_path / "alone", workers=2)
    killer = Killer()
    found = run_sweep(SWEEP, tmp_path / "cluster", ray=address, watcher=killer)
    assert len(killer.killed) == 1
    assert len(found) == 12
    assert_same(found, alone)
