"""Remarks on data that probably does not mean what it says."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from rl_training.data import TransitionDataset
from rl_training.data.audit.checks import audit


def log(lengths: Sequence[int], *, terminated: bool = True, last: bool = True) -> TransitionDataset:
    """Episodes of given lengths that all terminate or are all cut; `last` says whether the last one terminates."""
    rows = sum(lengths)
    ends = np.isin(np.arange(rows), np.cumsum(lengths) - 1)
    dones = ends & terminated
    dones[-1] &= last
    obs = np.arange(rows, dtype=np.float32)[:, None]
    return TransitionDataset.from_dict(
        {
            "obs": obs,
            "next_obs": obs + 1,
            "actions": np.zeros((rows, 1)),
            "rewards": np.arange(rows),
            "dones": dones,
            "truncations": ends & ~dones,
        }
    )


def test_a_time_limit_recorded_as_termination_is_remarked_on() -> None:
    (remark,) = audit(log([10] * 5))
    assert "after exactly 10 steps, which looks like a time limit recorded as termination" in remark
    assert "'timeouts' or 'truncations'" in remark


def test_a_recording_that_stops_within_an_episode_still_shows_its_time_limit() -> None:
    (remark,) = audit(log([10, 10, 10, 10, 4], last=False))
    assert "after exactly 10 steps" in remark


@pytest.mark.parametrize(
    "dataset",
    [
        pytest.param(log([10] * 5, terminated=False), id="a time limit recorded as one"),
        pytest.param(log([10, 9, 10, 10]), id="different lengths"),
        pytest.param(log([10] * 3), id="too few episodes to tell"),
        pytest.param(log([1] * 6), id="one step each"),
    ],
)
def test_plausible_ends_are_not_remarked_on(dataset: TransitionDataset) -> None:
    assert audit(dataset) == []


def test_shuffled_rows_are_remarked_on() -> None:
    order = np.random.default_rng(0).permutation(100)
    dataset = TransitionDataset.from_dict(
        {
            "obs": order[:, None],
            # Nowhere does a row begin where the one before it led.
            "next_obs": order[:, None] + 0.5,
            "actions": np.zeros((100, 1)),
            "rewards": order,
            "dones": np.zeros(100),
        }
    )
    assert audit(dataset) == ["no row continues the one before it: the rows seem shuffled, so episodes are not known"]


def test_equal_rewards_are_remarked_on() -> None:
    assert audit(log([3, 4]).with_reward_transform(scale=0, shift=-1)) == ["every reward is -1"]
