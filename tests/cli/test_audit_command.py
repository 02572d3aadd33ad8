"""The audit as a command, before training, and on real data."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import Command, call_main

from rl_training.cli.audit import summary
from rl_training.data import TransitionDataset, audit_data, load_transition_dataset
from rl_training.data.audit import View
from rl_training.data.audit.borders import likely_borders

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
    "d4rl/antmaze/antmaze-umaze-v0.hdf5": {"constant reward": "every reward is 0", "trajectories": "2 episodes"},
    "d4rl/antmaze/antmaze-medium-play-v0.hdf5": {"constant reward": "every reward is 0"},
    "d4rl/antmaze/antmaze-umaze-diverse-v0.hdf5": {"constant reward": "every reward is 0"},
    "d4rl/antmaze/antmaze-medium-diverse-v0.hdf5": {"trajectories": "3 episodes", "enough data": "67 rows"},
    "d4rl/mujoco/hopper_medium_replay-v1.hdf5": {"trajectories": "2 episodes", "enough data": "49 rows"},
    "d4rl/adroit/pen-expert-v1.hdf5": {"trajectories": "2 episodes", "enough data": "198 rows"},
    "cs285_expert/Ant-v4_expert.npz": {"trajectories": "2 episodes"},
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
    assert answer.out.splitlines()[-2].startswith("The audit cannot see: hidden causes")
    page = (tmp_path / "report.html").read_text()
    assert "it is the obs of the same row" in page
    assert "The audit cannot see: hidden causes" in page
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
    np.savez(tmp_path / "log.npz", **{**arrays, "actions": actions + 0.5})
    answer = command("data", "audit", tmp_path / "log.npz", "--env", "CartPole-v1")
    assert answer.code == 2
    assert "the dataset has continuous actions, CartPole-v1 has 2 discrete actions" in answer.err


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


def test_training_remembers_end_flags_that_contradict_each_other(command: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "log.npz", **log(terminals=np.isin(np.arange(200), [19, 59])))
    small = ["--total-timesteps=5", "algo_kwargs.hidden_sizes=[4]", "--out", tmp_path / "runs"]
    assert command("train", "td3_bc", "--data", tmp_path / "log.npz", *small).code == 0
    (metadata,) = (tmp_path / "runs").glob("*/metadata.json")
    found = {each["check"]: each for each in json.loads(metadata.read_text())["data"]["audit"]["findings"]}
    assert found["end flags"]["rows"] == [19, 59]


def test_training_says_that_runs_without_ends_look_like_several(command: Command, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    obs, actions = [], rng.uniform(-1, 1, size=(50, 40, 1))
    for run in actions:
        at = 3 * rng.normal(size=3)
        for action in run:
            obs.append(at)
            at = 0.95 * at + 0.1 * action + 0.01 * rng.normal(size=3)
    arrays: dict[str, Any] = {
        "observations": np.array(obs),
        "actions": actions.reshape(-1, 1),
        "terminals": np.zeros(2000),
    }
    np.savez(tmp_path / "log.npz", **arrays, run_id=np.repeat(np.arange(50), 40))

    trained = command(
        "train", "bc", "--data", tmp_path / "log.npz", "--total-timesteps", "5", "--out", tmp_path / "runs"
    )

    assert trained.code == 0
    assert "audit       warn: the observations after 49 rows, every 40 rows" in trained.out + trained.err
    assert "'run_id' in the file is not used" in trained.out + trained.err


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


@pytest.mark.parametrize("name", REAL_WARNINGS)
@pytest.mark.parametrize(("shift", "which"), [(1, "before"), (-1, "after")])
def test_rewards_of_real_data_that_are_moved_by_a_row_are_found(
    shared_data: Path, name: str, shift: int, which: str
) -> None:
    dataset = load_transition_dataset(shared_data / name)
    report = audit_data(dataset.with_rewards(dataset.rewards.roll(shift)))
    (finding,) = [each for each in report.findings if each.check == "reward timing"]
    assert finding.verdict == "warn"
    assert f"fit the row {which} better" in finding.message


@pytest.mark.parametrize(
    ("name", "shift", "which"),
    [
        ("pendulum/pendulum_medium_sac.npz", 1, "after"),
        ("pendulum/pendulum_medium_sac.npz", -1, "before"),
        ("cartpole/cartpole_replay_v1.1.0.h5", 1, "after"),
        ("d4rl/mujoco/halfcheetah_medium-v2.hdf5", 1, "after"),
        ("d4rl/mujoco/halfcheetah_random-v1.hdf5", -1, "before"),
    ],
)
def test_actions_of_real_data_that_are_moved_by_a_row_are_found(
    shared_data: Path, name: str, shift: int, which: str
) -> None:
    dataset = load_transition_dataset(shared_data / name)
    report = audit_data(dataset.with_fields(actions=dataset.actions.roll(shift, 0)))
    (finding,) = [each for each in report.findings if each.check == "action timing"]
    assert finding.verdict == "warn"
    assert f"change with the action of the row {which}" in finding.message
    assert "action timing" not in {each.check for each in audit_data(dataset).findings if each.is_alarm}


@pytest.mark.parametrize("task", ["door", "hammer", "pen"])
def test_things_that_hands_move_are_no_broken_sensors(shared_data: Path, task: str) -> None:
    for path in sorted((shared_data / "d4rl" / "adroit").glob(f"{task}-*.hdf5")):
        alarms = {each.check for each in audit_data(path).findings if each.is_alarm}
        assert not alarms & {"outliers", "frozen sensors", "cut episodes", "action timing", "action columns"}


BORDERS = {
    "pendulum/pendulum_medium_sac.npz": 49,
    "pendulum/pendulum_expert_sac.npz": 49,
    "pendulum/pendulum_replay_v1.1.0.h5": 499,
    "pendulum/pendulum_random_v1.1.0.h5": 499,
    "cartpole/cartpole_replay_v1.1.0.h5": 1581,
    "d4rl/mujoco/halfcheetah_medium-v2.hdf5": 1,
    "d4rl/mujoco/hopper_medium-v2.hdf5": 1,
    "d4rl/mujoco/ant_medium-v2.hdf5": 1,
    "cs285_expert/HalfCheetah-v4_expert.npz": 1,
    "cs285_expert/Hopper-v4_expert.npz": 1,
    "d4rl/adroit/door-human-v1.hdf5": 1,
    "d4rl/adroit/hammer-expert-v1.hdf5": 1,
}
"""Borders between the episodes of real data, all of which are found when their end flags are taken away."""


@pytest.mark.parametrize("name", BORDERS)
def test_borders_of_real_data_are_found_without_their_flags_and_nothing_else(shared_data: Path, name: str) -> None:
    dataset = load_transition_dataset(shared_data / name)
    ends = dataset.episode_ends.numpy().nonzero()[0][:-1]
    obs = dataset.obs.numpy()
    arrays: dict[str, Any] = {"obs": obs, "actions": dataset.actions, "rewards": dataset.rewards}
    arrays["terminals"] = np.zeros(len(obs))
    joined = TransitionDataset.from_dict(arrays)
    assert (len(ends), likely_borders(View(joined)).tolist()) == (BORDERS[name], ends.tolist())
    assert likely_borders(View(dataset)).tolist() == []


def test_a_check_that_does_not_apply_is_not_counted_as_passed(shared_data: Path) -> None:
    report = audit_data(shared_data / "pendulum/pendulum_medium_sac.npz")
    verdicts = {each.check: each.verdict for each in report.findings}
    assert verdicts["timestamps"] == "not checked"
    assert verdicts["finite"] == "pass"
    assert report.verdict == "pass"
    unmade = sum(each == "not checked" for each in verdicts.values())
    assert summary(report).endswith(f"{len(verdicts) - unmade} passed, 0 warned, 0 failed, {unmade} not checked")


def test_demonstrations_of_people_are_not_called_bad(shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(shared_data / "minari"))
    report = audit_data("D4RL/door/human-v2")
    assert [each.check for each in report.findings if each.is_alarm] == []


@pytest.mark.parametrize("name", QUIRKS)
def test_quirks_of_real_data_are_named(shared_data: Path, name: str) -> None:
    found = {each.check: each for each in audit_data(shared_data / name).findings}
    for check, words in QUIRKS[name].items():
        assert found[check].verdict == "warn"
        assert words in found[check].message


@pytest.mark.parametrize(
    ("name", "check", "words"),
    [
        ("pendulum/pendulum_replay_v1.1.0.h5", "episode ends", "500 episodes, 0 terminated, 500 cut; 500 last rows"),
        ("pendulum/pendulum_replay_v1.1.0.h5", "returns", "from -1778 to"),
        ("pendulum/pendulum_medium_sac.npz", "episode ends", "50 episodes, 0 terminated, 50 cut"),
        ("d4rl/adroit/door-human-v1.hdf5", "episode ends", "2 episodes, 0 terminated, 2 cut; 2 last rows"),
        ("d4rl/mujoco/hopper_medium-v2.hdf5", "episode ends", "2 episodes, 2 terminated, 0 cut"),
    ],
)
def test_what_is_no_mistake_is_told_too(shared_data: Path, name: str, check: str, words: str) -> None:
    (finding,) = [each for each in audit_data(shared_data / name).findings if each.check == check]
    assert finding.verdict == "pass"
    assert words in finding.message


@pytest.mark.parametrize(("name", "warns"), [("men_random", set()), ("men_bts", {"constant columns"})])
def test_logged_recommendations_are_audited(shared_data: Path, name: str, warns: set[str]) -> None:
    columns = {"obs": ["user-item_affinity_*"], "actions": ["item_id"], "reward": "click", "episodes": "each_row"}
    report = audit_data(shared_data / "obd" / f"{name}.csv.gz", columns={**columns, "action_kind": "discrete"})
    assert {each.check for each in report.findings if each.is_alarm} == warns


def test_every_real_file_is_audited(shared_data: Path) -> None:
    paths = [path for ending in ("npz", "h5", "hdf5") for path in shared_data.rglob(f"*.{ending}")]
    kept = [
        path for path in paths if path.relative_to(shared_data).parts[0] not in ("policies", "minari", "icu_sepsis")
    ]
    assert len(kept) > 20
    for path in kept:
        assert audit_data(path).verdict != "fail", path
