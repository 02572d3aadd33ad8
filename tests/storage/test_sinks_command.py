"""Runs whose metrics go to MLflow and W&B, from the command line."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from command_line import TINY, Command, call_main
from read_back import curves_in_mlflow, curves_of_run


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    # What other processes print counts too.
    return partial(call_main, monkeypatch, capfd)


def test_what_libraries_of_sinks_say_is_not_among_the_results(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    pytest.importorskip("wandb")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "store").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))

    sinks = "sinks=[mlflow, wandb]"
    answer = command("train", "td3_bc/pendulum", *TINY, sinks, "--out", tmp_path / "runs", "--quiet", "--json")

    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["metrics"]["global_step"] == 20
    assert list(tmp_path.glob("wandb/offline-run-*/run-*.wandb"))


def test_a_sink_that_does_not_exist_ends_the_command_before_anything_is_written(
    command: Command, tmp_path: Path
) -> None:
    answer = command("train", "td3_bc/pendulum", "sinks=[wandbb]", "--out", tmp_path / "runs")

    words = "sinks.0 must be one of 'mlflow' or 'wandb', got 'wandbb'; did you mean 'wandb'?"
    assert (answer.code, answer.out) == (2, "")
    assert words in answer.err
    assert not (tmp_path / "runs").exists()


def test_seeds_are_refused_too_where_mlflow_does_not_answer(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")

    answer = command("train", "bc/pendulum", *TINY, "sinks=[mlflow]", "--seeds", "0", "--out", tmp_path / "runs")

    assert (answer.code, answer.out) == (2, "")
    assert "error: MLflow at http://127.0.0.1:9 cannot be used: Connection refused" in answer.err
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_seeds_side_by_side_share_a_database_that_is_new(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    seeds = ("--seeds", "0-1", "--workers", "2")

    answer = command("train", "bc/pendulum", *TINY, "sinks=[mlflow]", *seeds, "--out", tmp_path / "runs", "--quiet")

    assert answer.code == 0
    client = mlflow.MlflowClient()
    for run in client.search_runs(["0"]):
        assert curves_in_mlflow(client, run) == curves_of_run(tmp_path / "runs" / run.info.run_name)
    assert {run.info.status for run in client.search_runs(["0"])} == {"FINISHED"}
    assert len(client.search_runs(["0"])) == 2
