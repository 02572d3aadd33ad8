"""The mapped form of a dataset: a folder with one file of raw numbers per column, opened without reading them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl_training.core.errors import DatasetError
from rl_training.core.files import atomic_folder, write_json
from rl_training.data.fields import EndConflict, Origin
from rl_training.data.mapped_columns import UNTRAINED, Stored, chunks, column_digest, hasher, joint_digest, map_column
from rl_training.data.offline_dataset import BESIDE, TransitionDataset
from rl_training.data.tables.columns import ColumnsConfig

INDEX = "index.json"
VERSION = 2
MOST_COMPARED = 1 << 30
"""Bytes of columns that are compared with their checksums whenever they are loaded: a matter of a second."""
DTYPES = ("float32", "float64", "int64", "bool")
"""Types of columns: those that training uses, so that nothing is converted when they are opened."""


class MappedWriter:
    """Columns that grow row by row, in the files of a folder that appears whole or not at all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.rows = 0
        self.about: dict[str, dict[str, Any]] = {}
        self._hashers: dict[str, Any] = {}

    def append(self, columns: Mapping[str, NDArray[Any]]) -> None:
        """Add rows to all columns."""
        for name, array in columns.items():
            entry: dict[str, Any] = {"file": f"{name}.bin", "dtype": str(array.dtype), "shape": list(array.shape[1:])}
            if self.about.setdefault(name, entry) != entry:
                raise DatasetError(f"{name} changes its type or its width in row {self.rows}")
            little_endian = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
            self._hashers.setdefault(name, hasher()).update(little_endian.data)
            with (self.folder / entry["file"]).open("ab") as file:
                file.write(little_endian.data)
        self.rows += len(next(iter(columns.values())))

    def finish(self, *, table: ColumnsConfig | None, conflict: EndConflict | None, **facts: Any) -> None:
        """Write the index: the contents of each file, and `facts` of the dataset; `table` are a table's columns."""
        digests = {name: found.hexdigest() for name, found in self._hashers.items()}
        for name, entry in self.about.items():
            status = (self.folder / entry["file"]).stat()
            entry |= {"size": status.st_size, "mtime_ns": status.st_mtime_ns, "digest": digests[name]}
        index = {
            "version": VERSION,
            "rows": self.rows,
            **facts,
            "table": None if table is None else asdict(table),
            "end_conflict": None if conflict is None else asdict(conflict),
            "fingerprint": joint_digest({name: digests[name] for name in digests if _is_hashed(name)}),
            "columns": self.about,
        }
        write_json(self.folder / INDEX, {**index, "checksum": _index_checksum(index)})


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
        facts = {name: getattr(dataset, name) for name in ("num_dropped", "has_rewards", "notes")}
        writer.finish(table=dataset.columns, conflict=dataset.origin.end_conflict, **facts)


def read_mapped(path: Path) -> TransitionDataset:
    """The dataset of a folder, compared with its checksums first, unless it is so large that this would take long."""
    if sum(file.stat().st_size for file in path.glob("*.bin")) <= MOST_COMPARED:
        compare_mapped(path)
    return open_mapped(path)


def compare_mapped(path: Path) -> None:
    """Refuse a folder in which a column is not what was written; every file is read."""
    columns = open_mapped(path)
    known = {**columns.fields, **{name: getattr(columns, name) for name in BESIDE}}
    for name, entry in _read_index(path)["columns"].items():
        if entry.get("digest") not in (None, column_digest(known[name])):
            raise DatasetError(f"{path} is damaged: {name} does not match its checksum; convert the source again")


def open_mapped(path: Path) -> TransitionDataset:
    """The dataset of a folder, whose rows are read when they are drawn."""
    index = _read_index(path)
    try:
        rows, files = int(index["rows"]), dict(index["columns"])
        columns = {name: _map(path, name, entry, rows) for name, entry in files.items()}
        # Sizes have been looked at; a file with another time may have been changed since.
        times = {name: (path / entry["file"]).stat().st_mtime_ns for name, entry in files.items()}
        digests = {name: str(each["digest"]) for name, each in files.items() if times[name] == each["mtime_ns"]}
        about: dict[str, Any] = {
            "num_dropped": int(index["num_dropped"]),
            "has_rewards": bool(index["has_rewards"]),
            "notes": tuple(map(str, index["notes"])),
            "columns": None if index["table"] is None else ColumnsConfig(**index["table"]),
            "origin": Origin(None if index["end_conflict"] is None else EndConflict(**index["end_conflict"])),
        }
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(f"{path / INDEX} is damaged ({type(error).__name__}: {error})") from None
    missing = [name for name in ("obs", "actions", "rewards", "next_obs", "dones", "truncations") if name not in files]
    if missing:
        raise DatasetError(f"{path / INDEX} is damaged: it names no column {missing[0]!r}")
    beside: dict[str, Any] = {name: columns.get(name) for name in BESIDE}
    hashed = {name: value for name, value in columns.items() if _is_hashed(name)}
    fields = {name: value for name, value in columns.items() if name not in BESIDE}
    return TransitionDataset(fields=fields, **beside, **about, stored=Stored(path.resolve(), hashed, digests))


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
    if index.pop("checksum", None) not in (None, _index_checksum(index)):
        raise DatasetError(f"{path / INDEX} is damaged: it does not match its checksum")
    return dict(index)


def _index_checksum(index: Mapping[str, Any]) -> str:
    """A digest of what the index says; folders of earlier versions have none."""
    return hasher(json.dumps(index, sort_keys=True).encode()).hexdigest()


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


def _is_hashed(name: str) -> bool:
    """Whether a dataset's fingerprint covers a column."""
    return name == "truncations" or name not in (*BESIDE, *UNTRAINED)
