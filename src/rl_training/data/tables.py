"""Tables in files and in memory, by pyarrow: CSV, parquet, and whatever offers itself as an arrow stream."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from rl_training.data.columns import natural
from rl_training.files import atomic_write
from rl_training.types import ConfigError, DatasetError, import_extra, nearest

TableKind: TypeAlias = Literal["csv", "parquet"]
CellKind: TypeAlias = Literal["number", "integer", "boolean", "text", "time", "other"]
ENDINGS: dict[str, TableKind] = {".csv": "csv", ".csv.gz": "csv", ".csv.zst": "csv", ".parquet": "parquet"}
MAPPING = b"rl_training.columns"
"""The key under which a table that was written here says what its columns mean."""
_LARGEST_HEADER = 1 << 24


def table_kind(path: str | Path) -> TableKind | None:
    """The kind of a table by its ending; of a folder, by the files in it. None if it is no table."""
    name, folder = str(path).lower(), Path(path)
    if folder.is_dir():
        found = {table_kind(item.name) for item in folder.iterdir() if item.is_file() and item.name[0] not in "._"}
        kinds = found - {None}
        return kinds.pop() if len(kinds) == 1 else None
    return next((kind for ending, kind in ENDINGS.items() if name.endswith(ending)), None)


def find_files(path: str | Path, kind: TableKind) -> list[Path]:
    """The files behind a path, a folder of shards, or a pattern, in natural order of their names."""
    place = Path(path)
    if place.is_file():
        return [place]
    endings = ", ".join(ending for ending, which in ENDINGS.items() if which == kind)
    if place.is_dir():
        found = [item for item in place.iterdir() if item.is_file() and item.name[0] not in "._"]
        files = [item for item in found if table_kind(item.name) == kind]
        if not files:
            raise DatasetError(f"the folder {str(path)!r} has no files that end in {endings}")
    elif any(sign in place.name for sign in "*?["):
        files = [item for item in place.parent.glob(place.name) if item.is_file()]
        if not files:
            raise DatasetError(f"no file matches {str(path)!r}")
    else:
        if place.is_symlink():
            raise DatasetError(f"dataset_path {str(path)!r} is a link that leads nowhere")
        beside = [item.name for item in place.parent.iterdir()] if place.parent.is_dir() else []
        raise DatasetError(f"dataset_path {str(path)!r} does not exist{nearest(place.name, beside)}")
    return sorted(files, key=lambda item: natural(item.name))


class TableFiles:
    """One or several files as one table. The names of columns are known before any row is read."""

    def __init__(self, path: str | Path, kind: TableKind) -> None:
        self.kind, self.paths = kind, find_files(path, kind)
        self._arrow = _pyarrow(f"reading {path}")
        self.names = self._names(self.paths[0])
        self.mapping = self._mapping()

    def read(self, names: Sequence[str]) -> Table:
        """Some of the columns, all rows."""
        twice = [name for name in names if self.names.count(name) > 1]
        if twice:
            raise DatasetError(f"{self.paths[0]} has two columns named {twice[0]!r}")
        parts = [self._read(path, list(names)) for path in self.paths]
        files = tuple((path.name, len(part)) for path, part in zip(self.paths, parts, strict=True))
        table = Table(_joined(self._arrow, parts), files)
        if not len(table):
            raise DatasetError(f"{self.paths[0]} has no rows")
        return table

    def _names(self, path: Path) -> list[str]:
        with _explained(self._arrow, path):
            if self.kind == "parquet":
                return list(self._parquet().read_schema(path).names)
            return list(self._csv_reader(path).schema.names)

    def _mapping(self) -> dict[str, Any] | None:
        if self.kind == "csv":
            return None
        with _explained(self._arrow, self.paths[0]):
            return stored_mapping(self._parquet().read_schema(self.paths[0]))

    def _read(self, path: Path, names: list[str]) -> Any:
        if path != self.paths[0] and (lacking := [name for name in names if name not in self._names(path)]):
            raise DatasetError(f"{path} has no column {lacking[0]!r}, which {self.paths[0].name} has")
        with _explained(self._arrow, path):
            if self.kind == "parquet":
                # Not by read_table, which would take folders such as `year=2024` for columns.
                return self._parquet().ParquetFile(path).read(columns=names)
            csv = import_extra("pyarrow.csv", "arrow", f"reading {path}")
            convert = csv.ConvertOptions(include_columns=names, strings_can_be_null=True)
            return csv.read_csv(path, parse_options=self._parsing(path), convert_options=convert)

    def _csv_reader(self, path: Path) -> Any:
        csv = import_extra("pyarrow.csv", "arrow", f"reading {path}")
        # The first block must hold the header, which may have thousands of columns, and a row.
        size = csv.ReadOptions(block_size=_LARGEST_HEADER)
        return csv.open_csv(path, read_options=size, parse_options=self._parsing(path))

    def _parsing(self, path: Path) -> Any:
        """Commas between cells, unless the header has none and has semicolons or tabs."""
        with self._arrow.input_stream(str(path)) as file:
            header = file.read(1 << 16).split(b"\n")[0]
        delimiter = next((sign for sign in (",", ";", "\t") if sign.encode() in header), ",")
        csv = import_extra("pyarrow.csv", "arrow", f"reading {path}")
        return csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)

    def _parquet(self) -> Any:
        return import_extra("pyarrow.parquet", "arrow", f"reading {self.paths[0]}")


@dataclass(frozen=True)
class Table:
    """Columns in memory. Rows are counted from 1, without the header, as a reader of the file would."""

    arrow: Any
    files: tuple[tuple[str, int], ...] = ()

    @classmethod
    def of(cls, frame: Any) -> Table:
        """A table from a frame of pandas or polars, from pyarrow, or from anything else with an arrow stream."""
        if not hasattr(frame, "__arrow_c_stream__"):
            hint = "expected a frame of pandas or polars, a table of pyarrow, or another arrow stream"
            raise DatasetError(f"a table cannot be made from {type(frame).__name__}: {hint}")
        arrow = _pyarrow("reading a table")
        with _explained(arrow, "the table"):
            return cls(arrow.table(frame))

    def __len__(self) -> int:
        return int(self.arrow.num_rows)

    @property
    def names(self) -> list[str]:
        """The names of the columns."""
        return list(self.arrow.column_names)

    def place(self, row: int) -> str:
        """Where a row is, in words; `row` counts from 0."""
        for name, count in self.files if len(self.files) > 1 else ():
            if row < count:
                return f"row {row + 1} of {name}"
            row -= count
        return f"row {row + 1}"

    def kind(self, name: str) -> CellKind:
        """What the cells of a column are; a column of categories holds text."""
        types, kind = _pyarrow("reading a table").types, self.arrow.column(name).type
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
        arrow, column = _pyarrow("reading a table"), self._plain(name)
        if self.kind(name) == "other":
            raise DatasetError(f"column {name!r} holds {column.type}, expected one number per row")
        if self.kind(name) == "time":
            raise DatasetError(f"column {name!r} holds times, expected numbers")
        if self.kind(name) == "text":
            return np.array([self._number(name, row, cell, hint) for row, cell in enumerate(column.to_pylist())])
        column = column.cast(arrow.int8()) if self.kind(name) == "boolean" else column
        numbers: NDArray[np.float64] = column.cast(arrow.float64(), safe=False).to_numpy()
        return numbers

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
            arrow = _pyarrow("reading a table")
            times: NDArray[Any] = self._plain(name).cast(arrow.timestamp("ns"), safe=False).to_numpy()
            return times.astype(np.int64)
        numbers = self.numbers(name, "; times are written as 2024-05-31 14:30:00")
        self._refuse_empty(name)
        return numbers

    def texts(self, name: str) -> NDArray[Any]:
        """A column as text, None where a cell is empty."""
        arrow = _pyarrow("reading a table")
        if self.kind(name) == "other":
            raise DatasetError(f"column {name!r} holds {self.arrow.column(name).type}, expected text or a number")
        return np.array(self._plain(name).cast(arrow.string()).to_pylist(), dtype=object)

    def groups(self, name: str) -> tuple[NDArray[np.int64], list[Any]]:
        """A number for every row, equal where the cells are, counted in order of appearance; and the cells."""
        self._refuse_empty(name)
        encoded = self._plain(name).combine_chunks().dictionary_encode()
        encoded = encoded.combine_chunks() if hasattr(encoded, "num_chunks") else encoded
        return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), encoded.dictionary.to_pylist()

    def _refuse_empty(self, name: str) -> None:
        empty = np.asarray(self.arrow.column(name).is_null(nan_is_null=True).to_numpy())
        if empty.any():
            first = self.place(int(empty.argmax()))
            raise DatasetError(f"column {name!r} has {int(empty.sum())} empty cells; the first is in {first}")

    def _plain(self, name: str) -> Any:
        """A column without the dictionary that categories are stored with."""
        column, types = self.arrow.column(name), _pyarrow("reading a table").types
        return column.cast(column.type.value_type) if types.is_dictionary(column.type) else column


def stored_mapping(schema: Any) -> dict[str, Any] | None:
    """What a table says of its own columns, if it was written here."""
    text = (schema.metadata or {}).get(MAPPING)
    return None if text is None else dict(json.loads(text))


def make_table(columns: dict[str, NDArray[Any]], mapping: dict[str, Any] | None = None) -> Any:
    """A table of pyarrow, with what its columns mean."""
    table = _pyarrow("making a table").table(columns)
    return table if mapping is None else table.replace_schema_metadata({MAPPING: json.dumps(mapping)})


def check_table_path(path: Path, *, name: str) -> None:
    """Refuse a file that no table can be written to."""
    if table_kind(path.name) is None or path.name.lower().endswith(".csv.zst"):
        raise ConfigError(f"{name} must end in .csv, .csv.gz or .parquet, got {str(path)!r}")
    if not path.parent.is_dir():
        raise ConfigError(f"the folder of {name} {str(path)!r} does not exist")


def write_table(table: Any, path: Path) -> None:
    """Write a table to a .csv, .csv.gz or .parquet file, in place of one that is there."""
    arrow = _pyarrow(f"writing {path}")
    with atomic_write(path) as temporary:
        if table_kind(path.name) == "parquet":
            import_extra("pyarrow.parquet", "arrow", f"writing {path}").write_table(table, temporary)
            return
        squeezed = "gzip" if path.name.lower().endswith(".gz") else None
        with arrow.output_stream(str(temporary), compression=squeezed) as file:
            import_extra("pyarrow.csv", "arrow", f"writing {path}").write_csv(table, file)


def table_text(table: Any) -> str:
    """A table as the text of a CSV file."""
    arrow = _pyarrow("writing a table")
    sink = arrow.BufferOutputStream()
    import_extra("pyarrow.csv", "arrow", "writing a table").write_csv(table, sink)
    return str(sink.getvalue().to_pybytes().decode())


def _joined(arrow: Any, parts: list[Any]) -> Any:
    """Tables one below the other; a column that is text in one of them and numbers in another becomes text."""
    try:
        return arrow.concat_tables(parts, promote_options="permissive")
    except arrow.ArrowException:
        mixed = {
            field.name
            for part in parts
            for field in part.schema
            if parts[0].schema.field(field.name).type != field.type
        }
        as_text = [
            part.cast(
                arrow.schema(
                    [field.with_type(arrow.string()) if field.name in mixed else field for field in part.schema]
                )
            )
            for part in parts
        ]
        return arrow.concat_tables(as_text, promote_options="permissive")


class _explained:  # noqa: N801 - used like a function
    """Say which file cannot be read, and why, in one line."""

    def __init__(self, arrow: Any, path: Path | str) -> None:
        self._errors, self._path = (arrow.ArrowException, OSError, UnicodeDecodeError), path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, self._errors):
            reason = (str(error).splitlines() or [type(error).__name__])[0][:200]
            raise DatasetError(f"{self._path} is not a readable table, it may be truncated ({reason})") from None


def _pyarrow(purpose: str) -> Any:
    return import_extra("pyarrow", "arrow", purpose)
