"""Training on objects of one's own: arrays, episodes, environments and functions that make them."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from rl_training import BC, SAC, TD3BC, resume, train
from rl_training.core.errors import ConfigError, DatasetError, UserError
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.storage import load_checkpoint, read_metrics

SMALL: dict[str, Any] = {"hidden_sizes": [8], "batch_size": 16, "eval_episodes": 1}


class Walk(gym.Env[Any, Any]):
    """A point that should stand at 3."""

    observation_space = Box(-10, 10, (2,), np.float32)
    action_space = Box(-2, 2, (1,), np.float32)
    made = 0

    def __init__(self) -> None:
        Walk.made += 1

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place, self.time = np.zeros(2, np.float32), 0
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        self.place = (self.place + np.float32(action[0])).clip(-10, 10)
        return self.place, -abs(float(self.place[0]) - 3), False, self.time >= 10, {}


def _arrays(rows: int = 200) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    return {
        "observations": rng.normal(size=(rows, 2)),
        "actions": rng.uniform(-1, 1, (rows, 1)),
        "rewards": rng.normal(size=rows),
        "terminals": np.zeros(rows, bool),
        "timeouts": np.arange(1, rows + 1) % 20 == 0,
    }


def _episode() -> dict[str, Any]:
    rng = np.random.default_rng(1)
    return {"observations": rng.normal(size=(21, 2)), "actions": rng.uniform(-1, 1, (20, 1)), "rewards": np.ones(20)}


@pytest.mark.parametrize("kind", ["arrays", "dataset", "episodes"])
def test_a_managed_class_trains_on_data_in_memory(kind: str, tmp_path: Path) -> None:
    arrays = _arrays()
    data = {"arrays": arrays, "dataset": TransitionDataset.from_dict(arrays), "episodes": [_episode()] * 5}[kind]
    model = TD3BC(dataset=data, seed=3, total_timesteps=10, output_dir=tmp_path, bc_alpha=5.0, **SMALL)

    result = model.fit()

    config = load_checkpoint(result.checkpoint_path)["config"]
    assert (config["seed"], config["algo_kwargs"]["bc_alpha"], config["env_id"]) == (3, 5.0, None)
    assert "td3_bc__data__seed3" in result.run_dir.name
    assert model.predict(np.zeros((4, 2))).shape == (4, 1)
    assert model.predict_value(np.zeros((4, 2)), np.zeros((4, 1))).shape == (4,)


def test_options_change_a_packaged_configuration(tmp_path: Path) -> None:
    model = BC("bc/pendulum", learning_rate=1e-2, seed=5, output_dir=tmp_path)

    assert (model.config.seed, model.config.algo_kwargs["learning_rate"]) == (5, 1e-2)
    assert model.config.algo_kwargs["dataset_kind"] == "random"


def test_a_resumed_run_needs_the_same_data_again(tmp_path: Path) -> None:
    config = {"algo": "bc", "total_timesteps": 10, "output_dir": tmp_path, "algo_kwargs": {"batch_size": 16}}
    run = train(config, dataset=_arrays()).run_dir

    with pytest.raises(ConfigError, match="pass dataset="):
        resume(run, total_timesteps=20)
    with pytest.raises(UserError, match="fingerprint differs"):
        resume(run, dataset=_arrays(180), total_timesteps=20)
    assert resume(run, dataset=_arrays(), total_timesteps=20).metrics["update_count"] == 20


@pytest.mark.parametrize("env", [Walk(), Walk], ids=["an environment", "a function"])
def test_an_environment_is_an_object_or_what_makes_one(env: Any, tmp_path: Path) -> None:
    options = {"total_timesteps": 40, "learning_starts": 10, "output_dir": tmp_path, "num_envs": 2, **SMALL}
    model = SAC(env=env, **options)

    result = model.learn()

    assert "sac__given-Walk" in result.run_dir.name
    assert result.metrics["length_mean"] == 10
    assert resume(result.run_dir, env=env, total_timesteps=60).metrics["env_steps"] == 60


def test_a_run_whose_environment_is_gone_says_what_it_needs(tmp_path: Path) -> None:
    wrapped = gym.wrappers.TransformReward(Walk(), lambda reward: 2 * float(reward))
    run = SAC(env=wrapped, total_timesteps=20, learning_starts=10, output_dir=tmp_path, **SMALL).learn().run_dir
    gym.registry.pop(load_checkpoint(run / "checkpoints" / "latest.pt")["config"]["env_id"])

    words = r"given/Walk\d*-v0 was passed as an object \(\S*test_objects.Walk in TransformReward\): pass it again"
    with pytest.raises(ConfigError, match=words):
        resume(run, total_timesteps=40)
    # Under whatever name: it is the run's own that counts.
    assert resume(run, env=partial(Walk), total_timesteps=40).metrics["env_steps"] == 40


def test_two_environments_of_one_name_are_kept_apart(tmp_path: Path) -> None:
    first, second = SAC(env=partial(Walk)), SAC(env=partial(gym.make, "Pendulum-v1"))

    assert first.config.env_id != second.config.env_id
    assert gym.make(str(first.config.env_id)).observation_space.shape == (2,)


def test_a_run_with_a_named_environment_takes_no_other(tmp_path: Path) -> None:
    options = {"total_timesteps": 20, "learning_starts": 10, "output_dir": tmp_path, **SMALL}
    run = SAC(env="Pendulum-v1", **options).learn().run_dir

    with pytest.raises(ConfigError, match="the run has the environment Pendulum-v1, and env= cannot replace it"):
        resume(run, env=Walk, total_timesteps=40)


def test_options_inside_and_beside_algo_kwargs_both_count() -> None:
    model = TD3BC(algo_kwargs={"bc_alpha": 5.0}, policy_delay=3)

    assert (model.config.algo_kwargs["bc_alpha"], model.config.algo_kwargs["policy_delay"]) == (5.0, 3)


class _Uncopied(Walk):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("holds a connection")


def test_mistakes_are_answered_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"env must be the name of an environment, .* got int"):
        SAC(env=3)
    with pytest.raises(ConfigError, match=r"holds a connection.*pass a function that makes it instead"):
        SAC(env=_Uncopied(), output_dir=tmp_path).learn()
    with pytest.raises(DatasetError, match=r"dataset must be a TransitionDataset, .* got int"):
        BC(dataset=3, output_dir=tmp_path).learn()
    with pytest.raises(ConfigError, match="did you mean 'bc_alpha'"):
        TD3BC(dataset=_arrays(), bc_alfa=1)  # type: ignore[call-arg]  # type checkers see the mistake too
    with pytest.raises(ConfigError, match="give one or the other"):
        BC("bc/pendulum", dataset=_arrays(), output_dir=tmp_path).learn()
    with pytest.raises(ConfigError, match="does not go with mode: online"):
        SAC(env="Pendulum-v1", dataset=_arrays(), output_dir=tmp_path).learn()
    assert list(tmp_path.iterdir()) == []


def test_a_policy_without_critics_values_nothing(tmp_path: Path) -> None:
    model = BC(dataset=_arrays(), total_timesteps=5, output_dir=tmp_path, **SMALL)
    model.learn()

    with pytest.raises(ConfigError, match="bc has no critic"):
        model.predict_value(np.zeros(2), np.zeros(1))


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5"])
def test_a_dataset_is_saved_and_read_back(name: str, tmp_path: Path) -> None:
    dataset = TransitionDataset.from_dict(_arrays())
    dataset.save(tmp_path / name)

    again = load_transition_dataset(tmp_path / name)

    assert torch.equal(again.truncations, dataset.truncations)
    for field in ("obs", "actions", "rewards", "next_obs", "dones"):
        assert torch.equal(again.fields[field], dataset.fields[field])
    with pytest.raises(ConfigError, match="did you mean"):
        dataset.save(tmp_path / "log.nzp")


def _learned(run_dir: Path) -> dict[str, Any]:
    state: dict[str, Any] = load_checkpoint(run_dir / "checkpoints" / "latest.pt")["trainer"]["state"]
    return state


def test_learning_again_continues_in_the_same_run_with_schedules_over_the_new_total(tmp_path: Path) -> None:
    schedule = {"kind": "linear", "final_ratio": 0.0}
    model = BC(dataset=_arrays(), output_dir=tmp_path, log_interval=5, learning_rate_schedule=schedule, **SMALL)

    first = model.learn(total_timesteps=10)
    rate = read_metrics(first.run_dir)[-1]["learning_rate_multiplier"]
    again = model.learn(total_timesteps=30)

    assert again.run_dir == first.run_dir
    assert _learned(again.run_dir)["update_count"] == 40
    rates = [row["learning_rate_multiplier"] for row in read_metrics(again.run_dir) if row["kind"] == "train"]
    # The last of 10 updates, then the 15th of 40.
    assert rate == pytest.approx(1 - 9 / 10)
    assert rates[2] == pytest.approx(1 - 14 / 40)


def test_a_new_run_starts_afresh(tmp_path: Path) -> None:
    model = BC(dataset=_arrays(), output_dir=tmp_path, total_timesteps=10, **SMALL)
    first, second = model.learn(), model.learn(new_run=True)

    assert first.run_dir != second.run_dir
    assert _learned(second.run_dir)["update_count"] == 10
    assert first.metrics == second.metrics


def test_updates_before_the_first_step_do_not_count_when_learning_again(tmp_path: Path) -> None:
    options: dict[str, Any] = {"mode": "offline_to_online", "offline_pretrain_updates": 15, "learning_starts": 5}
    model = TD3BC(dataset=_arrays(), env=Walk, output_dir=tmp_path, **options, **SMALL)

    model.learn(total_timesteps=20)
    run = model.learn(total_timesteps=10).run_dir

    assert _learned(run)["env_steps"] == 30


def test_a_loaded_run_learns_on(tmp_path: Path) -> None:
    run = SAC(env=Walk, total_timesteps=20, learning_starts=10, output_dir=tmp_path, **SMALL).learn().run_dir
    gym.registry.pop(load_checkpoint(run / "checkpoints" / "latest.pt")["config"]["env_id"])

    model = SAC.load(run, env=Walk)

    assert model.learn(total_timesteps=30).run_dir == run
    assert _learned(run)["env_steps"] == 50


def test_a_file_outside_of_a_run_has_no_run_to_continue(tmp_path: Path) -> None:
    model = BC(dataset=_arrays(), output_dir=tmp_path / "runs", total_timesteps=10, **SMALL)
    model.learn()
    model.save(tmp_path / "saved.pt")
    loaded = BC.load(tmp_path / "saved.pt", dataset=_arrays())

    with pytest.raises(UserError, match=r"not in a run directory.*BC.load\(run directory\), or learn\(new_run=True\)"):
        loaded.learn(total_timesteps=5)
    assert loaded.learn(total_timesteps=5, new_run=True).run_dir.parent == tmp_path / "runs"
