"""The mapped form of a dataset: a folder with one file of raw numbers per column, opened without reading them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl_training.data.mapped_columns import Stored, chunks, digest, map_column
from rl_training.data.offline_dataset import BESIDE, TransitionDataset
from rl_training.files import atomic_folder, write_text
from rl_training.types import DatasetError

INDEX = "index.json"
VERSION = 1
DTYPES = ("float32", "int64", "bool")
"""Types of columns: those that training uses, so that nothing is converted when they are opened."""


class MappedWriter:
    """Columns that grow row by row, in the files of a folder that appears whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0
        self.about: dict[str, dict[str, Any]] = {}

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows to all columns."""
        for name, array in columns.items():
            entry: dict[str, Any] = {"file": f"{name}.bin", "dtype": str(array.dtype), "shape": list(array.shape[1:])}
            if self.about.setdefault(name, entry) != entry:
                raise DatasetError(f"{name} changes its type or its width in row {self.rows}")
            little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            with (self.folder / entry["file"]).open("ab") as file:
                file.write(little_endian.data)
        self.rows += len(next(iter(columns.values())))

    def finish(self, *, num_dropped: int, notes: tuple[str, ...]) -> None:
        """Write the index, with the fingerprint of what was written."""
        columns = {name: _map(self.folder, name, entry, self.rows) for name, entry in self.about.items()}
        for entry in self.about.values():
            status = (self.folder / entry["file"]).stat()
            entry |= {"size": status.st_size, "mtime_ns": status.st_mtime_ns}
        index = {
            "version": VERSION,
            "rows": self.rows,
            "num_dropped": num_dropped,
            "notes": list(notes),
            "fingerprint": digest(_hashed(columns)),
            "columns": self.about,
        }
        write_text(self.folder / INDEX, json.dumps(index, indent=2) + "\n")


@contextmanager
def mapped_writer(path: Path) -> Iterator[MappedWriter]:
    """A writer whose folder gets its name when all has been written."""
    with atomic_folder(path) as folder:
        yield MappedWriter(folder)


def write_mapped(dataset: TransitionDataset, path: Path) -> None:
    """Write a dataset in the mapped form, a piece at a time."""
    beside = {name: value for name in BESIDE if (value := getattr(dataset, name)) is not None}
    columns = {**dataset.fields, **beside}
    with mapped_writer(path) as writer:
        for part in chunks(len(dataset)):
            writer.append({name: value[part].numpy(force=True) for name, value in columns.items()})
        writer.finish(num_dropped=dataset.num_dropped, notes=dataset.notes)


def open_mapped(path: Path) -> TransitionDataset:
    """The dataset of a folder, whose rows are read when they are drawn."""
    index = _read_index(path)
    try:
        rows, about, fingerprint = int(index["rows"]), dict(index["columns"]), str(index["fingerprint"])
        columns = {name: _map(path, name, entry, rows) for name, entry in about.items()}
        is_as_written = all((path / e["file"]).stat().st_mtime_ns == e["mtime_ns"] for e in about.values())
        num_dropped, notes = int(index["num_dropped"]), tuple(map(str, index["notes"]))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path / INDEX} is damaged ({type(error).__name__}: {error})") from None
    missing = [name for name in ("obs", "actions", "rewards", "next_obs", "dones", "truncations") if name not in about]
    if missing:
        raise DatasetError(f"{path / INDEX} is damaged: it names no column {missing[0]!r}")
    beside: dict[str, Any] = {name: columns.get(name) for name in BESIDE}
    stored = Stored(path.resolve(), _hashed(columns), fingerprint if is_as_written else None)
    fields = {name: value for name, value in columns.items() if name not in BESIDE}
    return TransitionDataset(fields=fields, **beside, num_dropped=num_dropped, notes=notes, stored=stored)


def _read_index(path: Path) -> dict[str, Any]:
    if not path.is_dir():
        raise DatasetError(f"{path} is a file; the mapped form of a dataset is a folder with an {INDEX}")
    try:
        index = json.loads((path / INDEX).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DatasetError(f"{path} has no {INDEX}; it is no dataset in the mapped form") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DatasetError(f"{path / INDEX} cannot be read ({error})") from None
    version = index.get("version") if isinstance(index, dict) else None
    if version != VERSION:
        raise DatasetError(f"{path} is of version {version}, expected {VERSION}: convert the source again")
    return dict(index)


def _map(folder: Path, name: str, entry: dict[str, Any], rows: int) -> Tensor:
    """One column, refused where its file does not have the size that the index says."""
    shape, dtype = (rows, *map(int, entry["shape"])), entry["dtype"]
    if dtype not in DTYPES or min(shape) < 1 or len(shape) > 2:
        raise DatasetError(f"{folder / INDEX} is damaged: {name} has type {dtype!r} and shape {list(shape)}")
    path, expected = folder / f"{name}.bin", math.prod(shape) * np.dtype(dtype).itemsize
    if "/" in name or entry["file"] != path.name or not path.is_file():
        raise DatasetError(f"{folder}: the file of the column {name!r} is missing, expected {path.name}")
    if path.stat().st_size != expected:
        found = f"{path.stat().st_size} bytes, expected {expected} for {rows} rows"
        raise DatasetError(f"{path} has {found}; it may be cut short: convert the source again")
    return map_column(path, shape, dtype)


def _hashed(columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The columns that a dataset's fingerprint covers."""
    return {name: value for name, value in columns.items() if name not in BESIDE or name == "truncations"}
