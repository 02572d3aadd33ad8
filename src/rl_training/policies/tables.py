"""The actions of a trained policy for a table, as a table."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.spaces import SpaceSpec
from rl_training.data import (
    ColumnsConfig,
    TableFiles,
    check_table_path,
    read_observations,
    table_kind,
    table_text,
    write_table,
)
from rl_training.data import make_table as tabulate
from rl_training.data.tables import feature_names
from rl_training.policies.saved import SavedPolicy
from rl_training.storage import refusing_broken_state

__all__ = [
    "check_table_path",
    "name_actions",
    "observation_names",
    "predict_table",
    "table_columns",
    "table_kind",
    "table_observations",
    "table_text",
    "tabulate",
    "write_table",
]


def predict_table(saved: SavedPolicy, path: Path, *, deterministic: bool = True) -> dict[str, NDArray[Any]]:
    """A column for every column of the action, in the units of the table that the policy was trained on."""
    obs = table_observations(saved, path)
    return name_actions(saved, saved.predict(obs, deterministic=deterministic))


def table_observations(saved: SavedPolicy, path: Path) -> NDArray[Any]:
    """The observations in a table like the one that a policy was trained on."""
    columns, kind = table_columns(saved), table_kind(path)
    if kind is None:
        raise ConfigError(f"{str(path)!r} is no table: its name ends neither in .csv nor in .parquet")
    try:
        return read_observations(TableFiles(path, kind), columns)
    except DatasetError as error:
        raise error if str(path) in str(error) else DatasetError(f"{path}: {error}") from None


def name_actions(saved: SavedPolicy, actions: NDArray[Any]) -> dict[str, NDArray[Any]]:
    """Actions as columns of the table that a policy was trained on, choices by their names."""
    columns = table_columns(saved)
    named = np.array(columns.choices)[actions] if columns.choices else actions
    return dict(zip(columns.actions, named.reshape(len(named), -1).T, strict=True))


def observation_names(spaces: SpaceSpec, columns: ColumnsConfig) -> list[str]:
    """A name for every number of an observation, by the columns of a table; those of its mask come first."""
    return [*(columns.valid_actions if spaces.is_masked else ()), *feature_names(columns.obs, columns)]


def table_columns(saved: SavedPolicy) -> ColumnsConfig:
    """What the columns of the table meant that a policy was trained on."""
    found = find_columns(saved)
    if found is None:
        raise ConfigError("the policy was not trained on a table: give its observations as a .npy or .json file")
    return found


def find_columns(saved: SavedPolicy) -> ColumnsConfig | None:
    """The same; None where a policy was not trained on a table."""
    kwargs = saved.config.algo_kwargs
    with refusing_broken_state("what the policy knows of its table"):
        parts = [kwargs, *(kwargs.get("dataset_mix") or ())]
        found: list[Mapping[str, Any]] = [part["dataset_columns"] for part in parts if part.get("dataset_columns")]
        return ColumnsConfig(**found[0]) if found else None
