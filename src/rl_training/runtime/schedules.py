"""Schedules: values that change over a run."""

from __future__ import annotations

import math
from typing import Any, Literal

from rl_training.core.options import option, options

Shape = Literal["constant", "linear", "cosine"]


@options
class ScheduleSpec:
    """A ramp from zero over `warmup` steps, then a way down to `final_ratio` of the base value, where it stays."""

    kind: Shape = option("constant", "shape after the warm-up")
    warmup: int = option(0, "steps of linear increase from zero", ge=0)
    final_ratio: float = option(0.0, "share of the base value that it falls to", ge=0, le=1)
    fraction: float = option(1.0, "share of the run in which it falls", gt=0, le=1)


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
