"""Statistics over seeds and tasks, against rliable on random scores."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from rl_training.core.statistics import (
    bootstrap_band,
    bootstrap_improvement,
    bootstrap_interval,
    improvement_over_tasks,
    interquartile_mean,
    score_profile,
)

metrics = pytest.importorskip("rliable.metrics")
RESAMPLES = 20_000
SHAPES = [(1, 1), (3, 1), (4, 1), (5, 1), (7, 2), (10, 3), (6, 5), (25, 4)]
"""Runs and tasks."""

Matrix = NDArray[np.float64]


def make_scores(runs: int, tasks: int, *, shift: float = 0.0, seed: int = 0) -> Matrix:
    """A score per run and task; they are rounded, so that some are equal."""
    return np.random.default_rng([seed, runs, tasks]).normal(shift, 1.0, size=(runs, tasks)).round(1)


@pytest.fixture(scope="module")
def library() -> Iterator[Any]:
    """The part of rliable that resamples. It is drawn from numpy's global generator, which gets a seed."""
    # Of the package arch, rliable needs the bootstrap alone. The rest of it does not import beside pandas 3.
    spec = importlib.util.find_spec("arch")
    assert spec is not None
    loaded = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in ("arch", "rliable")}
    sys.modules["arch"] = importlib.util.module_from_spec(spec)
    state = np.random.get_state()  # noqa: NPY002
    np.random.seed(0)  # noqa: NPY002
    yield pytest.importorskip("rliable.library")
    np.random.set_state(state)  # noqa: NPY002
    for name in [name for name in sys.modules if name.partition(".")[0] in ("arch", "rliable")]:
        del sys.modules[name]
    sys.modules.update(loaded)


@pytest.mark.parametrize(("runs", "tasks"), [*SHAPES, *((runs, 1) for runs in range(8, 60))])
def test_the_interquartile_mean_is_rliables_for_any_number_of_runs(runs: int, tasks: int) -> None:
    scores = make_scores(runs, tasks)
    assert interquartile_mean(scores) == pytest.approx(metrics.aggregate_iqm(scores), abs=1e-12)


def test_runs_of_several_tasks_are_cut_together_and_not_task_by_task() -> None:
    scores = np.array([[0.0, 100.0], [1.0, 101.0]])
    # Of four scores, one is left out at each end; task by task, none of two would be.
    assert interquartile_mean(scores) == metrics.aggregate_iqm(scores) == 50.5
    uneven = np.array([[0.0, 100.0, 7.0], [1.0, 101.0, 8.0]])
    assert interquartile_mean(uneven) == metrics.aggregate_iqm(uneven) == (1 + 7 + 8 + 100) / 4


@pytest.mark.parametrize(("runs", "tasks"), SHAPES)
@pytest.mark.parametrize("others", [3, 8])
def test_the_probability_of_improvement_is_rliables_also_with_ties(runs: int, tasks: int, others: int) -> None:
    first, second = make_scores(runs, tasks, shift=0.3), make_scores(others, tasks, seed=1)
    expected = metrics.probability_of_improvement(first, second)
    assert improvement_over_tasks(list(first.T), list(second.T)) == pytest.approx(expected, abs=1e-12)
    assert improvement_over_tasks(list(first.T), list(first.T)) == 0.5


@pytest.mark.parametrize(("runs", "tasks"), SHAPES)
def test_a_performance_profile_is_rliables_and_equal_is_not_above(library: Any, runs: int, tasks: int) -> None:
    scores = make_scores(runs, tasks)
    thresholds = np.unique(scores)
    profiles, bands = library.create_performance_profile({"x": scores}, thresholds, reps=2000)
    rows = [score_profile(column, thresholds) for column in scores.T]
    np.testing.assert_allclose(np.concatenate(rows).mean(axis=0), profiles["x"], atol=1e-12)
    np.testing.assert_allclose(bootstrap_band(rows), bands["x"], atol=0.04 if runs > 7 else 0.12)


@pytest.mark.parametrize(("runs", "tasks"), [(10, 1), (10, 3), (25, 4)])
def test_the_interval_of_the_interquartile_mean_is_rliables(library: Any, runs: int, tasks: int) -> None:
    scores = make_scores(runs, tasks)
    _, expected = library.get_interval_estimates(
        {"x": scores}, lambda drawn: np.array([metrics.aggregate_iqm(drawn)]), reps=RESAMPLES
    )
    found = bootstrap_interval(list(scores.T), resamples=RESAMPLES)
    assert found == pytest.approx(expected["x"][:, 0], abs=0.03)


@pytest.mark.parametrize(("runs", "tasks"), [(5, 1), (10, 3), (6, 5)])
def test_the_interval_of_an_improvement_is_rliables(library: Any, runs: int, tasks: int) -> None:
    first, second = make_scores(runs, tasks, shift=0.3), make_scores(runs + 2, tasks, seed=1)
    _, expected = library.get_interval_estimates(
        {"x": [first, second]}, lambda x, y: np.array([metrics.probability_of_improvement(x, y)]), reps=2000
    )
    found = bootstrap_improvement(list(first.T), list(second.T), resamples=RESAMPLES)
    assert found == pytest.approx(expected["x"][:, 0], abs=0.03)
