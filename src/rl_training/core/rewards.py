"""Reward transforms: from the rewards of data and environments to those that training sees."""

from __future__ import annotations

from dataclasses import asdict
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from rl_training.core.errors import ConfigError
from rl_training.core.options import option, options

if TYPE_CHECKING:
    from torch import Tensor

RewardPreset = Literal["sign_clip", "clip_1", "sparse_goal_zero_one"]

_PRESETS: dict[str, dict[str, Any]] = {
    "sign_clip": {"sign": True},
    "clip_1": {"clip_min": -1.0, "clip_max": 1.0},
    "sparse_goal_zero_one": {"shift": 1.0, "clip_min": 0.0, "clip_max": 1.0},
}


@options
class RewardTransformConfig:
    """A transform of rewards, in this order: times scale, plus shift, sign, clip.

    A preset fills the fields it needs; a field given beside it overrides the preset's value or composes with it.
    """

    preset: RewardPreset | None = option(None, "named transform to start from")
    scale: float | None = option(None, "factor on the reward; default 1")
    shift: float | None = option(None, "added after scaling; default 0")
    clip_min: float | None = option(None, "lower bound after scale and shift")
    clip_max: float | None = option(None, "upper bound after scale and shift")

    def __post_init__(self) -> None:
        low, high = self._resolved["clip_min"], self._resolved["clip_max"]
        if low is not None and high is not None and low > high:
            raise ConfigError(f"clip_min must be <= clip_max, got {low} and {high}")

    @cached_property
    def _resolved(self) -> dict[str, Any]:
        given = {key: value for key, value in asdict(self).items() if key != "preset" and value is not None}
        plain = {"scale": 1.0, "shift": 0.0, "sign": False, "clip_min": None, "clip_max": None}
        return plain | _PRESETS.get(self.preset or "", {}) | given

    def resolve(self) -> dict[str, Any]:
        """Every field with its final value: scale, shift, sign, clip_min, clip_max."""
        return dict(self._resolved)

    def apply(self, rewards: Tensor) -> Tensor:
        """A tensor of rewards, transformed."""
        how = self._resolved
        rewards = rewards * how["scale"] + how["shift"]
        rewards = rewards.sign() if how["sign"] else rewards
        low, high = how["clip_min"], how["clip_max"]
        return rewards if low is None and high is None else rewards.clamp(low, high)
