"""NumPy archives, read array by array or piece by piece, and never larger than they say."""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError
from rl_training.core.files import atomic_write
from rl_training.core.machine import check_memory
from rl_training.core.torch_files import BAD_CHECKSUM
from rl_training.data.fields import KNOWN

BROKEN = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, struct.error, tokenize.TokenError, EOFError, OSError),
    *(ValueError, TypeError, LookupError, NotImplementedError, RuntimeError, SyntaxError, OverflowError),
)
"""Errors that a damaged archive may raise."""

CONVERT_HINT = "data convert makes a folder .rlt of an .npz or HDF5 file, which is not read into memory"

PIECE = 1 << 24
"""Bytes read at a time."""


@dataclass(frozen=True)
class Member:
    """One array of an archive."""

    path: Path
    archive: zipfile.ZipFile
    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    is_fortran: bool
    held: int
    """Bytes that the archive holds for it."""

    @property
    def nbytes(self) -> int:
        """Bytes of the whole array."""
        return math.prod(self.shape) * self.dtype.itemsize

    def check(self) -> None:
        """Refuse pickled objects, and a size that is not what the archive holds."""
        if self.dtype.hasobject:
            wrong = f"{self.name} holds pickled Python objects, which are not read"
            raise DatasetError(f"{self.path}: {wrong}; save it as a plain array")
        if self.nbytes != self.held:
            claim = f"{self.name} claims shape {self.shape}, {self.nbytes} bytes, but the file holds {self.held}"
            raise DatasetError(f"{self.path}: {claim}")

    def read(self) -> NDArray[Any]:
        """The whole array."""
        with self.archive.open(f"{self.name}.npy") as file:
            array: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
            _compare_checksum(file)
            return array

    def pieces(self) -> Iterator[NDArray[Any]]:
        """The rows, a piece at a time; an array in Fortran's order is read whole."""
        if self.is_fortran or not self.shape:
            yield self.read()
            return
        width = math.prod(self.shape[1:]) * self.dtype.itemsize
        step = max(PIECE // max(width, 1), 1)
        with self.archive.open(f"{self.name}.npy") as file:
            _read_header(file)
            for start in range(0, self.shape[0], step):
                rows = min(step, self.shape[0] - start)
                yield np.frombuffer(file.read(rows * width), self.dtype).reshape(rows, *self.shape[1:])
            _compare_checksum(file)


@contextmanager
def npz_members(path: Path) -> Iterator[list[Member]]:
    """The arrays of an open archive."""
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path} is not a readable .npz file, it may be truncated (no complete archive of arrays)")
    try:
        with zipfile.ZipFile(path) as archive:
            names = [info.filename for info in archive.infolist() if info.filename.endswith(".npy")]
            yield [_member(path, archive, name) for name in names]
    except DatasetError:
        raise
    except BROKEN as error:
        if str(error).startswith(BAD_CHECKSUM):
            raise DatasetError(f"{path} is damaged: its contents do not match its checksum") from None
        raise DatasetError(f"{path} is not a readable .npz file, it may be truncated ({error})") from None


def _member(path: Path, archive: zipfile.ZipFile, filename: str) -> Member:
    name = filename.removesuffix(".npy")
    with archive.open(filename) as file:
        shape, is_fortran, dtype = _read_header(file)
        header = file.tell()
    held = archive.getinfo(filename).file_size - header
    return Member(path, archive, name, dtype, shape, is_fortran, held)


def _compare_checksum(file: IO[bytes]) -> None:
    """Go to the end of a member: the archive compares it with its checksum there, and not before."""
    file.read(1)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    return shape, is_fortran, dtype


def read_npz(path: Path, *, every: bool = False) -> dict[str, Any]:
    """The arrays of an .npz file; None for unknown fields, unless `every` array is wanted.

    Pickled objects are refused, never run.
    """
    arrays: dict[str, Any] = {}
    with npz_members(path) as members:
        wanted = [each for each in members if each.name in KNOWN or (every and not each.dtype.hasobject)]
        for member in wanted:
            member.check()
        check_memory(path, sum(member.nbytes for member in wanted), hint=CONVERT_HINT)
        for member in members:
            arrays[member.name] = member.read() if member in wanted else None
    return arrays


def write_npz_arrays(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Write named arrays to a NumPy archive."""
    named: dict[str, Any] = dict(arrays)
    with atomic_write(path, needs=array_bytes(arrays)) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **named)


def array_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """The bytes that arrays take on disk if they cannot be compressed."""
    return sum(array.nbytes for array in arrays.values())
