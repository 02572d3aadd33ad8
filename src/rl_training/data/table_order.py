"""Which rows of a table are an episode, in which order, and how it ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import ColumnsConfig
from rl_training.data.tables import Table
from rl_training.types import DatasetError


def ordered_rows(table: Table, columns: ColumnsConfig) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows of the table, episode after episode and in order inside each; and the number of each one's episode."""
    count = len(table)
    if columns.episodes == "each_row":
        return np.arange(count), np.arange(count)
    labels: list[Any] = []
    if columns.episode is not None:
        episodes, labels = table.groups(columns.episode)
    elif columns.episodes == "flags":
        roles = [name for name in (columns.terminated, columns.truncated, columns.done) if name is not None]
        ended = np.any([_flag(table, name) for name in roles], axis=0)
        episodes = np.concatenate([[0], np.cumsum(ended)[:-1]])
    else:
        episodes = np.zeros(count, dtype=np.int64)
    name = columns.step or columns.timestamp
    if name is None:
        _refuse_scattered(table, columns, episodes, labels)
        return np.arange(count), episodes
    key = table.order(name)
    rows = np.lexsort((key, episodes))
    _check_order(table, columns, key[rows], rows, episodes[rows])
    return rows, episodes[rows]


def _refuse_scattered(table: Table, columns: ColumnsConfig, episodes: NDArray[np.int64], labels: list[Any]) -> None:
    """Without an order, the rows of an episode must stand together: the same name may have been given twice."""
    falls = np.flatnonzero(np.diff(episodes) < 0)
    if len(falls):
        place, label = table.place(int(falls[0]) + 1), labels[episodes[falls[0] + 1]]
        wrong = f"episode {label!r} (column {columns.episode!r}) goes on in {place} after rows of other episodes"
        raise DatasetError(
            f"{wrong}; name a step or timestamp column that orders its rows, or give each episode its own name"
        )


def _check_order(
    table: Table,
    columns: ColumnsConfig,
    key: NDArray[Any],
    rows: NDArray[np.int64],
    episodes: NDArray[np.int64],
) -> None:
    """Refuse two rows with the same place in an episode and, where steps are counted, places without a row."""
    name, inside = columns.step or columns.timestamp, episodes[1:] == episodes[:-1]
    differences = np.diff(key)
    twice = np.flatnonzero(inside & (differences == 0))
    if len(twice):
        pair = " and ".join(table.place(int(rows[twice[0] + k])) for k in (0, 1))
        raise DatasetError(f"column {name!r}: {pair} have the same value in one episode ({len(twice)} such pairs)")
    gaps = np.flatnonzero(inside & (differences != 1))
    if columns.step is not None and len(gaps):
        first = gaps[0]
        pair = " and ".join(f"{table.place(int(rows[first + k]))} (step {key[first + k]:g})" for k in (0, 1))
        hint = "name it as timestamp if it does not count by 1"
        raise DatasetError(f"column {name!r} has {len(gaps)} gaps inside episodes; the first is between {pair}; {hint}")


def _flag(table: Table, name: str) -> NDArray[np.bool_]:
    numbers = table.numbers(name)
    wrong = np.flatnonzero((numbers != 0) & (numbers != 1))
    if len(wrong):
        got = "an empty cell" if np.isnan(numbers[wrong[0]]) else f"{numbers[wrong[0]]:g}"
        raise DatasetError(
            f"column {name!r} must be 0 or 1 (or false, true), got {got} in {table.place(int(wrong[0]))}"
        )
    flags: NDArray[np.bool_] = numbers == 1
    return flags


def end_flags(
    table: Table, columns: ColumnsConfig, rows: NDArray[np.int64], ends: NDArray[np.bool_]
) -> dict[str, NDArray[np.bool_]]:
    """Where episodes terminated and where they were cut; every episode ends with its last row, and only there."""
    terminated, truncated = columns.terminated, columns.truncated
    if columns.done_means == "terminated":
        terminated = columns.done
    elif columns.done_means == "episode_end":
        truncated = columns.done
    for name in (name for name in (terminated, truncated) if name is not None):
        early = np.flatnonzero(_flag(table, name)[rows] & ~ends)
        if len(early):
            pair = [table.place(int(rows[early[0] + k])) for k in (0, 1)]
            wrong = f"column {name!r} is 1 in {pair[0]}, but its episode goes on in {pair[1]} ({len(early)} such rows)"
            raise DatasetError(f"{wrong}; is the episode column right?")
    if columns.episodes == "each_row":
        # A decision of its own: nothing that follows depends on it.
        return {"dones": ends, "truncations": np.zeros_like(ends)}
    dones = np.zeros_like(ends) if terminated is None else _flag(table, terminated)[rows]
    return {"dones": dones, "truncations": ends & ~dones}
