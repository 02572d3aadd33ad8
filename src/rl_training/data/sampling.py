"""Drawing rows: batches from a stream that can be saved, and windows of trajectories."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Protocol

import torch
from torch import Tensor

from rl_training.types import Batch, DatasetError

if TYPE_CHECKING:
    from rl_training.data.offline_dataset import TransitionDataset

BLOCK = 64
"""Batches gathered at a time: one index_select per field and block costs a quarter of one per batch."""


class Source(Protocol):
    """What a run draws its batches from; its state says where in the stream of batches it is."""

    def sample(self, batch_size: int) -> Batch:
        """The next batch."""

    def metrics(self) -> dict[str, float]:
        """What there is to say about the batches drawn since the last call."""

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is, in tensors and plain values."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` found the stream."""


class BlockSampler:
    """Uniform batches with replacement, gathered many at a time and handed out as views."""

    def __init__(self, fields: Mapping[str, Tensor], *, seed: int) -> None:
        self.fields = fields
        self.generator = torch.Generator().manual_seed(seed)
        self.batch_size = 0
        self.offset = BLOCK
        self.block_start = self.generator.get_state()
        self.block: list[Batch] = []

    def sample(self, batch_size: int) -> Batch:
        """The next batch of the stream; another batch size begins another block."""
        if self.offset == BLOCK or batch_size != self.batch_size:
            self.block_start = self.generator.get_state()
            self._gather(batch_size)
            self.offset = 0
        self.offset += 1
        return self.block[self.offset - 1]

    def _gather(self, batch_size: int) -> None:
        if batch_size < 1:
            raise DatasetError(f"batch_size must be >= 1, got {batch_size}")
        rows = len(next(iter(self.fields.values())))
        index = torch.randint(rows, (BLOCK * batch_size,), generator=self.generator)
        gathered = {name: torch.split(_gather_rows(value, index), batch_size) for name, value in self.fields.items()}
        self.block = [{name: parts[k] for name, parts in gathered.items()} for k in range(BLOCK)]
        self.batch_size = batch_size

    def metrics(self) -> dict[str, float]:
        """Nothing: every batch is drawn alike."""
        return {}

    def replace_fields(self, fields: Mapping[str, Tensor]) -> None:
        """Go on drawing the same rows, from other values."""
        self.fields = fields
        if self.block:
            self.load_state_dict(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Where the stream is: the generator before the current block, and how much of the block is used."""
        return {"block_start": self.block_start, "offset": self.offset, "batch_size": self.batch_size}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue a stream where `state_dict` found it."""
        self.generator.set_state(state["block_start"])
        self.block_start, self.offset = state["block_start"], state["offset"]
        if state["batch_size"]:
            self._gather(state["batch_size"])


def _gather_rows(values: Tensor, index: Tensor) -> Tensor:
    return values.index_select(0, index.to(values.device))


def sample_trajectory_windows(
    dataset: TransitionDataset,
    length: int,
    batch_size: int,
    *,
    seed: int = 0,
    pad: Literal["left", "right"] = "right",
) -> Batch:
    """Windows of consecutive rows of one episode, (batch_size, length, ...) per field.

    A window starts (pad right) or ends (pad left) at a row drawn uniformly and stops at the episode's bound; what is
    missing is zero, and `mask` is 1 on real rows. `timesteps` counts rows from the start of the episode.
    """
    if length < 1 or batch_size < 1:
        raise DatasetError(f"length and batch_size must be >= 1, got {length} and {batch_size}")
    if pad not in ("left", "right"):
        raise DatasetError(f"pad must be 'left' or 'right', got {pad!r}")
    bounds = dataset.episode_bounds().cpu()
    rows = torch.randint(len(dataset), (batch_size,), generator=torch.Generator().manual_seed(seed))
    first, stop = bounds[torch.searchsorted(bounds[:, 1].contiguous(), rows, right=True)].unbind(1)
    start = rows if pad == "right" else rows - length + 1
    window = start[:, None] + torch.arange(length)
    mask = (window >= first[:, None]) & (window < stop[:, None])
    index = torch.where(mask, window, rows[:, None]).to(dataset.device)
    mask = mask.to(dataset.device)
    windows = {name: _blank(value[index], mask) for name, value in dataset.fields.items()}
    windows["timesteps"] = _blank((window - first[:, None]).to(dataset.device), mask)
    return windows | {"mask": mask.float()}


def _blank(values: Tensor, mask: Tensor) -> Tensor:
    return values * mask.reshape(*mask.shape, *[1] * (values.ndim - 2)).to(values.dtype)
