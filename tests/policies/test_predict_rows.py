"""Rows that a policy should not be asked about: `predict` refuses some and names others."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command, call_main
from conftest import transitions

from rl_training.core.errors import ConfigError
from rl_training.runtime import predict, train
from rl_training.storage import save_tree

NEAR = [[0.1, -0.2, 0.3], [0.0, 0.5, 0.0]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    np.savez(folder / "log.npz", **transitions(400))  # type: ignore[arg-type]
    kwargs = {"dataset_path": str(folder / "log.npz"), "batch_size": 8, "hidden_sizes": [4]}
    config: dict[str, Any] = {"algo": "bc", "total_timesteps": 3, "output_dir": str(folder), "algo_kwargs": kwargs}
    return train(config).run_dir


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "run")
    return tmp_path / "run"


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: call_main(monkeypatch, capsys, *arguments)


def observations(path: Path, rows: list[list[float]]) -> Path:
    np.save(path, np.array(rows, dtype=np.float32))
    return path


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_a_row_that_is_not_finite_is_refused_by_its_number(
    run: Path, tmp_path: Path, command: Command, value: float
) -> None:
    obs = observations(tmp_path / "obs.npy", [*NEAR, [0.0, value, 0.0], [value, 0.0, 0.0]])

    answer = command("predict", run, "--obs", obs, "--out", tmp_path / "actions.npy")

    assert answer.code == 2
    place = f"2 rows are not finite: row 2, column 1 is {value}; to act on such rows, use --allow-nan"
    assert place in answer.err
    assert not (tmp_path / "actions.npy").exists()
    assert command("predict", run, "--obs", obs, "--allow-nan", "--out", tmp_path / "actions.npy").code == 0
    assert len(np.load(tmp_path / "actions.npy")) == 4


def test_python_refuses_them_too() -> None:
    fixture = Path(__file__).parents[1] / "fixtures" / "format_2"
    with pytest.raises(ConfigError, match="1 row is not finite: row 0, column 0 is nan"):
        predict(fixture, [np.nan, 0.0, 0.0])
    assert predict(fixture, [np.nan, 0.0, 0.0], allow_nan=True).shape == (1,)


def test_a_far_observation_is_named_once_if_the_run_has_a_score(run: Path, tmp_path: Path, command: Command) -> None:
    obs = observations(tmp_path / "obs.npy", [*NEAR, [40.0, 0.0, 0.0], [90.0, 0.0, 0.0]])

    assert command("predict", run, "--obs", obs).err == ""
    first = command("predict", run, "--obs", obs, "--novelty", "--json")
    again = command("predict", run, "--obs", obs)
    silent = command("predict", run, "--obs", obs, "--no-novelty")

    assert first.err.count("\n") == 1
    assert "2 of 4 observations are far from the training data, the farthest in row 3" in first.err
    assert len(json.loads(first.out)) == 4
    assert (again.err, silent.err) == (first.err, "")
    assert (run / "novelty.pt").is_file()
    assert command("predict", run, "--obs", observations(tmp_path / "near.npy", NEAR)).err == ""


@pytest.mark.parametrize("state", [None, {"mean": 1}], ids=["nothing", "parts"])
def test_a_score_that_is_none_is_one_sentence(run: Path, tmp_path: Path, command: Command, state: Any) -> None:
    save_tree(run / "novelty.pt", {"novelty": state})

    answer = command("predict", run, "--obs", observations(tmp_path / "obs.npy", NEAR))

    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "holds no novelty score of this policy" in answer.err


@pytest.mark.parametrize("content", [b"", b"\x93NUMPY", b"PK\x03\x04", b"\x93NUMPY\x01\x00\x10\x00{'descr': '<f4'"])
def test_observations_that_are_no_array_are_one_sentence(
    run: Path, tmp_path: Path, command: Command, content: bytes
) -> None:
    (tmp_path / "obs.npy").write_bytes(content)

    answer = command("predict", run, "--obs", tmp_path / "obs.npy")

    assert (answer.code, answer.err.count("\n")) == (2, 1), answer.err


def test_observations_that_claim_more_than_the_file_holds_take_no_memory(
    run: Path, tmp_path: Path, command: Command
) -> None:
    header: Any = {"descr": "<f4", "fortran_order": False, "shape": (10**12, 3)}
    with (tmp_path / "obs.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)

    answer = command("predict", run, "--obs", tmp_path / "obs.npy")

    assert answer.code == 2
    assert "cannot be read" in answer.err
