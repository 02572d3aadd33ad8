"""Files that appear whole or not at all."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from rl_training.core.errors import DatasetError, StorageError, nearest
from rl_training.core.text import size_text

FULL = (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def atomic_write(path: Path, *, needs: int | None = None) -> Iterator[Path]:
    """Write to a temporary name and rename on success; delete the temporary file on failure.

    The file is on disk before it gets its name, so that a crash at any instant leaves the old file or the new one.
    `needs` are the bytes that it takes, for the error on a full disk.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path, needs=needs):
        # A crash may have left a hard link here: writing through it would destroy the file it is linked to.
        temporary.unlink(missing_ok=True)
        try:
            yield temporary
            _sync(temporary)
            temporary.replace(path)
        finally:
            # What hinders writing may hinder this too, and must not take the place of its error.
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        if os.name == "posix":
            _sync(path.parent)


def link_or_copy(existing: Path, other: Path) -> None:
    """Give a file a second name, or copy it where the file system has no links."""
    try:
        os.link(existing, other)
    except OSError:
        shutil.copyfile(existing, other)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Make a folder under a temporary name and rename it on success; delete it on failure."""
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            yield temporary
            for inside in temporary.rglob("*"):
                _sync(inside)
            temporary.rename(path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        if os.name == "posix":
            _sync(path.parent)


@contextmanager
def writing(path: Path, *, needs: int | None = None) -> Iterator[None]:
    """Say in one sentence why a file cannot be written, by whatever library; errors about other files pass."""
    try:
        yield
    except StorageError:
        raise
    except (OSError, RuntimeError) as error:
        if is_full(error):
            free = size_text(shutil.disk_usage(path.parent).free)
            wanted = f"it needs {size_text(needs)}, and {free} are free" if needs else f"{free} are free"
            raise StorageError(f"{path} cannot be written, the disk is full: {wanted}; make room") from None
        if isinstance(error, OSError) and _is_about(error, path):
            raise StorageError(f"{path} cannot be written: {error.strerror}") from None
        # torch ends an archive even if a write has failed, and then complains about its length.
        hidden = next((each for each in _chain(error) if isinstance(each, OSError)), None)
        if isinstance(error, RuntimeError) and hidden is not None:
            raise StorageError(f"{path} cannot be written: {hidden.strerror}") from None
        raise


def is_full(error: BaseException) -> bool:
    """Whether an error comes from a full disk; some libraries hide that in errors of their own."""
    return any(
        (isinstance(each, OSError) and each.errno in FULL) or any(os.strerror(number) in str(each) for number in FULL)
        for each in _chain(error)
    )


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error and those that it came from."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _is_about(error: OSError, path: Path) -> bool:
    """Whether an error is about a file, its temporary name, or the folder it is in."""
    if error.errno == errno.EROFS:
        return True
    names = (path, path.parent, path.with_name(f".{path.name}.tmp"))
    return isinstance(error.filename, (str, Path)) and Path(error.filename) in names


def write_text(path: Path, text: str) -> None:
    """Replace a text file as a whole."""
    with atomic_write(path, needs=len(text.encode())) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: Path, values: Mapping[str, Any], *, indent: int = 2) -> None:
    """Replace a JSON file as a whole."""
    write_text(path, json.dumps(values, indent=indent) + "\n")


def _sync(path: Path) -> None:
    # Windows syncs only what is open for writing.
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refuse_what_is_no_file(path: Path) -> None:
    """Refuse a dataset path that is no file, with a hint at files beside it."""
    if path.is_file():
        return
    if path.is_dir():
        raise DatasetError(f"dataset_path {str(path)!r} is a folder, expected a file")
    if path.is_symlink() and not path.exists():
        raise DatasetError(f"dataset_path {str(path)!r} is a link that leads nowhere")
    if path.exists():
        raise DatasetError(f"dataset_path {str(path)!r} is neither a file nor a folder")
    beside = [item.name for item in path.parent.iterdir()] if path.parent.is_dir() else []
    raise DatasetError(f"dataset_path {str(path)!r} does not exist{nearest(path.name, beside)}")
