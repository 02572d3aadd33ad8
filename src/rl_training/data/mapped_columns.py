"""Memory-mapped columns; derived ones in unlinked temporary files."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

CHUNK = 1 << 16
"""Rows read at a time, which bounds the memory that a pass over a column takes."""
UNTRAINED = ("behavior_log_probs",)
"""Columns that no algorithm learns from: a run is the same with and without them, and so is the fingerprint."""


@dataclass(frozen=True)
class Stored:
    """The folder that columns are mapped from, and their digests when they were written."""

    folder: Path
    columns: Mapping[str, Tensor]
    digests: Mapping[str, str]
    """Without those of files that were changed since."""

    def digest_of(self, name: str, column: Tensor) -> str | None:
        """The digest of a column, if it is the one of this name that was stored."""
        return self.digests.get(name) if self.columns.get(name) is column else None


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


def join_columns(columns: Sequence[Tensor], stored: Stored | None) -> Tensor:
    """Columns side by side, (N, ...); those of mapped columns are kept in a file, which goes with the tensor."""
    if stored is None:
        return torch.cat(list(columns), dim=1)

    def join(part: slice) -> Tensor:
        return torch.cat([column[part] for column in columns], dim=1)

    return _written(len(columns[0]), join(slice(1)), join, stored)


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
    """A short text that differs between columns with different names or contents; what is stored is not read."""
    trained = {name: value for name, value in columns.items() if name not in UNTRAINED}
    known = {} if stored is None else {name: stored.digest_of(name, value) for name, value in trained.items()}
    return joint_digest({name: known.get(name) or column_digest(value) for name, value in trained.items()})


def joint_digest(digests: Mapping[str, str]) -> str:
    """The digest of several columns, from their names and the digest of each."""
    text = "\n".join(f"{name} {each}" for name, each in sorted(digests.items()))
    return hasher(text.encode()).hexdigest()


def hasher(content: bytes = b"") -> hashlib.blake2b:
    """The hash function of digests, fed with these bytes."""
    return hashlib.blake2b(content, digest_size=12)


def column_digest(column: Tensor) -> str:
    """The digest of one column."""
    found = hasher()
    _update(found, column)
    return found.hexdigest()


def _update(found: hashlib.blake2b, column: Tensor) -> None:
    for part in chunks(len(column)):
        found.update(column[part].contiguous().numpy(force=True).view(np.uint8).data)


def older_digest(columns: Mapping[str, Tensor]) -> str:
    """The digest in checkpoints of version 0.1.0: one over all columns."""
    found = hasher()
    for name in sorted(columns.keys() - set(UNTRAINED)):
        found.update(name.encode())
        _update(found, columns[name])
    return found.hexdigest()
