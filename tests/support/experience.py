"""Rows that tell their number in every field, put into buffers step by step, and what is drawn from them."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from rl_training.core.batches import Batch
from rl_training.data import ReplayBuffer

AnyBuffer = TypeVar("AnyBuffer", bound=ReplayBuffer)
SIZES: dict[str, Any] = {"obs_dim": 1, "action_dim": 1}


def add(
    buffer: ReplayBuffer,
    rows: Sequence[float],
    ends: str = "",
    *,
    rewards: Sequence[float] | None = None,
    mask: Sequence[bool] | None = None,
    extra: Mapping[str, Sequence[float]] | None = None,
) -> None:
    """One row of each environment; `ends` has a letter for each: T terminated, C cut, B both at once, - neither."""
    numbers = np.asarray(rows, dtype=np.float64)
    letters = ends or "-" * len(rows)
    buffer.add(
        obs=numbers[:, None],
        actions=numbers[:, None] / 8,
        rewards=numbers if rewards is None else np.asarray(rewards),
        next_obs=numbers[:, None] + 0.5,
        terminations=np.array([letter in "TB" for letter in letters]),
        truncations=np.array([letter in "CB" for letter in letters]),
        mask=None if mask is None else np.asarray(mask),
        **extra or {},
    )


def add_episode(buffer: ReplayBuffer, start: int, length: int, end: str, **options: Any) -> None:
    """An episode in the only environment, its rows numbered from `start`."""
    for row in range(start, start + length):
        add(buffer, [row], end if row == start + length - 1 else "-", **options)


def numbers(values: Tensor) -> list[float]:
    plain: list[float] = values.flatten().tolist()
    return plain


def held(buffer: ReplayBuffer, name: str = "obs") -> list[float]:
    """A field of all rows that a buffer holds, the oldest first."""
    return numbers(buffer.rows_from(buffer.added - len(buffer))[name])


def drawn(buffer: ReplayBuffer, draws: int = 1000) -> dict[float, dict[str, float]]:
    """So many draws by the number of the row, which is in its first observation; equal rows give equal values."""
    batch = buffer.sample(draws)
    found: dict[float, dict[str, float]] = {}
    for position, row in enumerate(batch["obs"][:, 0].tolist()):
        values = {name: float(value[position].flatten()[0]) for name, value in batch.items()}
        assert found.setdefault(row, values) == values
    return dict(sorted(found.items()))


def column(buffer: ReplayBuffer, name: str, draws: int = 1000) -> dict[float, float]:
    """One field of what is drawn, by the number of the row."""
    return {row: values[name] for row, values in drawn(buffer, draws).items()}


def saved(tree: Any) -> Any:
    """What comes back from a file."""
    file = io.BytesIO()
    torch.save(tree, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def revive(buffer: ReplayBuffer, other: AnyBuffer) -> AnyBuffer:
    """Bring another buffer to where this one is, by way of files."""
    other.load_state_dict(saved(buffer.state_dict()))
    other.restore(saved(buffer.rows_from(buffer.added - len(buffer))))
    return other


def assert_equal_batches(first: Batch, second: Batch) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name
