"""Episodes that training does not see."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from rl_training.core.errors import DatasetError
from rl_training.data.mapped_columns import take_rows
from rl_training.data.offline_dataset import TransitionDataset

NUMBERS = "numbers"


def hold_out(
    dataset: TransitionDataset, fraction: float | None, default: float = 0.0, *, seed: int = 0
) -> TransitionDataset:
    """The dataset with a fraction of its episodes as `validation`; the default may be too much for it."""
    share = default if fraction is None else fraction
    if not share:
        return dataset
    episodes = len(dataset.episode_bounds())
    if episodes < 2 and fraction is None:
        return dataset.with_notes("no episode could be held out for diagnostics: there is only one")
    if episodes < 2:
        raise DatasetError(f"validation_fraction holds out whole episodes and needs at least 2 of them, got {episodes}")
    if dataset.stored is not None:
        rest, held_out = dataset.split(share, seed=seed)
        return replace(rest, validation=held_out)
    # Column by column: if nobody else has the dataset, its rows are not in memory twice.
    columns = dict(dataset.fields)
    dataset = replace(dataset, fields={"dones": columns["dones"], NUMBERS: torch.arange(len(dataset))})
    rest, held_out = dataset.split(share, seed=seed)
    found: tuple[dict[str, Tensor], ...] = ({}, {})
    for name in list(columns):
        column = columns.pop(name)
        for part, kept in zip((rest, held_out), found, strict=True):
            kept[name] = take_rows(column, part.fields[NUMBERS], None)
    return replace(rest, fields=found[0], validation=replace(held_out, fields=found[1]))
