"""Datasets from tables, and tables from datasets."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ColumnsConfig
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.table_rows import TableRows, feature_names, read_rows
from rl_training.data.tables import Table, TableFiles, TableKind, make_table, stored_mapping
from rl_training.types import ConfigError, DatasetError

WHAT_COLUMNS = "which columns are obs, actions, reward and episode? See the guide on tables"


def read_table(path: str, kind: TableKind, columns: ColumnsConfig | None) -> TransitionDataset:
    """The dataset in a file, a folder of shards, or the files that match a pattern."""
    try:
        files = TableFiles(path, kind)
        return _dataset(read_rows(files, _mapping(columns, files.mapping)))
    except DatasetError as error:
        raise error if path in str(error) else DatasetError(f"{path}: {error}") from None


def dataset_from_table(frame: Any, columns: ColumnsConfig | Mapping[str, Any] | None) -> TransitionDataset:
    """The dataset in a table that is in memory."""
    table = Table.of(frame)
    given = ColumnsConfig(**columns) if isinstance(columns, Mapping) else columns
    return _dataset(read_rows(table, _mapping(given, stored_mapping(table.arrow.schema))))


def _mapping(given: ColumnsConfig | None, stored: Mapping[str, Any] | None) -> ColumnsConfig:
    if given is not None:
        return given
    if stored is None:
        raise ConfigError(f"the table does not say what its columns mean: set dataset_columns: {WHAT_COLUMNS}")
    return ColumnsConfig(**stored)


def _dataset(rows: TableRows) -> TransitionDataset:
    dataset = TransitionDataset.from_dict(rows.arrays, copy=False)
    return replace(dataset, columns=rows.columns).with_notes(*rows.notes)


def dataset_to_arrow(dataset: TransitionDataset) -> Any:
    """One row per transition, with what the columns mean, so that `from_table` needs no mapping."""
    known, fields = dataset.columns, {name: value.numpy(force=True) for name, value in dataset.fields.items()}
    obs = feature_names(known.obs, known) if known is not None else _numbered("obs", fields["obs"])
    names = {"obs": obs, "next_obs": [f"next_{name}" for name in obs]}
    actions = fields["actions"]
    if known is not None:
        names["actions"] = list(known.actions)
    else:
        names["actions"] = ["action"] if dataset.is_discrete else _numbered("action", actions)
    choices = () if known is None else known.choices
    columns: dict[str, NDArray[Any]] = {}
    for role in ("obs", "actions", "next_obs"):
        values = np.array(choices)[actions] if role == "actions" and choices else fields[role]
        columns |= dict(zip(names[role], values.reshape(len(dataset), -1).T, strict=True))
    mapping: dict[str, Any] = {
        **names,
        "episode": "episode",
        "action_kind": "discrete" if dataset.is_discrete else "continuous",
    }
    if dataset.has_rewards:
        columns["reward"], mapping["reward"] = fields["rewards"], "reward"
    for name, flags in (("terminated", fields["dones"] != 0), ("truncated", dataset.truncations.numpy(force=True))):
        columns[name], mapping[name] = flags, name
    if "propensities" in fields:
        columns["propensity"], mapping["propensity"] = fields["propensities"], "propensity"
    if "valid_actions" in fields:
        mapping["valid_actions"] = _numbered("valid_action", fields["valid_actions"])
        columns |= dict(zip(mapping["valid_actions"], fields["valid_actions"].T, strict=True))
    if choices:
        mapping["choices"] = list(choices)
    count = sum(len(mapping[role]) for role in ("obs", "actions", "next_obs"))
    if len(set().union(*names.values())) != count:
        raise DatasetError("two columns of the table would have the same name")
    # Also refuses rows of which nobody knows any more which follow each other.
    columns["episode"] = _episode_numbers(dataset)
    return make_table(columns, mapping)


def _numbered(name: str, values: NDArray[Any]) -> list[str]:
    return [f"{name}_{k}" for k in range(values.shape[1])]


def _episode_numbers(dataset: TransitionDataset) -> NDArray[np.int64]:
    lengths = np.diff(dataset.episode_bounds().numpy(force=True)).ravel()
    return np.repeat(np.arange(len(lengths)), lengths)
