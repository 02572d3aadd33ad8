"""Files and tables in another form: converted, mixed and split, in bounded memory where that is needed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.options import bind
from rl_training.core.text import memory_text
from rl_training.data.dataset_loaders import ENDINGS, load_transition_dataset
from rl_training.data.fields import (
    ALIASES,
    KNOWN,
    MASKS,
    add_next_actions,
    add_next_obs,
    as_numpy,
    end_conflict,
    following,
    misses_next_masks,
    naming,
    read_fields,
    rename,
)
from rl_training.data.files.formats import ARRAY_WRITERS, check_destination, read_pt, write_dataset
from rl_training.data.files.hdf5 import are_discrete, hdf5_items, pieces, read_hdf5
from rl_training.data.files.mapped import mapped_writer, open_mapped
from rl_training.data.files.npz import npz_members, read_npz
from rl_training.data.mapped_columns import chunks
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import concatenate_datasets, mix_transition_datasets
from rl_training.data.tables.arrow import table_rows
from rl_training.data.tables.columns import ColumnsConfig
from rl_training.data.tables.files import DiskStage
from rl_training.data.tables.in_memory import TableKind, table_kind

STREAMED = ("npz", "hdf5")
"""Kinds of files that are converted to the mapped form without being read into memory."""

ARRAY_READERS = {
    "npz": lambda path: read_npz(path, every=True),
    "hdf5": lambda path: read_hdf5(path, every=True),
    "pt": read_pt,
}
"""Kinds of files that hold named arrays, which are converted to each other as they are."""


class Converted(NamedTuple):
    """The result of a conversion."""

    rows: int
    left_out: list[str]
    """Arrays of the source that the destination has no place for: no algorithm reads them."""


def load_any(source: str, columns: Mapping[str, Any] | None = None) -> TransitionDataset:
    """The dataset of a file, a folder in the mapped form, or a Minari id, with nothing transformed.

    `columns` say what the columns of a table mean, as the option `dataset_columns` does.
    """
    path = Path(source)
    if columns is not None:
        return load_transition_dataset(dataset_path=source, dataset_columns=columns)
    if path.suffix.lower() in ENDINGS or path.exists() or "-v" not in source:
        return load_transition_dataset(source)
    return load_transition_dataset(dataset_id=source)


def convert(source: str, out: str, *, columns: Mapping[str, Any] | None = None) -> Converted:
    """Write a dataset in the form that the name of the destination says."""
    check_destination(out)
    path, ending = Path(source), Path(out).suffix.lower()
    kind, table = ENDINGS.get(path.suffix.lower()), table_kind(source)
    if ending == ".rlt" and kind in STREAMED and path.is_file():
        left_out = stream_to_mapped(path, str(kind), Path(out))
        return Converted(len(open_mapped(Path(out))), left_out)
    if ending == ".rlt" and table is not None:
        given = None if columns is None else bind({**columns}, ColumnsConfig)[0]
        stream_table(source, table, given, Path(out))
        return Converted(len(open_mapped(Path(out))), [])
    dataset = load_any(source, columns)
    found = ARRAY_READERS[str(kind)](path) if kind in ARRAY_READERS else None
    arrays = found if isinstance(found, dict) else {}
    if not arrays or ending not in ARRAY_WRITERS:
        write_dataset(dataset, out)
        return Converted(len(dataset), [name for name in arrays if name not in KNOWN])
    plain = {name: _plain(value) for name, value in arrays.items()}
    named = {name: array for name, array in plain.items() if array is not None}
    ARRAY_WRITERS[ending](named, Path(out))
    return Converted(len(dataset), [name for name in arrays if name not in named])


def _plain(value: Any) -> NDArray[Any] | None:
    """A value as an array that any file can hold: numbers or a text; None where it is something else."""
    try:
        array = as_numpy(value) if isinstance(value, torch.Tensor) else np.asarray(value)
    except ValueError:
        # Lists of unequal lengths.
        return None
    return array if array.dtype.kind in "fiubU" else None


def mix(
    sources: Sequence[str],
    out: str,
    *,
    ratios: Sequence[float] | None = None,
    seed: int = 0,
    columns: Mapping[str, Any] | None = None,
) -> TransitionDataset:
    """Write all episodes of several datasets as one; with ratios, rows in these proportions, without episodes."""
    check_destination(out)
    if len(sources) < 2:
        raise ConfigError(f"a mixture needs at least 2 datasets, got {len(sources)}")
    if ratios is not None and len(ratios) != len(sources):
        raise ConfigError(f"--ratio: expected {len(sources)} numbers, one per dataset, got {len(ratios)}")
    parts = [load_any(source, columns if table_kind(source) else None) for source in sources]
    mixed = concatenate_datasets(parts) if ratios is None else mix_transition_datasets(parts, ratios, seed=seed)
    write_dataset(mixed, out)
    return mixed


def split(
    source: str, outs: Sequence[str], *, fraction: float, seed: int = 0, columns: Mapping[str, Any] | None = None
) -> list[TransitionDataset]:
    """Write two datasets of whole episodes: the rest, and `fraction` of the episodes chosen at random."""
    if len(outs) != 2 or outs[0] == outs[1]:
        raise ConfigError(f"a split needs two different destinations, got {', '.join(outs) or 'none'}")
    for out in outs:
        check_destination(out)
    dataset = load_any(source, columns)
    if not dataset.has_episodes:
        raise DatasetError(f"{source} has no episodes to split by: its rows seem shuffled")
    parts = list(dataset.split(fraction, seed=seed))
    for part, out in zip(parts, outs, strict=True):
        write_dataset(part, out)
    return parts


_FLOATS = ("obs", "next_obs", "rewards", "achieved_goals", "returns_to_go", "tail_rewards", *MASKS)

FLOATS = {spelling for field in _FLOATS for spelling in (field, *ALIASES[field])}
"""Names of fields that training reads as floating-point numbers, whatever they are in the file."""


class Array(NamedTuple):
    """One array of a file, to be read in pieces."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    pieces: Iterable[NDArray[Any]]


def stream_to_mapped(path: Path, kind: str, out: Path) -> list[str]:
    """Convert an .npz or HDF5 file in bounded memory; the names of arrays that training does not read.

    Needs room on the disk of `out` for the data twice.
    """
    with {"npz": _npz_arrays, "hdf5": _hdf5_arrays}[kind](path) as arrays, _disk_stage(path, out) as stage:
        known = {name: array for name, array in arrays.items() if name in KNOWN}
        _check_disk(path, out, known)
        # Arrays in groups are no fields, unless they are known ones.
        staged: dict[str, Any] = {name: None for name in arrays if "/" not in name}
        staged |= {name: _staged(stage, name, array) for name, array in known.items()}
        _write(staged, out)
        return [name for name in arrays if name not in known]


def stream_table(path: str, kind: TableKind, columns: ColumnsConfig | None, out: Path) -> None:
    """Convert tables in bounded memory, but for 24 bytes per row if the rows must be put in order.

    Needs room on the disk of `out` for the data twice.
    """
    with _disk_stage(path, out) as stage:
        found = table_rows(path, kind, columns, stage)
        _write(found.arrays, out, notes=found.notes, table=found.columns)


@contextmanager
def _disk_stage(source: str | Path, out: Path) -> Iterator[DiskStage]:
    with naming(source), tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as folder:
        yield DiskStage(Path(folder))


@contextmanager
def _npz_arrays(path: Path) -> Iterator[dict[str, Array]]:
    with npz_members(path) as members:
        for member in (member for member in members if member.name in KNOWN):
            member.check()
        yield {member.name: Array(member.dtype, member.shape, member.pieces()) for member in members}


@contextmanager
def _hdf5_arrays(path: Path) -> Iterator[dict[str, Array]]:
    with hdf5_items(path) as items:
        found = {name: Array(item.dtype, item.shape, pieces(path, name, item)) for name, item in items.items()}
        if are_discrete(items) and "actions" in found:
            actions = (piece.astype(np.int64) for piece in found["actions"].pieces)
            found["actions"] = Array(np.dtype(np.int64), items["actions"].shape, actions)
        yield found


def _check_disk(path: Path, out: Path, arrays: dict[str, Array]) -> None:
    needed = 2 * sum(int(np.prod(array.shape, dtype=object)) * 4 for array in arrays.values())
    free = shutil.disk_usage(out.parent).free
    if needed > free:
        sizes = f"about {memory_text(needed)} while it is written, {memory_text(free)} are free"
        raise DatasetError(f"{path} is too large for the disk of {str(out)!r}: it takes {sizes}")


def _staged(stage: DiskStage, name: str, array: Array) -> NDArray[Any]:
    """An array in a file, in the type in which training reads it where that can be said before it is seen."""
    dtype = array.dtype
    if dtype.kind not in "fiub" or not array.shape or not array.shape[0]:
        return np.empty(array.shape, dtype)
    if name in FLOATS or (dtype.kind == "f" and name not in ALIASES["timestamps"] and name != "timestamps"):
        dtype = np.dtype(np.float32)
    with np.errstate(over="ignore"):
        for piece in array.pieces:
            stage.add(name, np.ascontiguousarray(piece, dtype=dtype))
    return stage.get(name).reshape(array.shape)


def _write(
    arrays: dict[str, Any], out: Path, *, notes: tuple[str, ...] = (), table: ColumnsConfig | None = None
) -> None:
    """Write fields with what is derived from the next row, as `TransitionDataset.from_dict` does in memory."""
    logged = read_fields(arrays)
    rows, ends = len(logged["obs"]), logged["dones"] | logged["truncations"]
    has_next_obs = "next_obs" in logged and not misses_next_masks(logged)
    has_next_actions = "next_actions" in logged or not bool(ends.all())
    if not has_next_obs and bool(logged["truncations"].all()):
        add_next_obs(dict(logged))  # says what is wrong
    with mapped_writer(out) as writer:
        for part in chunks(rows):
            # With the row after the last, from which the last one's are taken.
            piece = {name: array[part.start : part.stop + 1] for name, array in logged.items()}
            count = part.stop - part.start
            piece = add_next_actions(piece)
            if has_next_actions and "next_actions" not in piece:
                piece["next_actions"] = following(piece["actions"])
            if not has_next_obs:
                count = int(np.count_nonzero(~piece["truncations"][:count]))
                if not count:
                    continue
                piece = add_next_obs(piece)
            piece["dones"] = piece["dones"].astype(np.float32)
            writer.append({name: array[:count] for name, array in piece.items()})
        dropped = rows - writer.rows
        notes = (*([f"dropped {dropped} rows without a next observation"] if dropped else []), *notes)
        facts = {"num_dropped": dropped, "has_rewards": "rewards" in rename(arrays), "notes": notes}
        writer.finish(table=table, conflict=end_conflict(arrays), **facts)
