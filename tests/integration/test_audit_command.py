"""The audit as a command, before training, and on real data."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command, call_main

from rl_training.data import load_transition_dataset
from rl_training.runtime.auditing import audit_data

REAL_WARNINGS: dict[str, set[str]] = {
    "pendulum/pendulum_medium_sac.npz": set(),
    "pendulum/pendulum_expert_sac.npz": set(),
    "pendulum/pendulum_replay_v1.1.0.h5": set(),
    # The first two episodes of large files.
    "d4rl/mujoco/halfcheetah_medium-v2.hdf5": {"trajectories", "enough data"},
    "d4rl/mujoco/hopper_medium-v2.hdf5": {"trajectories", "enough data"},
    "cs285_expert/HalfCheetah-v4_expert.npz": {"trajectories", "enough data"},
    # The expert's mean action, without noise.
    "cs285_expert/Hopper-v4_expert.npz": {"trajectories", "behaviour"},
}
"""Good data, and all that may be said against it."""

QUIRKS = {
    "cartpole/cartpole_replay_v1.1.0.h5": {"end flags": "1,448 rows before the last row", "constant reward": "is 1"},
    "d4rl/mujoco/ant_medium-v2.hdf5": {"constant columns": "84 in all"},
    "d4rl/antmaze/antmaze-umaze-v0.hdf5": {"constant reward": "every reward is 0"},
}
"""What the publishers of data say about it, and where the audit says it."""


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """The command in this process."""
    return partial(call_main, monkeypatch, capsys)


def log(**changes: Any) -> dict[str, Any]:
    """Ten episodes of twenty rows that drift along a line."""
    rng = np.random.default_rng(0)
    obs = np.cumsum(rng.normal(size=(200, 2)), axis=0)
    arrays: dict[str, Any] = {
        "observations": obs,
        "next_observations": np.concatenate([obs[1:], obs[-1:]]),
        "actions": rng.uniform(-1, 1, (200, 1)),
        "rewards": rng.normal(size=200),
        "terminals": np.zeros(200, bool),
        "timeouts": np.arange(1, 201) % 20 == 0,
    }
    return {**arrays, **changes}


def shifted() -> dict[str, Any]:
    """A log whose next observations are those of the same row."""
    return log(next_observations=log()["observations"])


def test_a_report_says_what_why_and_what_to_do(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **shifted())
    answer = command("data", "audit", tmp_path / "log.npz", "--html", tmp_path / "report.html")
    assert answer.code == 1
    assert "fail: next observations" in answer.out
    assert "it is the obs of the same row, in nearly all of them" in answer.out
    assert "  rows        0, 1, 2, 3, 4, ..." in answer.out
    assert "what to do  leave next_obs out" in answer.out
    page = (tmp_path / "report.html").read_text()
    assert "it is the obs of the same row" in page
    assert "prefers-color-scheme: dark" in page
    assert "http" not in page


def test_a_report_is_one_json_value(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **log())
    answer = command("data", "audit", tmp_path / "log.npz", "--json")
    report = json.loads(answer.out)
    assert answer.code == 0
    assert (report["rows"], report["episodes"], report["verdict"]) == (200, 10, "warn")
    assert {"check", "verdict", "message", "why", "advice", "count", "rows"} == report["findings"][0].keys()


def test_an_environment_tells_the_bounds(command: Command, tmp_path: Path) -> None:
    actions = np.zeros((200, 1))
    actions[7] = 3
    obs = np.concatenate([log()["observations"], np.ones((200, 1))], axis=1)
    arrays = log(actions=actions, observations=obs)
    del arrays["next_observations"]
    np.savez(tmp_path / "log.npz", **arrays)
    report = json.loads(command("data", "audit", tmp_path / "log.npz", "--env", "Pendulum-v1", "--json").out)
    (finding,) = [each for each in report["findings"] if each["check"] == "action bounds"]
    assert (finding["verdict"], finding["rows"]) == ("fail", [7])
    answer = command("data", "audit", tmp_path / "log.npz", "--env", "CartPole-v1")
    assert answer.code == 2
    assert "the dataset has 1 columns of actions, CartPole-v1 has" in answer.err


def test_values_that_are_not_finite_are_a_finding(command: Command, tmp_path: Path) -> None:
    rewards = np.ones(200)
    rewards[[4, 9]] = np.nan
    np.savez(tmp_path / "log.npz", **log(rewards=rewards))
    answer = command("data", "audit", tmp_path / "log.npz", "--json")
    (finding,) = json.loads(answer.out)["findings"]
    assert answer.code == 1
    assert (finding["check"], finding["count"], finding["rows"]) == ("finite", 2, [4, 9])


def test_end_flags_are_looked_at_as_the_file_has_them(command: Command, tmp_path: Path) -> None:
    both = np.isin(np.arange(200), [19, 59])
    np.savez(tmp_path / "log.npz", **log(terminals=both), run_id=np.arange(200) // 20)
    report = json.loads(command("data", "audit", tmp_path / "log.npz", "--json").out)
    found = {each["check"]: each for each in report["findings"]}
    assert (found["end flags"]["count"], found["end flags"]["rows"]) == (2, [19, 59])
    assert "'run_id' in the file is not used" in found["episode ends"]["message"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nothing.npz"], "does not exist"), (["log.npz", "--html", "report.txt"], "ends with .html")],
)
def test_mistakes_of_the_user_are_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez("log.npz", **log())
    answer = command("data", "audit", *arguments)
    assert answer.code == 2
    assert message in answer.err


def test_training_refuses_what_fails_unless_it_is_accepted(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **shifted())
    small = ["--total-timesteps=5", "algo_kwargs.hidden_sizes=[4]", "--out", tmp_path / "runs"]
    train = ["train", "td3_bc", "--data", tmp_path / "log.npz", *small]
    answer = command(*train)
    assert answer.code == 2
    assert "the audit refuses the data" in answer.err
    assert "next observations: in 190 rows (100.00%)" in answer.err
    assert "--accept-audit" in answer.err
    assert not (tmp_path / "runs").exists()

    assert command(*train, "--accept-audit").code == 0
    (metadata,) = (tmp_path / "runs").glob("*/metadata.json")
    summary = json.loads(metadata.read_text())["data"]["audit"]
    assert (summary["verdict"], summary["accepted"]) == ("fail", True)
    assert summary["findings"][0]["check"] == "next observations"


def test_timestamps_change_nothing_in_training(command: Command, tmp_path: Path) -> None:
    fingerprints = set()
    for name, more in (("plain", {}), ("timed", {"timestamps": 1.7e9 + np.arange(200.0)})):
        np.savez(tmp_path / f"{name}.npz", **log(**more))
        small = ["--total-timesteps=5", "algo_kwargs.hidden_sizes=[4]", "--out", tmp_path / name]
        assert command("train", "td3_bc", "--data", tmp_path / f"{name}.npz", *small).code == 0
        (metadata,) = (tmp_path / name).glob("*/metadata.json")
        about = json.loads(metadata.read_text())["data"]
        fingerprints.add(about["fingerprint"])
        assert about["audit"]["accepted"] is False
    assert len(fingerprints) == 1


def test_a_plant_that_never_ends_needs_no_terminals(command: Command, tmp_path: Path) -> None:
    arrays = log()
    del arrays["terminals"]
    np.savez(tmp_path / "log.npz", **arrays)
    report = json.loads(command("data", "audit", tmp_path / "log.npz", "--json").out)
    found = {each["check"]: each for each in report["findings"]}
    assert found["episode ends"]["message"] == "10 episodes, 0 terminated, 10 cut"


def test_done_alone_is_answered_with_a_question(command: Command, tmp_path: Path) -> None:
    arrays = log(done=np.arange(1, 201) % 20 == 0)
    del arrays["terminals"], arrays["timeouts"]
    np.savez(tmp_path / "log.npz", **arrays)
    answer = command("data", "audit", tmp_path / "log.npz")
    assert answer.code == 2
    assert "what does 'done' mean?" in answer.err
    assert "'terminals'" in answer.err
    assert "'timeouts'" in answer.err


@pytest.mark.parametrize("name", REAL_WARNINGS)
def test_good_data_is_not_called_bad(shared_data: Path, name: str) -> None:
    report = audit_data(shared_data / name)
    assert {each.check for each in report.findings if each.verdict == "fail"} == set()
    assert {each.check for each in report.findings if each.verdict == "warn"} <= REAL_WARNINGS[name]


@pytest.mark.parametrize("name", [name for name in REAL_WARNINGS if not name.startswith("pendulum")])
@pytest.mark.parametrize(("shift", "which"), [(1, "before"), (-1, "after")])
def test_rewards_of_real_data_that_are_moved_by_a_row_are_found(
    shared_data: Path, name: str, shift: int, which: str
) -> None:
    dataset = load_transition_dataset(shared_data / name)
    report = audit_data(dataset.with_rewards(dataset.rewards.roll(shift)))
    (finding,) = [each for each in report.findings if each.check == "reward timing"]
    assert finding.verdict == "warn"
    assert f"fit the row {which} better" in finding.message


def test_demonstrations_of_people_are_not_called_bad(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared_data / "minari"))
    report = audit_data("D4RL/door/human-v2")
    assert [each.check for each in report.findings if each.verdict != "pass"] == []


@pytest.mark.parametrize("name", QUIRKS)
def test_quirks_of_real_data_are_named(shared_data: Path, name: str) -> None:
    found = {each.check: each for each in audit_data(shared_data / name).findings}
    for check, words in QUIRKS[name].items():
        assert found[check].verdict == "warn"
        assert words in found[check].message


def test_every_real_file_is_audited(shared_data: Path) -> None:
    paths = [path for ending in ("npz", "h5", "hdf5") for path in shared_data.rglob(f"*.{ending}")]
    kept = [
        path for path in paths if path.relative_to(shared_data).parts[0] not in ("policies", "minari", "icu_sepsis")
    ]
    assert len(kept) > 20
    for path in kept:
        assert audit_data(path).verdict != "fail", path
