"""From options to a dataset: which form a file has, what is done to what it holds, and in what order."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.data import DataOptions, TransitionDataset, load_transition_dataset
from rl_training.data.dataset_loaders import DatasetSpec

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

# Three terminated episodes of two steps, with returns 3, 12 and 48, and actions far outside [-1, 1].
REWARDS = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0]


def log(**others: Any) -> dict[str, Any]:
    obs = np.arange(6, dtype=np.float32)[:, None]
    return {
        "observations": obs,
        "actions": 10 * obs - 25,
        "rewards": np.array(REWARDS, dtype=np.float32),
        "next_observations": obs + 1,
        "terminals": np.array([0, 1, 0, 1, 0, 1], dtype=bool),
        "timeouts": np.zeros(6, dtype=bool),
    } | others


def write(path: Path, **others: Any) -> str:
    """The three episodes in a file, in the form that its ending names."""
    arrays = log(**others)
    if path.suffix.lower() == ".npz":
        with path.open("wb") as file:
            np.savez(file, **arrays)
    elif path.suffix in (".pt", ".pth"):
        torch.save({name: torch.as_tensor(value) for name, value in arrays.items()}, path)
    else:
        with h5py.File(path, "w") as file:
            for name, value in arrays.items():
                file[name] = value
    return str(path)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return write(tmp_path / "log.npz")


@pytest.mark.parametrize("name", ["log.npz", "log.NPZ", "log.pt", "log.pth", "log.hdf5", "log.h5"])
def test_the_form_of_a_file_follows_from_its_ending(tmp_path: Path, name: str) -> None:
    data = load_transition_dataset(dataset_path=write(tmp_path / name))
    assert data.fingerprint() == TransitionDataset.from_dict(log()).fingerprint()


def test_a_file_with_another_ending_is_read_when_its_form_is_given(path: str) -> None:
    renamed = Path(path).rename(Path(path).with_suffix(".data"))
    with pytest.raises(ConfigError, match=r"'.*log.data' has none of the endings .*; set dataset_kind"):
        load_transition_dataset(dataset_path=str(renamed))
    assert len(load_transition_dataset(dataset_path=str(renamed), dataset_kind="npz")) == 6


def test_a_pt_file_may_hold_episodes(tmp_path: Path) -> None:
    episode = {
        "observations": torch.arange(3.0)[:, None],
        "actions": torch.zeros(2, 1),
        "rewards": torch.ones(2),
        "terminations": False,
        "truncations": True,
    }
    torch.save([episode, episode], tmp_path / "log.pt")
    data = load_transition_dataset(dataset_path=str(tmp_path / "log.pt"))
    assert data.next_obs.flatten().tolist() == [1, 2, 1, 2]
    assert data.episode_returns().tolist() == [2, 2]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({}, "no dataset is named: set dataset_path, dataset_id, dataset_mix, or dataset_kind: random"),
        ({"dataset_kind": "npz"}, "dataset_kind 'npz' needs a dataset_path"),
        ({"dataset_kind": "minari"}, "dataset_kind 'minari' needs a dataset_id"),
        ({"dataset_kind": "random", "dataset_path": "log.npz"}, "dataset_path does not go with dataset_kind 'random'"),
        ({"dataset_path": "log.npz", "dataset_id": "D4RL/a-v0"}, "dataset_id does not go with dataset_kind 'npz'"),
        ({"dataset_path": "log.npz", "dataset_download": True}, "dataset_download does not go with"),
        ({"dataset_path": "log.npz", "dataset_size": 5}, "dataset_size does not go with dataset_kind 'npz'"),
        ({"dataset_kind": "random"}, "needs an environment to act in: set env_id"),
        ({"dataset_pth": "log.npz"}, "unknown option 'dataset_pth'; did you mean 'dataset_path'"),
        ({"dataset_kind": "npy"}, "dataset_kind must be one of .*, got 'npy'; did you mean 'npz'"),
        ({"dataset_path": "log.npz", "reward_clip_min": 1, "reward_clip_max": 0}, "clip_min must be <= clip_max"),
        ({"dataset_path": "log.npz", "validation_fraction": 1.0}, "validation_fraction must be < 1"),
        ({"dataset_path": "log.npz", "best_fraction": 0.0}, "best_fraction must be > 0"),
        ({"dataset_path": "log.npz", "action_low": [0.0]}, "action_low and action_high go together"),
        (
            {"dataset_path": "log.npz", "dataset_mix": [{"dataset_path": "log.npz"}]},
            "dataset_mix replaces dataset_kind, dataset_path and dataset_id",
        ),
        ({"dataset_mix": [{"dataset_path": "log.npz", "ratio": 0}]}, r"dataset_mix.0.ratio must be > 0"),
        ({"dataset_mix": [{"dataset_pth": "log.npz"}]}, "did you mean 'dataset_path'"),
    ],
)
def test_options_that_do_not_go_together_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_transition_dataset(**values)


def test_a_missing_file_is_answered_with_the_nearest_name(path: str) -> None:
    with pytest.raises(DatasetError, match=r"'.*lgo.npz' does not exist; did you mean 'log.npz'"):
        load_transition_dataset(dataset_path=path.replace("log.npz", "lgo.npz"))


def test_what_is_wrong_with_the_data_is_said_with_the_file(tmp_path: Path) -> None:
    rewards = np.array([1, 2, np.nan, 4, 5, 6])
    path = write(tmp_path / "log.npz", rewards=rewards)
    with pytest.raises(DatasetError, match=r"log.npz: rewards has 1 values that are not finite; .* in row 2"):
        load_transition_dataset(dataset_path=path)


@pytest.mark.parametrize(
    ("spec", "kind"),
    [
        (DatasetSpec(dataset_path="a.h5"), "hdf5"),
        (DatasetSpec(dataset_id="D4RL/door/human-v2"), "minari"),
        (DatasetSpec(dataset_kind="random"), "random"),
        (DatasetSpec(), None),
    ],
)
def test_the_kind_is_inferred_where_it_is_not_given(spec: DatasetSpec, kind: str | None) -> None:
    assert spec.kind() == kind


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (DataOptions(dataset_path="logs/hopper-medium.hdf5"), "hopper-medium"),
        (DataOptions(dataset_id="D4RL/door/human-v2"), "D4RL-door-human-v2"),
        (DataOptions(dataset_kind="random"), "random"),
    ],
)
def test_a_dataset_has_a_name_for_run_directories(options: DataOptions, name: str) -> None:
    assert options.name() == name


@pytest.mark.parametrize("values", [{}, {"clip_actions": True}, {"action_low": [-1.0], "action_high": [1.0]}])
def test_reading_keeps_the_units_of_actions_and_rejects_none(path: str, values: dict[str, Any]) -> None:
    data = load_transition_dataset(path, **values)
    assert data.actions.flatten().tolist() == [-25, -15, -5, 5, 15, 25]


def test_reading_clips_actions_where_it_is_told_their_bounds(path: str) -> None:
    data = load_transition_dataset(path, clip_actions=True, action_low=[-10], action_high=[20], validation_fraction=0.5)
    assert data.validation is not None
    for part in (data, data.validation):
        assert float(part.actions.min()) >= -10
        assert float(part.actions.max()) <= 20
    both = torch.cat([data.actions, data.validation.actions]).flatten().tolist()
    assert sorted(both) == [-10, -10, -5, 5, 15, 20]


def test_a_group_of_options_and_single_ones_are_not_mixed(path: str) -> None:
    with pytest.raises(ConfigError, match="as a group or by name, not both: reward_scale"):
        load_transition_dataset(DataOptions(dataset_path=path), reward_scale=2.0)


def test_holding_out_is_left_aside_where_only_a_default_asks_for_it(tmp_path: Path) -> None:
    rows = {
        "obs": np.zeros((3, 1)),
        "actions": np.zeros((3, 1)),
        "rewards": np.arange(3.0),
        "next_obs": np.zeros((3, 1)),
    }
    np.savez(tmp_path / "one.npz", allow_pickle=False, **rows, dones=np.array([0.0, 0.0, 1.0]))
    data = load_transition_dataset(tmp_path / "one.npz", default_validation=lambda episodes: 0.1)
    assert data.validation is None
    assert "no episode could be held out for diagnostics: there is only one" in data.notes
    with pytest.raises(DatasetError, match="validation_fraction holds out whole episodes"):
        load_transition_dataset(tmp_path / "one.npz", validation_fraction=0.1)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"reward_scale": 2.0, "reward_shift": -3.0}, [-1, 1, 5, 13, 29, 61]),
        # Bounds hold after scale and shift.
        (
            {"reward_scale": 2.0, "reward_shift": -3.0, "reward_clip_min": 0.0, "reward_clip_max": 6.0},
            [0, 1, 5, 6, 6, 6],
        ),
        ({"reward_preset": "clip_1", "reward_shift": -3.0}, [-1, -1, 1, 1, 1, 1]),
        ({"reward_preset": "sign_clip", "reward_shift": -4.0}, [-1, -1, 0, 1, 1, 1]),
        # The preset adds 1 and clips to [0, 1]: 1 - 1/4, 1 - 1/2, 1 - 1, and less than 0.
        ({"reward_preset": "sparse_goal_zero_one", "reward_scale": -0.25}, [0.75, 0.5, 0, 0, 0, 0]),
        # Returns are 3, 12 and 48: a range of 45, which becomes 1000.
        ({"reward_normalize": "return_range"}, [1000 / 45 * reward for reward in REWARDS]),
        # Normalised first: 1000 / 45 = 22.2, 44.4, 88.9, ... and then clipped.
        ({"reward_normalize": "return_range", "reward_clip_max": 40.0}, [1000 / 45, 40, 40, 40, 40, 40]),
        # The sum is 63, the sum of squares 1365: mean 10.5 and variance 227.5 - 110.25 = 117.25.
        ({"reward_normalize": "standard"}, [(reward - 10.5) / 117.25**0.5 for reward in REWARDS]),
    ],
)
def test_rewards_are_normalised_and_then_transformed(path: str, values: dict[str, Any], expected: list[float]) -> None:
    data = load_transition_dataset(dataset_path=path, **values)
    assert data.rewards.tolist() == pytest.approx(expected)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("return_range", "return_range needs episodes with different returns"),
        ("standard", "standard needs rewards that differ"),
    ],
)
def test_equal_rewards_cannot_be_normalised(tmp_path: Path, how: str, message: str) -> None:
    path = write(tmp_path / "log.npz", rewards=np.ones(6))
    with pytest.raises(DatasetError, match=message):
        load_transition_dataset(dataset_path=path, reward_normalize=how)


def test_the_range_of_returns_counts_rewards_of_dropped_rows(tmp_path: Path) -> None:
    arrays = log(terminals=np.zeros(6), timeouts=[0, 1, 0, 1, 0, 1])
    del arrays["next_observations"]
    np.savez(tmp_path / "log.npz", **arrays)
    data = load_transition_dataset(dataset_path=str(tmp_path / "log.npz"), reward_normalize="return_range")
    # The rewards 2, 8 and 32 went with their rows; returns still range from 3 to 48.
    assert data.rewards.tolist() == pytest.approx([1000 / 45 * reward for reward in (1, 4, 16)])


def test_logged_returns_are_known_before_any_transform(path: str) -> None:
    data = load_transition_dataset(dataset_path=path, reward_scale=2.0)
    assert data.raw_returns is not None
    assert data.raw_returns.tolist() == [3, 12, 48]
    assert data.episode_returns().tolist() == [6, 24, 96]


def test_the_best_episodes_are_chosen_by_logged_return(path: str) -> None:
    # The transform turns the order round; 0.67 of three episodes are two.
    data = load_transition_dataset(dataset_path=path, best_fraction=0.67, reward_scale=-1.0)
    assert data.episode_returns().tolist() == [-12, -48]
    assert data.raw_returns is not None
    assert data.raw_returns.tolist() == [12, 48]
    assert "kept the best 2 of 3 episodes" in data.notes


def test_held_out_episodes_are_whole_and_transformed_alike(path: str) -> None:
    data = load_transition_dataset(dataset_path=path, validation_fraction=0.4, reward_scale=2.0)
    assert data.validation is not None
    # 0.4 of three episodes is one.
    returns = (data.episode_returns().tolist(), data.validation.episode_returns().tolist())
    assert tuple(map(len, returns)) == (2, 1)
    assert sorted(returns[0] + returns[1]) == [6, 24, 96]


def test_the_seed_of_the_dataset_decides_what_is_held_out(path: str) -> None:
    def held_out(seed: int) -> list[float]:
        data = load_transition_dataset(dataset_path=path, validation_fraction=0.4, dataset_seed=seed)
        assert data.validation is not None
        returns: list[float] = data.validation.episode_returns().tolist()
        return returns

    assert held_out(0) == held_out(0)
    assert {tuple(held_out(seed)) for seed in range(20)} == {(3,), (12,), (48,)}


@pytest.mark.parametrize("fraction", [None, 0.0])
def test_nothing_is_held_out_unless_asked_for(path: str, fraction: float | None) -> None:
    assert load_transition_dataset(dataset_path=path, validation_fraction=fraction).validation is None


def test_statistics_of_observations_come_from_the_rows_trained_on(path: str) -> None:
    data = load_transition_dataset(dataset_path=path, validation_fraction=0.4, normalize_obs=True)
    assert data.obs_mean is not None
    assert data.obs_std is not None
    kept = data.obs.numpy()
    assert len(kept) == 4
    assert data.obs_mean.tolist() == pytest.approx([kept.mean()])
    assert data.obs_std.tolist() == pytest.approx([kept.std() + 1e-3])


def test_observations_have_no_statistics_unless_asked_for(path: str) -> None:
    assert load_transition_dataset(dataset_path=path).obs_mean is None


def test_remarks_on_the_data_are_among_its_notes(tmp_path: Path) -> None:
    data = load_transition_dataset(dataset_path=write(tmp_path / "log.npz", rewards=np.zeros(6)))
    assert data.notes == ("every reward is 0",)


class Corridor(gym.Env[Any, Any]):
    """Walks one step per action from 0; the task ends at 3, a time limit cuts every second episode at 2."""

    observation_space = Box(-10, 10, (1,), np.float32)
    action_space = Box(-2, 2, (1,), np.float32)
    closed = 0

    def __init__(self) -> None:
        self.episode = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.position = 0
        self.episode += 1
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position += 1
        cut = self.episode % 2 == 0 and self.position == 2
        return np.full(1, self.position, np.float32), float(self.position), self.position == 3, cut, {}

    def close(self) -> None:
        Corridor.closed += 1


def test_random_collection_records_ends_of_both_kinds_and_next_actions() -> None:
    data = load_transition_dataset(dataset_kind="random", dataset_size=9, env=Corridor)
    assert data.obs.flatten().tolist() == [0, 1, 2, 0, 1, 0, 1, 2, 0]
    assert data.next_obs.flatten().tolist() == [1, 2, 3, 1, 2, 1, 2, 3, 1]
    assert data.dones.tolist() == [0, 0, 1, 0, 0, 0, 0, 1, 0]
    # Row 4 is the time limit, row 8 the end of the collection.
    assert data.truncations.nonzero().flatten().tolist() == [4, 8]
    assert data.next_action_mask is not None
    assert (~data.next_action_mask).nonzero().flatten().tolist() == [4, 8]
    assert data.next_actions[:2].tolist() == data.actions[1:3].tolist()
    assert data.num_dropped == 0


def test_random_collection_is_decided_by_its_seed() -> None:
    make = partial(gym.make, "Pendulum-v1")
    collected = [
        load_transition_dataset(dataset_kind="random", dataset_size=250, dataset_seed=seed, env=make).fingerprint()
        for seed in (3, 3, 4)
    ]
    assert collected[0] == collected[1] != collected[2]


def test_random_collection_keeps_native_units_and_time_limits() -> None:
    data = load_transition_dataset(
        dataset_kind="random", dataset_size=450, dataset_seed=1, env=partial(gym.make, "Pendulum-v1")
    )
    # Torque in [-2, 2]; a limit of 200 steps, and the last episode is unfinished.
    assert 1.9 < float(data.actions.abs().max()) <= 2
    assert data.truncations.nonzero().flatten().tolist() == [199, 399, 449]
    assert float(data.dones.sum()) == 0


def test_random_collection_closes_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Corridor, "closed", 0)
    load_transition_dataset(dataset_kind="random", dataset_size=2, env=Corridor)
    assert Corridor.closed == 1


@pytest.fixture
def two(tmp_path: Path) -> Callable[..., TransitionDataset]:
    """Loads a mixture of the three episodes and of the same with rewards a hundred times as high."""
    parts = [
        {"dataset_path": write(tmp_path / "low.npz"), "ratio": 1},
        {"dataset_path": write(tmp_path / "high.npz", rewards=100 * np.array(REWARDS)), "ratio": 2},
    ]
    return partial(load_transition_dataset, dataset_mix=parts)


def test_a_mixture_has_the_ratios_of_its_parts(two: Callable[..., TransitionDataset]) -> None:
    # Six rows of the second part are all there are, so three of the first go with them.
    assert sorted((two().rewards >= 100).tolist()) == [False] * 3 + [True] * 6
    assert sorted((two(dataset_size=20).rewards >= 100).tolist()) == [False] * 7 + [True] * 13


def test_a_mixture_is_decided_by_the_seed_of_the_dataset(two: Callable[..., TransitionDataset]) -> None:
    mixed = [two(dataset_seed=seed).fingerprint() for seed in (0, 0, 1)]
    assert mixed[0] == mixed[1] != mixed[2]


@pytest.mark.parametrize(
    ("how", "scale"),
    [
        # Returns are 3, 12, 48, 300, 1200 and 4800: one range for all.
        ("return_range", 1000 / 4797),
        # Sums 63 and 6300, squares 1365 and 13650000: mean 530.25, variance 1137613.75 - 281165.0625.
        ("standard", 1 / 856448.6875**0.5),
    ],
)
def test_parts_of_a_mixture_are_normalised_together(
    two: Callable[..., TransitionDataset], how: str, scale: float
) -> None:
    # Each by itself, both parts would come out the same: a hundred times better would not show any more.
    shift = 530.25 if how == "standard" else 0.0
    known = [(reward - shift) * scale for reward in (*REWARDS, *(100 * reward for reward in REWARDS))]
    rewards = two(reward_normalize=how, dataset_size=60).rewards.tolist()
    assert sorted(set(rewards)) == pytest.approx(sorted(known), rel=1e-5)


def test_options_of_a_mixture_hold_for_all_its_parts(two: Callable[..., TransitionDataset]) -> None:
    data = two(reward_scale=2.0, validation_fraction=0.4, normalize_obs=True)
    assert data.validation is not None
    assert data.raw_returns is not None
    assert data.obs_mean is not None
    assert set(data.rewards.tolist()) <= {2 * factor * reward for factor in (1, 100) for reward in REWARDS}
    # One episode of each part is held out, and stays whole.
    low, high = data.validation.episode_returns().tolist()
    assert low in (6, 24, 96)
    assert high in (600, 2400, 9600)
    assert data.raw_returns.tolist() == [3, 12, 48, 300, 1200, 4800]
    assert data.obs_mean.tolist() == pytest.approx([data.obs.numpy().mean()])


def test_a_random_part_can_be_mixed_with_a_file(tmp_path: Path) -> None:
    parts = [{"dataset_kind": "random", "dataset_size": 30}, {"dataset_path": write(tmp_path / "log.npz")}]
    data = load_transition_dataset(dataset_mix=parts, dataset_size=12, env=Corridor)
    # Random actions lie in [-2, 2], those in the file outside.
    assert sorted((data.actions.abs() > 2).flatten().tolist()) == [False] * 6 + [True] * 6


def test_loading_a_million_transitions_takes_little_more_memory_than_their_file(tmp_path: Path) -> None:
    command = [sys.executable, str(BENCHMARKS / "load_speed.py"), "--folder", str(tmp_path)]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert (report["rows"], report["episodes"]) == (1_000_000, 1000)
    # Below 1 the measurement missed the data; above 1.3 there is a second copy of something large.
    assert 1.0 < report["memory_ratio"] <= 1.3
