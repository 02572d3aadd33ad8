"""One run: its parts, and what happens between two blocks of the loop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.data import Source
from rl_training.runtime.artifacts import MetricWindow, RunDirectory
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.checkpointing import link_checkpoint, save_checkpoint
from rl_training.runtime.collecting import Collector
from rl_training.runtime.controls import ControlOptions
from rl_training.runtime.fine_tuning import FineTuning
from rl_training.runtime.plan import LoopOptions, Plan
from rl_training.runtime.replay_store import ReplayStore
from rl_training.runtime.schedules import resolve_schedule_value
from rl_training.runtime.state import TrainerState, TrainResult
from rl_training.spaces import SpaceSpec
from rl_training.types import CheckpointError, TrainingError

__all__ = ["LoopOptions", "Plan", "Session", "TrainResult", "TrainerState"]


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
    """What acts, in a run that does, and where its buffer is kept."""
    store: ReplayStore | None = None
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
        self._mark_time()

    def _mark_time(self) -> None:
        """Speed is counted from here on."""
        state = self.state
        self.logged_updates, self.logged_steps, self.clock = state.update_count, state.env_steps, time.perf_counter()

    def start(self) -> None:
        """Begin to count time; a policy that comes from elsewhere is evaluated before it learns anything here."""
        if self.fine_tuning is not None and self.fine_tuning.starts_with_policy and self.state.global_step == 0:
            self.fine_tuning = FineTuning(starts_with_policy=True)
            self.evaluate_now()
        self._mark_time()

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
        """So many updates, unless the run is asked to stop."""
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
        """How much of the online phase so many updates are."""
        return updates / max(self.horizon - self.plan.pretrain, 1)

    def learning_rate_multipliers(self, step: int) -> dict[str, float]:
        """The schedules' values for an update: `multiplier` for all children of the model, and those with their own."""
        return {
            name: resolve_schedule_value(schedule, step=step, total_steps=self.horizon)
            for name, schedule in self.schedules.items()
        }

    def after_block(self) -> None:
        """Log, evaluate and checkpoint, each if due; end the run if its budget is used up."""
        state, step = self.state, self.state.global_step
        if self.updates_per_epoch is not None:
            state.epoch = state.update_count // self.updates_per_epoch
        if state.interrupted and step >= self.plan.pretrain and self.plan.updates_due(state):
            # In the middle of a round: what belongs to its end happens when it is resumed.
            self.checkpoint()
            return
        ended = self.plan.is_over(state)
        logs, saves = (self._passed(each) for each in (self.config.log_interval, self.config.checkpoint_interval))
        evaluates = self._passed(self.controls.eval_interval) or self._switches()
        state.event_step = step
        if self.plan.limit_reason is not None and self.plan.is_used_up(state):
            state.request_stop(self.plan.limit_reason)
        if logs or ended:
            self.log()
        if evaluates or ended:
            self.evaluate_now()
        if state.should_stop and not state.interrupted and state.update_count > self.logged_updates:
            self.log()
        if saves or ended or state.should_stop:
            self.checkpoint()

    def _passed(self, interval: int | None) -> bool:
        """Whether a multiple of an interval lies between the last events and this step."""
        state = self.state
        return interval is not None and state.global_step // interval > state.event_step // interval

    def _switches(self) -> bool:
        """Whether pretraining has just ended."""
        return self.fine_tuning is not None and self.state.event_step < self.plan.pretrain <= self.state.global_step

    def log(self) -> None:
        """Write the averages of the updates since the last line, and how the episodes since then went."""
        state, passed = self.state, max(time.perf_counter() - self.clock, 1e-9)
        broken = self.window.find_broken()
        metrics = {**self.counters(), **self.window.drain(), **self.source.metrics()}
        metrics["updates_per_second"] = (state.update_count - self.logged_updates) / passed
        if self.collector is not None:
            metrics["steps_per_second"] = (state.env_steps - self.logged_steps) / passed
            rollout = self.collector.metrics()
            if rollout and self.plan.exploration_schedule is not None:
                rollout["exploration_noise"] = self.plan.exploration_at(state)
            if rollout:
                self.run.write_metrics("rollout", {**self.counters(), **rollout})
        self._mark_time()
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
        if self.fine_tuning is not None and state.global_step >= self.plan.pretrain:
            self.fine_tuning.add(self.last_metrics)
        is_best = self.keep_best()
        for callback in self.callbacks:
            callback.on_eval_end(state, self.last_metrics)
        if is_best:
            self.save("best.pt")
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
        self.state.best_score, self.state.best_step = value, self.state.global_step
        self.best_metrics = self.last_metrics
        return True

    def save(self, name: str) -> Path:
        """Write the state of the run to a checkpoint of this name, after the rows of the buffer that it refers to."""
        if self.store is not None:
            self.store.save()
        path = self.run.checkpoints / name
        save_checkpoint(path, self.tree())
        return path

    def checkpoint(self) -> None:
        """Write the state under its number and make it the latest."""
        self.check_finite()
        unit = "update" if self.collector is None else "step"
        link_checkpoint(self.save(f"{unit}_{self.state.global_step:09d}.pt"), "latest.pt")
        self.saved = self.state.update_count, self.state.env_steps
        if self.store is not None:
            self.store.prune()

    def save_rest(self) -> None:
        """Write what the last checkpoint lacks, if the run was interrupted between that and its next."""
        if self.state.interrupted and self.saved != (self.state.update_count, self.state.env_steps):
            self.checkpoint()

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
        places = {"epoch": state.epoch} if self.collector is None else {"env_steps": state.env_steps}
        return {
            "global_step": state.global_step,
            **places,
            "update_count": state.update_count,
            "learning_rate": multiplier * hyper.learning_rate,
            "learning_rate_multiplier": multiplier,
            **own,
        }

    def close(self) -> None:
        """Let go of files and environments."""
        self.run.close()
        self.resources.close()
        if self.collector is not None:
            self.collector.close()

    def save_replay(self) -> None:
        """Keep the buffer as a dataset, if so asked for, once the run has ended."""
        if self.store is not None and self.saves_replay and not self.state.interrupted:
            self.store.export(self.run.path / "replay.npz", self.spaces)

    def named_callbacks(self) -> list[tuple[str, Callback]]:
        """Callbacks under the names of their classes; several of one class are numbered."""
        kinds = [type(callback).__name__ for callback in self.callbacks]
        return [(f"{kind}{kinds[:k].count(kind) or ''}", self.callbacks[k]) for k, kind in enumerate(kinds)]

    def tree(self) -> dict[str, Any]:
        """The complete state of the run: tensors and plain values only.

        Rows of the replay buffer are not part of it. It names the files they are in, as of the last `store.save()`.
        """
        return {
            "config": self.config.to_plain(),
            "spaces": self.spaces.to_plain(),
            "algorithm": self.algorithm.state_dict(),
            "source": self.source.state_dict(),
            "replay": [] if self.store is None else [list(span) for span in self.store.spans],
            "collector": None if self.collector is None else self.collector.state_dict(),
            "trainer": {
                "state": self.state.state_dict(),
                "window": self.window.state_dict(),
                "callbacks": {name: callback.state_dict() for name, callback in self.named_callbacks()},
                "last_metrics": self.last_metrics,
                "best_metrics": self.best_metrics,
                "fine_tuning": None if self.fine_tuning is None else self.fine_tuning.state_dict(),
                "horizon": self.horizon,
                "fingerprint": self.fingerprint,
                "rewards": self.rewards,
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
        # A source may compute fields with the networks, so these come first. The buffer's counters are part of the
        # source's state and say how many rows the store has to bring back, so the rows come last.
        self.source.load_state_dict(tree["source"])
        if self.store is not None:
            self.store.load(tree["replay"])
        self.state.load_state_dict(trainer["state"])
        self.saved = self.state.update_count, self.state.env_steps
        if self.fine_tuning is not None:
            self.fine_tuning.load_state_dict(trainer["fine_tuning"])
        self.window.load_state_dict(trainer["window"])
        for name, callback in self.named_callbacks():
            # A callback may be new to the run; then there is nothing to restore.
            if name in trainer["callbacks"]:
                callback.load_state_dict(trainer["callbacks"][name])
        self.last_metrics, self.best_metrics = dict(trainer["last_metrics"]), dict(trainer["best_metrics"])
        self.horizon = trainer["horizon"]
        self.algorithm.set_online_share(self.online_share(self.state.online_updates))
        if self.collector is not None and not self.collector.load_state_dict(tree["collector"]):
            note = f"the state of {self.config.env_id} cannot be saved: the run goes on with new episodes"
            self.state.notes = (*self.state.notes, note)
        self._mark_time()
        torch.set_rng_state(tree["random"]["torch"])
        if torch.cuda.is_available() and tree["random"]["cuda"]:
            torch.cuda.set_rng_state_all(tree["random"]["cuda"])
