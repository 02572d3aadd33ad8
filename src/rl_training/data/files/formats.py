"""Datasets written to files: NumPy, torch, D4RL's HDF5, Minari, parquet, the mapped form."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.core.batches import TRANSITION
from rl_training.core.errors import ConfigError, DatasetError, nearest
from rl_training.core.files import atomic_write
from rl_training.core.torch_files import read_tree
from rl_training.data.files.hdf5 import write_hdf5_arrays
from rl_training.data.files.mapped import write_mapped
from rl_training.data.files.minari import import_minari, write_minari
from rl_training.data.files.npz import CONVERT_HINT, array_bytes, write_npz_arrays
from rl_training.data.offline_dataset import TransitionDataset, further_fields
from rl_training.data.tables.arrow import arrow_pieces
from rl_training.data.tables.in_memory import write_parquet

D4RL = {"obs": "observations", "next_obs": "next_observations", "dones": "terminals", "truncations": "timeouts"}
"""D4RL's names of the fields that have another name here."""


def check_destination(out: str) -> None:
    """Refuse a destination that cannot be written to, before anything is collected for it."""
    path = Path(out)
    if path.suffix.lower() in ENDINGS:
        if not path.parent.is_dir():
            raise ConfigError(f"the folder of {out!r} does not exist")
        if path.exists():
            raise ConfigError(f"{out!r} exists already; choose another name or delete it")
        return
    if path.suffix:
        hint = nearest(path.suffix, ENDINGS)
        raise ConfigError(f"{out!r} must end in {', '.join(ENDINGS)}, or be the id of a Minari dataset{hint}")
    if not re.search(r"-v\d+$", out):
        raise ConfigError(f"the Minari dataset id {out!r} has no version, such as -v0")
    minari = import_minari(out)
    try:
        minari.dataset.minari_dataset.parse_dataset_id(out)
    except ValueError:
        raise ConfigError(f"{out!r} is no id of a Minari dataset; expected one such as mine/pendulum-v0") from None
    if minari.storage.get_dataset_path(out).exists():
        raise ConfigError(f"the Minari dataset id {out!r} exists already")


def write_dataset(dataset: TransitionDataset, out: str, *, env: Any = None, policy: str = "unknown") -> None:
    """Write transitions in native units to a file, as a Minari dataset, or in the mapped form.

    `env` is the environment that they come from, if it is known, and `policy` the name of the policy that acted.
    """
    check_destination(out)
    if not Path(out).suffix:
        write_minari(dataset, out, env, policy)
    else:
        save_dataset(dataset, Path(out), {} if env is None else {"env_id": env.spec.id, "policy": policy})


def save_dataset(dataset: TransitionDataset, path: Path, about: Mapping[str, str] | None = None) -> None:
    """Write transitions to a file, in place of one that is there; HDF5 files keep texts `about`."""
    ending, dataset = path.suffix.lower(), _separated(dataset)
    if ending not in ENDINGS:
        hint = nearest(path.suffix, ENDINGS)
        raise ConfigError(f"a dataset is saved to a file that ends in {', '.join(ENDINGS)}, got {str(path)!r}{hint}")
    if ending == ".rlt":
        write_mapped(dataset, path)
    elif ending == ".parquet":
        write_parquet(arrow_pieces(dataset), path)
    elif ending in (".hdf5", ".h5"):
        write_hdf5_arrays(_arrays(dataset), path, about or {})
    else:
        ARRAY_WRITERS[ending](_arrays(dataset), path)


def write_npz(dataset: TransitionDataset, path: Path) -> None:
    """Write transitions to a NumPy archive, in place of one that is there."""
    write_npz_arrays(_arrays(_separated(dataset)), path)


def _separated(dataset: TransitionDataset) -> TransitionDataset:
    """The dataset as it is read back: rows that are no neighbours any more are cut from each other."""
    if dataset.is_ordered:
        return dataset
    return replace(dataset, truncations=~dataset.dones.bool(), tail_rewards=None, is_ordered=True)


def _arrays(dataset: TransitionDataset) -> dict[str, NDArray[Any]]:
    """The fields under D4RL's names, and the optional columns that cannot be derived."""
    fields = {**dataset.fields, "dones": dataset.dones.bool(), "truncations": dataset.truncations}
    names = [name for name in (*TRANSITION, "truncations") if name != "rewards" or dataset.has_rewards]
    return {D4RL.get(name, name): fields[name].numpy(force=True) for name in names} | further_fields(dataset)


def _write_pt(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    # A text is no tensor, but may stand beside tensors.
    texts = {name: array.tolist() for name, array in arrays.items() if array.dtype.kind == "U"}
    values = {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items() if name not in texts}
    with atomic_write(path, needs=array_bytes(arrays)) as temporary, temporary.open("wb") as file:
        torch.save(texts | values, file)


ARRAY_WRITERS: dict[str, Callable[[Mapping[str, NDArray[Any]], Path], None]] = {
    ".npz": write_npz_arrays,
    ".hdf5": write_hdf5_arrays,
    ".h5": write_hdf5_arrays,
    ".pt": _write_pt,
}
"""Endings of files of named arrays, with what writes them."""

ENDINGS = (*ARRAY_WRITERS, ".parquet", ".rlt")


def read_pt(path: Path) -> Any:
    """The mapping of tensors in a .pt file; code in it is refused, never run."""
    values = read_tree(path, DatasetError, what=".pt file of plain tensors", hint=CONVERT_HINT)
    if not isinstance(values, (dict, list)):
        raise DatasetError(f"{path} must hold a mapping of tensors or a list of episodes, got {type(values).__name__}")
    if isinstance(values, dict) and (wrong := [name for name in values if not isinstance(name, str)]):
        raise DatasetError(f"{path} must hold a mapping of tensors by their names, got the name {wrong[0]!r}")
    return values
