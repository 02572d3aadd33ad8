"""From the columns of a piece of a table to fields: numbers, categories, discrete actions, rewards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.core.text import first_of
from rl_training.data.mapped_columns import chunks
from rl_training.data.tables.columns import ColumnsConfig, Expression, natural
from rl_training.data.tables.files import TableFiles
from rl_training.data.tables.in_memory import Places, Table

MOST_ACTIONS = 10_000
"""Integers beyond this are taken for names of discrete actions, not for their numbers."""


@dataclass
class Part:
    """The columns of one field: a row per row of the table, NaN where a cell is empty."""

    values: NDArray[Any]
    sources: list[str] = field(default_factory=list)
    """The column of the table that each column here comes from."""


def read_observations(source: TableFiles | Table, columns: ColumnsConfig) -> NDArray[Any]:
    """The observations of a table for a policy that was trained on such tables, in the table's order.

    They begin with the action masks, if the policy was trained with masks.
    """
    needed = [*columns.valid_actions, *columns.obs]
    missing = [name for name in needed if name not in source.names]
    if missing:
        shown = first_of([*map(repr, missing)], 10)
        word = "columns" if len(missing) > 1 else "column"
        raise DatasetError(f"the policy observes {len(needed)} columns; the table lacks the {word} {shown}")
    table = source.read(needed) if isinstance(source, TableFiles) else source
    features, masks = _features(table, columns.obs, columns), _masks(table, columns.valid_actions)
    part = Part(np.concatenate([masks.values, features.values], axis=1), masks.sources + features.sources)
    cells = EmptyCells(part.sources)
    cells.add(part.values, np.arange(len(table)))
    cells.refuse(table.places)
    return part.values


def feature_names(names: Sequence[str], columns: ColumnsConfig) -> list[str]:
    """A name for every number of an observation; a category has its own, such as `mode=auto`."""
    found = [[f"{name}={each}" for each in columns.categories.get(name, ())] or [name] for name in names]
    return [name for group in found for name in group]


def learn_columns(
    columns: ColumnsConfig, pieces: Callable[[Sequence[str]], Iterable[Table]]
) -> tuple[ColumnsConfig, list[str]]:
    """The mapping with what it leaves to the table: categories, discrete actions, the kind of actions; and remarks.

    `pieces` gives some of the table's columns, piece by piece.
    """
    notes = []
    action, kind = columns.actions[0], next(iter(pieces(columns.actions))).kind(columns.actions[0])
    if columns.action_kind is None:
        is_discrete = kind in ("text", "boolean", "integer") and len(columns.actions) == 1
        columns = replace(columns, action_kind="discrete" if columns.choices or is_discrete else "continuous")
        if is_discrete and kind == "integer" and not columns.choices:
            hint = "set dataset_columns.action_kind: continuous for quantities"
            notes.append(f"{action!r} holds integers, so actions are discrete; {hint}")
    if columns.action_kind == "discrete" and len(columns.actions) > 1:
        names = ", ".join(columns.actions)
        raise DatasetError(f"actions: discrete actions are one column, got {len(columns.actions)}: {names}")
    has_names = columns.action_kind == "discrete" and not columns.choices and kind in ("text", "boolean")
    unknown = [name for name, known in columns.categories.items() if not known] + ([action] if has_names else [])
    found: dict[str, set[str]] = {name: set() for name in unknown}
    for table in pieces(unknown) if unknown else ():
        for name in unknown:
            found[name].update(table.distinct(name))
    learned = {name: tuple(sorted(texts, key=natural)) for name, texts in found.items()}
    stated = bool(columns.choices)
    if has_names:
        columns = replace(columns, choices=learned[action])
    if columns.valid_actions:
        columns = replace(columns, valid_actions=_ordered_masks(columns.valid_actions, columns, stated=stated))
    if "next_valid_actions" in columns.fields:
        after = _ordered_masks(columns.fields["next_valid_actions"], columns, stated=stated)
        columns = replace(columns, fields={**columns.fields, "next_valid_actions": after})
    if columns.categories:
        one_hot = {name: known or learned[name] for name, known in columns.categories.items()}
        columns = replace(columns, one_hot=one_hot)
    return columns, notes


def _ordered_masks(masks: tuple[str, ...], columns: ColumnsConfig, *, stated: bool) -> tuple[str, ...]:
    """The mask columns in the order of the actions: by name where each ends in the name of an action, else as listed.

    Actions that were found in the table have no order of their own, so names must say which mask is whose. Where some
    names do and others do not, one of them is misspelt.
    """
    actions = columns.choices
    if columns.action_kind != "discrete":
        raise DatasetError("valid_actions are masks of discrete actions, and the actions are continuous")
    if not actions:
        return masks
    owners = {action: [mask for mask in masks if mask.casefold().endswith(action.casefold())] for action in actions}
    by_name = tuple(found[0] for found in owners.values() if len(found) == 1)
    if len(masks) == len(actions) == len(set(by_name)):
        return by_name
    shown = ", ".join(actions[:10]) + (", ..." if len(actions) > 10 else "")
    if stated and len(masks) == len(actions):
        if not any(owners.values()):
            return masks
        action = next(action for action, found in owners.items() if len(found) != 1)
        wrong = f"no single column of valid_actions ({', '.join(masks[:10])}) ends in the name of the action {action!r}"
        raise DatasetError(f"{wrong}, though some end in those of others ({shown}): spell both alike")
    hint = "list all actions in dataset_columns.choices, and the columns of valid_actions in the same order"
    wrong = f"valid_actions are {len(masks)} columns, and there are {len(actions)} actions ({shown})"
    raise DatasetError(f"{wrong}: {hint}")


def fields_of(table: Table, columns: ColumnsConfig, expression: Expression | None) -> dict[str, Part]:
    """The fields in the rows of a table; an `expression` computes the reward, which else is a column."""
    parts = {"obs": _features(table, columns.obs, columns)}
    if columns.next_obs:
        renamed = dict(zip(columns.next_obs, columns.obs, strict=True))
        parts["next_obs"] = _features(table, columns.next_obs, columns, renamed)
    parts["actions"] = _actions(table, columns)
    if expression is not None:
        parts["rewards"] = _computed(table, expression)
    elif columns.reward is not None:
        parts["rewards"] = _numbers(table, [columns.reward])
    probabilities = {"propensities": columns.propensity, "behavior_log_probs": columns.behavior_log_prob}
    parts |= {field: _numbers(table, [name]) for field, name in probabilities.items() if name is not None}
    if columns.valid_actions:
        parts["valid_actions"] = _masks(table, columns.valid_actions)
    for name, part in parts.items():
        # The logarithm of a probability of 0 is infinite.
        if name != "behavior_log_probs":
            _refuse_infinite(table, part)
    return parts


def further_field(table: Table, name: str, columns: ColumnsConfig) -> NDArray[Any]:
    """A field that the mapping names under `fields`."""
    numbers = np.stack([table.numbers(column) for column in columns.fields[name]], axis=1)
    if name == "timestamps":
        return numbers
    if name == "next_actions" and columns.action_kind == "discrete":
        return numbers.astype(np.int64)
    return small(numbers)


def _computed(table: Table, expression: Expression) -> Part:
    cells = {name: table.numbers(name) for name in expression.columns}
    values = expression(cells, len(table))
    empty = np.any([np.zeros(len(table), bool), *map(np.isnan, cells.values())], axis=0)
    wrong = np.flatnonzero(~np.isfinite(values) & ~empty)
    if len(wrong):
        place = table.place(int(wrong[0]))
        raise DatasetError(f"reward: {expression.text!r} is {values[wrong[0]]} in {place}, which is no finite number")
    return Part(small(values[:, None]), [expression.text])


def _numbers(table: Table, names: Sequence[str], hint: str = "") -> Part:
    values = np.empty((len(table), len(names)), dtype=np.float32)
    for k, name in enumerate(names):
        values[:, k] = small(table.numbers(name, hint))
    return Part(values, list(names))


def _masks(table: Table, names: Sequence[str]) -> Part:
    """Action masks with a valid action in every row; empty cells are left to the mapping."""
    part = _numbers(table, names)
    odd = np.argwhere((part.values != 0) & (part.values != 1) & ~np.isnan(part.values))
    if len(odd):
        row, column = odd[0].tolist()
        place = f"column {names[column]!r} in {table.place(row)}"
        raise DatasetError(f"valid_actions must be 0 or 1, got {part.values[row, column]:g}: {place}")
    none = np.flatnonzero(names and (part.values == 0).all(axis=1))
    if len(none):
        rows = f"{len(none)} rows, the first is {table.place(int(none[0]))}"
        raise DatasetError(f"valid_actions mark no action as valid in {rows}: one must be 1")
    return part


def small(values: NDArray[np.float64]) -> NDArray[np.float32]:
    """Single precision; a finite number that does not fit becomes infinite, which is refused."""
    with np.errstate(over="ignore"):
        return values.astype(np.float32)


def _features(
    table: Table, names: Sequence[str], columns: ColumnsConfig, renamed: dict[str, str] | None = None
) -> Part:
    """Observations; `renamed` says which column of the observation each one stands for."""
    blocks, sources = [], []
    for name in names:
        known = columns.categories.get((renamed or {}).get(name, name))
        if known is None:
            hint = "; name the column in one_hot to see it as categories, or leave it out"
            block = small(table.numbers(name, hint))[:, None]
        else:
            codes = _codes(table, name, known, "category")
            block = (codes[:, None] == np.arange(len(known))).astype(np.float32)
            block[np.isnan(codes)] = np.nan
        blocks.append(block)
        sources += [name] * block.shape[1]
    return Part(np.concatenate(blocks, axis=1), sources)


def _codes(table: Table, name: str, known: Sequence[str], what: str) -> NDArray[np.float64]:
    """The number of each text among those known, NaN where a cell is empty."""
    numbers = {text: float(k) for k, text in enumerate(known)} | {None: np.nan}
    texts = table.texts(name)
    for row, text in enumerate(texts):
        if text not in numbers:
            shown = ", ".join(map(repr, known[:10])) + (", ..." if len(known) > 10 else "")
            wrong = f"column {name!r} has the {what} {text!r} in {table.place(row)}"
            raise DatasetError(f"{wrong}, which is not known; there are {shown}")
    return np.array([numbers[text] for text in texts], dtype=np.float64)


def _actions(table: Table, columns: ColumnsConfig) -> Part:
    name = columns.actions[0]
    if columns.action_kind != "discrete":
        return _numbers(table, columns.actions, "; text is a discrete action, and such actions are one column")
    if columns.choices:
        return Part(_codes(table, name, columns.choices, "action")[:, None], [name])
    numbers = table.numbers(name)
    wrong = np.flatnonzero((numbers < 0) | (numbers != np.round(numbers)) & ~np.isnan(numbers))
    if len(wrong):
        got = f"got {numbers[wrong[0]]:g} in {table.place(int(wrong[0]))}"
        raise DatasetError(f"column {name!r} must hold discrete actions, which are integers from 0 on, {got}")
    if len(numbers) and np.nanmax(numbers, initial=0) >= MOST_ACTIONS:
        hint = "list them in choices, or set action_kind: continuous if they are quantities"
        raise DatasetError(f"column {name!r} has actions up to {np.nanmax(numbers):g}, too many to number; {hint}")
    return Part(numbers[:, None], [name])


def _refuse_infinite(table: Table, part: Part) -> None:
    infinite = np.isinf(part.values)
    if infinite.any():
        row, k = np.argwhere(infinite)[0]
        wrong = f"column {part.sources[k]!r} is {part.values[row, k]} in {table.place(int(row))}"
        raise DatasetError(f"{wrong}, expected finite numbers that fit into float32")


_HINTS = {
    "error": "; set missing: drop_episode or missing: forward_fill",
    "forward_fill": "; forward_fill needs a value before it in the episode, and leaves rewards alone",
}


class EmptyCells:
    """The empty cells of one field, whose columns come from the columns `sources` of a table."""

    def __init__(self, sources: Sequence[str] | NDArray[np.str_]) -> None:
        self.sources = np.array(sources)
        self.count = 0
        self._first: tuple[int, str] | None = None

    def add(self, values: NDArray[Any], rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Count those among some values, NaN where a cell is empty; true where one of a row is.

        `rows` are the numbers of these rows in the table.
        """
        empty = np.isnan(values)
        is_concerned: NDArray[np.bool_] = empty.any(axis=1)
        if is_concerned.any():
            names = list(dict.fromkeys(self.sources.tolist()))
            # A category has several columns here, but one cell in the table.
            cells = np.stack([empty[:, self.sources == name].any(axis=1) for name in names], axis=1)
            self.count += int(cells.sum())
            concerned = np.flatnonzero(is_concerned)
            first = concerned[rows[concerned].argmin()]
            place = int(rows[first]), names[int(cells[first].argmax())]
            self._first = place if self._first is None else min(self._first, place)
        return is_concerned

    def refuse(self, places: Places, missing: str = "") -> None:
        """Raise an error that names the first one, if there is one."""
        if self._first is not None:
            row, name = self._first
            cells = f"{self.count} cell{'s are' if self.count > 1 else ' is'} empty"
            hint = _HINTS.get(missing, "")
            raise DatasetError(f"{cells}: the first is column {name!r} in {places.text(row)}{hint}")


def fill_forward(values: NDArray[Any], episodes: NDArray[np.int64]) -> int:
    """Put into each empty cell the last value before it in its episode; how many were filled."""
    filled = 0
    last, last_episode = np.full(values.shape[1], np.nan, values.dtype), -1
    for part in chunks(len(values)):
        # The row before comes first, so that a value is carried from piece to piece.
        block = np.concatenate([last[None], values[part]])
        numbers = np.concatenate([[last_episode], episodes[part]])
        empty = np.isnan(block)
        for k in np.flatnonzero(empty.any(axis=0)):
            source = np.maximum.accumulate(np.where(empty[:, k], 0, np.arange(len(block))))
            found = empty[:, k] & ~empty[source, k] & (numbers[source] == numbers)
            block[found, k] = block[source[found], k]
            filled += int(found.sum())
        values[part] = block[1:]
        last, last_episode = block[-1], int(numbers[-1])
    return filled
