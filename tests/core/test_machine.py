"""How many cores a process may use, and that threads and workers are no more than that."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest
import torch

from rl_training.cli.display.options import worker_count
from rl_training.config import TrainConfig
from rl_training.core import machine
from rl_training.core.machine import configure_machine, free_memory, read_cores
from rl_training.experiment import manager
from rl_training.runtime import resume, train


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def write(root: Path, **files: str) -> None:
    """Files with these texts, by their path below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


CASES: dict[str, tuple[dict[str, str], str, float | None, int]] = {
    "no control groups": ({}, "", None, 8),
    "version 2, no limit": ({"cpu.max": "max 100000\n"}, "0::/\n", None, 8),
    "version 2": ({"cpu.max": "200000 100000\n"}, "0::/\n", 2.0, 2),
    "a part of a core counts as none": ({"cpu.max": "150000 100000\n"}, "0::/\n", 1.5, 1),
    "less than one core is one": ({"cpu.max": "20000 100000\n"}, "0::/\n", 0.2, 1),
    "more than the mask": ({"cpu.max": "1200000 100000\n"}, "0::/\n", 12.0, 8),
    "own group": ({"jobs/7/cpu.max": "300000 100000\n"}, "0::/jobs/7\n", 3.0, 3),
    "the strictest of own and upper groups": (
        {"jobs/7/cpu.max": "300000 100000\n", "jobs/cpu.max": "250000 50000\n", "cpu.max": "max 100000\n"},
        "0::/jobs/7\n",
        3.0,
        3,
    ),
    "an upper group": ({"jobs/7/cpu.max": "max 100000\n", "jobs/cpu.max": "100000 50000\n"}, "0::/jobs/7\n", 2.0, 2),
    "a path that the container does not see": ({"cpu.max": "400000 100000\n"}, "0::/docker/abc\n", 4.0, 4),
    "version 1": (
        {"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"},
        "3:memory:/\n1:cpu:/\n",
        4.0,
        4,
    ),
    "version 1, no limit": (
        {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"},
        "1:cpu:/\n0::/\n",
        None,
        8,
    ),
    "version 1, two controllers in one folder": (
        {"cpu,cpuacct/a/cpu.cfs_quota_us": "500000\n", "cpu,cpuacct/a/cpu.cfs_period_us": "100000\n"},
        "4:cpu,cpuacct:/a\n",
        5.0,
        5,
    ),
    "a group of another controller": (
        {"memory/a/cpu.cfs_quota_us": "100000\n", "memory/a/cpu.cfs_period_us": "100000\n"},
        "4:memory:/a\n",
        None,
        8,
    ),
    "nonsense": ({"cpu.max": "many\n", "cpu/cpu.cfs_quota_us": "1\n", "cpu/cpu.cfs_period_us": "0\n"}, "x\n", None, 8),
}


@pytest.mark.usefixtures("eight_cores")
@pytest.mark.parametrize(("files", "membership", "quota", "available"), CASES.values(), ids=CASES)
def test_quotas_of_control_groups_count(
    tmp_path: Path, files: dict[str, str], membership: str, quota: float | None, available: int
) -> None:
    write(tmp_path, **files, membership=membership)

    found = read_cores(tmp_path, tmp_path / "membership")

    assert (found.machine, found.affinity, found.quota, found.available) == (16, 8, quota, available)


def test_where_there_are_no_masks_all_cores_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)

    assert read_cores(tmp_path, tmp_path / "none").available == 16


def test_a_limit_of_memory_in_an_own_group_of_version_1_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = {"memory.limit_in_bytes": "3000000", "memory.usage_in_bytes": "2500000", "memory.stat": "total_cache 500\n"}
    write(tmp_path, **{f"memory/{name}": text for name, text in stat.items()})
    monkeypatch.setattr("rl_training.core.machine.CONTROL_GROUP", tmp_path)

    assert free_memory() == 500_500


def test_threads_are_no_more_than_cores_unless_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    torch.set_num_threads(4)
    configure_machine()
    assert torch.get_num_threads() == 2

    torch.set_num_threads(1)
    configure_machine()
    assert torch.get_num_threads() == 1

    configure_machine(3)
    assert torch.get_num_threads() == 3


def test_a_run_that_is_resumed_with_fewer_cores_uses_those_and_says_so(
    tiny_config: Callable[..., TrainConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = train(tiny_config("td3_bc"), threads=2).run_dir
    monkeypatch.setattr(import_module("rl_training.runtime.train"), "available_cores", lambda: 1)

    with pytest.warns(UserWarning, match="made with 2 threads, and this process may use 1 .* it continues with 1"):
        resume(run_dir, total_timesteps=30)

    assert torch.get_num_threads() == 1


def test_workers_have_cores_for_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manager, "available_cores", lambda: 7)

    assert [worker_count("auto", threads=threads) for threads in (1, 2, 8)] == [7, 3, 1]
    assert worker_count("5", threads=4) == 5


def test_the_cores_of_this_process_are_some_of_the_machine() -> None:
    assert 1 <= machine.available_cores() <= (os.cpu_count() or 1)
