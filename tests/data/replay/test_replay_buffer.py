"""What a buffer holds, what is drawn from it, and what comes back from a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from experience import SIZES, add, add_episode, assert_equal_batches, column, drawn, held, numbers, revive
from torch.utils._python_dispatch import TorchDispatchMode

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.data import (
    ReplayBuffer,
    TransitionDataset,
    load_transition_dataset,
    write_npz,
)


def ring(capacity: int, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity=capacity, **SIZES | options)


def episodic(capacity: int = 100, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(whole_episodes=True, capacity=capacity, **SIZES | options)


def test_rows_are_drawn_uniformly() -> None:
    buffer = ring(4)
    for row in range(7):
        add(buffer, [row])
    counts = Counter(numbers(buffer.sample(40_000)["obs"]))
    assert set(counts) == {3, 4, 5, 6}
    # 10000 each with a deviation of sqrt(40000 * 1/4 * 3/4) = 87; five of them are allowed.
    assert all(abs(count - 10_000) < 435 for count in counts.values())


def test_a_seed_decides_what_is_drawn() -> None:
    first, same, other = (ring(50, seed=seed) for seed in (3, 3, 4))
    for buffer in (first, same, other):
        for row in range(50):
            add(buffer, [row])
    batch = first.sample(20)
    assert_equal_batches(batch, same.sample(20))
    assert numbers(batch["obs"]) != numbers(other.sample(20)["obs"])
    assert numbers(batch["obs"]) != numbers(first.sample(20)["obs"])


def test_double_precision_becomes_single() -> None:
    buffer = ring(2)
    add(buffer, [0.1])
    batch = buffer.sample(1)
    assert {value.dtype for value in batch.values()} == {torch.float32}
    assert batch["rewards"].item() == float(np.float32(0.1))


@pytest.mark.parametrize("make", [ring, episodic])
def test_what_was_added_does_not_change_with_the_arrays_that_it_came_in(make: Any) -> None:
    # Environments may write into the arrays that they gave before.
    buffer = make(10, num_envs=2)
    obs, actions, next_obs = (np.empty((2, 1), dtype=np.float32) for _ in range(3))
    rewards, ends = np.empty(2, dtype=np.float32), np.empty(2, dtype=bool)
    for step in range(3):
        obs[:], actions[:], rewards[:], next_obs[:], ends[:] = step, step, step, step + 1, step == 2
        buffer.add(
            obs=obs, actions=actions, rewards=rewards, next_obs=next_obs, terminations=ends, truncations=np.zeros(2)
        )
    for name in ("obs", "actions", "rewards"):
        assert sorted(held(buffer, name)) == [0, 0, 1, 1, 2, 2]
    assert sorted(held(buffer, "next_obs")) == [1, 1, 2, 2, 3, 3]


def test_torch_stores_the_same_rows_as_numpy() -> None:
    # numpy cannot write to the memory of an accelerator.
    plain, other = ring(5, num_envs=2), ring(5, num_envs=2)
    other.rows.arrays = None
    rng = np.random.default_rng(0)
    for step in range(4):
        values = rng.normal(size=(4, 2))
        obs, actions, next_obs = values[:3, :, None]
        cut, mask = np.array([step == 1, False]), None if step else np.array([False, True])
        for buffer in (plain, other):
            buffer.add(
                obs=obs,
                actions=torch.from_numpy(actions),
                rewards=values[3].tolist(),
                next_obs=next_obs,
                terminations=[False, step == 2],
                truncations=cut,
                mask=mask,
            )
    assert len(plain) == 5
    for name, stored in plain.rows.columns.items():
        assert torch.equal(stored, other.rows.columns[name]), name


@pytest.mark.parametrize("tensor", ["obs", "actions", "rewards", "next_obs", "terminations", "truncations", "mask"])
@pytest.mark.parametrize("make", [ring, episodic])
def test_each_field_may_be_a_tensor_or_an_array(make: Any, tensor: str) -> None:
    buffer = make(10, num_envs=2)
    numbers, flags = np.array([[1.0], [2.0]]), np.array([True, False])
    row = dict.fromkeys(("obs", "actions", "next_obs"), numbers) | {"rewards": numbers[:, 0]}
    row |= {"terminations": flags, "truncations": ~flags, "mask": np.ones(2, dtype=bool)}
    buffer.add(**row | {tensor: torch.from_numpy(row[tensor])})

    assert [held(buffer, name) for name in ("obs", "dones", "truncations")] == [[1, 2], [1, 0], [0, 1]]


def test_an_empty_buffer_has_nothing_to_draw() -> None:
    buffer = ring(3)
    assert (len(buffer), buffer.num_drawable) == (0, 0)
    with pytest.raises(DatasetError, match="no row that can be drawn"):
        buffer.sample(1)
    with pytest.raises(DatasetError, match="the buffer is empty"):
        buffer.to_dataset()
    add(buffer, [0])
    assert buffer.num_drawable == len(buffer) > 0


def test_a_capacity_below_one_step_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"buffer_capacity must be >= num_envs \(4\), got 3"):
        ring(3, num_envs=4)


def test_rewards_are_kept_raw_and_drawn_transformed() -> None:
    buffer = ring(4, transform=lambda rewards: 10 * rewards - 5)
    add_episode(buffer, 0, 4, "T")
    assert held(buffer, "rewards") == [0, 1, 2, 3]
    assert column(buffer, "rewards") == {0: -5, 1: 5, 2: 15, 3: 25}
    assert numbers(buffer.to_dataset().rewards) == [0, 1, 2, 3]


def test_a_buffer_says_how_full_it_is() -> None:
    buffer = ring(2)
    assert buffer.metrics() == {"buffer_size": 0}
    for row in (100, 1, 4):
        add(buffer, [row])
    assert buffer.metrics() == {"buffer_size": 2}


def episodes_of(dataset: TransitionDataset) -> list[tuple[list[float], str]]:
    """Rewards, which number the rows, and how each episode ended."""
    return [
        (numbers(episode.rewards), "T" if bool(episode.terminations[-1]) else "C" * int(episode.truncations[-1]))
        for episode in dataset.episodes()
    ]


def test_a_saved_dataset_of_a_buffer_is_read_back(tmp_path: Path) -> None:
    buffer = ring(20, num_envs=2, transform=torch.neg)
    for step, ends in enumerate(["--", "T-", "-C", "--"]):
        add(buffer, [step, 10 + step], ends)
    dataset = buffer.to_dataset()
    write_npz(dataset, tmp_path / "replay.npz")
    again = load_transition_dataset(tmp_path / "replay.npz")
    assert again.fingerprint() == dataset.fingerprint()
    assert episodes_of(again) == [([0, 1], "T"), ([2, 3], "C"), ([10, 11, 12], "C"), ([13], "C")]


MAKERS: dict[str, Callable[..., ReplayBuffer]] = {
    "ring": partial(ring, 7, num_envs=2),
    "sums": partial(ring, 7, num_envs=2, n_step=3),
    "episodes": partial(episodic, 9, num_envs=2, needs=("next_actions", "returns_to_go")),
    "sums of episodes": partial(episodic, 9, num_envs=2, needs=("next_actions",), n_step=3),
}
STEPS = ["--", "-T", "C-", "--", "-T", "--", "T-", "-B", "--", "C-", "--", "--"]


def play(buffer: ReplayBuffer, first: int, stop: int) -> None:
    for step in range(first, stop):
        add(buffer, [step, 100 + step], STEPS[step % len(STEPS)])


@pytest.mark.parametrize("kind", MAKERS)
def test_a_buffer_forgets_what_it_held_before_it_was_restored(kind: str) -> None:
    buffer, used = MAKERS[kind](seed=5), MAKERS[kind](seed=0)
    play(buffer, 0, 3)
    play(used, 4, 9)
    restored = revive(buffer, used)
    assert_equal_batches(restored.sample(64), buffer.sample(64))
    for each in (buffer, restored):
        play(each, 3, 5)
    assert_equal_batches(restored.sample(64), buffer.sample(64))


def test_rows_from_a_number_on_are_those_that_came_since() -> None:
    buffer = ring(4)
    for row in range(3):
        add(buffer, [row])
    known = buffer.added
    for row in range(3, 6):
        add(buffer, [row])
    assert numbers(buffer.rows_from(known)["obs"]) == [3, 4, 5]
    assert len(buffer.rows_from(buffer.added)["obs"]) == 0


@pytest.mark.parametrize("failure_reward", [None, -2.0])
def test_returns_to_go_equal_those_of_a_dataset_of_the_same_episodes(failure_reward: float | None) -> None:
    rng = np.random.default_rng(0)
    options: dict[str, Any] = {"needs": ("returns_to_go",), "gamma": 0.9, "failure_reward": failure_reward}
    buffer = episodic(200, num_envs=3, transform=lambda rewards: 2 * rewards, **options)
    rows: list[list[tuple[float, str]]] = [[], [], []]
    for step in range(40):
        ends = "".join(rng.choice(list("---TC"), 3))
        # The second environment has nothing but failures in it.
        rewards = [float(rng.normal()), -1.0, float(rng.integers(-1, 1))]
        add(buffer, [step, 100 + step, 200 + step], ends, rewards=rewards)
        for env in range(3):
            rows[env].append((rewards[env], ends[env]))
    expected: dict[float, float] = {}
    for env, log in enumerate(rows):
        last = max(step for step, (_, end) in enumerate(log) if end != "-")
        arrays: dict[str, Any] = {
            "obs": np.arange(last + 1.0)[:, None],
            "actions": np.zeros((last + 1, 1)),
            "rewards": [reward for reward, _ in log[: last + 1]],
            "next_obs": np.arange(last + 1.0)[:, None],
            "dones": [end == "T" for _, end in log[: last + 1]],
            "truncations": [end == "C" for _, end in log[: last + 1]],
        }
        dataset = TransitionDataset.from_dict(arrays).with_reward_transform(scale=2.0)
        dataset = dataset.with_returns_to_go(gamma=0.9, failure_reward=failure_reward)
        expected |= {100 * env + row: value for row, value in enumerate(numbers(dataset.returns_to_go))}
    assert len(expected) > 80
    assert column(buffer, "returns_to_go", draws=5000) == expected


def test_an_endless_failure_needs_a_discount() -> None:
    with pytest.raises(ConfigError, match="failure_reward needs gamma < 1"):
        episodic(needs=("returns_to_go",), gamma=1.0, failure_reward=-1.0)


def test_an_episode_longer_than_the_buffer_is_refused() -> None:
    buffer = episodic(3)
    add_episode(buffer, 0, 3, "T")
    assert held(buffer) == [0, 1, 2]
    with pytest.raises(ConfigError, match=r"an episode is longer than buffer_capacity \(3\) rows"):
        add_episode(buffer, 0, 4, "T")


def test_an_episode_whose_last_row_is_left_out_does_not_continue_in_the_next() -> None:
    buffer = episodic(needs=("next_actions",), n_step=3, gamma=0.5)
    add_episode(buffer, 0, 3, "C")
    add_episode(buffer, 10, 2, "T")
    # From row 0: 0 + 0.5 * 1, then what comes after row 1 at 0.5^2; from row 1 on its own.
    found = drawn(buffer)
    assert {row: (values["rewards"], values["discounts"], values["next_obs"]) for row, values in found.items()} == {
        0: (0.5, 0.25, 1.5),
        1: (1, 0.5, 1.5),
        10: (10 + 0.5 * 11, 0.25, 11.5),
        11: (11, 0.5, 11.5),
    }
    assert episodes_of(buffer.to_dataset()) == [([0, 1], "C"), ([10, 11], "T")]


class _NoReads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves its subclass hook untyped
    """Fails on any operation that reads one number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        assert func is not torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_rows_that_wait_for_their_episodes_end_are_not_read_one_by_one() -> None:
    buffer = ReplayBuffer(whole_episodes=True, capacity=64, num_envs=4, **SIZES)
    mode: Any = _NoReads
    with mode():
        add(buffer, [0, 1, 2, 3])
        add(buffer, [4, 5, 6, 7], "-T-C")
    assert held(buffer) == [1, 5, 3, 7]
