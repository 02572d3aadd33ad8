"""Where runs are trained: in processes on this machine, or on a Ray cluster."""

from __future__ import annotations

import multiprocessing as mp
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Protocol

from rl_training.config import TrainConfig
from rl_training.core.batches import Metrics
from rl_training.core.errors import UserError
from rl_training.core.signals import name_of
from rl_training.core.user_code import import_modules, resume_command
from rl_training.data import use_shared
from rl_training.runtime import Callback, TrainerState, train, train_missing
from rl_training.selection import LOWER_BOUND, lower_bound
from rl_training.storage import is_locked


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


@dataclass
class _Worker:
    """A process, and the run that it trains; None while it waits for one."""

    process: BaseProcess
    last: SeedProgress | None = None
    is_stopping: bool = False


class LocalPool:
    """As many processes as there are runs at a time. A process that has trained its run waits for the next one."""

    def __init__(self, workers: int) -> None:
        if getattr(mp.current_process(), "_inheriting", False):
            # A worker imports the program that started it, and came to the call that started it.
            sys.exit("put what starts runs in processes under: if __name__ == '__main__':")
        self.workers = workers
        self._running: dict[Connection, _Worker] = {}

    @property
    def free(self) -> int:
        """How many runs could begin now."""
        return self.workers - self.busy

    @property
    def busy(self) -> int:
        """How many runs have begun and have not ended."""
        return sum(worker.last is not None for worker in self._running.values())

    def submit(self, job: Job) -> None:
        """Let a process that waits train a run, or a new one."""
        idle = (connection for connection, worker in self._running.items() if worker.last is None)
        connection = next(idle, None) or self._start()
        self._running[connection].last = job.begin()
        connection.send(job)

    def collect(self) -> Iterator[SeedProgress]:
        """Wait until a run has something to tell, and pass it on."""
        for connection in wait(list(self._running)):
            assert isinstance(connection, Connection)  # noqa: S101 - only connections are waited for
            worker = self._running[connection]
            try:
                told: SeedProgress = connection.recv()
            except (EOFError, ConnectionResetError):
                del self._running[connection]
                connection.close()
                worker.process.join()
                if worker.last is not None:
                    yield _unfinished(worker, worker.last)
                continue
            worker.last = None if told.has_ended else told
            if told.has_ended:
                worker.is_stopping = False
            if told.status == "failed":
                # What a run that failed leaves behind in its process is not known.
                del self._running[connection]
                connection.close()
                worker.process.join()
            yield told

    def stop(self, key: JobKey) -> None:
        """Let a run save its state and end; that it was interrupted is told like everything else."""
        for worker in self._running.values():
            if worker.last is not None and worker.last.key == key and not worker.is_stopping:
                worker.is_stopping = True
                worker.process.terminate()

    def close(self) -> None:
        """Let all runs save their state, and end all processes; if this is interrupted, end them at once."""
        busy = [worker.process for worker in self._running.values() if worker.last is not None]
        everyone = [worker.process for worker in self._running.values()]
        try:
            for process in busy:
                process.terminate()
            for connection in self._running:
                with suppress(OSError):
                    connection.send(None)
                connection.close()
            _join(everyone)
        except KeyboardInterrupt:
            for process in everyone:
                process.kill()
            _join(everyone)
            raise
        finally:
            self._running.clear()

    def _start(self) -> Connection:
        """A new process, which waits for a run."""
        context = mp.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,))
        with _ignored_interrupt():
            process.start()
        there.close()
        self._running[here] = _Worker(process)
        return here


def _serve(connection: Connection) -> None:
    """The body of a worker process: train runs until nobody has another one."""
    while True:
        try:
            job: Job | None = connection.recv()
        except (EOFError, ConnectionResetError):
            return
        if job is None:
            return
        perform(job, connection.send)


def _join(processes: Sequence[BaseProcess]) -> None:
    for process in processes:
        process.join()


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


def _unfinished(worker: _Worker, last: SeedProgress) -> SeedProgress:
    """What is known of a run whose process ended before it told how the run ended."""
    if worker.is_stopping:
        return replace(last, status="interrupted")
    where = f"; resume it with: {resume_command(last.run_dir)}" if last.run_dir else ""
    return replace(last, status="failed", error=f"{_death(worker.process.exitcode)}{where}")


def _death(status: int | None) -> str:
    """How a worker ended that told nothing; a negative status is a signal."""
    name = "" if status is None or status >= 0 else name_of(-status)
    if name == "SIGKILL":
        return "the process was killed (SIGKILL), as systems do when memory runs out: try fewer workers, or less data"
    return f"the process was ended by {name}" if name else f"the process ended with status {status}"


REPORT_SECONDS = 1.0
"""How often a worker tells how far it has come."""


LOCK_SECONDS = 60.0
"""How long a run waits for the process that had it before."""


FEWEST_UPDATES = 100
"""Updates that a run makes even if its time is over."""


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

    @property
    def key(self) -> JobKey:
        """What tells the run from others that are trained with it."""
        return self.name, self.seed

    @property
    def has_ended(self) -> bool:
        """Whether nothing more is to come from it."""
        return self.status != "running"


class ProgressListener:
    """What sweeps, searches and pipelines tell while they work; a subclass shows it."""

    def on_stage(self, stage: str) -> None:
        """A stage of a pipeline begins."""

    def on_news(self, lines: Sequence[str]) -> None:
        """Something is known that the user wants to know."""

    def on_runs(self, count: int, names: Sequence[str] = (), scores: Sequence[str] = ()) -> None:
        """So many runs will be trained, by these names if they are known; the first of `scores` compares them."""

    def on_run(self, progress: SeedProgress) -> None:
        """A run has come further, or has ended before."""

    def on_fits(self, count: int) -> None:
        """So many values of policies will be fitted."""

    def on_fit(self, name: str, done: int, total: int) -> None:
        """The fit of a policy's value has come further."""


JobKey = tuple[str | None, int]


@dataclass(frozen=True)
class Job:
    """A run that a worker is to train, and how."""

    config: TrainConfig
    resume: bool = False
    """Go on with the run of the same options, if there is one."""
    threads: int | None = None
    modules: tuple[str, ...] = ()
    """Imported first: a new process knows neither what --import named nor what the calling program imported."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Datasets that all workers read from one mapped folder each, by what `shared_key` calls them."""
    judge: bool = False
    """Report the lower bound of what logged data says of the policy, at every evaluation."""
    seconds: float | None = None
    until: float | None = None
    """The end of its time by `time.time()`, which other processes read too; their start counts."""

    @property
    def key(self) -> JobKey:
        """What tells the run from others that are trained with it."""
        return self.config.run_name, self.config.seed

    def begin(self) -> SeedProgress:
        """Its progress before it has told anything."""
        return SeedProgress(self.config.seed, "running", self.config.run_name, seconds=self.seconds)


class TimeLimit(Callback):
    """Ends a run at a moment; that is the end of the run, which nobody is to go on with."""

    def __init__(self, moment: float, seconds: float) -> None:
        self.moment, self.seconds = moment, seconds

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        """Look at the clock."""
        if time.time() >= self.moment and state.update_count >= FEWEST_UPDATES:
            state.request_stop(f"its {self.seconds:.0f} seconds were over")


class Reporter(Callback):
    """Tells how far a run has come, to whoever started it."""

    def __init__(self, job: Job, tell: Callable[[SeedProgress], None]) -> None:
        self.tell, self.next_report, self.progress = tell, 0.0, job.begin()
        self.judge, self.threads = job.judge, job.threads

    def on_train_start(self, state: TrainerState) -> None:
        """Tell where the run is written."""
        self.send(state)

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        """Tell how far it is, now and then."""
        self.send_if_due(state)

    def on_collect_end(self, state: TrainerState) -> None:
        """Tell how far it is, now and then."""
        self.send_if_due(state)

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Tell the score."""
        bound = lower_bound(state, threads=self.threads) if self.judge else {}
        self.send(state, metrics={**metrics, **bound})

    def on_train_end(self, state: TrainerState) -> None:
        """Tell the last step."""
        self.send(state)

    def send_if_due(self, state: TrainerState) -> None:
        """Tell how far the run is, if the last time was a while ago."""
        if time.monotonic() >= self.next_report:
            self.next_report = time.monotonic() + REPORT_SECONDS
            self.send(state)

    def send(self, state: TrainerState, **changes: Any) -> None:
        """Tell how far the run is; it is interrupted if nobody listens."""
        try:
            self.report(global_step=state.global_step, total=state.total, run_dir=str(state.run_dir), **changes)
        except BrokenPipeError:
            # The process that started this one was killed. Whoever starts it again goes on with the run.
            state.interrupt("the process that started the run is gone")

    def report(self, **changes: Any) -> SeedProgress:
        """Tell what has changed."""
        self.progress = replace(self.progress, **changes)
        self.tell(self.progress)
        return self.progress


def perform(job: Job, tell: Callable[[SeedProgress], None]) -> SeedProgress:
    """Train a run in this process and tell how it goes; how it ended is told last, and returned."""
    reporter = Reporter(job, tell)
    limits = [] if job.until is None or job.seconds is None else [TimeLimit(job.until, job.seconds)]
    with suppress(BrokenPipeError):
        try:
            import_modules(job.modules)
            if job.resume:
                _wait_for_lock(job.config)
            start = train_missing if job.resume else train
            with use_shared(job.shared):
                result = start(job.config, callbacks=[reporter, *limits], threads=job.threads)
        except UserError as error:
            reporter.report(status="failed", error=str(error))
        except Exception:
            reporter.report(status="failed", error=traceback.format_exc())
        else:
            status = "interrupted" if result.interrupted else "done"
            told = reporter.progress.metrics or {}
            bound = {LOWER_BOUND: told[LOWER_BOUND]} if LOWER_BOUND in told else {}
            reporter.report(status=status, metrics={**result.metrics, **bound} or None)
    return reporter.progress


def _wait_for_lock(config: TrainConfig) -> None:
    """Wait while another process has the run: one whose leader or machine was lost may end later than that."""
    run = Path(config.output_dir, str(config.run_name))
    end = time.monotonic() + LOCK_SECONDS
    while run.is_dir() and is_locked(run) and time.monotonic() < end:
        time.sleep(0.5)
