"""From the rows of a table to transitions: read piece by piece, put in order, with empty cells dealt with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.data.mapped_columns import chunks
from rl_training.data.tables.columns import ColumnsConfig, expand, unused_episode_columns
from rl_training.data.tables.empty_cells import EmptyCells, fill_forward
from rl_training.data.tables.expressions import Expression
from rl_training.data.tables.files import TableFiles
from rl_training.data.tables.in_memory import Places, Table
from rl_training.data.tables.staging import DiskStage, MemoryStage, Stage
from rl_training.data.tables.to_fields import fields_of, further_field, learn_categories, small
from rl_training.data.tables.to_rows import Indices, Order, end_flags, flag, flag_columns

FILLED = ("obs", "next_obs", "actions")
"""Fields in which a value may be carried forward; a reward is earned once."""


@dataclass(frozen=True)
class TableRows:
    """The fields of a table's transitions, and what became of its columns."""

    arrays: dict[str, NDArray[Any]]
    columns: ColumnsConfig
    """The mapping with names, categories and choices instead of patterns: as a policy needs it."""
    notes: tuple[str, ...]
    rows: Indices | None
    """Where each row stands in the table; None if they are all of its rows, in its order."""


def read_rows(
    source: TableFiles | Table,
    columns: ColumnsConfig,
    *,
    stage: DiskStage | None = None,
    rewards: NDArray[np.float64] | None = None,
) -> TableRows:
    """The transitions of a table, its rows in order inside episodes.

    With a `stage` on disk, files are read in pieces, and the arrays of the result are mapped from the stage. `rewards`
    are given by the caller, one per row of the table.
    """
    columns, names = expand(columns, source.names), source.names
    expression = None if columns.reward is None or columns.reward in names else Expression(columns.reward, names)
    rewarding = [] if columns.reward is None else [columns.reward] if expression is None else expression.columns
    used = list(dict.fromkeys([*columns.used(), *rewarding]))
    notes = [
        f"the table has a column {name!r}, which is not used; does it say which rows are an episode?"
        for name in unused_episode_columns(columns, names)
        if columns.episode is None
    ]
    if isinstance(source, TableFiles) and stage is None:
        source = source.read(used)
    elif isinstance(source, TableFiles):
        source.find_types(used)
    elif not len(source):
        raise DatasetError("the table has no rows")

    def pieces(some: Sequence[str]) -> Iterable[Table]:
        return [source] if isinstance(source, Table) else source.pieces(some)

    columns, about = learn_categories(columns, pieces)
    reader = _Reader(columns, expression, stage or MemoryStage())
    for table in pieces(used):
        reader.add(table)
    if rewards is not None:
        reader.set_rewards(rewards)
    arrays, rows, more = reader.finish()
    return TableRows(arrays, columns, (*notes, *about, *more), rows)


class _Reader:
    """The fields of a table, put together from its pieces."""

    def __init__(self, columns: ColumnsConfig, expression: Expression | None, stage: Stage) -> None:
        self.columns, self._expression, self._stage = columns, expression, stage
        self._order = Order(columns, stage)
        self._empty: dict[str, EmptyCells] = {}
        self._places = Places()

    def add(self, table: Table) -> None:
        """Take over the next rows of the table."""
        self._places, columns, stage = table.places, self.columns, self._stage
        rows = np.arange(self._order.rows, self._order.rows + len(table))
        has_empty = np.zeros(len(table), dtype=bool)
        for name, part in fields_of(table, columns, self._expression).items():
            has_empty |= self._empty.setdefault(name, EmptyCells(part.sources)).add(part.values, rows)
            stage.add(name, part.values)
        stage.add("has_empty", has_empty)
        for name, column in flag_columns(columns).items():
            stage.add(name, flag(table, column))
        for name in columns.fields:
            stage.add(name, further_field(table, name, columns))
        if columns.timestamp is not None:
            stage.add("timestamps", table.seconds(columns.timestamp))
        self._order.add(table)

    def set_rewards(self, rewards: NDArray[np.float64]) -> None:
        """Take rewards that the caller has computed."""
        values = small(rewards)
        if values.shape != (self._order.rows,) or not np.isfinite(values).all():
            got = "an infinite or missing number" if values.shape == (self._order.rows,) else f"shape {values.shape}"
            raise DatasetError(f"reward must give one finite number for each of {self._order.rows} rows, got {got}")
        self._empty["rewards"] = EmptyCells(["reward"])
        self._stage.add("rewards", values[:, None])

    def finish(self) -> tuple[dict[str, NDArray[Any]], Indices | None, list[str]]:
        """The fields in order, with empty cells dealt with as the mapping says; where they stand, None if in order.

        The last value are remarks.
        """
        stage, columns = self._stage, self.columns
        rows, episodes = self._order.found(self._places)
        flags = end_flags(stage, columns, self._places, rows, episodes)
        notes: list[str] = []
        if columns.missing == "drop_episode":
            kept, notes = self._without_empty(rows, episodes)
            flags = {name: values[kept] for name, values in flags.items()}
            rows = kept if rows is None else rows[kept]
        names = [*self._empty, *columns.fields, *(["timestamps"] if columns.timestamp is not None else [])]
        if rows is not None:
            for name in names:
                array = stage.get(name)
                stage.rewrite(name, (array[rows[part]] for part in chunks(len(rows))))
        if columns.missing == "forward_fill":
            notes = self._fill(rows, episodes)
        if columns.missing != "drop_episode":
            for cells in self._empty.values():
                cells.refuse(self._places, columns.missing)
        if columns.action_kind == "discrete":
            choices = stage.get("actions")
            stage.rewrite("actions", (choices[part, 0].astype(np.int64) for part in chunks(len(choices))))
        return {name: stage.get(name) for name in names} | flags, rows, notes

    def _without_empty(self, rows: Indices | None, episodes: Indices) -> tuple[Indices, list[str]]:
        """The rows of episodes in which no cell is empty, and a remark."""
        has_empty = self._stage.get("has_empty")
        bad = np.unique(episodes[has_empty if rows is None else has_empty[rows]])
        kept = np.flatnonzero(~np.isin(episodes, bad))
        if not len(kept):
            raise DatasetError("missing: drop_episode leaves nothing: every episode has empty cells")
        return kept, [f"dropped {len(bad)} episodes with empty cells"] if len(bad) else []

    def _fill(self, rows: Indices | None, episodes: Indices) -> list[str]:
        """Carry values forward into empty cells, count again those that are left, and make a remark."""
        filled = sum(fill_forward(self._stage.get(name), episodes) for name in FILLED if name in self._empty)
        for name, before in self._empty.items():
            values, cells = self._stage.get(name), EmptyCells(before.sources)
            for part in chunks(len(values)):
                cells.add(values[part], np.arange(part.start, part.stop) if rows is None else rows[part])
            self._empty[name] = cells
        return [f"filled {filled} empty cells with the value before them"] if filled else []
