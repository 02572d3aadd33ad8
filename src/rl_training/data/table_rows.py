"""From the columns of a table to transitions: numbers, categories, choices, rewards, empty cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ColumnsConfig, expand, natural, unused_episode_columns
from rl_training.data.expressions import Expression
from rl_training.data.table_order import end_flags, ordered_rows
from rl_training.data.tables import Table, TableFiles
from rl_training.types import DatasetError

MOST_CHOICES = 10_000
"""Integers beyond this are taken for names of choices, not for their numbers."""


@dataclass(frozen=True)
class TableRows:
    """The fields of a table's transitions, and what became of its columns."""

    arrays: dict[str, NDArray[Any]]
    columns: ColumnsConfig
    """The mapping with names, categories and choices instead of patterns: as a policy needs it."""
    notes: tuple[str, ...]


@dataclass
class _Part:
    """Columns of one field as they are read: a row per row of the table, NaN where a cell is empty."""

    values: NDArray[Any]
    sources: list[str] = field(default_factory=list)
    """The column of the table that each column here comes from."""


def read_rows(source: TableFiles | Table, columns: ColumnsConfig) -> TableRows:
    """The transitions of a table, its rows in order inside episodes."""
    columns, names = expand(columns, source.names), source.names
    reward = None if columns.reward is None or columns.reward in names else Expression(columns.reward, names)
    rewarding = [] if columns.reward is None else reward.columns if reward is not None else [columns.reward]
    used = list(dict.fromkeys([*columns.used(), *rewarding]))
    table = source.read(used) if isinstance(source, TableFiles) else source
    if not len(table):
        raise DatasetError("the table has no rows")
    notes = [
        f"the table has a column {name!r}, which is not used; does it say which rows are an episode?"
        for name in unused_episode_columns(columns, names)
        if columns.episode is None
    ]
    columns, parts, about = _parts(table, columns, reward)
    notes += about
    rows, episodes = ordered_rows(table, columns)
    ends = np.append(episodes[1:] != episodes[:-1], True)
    flags = end_flags(table, columns, rows, ends)
    for part in parts.values():
        part.values = part.values[rows]
    kept, about = _fill(table, columns, parts, rows, episodes)
    notes += about
    arrays = {name: part.values[kept] for name, part in parts.items()} | {
        name: flag[kept] for name, flag in flags.items()
    }
    if _is_discrete(table, columns):
        arrays["actions"] = arrays["actions"][:, 0].astype(np.int64)
    arrays.setdefault("rewards", np.zeros((len(arrays["obs"]), 1), dtype=np.float32))
    return TableRows(arrays, columns, tuple(notes))


def read_observations(source: TableFiles | Table, columns: ColumnsConfig) -> NDArray[np.float32]:
    """The observations of a table for a policy that was trained on such tables, in the table's order."""
    missing = [name for name in columns.obs if name not in source.names]
    if missing:
        shown = ", ".join(map(repr, missing[:10])) + (f" and {len(missing) - 10} more" if len(missing) > 10 else "")
        word = "columns" if len(missing) > 1 else "column"
        raise DatasetError(f"the policy observes {len(columns.obs)} columns; the table lacks the {word} {shown}")
    table = source.read(columns.obs) if isinstance(source, TableFiles) else source
    part, _ = _features(table, columns.obs, columns)
    _refuse_missing(table, part, np.arange(len(table)), "")
    values: NDArray[np.float32] = part.values
    return values


def feature_names(names: Sequence[str], columns: ColumnsConfig) -> list[str]:
    """A name for every number of an observation; a category has its own, such as `mode=auto`."""
    found = [[f"{name}={each}" for each in columns.categories.get(name, ())] or [name] for name in names]
    return [name for group in found for name in group]


def _parts(
    table: Table, columns: ColumnsConfig, reward: Expression | None
) -> tuple[ColumnsConfig, dict[str, _Part], list[str]]:
    obs, categories = _features(table, columns.obs, columns)
    if categories:
        columns = replace(columns, one_hot=categories)
    parts = {"obs": obs}
    if columns.next_obs:
        renamed = dict(zip(columns.next_obs, columns.obs, strict=True))
        parts["next_obs"] = _features(table, columns.next_obs, columns, renamed)[0]
    parts["actions"], columns, notes = _actions(table, columns)
    if reward is not None:
        values = reward({name: table.numbers(name) for name in reward.columns}, len(table))
        empty = np.any(
            [np.isnan(table.numbers(name)) for name in reward.columns] or [np.zeros(len(table), bool)], axis=0
        )
        wrong = np.flatnonzero(~np.isfinite(values) & ~empty)
        if len(wrong):
            place = table.place(int(wrong[0]))
            raise DatasetError(f"reward: {reward.text!r} is {values[wrong[0]]} in {place}, which is no finite number")
        parts["rewards"] = _Part(_small(values[:, None]), [str(columns.reward)])
    elif columns.reward is not None:
        parts["rewards"] = _numbers(table, [columns.reward])
    if columns.propensity is not None:
        parts["propensities"] = _numbers(table, [columns.propensity])
    if columns.valid_actions:
        parts["valid_actions"] = _numbers(table, columns.valid_actions)
    for part in parts.values():
        _refuse_infinite(table, part)
    return columns, parts, notes


def _numbers(table: Table, names: Sequence[str], hint: str = "") -> _Part:
    values = np.empty((len(table), len(names)), dtype=np.float32)
    for k, name in enumerate(names):
        values[:, k] = _small(table.numbers(name, hint))
    return _Part(values, list(names))


def _small(values: NDArray[np.float64]) -> NDArray[np.float32]:
    # A finite number that does not fit into float32 becomes infinite, which is refused.
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _features(
    table: Table, names: Sequence[str], columns: ColumnsConfig, renamed: dict[str, str] | None = None
) -> tuple[_Part, dict[str, tuple[str, ...]]]:
    """Observations, and the categories of those columns that are seen as such.

    `renamed` says which column of the observation each one stands for.
    """
    categories: dict[str, tuple[str, ...]] = {}
    blocks, sources = [], []
    for name in names:
        known = columns.categories.get((renamed or {}).get(name, name))
        if known is None:
            hint = "; name the column in one_hot to see it as categories, or leave it out"
            block = _small(table.numbers(name, hint))[:, None]
        else:
            texts = table.texts(name)
            categories[name] = known or _distinct(texts)
            codes = _codes(table, name, texts, categories[name], "category")
            block = (codes[:, None] == np.arange(len(categories[name]))).astype(np.float32)
            block[np.isnan(codes)] = np.nan
        blocks.append(block)
        sources += [name] * block.shape[1]
    return _Part(np.concatenate(blocks, axis=1), sources), categories


def _distinct(texts: NDArray[Any]) -> tuple[str, ...]:
    return tuple(sorted({text for text in texts if text is not None}, key=natural))


def _codes(table: Table, name: str, texts: NDArray[Any], known: Sequence[str], what: str) -> NDArray[np.float64]:
    """The number of each text among those known, NaN where a cell is empty."""
    numbers = {text: float(k) for k, text in enumerate(known)} | {None: np.nan}
    for row, text in enumerate(texts):
        if text not in numbers:
            shown = ", ".join(map(repr, known[:10])) + (", ..." if len(known) > 10 else "")
            wrong = f"column {name!r} has the {what} {text!r} in {table.place(row)}"
            raise DatasetError(f"{wrong}, which is not known; there are {shown}")
    return np.array([numbers[text] for text in texts], dtype=np.float64)


def _is_discrete(table: Table, columns: ColumnsConfig) -> bool:
    if columns.action_kind is not None:
        return columns.action_kind == "discrete"
    kinds = ("text", "boolean", "integer")
    return bool(columns.choices) or (len(columns.actions) == 1 and table.kind(columns.actions[0]) in kinds)


def _actions(table: Table, columns: ColumnsConfig) -> tuple[_Part, ColumnsConfig, list[str]]:
    if not _is_discrete(table, columns):
        hint = "; text is a choice, and choices are one column"
        return _numbers(table, columns.actions, hint), columns, []
    if len(columns.actions) > 1:
        raise DatasetError(f"actions: choices are one column, got {len(columns.actions)}: {', '.join(columns.actions)}")
    name = columns.actions[0]
    if columns.choices or table.kind(name) in ("text", "boolean"):
        texts = table.texts(name)
        columns = replace(columns, choices=columns.choices or _distinct(texts))
        codes = _codes(table, name, texts, columns.choices, "choice")
        return _Part(codes[:, None], [name]), columns, []
    numbers = table.numbers(name)
    wrong = np.flatnonzero((numbers < 0) | (numbers != np.round(numbers)) & ~np.isnan(numbers))
    if len(wrong):
        got = f"got {numbers[wrong[0]]:g} in {table.place(int(wrong[0]))}"
        raise DatasetError(f"column {name!r} must hold choices, which are integers from 0 on, {got}")
    if len(numbers) and np.nanmax(numbers, initial=0) >= MOST_CHOICES:
        hint = "list them in choices, or set action_kind: continuous if they are quantities"
        raise DatasetError(f"column {name!r} has choices up to {np.nanmax(numbers):g}, too many to number; {hint}")
    note = (
        f"{name!r} holds integers, so actions are choices; set dataset_columns.action_kind: continuous for quantities"
    )
    return _Part(numbers[:, None], [name]), columns, [note] if columns.action_kind is None else []


def _fill(
    table: Table,
    columns: ColumnsConfig,
    parts: dict[str, _Part],
    rows: NDArray[np.int64],
    episodes: NDArray[np.int64],
) -> tuple[NDArray[np.bool_], list[str]]:
    """Deal with empty cells as the mapping says: the rows that are kept, and remarks."""
    kept, notes = np.ones(len(rows), dtype=bool), []
    if columns.missing == "forward_fill":
        filled = sum(_fill_forward(parts[name], episodes) for name in ("obs", "next_obs", "actions") if name in parts)
        notes += [f"filled {filled} empty cells with the value before them"] if filled else []
    if columns.missing == "drop_episode":
        bad = np.unique(episodes[np.any([np.isnan(part.values).any(axis=1) for part in parts.values()], axis=0)])
        kept = ~np.isin(episodes, bad)
        if not kept.any():
            raise DatasetError("missing: drop_episode leaves nothing: every episode has empty cells")
        notes += [f"dropped {len(bad)} episodes with empty cells"] if len(bad) else []
        return kept, notes
    hints = {
        "error": "; set missing: drop_episode or missing: forward_fill",
        "forward_fill": "; forward_fill needs a value before it in the episode, and leaves rewards alone",
    }
    for part in parts.values():
        _refuse_missing(table, part, rows, hints[columns.missing])
    return kept, notes


def _fill_forward(part: _Part, episodes: NDArray[np.int64]) -> int:
    """Put into each empty cell the last value before it in its episode; returns how many were filled."""
    empty = np.isnan(part.values)
    for k in np.flatnonzero(empty.any(axis=0)):
        last = np.maximum.accumulate(np.where(empty[:, k], -1, np.arange(len(empty))))
        found = empty[:, k] & (last >= 0) & (episodes[np.maximum(last, 0)] == episodes)
        part.values[found, k] = part.values[last[found], k]
    return int(empty.sum() - np.isnan(part.values).sum())


def _refuse_missing(table: Table, part: _Part, rows: NDArray[np.int64], hint: str) -> None:
    empty = np.isnan(part.values)
    if empty.any():
        row, k = min((int(rows[row]), int(k)) for row, k in np.argwhere(empty))
        count = len({(int(r), part.sources[int(k)]) for r, k in np.argwhere(empty)})
        first = f"the first is column {part.sources[k]!r} in {table.place(row)}"
        raise DatasetError(f"{count} cell{'s are' if count > 1 else ' is'} empty: {first}{hint}")


def _refuse_infinite(table: Table, part: _Part) -> None:
    infinite = np.isinf(part.values)
    if infinite.any():
        row, k = np.argwhere(infinite)[0]
        wrong = f"column {part.sources[k]!r} is {part.values[row, k]} in {table.place(int(row))}"
        raise DatasetError(f"{wrong}, expected finite numbers that fit into float32")
