"""Empty cells of a table: counted, filled, or refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.data.mapped_columns import chunks
from rl_training.data.tables.in_memory import Places

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
