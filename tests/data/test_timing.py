"""How long a step of a log takes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rl_training.data import TransitionDataset, inspect
from rl_training.data.inspect import step_times


def timed(times: list[list[float]]) -> TransitionDataset:
    """Episodes whose rows were logged at these times."""
    rows = sum(map(len, times))
    ends = np.zeros(rows, dtype=bool)
    ends[np.cumsum([len(episode) for episode in times]) - 1] = True
    numbers: dict[str, Any] = {name: np.arange(rows, dtype=np.float32)[:, None] for name in ("observations", "actions")}
    numbers |= {"next_observations": numbers["observations"] + 1, "rewards": np.zeros(rows), "timeouts": ends}
    return TransitionDataset.from_dict(
        {**numbers, "terminals": np.zeros(rows, dtype=bool), "timestamps": np.concatenate(times)}
    )


def test_steps_are_counted_inside_episodes_only() -> None:
    found = step_times(timed([[0.0, 1.0, 2.0, 3.0], [1000.0, 1001.0, 1002.0, 1005.0]]))
    assert found is not None
    assert found.median == 1.0
    assert found.low == 1.0
    assert found.high == pytest.approx(np.quantile([1, 1, 1, 1, 1, 3], 0.95))


def test_times_of_today_keep_their_digits() -> None:
    start = 1_763_373_600.0
    found = step_times(timed([[start, start + 0.02, start + 0.04], [start, start + 0.02]]))
    assert found is not None
    assert found.median == pytest.approx(0.02, abs=1e-6)


def test_episodes_of_one_row_and_logs_without_timestamps_say_nothing() -> None:
    assert step_times(timed([[0.0], [5.0]])) is None
    dataset = timed([[0.0, 1.0]])
    kept = {name: column for name, column in dataset.fields.items() if name != "timestamps"}
    assert step_times(replace(dataset, fields=kept)) is None


def test_of_a_long_log_some_steps_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect, "MOST_EPISODES", 2)
    monkeypatch.setattr(inspect, "MOST_STEPS", 1)
    # The first step of the first and of the last episode.
    found = step_times(timed([[0.0, 1.0, 9.0], [0.0, 50.0, 90.0], [0.0, 3.0, 9.0]]))
    assert found is not None
    assert (found.low, found.median, found.high) == pytest.approx((1.1, 2.0, 2.9))
