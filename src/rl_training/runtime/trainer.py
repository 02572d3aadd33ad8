"""One run: counters, the loop, and what happens between its blocks."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from pydantic import Field

from rl_training.algorithms import Algorithm
from rl_training.binding import options
from rl_training.config import TrainConfig
from rl_training.data import Source
from rl_training.runtime.artifacts import MetricWindow, RunDirectory, write_json
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import link_checkpoint, save_checkpoint
from rl_training.runtime.controls import ControlOptions
from rl_training.runtime.performance import CompileOption
from rl_training.runtime.schedules import resolve_schedule_value
from rl_training.types import CheckpointError, SpaceSpec, TrainingError


@options
class LoopOptions:
    """How the loop runs."""

    batch_size: int = Field(default=256, ge=1, description="transitions in a batch")
    min_buffer_size: int = Field(default=1, ge=1, description="transitions that must be there before an update")
    compile: CompileOption = Field(default="auto", description="compile the update: auto compiles runs that earn it")


@dataclass
class TrainerState:
    """Where a run is. Callbacks read it, and end the run with `request_stop`."""

    algorithm: str = ""
    run_dir: Path = Path()
    total: int = 0
    global_step: int = 0
    epoch: int = 0
    update_count: int = 0
    should_stop: bool = False
    stop_reason: str | None = None
    interrupted: bool = False
    """Stopped from outside: a resumed run goes on, where one that stopped itself has ended."""
    notes: tuple[str, ...] = ()
    best_score: float | None = None
    best_step: int | None = None
    compiled: bool = False

    def request_stop(self, reason: str) -> None:
        """Ask the loop to end after the current update; the first reason wins."""
        if not self.should_stop:
            self.should_stop, self.stop_reason = True, reason

    def interrupt(self, reason: str) -> None:
        """Ask the loop to end after the current update, for now."""
        self.interrupted = not self.should_stop
        self.request_stop(reason)

    def state_dict(self) -> dict[str, Any]:
        """The counters as plain values."""
        names = ("global_step", "epoch", "update_count", "best_score", "best_step")
        stop = {"should_stop": self.should_stop, "stop_reason": self.stop_reason}
        if self.interrupted:
            stop = {"should_stop": False, "stop_reason": None}
        return {name: getattr(self, name) for name in names} | stop

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        for name, value in state.items():
            setattr(self, name, value)


@dataclass(frozen=True)
class TrainResult:
    """What a run came to."""

    run_dir: Path
    checkpoint_path: Path
    metrics: dict[str, float]
    stop_reason: str | None = None
    interrupted: bool = False
    best_metrics: dict[str, float] = field(default_factory=dict)
    data_return: float | None = None
    """Mean return of the logged episodes, to compare the policy's with."""


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
    updates_per_epoch: int
    limit: int
    """Updates that the run may make."""
    limit_reason: str | None
    horizon: int
    """Length that the learning-rate schedule was planned for."""
    data_return: float | None = None
    callbacks: Sequence[Callback] = ()
    window: MetricWindow = field(default_factory=MetricWindow)
    last_metrics: dict[str, float] = field(default_factory=dict)
    best_metrics: dict[str, float] = field(default_factory=dict)
    logged_at: int = 0
    clock: float = field(default_factory=time.perf_counter)

    def __post_init__(self) -> None:
        self.schedules = self.controls.schedules()
        self.logged_at = self.state.update_count

    def next_block(self) -> int:
        """Updates until something else has to happen; 0 at the end."""
        done = self.state.update_count
        intervals = (self.config.log_interval, self.config.checkpoint_interval, self.controls.eval_interval)
        gaps = [interval - done % interval for interval in intervals if interval is not None]
        return max(min(self.limit - done, *gaps), 0)

    def learning_rate_multipliers(self, step: int) -> dict[str, float]:
        """The schedules' values for an update: `multiplier` for all children of the model, and those with their own."""
        return {
            name: resolve_schedule_value(schedule, step=step, total_steps=self.horizon)
            for name, schedule in self.schedules.items()
        }

    def after_block(self) -> None:
        """Log, evaluate and checkpoint, each if due; end the run if its budget is used up."""
        state, done = self.state, self.state.update_count
        state.global_step, state.epoch = done, done // self.updates_per_epoch
        ended = done >= self.limit
        if ended and self.limit_reason is not None:
            state.request_stop(self.limit_reason)
        if done % self.config.log_interval == 0 or ended:
            self.log()
        if ended or (self.controls.eval_interval and done % self.controls.eval_interval == 0):
            self.evaluate_now()
        if state.should_stop and not state.interrupted and done > self.logged_at:
            self.log()
        if done % self.config.checkpoint_interval == 0 or ended or state.should_stop:
            self.checkpoint()

    def log(self) -> None:
        """Write the averages of the updates since the last line."""
        now, state = time.perf_counter(), self.state
        broken = self.window.find_broken()
        metrics = {**self.counters(), **self.window.drain()}
        metrics["updates_per_second"] = (state.update_count - self.logged_at) / max(now - self.clock, 1e-9)
        self.clock, self.logged_at = now, state.update_count
        self.run.write_metrics("train", metrics)
        self.refuse(broken)
        for callback in self.callbacks:
            callback.on_update_end(state, metrics)

    def check_finite(self) -> None:
        """Stop before a state that holds no numbers any more is evaluated or saved."""
        self.refuse(self.window.find_broken())

    def refuse(self, broken: str | None) -> None:
        """End a run one of whose metrics is no number."""
        if broken is not None:
            raise TrainingError(
                f"{broken} is not a number after {self.state.update_count} updates: training has diverged; try a lower "
                f"learning_rate or max_grad_norm; the last checkpoint is {self.run.checkpoints / 'latest.pt'}"
            )

    def evaluate_now(self) -> None:
        """Evaluate, tell the callbacks, and remember whether it is the best so far."""
        state, started = self.state, time.perf_counter()
        self.check_finite()
        rows = self.evaluate()
        if not rows:
            return
        self.last_metrics = self.counters() | {name: value for row in rows.values() for name, value in row.items()}
        for kind, row in rows.items():
            self.run.write_metrics(kind, {**self.counters(), **row})
        is_best = self.keep_best()
        for callback in self.callbacks:
            callback.on_eval_end(state, self.last_metrics)
        if is_best:
            save_checkpoint(self.run.checkpoints / "best.pt", self.tree())
        self.clock += time.perf_counter() - started

    def keep_best(self) -> bool:
        """Whether the last evaluation is better than all before it; if so, it is remembered."""
        if self.best_metric is None or self.best_metric[0] not in self.last_metrics:
            return False
        name, mode = self.best_metric
        best, value = self.state.best_score, self.last_metrics[name]
        if not math.isfinite(value):
            return False
        if best is not None and (value <= best if mode == "max" else value >= best):
            return False
        self.state.best_score, self.state.best_step, self.best_metrics = (
            value,
            self.state.update_count,
            self.last_metrics,
        )
        return True

    def checkpoint(self) -> None:
        """Write the state under its number and make it the latest."""
        self.check_finite()
        path = self.run.checkpoints / f"update_{self.state.update_count:09d}.pt"
        save_checkpoint(path, self.tree())
        link_checkpoint(path, "latest.pt")

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
        return {
            "global_step": state.global_step,
            "epoch": state.epoch,
            "update_count": state.update_count,
            "learning_rate": multiplier * hyper.learning_rate,
            "learning_rate_multiplier": multiplier,
            **own,
        }

    def named_callbacks(self) -> list[tuple[str, Callback]]:
        """Callbacks under the names of their classes; several of one class are numbered."""
        kinds = [type(callback).__name__ for callback in self.callbacks]
        return [(f"{kind}{kinds[:k].count(kind) or ''}", self.callbacks[k]) for k, kind in enumerate(kinds)]

    def tree(self) -> dict[str, Any]:
        """The complete state of the run: tensors and plain values only."""
        return {
            "config": self.config.to_plain(),
            "spaces": self.spaces.to_plain(),
            "algorithm": self.algorithm.state_dict(),
            "source": self.source.state_dict(),
            "trainer": {
                "state": self.state.state_dict(),
                "window": self.window.state_dict(),
                "callbacks": {name: callback.state_dict() for name, callback in self.named_callbacks()},
                "last_metrics": self.last_metrics,
                "best_metrics": self.best_metrics,
                "horizon": self.horizon,
                "fingerprint": self.fingerprint,
            },
            "random": {
                "torch": torch.get_rng_state(),
                "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            },
            "machine": {
                "torch": str(torch.__version__),
                "threads": torch.get_num_threads(),
                "compiled": self.state.compiled,
            },
        }

    def load_tree(self, tree: Mapping[str, Any]) -> None:
        """Continue from what `tree` returned."""
        trainer = tree["trainer"]
        try:
            self.algorithm.load_state_dict(tree["algorithm"])
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise CheckpointError(f"the checkpoint does not fit the options of the networks: {reason}") from None
        self.source.load_state_dict(tree["source"])
        self.state.load_state_dict(trainer["state"])
        self.window.load_state_dict(trainer["window"])
        for name, callback in self.named_callbacks():
            # A callback may be new to the run; then there is nothing to restore.
            if name in trainer["callbacks"]:
                callback.load_state_dict(trainer["callbacks"][name])
        self.last_metrics, self.best_metrics = dict(trainer["last_metrics"]), dict(trainer["best_metrics"])
        self.horizon = trainer["horizon"]
        self.logged_at = self.state.update_count
        torch.set_rng_state(tree["random"]["torch"])
        if torch.cuda.is_available() and tree["random"]["cuda"]:
            torch.cuda.set_rng_state_all(tree["random"]["cuda"])


def train_session(session: Session) -> TrainResult:
    """One run to its end; whatever ends it, display and log files are closed."""
    try:
        run_loop(session)
        return finish(session)
    finally:
        for callback in session.callbacks:
            callback.close()
        session.run.close()


def run_loop(session: Session) -> None:
    """The training loop."""
    state, algorithm, source, window = session.state, session.algorithm, session.source, session.window
    batch_size = session.loop.batch_size
    for callback in session.callbacks:
        callback.on_train_start(state)
    session.clock = time.perf_counter()
    while not state.should_stop and (updates := session.next_block()):
        for _ in range(updates):
            algorithm.set_learning_rate_multiplier(**session.learning_rate_multipliers(state.update_count))
            window.add(algorithm.update(source.sample(batch_size)).metrics)
            state.update_count += 1
            if state.should_stop:
                break
        session.after_block()


def finish(session: Session) -> TrainResult:
    """Write the result and say goodbye."""
    state, run = session.state, session.run
    result = TrainResult(
        run_dir=run.path,
        checkpoint_path=run.checkpoints / "latest.pt",
        metrics=session.last_metrics,
        stop_reason=state.stop_reason,
        interrupted=state.interrupted,
        best_metrics=session.best_metrics,
        data_return=session.data_return,
    )
    write_json(
        run.path / "result.json",
        {
            **session.counters(),
            "metrics": result.metrics,
            "best_metrics": result.best_metrics,
            "best_step": state.best_step,
            "data_return": result.data_return,
            "stop_reason": state.stop_reason,
        },
    )
    for callback in session.callbacks:
        callback.on_train_end(state)
    return result
