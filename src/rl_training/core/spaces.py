"""Observation and action spaces: the one place that relates an environment's units to what networks see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import Self

from rl_training.core.action_spaces import ActionKind, ActionSpace, BoxActions, Column, DiscreteActions
from rl_training.core.errors import ConfigError, nearest

__all__ = ["MASK", "ActionKind", "ActionSpace", "BoxActions", "Column", "DiscreteActions", "SpaceSpec"]

MASK = "valid_actions"
"""The part of an observation, always the first, that is 1 for every choice that is possible and 0 for the others."""

MASK_NAMES = dict.fromkeys(("action_mask", "action_masks"), MASK)
"""Other names of that part."""


@dataclass(frozen=True)
class SpaceSpec:
    """What an algorithm needs to know about an environment; stored in checkpoints, so predict needs no environment."""

    obs: Mapping[str, Column]
    """The parts of an observation in the order in which networks see them; one called `obs` where it is no mapping."""
    action: ActionSpace

    @classmethod
    def vector(cls, obs_dim: int, action: ActionSpace) -> Self:
        """Spaces whose observations are vectors."""
        return cls({"obs": Column((obs_dim,))}, action)

    @property
    def obs_dim(self) -> int:
        """Length of an observation as networks see it."""
        return sum(part.size for part in self.obs.values())

    @property
    def is_masked(self) -> bool:
        """Whether an observation begins with a mask of the choices that are possible."""
        return MASK in self.obs

    def with_mask(self) -> Self:
        """The same spaces with a mask of choices before the observation."""
        return replace(self, obs={MASK: Column((self.action_dim,)), **self.obs})

    def mask_of(self, obs: Tensor) -> Tensor | None:
        """The masks (B, choices) that observations begin with; None where they have none."""
        return obs[:, : self.action_dim] if self.is_masked else None

    @property
    def feature_dim(self) -> int:
        """Length of an observation without its mask."""
        return self.obs_dim - self.action_dim if self.is_masked else self.obs_dim

    @property
    def action_dim(self) -> int:
        """Dimensions of an action, or how many choices there are."""
        return self.action.size

    def check_env(self, env: SpaceSpec, env_id: str) -> str | None:
        """Refuse an environment in which a policy for these spaces cannot act; else, how their actions differ, if so.

        Observations must have the same parts of the same shapes; a policy that was trained on vectors alone takes any
        parts that make up as many numbers. Actions must be of the same kind and size. Bounds may differ, and an
        environment may have more choices: actions keep their units.
        """
        problems = []
        parts, others = list(self.obs.items()), list(env.obs.items())
        if self.is_masked and not env.is_masked:
            hint = "give it a method action_masks()"
            problems.append(f"the policy chooses among valid_actions, and {env_id} does not say which they are: {hint}")
        elif env.is_masked and not self.is_masked:
            problems.append(f"{env_id} says which actions are possible, and the policy was trained without masks")
        elif parts != others and (self.obs_dim != env.obs_dim or "obs" not in (*self.obs, *env.obs)):
            problems.append(f"the policy was trained for {self.describe_obs()}, {env_id} has {env.describe_obs()}")
        actions = f"the policy was trained for {self.action.describe()}, {env_id} has {env.action.describe()}"
        if not self.action.can_act_in(env.action):
            problems.append(actions)
        if problems:
            raise ConfigError(*problems)
        return None if self.action == env.action else actions

    def describe_obs(self) -> str:
        """The parts of an observation with their sizes, in words."""
        numbers = f"observations of {self.obs_dim} number{'s' if self.obs_dim > 1 else ''}"
        if list(self.obs) == ["obs"]:
            return numbers
        return f"{numbers} ({', '.join(f'{name} {part.size}' for name, part in self.obs.items())})"

    def flatten(self, obs: ArrayLike | Mapping[str, ArrayLike]) -> NDArray[np.float32]:
        """One observation or a batch, as the environment gives it, as vectors: (obs_dim,) or (batch, obs_dim)."""
        if isinstance(obs, Mapping):
            obs = {MASK_NAMES.get(name, name): value for name, value in obs.items()}
            missing = [name for name in self.obs if name not in obs]
            if missing:
                names = ", ".join(map(repr, self.obs))
                hint = nearest(missing[0], obs) or f"; got {', '.join(map(repr, obs)) or 'nothing'}"
                raise ConfigError(f"obs has no {missing[0]!r}: the policy sees {names}{hint}")
            parts = [
                np.asarray(obs[name], dtype=np.float32).reshape(*np.shape(obs[name])[: -len(part.shape) or None], -1)
                for name, part in self.obs.items()
            ]
            obs = np.concatenate(parts, axis=-1)
        rows, width = np.asarray(obs, dtype=np.float32), self.obs_dim
        if rows.ndim not in (1, 2) or rows.shape[-1] != width:
            got = f"obs must have shape ({width},) or (batch, {width}), got {rows.shape}"
            is_unmasked = self.is_masked and rows.shape[-1:] == (self.feature_dim,)
            raise ConfigError(
                got
                + (
                    ": the policy also needs to know which actions are possible, as valid_actions"
                    if is_unmasked
                    else ""
                )
            )
        if self.is_masked:
            _check_masks(np.atleast_2d(rows)[:, : self.action_dim])
        return rows

    def with_valid(self, obs: ArrayLike | Mapping[str, ArrayLike], valid: ArrayLike) -> Mapping[str, ArrayLike]:
        """Observations with the masks of choices that go with them; a policy without masks takes none."""
        if not self.is_masked:
            raise ConfigError("the policy was trained without valid_actions, and cannot heed them: leave them out")
        rows = np.shape(next(iter(obs.values())) if isinstance(obs, Mapping) else obs)[:-1]
        if np.shape(valid) != (*rows, self.action_dim):
            raise ConfigError(f"valid_actions must have shape {(*rows, self.action_dim)}, got {np.shape(valid)}")
        if isinstance(obs, Mapping):
            return {**obs, MASK: valid}
        others = [name for name in self.obs if name != MASK]
        if len(others) > 1:
            names = ", ".join(map(repr, others))
            raise ConfigError(f"valid_actions go with observations in parts: give a mapping of {names}")
        return {others[0]: obs, MASK: valid}

    def to_plain(self) -> dict[str, Any]:
        """Numbers and lists only, as a checkpoint stores them."""
        parts = {name: {"shape": list(part.shape), "dtype": part.dtype} for name, part in self.obs.items()}
        return {"obs": parts, "action": self.action.to_plain()}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> Self:
        """The inverse of `to_plain`."""
        parts = {name: Column(tuple(part["shape"]), part["dtype"]) for name, part in values["obs"].items()}
        action = values["action"]
        if "count" in action:
            return cls(parts, DiscreteActions(action["count"], action["start"], tuple(action.get("parts", ()))))
        return cls(parts, BoxActions(tuple(action["low"]), tuple(action["high"])))


def _check_masks(masks: NDArray[np.float32]) -> None:
    """Refuse masks (B, choices) that are not 0 and 1, or leave no choice."""
    wrong = ~np.isin(masks, (0, 1)).all(axis=1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ConfigError(f"valid_actions must be 0 or 1, got {masks[row].tolist()} in row {row}")
    none = np.flatnonzero(~masks.any(axis=1))
    if len(none):
        raise ConfigError(f"valid_actions leave no choice in {len(none)} rows; the first is row {none[0]}")
