"""Reading files into named arrays; `fields.py` decides what they mean."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rl_training.data.fields import KNOWN
from rl_training.types import DatasetError, import_extra, nearest


def read_npz(path: Path) -> dict[str, Any]:
    """The arrays of an .npz file, and None for unknown fields; pickled objects are refused, never run."""
    if not zipfile.is_zipfile(path):
        raise DatasetError(f"{path} is not a readable .npz file, it may be truncated (no complete archive of arrays)")
    arrays: dict[str, Any] = {}
    name = "it"
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in file.files:
                arrays[name] = file[name] if name in KNOWN else None
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
        if "pickle" in str(error):
            wrong = f"{name} holds pickled Python objects, which are not read"
            raise DatasetError(f"{path}: {wrong}; save it as a plain array") from None
        raise DatasetError(f"{path} is not a readable .npz file, it may be truncated ({error})") from None
    return arrays


def read_pt(path: Path) -> Any:
    """The mapping of tensors in a .pt file; code in it is refused, never run."""
    try:
        values = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DatasetError(f"{path} is not a readable .pt file of plain tensors ({reason})") from None
    if not isinstance(values, (dict, list)):
        raise DatasetError(f"{path} must hold a mapping of tensors or a list of episodes, got {type(values).__name__}")
    return values


def read_hdf5(path: Path) -> dict[str, Any]:
    """The arrays of an HDF5 file in D4RL's or d3rlpy's layout, and None for unknown fields."""
    h5py = import_extra("h5py", "hdf5", f"reading {path}")
    try:
        with h5py.File(path, "r") as file:
            items = {name: item for name, item in file.items() if isinstance(item, h5py.Dataset)}
            arrays: dict[str, Any] = {name: item[()] if name in KNOWN else None for name, item in items.items()}
            if "discrete_action" in items and bool(items["discrete_action"][()]) and arrays.get("actions") is not None:
                # d3rlpy may store choices as floating-point numbers, and says beside them that they are choices.
                arrays["actions"] = arrays["actions"].astype(np.int64)
            return arrays
    except OSError as error:
        raise DatasetError(f"{path} is not a readable HDF5 file, it may be truncated ({error})") from None


def read_minari(dataset_id: str, *, download: bool) -> list[Any]:
    """The episodes of a Minari dataset on this machine, fetched first if that is asked for."""
    minari = import_extra("minari", "minari", f"reading the Minari dataset {dataset_id!r}")
    local = list(minari.list_local_datasets())
    if dataset_id not in local:
        if not download:
            folder = minari.storage.get_dataset_path("")
            hint = nearest(dataset_id, local) or "; set dataset_download: true to fetch it"
            raise DatasetError(f"Minari dataset {dataset_id!r} is not in {folder}{hint}")
        try:
            minari.download_dataset(dataset_id)
        except Exception as error:
            wrong = f"Minari dataset {dataset_id!r} could not be downloaded ({type(error).__name__}: {error})"
            hint = "check the id and the network, or copy the dataset into MINARI_DATASETS_PATH"
            raise DatasetError(f"{wrong}; {hint}") from None
    return list(minari.load_dataset(dataset_id))
