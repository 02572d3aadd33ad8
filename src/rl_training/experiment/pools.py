"""Where runs are trained: in processes on this machine, or on a Ray cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from rl_training.experiment.jobs import Job, JobKey, SeedProgress
from rl_training.experiment.local_pool import LocalPool


class Pool(Protocol):
    """Workers that train runs."""

    @property
    def workers(self) -> int:
        """How many runs can be trained at a time."""

    @property
    def free(self) -> int:
        """How many more runs it takes now."""

    @property
    def busy(self) -> int:
        """How many runs it has taken that have not ended."""

    def submit(self, job: Job) -> None:
        """Take a run."""

    def collect(self) -> Iterator[SeedProgress]:
        """Wait until runs have something to tell, and pass it on."""

    def stop(self, key: JobKey) -> None:
        """Let a run save its state and end."""

    def close(self) -> None:
        """Let all runs save their state and end."""


def open_pool(workers: int, ray: str | None, *, threads: int = 1) -> Pool:
    """Workers on this machine, or where `ray` is an address, on that cluster; a run uses this many threads there."""
    if ray is None:
        return LocalPool(workers)
    from rl_training.experiment.ray_pool import RayPool

    return RayPool(ray, cpus=threads)


def count_workers(workers: int, ray: str | None, *, threads: int = 1) -> int:
    """How many runs can be trained at a time; of a cluster, as it is now."""
    pool = open_pool(workers, ray, threads=threads)
    try:
        return pool.workers
    finally:
        pool.close()
