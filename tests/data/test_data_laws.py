"""Laws of the data layer, over datasets of any shape."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.data import TransitionDataset, mix_transition_datasets, sample_trajectory_windows
from rl_training.data.replay.samplers import BLOCK, BlockSampler

# The same cases on every run: a failure is the fault of the change that it comes with.
LAW = settings(deadline=None, max_examples=60, derandomize=True)

SEEDS = st.integers(0, 2**31 - 1)
REWARDS = st.integers(-8, 8)
# Multiples of 1/4 keep every product and sum exact, so that equal means equal.
QUARTERS = st.integers(-12, 12).map(lambda number: number / 4)


@dataclass(frozen=True)
class Log:
    """Episodes as (rewards, terminated), and the dataset of them; row numbers are in every field."""

    episodes: list[tuple[list[int], bool]]
    start: int = 0

    @property
    def lengths(self) -> list[int]:
        return [len(rewards) for rewards, _ in self.episodes]

    def dataset(self, *, with_next_obs: bool = True) -> TransitionDataset:
        rows = np.arange(self.start, self.start + sum(self.lengths), dtype=np.float32)
        last = np.cumsum(self.lengths) - 1
        terminated = np.zeros(len(rows), dtype=bool)
        terminated[last] = [ended for _, ended in self.episodes]
        cut = np.zeros(len(rows), dtype=bool)
        cut[last] = [not ended for _, ended in self.episodes]
        arrays = {
            "obs": rows[:, None],
            "actions": 2 * rows[:, None],
            "rewards": np.concatenate([rewards for rewards, _ in self.episodes]),
            "dones": terminated,
            "truncations": cut,
        }
        if with_next_obs:
            arrays["next_obs"] = 3 * rows[:, None]
        return TransitionDataset.from_dict(arrays)


def logs(*, episodes: int = 1, steps: int = 1, start: int = 0) -> st.SearchStrategy[Log]:
    episode = st.tuples(st.lists(REWARDS, min_size=steps, max_size=7), st.booleans())
    return st.lists(episode, min_size=episodes, max_size=8).map(lambda found: Log(found, start))


def numbers(tensor: torch.Tensor) -> list[float]:
    values: list[float] = tensor.flatten().tolist()
    return values


@LAW
@given(logs(), logs(start=1000), logs(start=2000), st.lists(st.integers(1, 9), min_size=3, max_size=3), st.data())
def test_mixing_keeps_proportions(first: Log, second: Log, third: Log, ratios: list[int], data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 100))
    mixed = mix_transition_datasets(
        [log.dataset() for log in (first, second, third)], ratios, size=size, seed=data.draw(SEEDS)
    )
    counts = Counter(int(row) // 1000 for row in numbers(mixed.obs))
    assert counts.total() == size
    for part, ratio in enumerate(ratios):
        # Rounded down or up, in whole numbers: share * size - 1 < count < share * size + 1.
        assert abs(counts[part] * sum(ratios) - ratio * size) < sum(ratios)


@LAW
@given(logs(), logs(start=1000), st.integers(1, 100), SEEDS)
def test_mixing_keeps_the_fields_of_a_row_together(first: Log, second: Log, size: int, seed: int) -> None:
    mixed = mix_transition_datasets([first.dataset(), second.dataset()], [1, 1], size=size, seed=seed)
    rewards = {
        row: reward
        for log in (first, second)
        for row, reward in enumerate([reward for rewards, _ in log.episodes for reward in rewards], log.start)
    }
    assert numbers(mixed.rewards) == [rewards[int(row)] for row in numbers(mixed.obs)]
    assert numbers(mixed.actions) == numbers(2 * mixed.obs)
    assert numbers(mixed.next_obs) == numbers(3 * mixed.obs)


@LAW
@given(logs(), logs(start=1000), st.integers(1, 9), st.integers(1, 9), SEEDS)
def test_mixing_without_a_size_repeats_no_row(first: Log, second: Log, one: int, other: int, seed: int) -> None:
    # Ten rows more in each part, so that no ratio leaves a mixture empty.
    longer = [Log([*log.episodes, ([0] * 10, True)], log.start) for log in (first, second)]
    mixed = mix_transition_datasets([log.dataset() for log in longer], [one, other], seed=seed)
    assert len(set(numbers(mixed.obs))) == len(mixed)


@LAW
@given(logs(steps=2), st.booleans(), st.tuples(QUARTERS, QUARTERS), st.tuples(QUARTERS, QUARTERS))
def test_reward_transforms_compose(
    log: Log, with_next_obs: bool, first: tuple[float, float], second: tuple[float, float]
) -> None:
    data = log.dataset(with_next_obs=with_next_obs)
    twice = data
    for scale, shift in (first, second):
        twice = twice.with_reward_transform(scale=scale, shift=shift)
    once = data.with_reward_transform(scale=first[0] * second[0], shift=first[1] * second[0] + second[1])
    assert numbers(twice.rewards) == numbers(once.rewards)
    assert numbers(twice.episode_returns()) == numbers(once.episode_returns())


@LAW
@given(logs(steps=2), st.booleans(), QUARTERS, QUARTERS)
def test_returns_follow_the_rewards_of_all_logged_rows(
    log: Log, with_next_obs: bool, scale: float, shift: float
) -> None:
    # Rows that were dropped for want of a next observation count like the others.
    data = log.dataset(with_next_obs=with_next_obs).with_reward_transform(scale=scale, shift=shift)
    assert numbers(data.episode_returns()) == [
        sum(scale * reward + shift for reward in rewards) for rewards, _ in log.episodes
    ]


@LAW
@given(logs(), QUARTERS, QUARTERS, QUARTERS, QUARTERS)
def test_clipping_comes_last(log: Log, scale: float, shift: float, one: float, other: float) -> None:
    low, high = sorted([one, other])
    data = log.dataset()
    direct = data.with_reward_transform(scale=scale, shift=shift, clip_min=low, clip_max=high)
    in_steps = data.with_reward_transform(scale=scale, shift=shift).with_reward_transform(clip_min=low, clip_max=high)
    assert numbers(direct.rewards) == numbers(in_steps.rewards)
    assert all(low <= reward <= high for reward in numbers(direct.rewards))


@LAW
@given(logs(steps=2), st.booleans(), st.sampled_from([0.0, 0.5, 0.99, 1.0]))
def test_returns_to_go_equal_a_plain_sum(log: Log, with_next_obs: bool, gamma: float) -> None:
    data = log.dataset(with_next_obs=with_next_obs).with_returns_to_go(gamma=gamma)
    expected = []
    for rewards, terminated in log.episodes:
        # Without next observations the last row of a cut episode is dropped, but its reward counts.
        kept = len(rewards) if with_next_obs or terminated else len(rewards) - 1
        expected += [sum(gamma**step * reward for step, reward in enumerate(rewards[start:])) for start in range(kept)]
    np.testing.assert_allclose(numbers(data.returns_to_go), expected, rtol=1e-5, atol=1e-5)


@LAW
@given(logs(), st.integers(1, 9), st.integers(1, 20), st.sampled_from(["left", "right"]), SEEDS)
def test_windows_never_cross_the_end_of_an_episode(
    log: Log, length: int, batch_size: int, pad: Literal["left", "right"], seed: int
) -> None:
    windows = sample_trajectory_windows(log.dataset(), length, batch_size, seed=seed, pad=pad)
    episode_of = np.repeat(np.arange(len(log.lengths)), log.lengths)
    for obs, mask in zip(windows["obs"][..., 0], windows["mask"].bool(), strict=True):
        rows = obs[mask].int().tolist()
        assert rows == list(range(rows[0], rows[-1] + 1))
        assert len({episode_of[row] for row in rows}) == 1
        # Padding is on one side, and zero.
        assert mask.tolist() == sorted(mask.tolist(), reverse=pad == "right")
        assert not obs[~mask].any()


@LAW
@given(logs(episodes=2), st.floats(0.01, 0.99), SEEDS)
def test_a_split_keeps_episodes_whole_and_loses_none(log: Log, fraction: float, seed: int) -> None:
    parts = log.dataset().split(fraction, seed=seed)
    whole = [numbers(episode.observations[:-1]) for part in parts for episode in part.episodes()]
    stops = np.cumsum(log.lengths)
    expected = [list(range(stop - steps, stop)) for steps, stop in zip(log.lengths, stops.tolist(), strict=True)]
    assert sorted(whole) == expected
    assert all(len(part) > 0 for part in parts)


@LAW
@given(logs())
def test_episodes_make_the_dataset_they_came_from(log: Log) -> None:
    data = log.dataset()
    # Observations of an episode must follow each other for it to have T + 1 of them.
    following = torch.where(data.episode_ends[:, None], data.next_obs, data.obs + 1)
    data = data.with_fields(next_obs=following)
    assert TransitionDataset.from_episodes(data.episodes()).fingerprint() == data.fingerprint()


@LAW
@given(SEEDS, st.lists(st.tuples(st.integers(1, 4), st.integers(1, BLOCK + 6)), max_size=3), st.integers(1, 4))
def test_a_restored_sampler_continues_the_stream_exactly(
    seed: int, runs: list[tuple[int, int]], batch_size: int
) -> None:
    fields = {"rows": torch.arange(10_000)}
    source = BlockSampler(fields, seed=seed)
    for size, count in runs:
        for _ in range(count):
            source.sample(size)
    restored = BlockSampler(fields, seed=0)
    restored.load_state_dict(source.state_dict())
    for _ in range(BLOCK + 6):
        assert torch.equal(restored.sample(batch_size)["rows"], source.sample(batch_size)["rows"])
