"""Formulas of critics that know quantiles of the return."""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.algorithms.base import losses
from rl_training.core.batches import Batch


def bellman_atoms(batch: Batch, next_atoms: Tensor, gamma: float) -> Tensor:
    """Targets from atoms (B, M) of the return: all atoms of a row have the row's reward and end."""
    names = ("rewards", "dones", "discounts")
    columns: Batch = {name: batch[name][:, None].expand_as(next_atoms) for name in names if name in batch}
    return losses.bellman(columns, next_atoms, gamma)


def quantile_huber_loss(*, quantiles: Tensor, target_atoms: Tensor, delta: float | None = 1.0) -> Tensor:
    """Regression of M quantiles (..., B, M) on the distribution of atoms (B, K): the mean over all pairs.

    The m-th quantile has the level (m - 1/2) / M. Errors of atoms above it are weighted by the level, errors of atoms
    below it by 1 minus the level. An error counts by half its square up to `delta`, and linearly beyond.
    """
    if quantiles.shape[-2] != target_atoms.shape[0] or target_atoms.ndim != 2:
        shapes = f"quantiles {tuple(quantiles.shape)}, target_atoms {tuple(target_atoms.shape)}"
        raise ValueError(f"quantiles must be (..., B, M) and target_atoms (B, K), got {shapes}")
    count = quantiles.shape[-1]
    levels = (torch.arange(count, dtype=quantiles.dtype, device=quantiles.device) + 0.5) / count
    errors = target_atoms[:, None] - quantiles[..., None]
    weights = (levels[:, None] - (errors.detach() < 0).to(errors.dtype)).abs()
    return (weights * losses.huber(errors, delta)).mean()
