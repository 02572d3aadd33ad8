"""Datasets written to files: NumPy, torch, D4RL's HDF5, Minari, parquet, the mapped form."""

from __future__ import annotations

import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rl_training.core.batches import TRANSITION
from rl_training.core.errors import ConfigError, DatasetError, import_extra, nearest
from rl_training.core.files import atomic_folder, atomic_write
from rl_training.data.files.hdf5 import CHECKSUMS, checksums_text
from rl_training.data.files.mapped import write_mapped
from rl_training.data.further_fields import further_fields
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.tables.arrow import arrow_pieces
from rl_training.data.tables.in_memory import write_parquet

MINARI_ROOT = "MINARI_DATASETS_PATH"
"""The variable that tells Minari where its datasets are."""
D4RL = {"obs": "observations", "next_obs": "next_observations", "dones": "terminals", "truncations": "timeouts"}
"""D4RL's names of the fields that have another name here."""

HDF5_SLACK = 1 << 20
"""Bytes that an HDF5 file may take beside its arrays."""


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


def write_dataset(dataset: TransitionDataset, out: str, *, env: Any = None, policy: str = "unknown") -> None:
    """Write transitions in native units to a file, as a Minari dataset, or in the mapped form.

    `env` is the environment that they come from, if it is known, and `policy` says who acted.
    """
    check_destination(out)
    if not Path(out).suffix:
        _write_minari(dataset, out, env, policy)
        return
    about = {} if env is None else {"env_id": env.spec.id, "policy": policy}
    save_dataset(dataset, Path(out), about)


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
        _write_hdf5(_arrays(dataset), path, about or {})
    else:
        ARRAY_WRITERS[ending](_arrays(dataset), path)


def write_npz(dataset: TransitionDataset, path: Path) -> None:
    """Write transitions to a NumPy archive, in place of one that is there."""
    _write_npz(_arrays(_separated(dataset)), path)


def _separated(dataset: TransitionDataset) -> TransitionDataset:
    """The dataset as it is read back: rows that are no neighbours any more are cut from each other."""
    if dataset.is_ordered:
        return dataset
    return replace(dataset, truncations=~dataset.dones.bool(), tail_rewards=None, is_ordered=True)


def _arrays(dataset: TransitionDataset) -> dict[str, NDArray[Any]]:
    """The fields under D4RL's names, and with them whatever reading the file would not find again by itself."""
    fields = {**dataset.fields, "dones": dataset.dones.bool(), "truncations": dataset.truncations}
    names = [name for name in (*TRANSITION, "truncations") if name != "rewards" or dataset.has_rewards]
    return {D4RL.get(name, name): fields[name].numpy(force=True) for name in names} | further_fields(dataset)


def _write_npz(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    named: dict[str, Any] = dict(arrays)
    with atomic_write(path, needs=_most_bytes(arrays)) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, **named)


def _write_pt(arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    # A text is no tensor, but may stand beside tensors.
    values = {
        name: array.tolist() if array.dtype.kind == "U" else torch.from_numpy(np.array(array, order="C"))
        for name, array in arrays.items()
    }
    with atomic_write(path, needs=_most_bytes(arrays)) as temporary, temporary.open("wb") as file:
        torch.save(values, file)


def _most_bytes(arrays: Mapping[str, NDArray[Any]]) -> int:
    """What arrays take on disk if they cannot be compressed."""
    return sum(array.nbytes for array in arrays.values())


def _write_hdf5(
    arrays: Mapping[str, NDArray[Any]], path: Path, about: Mapping[str, str] = MappingProxyType({})
) -> None:
    h5py = import_extra("h5py", "hdf5", f"writing {path.name}")
    needs = _most_bytes(arrays)
    # HDF5 may crash the process when a disk is full. Where room is short, the file is made in memory and then written.
    is_short = shutil.disk_usage(path.parent).free < 2 * needs + HDF5_SLACK
    options = {"driver": "core", "backing_store": False} if is_short else {}
    with atomic_write(path, needs=needs) as temporary, h5py.File(temporary, "w", **options) as file:
        for name, array in arrays.items():
            if array.dtype.kind == "U":
                file.create_dataset(name, data=array.astype(object), dtype=h5py.string_dtype())
            else:
                file.create_dataset(name, data=array, compression="gzip" if array.ndim else None)
        for name, text in {**about, CHECKSUMS: checksums_text(arrays)}.items():
            file.attrs[name] = text
        if is_short:
            file.flush()
            temporary.write_bytes(file.id.get_file_image())


ARRAY_WRITERS: dict[str, Callable[[Mapping[str, NDArray[Any]], Path], None]] = {
    ".npz": _write_npz,
    ".hdf5": _write_hdf5,
    ".h5": _write_hdf5,
    ".pt": _write_pt,
}
"""Endings of files of named arrays, with what writes them."""
ENDINGS = (*ARRAY_WRITERS, ".parquet", ".rlt")


def _write_minari(dataset: TransitionDataset, dataset_id: str, env: Any, policy: str) -> None:
    minari = _minari(dataset_id)
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
    name = "an unknown environment" if env is None else env.spec.id
    # An observation of a task that gives masks begins with the mask, which is a field of its own here.
    is_known = env is not None and env.observation_space.shape == (dataset.obs_dim,)
    spaces = (env.observation_space, env.action_space) if is_known else _spaces(dataset)
    with _minari_draft(minari, dataset_id), warnings.catch_warnings():
        # Minari asks for an author and other facts that only a published dataset needs.
        warnings.filterwarnings("ignore", module=r"minari\.")
        minari.create_dataset_from_buffers(
            dataset_id,
            buffers,
            env=None if env is None else env.spec.id,
            observation_space=spaces[0],
            action_space=spaces[1],
            algorithm_name=policy,
            description=f"{len(dataset)} transitions of {name}",
        )


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


def _minari(dataset_id: str) -> Any:
    return import_extra("minari", "minari", f"writing the Minari dataset {dataset_id!r}")
