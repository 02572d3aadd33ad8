"""Row storage, shared by logs and by the rings of a run's own experience."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.batches import Batch, Column
from rl_training.core.errors import ConfigError
from rl_training.core.rewards import episode_bounds

Columns = Mapping[str, Tensor | NDArray[Any]]
"""Values of rows by the name of their column, which need not be of the column's type."""


class Rows:
    """Columns of rows in the order in which they came: a log, or a ring that forgets its oldest rows.

    Row number k stands at place k % capacity until row k + capacity takes its place. Columns may be any tensors, also
    memory-mapped ones: only rows that are asked for are read. A row ends its episode where `dones` or `truncations` is
    set. In a log, and in a ring that takes whole episodes, the rows of an episode stand together. In a ring of single
    steps the rows of several environments alternate; `streams` tells them apart, and `links` says what follows.
    """

    def __init__(self, columns: Mapping[str, Tensor], *, stop: int | None = None) -> None:
        self.columns = dict(columns)
        self.capacity = len(next(iter(self.columns.values())))
        self.stop = self.capacity if stop is None else stop
        """The number of the next row; by default the store is full, as a log is."""
        self.oldest = 0
        """Rows before this number are forgotten, whether they have been overwritten or not."""
        self.arrays: dict[str, NDArray[Any]] | None = None
        """The columns of a ring in this process's memory, for numpy to write to."""
        self.links: Tensor | None = None
        self.first_stream = 0
        """Streams with lower numbers have been broken off: nothing follows them any more."""

    @classmethod
    def ring(cls, capacity: int, columns: Mapping[str, Column], device: torch.device | str = "cpu") -> Rows:
        """An empty ring. Its columns are not filled, so that memory is taken only as rows come."""
        empty = partial(torch.empty, capacity, device=device)
        try:
            ring = cls({name: empty(*each.shape, dtype=each.torch_dtype) for name, each in columns.items()}, stop=0)
        except (RuntimeError, MemoryError):
            # Torch has an error of its own for each of its allocators.
            wrong = f"there is no memory for a replay buffer of {capacity} rows"
            raise ConfigError(f"{wrong}: lower buffer_capacity") from None
        if ring.device.type == "cpu":
            ring.arrays = {name: column.numpy() for name, column in ring.columns.items()}
        return ring

    def link(self, num_streams: int) -> None:
        """From now on keep, for every row, the number of the row that follows it in its stream."""
        self.links = torch.full((self.capacity,), -1, device=self.device)
        self.last = torch.full((num_streams,), -1, device=self.device)
        """The number of each stream's last row; -1 where no row may follow it."""

    @property
    def device(self) -> torch.device:
        """The device of the columns."""
        return next(iter(self.columns.values())).device

    @property
    def first(self) -> int:
        """The number of the oldest row that is there."""
        return max(self.oldest, self.stop - self.capacity)

    def __len__(self) -> int:
        return self.stop - self.first

    def numbers(self, first: int | None = None) -> Tensor:
        """The numbers of all rows, or of those from `first` on."""
        return torch.arange(self.first if first is None else first, self.stop, device=self.device)

    def places(self, rows: Tensor) -> Tensor:
        """The places of rows in the columns."""
        return rows if self.stop <= self.capacity else rows % self.capacity

    def get(self, name: str, rows: Tensor) -> Tensor:
        """A column at row numbers of any shape."""
        column, places = self.columns[name], self.places(rows)
        return column.index_select(0, places) if places.ndim == 1 else column[places]

    def take(self, names: Iterable[str], rows: Tensor) -> Batch:
        """Several columns at row numbers (B,)."""
        places = self.places(rows)
        return {name: self.columns[name].index_select(0, places) for name in names}

    def append(self, rows: Columns) -> None:
        """Add rows, which overwrite the oldest ones."""
        count = len(next(iter(rows.values())))
        if count == 0:
            return
        first = self.stop % self.capacity
        if self.arrays is not None and first + count <= self.capacity:
            # Environments add row by row, and numpy writes a few numbers in a fifth of the time that torch takes.
            for name, value in rows.items():
                self.arrays[name][first : first + count] = value
        else:
            self.put(torch.arange(self.stop, self.stop + count, device=self.device), rows)
        self.stop += count
        if self.links is not None:
            added = torch.arange(self.stop - count, self.stop, device=self.device)
            self._link(self.links, self.last, added, torch.as_tensor(rows["streams"]).to(self.device, torch.int64))

    def put(self, numbers: Tensor, values: Columns) -> None:
        """Write columns at row numbers."""
        places = numbers % self.capacity
        for name, value in values.items():
            column = self.columns[name]
            column.index_copy_(0, places, torch.as_tensor(value).to(column.device, column.dtype))

    def _link(self, links: Tensor, last: Tensor, added: Tensor, streams: Tensor) -> None:
        """Store what follows each new row, and what follows the last rows before them."""
        streams, order = streams.sort(stable=True)
        added, slots = added[order], streams % len(last)
        ended = self.ends(added)
        continues = streams[1:] == streams[:-1]
        edge = continues.new_ones(1)
        first, final = torch.cat([edge, ~continues]), torch.cat([~continues, edge])
        links[added % self.capacity] = -1
        within = (continues & ~ended[:-1]).nonzero().flatten()
        links[added[within] % self.capacity] = added[within + 1]
        before = last[slots[first]]
        # A row that has been overwritten since has left its place to another.
        is_there = before >= self.first
        links[before[is_there] % self.capacity] = added[first][is_there]
        final &= streams >= self.first_stream
        last[slots[final]] = torch.where(ended, -1, added)[final]

    def break_streams(self, num_streams: int) -> None:
        """The next rows do not follow the last ones: the environments were started anew."""
        self.first_stream += num_streams
        if self.links is not None:
            self.last.fill_(-1)

    def ends(self, rows: Tensor) -> Tensor:
        """Whether rows are the last of their episode."""
        return (self.get("dones", rows) != 0) | (self.get("truncations", rows) != 0)

    def successors(self, rows: Tensor) -> Tensor:
        """The numbers of the rows that follow in the same episode; -1 where none does, or none has come yet."""
        if self.links is not None:
            return self.links[self.places(rows)]
        return torch.where(self.ends(rows), -1, rows + 1)

    def window(self, rows: Tensor, length: int) -> tuple[Tensor, Tensor]:
        """Each row and the rows that follow it, (B, length), and a mask; where none follows, the last is repeated."""
        numbers, follows = [rows], [torch.ones_like(rows, dtype=torch.bool)]
        for _ in range(length - 1):
            after = self.successors(numbers[-1])
            follows.append(follows[-1] & (after >= 0))
            numbers.append(torch.where(follows[-1], after, numbers[-1]))
        return torch.stack(numbers, 1), torch.stack(follows, 1)

    def bounds(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The first row of each one's episode and the row after its last, where episodes stand together."""
        if "starts" not in self.columns:
            found = episode_bounds(self.ends(self.numbers()).numpy(force=True))
            for name, values in zip(("starts", "stops"), found.T, strict=True):
                self.columns[name] = torch.from_numpy(np.repeat(values, np.diff(found)[:, 0])).to(self.device)
        return self.get("starts", rows), self.get("stops", rows)

    def by_stream(self) -> tuple[Tensor, Tensor]:
        """The numbers of all rows, stream by stream, and whether they end an episode or are their stream's last."""
        rows = self.numbers()
        streams, order = self.get("streams", rows).sort(stable=True)
        rows = rows[order]
        is_last = streams != streams.roll(-1)
        is_last[-1:] = True
        return rows, is_last | self.ends(rows)
