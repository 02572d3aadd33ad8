"""Kill a process at an operation on the files of its run: before it, in the middle of a write, or after it."""

from __future__ import annotations

import io
import os
import signal
from collections.abc import Callable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple


class Kill(NamedTuple):
    """When a run is killed: at an operation on its files, by number, or after some seconds."""

    case: str
    operation: int | None
    moment: str
    seconds: float = 0.0
    again: int | None = None
    """The operation at which the run that continues is killed too."""


class Operations:
    """Counts what a process does to files below a folder, and kills it and its workers at one of these operations."""

    NAMES = ("fsync", "replace", "rename", "link", "unlink", "remove", "mkdir", "rmdir")

    def __init__(self, folder: Path, kill: Kill | None) -> None:
        self.folder, self.kill = str(folder), kill
        self.seen: list[str] = []

    def install(self) -> None:
        """From here on, count."""
        for name in self.NAMES:
            setattr(os, name, self._watched(name, getattr(os, name)))
        original = io.open
        io.open = lambda file, mode="r", *values, **named: self._opened(
            file, mode, original(file, mode, *values, **named)
        )

    def _watched(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*values: Any, **named: Any) -> Any:
            if not self._is_inside(values[0], named.get("dir_fd") or named.get("src_dir_fd")):
                return original(*values, **named)
            number = self._begin(name)
            try:
                return original(*values, **named)
            finally:
                # Also where there was nothing to unlink.
                self._die_if(number, "after")

        return call

    def _opened(self, file: Any, mode: str, opened: Any) -> Any:
        writes = any(letter in mode for letter in "wax+")
        return Written(opened, self) if writes and self._is_inside(file, None) else opened

    def write(self, file: Any, data: Any) -> Any:
        """Write, and perhaps only half of it."""
        number = self._begin("write")
        if self.kill is not None and self.kill.moment == "middle" and self.kill.operation == number:
            file.write(data[: len(data) // 2])
            file.flush()
            self._die_if(number, "middle")
        result = file.write(data)
        if self.kill is not None and self.kill.operation == number:
            file.flush()
        self._die_if(number, "after")
        return result

    def _begin(self, name: str) -> int:
        self.seen.append(name)
        number = len(self.seen) - 1
        self._die_if(number, "before")
        return number

    def _die_if(self, number: int, moment: str) -> None:
        if self.kill is not None and (self.kill.operation, self.kill.moment) == (number, moment):
            os.killpg(0, signal.SIGKILL)

    def _is_inside(self, place: Any, folder: int | None) -> bool:
        """Whether an operation is on the files of the run."""
        if isinstance(place, int) or folder is not None:
            place = Path(f"/proc/self/fd/{place if folder is None else folder}").readlink()
        # Path.resolve would look at the files.
        return os.path.abspath(os.fsdecode(place)).startswith(self.folder)  # noqa: PTH100


class Written:
    """An open file whose writes are counted."""

    def __init__(self, file: Any, operations: Operations) -> None:
        self.file, self.operations = file, operations

    def write(self, data: Any) -> Any:
        return self.operations.write(self.file, data)

    def __enter__(self) -> Written:
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def moments_of(case: str, operations: list[str], *, every_write: bool) -> Iterator[Kill]:
    """All moments around operations; of the writes in a row, as a file is written, only the ends and one in between."""
    start = 0
    for name, group in groupby(operations):
        count = len(list(group))
        numbers = range(start, start + count)
        start += count
        if name == "write" and not every_write:
            yield Kill(case, numbers[0], "before")
            yield Kill(case, numbers[count // 2], "middle")
            yield Kill(case, numbers[-1], "after")
        else:
            moments = ("before", "middle", "after") if name == "write" else ("before", "after")
            yield from (Kill(case, number, moment) for number in numbers for moment in moments)
