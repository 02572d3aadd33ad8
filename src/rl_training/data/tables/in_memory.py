"""Tables in memory, by pyarrow, from whatever offers itself as an arrow stream, and written to CSV and parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, DatasetError, import_extra
from rl_training.core.files import atomic_write

TableKind: TypeAlias = Literal["csv", "parquet"]
CellKind: TypeAlias = Literal["number", "integer", "boolean", "text", "time", "other"]
ENDINGS: dict[str, TableKind] = {".csv": "csv", ".csv.gz": "csv", ".csv.zst": "csv", ".parquet": "parquet"}
MAPPING = b"rl_training.columns"
"""The key under which a table written here keeps the meaning of its columns."""


def table_kind(path: str | Path) -> TableKind | None:
    """The kind of a table by its ending; of a folder, by the files in it. None if it is no table."""
    name, folder = str(path).lower(), Path(path)
    if folder.is_dir():
        found = {table_kind(item.name) for item in folder.iterdir() if item.is_file() and item.name[0] not in "._"}
        kinds = found - {None}
        return kinds.pop() if len(kinds) == 1 else None
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)


class Places:
    """The places of a table's rows in its files, as messages name them."""

    def __init__(self, *, is_one_file: bool = True) -> None:
        self._is_one_file = is_one_file
        self._files: list[tuple[str, int]] = []

    def add(self, file: str, count: int) -> None:
        """Say that the next rows are the next ones of a file."""
        if self._files and self._files[-1][0] == file:
            count += self._files.pop()[1]
        self._files.append((file, count))

    def text(self, row: int) -> str:
        """The place of a row; `row` counts from 0."""
        for name, count in () if self._is_one_file else self._files:
            if row < count:
                return f"row {row + 1} of {name}"
            row -= count
        return f"row {row + 1}"


@dataclass(frozen=True)
class Table:
    """Columns in memory. Rows are counted from 1, without the header, as a reader of the file would."""

    arrow: Any
    places: Places = field(default_factory=Places)
    first: int = 0
    """Rows before it, where this is a piece of a table."""

    @classmethod
    def of(cls, frame: Any) -> Table:
        """A table from a frame of pandas or polars, from pyarrow, or from anything else with an arrow stream."""
        if not hasattr(frame, "__arrow_c_stream__"):
            hint = "expected a frame of pandas or polars, a table of pyarrow, or another arrow stream"
            raise DatasetError(f"a table cannot be made from {type(frame).__name__}: {hint}")
        arrow = pyarrow("reading a table")
        with explained(arrow, "the table"):
            return cls(arrow.table(frame))

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.arrow.column_names)

    def place(self, row: int) -> str:
        """The place of a row of this piece, for a message; `row` counts from 0."""
        return self.places.text(self.first + row)

    def kind(self, name: str) -> CellKind:
        """The kind of a column's cells; a column of categories holds text."""
        types, kind = pyarrow("reading a table").types, self.arrow.column(name).type
        tests: dict[CellKind, tuple[str, ...]] = {
            "boolean": ("is_boolean",),
            "integer": ("is_integer",),
            "number": ("is_floating", "is_decimal", "is_null"),
            "text": ("is_string", "is_large_string", "is_string_view", "is_dictionary"),
            "time": ("is_temporal",),
        }
        return next((found for found, names in tests.items() if any(getattr(types, n)(kind) for n in names)), "other")

    def numbers(self, name: str, hint: str = "") -> NDArray[np.float64]:
        """A column as numbers, NaN where a cell is empty; the first cell that is no number is an error."""
        arrow, column = pyarrow("reading a table"), self._plain(name)
        if self.kind(name) == "other":
            raise DatasetError(f"column {name!r} holds {column.type}, expected one number per row")
        if self.kind(name) == "time":
            raise DatasetError(f"column {name!r} holds times, expected numbers")
        if self.kind(name) == "text":
            return np.array([self._number(name, row, cell, hint) for row, cell in enumerate(column.to_pylist())])
        column = column.cast(arrow.int8()) if self.kind(name) == "boolean" else column
        return np.asarray(column.cast(arrow.float64(), safe=False).to_numpy())

    def _number(self, name: str, row: int, cell: Any, hint: str) -> float:
        try:
            return float("nan") if cell is None else float(cell)
        except ValueError:
            wrong = f"column {name!r} must hold numbers, got {str(cell)[:80]!r} in {self.place(row)}"
            raise DatasetError(f"{wrong}{hint}") from None

    def order(self, name: str) -> NDArray[Any]:
        """A column of numbers or of times as something to sort by."""
        if self.kind(name) == "time":
            self._refuse_empty(name)
            times = self._plain(name).cast(pyarrow("reading a table").timestamp("ns"), safe=False)
            return np.asarray(times.to_numpy()).astype(np.int64)
        numbers = self.numbers(name, "; times are written as 2024-05-31 14:30:00")
        self._refuse_empty(name)
        return numbers

    def texts(self, name: str) -> NDArray[Any]:
        """A column as text, None where a cell is empty."""
        self._refuse_other(name)
        return np.array(self._plain(name).cast(pyarrow("reading a table").string()).to_pylist(), dtype=object)

    def seconds(self, name: str) -> NDArray[np.float64]:
        """A column of times as seconds since 1970, one of numbers as it is."""
        order = self.order(name)
        return order / 1e9 if self.kind(name) == "time" else order

    def distinct(self, name: str) -> list[str]:
        """The different texts in a column, without empty cells."""
        self._refuse_other(name)
        texts = self._plain(name).unique().cast(pyarrow("reading a table").string()).to_pylist()
        return [text for text in texts if text is not None]

    def groups(self, name: str) -> tuple[NDArray[np.int64], list[Any]]:
        """A number for every row, equal where the cells are, counted in order of appearance; and the cells."""
        self._refuse_empty(name)
        encoded = self._plain(name).combine_chunks().dictionary_encode()
        encoded = encoded.combine_chunks() if hasattr(encoded, "num_chunks") else encoded
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()

    def _refuse_other(self, name: str) -> None:
        if self.kind(name) == "other":
            raise DatasetError(f"column {name!r} holds {self.arrow.column(name).type}, expected text or a number")

    def _refuse_empty(self, name: str) -> None:
        empty = np.asarray(self.arrow.column(name).is_null(nan_is_null=True).to_numpy())
        if empty.any():
            first = self.place(int(empty.argmax()))
            raise DatasetError(f"column {name!r} has {int(empty.sum())} empty cells; the first is in {first}")

    def _plain(self, name: str) -> Any:
        """A column without the dictionary that categories are stored with."""
        arrow, column = pyarrow("reading a table"), self.arrow.column(name)
        kind = plain_type(column.type)
        if not arrow.types.is_dictionary(column.type):
            return column
        # Not by a cast of the column, which does not know every kind of text.
        cells = [chunk.dictionary.cast(kind).take(chunk.indices) for chunk in column.chunks]
        return arrow.chunked_array(cells, type=kind)


def plain_type(kind: Any) -> Any:
    """The type of a column's cells, without the dictionary that categories are stored with."""
    arrow = pyarrow("reading a table")
    if not arrow.types.is_dictionary(kind):
        return kind
    return arrow.string() if arrow.types.is_string_view(kind.value_type) else kind.value_type


def stored_mapping(schema: Any) -> dict[str, Any] | None:
    """The mapping that a table written here carries for its own columns."""
    text = (schema.metadata or {}).get(MAPPING)
    try:
        return None if text is None else dict(json.loads(text))
    except (ValueError, TypeError, RecursionError):
        raise DatasetError("what the table says of its own columns cannot be read: give dataset_columns") from None


def make_table(columns: dict[str, NDArray[Any]], mapping: dict[str, Any] | None = None) -> Any:
    """A table of pyarrow, with what its columns mean."""
    table = pyarrow("making a table").table(columns)
    return table if mapping is None else table.replace_schema_metadata({MAPPING: json.dumps(mapping)})


def check_table_path(path: Path, *, name: str) -> None:
    """Refuse a file that no table can be written to."""
    if table_kind(path.name) is None or path.name.lower().endswith(".csv.zst"):
        raise ConfigError(f"{name} must end in .csv, .csv.gz or .parquet, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of {name} {str(path)!r} does not exist")


def write_table(table: Any, path: Path) -> None:
    """Write a table to a .csv, .csv.gz or .parquet file, in place of one that is there."""
    arrow = pyarrow(f"writing {path}")
    with atomic_write(path) as temporary:
        if table_kind(path.name) == "parquet":
            parquet = import_extra("pyarrow.parquet", "arrow", f"writing {path}")
            parquet.write_table(table, temporary, write_page_checksum=True)
            return
        squeezed = "gzip" if path.name.lower().endswith(".gz") else None
        with arrow.output_stream(str(temporary), compression=squeezed) as file:
            import_extra("pyarrow.csv", "arrow", f"writing {path}").write_csv(table, file)


def write_parquet(pieces: Iterable[Any], path: Path) -> None:
    """Write a table that comes in pieces to a parquet file, in place of one that is there."""
    parquet = import_extra("pyarrow.parquet", "arrow", f"writing {path}")
    rest = iter(pieces)
    first = next(rest)
    with atomic_write(path) as file, parquet.ParquetWriter(file, first.schema, write_page_checksum=True) as writer:
        for piece in chain([first], rest):
            writer.write_table(piece)


def table_text(table: Any) -> str:
    """A table as the text of a CSV file."""
    arrow = pyarrow("writing a table")
    sink = arrow.BufferOutputStream()
    import_extra("pyarrow.csv", "arrow", "writing a table").write_csv(table, sink)
    return str(sink.getvalue().to_pybytes().decode())


def joined(arrow: Any, parts: list[Any]) -> Any:
    """Tables one below the other; a column that is text in one of them and numbers in another becomes text."""
    try:
        return arrow.concat_tables(parts, promote_options="permissive")
    except arrow.ArrowException:
        first, text = parts[0].schema, arrow.string()
        mixed = {each.name for part in parts for each in part.schema if first.field(each.name).type != each.type}
        schemas = [[each.with_type(text) if each.name in mixed else each for each in part.schema] for part in parts]
        as_text = [part.cast(arrow.schema(fields)) for part, fields in zip(parts, schemas, strict=True)]
        return arrow.concat_tables(as_text, promote_options="permissive")


@contextmanager
def explained(arrow: Any, path: Path | str) -> Iterator[None]:
    """Say which file cannot be read, and why, in one line."""
    try:
        yield
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
        raise DatasetError(f"{path} is not a readable table, it may be truncated ({reason})") from None


def pyarrow(purpose: str) -> Any:
    """The library; where it is missing, the error says what it is needed for."""
    return import_extra("pyarrow", "arrow", purpose)
