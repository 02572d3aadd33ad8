"""The spaces that follow from data and its options: bounds, numbers of actions, masks."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import BoxActions, DiscreteActions, SpaceSpec
from rl_training.data.dataset_loaders import DataOptions
from rl_training.data.masks import with_all_possible, with_masks_first
from rl_training.data.offline_dataset import TransitionDataset

BY_LARGEST = "as the largest logged one suggests"


SHOWN_CHOICES = 6


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
        raise DatasetError(f"the data says which actions were possible, and {env_id} does not: {hint}")
    if has_masks or not spaces.is_masked:
        return dataset
    note = f"{env_id} says which actions are possible and the data does not: all count as possible in the data"
    return with_all_possible(dataset, spaces.action_dim).with_notes(note)


def fit_masks(dataset: TransitionDataset, spaces: SpaceSpec) -> tuple[TransitionDataset, SpaceSpec]:
    """The dataset with its masks before its observations, and the spaces for that."""
    width, count = dataset.valid_actions.shape[1], spaces.action_dim
    if width != count:
        raise DatasetError(f"valid_actions has {width} columns, and there are {count} choices: one column per choice")
    return with_masks_first(dataset), spaces if spaces.is_masked else spaces.with_mask()


def with_spaces_of_data(dataset: TransitionDataset, options: DataOptions) -> tuple[TransitionDataset, SpaceSpec, str]:
    """The spaces that the options or the data imply, where there is no environment to ask, and who says so."""
    if options.num_actions is not None and not dataset.is_discrete and dataset.action_dim == 1:
        whole = bool((dataset.actions == dataset.actions.round()).all())
        dataset = dataset.map_actions(lambda values: values[:, 0].long()) if whole else dataset
    if dataset.is_discrete:
        count, says = choices_of_data(dataset, options)
        if says == BY_LARGEST:
            dataset = dataset.with_notes(f"taken to be all there are: {count} choices; set num_actions if more exist")
        return dataset, SpaceSpec.vector(dataset.obs_dim, DiscreteActions(count)), says
    if options.num_actions is not None:
        raise ConfigError("num_actions does not go with actions that are no whole numbers; set action_low, action_high")
    low, high, says = options.action_low, options.action_high, "as the config says"
    if low is None or high is None:
        low, high, says = _logged_bounds([part.numpy(force=True) for part in _actions(dataset)])
    if not len(low) == len(high) == dataset.action_dim:
        raise ConfigError(
            f"action_low and action_high must have {dataset.action_dim} numbers, got {len(low)} and {len(high)}"
        )
    return dataset, SpaceSpec.vector(dataset.obs_dim, BoxActions(low, high)), says


def _actions(dataset: TransitionDataset) -> list[Tensor]:
    """Those of rows to train on, and of rows that are held out."""
    return [part.actions for part in (dataset, dataset.validation) if part is not None]


def choices_of_data(dataset: TransitionDataset, options: DataOptions) -> tuple[int, str]:
    """How many choices there are, and who says so."""
    if options.action_low is not None:
        raise ConfigError("action_low and action_high do not go with choices, which are integers; set num_actions")
    named = dataset.columns.choices if dataset.columns is not None else ()
    if named:
        if options.num_actions not in (None, len(named)):
            wrong = f"num_actions is {options.num_actions}, but the table has {len(named)} choices"
            raise ConfigError(f"{wrong}; list them in choices")
        return len(named), _choices_text(named)
    if options.num_actions is not None:
        return options.num_actions, "as the config says"
    if "valid_actions" in dataset.fields:
        return dataset.valid_actions.shape[1], "as many as masks have columns"
    if dataset.num_choices is not None:
        return dataset.num_choices, "as many as one-hot actions have columns"
    return 1 + max(int(part.max()) for part in _actions(dataset)), BY_LARGEST


def _choices_text(names: tuple[str, ...]) -> str:
    return f"by name: {', '.join(names[:SHOWN_CHOICES])}{', ...' if len(names) > SHOWN_CHOICES else ''}"


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
