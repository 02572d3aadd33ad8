"""What the tree of a checkpoint must be before anything is made of it: one check for every command that reads one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, InstanceOf, TypeAdapter, ValidationError, model_validator
from torch import Tensor
from typing_extensions import Self

from rl_training.core.errors import CheckpointError, UserError
from rl_training.core.text import STEP_NAME
from rl_training.diagnostics.guards import MOST_ROLLBACKS
from rl_training.storage.checkpoint import load_checkpoint
from rl_training.storage.policy_files import POLICY_ONLY
from rl_training.storage.trust import judge_names

MOST_NUMBERS = 10**7
"""Numbers in an observation or an action. A policy with more of them would not fit its own file."""
Count = Annotated[int, Field(ge=0)]
Values = dict[str, Any]


class _Part(BaseModel):
    """A mapping in a checkpoint: names that are missing or of another type are refused, others are left alone."""

    model_config = ConfigDict(strict=True, extra="allow", allow_inf_nan=False)


class _Config(_Part):
    algo: str
    algo_kwargs: Values
    env_kwargs: Values = {}
    env_id: str | None = None
    seed: Count = 0


class _Column(_Part):
    shape: list[Annotated[int, Field(ge=0, le=MOST_NUMBERS)]]
    dtype: Literal["float32", "int64", "int32", "uint8"]


class _Choices(_Part):
    count: Annotated[int, Field(ge=1, le=MOST_NUMBERS)]
    start: int
    parts: list[Annotated[int, Field(ge=1)]] = []

    @model_validator(mode="after")
    def _check_parts(self) -> Self:
        if self.parts and math.prod(self.parts) != self.count:
            raise ValueError(f"parts {self.parts} do not make {self.count} choices")
        return self


class _Box(_Part):
    low: Annotated[list[float], Field(min_length=1, max_length=MOST_NUMBERS)]
    high: Annotated[list[float], Field(min_length=1, max_length=MOST_NUMBERS)]

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        if len(self.low) != len(self.high) or not all(map(float.__lt__, self.low, self.high)):
            raise ValueError("bounds must be pairs of a lower and a higher number")
        return self


class _Spaces(_Part):
    obs: Annotated[dict[str, _Column], Field(min_length=1)]
    action: _Choices | _Box


class _OldSpaces(_Part):
    obs_dim: Annotated[int, Field(ge=1, le=MOST_NUMBERS)]
    action_low: list[float]
    action_high: list[float]


Networks = Annotated[dict[str, InstanceOf[Tensor] | Values], Field(min_length=1)]


Spans = list[Annotated[list[Count], Field(min_length=2, max_length=2)]]
"""First row, and row after the last, of each file of a replay buffer."""


class _OldPolicy(_Part):
    """A checkpoint of format 1, of which only the policy is read."""

    config: _Config
    spaces: _OldSpaces
    algorithm: Networks


class _PolicyState(_Part):
    state: Values
    rewards: list[Any] = []
    fingerprint: str | None = None


class _Policy(_Part):
    """A policy file."""

    config: _Config
    spaces: _Spaces
    algorithm: Networks
    replay: Spans
    trainer: _PolicyState


class _Counters(_Part):
    """Where a run is. They become attributes of a `TrainerState`, so that no other name may be among them."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=True)
    global_step: Count
    epoch: Count
    update_count: Count
    env_steps: Count
    vector_steps: Count
    idle_vector_steps: Count
    stored: Count
    online_updates: Count
    event_step: Count
    events_due: bool = False
    should_stop: bool
    stop_reason: str | None
    best_score: float | None
    best_step: int | None
    logged: dict[str, Any] = {}
    own_metrics: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_stored(self) -> Self:
        """More rows than steps would be paid for with updates without end."""
        if self.stored > self.env_steps:
            raise ValueError(f"{self.stored} rows of {self.env_steps} steps")
        return self


class _Rollback(_Part):
    """The row of metrics about one time that a run went back."""

    kind: Literal["guard"]
    global_step: Count


class _Rewards(_Part):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=True)
    low: float
    high: float
    goes_on: bool
    seen: Count


class _Guards(_Part):
    """What guards remember. It becomes attributes of `Guards`, so that no other name may be among it."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=True)
    initial: dict[str, Annotated[float, Field(gt=0)]]
    raised: list[str]
    looked: Count
    rollbacks: Annotated[list[_Rollback], Field(max_length=MOST_ROLLBACKS)]
    good: Annotated[str, Field(pattern=f"^{STEP_NAME.pattern}$")] | None
    rewards: _Rewards


class _Trainer(_Part):
    state: _Counters
    rewards: list[Any]
    fingerprint: str
    window: list[list[Any]]
    callbacks: Values
    last_metrics: Values
    best_metrics: Values
    fine_tuning: Values | None
    horizon: int | None
    branches: list[Count] = []
    guards: _Guards | None = None


class _Random(_Part):
    torch: InstanceOf[Tensor]
    cuda: list[InstanceOf[Tensor]]


class _Machine(_Part):
    torch: str
    threads: Annotated[int, Field(ge=1, le=4096)]
    compiled: bool | None
    compiled_from: Count = 0


class _Checkpoint(_Part):
    """The whole state of a run."""

    config: _Config
    spaces: _Spaces
    algorithm: Networks
    source: Values
    replay: Spans
    collector: Values | None
    trainer: _Trainer
    random: _Random
    machine: _Machine


def open_checkpoint(path: Path, *, policy_only: bool = False) -> dict[str, Any]:
    """The tree of a checkpoint that is whole and has all its parts; code that it names is imported by no one else.

    For its policy alone, it may be of an older format, or a policy file.
    """
    tree = load_checkpoint(path, policy_only=policy_only)
    check_tree(path, tree)
    judge_names(tree["config"], path)
    return tree


def check_tree(path: Path, tree: Mapping[str, Any]) -> None:
    """Refuse a tree that is not what a checkpoint, one of an older format, or a policy file has."""
    kind: type[_Part] = _OldPolicy if tree["format"] == 1 else _Policy if tree.get(POLICY_ONLY) else _Checkpoint
    try:
        kind.model_validate(dict(tree))
    except ValidationError as error:
        raise CheckpointError(f"{path} is not a checkpoint of rl_training: {first_mistake(error)}") from None


def first_mistake(error: ValidationError) -> str:
    """The first place that does not fit a schema, in words."""
    first = error.errors()[0]
    place, reason = ".".join(str(part) for part in first["loc"]) or "it", first["msg"].removeprefix("Value error, ")
    return f"{place} is missing" if first["type"] == "missing" else f"{place} is wrong ({reason})"


_ROWS: TypeAdapter[dict[str, Tensor]] = TypeAdapter(dict[str, InstanceOf[Tensor]])


def check_rows(path: Path, tree: Mapping[str, Any], count: int) -> dict[str, Tensor]:
    """The columns in a file of a replay buffer, each with as many rows as the name of the file says."""
    try:
        rows = _ROWS.validate_python(tree.get("rows"), strict=True)
    except ValidationError:
        raise CheckpointError(f"{path} holds no rows of a replay buffer") from None
    for name in (name for name, column in rows.items() if column.shape[:1] != (count,)):
        raise CheckpointError(f"{path}: {name} has shape {list(rows[name].shape)}, expected {count} rows")
    if "streams" not in rows:
        raise CheckpointError(f"{path} holds no rows of a replay buffer")
    return rows


@contextmanager
def refusing_broken_state(what: str) -> Iterator[None]:
    """Say in one sentence that something a run has kept is not what this version of the package writes."""
    try:
        yield
    except UserError:
        raise
    except (TypeError, ValueError, LookupError, AttributeError, RuntimeError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        raise CheckpointError(f"{what} cannot be used: {type(error).__name__}: {reason}") from None
