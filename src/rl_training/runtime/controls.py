"""What ends a run early and how its learning rate moves."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from rl_training.binding import options
from rl_training.runtime.schedules import ScheduleSpec, as_schedule
from rl_training.types import ConfigError


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
