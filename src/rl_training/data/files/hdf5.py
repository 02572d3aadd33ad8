"""HDF5 files: arrays by their names, none of them in another file, compared with checksums where there are some."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError, UserError, import_extra
from rl_training.core.files import atomic_write
from rl_training.core.machine import check_memory
from rl_training.data.fields import KNOWN
from rl_training.data.files.npz import CONVERT_HINT, PIECE, array_bytes
from rl_training.data.mapped_columns import chunks, hasher

CHECKSUMS = "checksums"
"""The attribute of a file that has the digests of its arrays, as JSON."""

DEEPEST = 16
"""Groups inside each other."""

MOST_ITEMS = 1_000_000
"""Arrays and groups in one file: those of a hundred thousand episodes."""


def read_hdf5(path: Path, *, every: bool = False) -> dict[str, Any]:
    """The arrays of an HDF5 file in D4RL's or d3rlpy's layout; None for unknown fields, unless `every` is wanted."""
    with hdf5_items(path) as items:
        # Of arrays in groups only D4RL's log-probabilities are a field.
        names = [name for name in items if every or "/" not in name or name in KNOWN]
        wanted = [name for name in names if every or name in KNOWN]
        check_memory(path, sum(items[name].nbytes for name in wanted), hint=CONVERT_HINT)
        arrays: dict[str, Any] = {name: _whole(path, name, items[name]) if name in wanted else None for name in names}
        if every:
            # HDF5 gives the bytes of texts.
            texts = {name: each.decode("utf-8", "replace") for name, each in arrays.items() if isinstance(each, bytes)}
            arrays = {name: np.asarray(each) for name, each in (arrays | texts).items()}
        if are_discrete(items) and arrays.get("actions") is not None:
            arrays["actions"] = arrays["actions"].astype(np.int64)
        return arrays


def _whole(path: Path, name: str, item: Any) -> Any:
    array = item[()]
    expected = _checksums(item.file).get(name)
    if expected is not None and (not isinstance(array, np.ndarray) or array_checksum(array) != expected):
        raise _damaged(path, name)
    return array


def pieces(path: Path, name: str, item: Any) -> Iterator[NDArray[Any]]:
    """The rows of an array, a piece at a time; after the last, they are compared with their checksum."""
    step = max(PIECE // max(item.nbytes // max(item.shape[0], 1), 1), 1) if item.shape else 1
    found = _header(item.dtype, item.shape)
    for part in chunks(item.shape[0] if item.shape else 0, step):
        piece = item[part]
        found.update(_bytes(piece))
        yield piece
    if _checksums(item.file).get(name, found.hexdigest()) != found.hexdigest():
        raise _damaged(path, name)


@contextmanager
def hdf5_items(path: Path) -> Iterator[dict[str, Any]]:
    """The arrays of an open HDF5 file by their names, those in groups with the names of these before them."""
    h5py = import_extra("h5py", "hdf5", f"reading {path}")
    try:
        with h5py.File(path, "r") as file:
            items = dict(_walk(h5py, path, file))
            for name in (name for name in _checksums(file) if name not in items):
                raise _damaged(path, name)
            yield items
    except UserError:
        raise
    # What the library raises for a damaged file: among others KeyError for links, TypeError for types of numbers.
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, AttributeError, OverflowError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"{path} is not a readable HDF5 file, it may be truncated ({reason})") from None


def _walk(h5py: Any, path: Path, file: Any) -> Iterator[tuple[str, Any]]:
    """All arrays, found through hard links only: others may lead to other files, or in circles."""
    waiting: list[tuple[str, Any, int]] = [("", file, 0)]
    seen: set[int] = set()
    while waiting:
        prefix, group, depth = waiting.pop()
        for key in group:
            name, link = f"{prefix}{key}", group.get(key, getlink=True)
            if isinstance(link, h5py.ExternalLink) and name in KNOWN:
                raise DatasetError(f"{path}: {name} is a link to another file, which is not read")
            if not isinstance(link, h5py.HardLink):
                continue
            item = group[key]
            if isinstance(item, h5py.Dataset):
                _refuse_elsewhere(path, name, item, file)
                yield name, item
            elif isinstance(item, h5py.Group):
                place = h5py.h5o.get_info(item.id).addr
                if depth < DEEPEST and place not in seen:
                    waiting.append((f"{name}/", item, depth + 1))
                seen.add(place)
            if len(waiting) + len(seen) > MOST_ITEMS:
                raise DatasetError(f"{path} has more than {MOST_ITEMS} groups")


def _refuse_elsewhere(path: Path, name: str, item: Any, file: Any) -> None:
    """Refuse an array whose numbers are in another file, or nowhere: HDF5 would give zeros where they are missing."""
    if item.external:
        raise DatasetError(f"{path}: {name} keeps its numbers in another file, which is not read")
    if not item.is_virtual:
        return
    sources, covered = item.virtual_sources(), 0
    for source in sources:
        if source.file_name != ".":
            raise DatasetError(f"{path}: {name} is a view of {source.file_name!r}, another file, which is not read")
        inner = file.get(source.dset_name)
        if inner is None or not hasattr(inner, "is_virtual") or inner.is_virtual or inner.external:
            raise DatasetError(f"{path}: {name} is a view of {source.dset_name!r}, which is not in the file")
        covered += source.vspace.get_select_npoints()
    if covered < item.size:
        raise DatasetError(f"{path}: {name} is a view that has no numbers for {item.size - covered} of its places")


def are_discrete(items: Mapping[str, Any]) -> bool:
    """Whether a file of d3rlpy's says that its actions are discrete, which may be stored as floating-point numbers."""
    return "discrete_action" in items and bool(items["discrete_action"][()])


def array_checksum(array: NDArray[Any]) -> str:
    """A digest of the type, the shape and the numbers of an array."""
    found = _header(array.dtype, array.shape)
    found.update(_bytes(array))
    return str(found.hexdigest())


def _header(dtype: np.dtype[Any], shape: Iterable[int]) -> Any:
    return hasher(f"{dtype.newbyteorder('<').str}{list(shape)}".encode())


def _bytes(array: NDArray[Any]) -> memoryview:
    return np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8).data


def _checksums(file: Any) -> dict[str, str]:
    """The digests in a file; none where another program wrote it."""
    text = file.attrs.get(CHECKSUMS)
    found = json.loads(text) if isinstance(text, str) else {}
    return found if isinstance(found, dict) else {}


def _damaged(path: Path, name: str) -> DatasetError:
    return DatasetError(f"{path} is damaged: {name} does not match its checksum")


HDF5_SLACK = 1 << 20
"""Bytes that an HDF5 file may take beside its arrays."""


def write_hdf5_arrays(
    arrays: Mapping[str, NDArray[Any]], path: Path, about: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Write named arrays to an HDF5 file, with texts `about` them and checksums."""
    h5py = import_extra("h5py", "hdf5", f"writing {path.name}")
    needs = array_bytes(arrays)
    # HDF5 may crash the process when a disk is full. Where room is short, the file is made in memory and then written.
    is_short = shutil.disk_usage(path.parent).free < 2 * needs + HDF5_SLACK
    options = {"driver": "core", "backing_store": False} if is_short else {}
    with atomic_write(path, needs=needs) as temporary, h5py.File(temporary, "w", **options) as file:
        for name, array in arrays.items():
            if array.dtype.kind == "U":
                file.create_dataset(name, data=array.astype(object), dtype=h5py.string_dtype())
            else:
                file.create_dataset(name, data=array, compression="gzip" if array.ndim else None)
        sums = {name: array_checksum(array) for name, array in arrays.items() if name in KNOWN and array.ndim}
        for name, text in {**about, CHECKSUMS: json.dumps(sums)}.items():
            file.attrs[name] = text
        if is_short:
            file.flush()
            temporary.write_bytes(file.id.get_file_image())
