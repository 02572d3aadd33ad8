"""Observations and actions: kinds, bounds, masks, and the conversion of native units to what networks see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import Self

from rl_training.core.batches import Column, Metrics
from rl_training.core.errors import ConfigError, DatasetError, nearest

__all__ = ["MASK", "ActionKind", "ActionSpace", "BoxActions", "Column", "DiscreteActions", "SpaceSpec"]

MASK = "valid_actions"
"""The action mask, always the first part of an observation: 1 for every valid action, 0 for the others."""

MASK_NAMES = dict.fromkeys(("action_mask", "action_masks"), MASK)
"""Other names of that part."""


@dataclass(frozen=True)
class SpaceSpec:
    """Observations and actions of a task; stored in checkpoints, so that predicting needs no environment."""

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
    def obs_column(self) -> Column:
        """How an observation is stored, in the form in which networks see it."""
        return Column((self.obs_dim,))

    @property
    def is_masked(self) -> bool:
        """Whether an observation begins with an action mask."""
        return MASK in self.obs

    def with_mask(self) -> Self:
        """The same spaces with an action mask before the observation."""
        return replace(self, obs={MASK: Column((self.action_dim,)), **self.obs})

    def mask_of(self, obs: Tensor) -> Tensor | None:
        """The action masks (B, actions) that observations begin with; None where they have none."""
        return obs[:, : self.mask_dim] if self.is_masked else None

    @property
    def mask_dim(self) -> int:
        """Length of the mask with which an observation begins; 0 without one."""
        return self.action_dim if self.is_masked else 0

    @property
    def feature_dim(self) -> int:
        """Length of an observation without its mask."""
        return self.obs_dim - self.mask_dim

    @property
    def action_dim(self) -> int:
        """Dimensions of a continuous action, or number of discrete actions."""
        return self.action.size

    def check_env(self, env: SpaceSpec, env_id: str) -> str | None:
        """Refuse an environment in which a policy for these spaces cannot act; else, how their actions differ, if so.

        Observations must have the same parts of the same shapes; a policy that was trained on vectors alone takes any
        parts that make up as many numbers. Actions must be of the same kind and size. Bounds may differ, and an
        environment may have more discrete actions: actions keep their units.
        """
        problems = []
        parts, others = list(self.obs.items()), list(env.obs.items())
        if self.is_masked and not env.is_masked:
            hint = "give it a method action_masks()"
            problems.append(f"the policy needs action masks, and {env_id} provides none: {hint}")
        elif env.is_masked and not self.is_masked:
            problems.append(f"{env_id} provides action masks, and the policy was trained without them")
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

    def encode(self, obs: ArrayLike | Mapping[str, ArrayLike]) -> NDArray[np.float32]:
        """One native observation or a batch as networks see it: (obs_dim,) or (batch, obs_dim)."""
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
            is_unmasked = self.is_masked and rows.shape[-1:] == (self.feature_dim,)
            hint = ": the policy also needs to know which actions are valid, as valid_actions" if is_unmasked else ""
            raise ConfigError(f"obs must have shape ({width},) or (batch, {width}), got {rows.shape}{hint}")
        if self.is_masked:
            _check_masks(np.atleast_2d(rows)[:, : self.mask_dim])
        return rows

    def with_valid(self, obs: ArrayLike | Mapping[str, ArrayLike], valid: ArrayLike) -> Mapping[str, ArrayLike]:
        """Observations with their action masks; a policy without masks takes none."""
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
    """Refuse action masks (B, actions) that are not 0 and 1, or mark no action as valid."""
    wrong = ~np.isin(masks, (0, 1)).all(axis=1)
    if wrong.any():
        row = int(np.flatnonzero(wrong)[0])
        raise ConfigError(f"valid_actions must be 0 or 1, got {masks[row].tolist()} in row {row}")
    none = np.flatnonzero(~masks.any(axis=1))
    if len(none):
        raise ConfigError(f"valid_actions marks no action as valid in {len(none)} rows (first: row {none[0]})")


TOLERANCE = 1e-5
"""Excess of a logged action over its bounds, relative to their distance, that still counts as rounding."""

ROWS_CHECKED = 1 << 16
"""Rows checked at a time, which bounds the memory that a check takes beside the data."""

ActionKind: TypeAlias = Literal["continuous", "discrete"]


@dataclass(frozen=True)
class BoxActions:
    """Continuous actions: vectors between bounds, which networks see in [-1, 1]."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    kind = "continuous"
    kept = "actions keep their units, and are clipped to its bounds"
    """For messages: the treatment of a policy's actions under other bounds."""

    @classmethod
    def between(cls, low: ArrayLike, high: ArrayLike, size: int) -> Self:
        """Bounds from arrays; a single number is meant for all dimensions."""
        pair = [np.asarray(bound, dtype=np.float32) for bound in (low, high)]
        if any(bound.shape not in ((), (1,), (size,)) for bound in pair):
            raise DatasetError(f"action bounds must have {size} numbers each, got {low!r} and {high!r}")
        bottom, top = (np.broadcast_to(bound, (size,)) for bound in pair)
        if not ((bottom < top) & np.isfinite(top - bottom)).all():
            raise DatasetError(f"action bounds must be finite with low < high, got {low!r} and {high!r}")
        return cls(tuple(bottom.tolist()), tuple(top.tolist()))

    @property
    def size(self) -> int:
        """Dimensions of an action."""
        return len(self.low)

    @property
    def column(self) -> Column:
        """How an action is stored."""
        return Column((self.size,))

    def encode(self, native: Tensor) -> Tensor:
        """Actions in the environment's units as networks see them."""
        if self._is_unit:
            return native
        low, high = native.new_tensor(self.low), native.new_tensor(self.high)
        return 2 * (native - low) / (high - low) - 1

    def decode(self, actions: Tensor) -> Tensor:
        """Actions of a network in the environment's units."""
        if self._is_unit:
            return actions
        bounds = list(zip(self.low, self.high, strict=True))
        centre = actions.new_tensor([(low + high) / 2 for low, high in bounds])
        half = actions.new_tensor([(high - low) / 2 for low, high in bounds])
        return centre + half * actions

    def clip(self, actions: Tensor) -> Tensor:
        """Actions of a network brought into [-1, 1]."""
        return actions.clamp(-1, 1)

    def confine(self, native: Tensor) -> Tensor:
        """Actions in the environment's units brought within the bounds."""
        return torch.clamp(native, native.new_tensor(self.low), native.new_tensor(self.high))

    def can_act_in(self, other: ActionSpace) -> bool:
        """Whether actions of this space are understood by an environment with another one; bounds may differ."""
        return isinstance(other, BoxActions) and self.size == other.size

    def sample(self, count: int, valid: Tensor | None = None) -> Tensor:
        """Uniform actions, as networks see them; there are no masks of continuous ones."""
        return 2 * torch.rand(count, self.size) - 1

    def perturb(self, actions: Tensor, noise: float, valid: Tensor | None = None) -> Tensor:
        """Actions with Gaussian noise of this standard deviation, kept in [-1, 1]."""
        return (actions + noise * torch.randn_like(actions)).clamp(-1, 1) if noise else actions

    def check(self, native: Tensor, *, name: str, origin: str, ignored: Tensor | None = None) -> None:
        """Refuse logged actions outside the bounds; `origin` names their source, `ignored` rows may hold anything."""
        low, high = native.new_tensor(self.low), native.new_tensor(self.high)
        slack = TOLERANCE * (high - low)

        def beyond(rows: Tensor) -> Tensor:
            return (rows < low - slack) | (rows > high + slack)

        outside = torch.cat([beyond(part).any(-1) for part in torch.split(native, ROWS_CHECKED)])
        if ignored is not None:
            outside &= ~ignored
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            column = int(beyond(native[row]).nonzero()[0])
            raise DatasetError(
                f"{int(outside.sum())} rows have {name} outside the bounds of {origin}: row {row}, column {column} "
                f"is {float(native[row, column]):g}, expected [{self.low[column]:g}, {self.high[column]:g}]; "
                "set clip_actions: true to clip them"
            )

    def compare(self, actions: Tensor, logged: Tensor) -> Metrics:
        """The mean squared error of a policy's actions against logged ones."""
        return {"action_mse": (actions - logged).square().mean()}

    def to_plain(self) -> dict[str, Any]:
        """Numbers and lists only, as a checkpoint stores them."""
        return {"low": list(self.low), "high": list(self.high)}

    def __str__(self) -> str:
        return f"continuous actions in {self.size} dimension{'s' if self.size > 1 else ''}"

    def describe(self) -> str:
        """The actions with their bounds, in words."""
        ends = [[f"{end:g}" for end in dict.fromkeys(bound)] for bound in (self.low, self.high)]
        if all(len(end) == 1 for end in ends):
            return f"{self} from {ends[0][0]} to {ends[1][0]}"
        low, high = (", ".join(f"{end:g}" for end in bound) for bound in (self.low, self.high))
        return f"{self} from [{low}] to [{high}]"

    @property
    def _is_unit(self) -> bool:
        return {*self.low} == {-1} and {*self.high} == {1}


@dataclass(frozen=True)
class DiscreteActions:
    """Discrete actions. Networks number them from 0, the environment from `start`."""

    count: int
    start: int = 0
    parts: tuple[int, ...] = ()
    """Sizes of the parts of an action that stands for several at once (MultiDiscrete)."""
    kind = "discrete"
    kept = "actions keep their numbers"
    """For messages: the treatment of a policy's actions where there are more of them."""

    @property
    def size(self) -> int:
        """Number of actions."""
        return self.count

    @property
    def column(self) -> Column:
        """How an action is stored."""
        return Column((), "int64")

    def encode(self, native: Tensor) -> Tensor:
        """Actions as the environment numbers them, numbered as networks do."""
        return native - self.start if self.start else native

    def decode(self, actions: Tensor) -> Tensor:
        """Actions of a network as the environment numbers them."""
        return actions + self.start if self.start else actions

    def clip(self, actions: Tensor) -> Tensor:
        """The actions unchanged: a network has no others."""
        return actions

    def confine(self, native: Tensor) -> Tensor:
        """The actions unchanged: a space that can act in another one has no action that the other lacks."""
        return native

    def can_act_in(self, other: ActionSpace) -> bool:
        """Whether an environment with another space has all of these actions, by their own numbers."""
        return (
            isinstance(other, DiscreteActions)
            and other.start <= self.start
            and self.start + self.count <= other.start + other.count
            and self.parts == other.parts
        )

    def sample(self, count: int, valid: Tensor | None = None) -> Tensor:
        """Uniform actions among all, or among those whose mask (B, actions) is 1."""
        return torch.randint(self.count, (count,)) if valid is None else valid.multinomial(1)[:, 0]

    def perturb(self, actions: Tensor, noise: float, valid: Tensor | None = None) -> Tensor:
        """Epsilon-greedy: each action replaced, with probability `noise`, by a uniform valid one."""
        if not noise:
            return actions
        is_random = torch.rand(actions.shape, device=actions.device) < noise
        others = torch.randint_like(actions, self.count) if valid is None else self.sample(len(actions), valid)
        return torch.where(is_random, others, actions)

    def check(self, native: Tensor, *, name: str, origin: str, ignored: Tensor | None = None) -> None:
        """Refuse logged actions with numbers that the space does not have; `ignored` rows may hold anything."""
        outside = (native < self.start) | (native >= self.start + self.count)
        if ignored is not None:
            outside &= ~ignored
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            raise DatasetError(
                f"{int(outside.sum())} rows have {name} that {origin} does not know: row {row} is {int(native[row])}, "
                f"expected {self.start} to {self.start + self.count - 1}"
            )

    def compare(self, actions: Tensor, logged: Tensor) -> Metrics:
        """The share of a policy's actions that equal the logged ones."""
        return {"action_agreement": (actions == logged).float().mean()}

    def to_plain(self) -> dict[str, Any]:
        """Numbers only, as a checkpoint stores them."""
        parts = {"parts": list(self.parts)} if self.parts else {}
        return {"count": self.count, "start": self.start, **parts}

    def __str__(self) -> str:
        return f"{self.count} discrete actions" + (f" ({' x '.join(map(str, self.parts))})" if self.parts else "")

    def describe(self) -> str:
        """The actions with their numbers, in words."""
        return f"{self} from {self.start} to {self.start + self.count - 1}"


def split_actions(actions: NDArray[Any], parts: tuple[int, ...]) -> NDArray[np.int64]:
    """The parts (..., parts) of combinations (...), which are numbered with the last part fastest."""
    return np.stack(np.unravel_index(actions, parts), axis=-1)


ActionSpace: TypeAlias = "BoxActions | DiscreteActions"
