"""Batches of prior data and of a run's own experience: how many rows of each, and in which order."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np
import pytest
import torch
from experience import SIZES, add, assert_equal_batches, numbers, saved
from torch import Tensor

from rl_training.core.batches import Batch, Reading, Windows
from rl_training.data import MixedSource, ReplayBuffer, TransitionDataset, source_for, with_n_step

Ratio = float | Literal["proportional"]
PRIOR = 1000
"""Rows of prior data are numbered from here on."""


def prior_data(rows: int = 60) -> TransitionDataset:
    numbers = np.arange(PRIOR, PRIOR + rows, dtype=np.float32)
    ends = np.arange(rows) % 10 == 9
    arrays = {
        "obs": numbers[:, None],
        "actions": numbers[:, None] / 8,
        "rewards": numbers,
        "next_obs": numbers[:, None] + 0.5,
        "dones": ends,
        "truncations": np.zeros(rows, dtype=bool),
    }
    return TransitionDataset.from_dict(arrays)


NAMES = ("obs", "actions", "rewards", "next_obs", "dones")


def source(ratio: Ratio, *, online: int = 30, prior: int = 60, **options: Any) -> MixedSource:
    """So many rows of either kind."""
    buffer = ReplayBuffer(capacity=100, **SIZES, **options)
    for row in range(online):
        add(buffer, [row])
    return MixedSource(prior_data(prior).requiring(*NAMES), buffer, ratio)


def own(mixed: MixedSource) -> ReplayBuffer:
    """The buffer of a mixture."""
    assert isinstance(mixed.online, ReplayBuffer)
    return mixed.online


def kinds(batch: Batch) -> tuple[int, int]:
    """How many rows are prior data, and how many are the run's own."""
    offline = int((batch["obs"][:, 0] >= PRIOR).sum())
    return offline, len(batch["obs"]) - offline


@pytest.mark.parametrize(
    ("ratio", "batch_size", "expected"),
    [
        # 7.5 is rounded to the even number, 2.5 too.
        (0.75, 10, (8, 2)),
        (0.25, 10, (2, 8)),
        # Sixty rows of prior data and thirty of the run's own: two in three.
        ("proportional", 100, (67, 33)),
    ],
)
def test_a_batch_has_exactly_the_share_asked_for(ratio: Ratio, batch_size: int, expected: tuple[int, int]) -> None:
    mixed = source(ratio)
    assert [kinds(mixed.sample(batch_size)) for _ in range(3)] == [expected] * 3


def test_a_proportional_share_follows_the_buffer_as_it_grows() -> None:
    mixed = source("proportional", online=20)
    shares = [kinds(mixed.sample(60))]
    for row in range(20, 60):
        add(own(mixed), [row])
    shares.append(kinds(mixed.sample(60)))
    # 60 / (60 + 20) of 60, and 60 / (60 + 60).
    assert shares == [(45, 15), (30, 30)]


def test_experience_counts_when_its_episode_has_ended() -> None:
    buffer = ReplayBuffer(whole_episodes=True, capacity=10, **SIZES)
    mixed = MixedSource(prior_data().requiring(*NAMES), buffer, 0.5)
    add(buffer, [0])
    assert kinds(mixed.sample(8)) == (8, 0)
    add(buffer, [1], "C")
    assert kinds(mixed.sample(8)) == (4, 4)


def test_the_fields_of_a_row_belong_together_whatever_its_kind() -> None:
    batch = source(0.5).sample(200)
    rows = batch["obs"][:, 0]
    assert set(batch) == set(NAMES)
    assert torch.equal(batch["actions"][:, 0], rows / 8)
    assert torch.equal(batch["rewards"], rows)
    assert torch.equal(batch["next_obs"][:, 0], rows + 0.5)
    assert torch.equal(batch["dones"], ((rows >= PRIOR) & (rows % 10 == 9)).float())


def test_both_kinds_may_reach_over_several_steps() -> None:
    buffer = ReplayBuffer(capacity=100, n_step=2, gamma=0.5, **SIZES)
    for row in range(3):
        add(buffer, [row], "--T"[row])
    prior = with_n_step(prior_data(10), 2, 0.5).requiring(*NAMES, "discounts")
    batch = MixedSource(prior, buffer, 0.5).sample(200)
    rows = batch["obs"][:, 0]
    # The last row of either kind stands alone: 2 and 1009.
    alone = (rows == 2) | (rows == 1009)
    assert torch.equal(batch["discounts"], torch.where(alone, 0.5, 0.25))
    assert torch.equal(batch["rewards"], torch.where(alone, rows, rows + 0.5 * (rows + 1)))


def test_metrics_are_rows_of_either_kind_in_a_batch_since_the_last_call() -> None:
    mixed = source(0.5, online=0)
    assert mixed.metrics() == {"buffer_size": 0, "offline_rows": 0, "online_rows": 0}
    mixed.sample(10)
    add(own(mixed), [0])
    mixed.sample(10)
    # 10 and 0, then 5 and 5.
    assert mixed.metrics() == {"buffer_size": 1, "offline_rows": 7.5, "online_rows": 2.5}
    mixed.sample(10)
    assert mixed.metrics() == {"buffer_size": 1, "offline_rows": 5, "online_rows": 5}


@pytest.mark.parametrize("ratio", [0.5, "proportional"])
def test_a_restored_source_continues_with_the_same_batches(ratio: Ratio) -> None:
    mixed, other = source(ratio, seed=3), source(ratio, online=0)
    for _ in range(5):
        mixed.sample(16)
    other.load_state_dict(saved(mixed.state_dict()))
    own(other).restore(saved(own(mixed).rows_from(0)))
    for _ in range(70):
        assert_equal_batches(other.sample(16), mixed.sample(16))
        for each in (mixed, other):
            add(own(each), [50])
    assert other.metrics() == mixed.metrics()


def test_prior_data_is_drawn_with_its_own_seed() -> None:
    prior = prior_data().requiring(*NAMES)
    first, same, other = (MixedSource(prior.with_seed(seed), source(0.5).online, 0.5) for seed in (1, 1, 2))
    batches = [numbers(each.sample(20)["obs"]) for each in (first, same, other)]
    assert batches[0] == batches[1] != batches[2]


class Reader:
    """An algorithm that reads windows."""

    name: ClassVar[str] = "reader"
    annotates: tuple[str, ...] = ()
    standardizes: tuple[str, ...] = ()
    annotate_every: int | str = "rollout"
    updates = 0
    context = 3

    def __init__(self) -> None:
        self.reads: Reading = Windows("context", ("obs", "rewards"))

    def resolve_number(self, value: Any) -> Any:
        return getattr(self, value) if isinstance(value, str) else value

    def annotate(self, rows: Batch, ends: Tensor) -> Batch:
        raise NotImplementedError


def test_windows_of_prior_data_and_of_experience_are_mixed() -> None:
    def make(seed: int) -> tuple[ReplayBuffer, MixedSource]:
        buffer = ReplayBuffer(capacity=20, whole_episodes=True, seed=seed, **SIZES)
        mixed, rows = source_for(Reader(), prior_data().with_seed(seed), buffer, 0.5)
        assert isinstance(mixed, MixedSource)
        assert rows is not None
        return buffer, mixed

    buffer, mixed = make(1)
    for row in range(6):
        add(buffer, [row], "T" if row == 5 else "-")
    batch = mixed.sample(16)
    assert batch["obs"].shape == (16, 3, 1)
    assert kinds({"obs": batch["obs"][:, 0]}) == (8, 8)
    other_buffer, other = make(2)
    other.load_state_dict(saved(mixed.state_dict()))
    other_buffer.restore(saved(buffer.rows_from(0)))
    assert_equal_batches(other.sample(16), mixed.sample(16))
