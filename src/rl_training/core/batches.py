"""Batches: their columns, and what an algorithm reads: single transitions, windows of them, or the last rollout."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

TRANSITION = ("obs", "actions", "rewards", "next_obs", "dones")


class Reading:
    """The fields that an algorithm reads, and what follows from them."""

    fields: tuple[str, ...]

    @property
    def bootstraps(self) -> bool:
        """Whether rewards are added to the value of the next state, so that several steps can be summed."""
        return "rewards" in self.fields

    @property
    def reads_returns(self) -> bool:
        """Whether returns of the rewards are read, which are fixed when an episode ends."""
        return "returns_to_go" in self.fields

    @property
    def needs_episodes(self) -> bool:
        """Whether a field is not known before the episode has ended."""
        return self.reads_returns or "next_actions" in self.fields


@dataclass(frozen=True)
class Transitions(Reading):
    """Rows drawn uniformly: every field is (B, ...)."""

    fields: tuple[str, ...] = TRANSITION


@dataclass(frozen=True)
class Windows(Reading):
    """Consecutive rows of one episode: every field is (B, length, ...), with `mask` and `timesteps` beside them."""

    length: int | str
    """A number, or the name of a hyper-parameter."""
    fields: tuple[str, ...] = TRANSITION
    bootstraps = False
    needs_episodes = True


@dataclass(frozen=True)
class Rollout(Reading):
    """All rows of the last round of collecting, in minibatches; they are forgotten afterwards."""

    epochs: int | str
    """Passes over the rows, each in an order of its own: a number, or the name of a hyper-parameter."""
    fields: tuple[str, ...] = TRANSITION
    steps: int | str = "rollout_steps"
    """Transitions in a round, of all environments together: a number, or the name of a hyper-parameter."""
    bootstraps = reads_returns = needs_episodes = False


@dataclass(frozen=True)
class Column:
    """Shape and type of one column of rows: such as float32 vectors, int64 actions, uint8 images."""

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


Batch: TypeAlias = dict[str, Tensor]
"""Tensors of equal length under the keys obs, actions, rewards, next_obs, dones and an algorithm's extra needs."""

Metrics: TypeAlias = dict[str, Tensor]
"""Named 0-d tensors."""


class Acted(NamedTuple):
    """The answer of a policy to observations."""

    actions: Tensor
    """Actions in the environment's units."""
    raw_actions: Tensor
    """The actions as the networks gave them, neither clipped nor scaled: a replay buffer stores these."""
    extras: Batch
    """Columns that are stored beside the transition, such as log-probabilities."""
