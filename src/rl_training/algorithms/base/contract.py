"""What an algorithm's steps ask of its model, its hyper-parameters and itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import nn

from rl_training.algorithms.base.optimizers import trainable
from rl_training.core.errors import ConfigError, nearest

if TYPE_CHECKING:
    from rl_training.algorithms.base.algorithm import Algorithm, Step


def check_parts(algorithm: Algorithm, model: Any, steps: Sequence[Step]) -> None:
    """Refuse a model or a step that lacks what an update needs, in one sentence."""
    owner, title = type(algorithm).__name__, type(model).__name__
    for size in ("obs_dim", "action_dim"):
        if not isinstance(getattr(model, size, None), int):
            call = "super().__init__(obs_dim=obs_dim, action_dim=action_dim)"
            raise ConfigError(f"{title}, the model of {owner}, has no {size}: its constructor must call {call}")
    children = [name for name, _ in model.named_children()]
    for step in steps:
        for child in (*step.children, *step.tracks):
            if not isinstance(getattr(model, child, None), nn.Module):
                known = nearest(child, children) or f"; it has {', '.join(children) or 'no networks'}"
                raise ConfigError(f"step {step.name!r} of {owner} names {child!r}, which {title} lacks{known}")
        # A step whose networks have no parameters, such as a fixed temperature, is not taken.
        is_taken = any(trainable(getattr(model, child)) for child in step.children)
        if is_taken and not callable(getattr(algorithm, f"{step.name}_loss", None)):
            raise ConfigError(f"{owner} declares step {step.name!r} but has no method {step.name}_loss")
        _check_numbers(algorithm, step)


def _check_numbers(algorithm: Algorithm, step: Step) -> None:
    """Refuse the name of a hyper-parameter that the algorithm does not have."""
    group = type(algorithm.hyper)
    numbers: dict[str, float | str] = {"every": step.every, "repeat": step.repeat}
    if step.tracks:
        numbers |= {"tau": step.tau, "track_every": step.track_every}
    for field, value in numbers.items():
        if isinstance(value, str) and not hasattr(algorithm.hyper, value):
            known = nearest(value, group.__dataclass_fields__)
            where = f"{field} of step {step.name!r} of {type(algorithm).__name__}"
            raise ConfigError(f"{where} is {value!r}, which {group.__name__} does not have{known}")
