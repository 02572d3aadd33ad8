"""Workers that train runs: processes on this machine, or a Ray cluster."""

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
from typing import TYPE_CHECKING, Any, TypeAlias

from rl_training.config import TrainConfig
from rl_training.core.batches import Metrics
from rl_training.core.errors import UserError
from rl_training.core.signals import name_of
from rl_training.core.user_code import import_modules, resume_command
from rl_training.data import use_shared
from rl_training.runtime import Callback, TrainerState, train, train_missing
from rl_training.selection import LOWER_BOUND, lower_bound
from rl_training.storage import is_locked

if TYPE_CHECKING:
    from rl_training.experiment.ray_pool import RayPool


Pool: TypeAlias = "LocalPool | RayPool"
"""Workers that train runs."""


def open_pool(workers: int, ray: str | None, *, threads: int = 1) -> Pool:
    """Workers on this machine, or on the cluster with the address `ray`, where a run uses this many threads."""
    if ray is None:
        return LocalPool(workers)
    from rl_training.experiment.ray_pool import RayPool

    return RayPool(ray, cpus=threads)


def count_workers(workers: int, ray: str | None, *, threads: int = 1) -> int:
    """The number of runs that can train at a time; for a cluster, as of now."""
    pool = open_pool(workers, ray, threads=threads)
    try:
        return pool.workers
    finally:
        pool.close()


@dataclass
class _Worker:
    """A process, and the run that it trains; None while it is idle."""

    process: BaseProcess
    last: SeedProgress | None = None
    is_stopping: bool = False


class LocalPool:
    """A pool of processes; each trains one run at a time, then waits for the next."""

    def __init__(self, workers: int) -> None:
        if getattr(mp.current_process(), "_inheriting", False):
            # A worker has imported the program that started it, and reached the same call.
            sys.exit("put what starts runs in processes under: if __name__ == '__main__':")
        self.workers = workers
        self._running: dict[Connection, _Worker] = {}

    @property
    def free(self) -> int:
        """The number of runs that could begin now."""
        return self.workers - self.busy

    @property
    def busy(self) -> int:
        """The number of runs in training."""
        return sum(worker.last is not None for worker in self._running.values())

    def submit(self, job: Job) -> None:
        """Let an idle process train a run, or a new one."""
        idle = (connection for connection, worker in self._running.items() if worker.last is None)
        connection = next(idle, None) or self._start()
        self._running[connection].last = job.begin()
        connection.send(job)

    def collect(self) -> Iterator[SeedProgress]:
        """Wait for news of a run, and pass it on."""
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
                # A failed run may leave its process in a bad state.
                del self._running[connection]
                connection.close()
                worker.process.join()
            yield told

    def stop(self, key: JobKey) -> None:
        """Let a run save its state and end; it reports that it was interrupted."""
        for worker in self._running.values():
            if worker.last is not None and worker.last.key == key and not worker.is_stopping:
                worker.is_stopping = True
                worker.process.terminate()

    def close(self) -> None:
        """Let all runs save their state, and end all processes; on an interrupt, kill them."""
        workers = [*self._running.values()]
        try:
            for worker in workers:
                if worker.last is not None:
                    worker.process.terminate()
            for connection in self._running:
                with suppress(OSError):
                    connection.send(None)
                connection.close()
            for worker in workers:
                worker.process.join()
        except KeyboardInterrupt:
            # All are killed before any is waited for: one may hang in the kernel.
            for worker in workers:
                worker.process.kill()
            for worker in workers:
                worker.process.join()
            raise
        finally:
            self._running.clear()

    def _start(self) -> Connection:
        """Start a process that waits for a run."""
        context = mp.get_context("spawn")
        here, there = context.Pipe()
        process = context.Process(target=_serve, args=(there,))
        with _ignored_interrupt():
            process.start()
        there.close()
        self._running[here] = _Worker(process)
        return here


def _serve(connection: Connection) -> None:
    """The body of a worker process: train runs until the pool closes the connection."""
    while True:
        job: Job | None = None
        with suppress(EOFError, ConnectionResetError):
            job = connection.recv()
        if job is None:
            return
        perform(job, connection.send)


@contextmanager
def _ignored_interrupt() -> Iterator[None]:
    """Start processes that ignore Ctrl-C from their first instant; this process answers it instead."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _unfinished(worker: _Worker, last: SeedProgress) -> SeedProgress:
    """The progress of a run with a process that ended before it reported the end of the run."""
    if worker.is_stopping:
        return replace(last, status="interrupted")
    where = f"; resume it with: {resume_command(last.run_dir)}" if last.run_dir else ""
    return replace(last, status="failed", error=f"{_death(worker.process.exitcode)}{where}")


def _death(status: int | None) -> str:
    """The reason why a worker process ended; a negative status is a signal."""
    name = "" if status is None or status >= 0 else name_of(-status)
    if name == "SIGKILL":
        return "the process was killed (SIGKILL), as systems do when memory runs out: try fewer workers, or less data"
    return f"the process was ended by {name}" if name else f"the process ended with status {status}"


REPORT_SECONDS = 1.0
"""Time between two reports of a worker."""
LOCK_SECONDS = 60.0
"""Time that a run waits for the lock of an earlier process."""
FEWEST_UPDATES = 100
"""Updates that a run makes even if its time is over."""


@dataclass(frozen=True)
class SeedProgress:
    """Progress of one of several runs."""

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
    """The time limit of the run, if it has one."""

    @property
    def key(self) -> JobKey:
        """Its key among the runs that are trained together."""
        return self.name, self.seed

    @property
    def has_ended(self) -> bool:
        """Whether this is the last report of the run."""
        return self.status != "running"


class ProgressListener:
    """Progress events of sweeps, searches and pipelines; displays subclass this."""

    def on_stage(self, stage: str) -> None:
        """A stage of a pipeline begins."""

    def on_news(self, lines: Sequence[str]) -> None:
        """There is news for the user."""

    def on_runs(self, count: int, names: Sequence[str] = (), scores: Sequence[str] = ()) -> None:
        """A number of runs will be trained, with these names if known; the first metric of `scores` ranks them."""

    def on_run(self, progress: SeedProgress) -> None:
        """A run has made progress, or has ended, perhaps in an earlier call."""

    def on_fits(self, count: int) -> None:
        """A number of policies will be estimated by FQE."""

    def on_fit(self, name: str, done: int, total: int) -> None:
        """The FQE estimate of a policy has made progress."""


JobKey = tuple[str | None, int]


@dataclass(frozen=True)
class Job:
    """A run for a worker to train."""

    config: TrainConfig
    resume: bool = False
    """Resume the run with the same options, if there is one."""
    threads: int | None = None
    modules: tuple[str, ...] = ()
    """Modules to import first: a new process has neither those of --import nor those of the calling program."""
    shared: Mapping[str, str] = field(default_factory=dict)
    """Datasets that all workers read from one mapped folder each, by `shared_key`."""
    judge: bool = False
    """Report the lower bound of the estimated value at every evaluation."""
    seconds: float | None = None
    until: float | None = None
    """The end of its time by `time.time()`, the clock that processes share; their start counts."""

    @property
    def key(self) -> JobKey:
        """Its key among the runs that are trained together."""
        return self.config.run_name, self.config.seed

    def begin(self) -> SeedProgress:
        """Its progress before the first report."""
        return SeedProgress(self.config.seed, "running", self.config.run_name, seconds=self.seconds)


TIME_OVER = "seconds were over"


def was_limited(result: Mapping[str, Any]) -> bool:
    """Whether a time limit ended the run with this result."""
    return str(result.get("stop_reason")).endswith(TIME_OVER)


class TimeLimit(Callback):
    """Stops a run for good: only a run with another time limit continues it."""

    def __init__(self, moment: float, seconds: float) -> None:
        self.moment, self.seconds = moment, seconds

    def on_train_start(self, state: TrainerState) -> None:
        """Continue a run that an earlier limit has ended."""
        if was_limited(vars(state)):
            state.should_stop, state.stop_reason = False, None

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        """Look at the clock."""
        if time.time() >= self.moment and state.update_count >= FEWEST_UPDATES:
            state.request_stop(f"its {self.seconds:.0f} {TIME_OVER}")


class Reporter(Callback):
    """Reports the progress of a run to the process that started it."""

    def __init__(self, job: Job, tell: Callable[[SeedProgress], None]) -> None:
        self.tell, self.next_report, self.progress = tell, 0.0, job.begin()
        self.judge, self.threads = job.judge, job.threads

    def on_train_start(self, state: TrainerState) -> None:
        """Report the run directory."""
        self.send(state)

    def on_each_update(self, state: TrainerState, metrics: Metrics) -> None:
        """Report progress now and then."""
        self.send_if_due(state)

    def on_collect_end(self, state: TrainerState) -> None:
        """Report progress now and then."""
        self.send_if_due(state)

    def on_eval_end(self, state: TrainerState, metrics: Mapping[str, float]) -> None:
        """Report the score."""
        bound = lower_bound(state, threads=self.threads) if self.judge else {}
        self.send(state, metrics={**metrics, **bound})

    def on_train_end(self, state: TrainerState) -> None:
        """Report the last step."""
        self.send(state)

    def send_if_due(self, state: TrainerState) -> None:
        """Report progress if the last report is some time ago."""
        if time.monotonic() >= self.next_report:
            self.next_report = time.monotonic() + REPORT_SECONDS
            self.send(state)

    def send(self, state: TrainerState, **changes: Any) -> None:
        """Report progress; interrupt the run if the process that started it is gone."""
        try:
            self.report(global_step=state.global_step, total=state.total, run_dir=str(state.run_dir), **changes)
        except BrokenPipeError:
            # The process that started this one was killed. The user can resume the run.
            state.interrupt("the process that started the run is gone")

    def report(self, **changes: Any) -> SeedProgress:
        """Report changes."""
        self.progress = replace(self.progress, **changes)
        self.tell(self.progress)
        return self.progress


def perform(job: Job, tell: Callable[[SeedProgress], None]) -> SeedProgress:
    """Train a run in this process and report its progress; the last report, its end, is returned as well."""
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
    """Wait while another process has the run: after the loss of its pool or machine, it may end some time later."""
    run = Path(config.output_dir, str(config.run_name))
    end = time.monotonic() + LOCK_SECONDS
    while run.is_dir() and is_locked(run) and time.monotonic() < end:
        time.sleep(0.5)
