"""Reading files into named arrays; `fields.py` decides what they mean."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rl_training.core.errors import DatasetError, UserError, import_extra, nearest
from rl_training.core.machine import check_memory
from rl_training.core.torch_files import read_tree
from rl_training.data.fields import KNOWN
from rl_training.data.files.hdf5 import hdf5_items
from rl_training.data.files.npz import CONVERT_HINT, npz_members


def refuse_what_is_no_file(path: Path) -> None:
    """Say what is at the path of a dataset, or what lies beside it, if it is no file."""
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


def read_npz(path: Path, *, every: bool = False) -> dict[str, Any]:
    """The arrays of an .npz file; None for unknown fields, unless `every` array is wanted.

    Pickled objects are refused, never run.
    """
    arrays: dict[str, Any] = {}
    with npz_members(path) as members:
        wanted = [each for each in members if each.name in KNOWN or (every and not each.dtype.hasobject)]
        for member in wanted:
            member.check()
        check_memory(path, sum(member.nbytes for member in wanted), hint=CONVERT_HINT)
        for member in members:
            arrays[member.name] = member.read() if member in wanted else None
    return arrays


def read_pt(path: Path) -> Any:
    """The mapping of tensors in a .pt file; code in it is refused, never run."""
    values = read_tree(path, DatasetError, what=".pt file of plain tensors", hint=CONVERT_HINT)
    if not isinstance(values, (dict, list)):
        raise DatasetError(f"{path} must hold a mapping of tensors or a list of episodes, got {type(values).__name__}")
    if isinstance(values, dict) and (wrong := [name for name in values if not isinstance(name, str)]):
        raise DatasetError(f"{path} must hold a mapping of tensors by their names, got the name {wrong[0]!r}")
    return values


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
