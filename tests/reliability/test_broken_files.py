"""Files that once ended in a traceback: each is one sentence from here on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from command_line import Command, call_main
from conftest import transitions

from rl_training.config import TrainConfig
from rl_training.core.errors import CheckpointError, ConfigError, DatasetError
from rl_training.core.torch_files import read_tree
from rl_training.data import TransitionDataset, convert, load_any
from rl_training.data.files.formats import read_pt, write_dataset
from rl_training.reports import read_runs
from rl_training.runtime import resume
from rl_training.storage import read_metrics

RUN = Path(__file__).parents[1] / "fixtures" / "format_2"
TENSORS = {name: torch.from_numpy(array) for name, array in transitions().items()}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: call_main(monkeypatch, capsys, *arguments)


HEADERS = {
    "without an end": b"{'descr': '<f4', 'fortran_order': False, 'shape': (60,",
    "with a list of types": b"{'descr': [1, 2], 'fortran_order': False, 'shape': (60,), }",
    "of zeros": bytes(60),
    "with a negative shape": b"{'descr': '<f4', 'fortran_order': False, 'shape': (-60,), }",
    "with a text as shape": b"{'descr': '<f4', 'fortran_order': False, 'shape': 'x', }",
    "with a huge number": b"{'descr': '<f4', 'fortran_order': False, 'shape': (" + b"9" * 5000 + b",), }",
}


@pytest.mark.parametrize("kind", HEADERS)
@pytest.mark.parametrize("use", [lambda path: load_any(str(path)), lambda path: convert(str(path), f"{path}.rlt")])
def test_a_broken_header_of_an_array_is_one_sentence(tmp_path: Path, kind: str, use: Callable[[Path], Any]) -> None:
    np.savez(tmp_path / "good.npz", **transitions())  # type: ignore[arg-type]
    header = HEADERS[kind] + b"\n"
    with zipfile.ZipFile(tmp_path / "good.npz") as good, zipfile.ZipFile(tmp_path / "log.npz", "w") as bad:
        for name in good.namelist():
            array = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(240)
            bad.writestr(name, array if name == "rewards.npy" else good.read(name))
    with pytest.raises(DatasetError) as caught:
        use(tmp_path / "log.npz")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", [99, 97, 12, 14])
def test_an_unknown_compression_is_one_sentence(tmp_path: Path, method: int) -> None:
    np.savez(tmp_path / "log.npz", **transitions())  # type: ignore[arg-type]
    content = bytearray((tmp_path / "log.npz").read_bytes())
    content[content.find(b"PK\x01\x02") + 10] = content[content.find(b"PK\x03\x04") + 8] = method
    (tmp_path / "log.npz").write_bytes(content)
    with pytest.raises(DatasetError, match=r"is not a readable .npz file|is damaged"):
        load_any(str(tmp_path / "log.npz"))


TREES: dict[str, tuple[Any, str]] = {
    "numbers as names": ({**TENSORS, 5: torch.zeros(3)}, "by their names, got the name 5"),
    "a tuple as a name": ({**TENSORS, ("a",): torch.zeros(3)}, "by their names, got the name"),
    "a sparse tensor": ({**TENSORS, "rewards": torch.zeros(60).to_sparse()}, "is not a readable .pt file"),
    "a tensor without numbers": ({**TENSORS, "rewards": torch.zeros(60, device="meta")}, "is not a readable .pt file"),
    "a mapping as an array": ({**TENSORS, "rewards": {"a": 1}}, "rewards must hold numbers"),
    "episodes of text": (
        [{"observations": "text", "actions": torch.zeros(5, 1)}],
        "observations of episode 0 must hold",
    ),
    "an episode of one number": ([{"observations": 1.0, "actions": 2.0}], "must have a row per step"),
    "flags of another length": (
        [{"observations": torch.zeros(6, 1), "actions": torch.zeros(5, 1), "terminations": torch.zeros(9)}],
        "dones of episode 0 must be 5 flags",
    ),
    "rewards that are one number": (
        [{"observations": torch.zeros(6, 1), "actions": torch.zeros(5, 1), "rewards": torch.tensor(1.0)}],
        "1 rewards",
    ),
}


@pytest.mark.parametrize("kind", TREES)
def test_a_tree_of_wrong_types_is_one_sentence(tmp_path: Path, kind: str) -> None:
    tree, message = TREES[kind]
    torch.save(tree, tmp_path / "log.pt")
    for use in (
        lambda: load_any(str(tmp_path / "log.pt")),
        lambda: convert(str(tmp_path / "log.pt"), str(tmp_path / "a.npz")),
    ):
        with pytest.raises(DatasetError) as caught:
            use()
        assert message in str(caught.value)


def test_numbers_that_numpy_does_not_have_are_widened(tmp_path: Path) -> None:
    torch.save({**TENSORS, "rewards": torch.ones(60, dtype=torch.bfloat16)}, tmp_path / "log.pt")
    assert load_any(str(tmp_path / "log.pt")).rewards.dtype == torch.float32
    convert(str(tmp_path / "log.pt"), str(tmp_path / "log.npz"))
    assert np.load(tmp_path / "log.npz")["rewards"].dtype == np.float32


def test_lists_of_unequal_lengths_beside_the_fields_are_left_out(tmp_path: Path) -> None:
    torch.save({**TENSORS, "extra": [[1], [1, 2]]}, tmp_path / "log.pt")
    assert convert(str(tmp_path / "log.pt"), str(tmp_path / "log.npz")).left_out == ["extra"]


def test_damaged_link_tables_of_hdf5_are_one_sentence(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, array in transitions().items():
            file[name] = array
    content = (tmp_path / "log.hdf5").read_bytes()
    for mark in (b"TREE", b"HEAP", b"SNOD"):
        place = content.index(mark)
        (tmp_path / "bad.hdf5").write_bytes(content[:place] + b"\x00" * 24 + content[place + 24 :])
        with pytest.raises(DatasetError) as caught:
            load_any(str(tmp_path / "bad.hdf5"))
        assert "\n" not in str(caught.value)


def test_numbers_of_an_unsupported_kind_in_hdf5_are_one_sentence(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, array in transitions().items():
            file[name] = array
        del file["rewards"]
        h5py.h5d.create(file.id, b"rewards", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((60,)))
    with pytest.raises(DatasetError) as caught:
        load_any(str(tmp_path / "log.hdf5"))
    assert "\n" not in str(caught.value)


@pytest.fixture
def minari(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_dataset(TransitionDataset.from_dict(transitions()), "broken/log-v0")
    return tmp_path / "broken" / "log-v0" / "data"


def without_episode(folder: Path) -> None:
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        del file["episode_1"]


def linked_elsewhere(folder: Path) -> None:
    with h5py.File(folder / "main_data.hdf5", "r+") as file:
        del file["episode_1/actions"]
        file.create_dataset("episode_1/actions", (20, 1), "f4", external=[("/dev/zero", 0, 80)])


@pytest.mark.parametrize(
    "harm",
    [
        without_episode,
        linked_elsewhere,
        lambda folder: (folder / "main_data.hdf5").unlink(),
        lambda folder: (folder / "metadata.json").write_text("{"),
        lambda folder: (folder / "metadata.json").write_text("{}"),
        lambda folder: os.truncate(folder / "main_data.hdf5", 3000),
    ],
    ids=["episode", "elsewhere", "file", "text", "empty", "cut"],
)
def test_a_damaged_minari_dataset_is_one_sentence(minari: Path, harm: Callable[[Path], None]) -> None:
    harm(minari)
    with pytest.raises(DatasetError) as caught:
        load_any("broken/log-v0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("rows", [float("inf"), float("nan"), 1e308, "many", None, -1, 2**70])
def test_a_number_of_rows_that_is_none_is_one_sentence(tmp_path: Path, rows: Any) -> None:
    TransitionDataset.from_dict(transitions()).save(tmp_path / "log.rlt")
    index = json.loads((tmp_path / "log.rlt" / "index.json").read_text())
    (tmp_path / "log.rlt" / "index.json").write_text(json.dumps({**index, "rows": rows, "checksum": None}))
    with pytest.raises(DatasetError, match=r"log.rlt"):
        load_any(str(tmp_path / "log.rlt"))


@pytest.mark.parametrize("name", ["", "a:b", "²", "seeds"])
def test_an_option_that_is_no_word_is_named(name: str) -> None:
    options: dict[str, Any] = {"algo": "bc", name: 1}
    with pytest.raises(ConfigError, match=f"unknown option {name!r}"):
        TrainConfig(**options)


LINES = ["5", "[]", '"text"', "{}", '{"kind": "eval"}', '{"kind": "eval", "global_step": "many"}', "[" * 100_000]


@pytest.mark.parametrize("line", range(len(LINES) + 1))
def test_a_broken_line_of_metrics_does_not_stop_a_run(tmp_path: Path, line: int) -> None:
    shutil.copytree(RUN, tmp_path / "run")
    with (tmp_path / "run" / "metrics.jsonl").open("ab") as file:
        file.write((b"\xff\xfe{" if line == len(LINES) else LINES[line].encode()) + b"\n")
    with pytest.warns(UserWarning, match=r"metrics.jsonl: line \d+ .*: set aside, in metrics.damaged"):
        resume(tmp_path / "run", total_timesteps=21)
    assert all(isinstance(row, dict) for row in read_metrics(tmp_path / "run"))
    assert read_runs(tmp_path / "run")


@pytest.mark.parametrize("options", [["seed=18446744073709551616"], ["tags=[2024-02-30]", "seed=-1"]])
def test_options_out_of_all_bounds_are_one_message(command: Command, tmp_path: Path, options: list[str]) -> None:
    answer = command("train", "td3_bc/pendulum", "--out", tmp_path / "runs", *options)
    assert answer.code == 2
    assert "seed must be" in answer.err
    assert "tags" not in answer.err
    assert not (tmp_path / "runs").exists()


def test_a_file_that_the_disk_does_not_give_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    torch.save(TENSORS, tmp_path / "log.pt")
    np.savez(tmp_path / "log.npz", **transitions())  # type: ignore[arg-type]
    monkeypatch.setattr(zipfile.ZipFile, "open", fail)
    with pytest.raises(CheckpointError, match=r"log.pt cannot be read \(Input/output error\)$"):
        read_tree(tmp_path / "log.pt", CheckpointError, what="checkpoint")
    with pytest.raises(DatasetError, match=r"log.npz is not a readable .npz file.*Input/output error"):
        load_any(str(tmp_path / "log.npz"))


def test_torchs_advice_to_unpickle_does_not_reach_the_user(tmp_path: Path) -> None:
    torch.save({"rewards": Path("x")}, tmp_path / "log.pt")
    with pytest.raises(DatasetError) as caught:
        read_pt(tmp_path / "log.pt")
    assert "weights_only" not in str(caught.value)
    assert "which are never run" in str(caught.value)


def test_a_list_of_own_runs_that_is_broken_trusts_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rl_training.storage.trust import is_own_run

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    (tmp_path / "rl-training").mkdir()
    for content in (b"\xff\xfe", b"5\n[]\n", json.dumps(str(tmp_path)).encode()[:-2]):
        (tmp_path / "rl-training" / "runs.jsonl").write_bytes(content)
        assert not is_own_run(tmp_path)
