"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Write to a temporary name and rename on success; delete the temporary file on failure.

    The file is on disk before it gets its name, so that a crash at any instant leaves the old file or the new one.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    # A crash may have left a hard link here: writing through it would destroy the file it is linked to.
    temporary.unlink(missing_ok=True)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if os.name == "posix":
        _sync(path.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder under a temporary name and rename it on success; delete it on failure."""
    temporary = path.with_name(f".{path.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            _sync(file)
        temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    if os.name == "posix":
        _sync(path.parent)


def write_text(path: Path, text: str) -> None:
    """Replace a text file as a whole."""
    with atomic_write(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _sync(path: Path) -> None:
    # Windows syncs only what is open for writing.
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
