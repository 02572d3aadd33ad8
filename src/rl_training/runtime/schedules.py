"""Values that change over a run."""

from __future__ import annotations

import math
from typing import Any, Literal

from pydantic import Field

from rl_training.binding import options

Shape = Literal["constant", "linear", "cosine"]


@options
class ScheduleSpec:
    """A ramp from zero over `warmup` steps, then a way down to `final_ratio` of the base value, where it stays."""

    kind: Shape = Field(default="constant", description="shape after the warm-up")
    warmup: int = Field(default=0, ge=0, description="steps of linear increase from zero")
    final_ratio: float = Field(default=0.0, ge=0, le=1, description="share of the base value that it falls to")
    fraction: float = Field(default=1.0, gt=0, le=1, description="share of the run in which it falls")


def as_schedule(value: Any) -> Any:
    """A bare word such as `cosine` as a schedule."""
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
