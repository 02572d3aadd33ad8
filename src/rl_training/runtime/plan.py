"""How a run goes: what it may be told about its loop, and when it acts and when it learns."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from rl_training.algorithms.base import Mode
from rl_training.binding import options, refuse_unused
from rl_training.config import PathText
from rl_training.runtime.performance import CompileOption
from rl_training.runtime.schedules import ScheduleSpec, as_schedule, resolve_schedule_value
from rl_training.types import ConfigError

if TYPE_CHECKING:
    from rl_training.runtime.state import TrainerState

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


PRIOR_OPTIONS = ("offline_pretrain_updates", "offline_batch_ratio")
"""Options that mean something only where there is prior data beside the environment."""


@dataclass(frozen=True)
class Plan:
    """When a run acts and when it learns, by its counters alone, so that resuming is going on.

    Timesteps are updates as long as the run only learns (all of an offline run, and pretraining), and steps of the
    environments after that.
    """

    total: int
    pretrain: int
    """Timesteps that are updates without a step of the environment; all of them, offline."""
    max_updates: int | None = None
    limit_reason: str | None = None
    """Why the run ends with `max_updates`, where its own length is not the reason."""
    waits_for: int = 0
    """Transitions after which updates begin."""
    random_steps: int = 0
    """Steps of the environments that are taken with uniform actions."""
    exploration_noise: float = 0.0
    exploration_schedule: ScheduleSpec | None = None
    num_envs: int = 1
    update_to_data: float | None = None
    train_frequency: int = 1
    updates_per_round: int = 1

    @classmethod
    def online(
        cls, total: int, online: OnlineOptions, loop: LoopOptions, *, warmup: int, pretrain: int, num_envs: int
    ) -> Plan:
        """The plan of a run that acts, after `pretrain` updates, at first with `warmup` random steps."""
        ratio = None if online.counts_rounds else online.update_to_data or 1.0
        return cls(
            total=total + pretrain,
            pretrain=pretrain,
            waits_for=max(online.learning_starts, warmup, loop.min_buffer_size - 1),
            random_steps=warmup,
            exploration_noise=online.exploration_noise,
            exploration_schedule=online.exploration_schedule,
            num_envs=num_envs,
            update_to_data=ratio,
            train_frequency=online.train_frequency or 1,
            updates_per_round=online.gradient_updates_per_step or 1,
        )

    def limited(self, max_updates: int | None) -> Plan:
        """The plan with a bound on updates."""
        reason = None if max_updates is None else f"reached max_updates ({max_updates})"
        return replace(self, max_updates=max_updates, limit_reason=reason)

    @property
    def updates(self) -> int:
        """How many updates the whole run will make, if every transition is stored at once."""
        vector_steps = math.ceil((self.total - self.pretrain) / self.num_envs)
        idle = min(self.waits_for // self.num_envs, vector_steps)
        count = self.pretrain + self._earned(vector_steps - idle, vector_steps * self.num_envs)
        return count if self.max_updates is None else min(count, self.max_updates)

    def _earned(self, vector_steps: int, stored: int) -> int:
        """Updates for so many steps of all environments that count, or else for what is stored."""
        if self.update_to_data is None:
            return vector_steps // self.train_frequency * self.updates_per_round
        # 0.29 * 100 is a little less than 29.
        return int(self.update_to_data * max(stored - self.waits_for, 0) + 1e-9)

    def is_over(self, state: TrainerState) -> bool:
        """Whether there is nothing left to do."""
        return self.is_used_up(state) or (state.global_step >= self.total and not self.updates_due(state))

    def is_used_up(self, state: TrainerState) -> bool:
        """Whether no update is left."""
        return self.max_updates is not None and state.update_count >= self.max_updates

    def updates_due(self, state: TrainerState) -> int:
        """How many updates there are to make before anything else happens."""
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
        """How much noise the next step of the environments is taken with."""
        if self.exploration_schedule is None:
            return self.exploration_noise
        total, base = self.total - self.pretrain, self.exploration_noise
        return resolve_schedule_value(
            self.exploration_schedule, step=state.env_steps, total_steps=total, base_value=base
        )

    def is_learning(self, state: TrainerState) -> bool:
        """Whether transitions that come count for updates."""
        return state.stored > self.waits_for
