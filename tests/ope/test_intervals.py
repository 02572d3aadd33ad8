"""Intervals over episodes, against numbers worked out by hand and against how often they hold."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import bootstrap as bootstrap_of_scipy

from rl_training.core.errors import DatasetError
from rl_training.core.statistics import student_quantile
from rl_training.ope import intervals
from rl_training.ope.intervals import (
    EpisodeEstimate,
    Interval,
    acceleration,
    bootstrap,
    episode_interval,
    studentised_interval,
)


def test_the_acceleration_of_a_skewed_sample_is_that_worked_out_by_hand() -> None:
    assert acceleration(EpisodeEstimate.of_mean([1, 2, 3, 4, 10]).leave_one_out()) == pytest.approx(
        0.084852814, abs=1e-9
    )
    assert acceleration([3.0, 3.0]) == 0


def test_the_jackknife_recomputes_the_estimate_without_each_episode() -> None:
    values, weights = np.array([1.0, 4, 2, 8]), np.array([0.5, 1, 3, 0.2])

    left_out = EpisodeEstimate.of_weighted_mean(values, weights).leave_one_out()

    for i in range(4):
        others = np.arange(4) != i
        assert left_out[i] == pytest.approx(np.average(values[others], weights=weights[others]))


def test_a_mean_has_the_usual_standard_error_and_a_weighted_mean_that_of_its_residuals() -> None:
    values, weights = np.array([1.0, 4, 2, 8]), np.array([0.5, 1, 3, 0.2])

    mean, weighted = EpisodeEstimate.of_mean(values), EpisodeEstimate.of_weighted_mean(values, weights)

    assert mean.value == pytest.approx(values.mean())
    assert mean.standard_error == pytest.approx(values.std(ddof=1) / 2)
    assert weighted.value == pytest.approx(np.average(values, weights=weights))
    residuals = weights * (values - weighted.value)
    assert weighted.standard_error == pytest.approx(np.sqrt((residuals**2).sum()) / weights.sum())


def test_a_resampled_estimate_is_the_estimate_from_the_resampled_episodes(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values, weights = rng.normal(size=30), rng.uniform(0.1, 3, size=30)
    # One resample at a time must give the same as all at once.
    monkeypatch.setattr(intervals, "CHUNK", 30)

    replicates = bootstrap(EpisodeEstimate.of_weighted_mean(values, weights), resamples=5, seed=7)

    for b, draw in enumerate(np.random.default_rng(7).integers(30, size=(5, 30))):
        again = EpisodeEstimate.of_weighted_mean(values[draw], weights[draw])
        assert replicates.values[b] == pytest.approx(again.value)
        assert replicates.errors[b] == pytest.approx(again.standard_error)


def test_a_paired_difference_resamples_the_same_episodes_for_both_policies() -> None:
    rng = np.random.default_rng(0)
    common = rng.normal(size=40) * 10
    better, logged = EpisodeEstimate.of_mean(common + 1 + 0.1 * rng.normal(size=40)), EpisodeEstimate.of_mean(common)

    paired = bootstrap(better - logged, seed=3)

    assert (better - logged).value == pytest.approx(better.value - logged.value)
    assert paired.values == pytest.approx(bootstrap(better, seed=3).values - bootstrap(logged, seed=3).values)
    # What the episodes have in common cancels.
    assert (better - logged).standard_error < 0.02
    assert better.standard_error > 1
    with pytest.raises(DatasetError, match="40 and 39"):
        better - EpisodeEstimate.of_mean(common[1:])


def test_the_interval_of_a_normal_sample_agrees_with_its_standard_error() -> None:
    estimate = EpisodeEstimate.of_mean(np.random.default_rng(1).normal(10, 2, size=200))

    low, high, _ = studentised_interval(estimate)

    assert low == pytest.approx(estimate.value - 1.96 * estimate.standard_error, abs=0.03)
    assert high == pytest.approx(estimate.value + 1.96 * estimate.standard_error, abs=0.03)


def test_the_interval_of_right_skewed_returns_reaches_further_up() -> None:
    estimate = EpisodeEstimate.of_mean(np.random.default_rng(4).lognormal(size=50))

    low, high, method = studentised_interval(estimate)

    reach = student_quantile(0.975, 49) * estimate.standard_error
    assert method == "studentised"
    assert high > estimate.value + reach
    assert low > estimate.value - reach


def test_few_distinct_values_fall_back_to_bca() -> None:
    # A resample misses the one success in about a third of cases, and has no spread then.
    assert studentised_interval(EpisodeEstimate.of_mean([1.0] + [0.0] * 11)).method == "BCa"


def test_bca_agrees_with_scipy() -> None:
    values = np.random.default_rng(2).lognormal(size=60)
    estimate = EpisodeEstimate.of_mean(values)

    low, high, _ = intervals._bca(estimate, bootstrap(estimate, resamples=20_000).values, 0.95)

    theirs = bootstrap_of_scipy((values,), np.mean, n_resamples=20_000, rng=np.random.default_rng(0))
    assert (low, high) == pytest.approx(tuple(theirs.confidence_interval), rel=0.02)


def test_constant_returns_have_an_interval_of_no_width() -> None:
    assert studentised_interval(EpisodeEstimate.of_mean([2.0] * 12)) == Interval(2.0, 2.0, "BCa")


def test_there_is_no_interval_below_ten_episodes() -> None:
    values = np.random.default_rng(0).normal(size=10)

    assert episode_interval(EpisodeEstimate.of_mean(values[:9])) is None
    assert episode_interval(EpisodeEstimate.of_mean(values)) == studentised_interval(EpisodeEstimate.of_mean(values))
    with pytest.raises(DatasetError, match="at least 2 episodes"):
        bootstrap(EpisodeEstimate.of_mean(values[:1]))


def test_resamples_whose_weights_are_all_zero_are_left_out() -> None:
    weights = np.zeros(10)
    weights[:2] = 1

    low, high, _ = studentised_interval(EpisodeEstimate.of_weighted_mean(np.arange(10), weights))

    assert (low, high) == (0, 1)
    with pytest.raises(DatasetError, match="zero or infinite"):
        studentised_interval(EpisodeEstimate.of_weighted_mean(np.arange(10), np.zeros(10)))


@pytest.mark.slow
def test_intervals_of_lognormal_means_hold_as_often_as_known() -> None:
    rng = np.random.default_rng(0)
    truth = math.exp(0.5)
    covered = 0
    for seed in range(1000):
        low, high, _ = studentised_interval(EpisodeEstimate.of_mean(rng.lognormal(size=100)), seed=seed)
        covered += low <= truth <= high

    assert 0.915 <= covered / 1000 <= 0.965
