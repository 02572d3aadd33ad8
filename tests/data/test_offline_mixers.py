"""Several datasets as one: exact shares, what is kept, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rl_training.core.errors import DatasetError
from rl_training.data import (
    TransitionDataset,
    concatenate_datasets,
    mix_transition_datasets,
    sample_trajectory_windows,
)
from rl_training.data.offline_mixers import largest_remainder


def part(rows: int, *, start: int = 0, obs_dim: int = 1, action_dim: int = 1, **others: Any) -> TransitionDataset:
    """One terminated episode whose rewards number its rows from `start`, one row below the other."""
    numbers = np.arange(start, start + rows, dtype=np.float32)
    arrays = {
        "obs": np.tile(numbers[:, None], obs_dim),
        "next_obs": np.tile(numbers[:, None] + 1, obs_dim),
        "actions": np.tile(numbers[:, None], action_dim),
        "rewards": numbers,
        "dones": np.arange(rows) == rows - 1,
    }
    return TransitionDataset.from_dict(arrays | others)


def rows_of(dataset: TransitionDataset) -> list[int]:
    return [int(reward) for reward in dataset.rewards.tolist()]


@pytest.mark.parametrize(
    ("shares", "size", "counts"),
    [
        ([0.6, 0.4], 5, [3, 2]),
        # Equal remainders: the first part gets the odd row.
        ([0.5, 0.5], 3, [2, 1]),
        ([1 / 3, 1 / 3, 1 / 3], 10, [4, 3, 3]),
        # 4.9, 1.4 and 0.7: rounded down 4, 1 and 0; the two rows left go to the remainders 0.9 and 0.7.
        ([0.7, 0.2, 0.1], 7, [5, 1, 1]),
        # In floating point 0.29 * 100 is a little less than 29.
        ([0.29, 0.71], 100, [29, 71]),
        ([1.0, 0.0], 4, [4, 0]),
    ],
)
def test_shares_are_rounded_by_largest_remainder(shares: list[float], size: int, counts: list[int]) -> None:
    assert largest_remainder(shares, size) == counts


@pytest.mark.parametrize(
    ("ratios", "size", "counts"),
    [
        ([1, 1], 10, (5, 5)),
        ([3, 1], 10, (8, 2)),
        # Ratios are relative to each other.
        ([0.3, 0.1], 8, (6, 2)),
        ([1, 0], 6, (6, 0)),
        # Without a size, the short part of 10 rows decides: all of them, and three times as many of the other.
        ([3, 1], None, (30, 10)),
        ([1, 1], None, (10, 10)),
    ],
)
def test_a_mixture_has_the_proportions_asked_for(
    ratios: list[float], size: int | None, counts: tuple[int, int]
) -> None:
    mixed = mix_transition_datasets([part(40), part(10, start=100)], ratios, size=size)
    assert (sum(row < 100 for row in rows_of(mixed)), sum(row >= 100 for row in rows_of(mixed))) == counts


def test_no_row_stands_twice_where_there_are_enough() -> None:
    assert max(Counter(rows_of(mix_transition_datasets([part(40), part(10, start=100)], [3, 1]))).values()) == 1


def test_a_short_part_gives_each_row_equally_often() -> None:
    mixed = mix_transition_datasets([part(40), part(4, start=100)], [1, 1], size=20)
    # Ten rows from four: each twice, and two of them once more.
    assert sorted(count for row, count in Counter(rows_of(mixed)).items() if row >= 100) == [2, 2, 3, 3]


def test_a_mixture_is_decided_by_its_seed() -> None:
    parts = [part(40), part(40, start=100)]
    mixed = [mix_transition_datasets(parts, [1, 1], size=20, seed=seed) for seed in (0, 0, 1)]
    assert rows_of(mixed[0]) == rows_of(mixed[1]) != rows_of(mixed[2])
    # The stream of samples follows from the seed as well.
    assert (mixed[0].seed, mixed[2].seed) == (0, 1)


def test_parts_are_shuffled_into_each_other() -> None:
    mixed = rows_of(mix_transition_datasets([part(40), part(40, start=100)], [1, 1]))
    assert any(row >= 100 for row in mixed[:40])


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (part(3, obs_dim=2), "datasets 0 and 1 cannot be mixed: obs_dim is 1 and 2"),
        (part(3, action_dim=4), "datasets 0 and 1 cannot be mixed: action_dim is 1 and 4"),
    ],
)
def test_other_dimensions_are_refused_by_name(other: TransitionDataset, message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        mix_transition_datasets([part(3), other], [1, 1])
    with pytest.raises(DatasetError, match=message):
        concatenate_datasets([part(3), other])


@pytest.mark.parametrize(
    ("parts", "ratios", "size", "message"),
    [
        (2, [1], None, "one ratio per dataset, got 2 datasets and 1 ratios"),
        (0, [], None, "got 0 datasets"),
        (2, [1, -1], None, "must be finite, >= 0 and not all 0"),
        (2, [0, 0], None, "must be finite, >= 0 and not all 0"),
        (2, [1, math.nan], None, "must be finite, >= 0 and not all 0"),
        (2, [1, math.inf], None, "must be finite, >= 0 and not all 0"),
        (2, [1, 1], 0, "size must be >= 1, got 0"),
    ],
)
def test_ratios_and_sizes_that_cannot_be_are_refused(
    parts: int, ratios: list[float], size: int | None, message: str
) -> None:
    with pytest.raises(DatasetError, match=message):
        mix_transition_datasets([part(3)] * parts, ratios, size=size)


@pytest.mark.parametrize("name", ["returns_to_go", "next_actions"])
def test_an_optional_field_is_kept_only_if_all_parts_have_it(name: str) -> None:
    full = part(6).with_returns_to_go(gamma=1.0)
    # Rows that each end an episode have no next actions, and their returns were not computed.
    bare = part(6, dones=np.ones(6))
    assert name in mix_transition_datasets([full, full], [1, 1]).fields
    mixed = mix_transition_datasets([full, bare], [1, 1])
    assert name not in mixed.fields
    assert f"left out {name}: not every part of the mixture has it" in mixed.notes


def test_a_part_without_a_share_costs_no_field() -> None:
    mixed = mix_transition_datasets([part(6).with_returns_to_go(gamma=1.0), part(6)], [1, 0])
    assert "returns_to_go" in mixed.fields
    assert mixed.notes == ()


def test_optional_fields_stay_with_their_rows() -> None:
    full = part(20).with_returns_to_go(gamma=0.0)
    mixed = mix_transition_datasets([full, full], [1, 1])
    # With gamma 0 the return to go is the reward, and the next action is one more than the action.
    assert mixed.returns_to_go.tolist() == mixed.rewards.tolist()
    inside = mixed.dones == 0
    assert mixed.next_actions[inside].tolist() == (mixed.actions[inside] + 1).tolist()


def test_rows_without_a_next_action_stay_marked() -> None:
    cut = part(3, dones=np.zeros(3), truncations=[0, 0, 1])
    mixed = mix_transition_datasets([cut, part(3, start=100)], [1, 1])
    assert mixed.next_action_mask is not None
    unmarked = [row for row, known in zip(rows_of(mixed), mixed.next_action_mask.tolist(), strict=True) if not known]
    # Row 2 was cut; row 102 terminated.
    assert unmarked == [2]


@pytest.mark.parametrize(
    "ask",
    [
        lambda data: list(data.episodes()),
        lambda data: data.episode_returns(),
        lambda data: data.with_returns_to_go(gamma=0.9),
        lambda data: sample_trajectory_windows(data, 2, 4),
    ],
    ids=["episodes", "episode_returns", "returns_to_go", "windows"],
)
def test_a_mixture_has_no_episodes(ask: Callable[[TransitionDataset], Any]) -> None:
    with pytest.raises(DatasetError, match="a mixed or filtered dataset has no"):
        ask(mix_transition_datasets([part(6), part(6)], [1, 1]))


def test_what_was_said_about_the_parts_is_kept_once() -> None:
    first = TransitionDataset.from_dict({"obs": [0.0, 1.0], "actions": [0.0, 1.0], "rewards": [0, 0], "dones": [0, 0]})
    second = first.with_notes("a remark")
    mixed = mix_transition_datasets([first, second], [1, 1])
    assert mixed.notes == ("dropped 1 rows without a next observation", "a remark")
    assert mixed.num_dropped == 2


def test_datasets_in_a_row_keep_their_order_and_their_episodes() -> None:
    joined = concatenate_datasets([part(3), part(2, start=100)])
    assert rows_of(joined) == [0, 1, 2, 100, 101]
    assert joined.episode_returns().tolist() == [3, 201]


def test_a_mixture_in_the_row_leaves_no_episodes() -> None:
    joined = concatenate_datasets([part(3), mix_transition_datasets([part(3)], [1])])
    with pytest.raises(DatasetError, match="a mixed or filtered dataset has no episodes"):
        joined.episode_returns()


def test_datasets_in_a_row_keep_the_rewards_of_dropped_rows() -> None:
    # Without next observations the last row, of reward 2, is dropped.
    shortened = TransitionDataset.from_dict(
        {"obs": [0.0, 1.0, 2.0], "actions": [0.0, 1.0, 2.0], "rewards": [0, 1, 2], "dones": [0, 0, 0]}
    )
    joined = concatenate_datasets([part(3), shortened])
    assert rows_of(joined) == [0, 1, 2, 0, 1]
    assert joined.episode_returns().tolist() == [3, 3]
