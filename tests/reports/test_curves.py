"""Learning curves: what is averaged over which runs, and where."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from run_directories import make_run, returns

from rl_training.core.statistics import bootstrap_band, bootstrap_interval
from rl_training.reports.plots import (
    BOTH,
    MIXED,
    STEPS,
    UPDATES,
    Curve,
    make_line,
    make_panels,
    smoothed,
)
from rl_training.reports.runs import read_runs


def _curve(steps: Sequence[float], values: Sequence[float]) -> Curve:
    return Curve(np.array(steps, dtype=float), np.array(values, dtype=float))


def test_runs_are_interpolated_within_the_range_of_all_and_never_beyond_it() -> None:
    curves = [_curve([0, 10, 20], [0, 10, 20]), _curve([5, 15], [1, 3]), _curve([5, 10, 15, 30], [7, 7, 7, 7])]

    line = make_line("bc", curves)

    assert line.steps.tolist() == [5, 10, 15]
    assert line.values.tolist() == [[5, 10, 15], [1, 2, 3], [7, 7, 7]]
    assert [(rest.steps.tolist(), rest.values.tolist()) for rest in line.rests] == [
        ([0, 5], [0, 5]),
        ([15, 20], [15, 20]),
        ([15, 30], [7, 7]),
    ]


def test_two_runs_have_no_mean() -> None:
    curves = [_curve([1, 2], [0, 1]), _curve([1, 2], [0, 1])]

    line = make_line("bc", curves)

    assert not line.has_mean
    assert line.rests == curves


def test_runs_without_a_common_range_have_no_mean() -> None:
    line = make_line("bc", [_curve([1], [0]), _curve([2], [0]), _curve([3], [0])])

    assert (line.has_mean, line.is_point) == (False, True)


def test_a_moving_average_looks_back_over_evaluations() -> None:
    curve = smoothed([(10, 1.0), (20, 3.0), (30, 8.0), (40, 1.0)], 3)

    assert curve.steps.tolist() == [10, 20, 30, 40]
    assert curve.values.tolist() == [1, 2, 4, 4]
    assert smoothed([(10, 1.0), (20, 3.0)], 1).values.tolist() == [1, 3]


def test_there_is_a_panel_per_task_and_metric_with_the_runs_that_have_it(tmp_path: Path) -> None:
    make_run(tmp_path, 0, [{"return_mean": 1.0, "td_error": 2.0}], algo="td3_bc", env_id="B-v0")
    make_run(tmp_path, 0, returns(1.0), env_id="B-v0")
    make_run(tmp_path, 0, returns(1.0), env_id="A-v0")

    panels = make_panels(read_runs(tmp_path), metrics=["return_mean", "td_error"])

    assert [(panel.task, panel.metric, [line.name for line in panel.lines]) for panel in panels] == [
        ("A-v0", "return_mean", ["bc"]),
        ("B-v0", "return_mean", ["bc", "td3_bc"]),
        ("B-v0", "td_error", ["td3_bc"]),
    ]


@pytest.mark.parametrize(
    ("env_steps", "axis", "acts_from"),
    [
        ([None], UPDATES, ()),
        ([100], STEPS, ()),
        ([40], BOTH, (60,)),
        ([None, 100], MIXED, ()),
        ([40, 30], BOTH, (60, 70)),
    ],
)
def test_the_axis_is_named_after_what_runs_count(
    tmp_path: Path, env_steps: list[int | None], axis: str, acts_from: tuple[int, ...]
) -> None:
    for seed, steps in enumerate(env_steps):
        make_run(tmp_path, seed, [{"return_mean": 1.0} | ({} if steps is None else {"env_steps": steps})])

    (panel,) = make_panels(read_runs(tmp_path))

    assert (panel.axis, panel.acts_from) == (axis, acts_from)


@pytest.mark.parametrize(
    ("data", "metric", "expected"),
    [
        ([5.0, 5.0], "return_mean", 5.0),
        ([5.0, 6.0], "return_mean", None),
        ([5.0, None], "return_mean", None),
        ([5.0, 5.0], "length_mean", None),
    ],
)
def test_the_return_of_the_data_belongs_to_a_panel_of_returns_whose_runs_share_it(
    tmp_path: Path, data: list[float | None], metric: str, expected: float | None
) -> None:
    for seed, value in enumerate(data):
        make_run(tmp_path, seed, [{"return_mean": 1.0, "length_mean": 2.0}], data_return=value)

    (panel,) = make_panels(read_runs(tmp_path), metrics=[metric])

    assert panel.data_return == expected


def test_a_band_is_the_interval_of_the_mean_at_every_timestep() -> None:
    values = np.random.default_rng(0).normal(size=(12, 4))

    low, high = bootstrap_band([values])

    for column in range(4):
        expected = bootstrap_interval([values[:, column].tolist()], statistic=lambda drawn: float(drawn.mean()))
        assert (low[column], high[column]) == pytest.approx(expected)
