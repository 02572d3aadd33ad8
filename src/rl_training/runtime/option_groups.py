"""The options of a run that are not its algorithm's or its data's: the loop, acting, budgets and schedules."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rl_training.algorithms.base import Mode
from rl_training.binding import options, refuse_unused
from rl_training.config import PathText
from rl_training.runtime.performance import CompileOption
from rl_training.runtime.schedules import ScheduleSpec, as_schedule
from rl_training.types import ConfigError

Ratio = Annotated[float, Field(ge=0, le=1)] | Literal["proportional"]


@options
class LoopOptions:
    """How the loop runs."""

    mode: Mode | None = Field(default=None, description="where transitions come from; null: as the algorithm is made")
    batch_size: int = Field(default=256, ge=1, description="transitions in a batch")
    n_step: int = Field(default=1, ge=1, description="steps over which rewards are summed before a value is asked for")
    min_buffer_size: int = Field(default=1, ge=1, description="transitions that must be there before an update")
    compile: CompileOption = Field(default="auto", description="compile the update: auto compiles runs that earn it")


@options
class OnlineOptions:
    """How a run acts, and what it does with its experience; for runs with `mode: online` or `offline_to_online`."""

    buffer_capacity: int = Field(default=1_000_000, ge=1, description="transitions that the replay buffer holds")
    learning_starts: int = Field(default=5_000, ge=0, description="environment steps before the first update")
    update_to_data: float | None = Field(
        default=None, gt=0, description="updates per transition, however many environments; default 1"
    )
    train_frequency: int | None = Field(
        default=None, ge=1, description="steps of all environments together between rounds of updates"
    )
    gradient_updates_per_step: int | None = Field(default=None, ge=1, description="updates in such a round")
    exploration_noise: float = Field(
        default=0.0,
        ge=0,
        description="standard deviation of Gaussian noise on actions; discrete: probability of a random choice",
    )
    exploration_schedule: Annotated[ScheduleSpec | None, BeforeValidator(as_schedule)] = Field(
        default=None, description="how exploration_noise falls: linear or cosine, or a mapping with fraction"
    )
    vector_env: Literal["sync", "async"] = Field(
        default="sync", description="environments one after the other, or each in a process of its own"
    )
    replay: Literal["uniform", "hindsight"] = Field(
        default="uniform", description="hindsight: goals are exchanged for goals achieved later"
    )
    her_ratio: float = Field(default=0.8, ge=0, le=1, description="share of a batch whose goals are exchanged")
    goal_selection_strategy: Literal["future", "final", "episode"] = Field(
        default="future", description="which achieved goals may take their place"
    )
    save_replay: bool = Field(default=False, description="keep the buffer as a dataset, replay.npz, when the run ends")
    initial_checkpoint: PathText | None = Field(
        default=None, description="checkpoint of the same algorithm whose networks the run begins with"
    )
    offline_pretrain_updates: int = Field(
        default=0, ge=0, description="updates on prior data before the first environment step"
    )
    offline_batch_ratio: Ratio = Field(
        default=0.5, description="share of prior data in a batch, or proportional: every row counts alike"
    )

    def __post_init__(self) -> None:
        rounds = [name for name in ("train_frequency", "gradient_updates_per_step") if getattr(self, name) is not None]
        if self.update_to_data is not None and rounds:
            raise ConfigError(f"update_to_data and {rounds[0]} both say how often to update; give one")
        hindsight = self.replay == "hindsight"
        refuse_unused(self, "her_ratio", "goal_selection_strategy", unless="replay: hindsight", holds=hindsight)

    @property
    def counts_rounds(self) -> bool:
        """Whether updates are counted by steps of the environments together, instead of by transitions."""
        return self.train_frequency is not None or self.gradient_updates_per_step is not None


@options
class EarlyStoppingConfig:
    """When evaluations say that training may end."""

    metric: str = Field(default="return_mean", description="a metric of evaluations or of held-out diagnostics")
    mode: Literal["max", "min"] = Field(default="max", description="whether more or less of it is better")
    patience: int | None = Field(default=None, ge=1, description="stop after this many evaluations without improvement")
    min_delta: float = Field(default=0.0, ge=0, description="smallest change that counts as improvement")
    threshold: float | None = Field(default=None, description="stop on reaching this value")

    def __post_init__(self) -> None:
        if self.patience is None and self.threshold is None:
            raise ConfigError("early_stopping needs patience, threshold, or both")


@options
class ControlOptions:
    """Budgets, cadences and schedules of a run."""

    eval_interval: int | None = Field(
        default=5000, ge=1, description="timesteps between evaluations; null: at the end only"
    )
    max_updates: int | None = Field(default=None, ge=1, description="stop after this many updates")
    max_epochs: int | None = Field(default=None, ge=1, description="stop after this many passes over the data")
    learning_rate_schedule: Annotated[ScheduleSpec | None, BeforeValidator(as_schedule)] = Field(
        default=None, description="constant, linear or cosine, or a mapping of kind, warmup and final_ratio"
    )
    actor_learning_rate_schedule: Annotated[ScheduleSpec | None, BeforeValidator(as_schedule)] = Field(
        default=None, description="schedule of the actor's learning rate, if its own"
    )
    warmup_steps: int | None = Field(
        default=None,
        ge=0,
        description="environment steps with random actions; default learning_starts, or 0 for a policy that is trained "
        "already; offline, shorthand for learning_rate_schedule.warmup",
    )
    early_stopping: EarlyStoppingConfig | None = Field(
        default=None, description="metric, mode, patience, min_delta, threshold"
    )

    def schedules(self, *, ramp: bool = True) -> dict[str, ScheduleSpec]:
        """The learning-rate schedules: `multiplier` for all, and the actor's if it has its own.

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
        """How many updates the run may make, and the budget that says so if it is not the run's own length."""
        limits: list[tuple[int, str | None]] = [(total, None)]
        if self.max_updates is not None:
            limits.append((self.max_updates, f"reached max_updates ({self.max_updates})"))
        if self.max_epochs is not None:
            limits.append((self.max_epochs * updates_per_epoch, f"reached max_epochs ({self.max_epochs})"))
        return min(limits, key=lambda limit: limit[0])
