"""Frames of pandas and polars, and results of DuckDB, as datasets and back; rewards by a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.core.errors import ConfigError, DatasetError
from rl_training.data import TransitionDataset

pa = pytest.importorskip("pyarrow")
pd = pytest.importorskip("pandas")
pl = pytest.importorskip("polars")
duckdb = pytest.importorskip("duckdb")

ROWS: dict[str, list[Any]] = {
    "run": ["a", "a", "a", "b", "b"],
    "temp": [20.0, 21.5, 22.0, 19.0, 18.0],
    "mode": ["auto", "manual", "auto", "auto", "manual"],
    "valve": ["open", "closed", "open", "open", "closed"],
    "cost": [1, 2, 3, 4, 5],
}
COLUMNS = {"obs": ["temp", "mode"], "one_hot": ["mode"], "actions": ["valve"], "reward": "cost", "episode": "run"}


def _duckdb(rows: dict[str, list[Any]]) -> Any:
    return duckdb.from_arrow(pa.table(rows))


FRAMES: dict[str, Callable[[dict[str, list[Any]]], Any]] = {
    "pandas": pd.DataFrame,
    "pandas categories": lambda rows: pd.DataFrame(rows).astype({"mode": "category", "valve": "category"}),
    "polars": pl.DataFrame,
    "polars categories": lambda rows: pl.DataFrame(rows).with_columns(pl.col("mode", "valve").cast(pl.Categorical)),
    "duckdb": _duckdb,
    "pyarrow": pa.table,
}


@pytest.mark.parametrize("kind", FRAMES)
def test_every_frame_is_the_same_dataset(kind: str) -> None:
    dataset = TransitionDataset.from_table(FRAMES[kind](ROWS), COLUMNS)
    assert dataset.obs.tolist() == [[20, 1, 0], [21.5, 0, 1], [19, 1, 0]]
    assert dataset.actions.tolist() == [1, 0, 1]
    assert dataset.rewards.tolist() == [1, 2, 4]
    assert dataset.columns is not None
    assert dataset.columns.choices == ("closed", "open")
    assert dataset.fingerprint() == TransitionDataset.from_table(pa.table(ROWS), COLUMNS).fingerprint()


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_a_dataset_becomes_a_frame_and_comes_back(make: Callable[..., Any]) -> None:
    dataset = TransitionDataset.from_table(make(ROWS), COLUMNS)
    table = dataset.to_arrow()
    frame = pl.from_arrow(table) if make is pl.DataFrame else table.to_pandas()
    assert list(frame["valve"]) == ["open", "closed", "open"]
    # A frame does not keep what its columns mean, but the table does.
    again = TransitionDataset.from_table(table)
    assert again.fingerprint() == dataset.fingerprint()
    mapping = {"obs": ["temp", "mode=*"], "next_obs": ["next_temp", "next_mode=*"], "actions": ["valve"]}
    ends = {"episode": "episode", "terminated": "terminated", "truncated": "truncated"}
    assert torch.equal(TransitionDataset.from_table(frame, {**mapping, **ends}).obs, dataset.obs)


@pytest.mark.parametrize(
    ("kind", "reward"),
    [
        ("pandas", lambda frame: -((frame["temp"] - 21) ** 2)),
        ("polars", lambda frame: -((frame["temp"] - 21) ** 2)),
        ("pyarrow", lambda table: [-((temp - 21) ** 2) for temp in table["temp"].to_pylist()]),
    ],
)
def test_a_reward_is_computed_by_a_function_of_the_table(kind: str, reward: Callable[[Any], Any]) -> None:
    columns = {**COLUMNS, "reward": None}
    dataset = TransitionDataset.from_table(FRAMES[kind](ROWS), columns, reward=reward)
    assert dataset.rewards.tolist() == [-1, -0.25, -4]
    assert dataset.has_rewards
    # Rewards belong to the rows of the table, which may be in another order than those of an episode.
    order = [3, 1, 0, 4, 2]
    timed: dict[str, Any] = {**ROWS, "t": [0, 1, 2, 0, 1]}
    shuffled = FRAMES[kind]({name: [cells[row] for row in order] for name, cells in timed.items()})
    mixed = TransitionDataset.from_table(shuffled, {**columns, "step": "t"}, reward=reward)
    assert sorted(mixed.rewards.tolist()) == [-4, -1, -0.25]
    np.testing.assert_allclose(mixed.rewards, -((mixed.obs[:, 0] - 21) ** 2))


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda frame: frame["temp"][:3], r"one finite number for each of 5 rows, got shape \(3,\)"),
        (lambda frame: frame["temp"] * float("nan"), "got an infinite or missing number"),
        (lambda frame: frame["mode"], r"one number per row of the table \(could not convert"),
    ],
)
def test_a_function_that_gives_no_rewards_is_named(reward: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(DatasetError, match=message):
        TransitionDataset.from_table(pd.DataFrame(ROWS), {**COLUMNS, "reward": None}, reward=reward)


def test_a_reward_is_given_once() -> None:
    with pytest.raises(ConfigError, match="given twice: by the column 'cost' and by a function"):
        TransitionDataset.from_table(pd.DataFrame(ROWS), COLUMNS, reward=lambda frame: frame["cost"])
