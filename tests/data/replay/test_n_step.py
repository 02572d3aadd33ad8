"""Rewards summed over several steps: by hand, in a ring, and in a dataset."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from experience import SIZES, add, add_episode, column, drawn, numbers
from numpy.typing import ArrayLike

from rl_training.core.errors import DatasetError
from rl_training.data import ReplayBuffer, TransitionDataset, with_n_step
from rl_training.data.replay.samplers import sum_rewards


def ring(capacity: int, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity=capacity, **SIZES | {"n_step": 3, "gamma": 0.5} | options)


def log(rewards: ArrayLike, ends: str) -> TransitionDataset:
    """Rows numbered like those of a buffer; `ends` has a letter for each: T terminated, C cut, - neither."""
    rows = np.arange(len(ends), dtype=np.float32)[:, None]
    arrays: dict[str, Any] = {
        "obs": rows,
        "actions": rows / 8,
        "rewards": rewards,
        "next_obs": rows + 0.5,
        "dones": [end == "T" for end in ends],
        "truncations": [end == "C" for end in ends],
    }
    return TransitionDataset.from_dict(arrays)


@pytest.mark.parametrize(
    ("dones", "follows", "expected"),
    [
        # 1 + 0.99 * 2 + 0.99^2 * 3 = 5.9203, and 0.99^3 = 0.970299.
        ((0, 0, 0), (1, 1, 1), (5.9203, 0.970299, 2)),
        # Cut after two: 1 + 0.99 * 2 = 2.98, 0.99^2 = 0.9801.
        ((0, 0, 0), (1, 1, 0), (2.98, 0.9801, 1)),
        # The row on which it ends counts, those behind it do not, whether they are of the episode or not.
        ((0, 1, 0), (1, 1, 1), (2.98, 0.9801, 1)),
    ],
)
def test_a_window_ends_with_its_episode(
    dones: Sequence[float], follows: Sequence[int], expected: tuple[float, float, int]
) -> None:
    values = sum_rewards(
        torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([dones]).float(), torch.tensor([follows]).bool(), 0.99
    )
    assert [value.item() for value in values] == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(("gamma", "expected"), [(0.0, (1, 0)), (1.0, (6, 1))])
def test_a_discount_may_be_zero_or_one(gamma: float, expected: tuple[float, float]) -> None:
    rewards = torch.tensor([[1.0, 2.0, 3.0]])
    sums, discounts, _ = sum_rewards(rewards, torch.zeros(1, 3), torch.ones(1, 3, dtype=torch.bool), gamma)
    assert (sums.item(), discounts.item()) == expected


def test_rewards_are_transformed_before_they_are_summed() -> None:
    buffer = ring(10, transform=lambda rewards: rewards.clamp(max=2))
    add_episode(buffer, 1, 3, "T")
    # 1 + 0.5 * 2 + 0.25 * 2 = 2.5; the sum of the raw ones, clipped, would be 2.
    assert column(buffer, "rewards") == {1: 2.5, 2: 3, 3: 2}


def test_a_dataset_sums_like_a_buffer() -> None:
    rng = np.random.default_rng(0)
    rewards, ends = rng.normal(size=40), "".join(rng.choice(list("---TC"), 40))
    dataset = with_n_step(log(rewards, ends), 3, 0.9)
    buffer = ring(40, gamma=0.9)
    for row, (reward, end) in enumerate(zip(rewards, ends, strict=True)):
        add(buffer, [row], end, rewards=[reward])
    found = drawn(buffer, 4000)
    for name in ("rewards", "discounts", "next_obs", "dones", "actions"):
        assert numbers(dataset.fields[name]) == [found[row][name] for row in range(40)]


def test_a_dataset_of_one_step_windows_is_what_it_was() -> None:
    plain = log([1, 2, 3, 4], "-TC-")
    stepped = with_n_step(plain, 1, 0.75)
    assert numbers(stepped.discounts) == [0.75] * 4
    for name, value in plain.fields.items():
        assert torch.equal(stepped.fields[name], value)


def test_rows_of_a_dataset_without_an_action_after_their_last_step_are_not_asked_for_one() -> None:
    dataset = with_n_step(log([1, 2, 3, 4, 5, 6, 7], "---C--T"), 2, 0.5)
    assert dataset.next_action_mask is not None
    # The windows of rows 2 and 3 end where the episode was cut.
    assert dataset.next_action_mask.tolist() == [True, True, False, False, True, True, True]
    kept = dataset.requiring("obs", "next_actions")
    assert numbers(kept.obs) == [0, 1, 4, 5, 6]
    assert numbers(kept.next_actions)[:3] == [2 / 8, 3 / 8, 6 / 8]


def test_returns_to_go_of_a_dataset_stay_those_of_the_first_step() -> None:
    dataset = log([1, 2, 3], "--T").with_returns_to_go(gamma=0.5)
    assert numbers(with_n_step(dataset, 2, 0.5).returns_to_go) == numbers(dataset.returns_to_go)


def test_rows_over_several_steps_are_no_episodes_any_more() -> None:
    # Their rewards overlap, and rows before a termination say that they terminated.
    dataset = with_n_step(log([1, 2, 3, 4], "---T"), 2, 0.5)
    assert not dataset.has_episodes
    with pytest.raises(DatasetError, match="no returns_to_go"):
        dataset.with_returns_to_go(gamma=0.5)


def test_rows_without_order_have_no_windows() -> None:
    dataset = log([1, 2, 3], "--T").take(torch.tensor([2, 0]))
    with pytest.raises(DatasetError, match="a mixed or filtered dataset has no episodes"):
        with_n_step(dataset, 2, 0.5)
