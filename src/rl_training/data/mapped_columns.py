"""Columns larger than memory: mapped from files, and what is derived from them, in files that nobody else sees."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 16
"""Rows read at a time, which bounds the memory that a pass over a column takes."""


@dataclass(frozen=True)
class Stored:
    """Where columns are mapped from, and the fingerprint that they had when they were written."""

    folder: Path
    columns: Mapping[str, Tensor]
    fingerprint: str | None
    """None where a file was changed since."""

    def holds(self, columns: Mapping[str, Tensor]) -> bool:
        """Whether these are all the columns, none of them replaced."""
        return columns.keys() == self.columns.keys() and all(columns[name] is self.columns[name] for name in columns)


def chunks(rows: int, size: int = CHUNK) -> Iterator[slice]:
    """All rows, in pieces that fit into memory."""
    return (slice(start, min(start + size, rows)) for start in range(0, rows, size))


def map_column(path: Path, shape: tuple[int, ...], dtype: str) -> Tensor:
    """A column of a file, of which only rows that are asked for are read; changes to the tensor stay in memory."""
    array = np.memmap(path, dtype=np.dtype(dtype).newbyteorder("<"), mode="c", shape=shape)
    return torch.from_numpy(np.asarray(array))


def map_rows(column: Tensor, function: Callable[[Tensor], Tensor], stored: Stored | None) -> Tensor:
    """A function of each row of a column; that of a mapped column is kept in a file, which goes with the tensor."""
    if stored is None:
        return function(column)
    first = column[:1]
    like = function(first)
    return column if like is first else _written(len(column), like, lambda part: function(column[part]), stored)


def take_rows(column: Tensor, rows: Tensor, stored: Stored | None) -> Tensor:
    """Some rows of a column; those of a mapped column are kept in a file, which goes with the tensor."""
    if stored is None or not len(rows):
        return column.index_select(0, rows)
    return _written(len(rows), column[:1], lambda part: column.index_select(0, rows[part]), stored)


def _written(rows: int, like: Tensor, get: Callable[[slice], Tensor], stored: Stored) -> Tensor:
    """A column whose rows are computed piece by piece, and kept in a file without a name beside the mapped data."""
    place = stored.folder.parent if os.access(stored.folder.parent, os.W_OK) else None
    descriptor, name = tempfile.mkstemp(prefix=f".{stored.folder.name}.", dir=place)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for part in chunks(rows):
                file.write(get(part).contiguous().numpy().data)
        return map_column(Path(name), (rows, *like.shape[1:]), str(like.dtype).removeprefix("torch."))
    finally:
        # The mapping keeps what is in the file until it is no longer used.
        Path(name).unlink()


def digest(columns: Mapping[str, Tensor], stored: Stored | None = None) -> str:
    """A short text that differs between columns with different names or contents; known for columns as stored."""
    if stored is not None and stored.fingerprint is not None and stored.holds(columns):
        return stored.fingerprint
    found = hashlib.blake2b(digest_size=12)
    for name, value in sorted(columns.items()):
        found.update(name.encode())
        for part in chunks(len(value)):
            found.update(value[part].contiguous().numpy(force=True).view(np.uint8).data)
    return found.hexdigest()
