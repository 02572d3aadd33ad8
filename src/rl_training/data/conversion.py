"""Datasets from one form to another, joined, and split, on disk."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.core.options import bind
from rl_training.data.convert import stream_table, stream_to_mapped
from rl_training.data.dataset_loaders import ENDINGS, load_transition_dataset
from rl_training.data.fields import KNOWN, as_numpy
from rl_training.data.files.formats import ARRAY_WRITERS, check_destination, write_dataset
from rl_training.data.files.hdf5 import read_hdf5
from rl_training.data.files.mapped import open_mapped
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.offline_mixers import concatenate_datasets, mix_transition_datasets
from rl_training.data.readers import read_npz, read_pt
from rl_training.data.tables.columns import ColumnsConfig
from rl_training.data.tables.in_memory import table_kind

STREAMED = ("npz", "hdf5")
"""Kinds of files that are converted to the mapped form without being read into memory."""
ARRAY_READERS = {
    "npz": lambda path: read_npz(path, every=True),
    "hdf5": lambda path: read_hdf5(path, every=True),
    "pt": read_pt,
}
"""Kinds of files that hold named arrays, which are converted to each other as they are."""


class Converted(NamedTuple):
    """What a conversion came to."""

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
    plain = {name: value for name, value in arrays.items() if _is_plain(value)}
    named = {
        name: as_numpy(each) if isinstance(each, torch.Tensor) else np.asarray(each) for name, each in plain.items()
    }
    ARRAY_WRITERS[ending](named, Path(out))
    return Converted(len(dataset), [name for name in arrays if name not in plain])


def _is_plain(value: Any) -> bool:
    """Whether a value can be an array in any file: numbers or a text."""
    if isinstance(value, (torch.Tensor, int, float, str)):
        return True
    try:
        return np.asarray(value).dtype.kind in "fiubU"
    except ValueError:
        # Lists of unequal lengths.
        return False


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
