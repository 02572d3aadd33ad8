"""Files of tables, CSV and parquet: which ones are meant, and their rows, whole or in pieces."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError, import_extra
from rl_training.core.files import refuse_what_is_no_file
from rl_training.core.machine import check_memory
from rl_training.data.files.npz import CONVERT_HINT
from rl_training.data.tables.columns import natural
from rl_training.data.tables.in_memory import (
    ENDINGS,
    Places,
    Table,
    TableKind,
    explained,
    joined,
    plain_type,
    pyarrow,
    stored_mapping,
    table_kind,
)

_CELL = 8
"""Bytes of a number in memory."""

_BLOCK = 1 << 24
"""Bytes of a CSV file read at a time. The first block must hold the header, which may have thousands of columns."""

_ROWS = 1 << 16
"""Rows of a parquet file read at a time."""

_WIDER = {
    "null": "int64",
    "int64": "double",
    "double": "string",
    "bool": "string",
    "date32[day]": "timestamp[s]",
    "timestamp[s]": "timestamp[ns]",
    "timestamp[ns]": "string",
    "time32[s]": "string",
}
"""The next type to try for a CSV column, if a cell further down does not fit the type of the first block."""


def find_files(path: str | Path, kind: TableKind) -> list[Path]:
    """The files behind a path, a folder of shards, or a pattern, in natural order of their names."""
    place = Path(path)
    if place.is_dir():
        found = [item for item in place.iterdir() if item.is_file() and item.name[0] not in "._"]
        files = [item for item in found if table_kind(item.name) == kind]
        if not files:
            endings = ", ".join(ending for ending, which in ENDINGS.items() if which == kind)
            raise DatasetError(f"the folder {str(path)!r} has no files that end in {endings}")
    elif any(sign in place.name for sign in "*?[") and not place.exists():
        files = [item for item in place.parent.glob(place.name) if item.is_file()]
        if not files:
            raise DatasetError(f"no file matches {str(path)!r}")
    else:
        refuse_what_is_no_file(place)
        files = [place]
    return sorted(files, key=lambda item: natural(item.name))


class TableFiles:
    """One or several files as one table. The names of columns are known before any row is read."""

    def __init__(self, path: str | Path, kind: TableKind) -> None:
        self.kind, self.paths = kind, find_files(path, kind)
        self._arrow = pyarrow(f"reading {path}")
        self.names = self._names(self.paths[0])
        self._schemas: dict[Path, Any] = {}
        """The types of columns in each file, as far as they were found."""
        self.mapping = None if kind == "csv" else stored_mapping(self._parquet_schema(self.paths[0]))

    def read(self, names: Sequence[str]) -> Table:
        """Some of the columns, all rows."""
        self._check(names)
        parts = [self._read(path, list(names)) for path in self.paths]
        places = self._places()
        for path, part in zip(self.paths, parts, strict=True):
            places.add(path.name, len(part))
        table = Table(joined(self._arrow, parts), places)
        if not len(table):
            raise DatasetError(f"{self.paths[0]} has no rows")
        return table

    def find_types(self, names: Sequence[str]) -> None:
        """Find the types of all columns that `pieces` will be asked for; CSV files are read through for this."""
        self._check(names)
        self._schemas = {path: self._schema(path, list(names)) for path in self.paths}

    def pieces(self, names: Sequence[str]) -> Iterator[Table]:
        """Some of the columns, piece by piece; a column has the same type in all of them."""
        arrow, places, first = self._arrow, self._places(), 0
        shared = joined(arrow, [schema.empty_table() for schema in self._schemas.values()]).schema
        shared = arrow.schema([shared.field(name) for name in names])
        for path in self.paths:
            for batch in self._batches(path, list(names)):
                table = arrow.table(batch).select(list(names)).cast(shared, safe=False)
                places.add(path.name, len(table))
                if len(table):
                    yield Table(table, places, first)
                first += len(table)
        if not first:
            raise DatasetError(f"{self.paths[0]} has no rows")

    def _places(self) -> Places:
        return Places(is_one_file=len(self.paths) == 1)

    def _check(self, names: Sequence[str]) -> None:
        twice = [name for name in names if self.names.count(name) > 1]
        if twice:
            raise DatasetError(f"{self.paths[0]} has two columns named {twice[0]!r}")
        for path in self.paths[1:]:
            there = self._names(path)
            if lacking := [name for name in names if name not in there]:
                raise DatasetError(f"{path} has no column {lacking[0]!r}, which {self.paths[0].name} has")

    def _names(self, path: Path) -> list[str]:
        if self.kind == "parquet":
            return list(self._parquet_schema(path).names)
        with explained(self._arrow, path):
            return list(self._open_csv(path).schema.names)

    def _read(self, path: Path, names: list[str]) -> Any:
        with explained(self._arrow, path):
            if self.kind == "parquet":
                # Not by read_table, which would take folders such as `year=2024` for columns.
                file = self._module("parquet").ParquetFile(path, page_checksum_verification=True)
                # What the file says of itself: numbers that repeat take next to no room in it.
                check_memory(path, file.metadata.num_rows * len(names) * _CELL, hint=CONVERT_HINT)
                return file.read(columns=names)
            csv = self._module("csv")
            convert = csv.ConvertOptions(include_columns=names, strings_can_be_null=True)
            return csv.read_csv(path, parse_options=self._parsing(path), convert_options=convert)

    def _schema(self, path: Path, names: list[str]) -> Any:
        """The types of some columns of a file; a CSV file is read through for them."""
        if self.kind == "parquet":
            schema = self._parquet_schema(path)
            fields = [(name, plain_type(schema.field(name).type)) for name in names]
            return self._arrow.schema(fields)
        types: dict[str, Any] = {}
        with explained(self._arrow, path):
            while True:
                reader = self._open_csv(path, names, types)
                try:
                    for _ in reader:
                        pass
                except self._arrow.ArrowInvalid as error:
                    name = self._misjudged(str(error))
                    wider = None if name is None else _WIDER.get(str(reader.schema.field(name).type))
                    if wider is None:
                        raise
                    types[str(name)] = _arrow_type(self._arrow, wider)
                    continue
                return reader.schema

    def _misjudged(self, message: str) -> str | None:
        """The column in which, by the reader's message, a cell does not fit the type of those above it."""
        found = re.search(r"In CSV column #(\d+):.* CSV conversion error", message)
        return None if found is None else self.names[int(found.group(1))]

    def _batches(self, path: Path, names: list[str]) -> Iterator[Any]:
        with explained(self._arrow, path):
            if self.kind == "parquet":
                # A buffer, since a file may have all its rows in one group, which would be read whole.
                file = self._module("parquet").ParquetFile(path, buffer_size=1 << 20, page_checksum_verification=True)
                yield from file.iter_batches(batch_size=_ROWS, columns=names)
            else:
                types = {name: self._schemas[path].field(name).type for name in names}
                yield from self._open_csv(path, names, types)

    def _open_csv(self, path: Path, names: Sequence[str] = (), types: dict[str, Any] | None = None) -> Any:
        csv = self._module("csv")
        convert = csv.ConvertOptions(include_columns=list(names), column_types=types or {}, strings_can_be_null=True)
        size = csv.ReadOptions(block_size=_BLOCK)
        return csv.open_csv(path, read_options=size, parse_options=self._parsing(path), convert_options=convert)

    def _parsing(self, path: Path) -> Any:
        """Commas between cells, unless the header has none and has semicolons or tabs."""
        with self._arrow.input_stream(str(path)) as file:
            header = file.read(1 << 16).split(b"\n")[0]
        delimiter = next((sign for sign in (",", ";", "\t") if sign.encode() in header), ",")
        return self._module("csv").ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def _parquet_schema(self, path: Path) -> Any:
        with explained(self._arrow, path):
            return self._module("parquet").read_schema(path)

    def _module(self, name: Literal["csv", "parquet"]) -> Any:
        return import_extra(f"pyarrow.{name}", "arrow", f"reading {self.paths[0]}")


def _arrow_type(arrow: Any, name: str) -> Any:
    unit = re.fullmatch(r"timestamp\[(\w+)\]", name)
    return arrow.timestamp(unit.group(1)) if unit else arrow.type_for_alias(name)


class MemoryStage:
    """Named arrays that grow by pieces, in memory."""

    def __init__(self) -> None:
        self._pieces: dict[str, list[NDArray[Any]]] = {}

    def add(self, name: str, piece: NDArray[Any]) -> None:
        """Put rows behind those of an array, which begins with its first piece."""
        self._pieces.setdefault(name, []).append(piece)

    def get(self, name: str) -> NDArray[Any]:
        """All rows so far; changes to the result are changes to the array."""
        pieces = self._pieces[name]
        if len(pieces) > 1:
            self._pieces[name] = pieces = [np.concatenate(pieces)]
        return pieces[0]

    def rewrite(self, name: str, pieces: Iterable[NDArray[Any]]) -> None:
        """Put other rows, which may be computed from the old ones, in place of an array."""
        self._pieces[name] = list(pieces)


class DiskStage:
    """Named arrays that grow by pieces, in files of a folder; what is read of them is not kept in memory."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._forms: dict[str, tuple[np.dtype[Any], tuple[int, ...]]] = {}

    def add(self, name: str, piece: NDArray[Any]) -> None:
        """Put rows behind those of an array, which begins with its first piece."""
        self._forms.setdefault(name, (piece.dtype, piece.shape[1:]))
        with self._path(name).open("ab") as file:
            file.write(np.ascontiguousarray(piece).data)

    def get(self, name: str) -> NDArray[Any]:
        """All rows so far; changes to the result are changes to the array."""
        dtype, shape = self._forms[name]
        array = np.memmap(self._path(name), dtype=dtype, mode="r+")
        return array.reshape(-1, *shape)

    def rewrite(self, name: str, pieces: Iterable[NDArray[Any]]) -> None:
        """Put other rows, which may be computed from the old ones, in place of an array."""
        draft = f"{name}.draft"
        for piece in pieces:
            self.add(draft, piece)
        self._path(draft).replace(self._path(name))
        self._forms[name] = self._forms.pop(draft)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name.replace('/', '.')}.bin"


Stage = MemoryStage | DiskStage
