"""Several runs: one after the other, or side by side in processes."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from typing_extensions import Self

from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.machine import available_cores
from rl_training.core.user_code import IMPORTED
from rl_training.experiment.pools import Job, SeedProgress, open_pool
from rl_training.runtime import (
    BoundConfig,
    Callback,
    ConfigSource,
    RunOptions,
    TrainResult,
    find_same,
    read_options,
    resume,
    train,
)
from rl_training.storage import check_sinks, is_finished, is_signed, read_json


class ExperimentManager:
    """Runs of one configuration."""

    def __init__(self) -> None:
        self._bound: BoundConfig | None = None

    @property
    def config(self) -> TrainConfig | None:
        """The configuration given to `setup`."""
        return None if self._bound is None else self._bound[0]

    def setup(self, config: ConfigSource) -> Self:
        """Check a configuration and keep it for `train`."""
        self._bound = read_options(config)
        return self

    def train(self, *, callbacks: Sequence[Callback] = ()) -> TrainResult:
        """Train the configuration given to `setup`."""
        if self._bound is None:
            raise ConfigError("call setup(config) before train()")
        return train(self._bound, callbacks=callbacks)

    def resume(self, checkpoint: str | Path, *, callbacks: Sequence[Callback] = (), **overrides: Any) -> TrainResult:
        """Continue a run from a checkpoint or its directory."""
        return resume(checkpoint, callbacks=callbacks, **overrides)

    def sweep(
        self,
        config: ConfigSource | BoundConfig,
        seeds: Sequence[int],
        *,
        workers: int = 1,
        resume: bool = False,
        on_progress: Callable[[SeedProgress], None] | None = None,
    ) -> list[SeedProgress]:
        """Train several seeds in processes, `workers` at a time; a seed that fails does not stop the others.

        Side by side, each process uses one thread; a single worker uses the whole machine. A `run_name` gets the seed
        added to it. With `resume`, finished seeds are not run again, and stopped ones are resumed: runs with these
        names, or without a name those in `output_dir` with the same options.
        """
        bound = read_options(config)
        if workers < 1 or not seeds:
            raise ConfigError(f"a sweep needs at least one worker and one seed, got {workers} and {list(seeds)}")
        (config, options), configs = bound, []
        for seed in dict.fromkeys(seeds):
            name = None if config.run_name is None else f"{config.run_name}__seed{seed}"
            configs.append((replace(config, seed=seed, run_name=name), options))
        return self.train_all(configs, workers=workers, resume=resume, on_progress=on_progress)

    def train_all(
        self,
        configs: Sequence[ConfigSource | BoundConfig],
        *,
        workers: int = 1,
        ray: str | None = None,
        threads: int | None = None,
        resume: bool = False,
        seconds: float | None = None,
        shared: Mapping[str, str] | None = None,
        judge: bool = False,
        on_progress: Callable[[SeedProgress], None] | None = None,
    ) -> list[SeedProgress]:
        """Train several runs in processes, as `sweep` does; no two may have both the same name and the same seed.

        They run on this machine, or on the Ray cluster with the address `ray` (`auto` finds one that is running here),
        which has as many workers as processors. All of them together have this number of `seconds`, shared out among
        those that have not begun; a run whose time is over ends with a checkpoint and an evaluation, as at its last
        timestep. `shared` are datasets that all workers read from one folder. With `judge`, runs report the lower
        bound of the estimated values of their policies.
        """
        bound = [read_options(config) for config in configs]
        modules = tuple(dict.fromkeys([*IMPORTED, *(options.algorithm.__module__ for _, options in bound)]))
        if threads is None and (workers > 1 or ray is not None):
            threads = 1
        results = {}
        ended = [_ended(*each) for each in bound] if resume else [None] * len(bound)
        waiting = [
            Job(config, resume, threads, modules, dict(shared or {}), judge)
            for (config, _), each in zip(bound, ended, strict=True)
            if each is None
        ]
        # One message for all runs, and one process that makes the database of MLflow: several at once would collide.
        check_sinks([name for job in waiting for name in job.config.sinks])
        done = (each for each in ended if each is not None)
        for progress in chain(done, _side_by_side(waiting, workers, ray, seconds)):
            results[progress.key] = progress
            if on_progress is not None:
                on_progress(progress)
        return [results[config.run_name, config.seed] for config, _ in bound]


def _ended(config: TrainConfig, options: RunOptions) -> SeedProgress | None:
    """The outcome of a run that has ended already; None if it has not."""
    run = find_same(config, options)
    # A run that was killed after its result still has its lock, which a process must take and release.
    if run is None or not is_finished(run) or is_signed(run):
        return None
    result = read_json(run / "result.json")
    step, metrics = result.get("global_step", 0), result.get("metrics") or None
    return SeedProgress(config.seed, "done", config.run_name, step, step, metrics, run_dir=str(run))


def _side_by_side(jobs: Sequence[Job], workers: int, ray: str | None, seconds: float | None) -> Iterator[SeedProgress]:
    """Give runs to idle workers, and end the workers in any case."""
    if not jobs:
        return
    end = None if seconds is None else time.monotonic() + seconds
    waiting = deque(jobs)
    pool = open_pool(workers, ray, threads=jobs[0].threads or 1)
    try:
        while waiting or pool.busy:
            # A run whose time is limited must not wait in a queue, where its time would pass.
            while waiting and (pool.free if end is None else pool.workers - pool.busy) > 0:
                pool.submit(_limited(waiting.popleft(), end, rounds=math.ceil((len(waiting) + 1) / pool.workers)))
            yield from pool.collect()
    finally:
        pool.close()


def _limited(job: Job, end: float | None, rounds: int) -> Job:
    """A run with its share of the remaining time for this number of runs in sequence."""
    if end is None:
        return job
    own = max(end - time.monotonic(), 0.0) / rounds
    return replace(job, seconds=own, until=time.time() + own)


def default_workers(threads: int = 1) -> int:
    """The number of workers with this number of threads that the cores of this process allow."""
    return max(available_cores() // threads, 1)
