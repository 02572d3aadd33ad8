"""Episodes of a table: their rows, the order of these, and how they end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.data.mapped_columns import chunks
from rl_training.data.tables.columns import ColumnsConfig, Expression, expand, unused_episode_columns
from rl_training.data.tables.files import DiskStage, MemoryStage, Stage, TableFiles
from rl_training.data.tables.in_memory import Places, Table
from rl_training.data.tables.to_fields import EmptyCells, fields_of, fill_forward, further_field, learn_columns, small

Indices = NDArray[np.int64]


class Order:
    """The order of a table's rows, found from its pieces; episodes stand in the order of their first rows."""

    def __init__(self, columns: ColumnsConfig, stage: Stage) -> None:
        self.columns, self._stage = columns, stage
        self.is_as_in_table = True
        self.rows = 0
        self._key = columns.step or columns.timestamp
        self._numbers: dict[Any, int] = {}
        """The number of each episode by its name."""
        self._last: tuple[int, Any] = (-1, 0)
        self._ended = False
        self._falls: tuple[int, Any] | None = None
        """The first row that continues an episode after rows of others, and the name of that episode."""

    def add(self, table: Table) -> None:
        """Look at the next rows of the table."""
        episodes = self._episodes(table)
        key = np.zeros(len(table), np.int8) if self._key is None else table.order(self._key)
        before = np.concatenate([[self._last[0]], episodes[:-1]])
        goes_back = np.flatnonzero(episodes < before)
        if len(goes_back) and self._falls is None:
            self._falls = self.rows + int(goes_back[0]), list(self._numbers)[episodes[goes_back[0]]]
        earlier = key < np.concatenate([np.asarray([self._last[1]], key.dtype), key[:-1]])
        if len(goes_back) or bool((earlier & (episodes == before)).any()):
            self.is_as_in_table = False
        self._last = int(episodes[-1]), key[-1]
        self._stage.add("episode", episodes)
        self._stage.add("key", key)
        self.rows += len(table)

    def _episodes(self, table: Table) -> Indices:
        """The number of each row's episode, counted over all pieces."""
        columns, count = self.columns, len(table)
        if columns.episodes == "each_row":
            return np.arange(self.rows, self.rows + count)
        if columns.episode is not None:
            found, names = table.groups(columns.episode)
            return np.array([self._numbers.setdefault(name, len(self._numbers)) for name in names])[found]
        if columns.episodes == "flags":
            roles = [name for name in (columns.terminated, columns.truncated, columns.done) if name is not None]
            ended = np.any([flag(table, name) for name in roles], axis=0)
            begins = np.concatenate([[self._ended], ended[:-1]])
            self._ended = bool(ended[-1])
            return max(self._last[0], 0) + np.cumsum(begins)
        return np.zeros(count, dtype=np.int64)

    def found(self, places: Places) -> tuple[Indices | None, Indices]:
        """The rows of the table in order, None where they are already; and the number of each one's episode."""
        episodes, key = self._stage.get("episode"), self._stage.get("key")
        if self._key is None and self._falls is not None:
            self._refuse_scattered(places, *self._falls)
        if self._key is None:
            return None, episodes
        rows = None
        if not self.is_as_in_table:
            rows = np.lexsort((key, episodes))
            episodes, key = episodes[rows], key[rows]
        self._check_neighbours(places, episodes, key, rows)
        return rows, episodes

    def _refuse_scattered(self, places: Places, row: int, name: Any) -> None:
        """Without an order, the rows of an episode must stand together: the same name may have been given twice."""
        column = self.columns.episode
        wrong = f"episode {name!r} (column {column!r}) continues in {places.text(row)} after rows of other episodes"
        hint = "name a step or timestamp column that orders its rows, or give each episode its own name"
        raise DatasetError(f"{wrong}; {hint}")

    def _check_neighbours(self, places: Places, episodes: Indices, key: NDArray[Any], rows: Indices | None) -> None:
        """Refuse two rows with the same place in an episode and, where steps are counted, places without a row."""
        count, pair = _wrong_pairs(episodes, key, lambda steps: steps == 0)
        if count:
            both = " and ".join(places.text(k if rows is None else int(rows[k])) for k in pair)
            raise DatasetError(f"column {self._key!r}: {both} have the same value in one episode ({count} such pairs)")
        if self.columns.step is None:
            return
        count, pair = _wrong_pairs(episodes, key, lambda steps: steps != 1)
        texts = [f"{places.text(k if rows is None else int(rows[k]))} (step {key[k]:g})" for k in pair]
        if count:
            wrong = f"column {self._key!r} has {count} gaps inside episodes; the first is between {' and '.join(texts)}"
            raise DatasetError(f"{wrong}; name it as timestamp if it does not count by 1")


def neighbours(rows: int) -> Iterator[slice]:
    """All rows in pieces, each with the first row of the next one, so that no pair of neighbours is torn apart."""
    return (slice(part.start, min(part.stop + 1, rows)) for part in chunks(rows))


def _wrong_pairs(
    episodes: Indices, key: NDArray[Any], is_wrong: Callable[[NDArray[Any]], NDArray[np.bool_]]
) -> tuple[int, list[int]]:
    """The number of neighbours inside episodes that differ by a wrong step, and the first two."""
    count, pair = 0, list[int]()
    for part in neighbours(len(key)):
        wrong = np.flatnonzero((np.diff(episodes[part]) == 0) & is_wrong(np.diff(key[part])))
        if len(wrong) and not pair:
            pair = [part.start + int(wrong[0]), part.start + int(wrong[0]) + 1]
        count += len(wrong)
    return count, pair


def flag(table: Table, name: str) -> NDArray[np.bool_]:
    """A column that is 0 or 1."""
    numbers = table.numbers(name)
    wrong = np.flatnonzero((numbers != 0) & (numbers != 1))
    if len(wrong):
        got = "an empty cell" if np.isnan(numbers[wrong[0]]) else f"{numbers[wrong[0]]:g}"
        place = table.place(int(wrong[0]))
        raise DatasetError(f"column {name!r} must be 0 or 1 (or false, true), got {got} in {place}")
    return np.asarray(numbers == 1)


def flag_columns(columns: ColumnsConfig) -> dict[str, str]:
    """The columns that say where episodes terminate and where they are cut, as far as there are any."""
    named = {"dones": columns.terminated, "truncations": columns.truncated}
    if columns.done is not None:
        named["dones" if columns.done_means == "terminated" else "truncations"] = columns.done
    return {field: name for field, name in named.items() if name is not None}


def end_flags(
    stage: Stage, columns: ColumnsConfig, places: Places, rows: Indices | None, episodes: Indices
) -> dict[str, NDArray[np.bool_]]:
    """True where episodes terminated, and where they were cut; every episode ends with its last row, and only there."""
    ends = np.ones(len(episodes), dtype=bool)
    for part in neighbours(len(episodes)):
        ends[part.start : part.stop - 1] = np.diff(episodes[part]) != 0
    dones, cut = np.zeros_like(ends), np.zeros_like(ends)
    for field, name in flag_columns(columns).items():
        flags = stage.get(field)
        flags = flags if rows is None else flags[rows]
        early = np.flatnonzero(flags & ~ends)
        if len(early):
            pair = [places.text(int(k if rows is None else rows[k])) for k in (early[0], early[0] + 1)]
            wrong = f"column {name!r} is 1 in {pair[0]}, but its episode continues in {pair[1]} ({len(early)} rows)"
            raise DatasetError(f"{wrong}; is the episode column right?")
        if field == "dones":
            dones = np.array(flags)
        elif columns.truncated is not None:
            cut = np.array(flags)
    if columns.episodes == "each_row":
        # A decision of its own: nothing that follows depends on it.
        return {"dones": ends, "truncations": np.zeros_like(ends)}
    # Where both are set, the reading of fields settles it, and the audit hears of it.
    return {"dones": dones, "truncations": cut | (ends & ~dones)}


FILLED = ("obs", "next_obs", "actions")
"""Fields in which a value may be carried forward; a reward is earned once."""


@dataclass(frozen=True)
class TableRows:
    """The fields of a table's transitions, and what became of its columns."""

    arrays: dict[str, NDArray[Any]]
    columns: ColumnsConfig
    """The mapping with names, categories and discrete actions instead of patterns, as a policy needs it."""
    notes: tuple[str, ...]
    rows: Indices | None
    """The place of each row in the table; None if they are all of its rows, in its order."""


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
    unused = unused_episode_columns(columns, names) if columns.episode is None else []
    question = "which is not used; does it say which rows are an episode?"
    notes = [f"the table has a column {name!r}, {question}" for name in unused]
    if isinstance(source, TableFiles) and stage is None:
        source = source.read(used)
    elif isinstance(source, TableFiles):
        source.find_types(used)
    elif not len(source):
        raise DatasetError("the table has no rows")

    def pieces(some: Sequence[str]) -> Iterable[Table]:
        return [source] if isinstance(source, Table) else source.pieces(some)

    columns, about = learn_columns(columns, pieces)
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
        """Add the next rows of the table."""
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
            actions = stage.get("actions")
            stage.rewrite("actions", (actions[part, 0].astype(np.int64) for part in chunks(len(actions))))
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
