"""The spaces that follow from data and its options: bounds, numbers of discrete actions, action masks."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.core.text import first_of
from rl_training.data.audit.view import View
from rl_training.data.fields import FIRST_ROWS, MASKS, row_list
from rl_training.data.mapped_columns import join_columns
from rl_training.data.offline_dataset import TransitionDataset

if TYPE_CHECKING:
    from rl_training.data.dataset_loaders import DataOptions

BY_LARGEST = "as the largest logged one suggests"


SHOWN_ACTIONS = 6


def fit_spaces(dataset: TransitionDataset, spaces: SpaceSpec, origin: str) -> TransitionDataset:
    """The dataset with actions of the spaces' kind; one that does not fit them is refused."""
    if dataset.obs_dim != spaces.feature_dim:
        raise DatasetError(f"the dataset has obs_dim {dataset.obs_dim}, {origin} has {spaces.feature_dim}")
    return dataset.with_actions_of(spaces.action, origin)


def with_masks_of_env(dataset: TransitionDataset, spaces: SpaceSpec, env_id: str) -> TransitionDataset:
    """The dataset with masks if the environment gives masks; one that has them where the environment does not."""
    has_masks = "valid_actions" in dataset.fields
    if has_masks and not spaces.is_masked:
        hint = f"give {env_id} a method action_masks(), or leave valid_actions out of the data"
        raise DatasetError(f"the data has valid_actions, and {env_id} gives no action masks: {hint}")
    if has_masks or not spaces.is_masked:
        return dataset
    note = f"{env_id} gives action masks and the data has none: all actions count as valid in the data"
    return with_all_valid(dataset, spaces.action_dim).with_notes(note)


def fit_masks(dataset: TransitionDataset, spaces: SpaceSpec) -> tuple[TransitionDataset, SpaceSpec]:
    """The dataset with its masks before its observations, and the spaces for that."""
    width, count = dataset.valid_actions.shape[1], spaces.action_dim
    if width != count:
        raise DatasetError(f"valid_actions has {width} columns, expected {count}, one per discrete action")
    return with_masks_first(dataset), spaces if spaces.is_masked else spaces.with_mask()


def with_spaces_of_data(dataset: TransitionDataset, options: DataOptions) -> tuple[TransitionDataset, SpaceSpec, str]:
    """The spaces that the options or the data imply where there is no environment, and the source of that knowledge."""
    if options.num_actions is not None and not dataset.is_discrete and dataset.action_dim == 1:
        whole = bool((dataset.actions == dataset.actions.round()).all())
        dataset = dataset.map_actions(lambda values: values[:, 0].long()) if whole else dataset
    if dataset.is_discrete:
        count, says = number_of_actions(dataset, options)
        if says == BY_LARGEST:
            note = f"assumed {count} actions, the largest logged index + 1; set num_actions if there are more"
            dataset = dataset.with_notes(note)
        return dataset, SpaceSpec.vector(dataset.obs_dim, DiscreteActions(count)), says
    if options.num_actions is not None:
        raise ConfigError("num_actions does not go with actions that are no whole numbers; set action_low, action_high")
    low, high, says = options.action_low, options.action_high, "as the config says"
    if low is None or high is None:
        low, high, says = _logged_bounds([part.numpy(force=True) for part in _actions(dataset)])
    size = dataset.action_dim
    if not len(low) == len(high) == size:
        raise ConfigError(f"action_low and action_high must have {size} numbers, got {len(low)} and {len(high)}")
    return dataset, SpaceSpec.vector(dataset.obs_dim, BoxActions(low, high)), says


def _actions(dataset: TransitionDataset) -> list[Tensor]:
    """The actions of rows to train on, and of rows that are held out."""
    return [part.actions for part in (dataset, dataset.validation) if part is not None]


def number_of_actions(dataset: TransitionDataset, options: DataOptions) -> tuple[int, str]:
    """The number of discrete actions, and the source of that knowledge."""
    if options.action_low is not None:
        raise ConfigError("action_low and action_high do not go with discrete actions; set num_actions")
    named = dataset.columns.choices if dataset.columns is not None else ()
    if named:
        if options.num_actions not in (None, len(named)):
            wrong = f"num_actions is {options.num_actions}, but the table has {len(named)} discrete actions"
            raise ConfigError(f"{wrong}; list them in choices")
        return len(named), f"by name: {first_of(named, SHOWN_ACTIONS)}"
    if options.num_actions is not None:
        return options.num_actions, "as the config says"
    if "valid_actions" in dataset.fields:
        return dataset.valid_actions.shape[1], "as many as masks have columns"
    if dataset.num_choices is not None:
        return dataset.num_choices, "as many as one-hot actions have columns"
    return 1 + max(int(part.max()) for part in _actions(dataset)), BY_LARGEST


def _logged_bounds(parts: list[NDArray[np.float32]]) -> tuple[tuple[float, ...], tuple[float, ...], str]:
    """[0, 1] or [-1, 1] where it holds all logged actions, else the smallest and largest of them; and which it is."""
    bottom = np.min([part.min(axis=0) for part in parts], axis=0)
    top = np.max([part.max(axis=0) for part in parts], axis=0)
    says = "as the smallest and largest logged ones suggest: set action_low and action_high if others are possible"
    if (bottom >= -1).all() and (top <= 1).all():
        lowest = 0 if (bottom >= 0).all() and (top > 0).any() else -1
        bottom, top, says = np.full_like(bottom, lowest), np.ones_like(top), "assumed since all logged ones are"
    flat = np.flatnonzero(bottom == top)
    if len(flat):
        raise DatasetError(f"action column {flat[0]} is {bottom[flat[0]]:g} throughout; set action_low and action_high")
    return tuple(map(float, bottom)), tuple(map(float, top)), says


SEEN = {"valid_actions": "obs", "next_valid_actions": "next_obs"}
"""The observation that each mask belongs to."""


def check_logged(dataset: TransitionDataset, *, first: int = 0, drop: bool = False) -> TransitionDataset:
    """Refuse, or drop, rows whose mask excludes the logged action; actions are numbered from `first` on.

    Where a row is dropped, its episode is cut in two.
    """
    if "valid_actions" not in dataset.fields:
        return dataset
    masks, actions = (dataset.fields[name].numpy(force=True) for name in ("valid_actions", "actions"))
    numbers, view = actions - first, View(dataset)
    outside = np.flatnonzero((numbers < 0) | (numbers >= masks.shape[1]))
    if len(outside):
        place = f"row {view.in_log(outside[:1])[0]} has the action {actions[outside[0]]}"
        raise DatasetError(f"valid_actions has {masks.shape[1]} columns, one per action from {first} on, but {place}")
    wrong = masks[np.arange(len(masks)), numbers] == 0
    count = int(np.count_nonzero(wrong))
    if not count:
        return dataset
    if not drop:
        shown = row_list(view.in_log(np.flatnonzero(wrong)[: FIRST_ROWS + 1]))
        hint = "mend the data, or set invalid_actions: drop to leave such rows out"
        wrong_rows = f"in {count} of {len(wrong)} rows valid_actions excludes the logged action (rows {shown})"
        raise DatasetError(f"{wrong_rows}: {hint}")
    if count == len(wrong):
        raise DatasetError("invalid_actions: drop leaves nothing: valid_actions excludes every logged action")
    rows = torch.from_numpy(np.flatnonzero(~wrong))
    kept = _without(dataset, torch.from_numpy(wrong), rows) if dataset.is_ordered else dataset.take(rows)
    return kept.with_notes(f"dropped {count} rows whose action was not valid; their episodes are cut there")


def _without(dataset: TransitionDataset, dropped: Tensor, kept: Tensor) -> TransitionDataset:
    """The dataset without some rows; the row before each is the last of its episode from here on."""
    cut = torch.cat([dropped[1:], dropped.new_zeros(1)]).to(dataset.device) & ~dataset.episode_ends
    known = None if dataset.next_action_mask is None else dataset.next_action_mask & ~cut
    rest = replace(dataset, truncations=dataset.truncations | cut, next_action_mask=known).take(kept)
    return replace(rest, is_ordered=True, num_dropped=dataset.num_dropped + int(dropped.sum()))


def with_masks_first(dataset: TransitionDataset) -> TransitionDataset:
    """The dataset whose observations begin with their action masks, as networks take them."""
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


def without_masks_first(dataset: TransitionDataset, actions: int) -> TransitionDataset:
    """The inverse: masks in fields of their own."""
    fields = {}
    for mask, seen in SEEN.items():
        fields[mask], fields[seen] = dataset.fields[seen].tensor_split([actions], dim=1)
    return dataset.with_fields(**{name: value.contiguous() for name, value in fields.items()})


def with_all_valid(dataset: TransitionDataset, actions: int) -> TransitionDataset:
    """The dataset with masks that exclude nothing."""
    masks = torch.ones(1, actions, device=dataset.device).expand(len(dataset), actions)
    held_out = None if dataset.validation is None else with_all_valid(dataset.validation, actions)
    return replace(dataset.with_fields(**dict.fromkeys(MASKS, masks)), validation=held_out)
