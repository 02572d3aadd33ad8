"""The session of a run: its parts, its state, and the two blocks of the loop, acting and learning."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from rl_training.acting import Collector, Policy, StepResult
from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.errors import ConfigError
from rl_training.core.spaces import SpaceSpec
from rl_training.data import Source
from rl_training.diagnostics import GuardAlarm, Guards
from rl_training.ope import VALUE
from rl_training.runtime.callbacks import Callback, overriding
from rl_training.runtime.compiling import Compiling
from rl_training.runtime.controls import LoopOptions as LoopOptions
from rl_training.runtime.fine_tuning import FineTuning
from rl_training.runtime.run_options import RunOptions
from rl_training.runtime.schedules import Plan, resolve_schedule_value
from rl_training.storage import MetricWindow, ReplayStore, RunDirectory, Uploader

PARTS = ("algorithm", "policy", "config", "run_dir", "total", "last_step", "introduction", "notes")
NOT_SAVED = (*PARTS, "compiled", "compiled_from", "interrupted", "signal", "own_metrics", "write")
"""Fields of the state that a resumed run takes from its own options and parts."""


def _not_under_way(path: Path) -> None:
    raise RuntimeError(f"{path}: only a run that is under way can be saved")


@dataclass
class TrainerState:
    """The state of a run. Callbacks read it, report numbers with `log`, and end the run with `request_stop`."""

    algorithm: Algorithm
    policy: Policy
    """The policy that is being trained, from native observations to native actions."""
    config: TrainConfig
    run_dir: Path
    total: int
    global_step: int = 0
    """Timesteps: updates as long as the run only learns, and then steps of the environments."""
    epoch: int = 0
    update_count: int = 0
    env_steps: int = 0
    """Steps of the task, in all environments."""
    vector_steps: int = 0
    """Steps of all environments together."""
    idle_vector_steps: int = 0
    """Vector steps taken before learning started; they earn no updates."""
    stored: int = 0
    """Transitions ever added to the buffer."""
    online_updates: int = 0
    event_step: int = 0
    """The timestep at which events were last looked for."""
    events_due: bool = False
    """Whether the events at this timestep failed, and are repeated when the run is resumed."""
    should_stop: bool = False
    stop_reason: str | None = None
    interrupted: bool = False
    """Stopped from outside: the run can be resumed, where one that stopped itself has ended."""
    signal: int | None = None
    """The signal that interrupted the run, if one did."""
    last_step: StepResult | None = None
    """The last step of all environments, with native actions; None offline."""
    introduction: tuple[str, ...] = ()
    """The lines printed at the start of the run."""
    notes: tuple[str, ...] = ()
    best_score: float | None = None
    best_step: int | None = None
    compiled: bool = False
    compiled_from: int = 0
    """The number of the first update that is compiled, where `compiled` is true."""
    logged: dict[str, tuple[float, int]] = field(default_factory=dict)
    """Sums and counts of the values that callbacks logged since the last row of metrics."""
    own_metrics: tuple[str, ...] = ()
    """Names that callbacks logged so far."""
    write: Callable[[Path], None] = _not_under_way
    """Writes a checkpoint of the run to a file."""

    def log(self, name: str, value: float | Tensor) -> None:
        """Report a number; the mean of the numbers under one name is part of the next row of metrics.

        Numbers that are logged in `on_eval_end` belong to that evaluation and get a row of their own at once.
        """
        total, count = self.logged.get(name, (0.0, 0))
        number = float(value.detach() if isinstance(value, Tensor) else value)
        self.logged[name] = total + number, count + 1

    def drain_log(self, reported: Iterable[str]) -> dict[str, float]:
        """The means of logged numbers since the last call; names that the run reports itself are refused."""
        for name in self.logged:
            if name in reported:
                raise ConfigError(f"state.log({name!r}, ...): the run reports a metric of this name; choose another")
        means = {name: total / count for name, (total, count) in self.logged.items()}
        self.own_metrics = tuple(dict.fromkeys((*self.own_metrics, *means)))
        self.logged = {}
        return means

    def save(self, path: str | Path) -> None:
        """Write a checkpoint to a file of your own, for `predict` and `eval`."""
        self.write(Path(path))

    def request_stop(self, reason: str) -> None:
        """Ask the loop to end after the current update; the first reason wins."""
        if not self.should_stop:
            self.should_stop, self.stop_reason = True, reason

    def interrupt(self, reason: str, *, signal: int | None = None) -> None:
        """Interrupt the run after the current update; `signal` is the reason, if any."""
        if not self.should_stop:
            self.interrupted, self.signal = True, signal
            self.request_stop(reason)

    def state_dict(self) -> dict[str, Any]:
        """The counters as plain values; an interrupted run is saved as one that has not stopped."""
        saved = {name: value for name, value in vars(self).items() if name not in NOT_SAVED}
        return saved | {"should_stop": False, "stop_reason": None} if self.interrupted else saved

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        vars(self).update(state)


@dataclass(frozen=True)
class TrainResult:
    """The outcome of a run."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, float]
    stop_reason: str | None = None
    interrupted: bool = False
    signal: int | None = None
    """The signal that interrupted the run, if one did."""
    best_metrics: dict[str, float] = field(default_factory=dict)
    data_return: float | None = None
    """Mean return of the logged episodes, to compare the policy's with."""
    fine_tuning: dict[str, float] = field(default_factory=dict)
    """Of a run that went online: the offline score, the largest drop below it, and the regret."""
    table: str | None = None
    """Path of the table that the run was trained on, if it was one."""

    def to_plain(self) -> dict[str, Any]:
        """Metrics and the reason of the end, as in `result.json` and `--json`."""
        plain = {"metrics": self.metrics, "best_metrics": self.best_metrics, "data_return": self.data_return}
        fine_tuning = {"fine_tuning": self.fine_tuning} if self.fine_tuning else {}
        return {**plain, **fine_tuning, "stop_reason": self.stop_reason, "interrupted": self.interrupted}


@dataclass
class Session:
    """All parts of one run."""

    config: TrainConfig
    options: RunOptions
    spaces: SpaceSpec
    algorithm: Algorithm
    source: Source
    plan: Plan
    state: TrainerState
    run: RunDirectory
    guards: Guards
    evaluate: Callable[[], dict[str, dict[str, float]]]
    """One evaluation: metrics by the kind of row they belong to."""
    rewards: list[dict[str, Any]]
    """The transforms of rewards, one after the other, in numbers."""
    fingerprint: str = ""
    trained_on: Mapping[str, Any] = field(default_factory=dict)
    """The keys of the logged episodes that train it, as checkpoints have them."""
    data_return: float | None = None
    collector: Collector | None = None
    """Steps the environments and fills the buffer; None offline."""
    store: ReplayStore | None = None
    """Keeps the rows of the buffer on disk; None offline."""
    uploader: Uploader | None = None
    """Uploads checkpoints; None without `upload_url`."""
    fine_tuning: FineTuning | None = None
    callbacks: Sequence[Callback] = ()
    resources: ExitStack = field(default_factory=ExitStack)
    """Files and environments that are closed with the run."""
    window: MetricWindow = field(default_factory=MetricWindow)
    last_metrics: dict[str, float] = field(default_factory=dict)
    best_metrics: dict[str, float] = field(default_factory=dict)
    branches: list[int] = field(default_factory=list)
    """The timesteps at which the run was resumed with other options."""

    def __post_init__(self) -> None:
        self.schedules = self.options.controls.schedules(ramp=self.collector is None)
        self.horizon = self.plan.updates
        """Updates that the learning-rate schedule was planned for; a resumed run keeps it."""
        # Callbacks without these events cost nothing in the inner loops.
        self.step_watchers = overriding(self.callbacks, "on_collect_end")
        self.update_watchers = overriding(self.callbacks, "on_each_update")
        self.undo_events: Callable[[], None] | None = None
        """Undoes the events that are under way."""
        self.is_rolling_back = False
        """True while a rollback is being loaded."""
        self.saved: tuple[int, int] | None = None
        """Updates and steps of the environments in the last checkpoint."""
        self.checkpoint_bytes = 0
        """The size of the last checkpoint."""
        self.is_disk_short = False
        self.compiling = Compiling(self.algorithm, self.spaces, self.state)
        self.resources.callback(self.compiling.close)
        self.mark_time()

    @property
    def best_metric(self) -> tuple[str, str] | None:
        """Name and mode of the metric that decides which checkpoint is the best; None if there is none."""
        stopping = self.options.controls.early_stopping
        if stopping is not None:
            return stopping.metric, stopping.mode
        if self.config.env_id is not None:
            return "return_mean", "max"
        return (VALUE, "max") if self.options.controls.eval_fqe else None

    def mark_time(self) -> None:
        """Measure the speed from here on."""
        state = self.state
        self.logged_updates, self.logged_steps, self.clock = state.update_count, state.env_steps, time.perf_counter()

    def next_updates(self) -> int:
        """The number of updates until the next event or environment step."""
        state, due = self.state, self.plan.updates_due(self.state)
        if state.global_step >= self.plan.pretrain:
            return due
        config, eval_interval = self.config, self.options.controls.eval_interval
        intervals = (config.log_interval, config.checkpoint_interval, eval_interval)
        return min(due, *(interval - state.global_step % interval for interval in intervals if interval is not None))

    def collect(self) -> None:
        """Step all environments once."""
        state, collector = self.state, self.collector
        if collector is None:
            raise RuntimeError("a run without an environment has nothing to collect")
        steps = collector.collect(random=self.plan.acts_randomly(state), noise=self.plan.exploration_at(state))
        state.env_steps += steps
        state.global_step += steps
        state.vector_steps += steps > 0
        state.stored = collector.buffer.added
        if not self.plan.is_learning(state):
            state.idle_vector_steps = state.vector_steps
        state.last_step = collector.last_step
        for callback in self.step_watchers:
            callback.on_collect_end(state)

    def learn(self, updates: int) -> None:
        """Make this many updates, unless the run is asked to stop."""
        state, algorithm, source, window = self.state, self.algorithm, self.source, self.window
        batch_size, done, is_online = self.options.loop.batch_size, 0, state.global_step >= self.plan.pretrain
        while done < updates and not state.should_stop:
            algorithm.set_learning_rate_multiplier(**self.learning_rate_multipliers(state.update_count))
            if is_online:
                algorithm.set_online_share(self.online_share(state.online_updates + 1))
            batch = source.sample(batch_size)
            self.compiling.follow(batch)
            metrics = algorithm.update(batch).metrics
            window.add(metrics)
            state.update_count += 1
            state.online_updates += is_online
            state.global_step += not is_online
            done += 1
            for callback in self.update_watchers:
                callback.on_each_update(state, metrics)

    def find_broken(self) -> GuardAlarm | None:
        """The alarm for a metric since the last log line that is not a number."""
        return self.guards.find_broken(self.window, self.state.update_count)

    def online_share(self, updates: int) -> float:
        """These online updates as a share of the online phase."""
        return updates / max(self.horizon - self.plan.pretrain, 1)

    def learning_rate_multipliers(self, step: int) -> dict[str, float]:
        """The factors of an update's learning rates: `multiplier` for all networks, and those with their own schedule.

        They are the schedules' values, times what is left after guards have gone back.
        """
        factor = self.guards.learning_rate_factor
        return {
            name: factor * resolve_schedule_value(schedule, step=step, total_steps=self.horizon)
            for name, schedule in self.schedules.items()
        }

    def counters(self) -> dict[str, Any]:
        """The columns of every row of metrics: where the run is, and the learning rates of the last update."""
        state, hyper = self.state, self.algorithm.hyper
        multipliers = self.learning_rate_multipliers(max(state.update_count - 1, 0))
        multiplier = multipliers["multiplier"]
        own = {
            f"{child}_learning_rate": multipliers.get(child, multiplier) * hyper.learning_rate_of(child)
            for child in self.algorithm.optimizers
            if child in multipliers or hyper.learning_rate_of(child) != hyper.learning_rate
        }
        return {
            "global_step": state.global_step,
            **({"epoch": state.epoch} if self.collector is None else {"env_steps": state.env_steps}),
            "update_count": state.update_count,
            "learning_rate": multiplier * hyper.learning_rate,
            "learning_rate_multiplier": multiplier,
            **own,
        }

    def write_row(self, kind: str, row: Mapping[str, Any]) -> None:
        """Append a row to the metrics, with the counters in front."""
        self.run.write_metrics(kind, {**self.counters(), **row})
