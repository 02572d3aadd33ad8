"""Action spaces: how actions in the environment's units become what networks see, and back."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor
from typing_extensions import Self

from rl_training.core.batches import Metrics
from rl_training.core.errors import DatasetError

TOLERANCE = 1e-5
"""How far outside its bounds a logged action may be, relative to their distance, and still count as rounding."""

ROWS_CHECKED = 1 << 16
"""Rows checked at a time, which bounds the memory that a check takes beside the data."""

ActionKind: TypeAlias = Literal["continuous", "discrete"]


@dataclass(frozen=True)
class Column:
    """Shape and type of one column of rows: such as float32 vectors, int64 choices, uint8 images."""

    shape: tuple[int, ...] = ()
    dtype: Literal["float32", "int64", "int32", "uint8"] = "float32"

    @property
    def size(self) -> int:
        """Numbers in one row."""
        return math.prod(self.shape)

    @property
    def torch_dtype(self) -> torch.dtype:
        """The type as torch names it."""
        found: torch.dtype = getattr(torch, self.dtype)
        return found


@dataclass(frozen=True)
class BoxActions:
    """Continuous actions: vectors between bounds, which networks see in [-1, 1]."""

    low: tuple[float, ...]
    high: tuple[float, ...]
    kind = "continuous"
    kept = "actions keep their units, and are clipped to its bounds"
    """What becomes of the actions of a policy for other bounds."""

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
        count, first = 0, (0, 0)
        for start in range(0, len(native), ROWS_CHECKED):
            part = native[start : start + ROWS_CHECKED]
            outside = (part < low - slack) | (part > high + slack)
            if ignored is not None:
                outside &= ~ignored[start : start + ROWS_CHECKED, None]
            found = int(outside.any(1).sum())
            if found and not count:
                row, column = outside.nonzero()[0].tolist()
                first = (start + row, column)
            count += found
        if not count:
            return
        row, column = first
        raise DatasetError(
            f"{count} rows have {name} outside the bounds of {origin}: row {row}, column {column} "
            f"is {float(native[row, column]):g}, expected [{self.low[column]:g}, {self.high[column]:g}]; "
            "set clip_actions: true to clip them"
        )

    def compare(self, actions: Tensor, logged: Tensor) -> Metrics:
        """How far a policy's actions are from logged ones."""
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
    """One of several choices. Networks number them from 0, the environment from `start`."""

    count: int
    start: int = 0
    parts: tuple[int, ...] = ()
    """Where a choice stands for several at once (MultiDiscrete), how many choices each of these has."""
    kind = "discrete"
    kept = "actions keep their numbers"
    """What becomes of the actions of a policy for fewer choices."""

    @property
    def size(self) -> int:
        """How many choices there are."""
        return self.count

    @property
    def column(self) -> Column:
        """How an action is stored."""
        return Column((), "int64")

    def encode(self, native: Tensor) -> Tensor:
        """Choices of the environment as networks number them."""
        return native - self.start if self.start else native

    def decode(self, actions: Tensor) -> Tensor:
        """Choices of a network as the environment numbers them."""
        return actions + self.start if self.start else actions

    def clip(self, actions: Tensor) -> Tensor:
        """The choices unchanged: a network cannot choose anything else."""
        return actions

    def confine(self, native: Tensor) -> Tensor:
        """The choices unchanged: a space that can act in another one has no choice that the other lacks."""
        return native

    def can_act_in(self, other: ActionSpace) -> bool:
        """Whether an environment with another space knows all of these choices, by their own numbers."""
        return (
            isinstance(other, DiscreteActions)
            and other.start <= self.start
            and self.start + self.count <= other.start + other.count
            and self.parts == other.parts
        )

    def sample(self, count: int, valid: Tensor | None = None) -> Tensor:
        """Uniform choices among all, or among those whose mask (B, choices) is 1."""
        return torch.randint(self.count, (count,)) if valid is None else valid.multinomial(1)[:, 0]

    def perturb(self, actions: Tensor, noise: float, valid: Tensor | None = None) -> Tensor:
        """Epsilon-greedy: each choice replaced, with probability `noise`, by a uniform one that is possible."""
        if not noise:
            return actions
        is_random = torch.rand(actions.shape, device=actions.device) < noise
        others = torch.randint_like(actions, self.count) if valid is None else self.sample(len(actions), valid)
        return torch.where(is_random, others, actions)

    def check(self, native: Tensor, *, name: str, origin: str, ignored: Tensor | None = None) -> None:
        """Refuse logged actions that are none of the choices; `ignored` rows may hold anything."""
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
        """How often a policy's choices are the logged ones."""
        return {"action_agreement": (actions == logged).float().mean()}

    def to_plain(self) -> dict[str, Any]:
        """Numbers only, as a checkpoint stores them."""
        parts = {"parts": list(self.parts)} if self.parts else {}
        return {"count": self.count, "start": self.start, **parts}

    def __str__(self) -> str:
        return f"{self.count} choices" + (f" ({' x '.join(map(str, self.parts))})" if self.parts else "")

    def describe(self) -> str:
        """The choices with their numbers, in words."""
        return f"{self} from {self.start} to {self.start + self.count - 1}"


def split_choices(choices: NDArray[Any], parts: tuple[int, ...]) -> NDArray[np.int64]:
    """The parts (..., parts) of combinations (...), which are numbered with the last part fastest."""
    return np.stack(np.unravel_index(choices, parts), axis=-1)


ActionSpace: TypeAlias = "BoxActions | DiscreteActions"
