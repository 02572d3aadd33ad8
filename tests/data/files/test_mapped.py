"""The mapped form of a dataset: the same rows, opened without reading them."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.core.errors import DatasetError
from rl_training.data import TransitionDataset, load_transition_dataset, mapped_columns
from rl_training.data.convert import stream_to_mapped
from rl_training.data.files.mapped import open_mapped, write_mapped


def _log(rows: int = 60, *, with_next_obs: bool = True) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    log = {
        "observations": rng.normal(size=(rows, 3)),
        "actions": rng.uniform(-2, 2, size=(rows, 2)),
        "rewards": rng.normal(size=(rows, 1)),
        "terminals": np.arange(rows) % 10 == 4,
        "timeouts": np.arange(rows) % 10 == 9,
    }
    if with_next_obs:
        log["next_observations"] = np.roll(log["observations"], -1, axis=0)
    return log


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_mapped(TransitionDataset.from_dict(_log()), tmp_path / "log.rlt")
    return tmp_path / "log.rlt"


def _check_same(one: TransitionDataset, other: TransitionDataset) -> None:
    assert one.fields.keys() == other.fields.keys()
    assert one.fingerprint() == other.fingerprint()
    for name in ("truncations", "next_action_mask", "tail_rewards"):
        torch.testing.assert_close(getattr(one, name), getattr(other, name), rtol=0, atol=0, equal_nan=True)
    assert (one.num_dropped, one.notes) == (other.num_dropped, other.notes)


@pytest.mark.parametrize("with_next_obs", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 10, 1000])
def test_a_streamed_log_is_what_reading_it_gives(
    with_next_obs: bool, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.savez(tmp_path / "log.npz", **_log(with_next_obs=with_next_obs))
    monkeypatch.setattr(mapped_columns.chunks, "__defaults__", (chunk,))
    assert stream_to_mapped(tmp_path / "log.npz", "npz", tmp_path / "log.rlt") == []
    _check_same(load_transition_dataset(tmp_path / "log.npz"), load_transition_dataset(tmp_path / "log.rlt"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["log.npz", "log.rlt"]


@pytest.mark.parametrize(
    "derive",
    [
        lambda data: data.split(0.3, seed=1)[0],
        lambda data: data.split(0.3, seed=1)[1],
        lambda data: data.with_action_bounds(-2, 2),
        lambda data: data.best_episodes(0.5),
        lambda data: data.requiring("obs", "next_actions"),
        lambda data: data.with_reward_transform(scale=2.0).with_returns_to_go(0.9),
    ],
)
def test_what_is_derived_is_the_same_and_leaves_no_file(
    derive: Callable[[TransitionDataset], TransitionDataset], folder: Path
) -> None:
    derived = derive(open_mapped(folder))
    in_memory = derive(TransitionDataset.from_dict(_log()))
    assert derived.fingerprint() == in_memory.fingerprint()
    drawn = in_memory.sample(8)
    assert all(torch.equal(value, drawn[name]) for name, value in derived.sample(8).items())
    assert [path.name for path in folder.parent.iterdir()] == ["log.rlt"]


def test_nothing_is_written_to_the_files(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    open_mapped(folder).obs.zero_()
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_only_files_that_were_changed_are_hashed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[int] = []
    compute = mapped_columns.column_digest

    def count(column: torch.Tensor) -> str:
        hashed.append(column.shape[-1])
        return compute(column)

    monkeypatch.setattr(mapped_columns, "column_digest", count)
    true = open_mapped(folder).fingerprint()
    assert hashed == []
    assert true == json.loads((folder / "index.json").read_text())["fingerprint"]
    assert open_mapped(folder).with_reward_transform(scale=2.0).fingerprint() != true
    assert hashed == [60]
    os.utime(folder / "obs.bin", ns=(0, 0))
    assert open_mapped(folder).fingerprint() == true
    assert hashed == [60, 3]
    content = bytearray((folder / "obs.bin").read_bytes())
    content[0] ^= 1
    (folder / "obs.bin").write_bytes(content)
    assert open_mapped(folder).fingerprint() != true
    assert hashed == [60, 3, 3]


def _cut(folder: Path) -> None:
    (folder / "obs.bin").write_bytes((folder / "obs.bin").read_bytes()[:-1])


def _edit_index(**values: object) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        index = json.loads((folder / "index.json").read_text())
        (folder / "index.json").write_text(json.dumps({**index, **values, "checksum": None}))

    return edit


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (_cut, r"obs.bin has 719 bytes, expected 720 for 60 rows; it may be cut short"),
        (lambda folder: (folder / "rewards.bin").unlink(), "the file of the column 'rewards' is missing"),
        (lambda folder: (folder / "index.json").unlink(), "has no index.json"),
        (lambda folder: (folder / "index.json").write_text("{"), "index.json cannot be read"),
        (lambda folder: (folder / "index.json").write_text("[]"), "is of version None, expected 2"),
        (_edit_index(version=1), "is of version 1, expected 2"),
        (_edit_index(rows=10**12), "expected 12000000000000 for 1000000000000 rows"),
        (_edit_index(rows="many"), "index.json is damaged"),
        (_edit_index(columns={}), "it names no column 'obs'"),
        (_edit_index(columns={"obs": {"file": "../obs.bin", "dtype": "float32", "shape": [3]}}), "'obs' is missing"),
        (_edit_index(columns={"obs": {"file": "obs.bin", "dtype": "object", "shape": [3]}}), "has type 'object'"),
    ],
)
def test_a_damaged_folder_is_refused(harm: Callable[[Path], None], message: str, folder: Path) -> None:
    harm(folder)
    with pytest.raises(DatasetError, match=message):
        load_transition_dataset(folder)


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "log.rlt").write_text("")
    with pytest.raises(DatasetError, match="is a file; the mapped form of a dataset is a folder"):
        load_transition_dataset(tmp_path / "log.rlt")


def test_a_conversion_that_fails_leaves_nothing(tmp_path: Path) -> None:
    log = _log()
    log["rewards"][7] = np.nan
    np.savez(tmp_path / "log.npz", **log)
    with pytest.raises(DatasetError, match=r"log.npz: rewards has 1 values that are not finite; .* row 7"):
        stream_to_mapped(tmp_path / "log.npz", "npz", tmp_path / "log.rlt")
    assert [path.name for path in tmp_path.iterdir()] == ["log.npz"]


def test_a_folder_that_was_copied_is_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "copy.rlt", copy_function=shutil.copyfile)
    assert open_mapped(tmp_path / "copy.rlt").fingerprint() == open_mapped(folder).fingerprint()
