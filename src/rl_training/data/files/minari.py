"""Minari datasets, read and written."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl_training.core.errors import DatasetError, UserError, import_extra, nearest
from rl_training.core.files import atomic_folder
from rl_training.core.machine import check_memory
from rl_training.data.files.hdf5 import hdf5_items
from rl_training.data.offline_dataset import TransitionDataset, further_fields

MINARI_ROOT = "MINARI_DATASETS_PATH"
"""The variable that tells Minari where its datasets are."""


def write_minari(dataset: TransitionDataset, dataset_id: str, env: Any, policy: str) -> None:
    """Write a dataset as a Minari dataset of this id."""
    minari = import_minari(dataset_id)
    _check_steps(dataset)
    beside = further_fields(dataset)
    buffers = []
    for number, ((start, stop), episode) in enumerate(
        zip(dataset.episode_bounds().tolist(), dataset.episodes(), strict=True)
    ):
        arrays = {name: value.numpy(force=True) for name, value in vars(episode).items() if value is not None}
        arrays.pop("achieved_goals", None)
        # Infos begin with the reset, for which there is no value yet.
        columns = {name: values[start:stop] for name, values in beside.items()}
        infos = {name: np.concatenate([_blank(column), column]) for name, column in columns.items()}
        buffers.append(minari.data_collector.EpisodeBuffer(id=number, **arrays, infos=infos))
    name = None if env is None else env.spec.id
    # An observation of a task that gives masks begins with the mask, which is a field of its own here.
    is_known = env is not None and env.observation_space.shape == (dataset.obs_dim,)
    spaces = (env.observation_space, env.action_space) if is_known else _spaces(dataset)
    about = {"env": name, "algorithm_name": policy, "observation_space": spaces[0], "action_space": spaces[1]}
    about["description"] = f"{len(dataset)} transitions of {name or 'an unknown environment'}"
    with _minari_draft(minari, dataset_id), warnings.catch_warnings():
        # Minari asks for an author and other facts that only a published dataset needs.
        warnings.filterwarnings("ignore", module=r"minari\.")
        minari.create_dataset_from_buffers(dataset_id, buffers, **about)


@contextmanager
def _minari_draft(minari: Any, dataset_id: str) -> Iterator[None]:
    """Let Minari write to a hidden folder, and give the dataset its place when it is whole.

    Minari itself writes into the final place, where a process that is killed leaves half a dataset.
    """
    place, namespace = minari.storage.get_dataset_path(dataset_id), dataset_id.rpartition("/")[0]
    if namespace and namespace not in minari.namespace.list_local_namespaces():
        minari.namespace.create_namespace(namespace)
    before = os.environ.get(MINARI_ROOT)
    with atomic_folder(place) as draft:
        os.environ[MINARI_ROOT] = str(draft)
        try:
            yield
        finally:
            os.environ.pop(MINARI_ROOT)
            if before is not None:
                os.environ[MINARI_ROOT] = before
        (draft / dataset_id / "data").rename(draft / "data")
        shutil.rmtree(draft / dataset_id.partition("/")[0])


def _blank(column: NDArray[Any]) -> NDArray[Any]:
    """A row that stands for no value."""
    return np.full_like(column[:1], np.nan if column.dtype.kind == "f" else 0)


def _check_steps(dataset: TransitionDataset) -> None:
    """Refuse what T + 1 observations cannot hold: steps that do not begin where the step before them ended."""
    if not dataset.has_rewards:
        raise DatasetError("Minari holds a reward for every step, and the data has none")
    if not dataset.has_episodes:
        raise DatasetError("Minari holds whole episodes, and the rows are mixed or seem shuffled")
    after, following_obs = dataset.next_obs[:-1], dataset.obs[1:]
    wrong = (after != following_obs).any(1) & ~dataset.episode_ends[:-1]
    if bool(wrong.any()):
        row, count = int(wrong.nonzero()[0]), int(wrong.sum())
        place = f"in {count} rows next_obs is not the obs of the row after it; the first is row {row}"
        raise DatasetError(f"Minari keeps each observation once, but {place}")


def _spaces(dataset: TransitionDataset) -> tuple[Any, Any]:
    """Spaces that hold all logged values, where no environment says what they are."""
    spaces = import_extra("gymnasium.spaces", "minari", "writing a Minari dataset")
    obs = spaces.Box(-np.inf, np.inf, (dataset.obs_dim,), np.float32)
    actions = dataset.actions.numpy(force=True)
    if dataset.is_discrete:
        return obs, spaces.Discrete(int(actions.max() - min(actions.min(), 0)) + 1, start=int(min(actions.min(), 0)))
    low, high = np.minimum(actions.min(axis=0), -1), np.maximum(actions.max(axis=0), 1)
    return obs, spaces.Box(low, high, dtype=np.float32)


def import_minari(dataset_id: str) -> Any:
    """The package minari; without it, an error that names the extra."""
    return import_extra("minari", "minari", f"writing the Minari dataset {dataset_id!r}")


def read_minari(dataset_id: str, *, download: bool) -> list[Any]:
    """The episodes of a Minari dataset on this machine, fetched first if that is asked for."""
    minari = import_extra("minari", "minari", f"reading the Minari dataset {dataset_id!r}")
    with _explained(dataset_id):
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
    with _explained(dataset_id):
        folder = Path(minari.storage.get_dataset_path(dataset_id))
        for file in sorted((folder / "data").glob("*.hdf5")):
            with hdf5_items(file) as items:
                check_memory(file, sum(item.nbytes for item in items.values()))
        return list(minari.load_dataset(dataset_id))


@contextmanager
def _explained(dataset_id: str) -> Iterator[None]:
    """Say in one sentence that a Minari dataset is damaged, whatever its reader raises."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else "no reason given"
        wrong = f"Minari dataset {dataset_id!r} cannot be read, it may be damaged"
        raise DatasetError(f"{wrong} ({type(error).__name__}: {reason})") from None
