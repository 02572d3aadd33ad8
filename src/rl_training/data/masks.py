"""Action masks of a log: rows that contradict them, masks as part of the observation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl_training.core.errors import DatasetError
from rl_training.data.audit.view import View
from rl_training.data.fields import FIRST_ROWS, MASKS
from rl_training.data.mapped_columns import join_columns
from rl_training.data.offline_dataset import TransitionDataset

SEEN = dict(zip(MASKS, ("obs", "next_obs"), strict=True))
"""The observation that each mask belongs to."""


def check_logged(dataset: TransitionDataset, *, first: int = 0, drop: bool = False) -> TransitionDataset:
    """Refuse, or drop, rows whose own mask says that the logged choice was not possible; choices begin with `first`.

    Where a row is dropped, its episode is cut in two.
    """
    if "valid_actions" not in dataset.fields:
        return dataset
    masks, choices = (dataset.fields[name].numpy(force=True) for name in ("valid_actions", "actions"))
    numbers, view = choices - first, View(dataset)
    outside = np.flatnonzero((numbers < 0) | (numbers >= masks.shape[1]))
    if len(outside):
        place = f"row {view.in_log(outside[:1])[0]} has the action {choices[outside[0]]}"
        raise DatasetError(f"valid_actions has {masks.shape[1]} columns, one per choice from {first} on, but {place}")
    wrong = masks[np.arange(len(masks)), numbers] == 0
    count = int(np.count_nonzero(wrong))
    if not count:
        return dataset
    if not drop:
        rows = view.in_log(np.flatnonzero(wrong)[:FIRST_ROWS])
        shown = ", ".join(map(str, rows)) + (", ..." if count > FIRST_ROWS else "")
        hint = "mend the data, or set invalid_actions: drop to leave such rows out"
        raise DatasetError(
            f"in {count} of {len(wrong)} rows valid_actions excludes the logged action (rows {shown}): {hint}"
        )
    if count == len(wrong):
        raise DatasetError("invalid_actions: drop leaves nothing: valid_actions excludes every logged action")
    kept = _without(dataset, torch.from_numpy(wrong)) if dataset.is_ordered else dataset.take(_places(~wrong))
    return kept.with_notes(f"dropped {count} rows whose action was not possible; their episodes are cut there")


def _without(dataset: TransitionDataset, dropped: Tensor) -> TransitionDataset:
    """The dataset without some rows; the row before each is the last of its episode from here on."""
    before = torch.cat([dropped[1:], dropped.new_zeros(1)]).to(dataset.device)
    cut = dataset.truncations | (before & ~dataset.episode_ends)
    known = None if dataset.next_action_mask is None else dataset.next_action_mask & ~(before & ~dataset.episode_ends)
    kept = replace(dataset, truncations=cut, next_action_mask=known).take(_places(~dropped.numpy()))
    return replace(kept, is_ordered=True, num_dropped=dataset.num_dropped + int(dropped.sum()))


def _places(flags: Any) -> Tensor:
    return torch.from_numpy(np.flatnonzero(flags))


def with_masks_first(dataset: TransitionDataset) -> TransitionDataset:
    """The dataset whose observations begin with their masks, as networks for such choices take them."""
    joined = {
        seen: join_columns([dataset.fields[mask], dataset.fields[seen]], dataset.stored) for mask, seen in SEEN.items()
    }
    width = dataset.fields["valid_actions"].shape[1]
    moments: dict[str, Any] = {}
    if dataset.obs_mean is not None and dataset.obs_std is not None:
        # A mask is left as it is.
        moments["obs_mean"] = torch.cat([dataset.obs_mean.new_zeros(width), dataset.obs_mean])
        moments["obs_std"] = torch.cat([dataset.obs_std.new_ones(width), dataset.obs_std])
    held_out = None if dataset.validation is None else with_masks_first(dataset.validation)
    return replace(dataset.with_fields(**joined), validation=held_out, **moments)


def without_masks_first(dataset: TransitionDataset, choices: int) -> TransitionDataset:
    """The inverse: masks in fields of their own."""
    fields = {}
    for mask, seen in SEEN.items():
        fields[mask], fields[seen] = dataset.fields[seen].tensor_split([choices], dim=1)
    return dataset.with_fields(**{name: value.contiguous() for name, value in fields.items()})


def with_all_possible(dataset: TransitionDataset, choices: int) -> TransitionDataset:
    """The dataset with masks that exclude nothing."""
    masks = torch.ones(1, choices, device=dataset.device).expand(len(dataset), choices)
    held_out = None if dataset.validation is None else with_all_possible(dataset.validation, choices)
    return replace(dataset.with_fields(**dict.fromkeys(MASKS, masks)), validation=held_out)
