"""One run: its parts, and the two kinds of blocks that the loop is made of, acting and learning."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.data import Source
from rl_training.runtime.artifacts import MetricWindow, RunDirectory
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.collecting import Collector
from rl_training.runtime.fine_tuning import FineTuning
from rl_training.runtime.option_groups import ControlOptions, LoopOptions
from rl_training.runtime.plan import Plan
from rl_training.runtime.replay_store import ReplayStore
from rl_training.runtime.schedules import resolve_schedule_value
from rl_training.runtime.state import TrainerState
from rl_training.spaces import SpaceSpec


@dataclass
class Session:
    """Everything one run consists of."""

    config: TrainConfig
    spaces: SpaceSpec
    algorithm: Algorithm
    source: Source
    loop: LoopOptions
    controls: ControlOptions
    state: TrainerState
    run: RunDirectory
    evaluate: Callable[[], dict[str, dict[str, float]]]
    """One evaluation: metrics by the kind of row they belong to."""
    best_metric: tuple[str, str] | None
    """Name and mode of what decides which checkpoint is the best; None where nothing can."""
    fingerprint: str
    rewards: list[dict[str, Any]]
    """What is done to rewards, one after the other, in numbers."""
    plan: Plan
    horizon: int
    """Updates that the learning-rate schedule was planned for."""
    updates_per_epoch: int | None = None
    data_return: float | None = None
    collector: Collector | None = None
    """Steps the environments and fills the buffer; None offline."""
    store: ReplayStore | None = None
    """Keeps the rows of the buffer on disk; None offline."""
    saves_replay: bool = False
    """Whether the buffer is kept as a dataset when the run has ended."""
    fine_tuning: FineTuning | None = None
    callbacks: Sequence[Callback] = ()
    resources: ExitStack = field(default_factory=ExitStack)
    """What else is closed with the run."""
    window: MetricWindow = field(default_factory=MetricWindow)
    last_metrics: dict[str, float] = field(default_factory=dict)
    best_metrics: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.schedules = self.controls.schedules(ramp=self.collector is None)
        self.saved: tuple[int, int] | None = None
        """Updates and steps of the environments in the last checkpoint."""
        self.mark_time()

    def mark_time(self) -> None:
        """Speed is counted from here on."""
        state = self.state
        self.logged_updates, self.logged_steps, self.clock = state.update_count, state.env_steps, time.perf_counter()

    def next_updates(self) -> int:
        """Updates until something else has to happen."""
        state, due = self.state, self.plan.updates_due(self.state)
        if state.global_step >= self.plan.pretrain:
            return due
        intervals = (self.config.log_interval, self.config.checkpoint_interval, self.controls.eval_interval)
        return min(due, *(interval - state.global_step % interval for interval in intervals if interval is not None))

    def collect(self) -> None:
        """One step of all environments."""
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
        for callback in self.callbacks:
            callback.on_collect_end(state)

    def learn(self, updates: int) -> None:
        """Make this many updates, unless the run is asked to stop."""
        state, algorithm, source, window = self.state, self.algorithm, self.source, self.window
        batch_size, done, is_online = self.loop.batch_size, 0, state.global_step >= self.plan.pretrain
        while done < updates and not state.should_stop:
            algorithm.set_learning_rate_multiplier(**self.learning_rate_multipliers(state.update_count))
            if is_online:
                algorithm.set_online_share(self.online_share(state.online_updates + done + 1))
            window.add(algorithm.update(source.sample(batch_size)).metrics)
            state.update_count += 1
            done += 1
        if is_online:
            state.online_updates += done
        else:
            state.global_step += done

    def online_share(self, updates: int) -> float:
        """The share of the online phase that this many online updates are."""
        return updates / max(self.horizon - self.plan.pretrain, 1)

    def learning_rate_multipliers(self, step: int) -> dict[str, float]:
        """The schedules' values for an update: `multiplier` for all children of the model, and those with their own."""
        return {
            name: resolve_schedule_value(schedule, step=step, total_steps=self.horizon)
            for name, schedule in self.schedules.items()
        }

    def counters(self) -> dict[str, Any]:
        """What every row of metrics carries: where the run is, and the learning rates of the last update."""
        state, hyper = self.state, self.algorithm.hyper
        multipliers = self.learning_rate_multipliers(max(state.update_count - 1, 0))
        multiplier = multipliers["multiplier"]
        own = {
            f"{child}_learning_rate": multipliers.get(child, multiplier) * hyper.learning_rate_of(child)
            for child in self.algorithm.optimizers
            if child in multipliers or hyper.learning_rate_of(child) != hyper.learning_rate
        }
        position = {"epoch": state.epoch} if self.collector is None else {"env_steps": state.env_steps}
        return {
            "global_step": state.global_step,
            **position,
            "update_count": state.update_count,
            "learning_rate": multiplier * hyper.learning_rate,
            "learning_rate_multiplier": multiplier,
            **own,
        }

    def close(self) -> None:
        """Close files and environments."""
        self.run.close()
        self.resources.close()
        if self.collector is not None:
            self.collector.close()
