"""Options of a run beside those of its algorithm and data: the loop, acting, budgets and schedules."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from rl_training.algorithms.base import Mode
from rl_training.compilation import CompileOption
from rl_training.config import PathText
from rl_training.core.errors import LARGEST_BATCH, ConfigError
from rl_training.core.options import MODES, option, options, refuse_unused
from rl_training.data import LONGEST_EPISODE
from rl_training.runtime.schedules import ScheduleSpec, as_schedule

Ratio = Annotated[float, Field(ge=0, le=1)] | Literal["proportional"]

Schedule = Annotated[ScheduleSpec, BeforeValidator(as_schedule)]

replay_option = partial(option, resume="fixed_while_acting", off_policy=True)
"""An option of learning from a replay buffer, which a run that acts keeps."""
offline_option = partial(option, offline_only=True)
"""An option that fine-tuning does not take over from an offline run."""


@options
class LoopOptions:
    """Options of the training loop."""

    mode: Mode | None = offline_option(None, "source of transitions; null: the algorithm's default", resume="fixed")
    batch_size: int = option(256, "transitions in a batch", ge=1, le=LARGEST_BATCH)
    n_step: int = replay_option(1, "steps of rewards that are summed before bootstrapping", ge=1)
    min_buffer_size: int = replay_option(1, "transitions required before an update", ge=1)
    compile: CompileOption = option("auto", "compile updates; auto: only runs long enough to pay for it")


@options
class OnlineOptions:
    """Acting and the use of experience; for runs with `mode: online` or `offline_to_online`."""

    modes: ClassVar = ("online", "offline_to_online")
    buffer_capacity: int = replay_option(1_000_000, "transitions that the replay buffer holds", ge=1, le=10**12)
    learning_starts: int = replay_option(5_000, "environment steps before the first update", ge=0)
    update_to_data: float | None = replay_option(None, "updates per collected transition; default 1", gt=0)
    train_frequency: int | None = replay_option(None, "vector-environment steps between rounds of updates", ge=1)
    gradient_updates_per_step: int | None = replay_option(None, "updates in each round", ge=1)
    exploration_noise: float = option(
        0.0, "standard deviation of noise on actions; discrete: probability of a random action", ge=0, off_policy=True
    )
    exploration_schedule: Schedule | None = option(
        None, "decay of exploration_noise: linear or cosine, or a mapping with fraction", off_policy=True
    )
    vector_env: Literal["sync", "async"] = option("sync", "async: each environment in a process of its own")
    replay: Literal["uniform", "hindsight"] = replay_option(
        "uniform", "hindsight: relabel goals with goals achieved later (HER)", modes=MODES
    )
    her_ratio: float = option(0.8, "share of a batch whose goals are relabelled", ge=0, le=1, modes=MODES)
    goal_selection_strategy: Literal["future", "final", "episode"] = option(
        "future", "which achieved goals may replace the desired one", modes=MODES
    )
    save_replay: bool = option(False, "keep the buffer as a dataset, replay.npz, when the run ends", off_policy=True)
    initial_checkpoint: PathText | None = option(
        None, "checkpoint of the same algorithm whose networks the run begins with", resume="fixed_while_acting"
    )
    offline_pretrain_updates: int = option(
        0, "updates on prior data before acting", ge=0, modes=("offline_to_online",), resume="fixed_while_acting"
    )
    offline_batch_ratio: Ratio = option(
        0.5, "share of prior data in a batch, or proportional: every row counts alike", modes=("offline_to_online",)
    )

    def __post_init__(self) -> None:
        rounds = [name for name in ("train_frequency", "gradient_updates_per_step") if getattr(self, name) is not None]
        if self.update_to_data is not None and rounds:
            raise ConfigError(f"update_to_data and {rounds[0]} both say how often to update; give one")
        hindsight = self.replay == "hindsight"
        refuse_unused(self, "her_ratio", "goal_selection_strategy", unless="replay: hindsight", holds=hindsight)


@options
class EarlyStoppingConfig:
    """Conditions on evaluations that end training."""

    metric: str = option("return_mean", "a metric of evaluations or of held-out diagnostics")
    mode: Literal["max", "min"] = option("max", "whether more or less of it is better")
    patience: int | None = option(None, "stop after this many evaluations without improvement", ge=1)
    min_delta: float = option(0.0, "smallest change that counts as improvement", ge=0)
    threshold: float | None = option(None, "stop on reaching this value")

    def __post_init__(self) -> None:
        if self.patience is None and self.threshold is None:
            raise ConfigError("early_stopping needs patience, threshold, or both")


@options
class ControlOptions:
    """Budgets, cadences and schedules of a run."""

    eval_interval: int | None = option(5000, "timesteps between evaluations; null: at the end only", ge=1)
    eval_max_steps: int | None = option(LONGEST_EPISODE, "longest episode an evaluation accepts; null: any", ge=1)
    eval_fqe: bool = offline_option(
        False, "estimate the value from the log at every evaluation: fqe_value", modes=("offline", "offline_to_online")
    )
    max_updates: int | None = offline_option(None, "stop after this many updates", ge=1)
    max_epochs: int | None = offline_option(None, "stop after this many passes over the data", ge=1, modes=("offline",))
    learning_rate_schedule: Schedule | None = offline_option(
        None, "constant, linear or cosine, or a mapping of kind, warmup and final_ratio"
    )
    actor_learning_rate_schedule: Schedule | None = offline_option(None, "the actor's own schedule")
    warmup_steps: int | None = replay_option(
        None,
        "environment steps with random actions; default learning_starts, or 0 for a pretrained policy; "
        "offline, shorthand for learning_rate_schedule.warmup",
        ge=0,
        offline_only=True,
    )
    early_stopping: EarlyStoppingConfig | None = option(None, "metric, mode, patience, min_delta, threshold")

    def schedules(self, *, ramp: bool = True) -> dict[str, ScheduleSpec]:
        """Learning-rate schedules by name: `multiplier` for all networks, and `actor` if it has its own.

        With a `ramp`, `warmup_steps` are their warm-up, unless they have their own.
        """
        specs = {"multiplier": self.learning_rate_schedule or ScheduleSpec()}
        if self.actor_learning_rate_schedule is not None:
            specs["actor"] = self.actor_learning_rate_schedule
        steps = (self.warmup_steps or 0) if ramp else 0
        for name, spec in specs.items():
            if steps and spec.warmup:
                where = "learning_rate_schedule" if name == "multiplier" else f"{name}_learning_rate_schedule"
                raise ConfigError(f"warmup_steps and {where}.warmup are the same thing; give one")
        return {name: replace(spec, warmup=steps or spec.warmup) for name, spec in specs.items()}

    def update_limit(self, total: int, updates_per_epoch: int) -> tuple[int, str | None]:
        """The limit of updates, and the reason if it is not the run's own length."""
        limits: list[tuple[int, str | None]] = [(total, None)]
        if self.max_updates is not None:
            limits.append((self.max_updates, f"reached max_updates ({self.max_updates})"))
        if self.max_epochs is not None:
            limits.append((self.max_epochs * updates_per_epoch, f"reached max_epochs ({self.max_epochs})"))
        return min(limits, key=lambda limit: limit[0])
