"""One run of many: what a worker is told, what it does, and what it tells."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rl_training.config import TrainConfig
from rl_training.core.batches import Metrics
from rl_training.core.errors import UserError
from rl_training.core.user_code import import_modules
from rl_training.data.sharing import use_shared
from rl_training.runtime import TrainerState, train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.named_runs import train_missing
from rl_training.selection.lower_bound import LOWER_BOUND, lower_bound
from rl_training.storage.lock import is_locked

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
