"""Which rows of a table are an episode, in which order, and how it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.data.mapped_columns import chunks
from rl_training.data.tables.columns import ColumnsConfig
from rl_training.data.tables.in_memory import Places, Table
from rl_training.data.tables.staging import Stage

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
        """The first row that goes on with an episode after rows of others, and the name of that episode."""

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
        if self._key is None:
            if self._falls is not None:
                self._refuse_scattered(places, *self._falls)
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
        wrong = f"episode {name!r} (column {column!r}) goes on in {places.text(row)} after rows of other episodes"
        hint = "name a step or timestamp column that orders its rows, or give each episode its own name"
        raise DatasetError(f"{wrong}; {hint}")

    def _check_neighbours(self, places: Places, episodes: Indices, key: NDArray[Any], rows: Indices | None) -> None:
        """Refuse two rows with the same place in an episode and, where steps are counted, places without a row."""
        count, pair = _wrong_pairs(episodes, key, lambda steps: steps == 0)
        texts = [places.text(k if rows is None else int(rows[k])) for k in pair]
        if count:
            both = " and ".join(texts)
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
    """How many neighbours inside episodes differ by a wrong step, and the first two."""
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
        raise DatasetError(
            f"column {name!r} must be 0 or 1 (or false, true), got {got} in {table.place(int(wrong[0]))}"
        )
    flags: NDArray[np.bool_] = numbers == 1
    return flags


def flag_columns(columns: ColumnsConfig) -> dict[str, str]:
    """The columns that say where episodes terminate and where they are cut, as far as there are any."""
    named = {"dones": columns.terminated, "truncations": columns.truncated}
    if columns.done is not None:
        named["dones" if columns.done_means == "terminated" else "truncations"] = columns.done
    return {field: name for field, name in named.items() if name is not None}


def end_flags(
    stage: Stage, columns: ColumnsConfig, places: Places, rows: Indices | None, episodes: Indices
) -> dict[str, NDArray[np.bool_]]:
    """Where episodes terminated and where they were cut; every episode ends with its last row, and only there."""
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
            wrong = f"column {name!r} is 1 in {pair[0]}, but its episode goes on in {pair[1]} ({len(early)} such rows)"
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
