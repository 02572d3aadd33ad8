"""One copy of a dataset for many processes: a mapped folder in place of the file that options name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rl_training.data.dataset_loaders import DatasetSpec

_SHARED: dict[str, str] = {}
"""Folders that hold what a file holds, by what `shared_key` calls the file."""


def shared_key(spec: DatasetSpec) -> str | None:
    """What a dataset in a file is called as long as the file does not change; None where there is no single file."""
    kind, path = spec.kind(), Path(str(spec.dataset_path))
    if kind not in ("npz", "pt", "hdf5", "csv", "parquet") or not path.is_file():
        return None
    status = path.stat()
    columns = None if spec.dataset_columns is None else asdict(spec.dataset_columns)
    return json.dumps([kind, str(path.resolve()), status.st_size, status.st_mtime_ns, columns])


@contextmanager
def use_shared(folders: Mapping[str, str]) -> Iterator[None]:
    """In this block, read these folders instead of the files that they were made of."""
    before = dict(_SHARED)
    _SHARED.update(folders)
    try:
        yield
    finally:
        _SHARED.clear()
        _SHARED.update(before)


def find_shared(spec: DatasetSpec) -> Path | None:
    """The folder that takes the place of a file, if there is one."""
    key = shared_key(spec) if _SHARED else None
    folder = None if key is None else _SHARED.get(key)
    return None if folder is None or not Path(folder).is_dir() else Path(folder)
