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
from rl_training.types import ConfigError, MissingExtraError, nearest

ENDINGS = (".npz", ".hdf5", ".h5")


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
        return
    if ending == ".npz":
        write_npz(dataset, Path(out))
    else:
        _write_hdf5(dataset, Path(out), {"env_id": env.spec.id, "policy": policy})


def write_npz(dataset: TransitionDataset, path: Path) -> None:
    """Write transitions to a NumPy archive, in place of one that is there."""
    arrays: dict[str, Any] = _arrays(dataset)
    with atomic_write(path) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **arrays)


def _arrays(dataset: TransitionDataset) -> dict[str, NDArray[Any]]:
    names = {"observations": "obs", "actions": "actions", "rewards": "rewards", "next_observations": "next_obs"}
    if "achieved_goals" in dataset.fields:
        names["achieved_goals"] = "achieved_goals"
    arrays = {name: dataset.fields[field].numpy(force=True) for name, field in names.items()}
    ends = {"terminals": dataset.fields["dones"].bool(), "timeouts": dataset.truncations}
    return arrays | {name: flags.numpy(force=True) for name, flags in ends.items()}


def _write_hdf5(dataset: TransitionDataset, path: Path, about: dict[str, str]) -> None:
    try:
        import h5py
    except ImportError:
        raise MissingExtraError("h5py", "hdf5", f"writing {path.name}") from None
    with atomic_write(path) as temporary, h5py.File(temporary, "w") as file:
        for name, array in _arrays(dataset).items():
            file.create_dataset(name, data=array, compression="gzip")
        for name, text in about.items():
            file.attrs[name] = text


def _write_minari(dataset: TransitionDataset, dataset_id: str, env: Any, policy: str) -> None:
    minari = _minari(dataset_id)
    buffers = [
        minari.data_collector.EpisodeBuffer(
            id=number,
            observations=episode.observations.numpy(),
            actions=episode.actions.numpy(),
            rewards=episode.rewards.numpy(),
            terminations=episode.terminations.numpy(),
            truncations=episode.truncations.numpy(),
        )
        for number, episode in enumerate(dataset.episodes())
    ]
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
    try:
        import minari
        import minari.data_collector
    except ImportError:
        raise MissingExtraError("minari", "minari", f"writing the Minari dataset {dataset_id!r}") from None
    return minari
