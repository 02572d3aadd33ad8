"""NumPy archives, read array by array or piece by piece, and never larger than they say."""

from __future__ import annotations

import importlib
import math
import os
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from rl_training.types import DatasetError

BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError, RuntimeError)
"""What a damaged archive may raise."""
CONVERT_HINT = "data convert makes a folder .rlt of an .npz or HDF5 file, which is not read into memory"
CONTROL_GROUP = Path("/sys/fs/cgroup")
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
        raise DatasetError(f"{path} is not a readable .npz file, it may be truncated ({error})") from None


def _member(path: Path, archive: zipfile.ZipFile, filename: str) -> Member:
    name = filename.removesuffix(".npy")
    with archive.open(filename) as file:
        shape, is_fortran, dtype = _read_header(file)
        header = file.tell()
    held = archive.getinfo(filename).file_size - header
    return Member(path, archive, name, dtype, shape, is_fortran, held)


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    return shape, is_fortran, dtype


def check_memory(path: Path, needed: int) -> None:
    """Refuse to read more than there is memory for."""
    free = _free_memory()
    if free is not None and needed > free:
        sizes = f"{needed / 2**30:.1f} GiB of arrays, and {free / 2**30:.1f} GiB of memory are free"
        raise DatasetError(f"{path} holds {sizes}; if that is right, {CONVERT_HINT}")


def _free_memory() -> int | None:
    """Bytes of memory that can be taken; None where the system does not say."""
    found = [each for each in (_free_on_machine(), _free_in_container(), _free_for_process()) if each is not None]
    return min(found, default=None)


def _free_on_machine() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        names = getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else None


def _free_in_container() -> int | None:
    """What the control group leaves; a process that takes more is killed, without an error."""
    try:
        limit, used = (int((CONTROL_GROUP / f"memory.{name}").read_text("ascii")) for name in ("max", "current"))
        stat = dict(line.split() for line in (CONTROL_GROUP / "memory.stat").read_text("ascii").splitlines())
        # Files that are kept in memory make room when it is needed.
        return max(limit - used + int(stat["file"]), 0)
    except (OSError, ValueError, KeyError):
        # There is no limit, or it says "max".
        return None


def _free_for_process() -> int | None:
    """What `ulimit -v` leaves."""
    try:
        resource = importlib.import_module("resource")
        limit = int(resource.getrlimit(resource.RLIMIT_AS)[0])
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    except (ImportError, OSError, ValueError):
        return None
    return None if limit < 0 else max(limit - pages * os.sysconf("SC_PAGE_SIZE"), 0)
