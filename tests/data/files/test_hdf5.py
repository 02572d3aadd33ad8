"""HDF5 files whose numbers lie elsewhere, are missing, or were changed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from conftest import transitions

from rl_training.core.errors import DatasetError
from rl_training.data.convert import convert
from rl_training.data.dataset_loaders import load_transition_dataset
from rl_training.data.files.hdf5 import read_hdf5
from rl_training.data.offline_dataset import TransitionDataset

OBS = transitions()["observations"]


def write(path: Path, change: Callable[[h5py.File], None]) -> Path:
    with h5py.File(path, "w") as file:
        for name, array in transitions().items():
            file[name] = array
        change(file)
    return path


def view(file: h5py.File, source: str, dataset: str, rows: int = len(OBS)) -> None:
    """Put a virtual dataset in place of the observations."""
    del file["observations"]
    layout = h5py.VirtualLayout(shape=OBS.shape, dtype="f4")
    layout[:rows] = h5py.VirtualSource(source, dataset, shape=(rows, OBS.shape[1]))
    file.create_virtual_dataset("observations", layout)


def in_another_file(file: h5py.File) -> None:
    view(file, "elsewhere.hdf5", "obs")


def of_nothing(file: h5py.File) -> None:
    view(file, ".", "gone")


def with_a_hole(file: h5py.File) -> None:
    file["inner"] = OBS
    view(file, ".", "inner", rows=40)


def external(file: h5py.File) -> None:
    del file["observations"]
    file.create_dataset("observations", shape=OBS.shape, dtype="f4", external=[("elsewhere.bin", 0, OBS.nbytes)])


def linked(file: h5py.File) -> None:
    del file["observations"]
    file["observations"] = h5py.ExternalLink("elsewhere.hdf5", "obs")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (in_another_file, "observations is a view of 'elsewhere.hdf5', another file, which is not read"),
        (of_nothing, "observations is a view of 'gone', which is not in the file"),
        (with_a_hole, "observations is a view that has no numbers for 60 of its places"),
        (external, "observations keeps its numbers in another file, which is not read"),
        (linked, "observations is a link to another file, which is not read"),
    ],
    ids=["other file", "nothing", "hole", "external", "link"],
)
def test_numbers_that_are_not_in_the_file_are_refused(
    tmp_path: Path, change: Callable[[h5py.File], None], message: str
) -> None:
    with h5py.File(tmp_path / "elsewhere.hdf5", "w") as file:
        file["obs"] = OBS
    (tmp_path / "elsewhere.bin").write_bytes(OBS.tobytes())
    path = write(tmp_path / "log.hdf5", change)
    uses: list[Callable[[], Any]] = [
        lambda: read_hdf5(path),
        lambda: convert(str(path), str(tmp_path / "log.rlt")),
        lambda: convert(str(path), str(tmp_path / "log.npz")),
    ]
    for use in uses:
        with pytest.raises(DatasetError, match=message):
            use()


def test_a_view_inside_the_file_is_read(tmp_path: Path) -> None:
    def whole(file: h5py.File) -> None:
        file["inner"] = OBS
        view(file, ".", "inner")

    np.testing.assert_array_equal(read_hdf5(write(tmp_path / "log.hdf5", whole))["observations"], OBS)


@pytest.mark.parametrize("destination", ["log.rlt", None], ids=["streamed", "read"])
def test_a_changed_number_in_a_file_of_ours_is_noticed(tmp_path: Path, destination: str | None) -> None:
    path = tmp_path / "log.hdf5"
    TransitionDataset.from_dict(transitions()).save(path)
    with h5py.File(path, "r+") as file:
        # As a flipped bit would be that the file's own format does not notice.
        file["rewards"][7] += 1
    use: Any = load_transition_dataset if destination is None else partial(convert, out=str(tmp_path / destination))
    with pytest.raises(DatasetError, match="is damaged: rewards does not match its checksum"):
        use(str(path))
    assert not (tmp_path / "log.rlt").exists()


def test_a_field_that_is_gone_from_a_file_of_ours_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "log.hdf5"
    TransitionDataset.from_dict(transitions()).save(path)
    with h5py.File(path, "r+") as file:
        del file["timeouts"]
    with pytest.raises(DatasetError, match="is damaged: timeouts does not match its checksum"):
        load_transition_dataset(path)


@pytest.mark.parametrize("ending", ["hdf5", "npz", "pt", "rlt"])
def test_a_flipped_bit_in_a_dataset_of_ours_is_noticed_or_does_no_harm(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"log.{ending}"
    TransitionDataset.from_dict(transitions(20, episode=10)).save(path)
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    expected, rng, noticed = load_transition_dataset(path).fingerprint(), np.random.default_rng(0), 0
    for _ in range(60):
        file = files[rng.integers(len(files))]
        content, status = file.read_bytes(), file.stat()
        place = int(rng.integers(len(content)))
        file.write_bytes(content[:place] + bytes([content[place] ^ (1 << int(rng.integers(8)))]) + content[place + 1 :])
        try:
            found = load_transition_dataset(path)
        except DatasetError:
            noticed += 1
        else:
            columns = TransitionDataset(dict(found.fields), found.truncations)
            assert columns.fingerprint() == expected, (file.name, place)
        file.write_bytes(content)
        assert status.st_size == len(content)
    assert noticed > (2 if ending == "hdf5" else 20)
