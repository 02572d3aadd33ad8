"""Drawing rows: the stream of batches, and windows of trajectories."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from rl_training.core.errors import DatasetError
from rl_training.data import ReplayBuffer, TransitionDataset, UniformSource, WindowSource, sample_trajectory_windows
from rl_training.data.replay.samplers import BLOCK, BlockSampler

ROWS = 1000
"""Enough that two different streams do not agree by chance."""

LENGTHS = (3, 1, 2)
FIRST = (0, 0, 0, 3, 4, 4)
"""For each row, the first row of its episode."""
STOP = (3, 3, 3, 4, 6, 6)
"""For each row, the row after the last of its episode."""


def sampler(seed: int = 0) -> BlockSampler:
    rows = torch.arange(ROWS, dtype=torch.float32)
    return BlockSampler({"rows": rows, "twice": torch.stack([rows, 2 * rows], dim=1)}, seed=seed)


def draws(source: BlockSampler, *sizes: int) -> list[list[float]]:
    return [source.sample(size)["rows"].tolist() for size in sizes]


def dataset() -> TransitionDataset:
    """Episodes of 3, 1 and 2 rows; an observation is the number of its row plus one, so that zero is padding."""
    rows = sum(LENGTHS)
    ends = np.isin(np.arange(rows), np.cumsum(LENGTHS) - 1)
    numbers = np.arange(1, rows + 1, dtype=np.float32)
    return TransitionDataset.from_dict(
        {
            "obs": np.stack([numbers, -numbers], axis=1),
            "next_obs": np.zeros((rows, 2)),
            "actions": numbers[:, None],
            "rewards": numbers,
            "dones": ends,
            "truncations": np.zeros(rows),
        }
    )


def test_fields_of_a_batch_come_from_the_same_rows() -> None:
    batch = sampler().sample(100)
    assert batch["twice"].shape == (100, 2)
    assert torch.equal(batch["twice"], torch.stack([batch["rows"], 2 * batch["rows"]], dim=1))


def test_equal_seeds_draw_equal_streams_across_blocks() -> None:
    sizes = [8] * (BLOCK + 5)
    streams = [draws(sampler(seed), *sizes) for seed in (1, 1, 2)]
    assert streams[0] == streams[1]
    assert streams[0] != streams[2]
    # A block is not handed out twice.
    assert streams[0][:5] != streams[0][BLOCK:]


def test_another_batch_size_continues_with_the_stream() -> None:
    first, second, third = draws(sampler(), 8, 3, 8)
    assert (len(first), len(second), len(third)) == (8, 3, 8)
    # It does not start anew.
    assert first != third


def test_batches_outlive_the_block_they_came_from() -> None:
    source = sampler()
    batch = source.sample(8)["rows"]
    kept = batch.clone()
    draws(source, *[8] * (2 * BLOCK))
    assert torch.equal(batch, kept)


def test_writing_into_a_batch_leaves_the_data_alone() -> None:
    source = sampler()
    source.sample(8)["rows"].fill_(-1)
    assert float(source.fields["rows"].min()) == 0


@pytest.mark.parametrize("size", [0, -1])
def test_a_batch_has_at_least_one_row(size: int) -> None:
    with pytest.raises(DatasetError, match=f"batch_size must be >= 1, got {size}"):
        sampler().sample(size)


@pytest.mark.parametrize("drawn", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_a_saved_stream_continues_exactly(drawn: int) -> None:
    source = sampler()
    draws(source, *[8] * drawn)
    state = source.state_dict()
    expected = draws(source, *[8] * (BLOCK + 1))
    restored = sampler(seed=99)
    restored.load_state_dict(state)
    assert draws(restored, *[8] * (BLOCK + 1)) == expected


def test_a_stream_in_use_can_be_put_back() -> None:
    source = sampler()
    state = source.state_dict()
    expected = draws(source, 8, 8)
    source.load_state_dict(state)
    assert draws(source, 8, 8) == expected


def rows_of(window: Tensor) -> list[int]:
    """Row numbers of one window's observations, -1 where it is padded."""
    return [int(value) - 1 for value in window[:, 0].tolist()]


@pytest.mark.parametrize("length", [1, 2, 3, 5])
@pytest.mark.parametrize("pad", ["left", "right"])
def test_windows_hold_the_rows_of_one_episode_and_padding(pad: Literal["left", "right"], length: int) -> None:
    windows = sample_trajectory_windows(dataset(), length, 64, pad=pad)
    seen = set()
    for window, mask, timesteps in zip(windows["obs"], windows["mask"], windows["timesteps"], strict=True):
        real = [row for row in rows_of(window) if row >= 0]
        # The row that was drawn is the first one with padding on the right, and the last one with padding on the left.
        drawn = real[0] if pad == "right" else real[-1]
        first, stop = FIRST[drawn], STOP[drawn]
        expected = list(
            range(drawn, min(drawn + length, stop))
            if pad == "right"
            else range(max(drawn - length + 1, first), drawn + 1)
        )
        missing = length - len(expected)
        padding = [-1] * missing
        assert rows_of(window) == ([*expected, *padding] if pad == "right" else [*padding, *expected])
        assert mask.tolist() == [float(row >= 0) for row in rows_of(window)]
        assert timesteps.tolist() == [row - first if row >= 0 else 0 for row in rows_of(window)]
        seen.add(drawn)
    assert seen == set(range(6))


def test_windows_carry_every_field_from_the_same_rows() -> None:
    data = dataset().with_returns_to_go(gamma=1.0)
    windows = sample_trajectory_windows(data, 3, 16)
    assert set(windows) == {*data.fields, "mask", "timesteps"}
    assert windows["obs"].shape == (16, 3, 2)
    assert windows["rewards"].shape == windows["mask"].shape == (16, 3)
    # The helper gives a row the same number in every field, and padding is zero in all.
    assert torch.equal(windows["rewards"], windows["obs"][..., 0])
    assert torch.equal(windows["actions"][..., 0], windows["rewards"])
    assert torch.equal(windows["returns_to_go"] > 0, windows["mask"] > 0)


def test_windows_are_decided_by_their_seed() -> None:
    drawn = [sample_trajectory_windows(dataset(), 2, 32, seed=seed)["rewards"].tolist() for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(("length", "batch_size"), [(0, 4), (4, 0), (-1, 4)])
def test_windows_need_a_length_and_a_number(length: int, batch_size: int) -> None:
    with pytest.raises(DatasetError, match=f"must be >= 1, got {length} and {batch_size}"):
        sample_trajectory_windows(dataset(), length, batch_size)


def test_rows_out_of_order_have_no_windows() -> None:
    with pytest.raises(DatasetError, match="has no episodes"):
        sample_trajectory_windows(dataset().take(torch.tensor([2, 0])), 2, 4)


def test_a_source_of_windows_draws_the_same_from_a_log_and_from_a_ring_and_continues_where_it_was_saved() -> None:
    data = dataset()
    logged = UniformSource(data.rows, (), seed=3, is_raw=False)
    ring = ReplayBuffer(capacity=100, obs_dim=2, action_dim=1, whole_episodes=True, seed=3)
    for row in range(len(data)):
        values = {name: data.fields[name][row : row + 1] for name in ("obs", "actions", "rewards", "next_obs")}
        ring.add(terminations=data.dones[row : row + 1], truncations=data.truncations[row : row + 1], **values)
    names = ("obs", "rewards", "dones")
    first, second = WindowSource(logged, names, 3), WindowSource(ring, names, 3)
    for _ in range(3):
        ours, theirs = first.sample(16), second.sample(16)
        assert ours.keys() == theirs.keys() == {*names, "mask", "timesteps"}
        assert all(torch.equal(value, theirs[name]) for name, value in ours.items())
    resumed = WindowSource(UniformSource(data.rows, (), seed=4, is_raw=False), names, 3)
    resumed.load_state_dict(first.state_dict())
    assert torch.equal(resumed.sample(16)["obs"], first.sample(16)["obs"])


def test_windows_of_a_ring_have_no_rows_that_were_overwritten() -> None:
    ring = ReplayBuffer(capacity=3, obs_dim=1, action_dim=1, whole_episodes=True, transform=lambda rewards: 2 * rewards)
    for row in range(5):
        ends = {"terminations": [row in (2, 4)], "truncations": [False]}
        ring.add(obs=[[row]], actions=[[0]], rewards=[row], next_obs=[[row + 1]], **ends)
    windows = WindowSource(ring, ("obs", "rewards"), 3, pad="left").sample(64)
    found = {tuple(window) for window in windows["obs"][:, :, 0].tolist()}
    # Rows 0 and 1 have made way for 3 and 4.
    assert found == {(0, 0, 2), (0, 0, 3), (0, 3, 4)}
    assert torch.equal(windows["rewards"], 2 * windows["obs"][:, :, 0])
    assert set(windows["timesteps"][:, -1].tolist()) == {2, 0, 1}
