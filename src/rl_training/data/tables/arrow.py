"""Datasets from tables, and tables from datasets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.data.fields import naming
from rl_training.data.mapped_columns import chunks
from rl_training.data.offline_dataset import TransitionDataset, further_fields
from rl_training.data.tables.columns import FURTHER, AnyColumns, ColumnsConfig, RewardOf
from rl_training.data.tables.files import DiskStage, TableFiles
from rl_training.data.tables.in_memory import Table, TableKind, make_table, stored_mapping
from rl_training.data.tables.to_fields import feature_names
from rl_training.data.tables.to_rows import TableRows, read_rows

WHAT_COLUMNS = "which columns are obs, actions, reward and episode? See the guide on tables"


def read_table(path: str, kind: TableKind, columns: ColumnsConfig | None) -> TransitionDataset:
    """The dataset in a file, a folder of shards, or the files that match a pattern."""
    return _dataset(table_rows(path, kind, columns))


def table_rows(path: str, kind: TableKind, columns: ColumnsConfig | None, stage: DiskStage | None = None) -> TableRows:
    """The fields in such files; with a `stage`, they are read in pieces and kept there."""
    with naming(path):
        files = TableFiles(path, kind)
        return read_rows(files, _mapping(columns, files.mapping), stage=stage)


def dataset_from_table(frame: Any, columns: AnyColumns, reward: RewardOf | None = None) -> TransitionDataset:
    """The dataset in a table that is in memory; `reward` computes the reward of every row from the table."""
    table = Table.of(frame)
    given = ColumnsConfig(**columns) if isinstance(columns, Mapping) else columns
    mapping = _mapping(given, stored_mapping(table.arrow.schema))
    if reward is None:
        return _dataset(read_rows(table, mapping))
    if mapping.reward is not None:
        raise ConfigError(f"the reward is given twice: by the column {mapping.reward!r} and by a function")
    return _dataset(read_rows(table, mapping, rewards=_computed(reward, frame)))


def _computed(reward: RewardOf, frame: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(reward(frame), dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DatasetError(f"reward must give one number per row of the table ({error})") from None


def _mapping(given: ColumnsConfig | None, stored: Mapping[str, Any] | None) -> ColumnsConfig:
    if given is not None:
        return given
    if stored is None:
        raise ConfigError(f"the table does not say what its columns mean: set dataset_columns: {WHAT_COLUMNS}")
    return ColumnsConfig(**stored)


def _dataset(rows: TableRows) -> TransitionDataset:
    dataset = TransitionDataset.from_dict(rows.arrays, copy=False)
    numbers = np.arange(len(rows.arrays["obs"])) if rows.rows is None else rows.rows
    origin = replace(dataset.origin, row_numbers=numbers + 1)
    return replace(dataset, columns=rows.columns, origin=origin).with_notes(*rows.notes)


def dataset_to_arrow(dataset: TransitionDataset) -> Any:
    """One row per transition, with what the columns mean, so that `from_table` needs no mapping."""
    columns, mapping = _table_columns(dataset)
    return make_table({name: value() for name, value in columns.items()}, mapping)


def arrow_pieces(dataset: TransitionDataset) -> Iterator[Any]:
    """The same table, a piece at a time."""
    columns, mapping = _table_columns(dataset)
    for part in chunks(len(dataset)):
        yield make_table({name: value(part) for name, value in columns.items()}, mapping)


class _Column:
    """A column of the table that a dataset becomes: one column of a field, or names for its numbers."""

    def __init__(self, values: NDArray[Any], number: int | None = None, names: NDArray[Any] | None = None) -> None:
        self._values, self._number, self._names = values, number, names

    def __call__(self, part: slice = slice(None)) -> NDArray[Any]:
        """Some of its rows."""
        rows = self._values[part] if self._number is None else self._values[part, self._number]
        return rows if self._names is None else self._names[rows]


def _table_columns(dataset: TransitionDataset) -> tuple[dict[str, _Column], dict[str, Any]]:
    """The columns of a dataset by their names, and the mapping that says what they mean."""
    known, fields = dataset.columns, {name: value.numpy(force=True) for name, value in dataset.fields.items()}
    obs = feature_names(known.obs, known) if known is not None else _numbered("obs", fields["obs"])
    named = np.array(known.choices) if known is not None and known.choices else None
    actions = list(known.actions) if known is not None else _numbered("action", fields["actions"])
    names = {"obs": obs, "actions": actions, "next_obs": [f"next_{name}" for name in obs]}
    columns: dict[str, _Column] = {}
    mapping: dict[str, Any] = {**names, "fields": {}, **{role: role for role in ("episode", "terminated", "truncated")}}
    mapping["action_kind"] = "discrete" if dataset.is_discrete else "continuous"
    for role, several in names.items():
        columns |= _columns(several, fields[role], named if role == "actions" else None)
    if named is not None:
        mapping["choices"] = named.tolist()
    columns["terminated"] = _Column(fields["dones"] != 0)
    columns["truncated"] = _Column(dataset.truncations.numpy(force=True))
    # Not a probability, which would lose digits and, if it is tiny, everything.
    for role, field in {"reward": "rewards", "behavior_log_prob": "behavior_log_probs"}.items():
        if field in fields and (field != "rewards" or dataset.has_rewards):
            columns[role], mapping[role] = _Column(fields[field]), role
    if "valid_actions" in fields:
        masks = [] if known is None else list(known.valid_actions)
        mapping["valid_actions"] = masks or _numbered("valid_action", fields["valid_actions"])
        columns |= _columns(mapping["valid_actions"], fields["valid_actions"])
    for field, values in further_fields(dataset).items():
        if field in FURTHER:
            mapping["fields"][field] = _numbered(field, values)
            columns |= _columns(mapping["fields"][field], values)
    if len(set().union(*names.values())) != sum(map(len, names.values())):
        raise DatasetError("two columns of the table would have the same name")
    # Also refuses rows whose order in their episodes is lost.
    columns["episode"] = _Column(_episode_numbers(dataset))
    return columns, mapping


def _columns(names: list[str], values: NDArray[Any], texts: NDArray[Any] | None = None) -> dict[str, _Column]:
    if values.ndim == 1:
        return {names[0]: _Column(values, None, texts)}
    return {name: _Column(values, number) for number, name in enumerate(names)}


def _numbered(name: str, values: NDArray[Any]) -> list[str]:
    return [name] if values.ndim == 1 else [f"{name}_{k}" for k in range(values.shape[1])]


def _episode_numbers(dataset: TransitionDataset) -> NDArray[np.int64]:
    lengths = np.diff(dataset.episode_bounds().numpy(force=True)).ravel()
    return np.repeat(np.arange(len(lengths)), lengths)
