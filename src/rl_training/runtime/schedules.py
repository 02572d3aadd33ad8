"""The plan of a run by counters alone, and schedules of learning rates and exploration."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from rl_training.algorithms import Algorithm
from rl_training.config import TrainConfig
from rl_training.core.batches import Rollout
from rl_training.core.options import option, options

if TYPE_CHECKING:
    from rl_training.runtime.run_options import RunOptions
    from rl_training.runtime.trainer import TrainerState


Shape = Literal["constant", "linear", "cosine"]


@options
class ScheduleSpec:
    """A ramp from zero over `warmup` steps, then a way down to `final_ratio` of the base value, where it stays."""

    kind: Shape = option("constant", "shape after the warm-up")
    warmup: int = option(0, "steps of linear increase from zero", ge=0)
    final_ratio: float = option(0.0, "share of the base value that it falls to", ge=0, le=1)
    fraction: float = option(1.0, "share of the run in which it falls", gt=0, le=1)


def as_schedule(value: Any) -> Any:
    """Turn a bare word such as `cosine` into a schedule."""
    return {"kind": value} if isinstance(value, str) else value


def resolve_schedule_value(spec: ScheduleSpec, *, step: int, total_steps: int, base_value: float = 1.0) -> float:
    """The value at a step, counted from 0, of a run of `total_steps`."""
    if step < spec.warmup:
        return base_value * (step + 1) / spec.warmup
    if spec.kind == "constant":
        return base_value
    progress = min((step - spec.warmup) / max((total_steps - spec.warmup) * spec.fraction, 1), 1.0)
    share = 1 - progress if spec.kind == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return base_value * (spec.final_ratio + (1 - spec.final_ratio) * share)


@dataclass(frozen=True)
class Plan:
    """The order of acting and learning. It depends on counters alone, so a resumed run follows the same plan.

    Timesteps are updates as long as the run only learns (all of an offline run, and pretraining), and steps of the
    environments after that.
    """

    total: int
    pretrain: int
    """Timesteps that are updates without a step of the environment; all of them, offline."""
    max_updates: int | None = None
    limit_reason: str | None = None
    """Why the run ends with `max_updates`, where its own length is not the reason."""
    learning_starts: int = 0
    """Transitions after which updates begin."""
    random_steps: int = 0
    """Steps of the environments that are taken with uniform actions."""
    exploration_noise: float = 0.0
    exploration_schedule: ScheduleSpec | None = None
    num_envs: int = 1
    update_to_data: float | None = None
    train_frequency: int = 1
    updates_per_round: int = 1
    updates_per_epoch: int | None = None
    """Updates in a pass over the data, where there are passes."""

    @property
    def updates(self) -> int:
        """The number of updates of the whole run, if every transition is stored at once."""
        vector_steps = math.ceil((self.total - self.pretrain) / self.num_envs)
        idle = min(self.learning_starts // self.num_envs, vector_steps)
        count = self.pretrain + self._earned(vector_steps - idle, vector_steps * self.num_envs)
        return count if self.max_updates is None else min(count, self.max_updates)

    def _earned(self, vector_steps: int, stored: int) -> int:
        """Online updates earned so far: in rounds every `train_frequency` vector steps, or by stored transitions."""
        if self.update_to_data is None:
            return vector_steps // self.train_frequency * self.updates_per_round
        # 0.29 * 100 is a little less than 29.
        return int(self.update_to_data * max(stored - self.learning_starts, 0) + 1e-9)

    def is_over(self, state: TrainerState) -> bool:
        """Whether the run is complete."""
        return self.is_used_up(state) or (state.global_step >= self.total and not self.updates_due(state))

    def is_used_up(self, state: TrainerState) -> bool:
        """Whether no update is left."""
        return self.max_updates is not None and state.update_count >= self.max_updates

    def updates_due(self, state: TrainerState) -> int:
        """The number of updates before the next environment step or event."""
        if state.global_step < self.pretrain:
            due = self.pretrain - state.global_step
        else:
            due = self._earned(state.vector_steps - state.idle_vector_steps, state.stored) - state.online_updates
        left = due if self.max_updates is None else self.max_updates - state.update_count
        return max(min(due, left), 0)

    def acts_randomly(self, state: TrainerState) -> bool:
        """Whether the next step of the environments is taken with uniform actions."""
        return state.env_steps < self.random_steps

    def exploration_at(self, state: TrainerState) -> float:
        """The exploration noise of the next environment step."""
        schedule, noise, total = self.exploration_schedule, self.exploration_noise, self.total - self.pretrain
        if schedule is None:
            return noise
        return resolve_schedule_value(schedule, step=state.env_steps, total_steps=total, base_value=noise)

    def is_learning(self, state: TrainerState) -> bool:
        """Whether new transitions earn updates."""
        return state.stored > self.learning_starts


def make_plan(config: TrainConfig, options: RunOptions, algorithm: Algorithm, rows: int) -> Plan:
    """The plan of a run that has this number of logged transitions to learn from."""
    loop, online, controls = options.loop, options.online, options.controls
    if options.mode == "offline":
        updates_per_epoch = math.ceil(rows / loop.batch_size)
        limit, reason = controls.update_limit(config.total_timesteps, updates_per_epoch)
        return Plan(limit, limit, limit, limit_reason=reason, updates_per_epoch=updates_per_epoch)
    num_envs, pretrain, warmup = config.num_envs or 1, online.offline_pretrain_updates, controls.warmup_steps
    if warmup is None:
        # A pretrained policy fills the buffer better than random actions do.
        warmup = 0 if pretrain or online.initial_checkpoint is not None else online.learning_starts
    # Updates are counted by rounds of vector steps, or else by transitions.
    has_rounds = online.train_frequency is not None or online.gradient_updates_per_step is not None
    ratio = None if has_rounds else online.update_to_data or 1.0
    frequency, updates = online.train_frequency or 1, online.gradient_updates_per_step or 1
    reads = algorithm.reads
    if isinstance(reads, Rollout):
        rows = rollout_rows(algorithm.resolve_number(reads.steps), num_envs)
        ratio, frequency = None, rows // num_envs
        updates = algorithm.resolve_number(reads.epochs) * math.ceil(rows / loop.batch_size)
    return Plan(
        total=config.total_timesteps + pretrain,
        pretrain=pretrain,
        max_updates=controls.max_updates,
        limit_reason=None if controls.max_updates is None else f"reached max_updates ({controls.max_updates})",
        learning_starts=max(online.learning_starts, warmup, loop.min_buffer_size - 1),
        random_steps=warmup,
        exploration_noise=online.exploration_noise,
        exploration_schedule=online.exploration_schedule,
        num_envs=num_envs,
        update_to_data=ratio,
        train_frequency=frequency,
        updates_per_round=updates,
    )


def rollout_rows(steps: int, num_envs: int) -> int:
    """Transitions in a rollout: as many steps of all environments as fit, at least one."""
    return max(steps // num_envs, 1) * num_envs
