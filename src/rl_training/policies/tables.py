"""The actions of a trained policy for a table, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import SpaceSpec
from rl_training.data import ColumnsConfig, TableFiles, read_observations, table_kind
from rl_training.data.tables import feature_names
from rl_training.policies.saved import SavedPolicy
from rl_training.storage import refusing_broken_state


def table_observations(saved: SavedPolicy, path: Path) -> NDArray[Any]:
    """The observations in a table like the one that a policy was trained on."""
    columns, kind = table_columns(saved), table_kind(path)
    if kind is None:
        raise ConfigError(f"{str(path)!r} is no table: its name must end with .csv or .parquet")
    try:
        return read_observations(TableFiles(path, kind), columns)
    except DatasetError as error:
        raise error if str(path) in str(error) else DatasetError(f"{path}: {error}") from None


def name_actions(saved: SavedPolicy, actions: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Actions as columns of the table that a policy was trained on, discrete actions by their names."""
    columns = table_columns(saved)
    named = np.array(columns.choices)[actions] if columns.choices else actions
    return dict(zip(columns.actions, named.reshape(len(named), -1).T, strict=True))


def observation_names(spaces: SpaceSpec, columns: ColumnsConfig) -> list[str]:
    """A name for every number of an observation, by the columns of a table; those of the action mask come first."""
    return [*(columns.valid_actions if spaces.is_masked else ()), *feature_names(columns.obs, columns)]


def table_columns(saved: SavedPolicy) -> ColumnsConfig:
    """The columns of the table that a policy was trained on."""
    found = find_columns(saved)
    if found is None:
        raise ConfigError("the policy was not trained on a table: give its observations as a .npy or .json file")
    return found


def find_columns(saved: SavedPolicy) -> ColumnsConfig | None:
    """The columns of the table that a policy was trained on; None if it was not."""
    kwargs = saved.config.algo_kwargs
    with refusing_broken_state("the table columns of the policy"):
        parts = [kwargs, *(kwargs.get("dataset_mix") or ())]
        found: list[Mapping[str, Any]] = [part["dataset_columns"] for part in parts if part.get("dataset_columns")]
        return ColumnsConfig(**found[0]) if found else None
