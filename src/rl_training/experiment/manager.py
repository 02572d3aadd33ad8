"""Many runs: one by one, or several seeds side by side."""

from __future__ import annotations

import math
import multiprocessing as mp
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from typing_extensions import Self

from rl_training.config import TrainConfig
from rl_training.importing import IMPORTED, import_modules, resume_command
from rl_training.runtime import TrainerState, TrainResult, read_options, resume, train
from rl_training.runtime.artifacts import read_json
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.finding import is_finished
from rl_training.runtime.locking import is_signed
from rl_training.runtime.named_runs import find_same, train_missing
from rl_training.runtime.options import BoundConfig, ConfigSource, RunOptions
from rl_training.runtime.sinks import check_sinks
from rl_training.signals import name_of
from rl_training.types import ConfigError, Metrics, UserError


@dataclass(frozen=True)
class SeedProgress:
    """How far one seed of a sweep, or one of several runs, has come."""

    seed: int
    status: str
    name: str | None = None
    """The `run_name`, if it has one."""
    global_step: int = 0
    total: int = 0
    metrics: Mapping[str, float] | None = None
    run_dir: str | None = None
    error: str | None = None
    seconds: float | None = None
    """The time that it has, if that is what ends it."""


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
        added to it. With `resume`, seeds whose runs have ended are not run again, and those that were stopped go on:
        runs with these names, or without a name those in `output_dir` with the same options.
        """
        bound = read_options(config)
        if workers < 1 or not seeds:
            raise ConfigError(f"a sweep needs at least one worker and one seed, got {workers} and {list(seeds)}")
        configs = [(_with_seed(bound[0], seed), bound[1]) for seed in dict.fromkeys(seeds)]
        return self.train_all(configs, workers=workers, resume=resume, on_progress=on_progress)

    def train_all(
        self,
        configs: Sequence[ConfigSource | BoundConfig],
        *,
        workers: int = 1,
        resume: bool = False,
        seconds: float | None = None,
        on_progress: Callable[[SeedProgress], None] | None = None,
    ) -> list[SeedProgress]:
        """Train several runs in processes, as `sweep` does; no two may have both the same name and the same seed.

        All of them together have this number of `seconds`, shared out among those that have not begun; a run whose
        time is over ends with a checkpoint and an evaluation, as at its last timestep.
        """
        bound = [read_options(config) for config in configs]
        # A new process knows neither what --import named nor what the calling program imported.
        modules = list(dict.fromkeys([*IMPORTED, *(options.algorithm.__module__ for _, options in bound)]))
        results = {}
        ended = [_ended(*each) for each in bound] if resume else [None] * len(bound)
        waiting = [config for (config, _), each in zip(bound, ended, strict=True) if each is None]
        # One sentence for all runs; and processes that make MLflow's database at once get in each other's way.
        check_sinks([name for config in waiting for name in config.sinks])
        done = (each for each in ended if each is not None)
        for progress in chain(done, _side_by_side(waiting, modules, workers, resume=resume, seconds=seconds)):
            results[progress.name, progress.seed] = progress
            if on_progress is not None:
                on_progress(progress)
        return [results[config.run_name, config.seed] for config, _ in bound]


REPORT_SECONDS = 1.0
"""How often a worker tells how far it has come."""


FEWEST_UPDATES = 100
"""Updates that a run makes even if its time is over."""


class _TimeLimit(Callback):
    """Ends a run at a moment; that is the end of the run, which nobody is to go on with."""

    def __init__(self, moment: float, seconds: float) -> None:
        self.moment, self.seconds = moment, seconds

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        if time.time() >= self.moment and state.update_count >= FEWEST_UPDATES:
            state.request_stop(f"its {self.seconds:.0f} seconds were over")


class _Reporter(Callback):
    """Sends a worker's events to the process that started it."""

    def __init__(self, config: TrainConfig, connection: Connection, seconds: float | None) -> None:
        self.connection, self.next_report = connection, 0.0
        self.progress = SeedProgress(config.seed, "running", config.run_name, seconds=seconds)

    def on_train_start(self, state: TrainerState) -> None:
        self.send(state)

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        self.send_if_due(state)

    def on_collect_end(self, state: TrainerState) -> None:
        self.send_if_due(state)

    def send_if_due(self, state: TrainerState) -> None:
        if time.monotonic() >= self.next_report:
            self.next_report = time.monotonic() + REPORT_SECONDS
            self.send(state)

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        self.send(state, metrics=dict(metrics))

    def on_train_end(self, state: TrainerState) -> None:
        self.send(state)

    def send(self, state: TrainerState, **changes: Any) -> None:
        try:
            self.report(global_step=state.global_step, total=state.total, run_dir=str(state.run_dir), **changes)
        except BrokenPipeError:
            # The process that started this one was killed. Whoever starts it again goes on with the run.
            state.interrupt("the process that started the run is gone")

    def report(self, **changes: Any) -> None:
        self.progress = replace(self.progress, **changes)
        self.connection.send(self.progress)


def _work(
    config: TrainConfig,
    modules: Sequence[str],
    threads: int | None,
    connection: Connection,
    *,
    resume: bool,
    until: float | None,
    seconds: float | None,
) -> None:
    """The body of a worker process, which imports these modules first."""
    reporter = _Reporter(config, connection, seconds)
    limits = [] if until is None or seconds is None else [_TimeLimit(until, seconds)]
    with suppress(BrokenPipeError):
        try:
            import_modules(modules)
            result = (train_missing if resume else train)(config, callbacks=[reporter, *limits], threads=threads)
        except UserError as error:
            reporter.report(status="failed", error=str(error))
        except Exception:
            reporter.report(status="failed", error=traceback.format_exc())
        else:
            status = "interrupted" if result.interrupted else "done"
            reporter.report(status=status, metrics=result.metrics or None)


def _ended(config: TrainConfig, options: RunOptions) -> SeedProgress | None:
    """The outcome of a run that has ended already; None where something is left to do."""
    run = find_same(config, options)
    # One that was killed after its result has its lock still, which a process must take and give back.
    if run is None or not is_finished(run) or is_signed(run):
        return None
    result = read_json(run / "result.json")
    step, metrics = result.get("global_step", 0), result.get("metrics") or None
    return SeedProgress(config.seed, "done", config.run_name, step, step, metrics, run_dir=str(run))


def _with_seed(config: TrainConfig, seed: int) -> TrainConfig:
    name = None if config.run_name is None else f"{config.run_name}__seed{seed}"
    return replace(config, seed=seed, run_name=name)


def _side_by_side(
    configs: Sequence[TrainConfig], modules: Sequence[str], workers: int, *, resume: bool, seconds: float | None
) -> Iterator[SeedProgress]:
    context = mp.get_context("spawn")
    end = None if seconds is None else time.monotonic() + seconds
    threads = 1 if workers > 1 else None
    waiting = list(configs)
    running: dict[Connection, tuple[BaseProcess, SeedProgress]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                own = None if end is None else max(end - time.monotonic(), 0.0) / math.ceil(len(waiting) / workers)
                config = waiting.pop(0)
                receiver, sender = context.Pipe(duplex=False)
                arguments = (config, modules, threads, sender)
                # The start of the process counts, so the end is a moment by a clock that both processes read.
                limit = {"seconds": own, "until": None if own is None else time.time() + own}
                process = context.Process(target=_work, args=arguments, kwargs={"resume": resume, **limit})
                with _ignored_interrupt():
                    process.start()
                sender.close()
                running[receiver] = (process, SeedProgress(config.seed, "running", config.run_name))
            yield from _collect(running)
    finally:
        _end([process for process, _ in running.values()])


def _end(workers: Sequence[BaseProcess]) -> None:
    """Let workers save their runs and end; if this is interrupted again, end them at once."""
    try:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()
    except KeyboardInterrupt:
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()
        raise


@contextmanager
def _ignored_interrupt() -> Iterator[None]:
    """A process that is started here ignores Ctrl-C from its first instant; this process answers it instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _collect(running: dict[Connection, tuple[BaseProcess, SeedProgress]]) -> Iterator[SeedProgress]:
    """The messages of the workers. A worker whose pipe closes before its last message has died."""
    for receiver in wait(list(running)):
        assert isinstance(receiver, Connection)  # noqa: S101 - only connections are waited for
        process, last = running[receiver]
        try:
            last = receiver.recv()
        except EOFError:
            process.join()
            del running[receiver]
            if last.status == "running":
                where = f"; resume it with: {resume_command(last.run_dir)}" if last.run_dir else ""
                yield replace(last, status="failed", error=f"{_death(process.exitcode)}{where}")
            continue
        running[receiver] = (process, last)
        yield last


def _death(status: int | None) -> str:
    """How a worker ended that told nothing; a negative status is a signal."""
    name = "" if status is None or status >= 0 else name_of(-status)
    if name == "SIGKILL":
        return "the process was killed (SIGKILL), as systems do when memory runs out: try fewer workers, or less data"
    return f"the process was ended by {name}" if name else f"the process ended with status {status}"


def default_workers() -> int:
    """As many workers as there are processors for this process."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
