"""Files into arrays: what is read, what is refused, and that nothing in a file is ever run."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import minari
import numpy as np
import pytest
import torch

from rl_training.core import machine as memory
from rl_training.core.errors import DatasetError, MissingExtraError
from rl_training.data.files.formats import read_pt
from rl_training.data.files.hdf5 import read_hdf5
from rl_training.data.files.minari import read_minari
from rl_training.data.files.npz import read_npz


class Trap:
    """An object that leaves a file behind when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.marker,)


ARRAYS = {"observations": np.arange(6.0).reshape(3, 2), "rewards": np.arange(3.0), "infos": np.arange(2.0)}


def write_hdf5(path: Path, **values: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, value in values.items():
            file[name] = value
    return path


def write_npz(path: Path, **values: Any) -> Path:
    np.savez(path, **values)
    return path


def cut_short(path: Path, fraction: float) -> Path:
    """Keep the first part of a file, as an interrupted copy does."""
    whole = path.read_bytes()
    path.write_bytes(whole[: int(fraction * len(whole))])
    return path


def test_the_trap_works(tmp_path: Path) -> None:
    # Otherwise the tests that nothing is run would pass with nothing to run.
    pickle.loads(pickle.dumps(Trap(tmp_path / "ran")))  # noqa: S301
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_gives_the_fields_it_holds(tmp_path: Path, save: Callable[..., None]) -> None:
    save(tmp_path / "log.npz", **ARRAYS)
    arrays = read_npz(tmp_path / "log.npz")
    assert {name for name, array in arrays.items() if array is not None} == {"observations", "rewards"}
    assert arrays["observations"].tolist() == [[0, 1], [2, 3], [4, 5]]


def test_pickled_objects_in_a_field_of_an_npz_file_are_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = write_npz(tmp_path / "log.npz", rewards=np.array([Trap(marker)], dtype=object))
    with pytest.raises(DatasetError, match=r"log.npz: rewards holds pickled Python objects, which are not read"):
        read_npz(path)
    assert not marker.exists()


def test_pickled_objects_beside_the_fields_of_an_npz_file_are_passed_over(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = write_npz(tmp_path / "log.npz", **ARRAYS, other=np.array([Trap(marker)], dtype=object))
    assert read_npz(path)["other"] is None
    assert not marker.exists()


@pytest.mark.parametrize("fraction", [0.0, 0.3, 0.95])
def test_a_truncated_npz_file_is_refused(tmp_path: Path, fraction: float) -> None:
    path = cut_short(write_npz(tmp_path / "log.npz", **ARRAYS), fraction)
    with pytest.raises(DatasetError, match=r"log.npz is not a readable .npz file, it may be truncated"):
        read_npz(path)


def test_a_damaged_npz_file_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "log.npz", rewards=np.arange(1000.0))
    content = bytearray(path.read_bytes())
    content[4000] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"log.npz is damaged: its contents do not match its checksum"):
        read_npz(path)


def test_a_single_array_is_no_npz_file(tmp_path: Path) -> None:
    with (tmp_path / "log.npz").open("wb") as file:
        np.save(file, np.arange(3.0))
    with pytest.raises(DatasetError, match=r"log.npz is not a readable .npz file"):
        read_npz(tmp_path / "log.npz")


@pytest.mark.parametrize("value", [{"rewards": torch.ones(2)}, [{"rewards": torch.ones(2)}]], ids=["dict", "list"])
def test_a_pt_file_gives_a_mapping_or_episodes(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "log.pt")
    read = read_pt(tmp_path / "log.pt")
    assert type(read) is type(value)
    fields = read[0] if isinstance(read, list) else read
    assert fields["rewards"].tolist() == [1, 1]


def test_code_in_a_pt_file_is_refused_and_not_run(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    torch.save({"rewards": Trap(marker)}, tmp_path / "log.pt")
    with pytest.raises(DatasetError, match=r"log.pt is not a readable .pt file of plain tensors"):
        read_pt(tmp_path / "log.pt")
    assert not marker.exists()


def test_a_truncated_pt_file_is_refused(tmp_path: Path) -> None:
    torch.save({"rewards": torch.ones(1000)}, tmp_path / "log.pt")
    with pytest.raises(DatasetError, match=r"log.pt is not a readable .pt file"):
        read_pt(cut_short(tmp_path / "log.pt", 0.5))


def test_a_pt_file_with_one_tensor_is_refused(tmp_path: Path) -> None:
    torch.save(torch.ones(2), tmp_path / "log.pt")
    with pytest.raises(DatasetError, match="must hold a mapping of tensors or a list of episodes, got Tensor"):
        read_pt(tmp_path / "log.pt")


def test_an_hdf5_file_gives_its_fields_and_not_its_groups(tmp_path: Path) -> None:
    # D4RL keeps `infos/...` and `metadata/...` beside the fields, and a group may have the name of a field.
    path = write_hdf5(tmp_path / "log.hdf5", **ARRAYS, **{"metadata/policy/bias": np.zeros(3), "actions/other": 1})
    arrays = read_hdf5(path)
    assert {name for name, array in arrays.items() if array is not None} == {"observations", "rewards"}
    assert arrays["rewards"].tolist() == [0, 1, 2]


def test_actions_of_an_hdf5_file_marked_as_discrete_are_integers(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "log.h5", **ARRAYS, actions=np.array([0.0, 1.0, 1.0]), discrete_action=True)
    assert read_hdf5(path)["actions"].dtype == np.int64


def test_an_hdf5_file_marked_as_continuous_is_read(tmp_path: Path) -> None:
    assert "rewards" in read_hdf5(write_hdf5(tmp_path / "log.h5", **ARRAYS, discrete_action=False))


@pytest.mark.parametrize("fraction", [0.0, 0.5])
def test_a_truncated_hdf5_file_is_refused(tmp_path: Path, fraction: float) -> None:
    path = cut_short(write_hdf5(tmp_path / "log.hdf5", **ARRAYS), fraction)
    with pytest.raises(DatasetError, match=r"log.hdf5 is not a readable HDF5 file, it may be truncated"):
        read_hdf5(path)


def test_without_h5py_the_error_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rl-training\[hdf5\]'"):
        read_hdf5(tmp_path / "log.hdf5")


def test_a_file_without_fields_gives_the_names_it_has_for_the_error(tmp_path: Path) -> None:
    others = {"transitions": np.zeros(2), "policy": np.zeros(2)}
    assert set(read_npz(write_npz(tmp_path / "log.npz", **others))) == set(others)
    assert set(read_hdf5(write_hdf5(tmp_path / "log.hdf5", **others))) == set(others)


def test_what_a_container_leaves_of_the_memory_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_npz(tmp_path / "log.npz", rewards=np.zeros(1 << 20))
    monkeypatch.setattr(memory, "CONTROL_GROUP", tmp_path)
    (tmp_path / "memory.current").write_text(f"{64 << 20}\n")
    (tmp_path / "memory.stat").write_text(f"anon {60 << 20}\nfile {4 << 20}\n")
    (tmp_path / "memory.max").write_text(f"{65 << 20}\n")
    with pytest.raises(DatasetError, match=r"holds 0.0 GiB of arrays, and 0.0 GiB of memory are free"):
        read_npz(path)
    (tmp_path / "memory.max").write_text(f"{70 << 20}\n")
    assert len(read_npz(path)["rewards"]) == 1 << 20


@pytest.fixture
def empty_minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without Minari datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    return tmp_path


def test_without_minari_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "minari", None)
    with pytest.raises(MissingExtraError, match=r"'D4RL/door/human-v2' needs .* pip install 'rl-training\[minari\]'"):
        read_minari("D4RL/door/human-v2", download=False)


def test_a_minari_dataset_that_is_not_there_is_not_fetched_unasked(
    empty_minari: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(minari, "download_dataset", lambda *_: pytest.fail("a download was not asked for"))
    with pytest.raises(DatasetError, match=f"is not in {empty_minari}; set dataset_download: true to fetch it"):
        read_minari("D4RL/door/human-v2", download=False)


@pytest.mark.usefixtures("empty_minari")
def test_a_misspelt_minari_dataset_is_answered_with_the_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minari, "list_local_datasets", lambda: {"D4RL/door/human-v2": {}})
    with pytest.raises(DatasetError, match="did you mean 'D4RL/door/human-v2'"):
        read_minari("D4RL/dor/human-v2", download=False)


@pytest.mark.usefixtures("empty_minari")
def test_a_download_that_fails_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(dataset_id: str) -> None:
        raise ConnectionError(f"no route to the host of {dataset_id}")

    monkeypatch.setattr(minari, "download_dataset", offline)
    with pytest.raises(
        DatasetError,
        match=r"could not be downloaded \(ConnectionError: no route .*\); check the id and the network, "
        "or copy the dataset into MINARI_DATASETS_PATH",
    ):
        read_minari("D4RL/door/human-v2", download=True)
