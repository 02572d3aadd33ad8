"""Datasets written for others to read: NumPy, D4RL's HDF5, Minari."""

from __future__ import annotations

import re
import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.files import atomic_write
from rl_training.reading import TRANSITION
from rl_training.types import ConfigError, import_extra, nearest

ENDINGS = (".npz", ".hdf5", ".h5")
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
    minari = _minari(out)
    try:
        minari.dataset.minari_dataset.parse_dataset_id(out)
    except ValueError:
        raise ConfigError(f"{out!r} is no id of a Minari dataset; expected one such as mine/pendulum-v0") from None
    if minari.storage.get_dataset_path(out).exists():
        raise ConfigError(f"the Minari dataset id {out!r} exists already")


def write_dataset(dataset: TransitionDataset, out: str, *, env: Any, policy: str) -> None:
    """Write transitions in native units to a file, under D4RL's names, or as a Minari dataset.

    `env` is the environment that they come from, `policy` says who acted.
    """
    check_destination(out)
    ending = Path(out).suffix.lower()
    if not ending:
        _write_minari(dataset, out, env, policy)
    elif ending == ".npz":
        write_npz(dataset, Path(out))
    else:
        _write_hdf5(dataset, Path(out), {"env_id": env.spec.id, "policy": policy})


def save_dataset(dataset: TransitionDataset, path: Path) -> None:
    """Write transitions to an .npz or .hdf5 file, under D4RL's names, in place of one that is there."""
    if path.suffix.lower() not in ENDINGS:
        hint = nearest(path.suffix, ENDINGS)
        raise ConfigError(f"a dataset is saved to a file that ends in {', '.join(ENDINGS)}, got {str(path)!r}{hint}")
    if path.suffix.lower() == ".npz":
        write_npz(dataset, path)
    else:
        _write_hdf5(dataset, path, {})


def write_npz(dataset: TransitionDataset, path: Path) -> None:
    """Write transitions to a NumPy archive, in place of one that is there."""
    arrays: dict[str, Any] = _arrays(dataset)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _arrays(dataset: TransitionDataset) -> dict[str, NDArray[Any]]:
    fields = {**dataset.fields, "dones": dataset.dones.bool(), "truncations": dataset.truncations}
    names = [name for name in (*TRANSITION, "truncations", "achieved_goals") if name in fields]
    return {D4RL.get(name, name): fields[name].numpy(force=True) for name in names}


def _write_hdf5(dataset: TransitionDataset, path: Path, about: dict[str, str]) -> None:
    h5py = import_extra("h5py", "hdf5", f"writing {path.name}")
    with atomic_write(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in _arrays(dataset).items():
            file.create_dataset(name, data=array, compression="gzip")
        for name, text in about.items():
            file.attrs[name] = text


def _write_minari(dataset: TransitionDataset, dataset_id: str, env: Any, policy: str) -> None:
    minari = _minari(dataset_id)
    buffers = []
    for number, episode in enumerate(dataset.episodes()):
        arrays = {name: value.numpy(force=True) for name, value in vars(episode).items() if value is not None}
        goals = arrays.pop("achieved_goals", None)
        # Infos begin with the reset, after which the achieved goal is not known.
        infos = {} if goals is None else {"achieved_goals": np.insert(goals, 0, np.nan, axis=0)}
        buffers.append(minari.data_collector.EpisodeBuffer(id=number, **arrays, infos=infos))
    try:
        with warnings.catch_warnings():
            # Minari asks for an author and other facts that only a published dataset needs.
            warnings.filterwarnings("ignore", module=r"minari\.")
            minari.create_dataset_from_buffers(
                dataset_id,
                buffers,
                env=env.spec.id,
                observation_space=env.observation_space,
                action_space=env.action_space,
                algorithm_name=policy,
                description=f"{len(dataset)} transitions of {env.spec.id}",
            )
    except BaseException:
        shutil.rmtree(minari.storage.get_dataset_path(dataset_id), ignore_errors=True)
        raise


def _minari(dataset_id: str) -> Any:
    return import_extra("minari", "minari", f"writing the Minari dataset {dataset_id!r}")
