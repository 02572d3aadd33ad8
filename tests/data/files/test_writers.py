"""Datasets that were collected and written, and read back: what is in the files, and what is refused."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from rl_training.core.errors import ConfigError
from rl_training.data import (
    TransitionDataset,
    check_destination,
    collect_dataset,
    load_transition_dataset,
    write_dataset,
    write_npz,
)
from rl_training.envs import make_native_env

ID = "Slide-v0"


class _Slide(gym.Env[Any, Any]):
    """Moves by the action and shows where it is, in an array that it uses again; beyond 4 it is over."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float32)
    action_space = Box(np.array([-1, 0]), np.array([3, 2]), dtype=np.float32)

    def __init__(self) -> None:
        self.place = np.zeros(2, dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place[:] = self.np_random.uniform(-1, 1, 2)
        return self.place, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.place += action
        return self.place, float(self.place[0]) / 3, bool(self.place.sum() > 9), False, {}


@pytest.fixture(autouse=True)
def slide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    gym.register(ID, entry_point=f"{__name__}:_Slide", max_episode_steps=6, disable_env_checker=True)
    yield
    gym.registry.pop(ID)


make = partial(make_native_env, ID)


@pytest.fixture
def dataset() -> TransitionDataset:
    """Episodes that terminated, episodes that were cut, and a last one that the collection cut."""
    data = collect_dataset(make, size=100, seed=1)
    assert bool(data.dones.any())
    assert int(data.truncations.sum()) > 1
    assert bool(data.truncations[-1])
    return data


def write(dataset: TransitionDataset, out: Path | str) -> None:
    with warnings.catch_warnings():
        # Minari asks for an author, an address and a link to the code.
        warnings.filterwarnings("ignore", category=UserWarning, module="minari")
        write_dataset(dataset, str(out), env=make(), policy="random")


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def assert_equal_datasets(first: TransitionDataset, second: TransitionDataset) -> None:
    assert first.fields.keys() == second.fields.keys()
    for name, value in first.fields.items():
        assert torch.equal(value, second.fields[name]), name
    assert torch.equal(first.truncations, second.truncations)


@pytest.mark.parametrize("name", ["log.npz", "log.hdf5", "log.h5", "LOG.NPZ"])
def test_a_file_is_read_back_as_it_was(name: str, dataset: TransitionDataset, tmp_path: Path) -> None:
    write(dataset, tmp_path / name)
    assert files(tmp_path) == [name]
    assert_equal_datasets(load_transition_dataset(tmp_path / name), dataset)


@pytest.mark.parametrize("name", ["mine/slide-v0", "slide-v12", "mine/slide/random-v1"])
def test_a_minari_dataset_is_read_back_as_it_was(name: str, dataset: TransitionDataset) -> None:
    write(dataset, name)
    assert_equal_datasets(load_transition_dataset(dataset_id=name), dataset)


@pytest.mark.parametrize("out", ["goals.npz", "goals.hdf5", "mine/goals-v0"])
def test_goals_that_were_achieved_are_read_back(out: str, tmp_path: Path) -> None:
    make_goals = partial(make_native_env, "PointGoal-v0")
    data = collect_dataset(make_goals, size=120, seed=2)
    assert data.achieved_goals.shape == (120, 2)
    place = str(tmp_path / out) if out.startswith("goals") else out
    write_dataset(data, place, env=make_goals(), policy="random")
    read: Any = {"dataset_path" if out.startswith("goals") else "dataset_id": place}
    assert_equal_datasets(load_transition_dataset(**read), data)


NAMES = {"observations", "actions", "rewards", "next_observations", "terminals", "timeouts"}


def test_a_numpy_file_has_the_names_of_d4rl(dataset: TransitionDataset, tmp_path: Path) -> None:
    write(dataset, tmp_path / "log.npz")
    with np.load(tmp_path / "log.npz") as arrays:
        assert set(arrays) == NAMES
        assert {name: arrays[name].dtype for name in ("observations", "terminals", "timeouts")} == {
            "observations": np.float32,
            "terminals": np.bool_,
            "timeouts": np.bool_,
        }
        assert arrays["terminals"].tolist() == dataset.dones.bool().tolist()
        assert arrays["timeouts"].tolist() == dataset.truncations.tolist()


def test_an_hdf5_file_has_the_names_of_d4rl_and_says_where_it_comes_from(
    dataset: TransitionDataset, tmp_path: Path
) -> None:
    write(dataset, tmp_path / "log.hdf5")
    with h5py.File(tmp_path / "log.hdf5") as file:
        assert set(file) == NAMES
        assert {name: text for name, text in file.attrs.items() if name != "checksums"} == {
            "env_id": ID,
            "policy": "random",
        }
        np.testing.assert_array_equal(file["actions"][()], dataset.actions.numpy())


def test_a_minari_dataset_says_where_it_comes_from(dataset: TransitionDataset) -> None:
    write(dataset, "mine/slide-v0")
    stored = minari.load_dataset("mine/slide-v0")
    assert stored.spec.env_spec.id == ID
    assert stored.spec.total_steps == 100
    assert stored.spec.total_episodes == len(dataset.episode_bounds())
    assert stored.storage.metadata["algorithm_name"] == "random"
    assert stored.spec.action_space == _Slide.action_space
    assert stored.spec.observation_space == _Slide.observation_space
    for episode, written in zip(stored, dataset.episodes(), strict=True):
        assert episode.terminations.tolist() == written.terminations.tolist()
        assert episode.truncations.tolist() == written.truncations.tolist()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("missing/log.npz", "the folder of '.*missing/log.npz' does not exist"),
        ("log.csv", r"must end in .npz, .hdf5, .h5, .pt, .parquet, .rlt, or be the id of a Minari dataset$"),
        ("log.hdf", r".parquet, .rlt, or be the id of a Minari dataset; did you mean '.hdf5'\?"),
        ("there.npz", "'.*there.npz' exists already; choose another name or delete it"),
        ("folder.h5", "'.*folder.h5' exists already"),
    ],
)
def test_a_file_that_cannot_be_written_is_refused(
    name: str, message: str, dataset: TransitionDataset, tmp_path: Path
) -> None:
    (tmp_path / "there.npz").write_bytes(b"precious")
    (tmp_path / "folder.h5").mkdir()
    with pytest.raises(ConfigError, match=message):
        check_destination(str(tmp_path / name))
    with pytest.raises(ConfigError, match=message):
        write(dataset, tmp_path / name)
    assert files(tmp_path) == ["there.npz"]
    assert (tmp_path / "there.npz").read_bytes() == b"precious"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("mine/slide", "the Minari dataset id 'mine/slide' has no version, such as -v0"),
        ("slide", "the Minari dataset id 'slide' has no version, such as -v0"),
        ("mine/slide-v", "the Minari dataset id 'mine/slide-v' has no version, such as -v0"),
        ("/slide-v0", "'/slide-v0' is no id of a Minari dataset; expected one such as mine/pendulum-v0"),
        ("my slide-v0", "'my slide-v0' is no id of a Minari dataset"),
    ],
)
def test_an_id_that_is_none_is_refused(name: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        check_destination(name)
    assert files(tmp_path) == []


def test_a_minari_dataset_that_exists_is_not_overwritten(dataset: TransitionDataset, tmp_path: Path) -> None:
    write(dataset, "mine/slide-v0")
    there = files(tmp_path)
    with pytest.raises(ConfigError, match="the Minari dataset id 'mine/slide-v0' exists already"):
        check_destination("mine/slide-v0")
    with pytest.raises(ConfigError, match="exists already"):
        write(dataset.take_episodes([0]), "mine/slide-v0")
    assert files(tmp_path) == there
    # Another version is another dataset.
    check_destination("mine/slide-v1")


def test_what_another_process_left_of_a_minari_dataset_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "minari" / "mine" / "slide-v0" / "data").mkdir(parents=True)
    with pytest.raises(ConfigError, match="the Minari dataset id 'mine/slide-v0' exists already"):
        check_destination("mine/slide-v0")


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("log.npz", "numpy.lib.format.write_array"),
        ("log.hdf5", "h5py.File.create_dataset"),
        ("mine/slide-v0", "minari.utils.MinariDataset"),
    ],
)
def test_of_a_write_that_fails_nothing_is_left(
    name: str, broken: str, dataset: TransitionDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = name if name.startswith("mine/") else str(tmp_path / name)

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(broken, fail)
        with pytest.raises(OSError, match="no space left"):
            write(dataset, out)
    assert not [path for path in files(tmp_path) if "log" in path or "slide" in path]
    write(dataset, out)
    again: Any = {"dataset_id" if out == name else "dataset_path": out}
    assert_equal_datasets(load_transition_dataset(**again), dataset)


def test_the_dataset_of_a_run_takes_the_place_of_the_one_before(dataset: TransitionDataset, tmp_path: Path) -> None:
    write_npz(dataset.take_episodes([0]), tmp_path / "replay.npz")
    write_npz(dataset, tmp_path / "replay.npz")
    assert files(tmp_path) == ["replay.npz"]
    assert_equal_datasets(load_transition_dataset(tmp_path / "replay.npz"), dataset)


def test_collected_rows_do_not_change_with_the_array_that_an_environment_uses_again(dataset: TransitionDataset) -> None:
    assert torch.allclose(dataset.next_obs, dataset.obs + dataset.actions)
    follows = ~dataset.episode_ends[:-1]
    assert torch.equal(dataset.next_obs[:-1][follows], dataset.obs[1:][follows])
    assert torch.equal(dataset.rewards, dataset.next_obs[:, 0] / 3)


def test_whole_episodes_are_collected_where_they_are_counted() -> None:
    data = collect_dataset(make, episodes=5, seed=1)
    assert len(data.episode_bounds()) == 5
    ended = data.next_obs[data.episode_bounds()[:, 1] - 1].sum(1) > 9
    assert torch.equal(data.dones[data.episode_bounds()[:, 1] - 1].bool(), ended)
    # Each that did not terminate has the six steps of the time limit.
    lengths = data.episode_bounds()[:, 1] - data.episode_bounds()[:, 0]
    assert bool((lengths[~ended] == 6).all())
    # The same seed begins with the same rows, however many there are to be.
    assert torch.equal(collect_dataset(make, size=8, seed=1).obs, data.obs[:8])


def test_a_policy_acts_in_native_units_on_what_it_sees() -> None:
    seen: list[Any] = []

    def act(obs: Any) -> Any:
        seen.append(obs.copy())
        return np.array([3.0, obs[1] > 0], dtype=np.float32)

    data = collect_dataset(make, act=act, size=20)
    assert torch.equal(data.obs, torch.from_numpy(np.stack(seen)))
    assert torch.equal(data.actions[:, 0], torch.full((20,), 3.0))
    assert torch.equal(data.actions[:, 1], (data.obs[:, 1] > 0).float())


@pytest.mark.parametrize("counts", [{}, {"size": 3, "episodes": 3}])
def test_how_much_to_collect_is_said_in_one_way(counts: Any) -> None:
    with pytest.raises(ConfigError, match="give either size or episodes"):
        collect_dataset(make, **counts)


@pytest.mark.parametrize("ending", ["npz", "hdf5"])
def test_timestamps_are_written_with_all_their_digits(tmp_path: Path, ending: str) -> None:
    times = 1.7e9 + 0.1 * np.arange(4)
    rows = {"obs": np.arange(4.0), "actions": np.zeros((4, 1)), "rewards": np.ones(4), "next_obs": np.arange(4.0) + 1}
    logged = TransitionDataset.from_dict({**rows, "timeouts": [0, 0, 0, 1], "timestamps": times})
    logged.save(tmp_path / f"log.{ending}")
    assert load_transition_dataset(tmp_path / f"log.{ending}").timestamps.tolist() == times.tolist()
