"""Action masks from an environment or a log to training, evaluation, prediction and export."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gates
import numpy as np
import pytest
import torch
from command_line import Command, call_main

from rl_training import BC, DQN, PPO, DiscreteBCQ, DiscreteSAC, estimate
from rl_training.core.errors import ConfigError, DatasetError, UserCodeError
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.policies import collect, load_policy
from rl_training.runtime.train import resume
from rl_training.storage import load_checkpoint

SMALL: dict[str, Any] = {"hidden_sizes": [16], "batch_size": 32}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Transitions of random valid actions."""
    path = tmp_path_factory.mktemp("gates") / "log.npz"
    collect(str(path), env_id="Gates-v0", steps=600)
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    return lambda *arguments: call_main(monkeypatch, capsys, *arguments)


def _arrays(path: Path) -> dict[str, Any]:
    with np.load(path) as arrays:
        return dict(arrays)


def test_collected_data_has_masks_that_the_actions_keep_to(log: Path) -> None:
    arrays = _arrays(log)
    assert arrays["observations"].shape == (600, 2)
    assert arrays["valid_actions"].shape == arrays["next_valid_actions"].shape == (600, 4)
    assert arrays["valid_actions"][np.arange(600), arrays["actions"]].all()
    inside = ~(arrays["terminals"] | arrays["timeouts"])[:-1]
    np.testing.assert_array_equal(arrays["next_valid_actions"][:-1][inside], arrays["valid_actions"][1:][inside])
    assert arrays["next_valid_actions"][arrays["terminals"]].all()


@pytest.mark.parametrize("env", ["Gates-v0", "SilentGates-v0"])
@pytest.mark.parametrize("vector_env", ["sync", "async"])
def test_an_online_run_only_takes_valid_actions(env: str, vector_env: Any, tmp_path: Path) -> None:
    # The environment fails at any other action: random ones, exploring ones, greedy ones.
    options = {"learning_starts": 30, "exploration_noise": 0.5, "n_step": 3, "normalize_obs": True, **SMALL}
    result = DQN(env=env, total_timesteps=80, num_envs=2, vector_env=vector_env, output_dir=tmp_path, **options).learn()
    saved = load_policy(result.run_dir)
    assert list(saved.spaces.obs) == ["valid_actions", "obs"]
    mean, std = saved.policy.obs_mean, saved.policy.obs_std
    assert (mean[:4].tolist(), std[:4].tolist()) == ([0] * 4, [1] * 4)
    assert len(saved.evaluate(episodes=3).returns) == 3


@pytest.mark.parametrize("algo", [DiscreteSAC, PPO])
def test_sampled_actions_are_valid_too(algo: Callable[..., Any], tmp_path: Path) -> None:
    options = {"rollout_steps": 32} if algo is PPO else {"learning_starts": 20}
    result = algo(env="Gates-v0", total_timesteps=64, output_dir=tmp_path, **SMALL, **options).learn()
    assert len(load_policy(result.run_dir).evaluate(episodes=2, deterministic=False).returns) == 2


def test_a_resumed_run_with_masks_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    options = {"learning_starts": 10, "update_to_data": 1, "checkpoint_interval": 1, "keep_checkpoints": "all", **SMALL}
    whole = DQN(env="SilentGates-v0", total_timesteps=40, output_dir=tmp_path / "a", **options).learn()
    cut = DQN(env="SilentGates-v0", total_timesteps=40, output_dir=tmp_path / "b", **options).learn()
    again = resume(cut.run_dir / "checkpoints" / "step_000000023.pt")
    ours, theirs = (load_checkpoint(each.checkpoint_path)["algorithm"] for each in (whole, again))
    assert all(torch.equal(ours[name], theirs[name]) for name in ours if isinstance(ours[name], torch.Tensor))


def test_a_policy_from_a_log_keeps_to_masks_wherever_it_answers(log: Path, tmp_path: Path) -> None:
    result = DiscreteBCQ(dataset_path=str(log), total_timesteps=30, output_dir=tmp_path, **SMALL).learn()
    saved, arrays = load_policy(result.run_dir), _arrays(log)
    obs, masks = arrays["observations"], arrays["valid_actions"]
    chosen = saved.predict(obs, valid_actions=masks)
    assert masks[np.arange(len(obs)), chosen].all()
    np.testing.assert_array_equal(saved.predict({"obs": obs, "action_masks": masks}), chosen)
    np.testing.assert_array_equal(saved.predict(np.hstack([masks, obs])), chosen)
    assert len(saved.evaluate(env="Gates-v0", episodes=2).returns) == 2
    found = estimate(result.run_dir, gamma=0.9, updates=20)
    assert found is not None
    with pytest.raises(ConfigError, match="which actions are valid, as valid_actions"):
        saved.predict(obs)
    with pytest.raises(ConfigError, match=r"valid_actions marks no action as valid in 1 rows \(first: row 0\)"):
        saved.predict(obs[:1], valid_actions=[[0, 0, 0, 0]])
    with pytest.raises(ConfigError, match=r"valid_actions must be 0 or 1, got \[1.0, 0.5"):
        saved.predict(obs[:1], valid_actions=[[1, 0.5, 0, 0]])


@pytest.mark.parametrize("algo", [BC, DiscreteBCQ])
def test_an_exported_policy_keeps_to_masks(algo: Callable[..., Any], log: Path, tmp_path: Path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    result = algo(dataset_path=str(log), total_timesteps=20, output_dir=tmp_path, **SMALL).learn()
    saved, arrays = load_policy(result.run_dir), _arrays(log)
    saved.export(tmp_path / "policy")
    rows = np.hstack([arrays["valid_actions"], arrays["observations"]]).astype(np.float32)
    session = runtime.InferenceSession(str(tmp_path / "policy" / "policy.onnx"), providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(session.run(None, {"obs": rows})[0], saved.predict(rows))
    assert '"valid_actions"' in (tmp_path / "policy" / "policy.json").read_text()


def test_a_policy_without_masks_does_not_take_them(tmp_path: Path) -> None:
    result = BC(
        env="CartPole-v1", dataset_kind="random", dataset_size=100, total_timesteps=2, output_dir=tmp_path
    ).learn()
    with pytest.raises(ConfigError, match="trained without valid_actions"):
        load_policy(result.run_dir).predict([[0.0] * 4], valid_actions=[[1, 0]])


def test_logged_actions_that_were_not_possible_are_refused_or_dropped(log: Path, tmp_path: Path) -> None:
    arrays = _arrays(log)
    wrong = [5, 9]
    arrays["valid_actions"][wrong] = 1 - np.eye(4)[arrays["actions"][wrong]]
    np.savez(tmp_path / "wrong.npz", **arrays)
    path = str(tmp_path / "wrong.npz")
    with pytest.raises(DatasetError, match=r"in 2 of 600 rows valid_actions excludes the logged action \(rows 5, 9\)"):
        BC(dataset_path=path, total_timesteps=2, output_dir=tmp_path).learn()
    assert not list(tmp_path.glob("bc*"))
    kept = load_transition_dataset(path, invalid_actions="drop")
    assert (len(kept), kept.num_dropped) == (598, 2)
    assert any("dropped 2 rows whose action was not valid" in note for note in kept.notes)
    # The row before a dropped one is the last of its episode, unless it was so before.
    assert bool(kept.episode_ends[4])
    assert len(kept.episode_bounds()) >= len(TransitionDataset.from_dict(_arrays(log)).episode_bounds())


def test_data_and_environment_must_agree_on_masks(log: Path, tmp_path: Path) -> None:
    arrays = _arrays(log)
    arrays["observations"] = np.hstack([arrays["observations"]] * 2)
    arrays["next_observations"] = np.hstack([arrays["next_observations"]] * 2)
    arrays["actions"] = arrays["actions"] % 2
    arrays["valid_actions"] = arrays["next_valid_actions"] = np.ones((600, 2))
    with pytest.raises(DatasetError, match="the data has valid_actions, and CartPole-v1 gives no action masks"):
        BC(env="CartPole-v1", dataset=arrays, total_timesteps=2, output_dir=tmp_path).learn()
    plain = {name: value for name, value in _arrays(log).items() if "valid" not in name}
    result = BC(env="Gates-v0", dataset=plain, total_timesteps=2, output_dir=tmp_path, **SMALL).learn()
    assert load_policy(result.run_dir).spaces.is_masked


def test_offline_then_online_with_masks(log: Path, tmp_path: Path) -> None:
    result = DiscreteBCQ(
        env="Gates-v0",
        dataset_path=str(log),
        mode="offline_to_online",
        offline_pretrain_updates=10,
        total_timesteps=40,
        learning_starts=10,
        output_dir=tmp_path,
        **SMALL,
    ).learn()
    assert result.run_dir.exists()


def test_a_mask_that_is_wrong_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, command: Command) -> None:
    monkeypatch.setattr(gates.SilentGates, "action_masks", lambda self: [1, 1])
    assert "action_masks() gives [1.0, 1.0], expected 4 numbers" in command("env", "check", "SilentGates-v0").out
    monkeypatch.setattr(gates.SilentGates, "action_masks", lambda self: [0, 0, 0, 0])
    with pytest.raises((UserCodeError, ConfigError), match="marks no action as valid"):
        DQN(env="SilentGates-v0", total_timesteps=5, output_dir=tmp_path).learn()


def test_the_commands_on_the_open_bandit_data_run(
    shared_data: Path, tmp_path: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Path(__file__).parents[2] / "docs" / "discrete_actions.md"
    lines = [line for line in page.read_text(encoding="utf-8").splitlines() if "men_bts.csv.gz" in line]
    assert [line.split()[1] for line in lines] == ["train", "estimate"]
    monkeypatch.chdir(tmp_path)
    quick = {"train": ["total_timesteps=20", "algo_kwargs.hidden_sizes=[8]"], "estimate": ["--updates", "50"]}
    for line in lines:
        words = shlex.split(line.replace("men_bts.csv.gz", str(shared_data / "obd" / "men_bts.csv.gz")))
        answer = command(*words[1:], *quick[words[1]])
        assert answer.code == 0, answer.err


def test_a_table_with_masks_is_answered_by_names(tmp_path: Path, command: Command) -> None:
    path, rng = tmp_path / "log.csv", np.random.default_rng(0)
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["x", "what", "gain", "no_b", "ok_wait", "ok_go"])
        for _ in range(60):
            can_go = int(rng.integers(2))
            table.writerow([round(rng.normal(), 3), "go" if can_go else "wait", 1, 0, 1, can_go])
    flags: list[Any] = ["--obs-columns=x", "--action-columns=what", "--reward-column=gain", "--episodes=each_row"]
    masks = ["--valid-action-columns", "ok_*", "--out", tmp_path, "--run-name", "mine"]
    answer = command("train", "discrete_cql", "--data", path, *flags, *masks, "total_timesteps=5")
    assert answer.code == 0, answer.err
    assert "valid_actions mask the invalid ones" in answer.out
    found = command("predict", tmp_path / "mine", "--obs", path)
    assert found.code == 0, found.err
    lines = found.out.split()
    assert {line.strip('"') for line in lines[1:]} <= {"go", "wait"}
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert all(line.strip('"') == "wait" for line, row in zip(lines[1:], rows, strict=True) if row["ok_go"] == "0")
    # The run can be judged by the same rows in another form, which says itself what its columns are.
    for name in ("log.parquet", "log.rlt", "log.npz"):
        assert command("data", "convert", path, tmp_path / name, *flags, *masks[:2]).code == 0
        judged = estimate(tmp_path / "mine", tmp_path / name, updates=20, members=2, split="all")
        assert judged.rows == 60, name
    unclear = ["--valid-action-columns", "no_b", "--out", tmp_path / "other"]
    refused = command("train", "discrete_cql", "--data", path, *flags, *unclear, "total_timesteps=5")
    assert refused.code == 2
    assert "valid_actions are 1 columns, and there are 2 actions (go, wait)" in refused.err


def test_several_actions_at_once_are_one_action_from_data_to_export(command: Command, tmp_path: Path) -> None:
    status, printed, _ = command("env", "check", "gates:PairedGates-v0")
    assert (status, "6 discrete actions (2 x 3)" in printed) == (0, True)
    path = tmp_path / "log.npz"
    collect(str(path), env_id="PairedGates-v0", steps=300)
    arrays = _arrays(path)
    assert arrays["actions"].max() > 2
    # Only one way is possible at a time, with and without going.
    np.testing.assert_array_equal(arrays["valid_actions"].sum(axis=1), 2)
    result = DiscreteBCQ(
        dataset=arrays, env="PairedGates-v0", total_timesteps=50, eval_episodes=2, output_dir=tmp_path, **SMALL
    ).learn()
    assert result.metrics["return_mean"] <= 1
    saved = load_policy(result.run_dir)
    assert saved.spaces.action.to_plain() == {"count": 6, "start": 0, "parts": [2, 3]}
    valid = [[0, 1, 0, 0, 1, 0]]
    assert int(saved.predict([[0.0, 0.0]], valid_actions=valid)[0]) in (1, 4)
    assert saved.export(tmp_path / "exported", dataset=arrays).about["action"]["parts"] == [2, 3]


def test_a_pipeline_drops_what_was_not_possible(log: Path, tmp_path: Path, command: Command) -> None:
    arrays = _arrays(log)
    arrays["valid_actions"][5, arrays["actions"][5]] = 0
    path = tmp_path / "odd.npz"
    np.savez(path, **arrays)
    tiny = ["--updates", "20", "--seeds", "0", "--members", "2", "--algos", "discrete_bcq"]
    sizes = ["--set", "algo_kwargs.hidden_sizes=[8]", "--set", "fit_updates=20", "--gamma", "0.8"]
    refused = command("pipeline", path, *tiny, *sizes, "--out", tmp_path / "refused")
    assert (refused.code, "set invalid_actions: drop" in refused.err) == (2, True)
    drop = ["--set", "algo_kwargs.invalid_actions=drop", "--out", tmp_path / "pipe"]
    answer = command("pipeline", path, *tiny, *sizes, *drop)
    assert answer.code == 0, answer.err
