"""Runs on tables: the same policy as from arrays, and predictions as tables."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import Command, call_main

from rl_training.data import load_transition_dataset
from rl_training.runtime import load_policy, train

pa = pytest.importorskip("pyarrow")
pa_csv = pytest.importorskip("pyarrow.csv")
parquet = pytest.importorskip("pyarrow.parquet")

COLUMNS = {
    "obs": ["x_*"],
    "next_obs": ["next_x_*"],
    "actions": ["torque"],
    "reward": "r",
    "episode": "run",
    "step": "t",
    "terminated": "ended",
}


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: call_main(monkeypatch, capsys, *arguments)


@pytest.fixture
def pendulum(shared_data: Path, tmp_path: Path) -> dict[str, Path]:
    """The same log as it came, and as tables; CSV has all digits that float32 needs."""
    source = shared_data / "pendulum" / "pendulum_medium_sac.npz"
    with np.load(source) as log:
        columns: dict[str, Any] = {f"x_{k}": log["observations"][:, k] for k in range(3)}
        columns |= {f"next_x_{k}": log["next_observations"][:, k] for k in range(3)}
        columns |= {"torque": log["actions"].ravel(), "r": log["rewards"], "ended": log["terminals"]}
        columns |= {"run": np.repeat(np.arange(50), 200), "t": np.tile(np.arange(200), 50)}
    table = pa.table(columns)
    parquet.write_table(table, tmp_path / "log.parquet")
    pa_csv.write_csv(table, tmp_path / "log.csv")
    return {"npz": source, "csv": tmp_path / "log.csv", "parquet": tmp_path / "log.parquet"}


def test_a_table_is_the_same_data_and_gives_the_same_policy(pendulum: dict[str, Path], tmp_path: Path) -> None:
    fingerprints, policies = [], []
    for kind, path in pendulum.items():
        data: dict[str, Any] = {"dataset_path": str(path)} | ({} if kind == "npz" else {"dataset_columns": COLUMNS})
        fingerprints.append(load_transition_dataset(**data).fingerprint())
        result = train(
            {
                "algo": "td3_bc",
                "total_timesteps": 30,
                "output_dir": str(tmp_path / "runs"),
                "run_name": kind,
                "algo_kwargs": {**data, "hidden_sizes": [8], "batch_size": 32},
            }
        )
        policies.append(load_policy(result.run_dir).policy.model.state_dict())
    assert len(set(fingerprints)) == 1
    for other in policies[1:]:
        assert other.keys() == policies[0].keys()
        assert all(torch.equal(other[name], value) for name, value in policies[0].items())


def test_a_bandit_log_trains_from_its_csv_and_predicts(shared_data: Path, tmp_path: Path, command: Command) -> None:
    log = shared_data / "obd" / "men_random.csv.gz"
    flags = ["--obs-columns", "user-item_affinity_*", "--obs-columns", "user_feature_0", "--one-hot", "user_feature_0"]
    flags += ["--action-columns", "item_id", "--reward-column", "click", "--episodes", "each_row"]
    short = ["--total-timesteps", "10", "--out", tmp_path, "algo_kwargs.hidden_sizes=[8]"]
    for algo, more in (("bc", []), ("dqn", ["algo_kwargs.mode=offline"])):
        answer = command("train", algo, "--data", log, *flags, "--run-name", algo, "--quiet", *short, *more)
        assert answer.code == 0, answer.err
        answer = command("predict", tmp_path / algo, "--obs", log, "--out", tmp_path / "actions.parquet")
        assert answer.code == 0, answer.err
        actions = parquet.read_table(tmp_path / "actions.parquet")
        assert (actions.column_names, actions.num_rows) == (["item_id"], 10_000)
        assert 0 <= min(actions["item_id"].to_pylist()) <= max(actions["item_id"].to_pylist()) < 34


@pytest.fixture
def plant(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    with (tmp_path / "plant.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["run", "t", "temp", "mode", "valve"])
        for row in range(60):
            temp = rng.normal(20, 3)
            writer.writerow(
                [row // 10, row % 10, round(temp, 2), "day" if row % 2 else "night", "shut" if temp > 20 else "open"]
            )
    return tmp_path / "plant.csv"


MAPPED = ["--obs-columns", "temp,mode", "--one-hot", "mode", "--action-columns", "valve", "--episode-column", "run"]


def test_discrete_actions_come_back_by_name_and_bc_needs_no_rewards(
    plant: Path, tmp_path: Path, command: Command
) -> None:
    short = ["--total-timesteps", "200", "--out", tmp_path, "--run-name", "run", "algo_kwargs.hidden_sizes=[8]"]
    trained = command("train", "bc", "--data", plant, *MAPPED, "--quiet", "algo_kwargs.batch_size=16", *short)
    assert trained.code == 0, trained.err
    assert f"Next: rl-training predict {tmp_path / 'run'} --obs {plant}" in trained.out
    printed = command("predict", tmp_path / "run", "--obs", plant)
    assert printed.out.splitlines()[0] == '"valve"'
    assert set(printed.out.splitlines()[1:]) == {'"open"', '"shut"'}
    for name in ("out.csv", "out.csv.gz", "out.json", "out.npy"):
        assert command("predict", tmp_path / "run", "--obs", plant, "--out", tmp_path / name).code == 0
    records = json.loads((tmp_path / "out.json").read_text())
    assert len(records) == 60
    assert (tmp_path / "out.csv").read_text() == printed.out
    assert [record["valve"] for record in records] == np.load(tmp_path / "out.npy").ravel().tolist()


def test_predict_says_what_a_table_lacks(plant: Path, tmp_path: Path, command: Command) -> None:
    short = ["--total-timesteps", "2", "--out", tmp_path, "--run-name", "run", "algo_kwargs.hidden_sizes=[8]"]
    assert command("train", "bc", "--data", plant, *MAPPED, "--quiet", *short).code == 0
    cases = {
        "a,mode\n1,day\n": "lacks the column 'temp'",
        "a\n1\n": "lacks the columns 'temp', 'mode'",
        "temp,mode\n20,day\n,day\n": "1 cell is empty: the first is column 'temp' in row 2",
        "temp,mode\n20,dusk\n": "the category 'dusk' in row 1, which is not known; there are 'day', 'night'",
    }
    for text, message in cases.items():
        (tmp_path / "new.csv").write_text(text)
        answer = command("predict", tmp_path / "run", "--obs", tmp_path / "new.csv")
        assert answer.code == 2
        assert message in answer.err
        assert "Traceback" not in answer.err


def test_what_a_table_lacks_for_training_is_said_with_status_2(plant: Path, tmp_path: Path, command: Command) -> None:
    without_reward = command("train", "dqn", "--data", plant, *MAPPED, "--out", tmp_path, "algo_kwargs.mode=offline")
    assert without_reward.code == 2
    assert "the data has no rewards, which dqn learns from: add an array named 'rewards'" in without_reward.err
    unmapped = command("train", "bc", "--data", plant, "--out", tmp_path)
    assert unmapped.code == 2
    assert "dataset_kind 'csv' needs dataset_columns" in unmapped.err


def test_the_flags_of_columns_are_the_same_in_every_command(
    command: Command, pendulum: dict[str, Path], tmp_path: Path
) -> None:
    flags = ["--obs-columns=x_*", "--next-obs-columns=next_x_*", "--action-columns=torque", "--reward-column=r"]
    flags += ["--episode-column=run", "--step-column=t", "--terminated-column=ended"]
    expected = load_transition_dataset(pendulum["npz"])

    audited = json.loads(command("data", "audit", pendulum["parquet"], *flags, "--json").out)
    inspected = json.loads(command("data", "inspect", pendulum["csv"], *flags, "--json").out)
    shown = json.loads(command("data", "head", pendulum["csv"], *flags, "--json", "-n", "1").out)
    converted = command("data", "convert", pendulum["parquet"], tmp_path / "log.rlt", *flags)
    parts = [tmp_path / "rest.parquet", tmp_path / "held_out.npz"]
    halved = command("data", "split", pendulum["csv"], "--fraction=0.5", "--out", *parts, *flags)
    mixed = command("data", "mix", pendulum["csv"], parts[1], "--out", tmp_path / "more.npz", *flags)
    missing = command("data", "audit", pendulum["csv"], "--obs-columns=y_*")

    assert (audited["rows"], audited["verdict"]) == (len(expected), "pass")
    assert inspected["fingerprint"] == expected.fingerprint()
    assert shown[0]["rewards"] == pytest.approx(float(expected.rewards[0]))
    assert (converted.code, halved.code, mixed.code) == (0, 0, 0)
    assert sum(len(load_transition_dataset(part)) for part in parts) == len(expected)
    assert load_transition_dataset(tmp_path / "log.rlt").fingerprint() == expected.fingerprint()
    assert (missing.code, missing.out) == (2, "")


def test_a_policy_from_a_mapped_table_takes_the_table(plant: Path, tmp_path: Path, command: Command) -> None:
    assert command("data", "convert", plant, tmp_path / "plant.rlt", *MAPPED).code == 0
    for name, source in (("mapped", [tmp_path / "plant.rlt"]), ("read", [plant, *MAPPED])):
        arguments = ["--total-timesteps", 20, "--out", tmp_path, "--run-name", name, "--quiet"]
        assert command("train", "bc", "--data", *source, *arguments).code == 0
    answers = [command("predict", tmp_path / name, "--obs", plant) for name in ("mapped", "read")]
    assert answers[0].code == 0
    assert answers[0].out == answers[1].out
    resumed = command("resume", tmp_path / "mapped", "total_timesteps=30", "--quiet")
    assert resumed.code == 0, resumed.err
