"""Lambda returns of a run's own episodes: when they are computed, which rows are drawn, and what is saved of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from experience import SIZES, add, add_episode, assert_equal_batches, column, numbers, revive, saved
from torch import Tensor

from rl_training.core.batches import Batch
from rl_training.core.errors import DatasetError
from rl_training.core.rewards import lambda_returns
from rl_training.data import AnnotatedLog, AnnotatedSource, Ratio, ReplayBuffer, TransitionDataset, make_source

GAMMA, LAMBDA = 0.9, 0.5
ANNOTATES = ("lambda_returns", "advantages")


class Value:
    """A value that is the same everywhere, and can be set."""

    level = 0.0

    def __call__(self, obs: Tensor) -> Tensor:
        return torch.full((len(obs),), self.level)

    def annotate(self, rows: Batch, ends: Tensor) -> Batch:
        return lambda_returns(rows, ends, self, gamma=GAMMA, td_lambda=LAMBDA)


def buffer_of(capacity: int = 100, **options: Any) -> ReplayBuffer:
    return ReplayBuffer(capacity=capacity, gamma=GAMMA, whole_episodes=True, annotates=ANNOTATES, **SIZES | options)


def logged(rewards: list[float]) -> TransitionDataset:
    """One episode that was cut, whose observations no row of a buffer has."""
    rows = torch.arange(len(rewards))
    arrays = {
        "obs": 1000.0 + rows[:, None],
        "next_obs": 1001.0 + rows[:, None],
        "actions": torch.zeros(len(rewards), 1),
        "rewards": torch.tensor(rewards),
        "dones": torch.zeros(len(rewards)),
        "truncations": rows == len(rewards) - 1,
    }
    return TransitionDataset.from_dict(arrays)


def source_of(
    buffer: ReplayBuffer,
    value: Value,
    dataset: TransitionDataset | None = None,
    *,
    ratio: Ratio = "proportional",
    drawn: int = 0,
) -> AnnotatedSource:
    logged = None if dataset is None else AnnotatedLog(dataset, ("obs", "actions", *ANNOTATES), ANNOTATES)
    source = make_source(None if logged is None else logged.drawn, buffer, ratio)
    options: dict[str, Any] = {"logged": logged, "buffer": buffer, "drawn": drawn, "standardizes": ("advantages",)}
    return AnnotatedSource(source, value.annotate, interval=4, **options)


def test_returns_of_both_kinds_of_ends_by_hand() -> None:
    buffer, value = buffer_of(), Value()
    value.level = 2.0
    add_episode(buffer, 1, 2, "C")
    add_episode(buffer, 5, 2, "T")
    buffer.annotate(value.annotate)
    # Rewards are the rows' numbers. Cut: R_2 = 2 + 0.9 * 2 = 3.8, R_1 = 1 + 0.9 * (0.5 * 2 + 0.5 * 3.8) = 3.61.
    # Terminated: R_6 = 6, R_5 = 5 + 0.9 * (0.5 * 2 + 0.5 * 6) = 8.6.
    expected = {1: 3.61, 2: 3.8, 5: 8.6, 6: 6.0}
    assert column(buffer, "lambda_returns") == pytest.approx(expected)
    assert column(buffer, "advantages") == pytest.approx({row: total - 2 for row, total in expected.items()})


def test_rewards_are_transformed_before_they_are_summed() -> None:
    buffer = buffer_of(transform=lambda rewards: 10 * rewards)
    add_episode(buffer, 1, 2, "T")
    buffer.annotate(Value().annotate)
    assert column(buffer, "lambda_returns") == pytest.approx({1: 10 + 0.45 * 20, 2: 20})


def test_an_episode_that_lost_its_beginning_keeps_the_returns_of_the_rest() -> None:
    whole, cut = buffer_of(), buffer_of(capacity=5)
    for buffer in (whole, cut):
        add_episode(buffer, 0, 4, "T")
        add_episode(buffer, 10, 3, "C")
        buffer.annotate(Value().annotate)
    kept = column(cut, "lambda_returns")
    assert list(kept) == [2, 3, 10, 11, 12]
    assert kept == {row: total for row, total in column(whole, "lambda_returns").items() if row in kept}


def test_only_rows_with_returns_are_drawn() -> None:
    buffer = buffer_of(capacity=6, num_envs=1)
    add_episode(buffer, 0, 3, "T")
    assert (len(buffer), buffer.num_drawable) == (3, 0)
    with pytest.raises(DatasetError, match="no row that can be drawn"):
        buffer.sample(1)
    buffer.annotate(Value().annotate)
    add_episode(buffer, 10, 2, "T")
    assert (len(buffer), buffer.num_drawable) == (5, 3)
    assert list(column(buffer, "rewards")) == [0, 1, 2]
    # Two more than there is place for: rows 0 and 1 are gone.
    add_episode(buffer, 20, 3, "T")
    assert list(column(buffer, "rewards")) == [2]


def test_returns_are_computed_after_every_interval_and_new_rows_join_then() -> None:
    buffer, value = buffer_of(), Value()
    add_episode(buffer, 0, 1, "C")
    source, seen = source_of(buffer, value), []
    for batch in range(9):
        value.level = float(batch)
        if batch == 2:
            add_episode(buffer, 50, 1, "C")
        drawn = source.sample(64)
        seen.append((set(numbers(drawn["obs"])), float(drawn["lambda_returns"].min())))
    # The value was 0 when the source was made, then 4 and 8; the first row has no reward.
    assert seen == [({0}, 0.0)] * 4 + [({0, 50}, pytest.approx(3.6))] * 4 + [({0, 50}, pytest.approx(7.2))]


def test_batches_that_the_values_saw_elsewhere_count() -> None:
    buffer, value = buffer_of(), Value()
    add_episode(buffer, 0, 1, "C")
    source, seen = source_of(buffer, value, drawn=10), []
    for batch in range(4):
        value.level = float(batch)
        seen.append(float(source.sample(1)["lambda_returns"]))
    # Computed again at the twelfth.
    assert seen == pytest.approx([0, 0, 1.8, 1.8])


def test_advantages_are_standardised_over_logged_and_own_rows_together() -> None:
    buffer = buffer_of()
    add(buffer, [7], "T")
    source = source_of(buffer, Value(), logged([1.0, 3.0]), ratio=0.5)
    batch = source.sample(64)
    # Returns: 3, 1 + 0.45 * 3 = 2.35 and 7; half of the batch is of the last.
    values = torch.tensor([2.35, 3.0, 7.0])
    expected = (values - values.mean()) / (values.std(correction=0) + 1e-5)
    own = batch["obs"][:, 0] == 7
    assert int(own.sum()) == 32
    assert batch["advantages"][own].tolist() == pytest.approx([float(expected[2])] * 32)
    assert sorted(set(batch["advantages"][~own].tolist())) == pytest.approx(expected[:2].tolist())
    assert source.metrics() == {"buffer_size": 1, "offline_rows": 32, "online_rows": 32}


def test_rows_wait_beside_logged_data_until_their_returns_are_known() -> None:
    buffer = buffer_of()
    source = source_of(buffer, Value(), logged([1.0, 3.0]), ratio=0.5)
    add(buffer, [7], "T")
    shares = [int((source.sample(8)["obs"] == 7).sum()) for _ in range(6)]
    assert shares == [0, 0, 0, 0, 4, 4]


def test_a_ring_that_was_overwritten_whole_is_computed_at_once() -> None:
    buffer = buffer_of(capacity=2)
    add_episode(buffer, 0, 2, "T")
    source = source_of(buffer, Value())
    source.sample(1)
    add_episode(buffer, 10, 2, "T")
    assert set(numbers(source.sample(32)["obs"])) == {10, 11}


@pytest.mark.parametrize("prior", [False, True])
@pytest.mark.parametrize("stop", [1, 3, 4, 5])
def test_a_saved_source_continues_exactly_though_rows_were_overwritten_since(stop: int, prior: bool) -> None:
    def make() -> tuple[ReplayBuffer, Value, AnnotatedSource]:
        buffer, value = buffer_of(capacity=6), Value()
        add_episode(buffer, 0, 4, "C")
        return buffer, value, source_of(buffer, value, logged([1.0, 3.0]) if prior else None)

    buffer, value, source = make()
    for batch in range(stop):
        source.sample(8)
        # As a lagged copy moves: with the last update of an interval.
        value.level = float((batch + 1) // 4)
    add_episode(buffer, 20, 3, "T")
    other_buffer, other_value, other = make()
    other_value.level = value.level
    other.load_state_dict(saved(source.state_dict()))
    revive(buffer, other_buffer)
    for _ in range(6):
        assert_equal_batches(source.sample(8), other.sample(8))
