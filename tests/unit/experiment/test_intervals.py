"""Intervals and bounds, against numbers worked out by hand and against how often they hold."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from rl_training.experiment import intervals
from rl_training.experiment.episode_estimates import EpisodeEstimate
from rl_training.experiment.intervals import (
    Interval,
    acceleration,
    anderson_lower_bound,
    bca_interval,
    bernstein_lower_bound,
    bootstrap,
    clipped_lower_bound,
    episode_interval,
    hoeffding_interval,
    hoeffding_lower_bound,
    percentile_interval,
    simultaneous_lower_bounds,
    studentised_interval,
    t_interval,
    t_lower_bound,
)
from rl_training.types import DatasetError

FIVE = np.array([0, 0.5, 1, 1.5, 2])
HUNDRED = np.repeat(FIVE, 20)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        (hoeffding_lower_bound(HUNDRED, low=0, high=2), 0.755225317),
        (bernstein_lower_bound(HUNDRED, low=0, high=2), 0.633081282),
        (t_lower_bound(HUNDRED), 0.882001139),
        (anderson_lower_bound(HUNDRED, low=0, high=2), 0.755225317),
        (clipped_lower_bound(HUNDRED, cap=1.5), 0.610406686),
        (clipped_lower_bound(HUNDRED, cap=1), 0.503861243),
        (hoeffding_lower_bound(FIVE, low=0, high=2), -0.094665661),
        (t_lower_bound(FIVE), 0.246278340),
        (anderson_lower_bound(FIVE, low=0, high=2), 0.152667169),
    ],
)
def test_one_sided_bounds_are_those_worked_out_by_hand(bound: float, expected: float) -> None:
    assert bound == pytest.approx(expected, abs=1e-9)


def test_the_two_sided_hoeffding_interval_shares_its_error_between_both_sides() -> None:
    low, high, _ = hoeffding_interval(HUNDRED, low=0, high=2)

    assert (high - low) / 2 == pytest.approx(0.271620303, abs=1e-9)
    assert (high + low) / 2 == pytest.approx(1)


def test_a_bound_is_refused_where_values_leave_the_range_that_was_called_known() -> None:
    with pytest.raises(DatasetError, match=r"\[0, 1\], got \[0, 2\]"):
        hoeffding_lower_bound(FIVE, low=0, high=1)
    with pytest.raises(DatasetError, match=r"\[0, inf\], got \[-1"):
        clipped_lower_bound([-1.0, 2.0], cap=1)
    with pytest.raises(DatasetError, match="got 1"):
        anderson_lower_bound([0.5], low=0, high=1)


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


def test_intervals_of_a_normal_sample_agree_with_its_standard_error() -> None:
    estimate = EpisodeEstimate.of_mean(np.random.default_rng(1).normal(10, 2, size=200))

    for method in (t_interval, percentile_interval, bca_interval, studentised_interval):
        low, high, _ = method(estimate)
        assert low == pytest.approx(estimate.value - 1.96 * estimate.standard_error, abs=0.03)
        assert high == pytest.approx(estimate.value + 1.96 * estimate.standard_error, abs=0.03)


def test_bca_agrees_with_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(2).lognormal(size=60)

    ours = bca_interval(EpisodeEstimate.of_mean(values), resamples=20_000)

    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, rng=np.random.default_rng(0)).confidence_interval
    assert (ours.low, ours.high) == pytest.approx((theirs.low, theirs.high), rel=0.02)


def test_the_studentised_interval_of_right_skewed_returns_reaches_further_up() -> None:
    estimate = EpisodeEstimate.of_mean(np.random.default_rng(4).lognormal(size=50))

    studentised, student = studentised_interval(estimate), t_interval(estimate)

    assert studentised.method == "studentised"
    assert studentised.high > student.high
    assert studentised.low > student.low


def test_few_distinct_values_fall_back_to_bca() -> None:
    # A resample misses the one success in about a third of cases, and has no spread then.
    estimate = EpisodeEstimate.of_mean([1.0] + [0.0] * 11)

    assert studentised_interval(estimate).method == "BCa"
    assert studentised_interval(estimate) == bca_interval(estimate)


def test_constant_returns_have_an_interval_of_no_width() -> None:
    assert studentised_interval(EpisodeEstimate.of_mean([2.0] * 12)) == Interval(2.0, 2.0, "BCa")


def test_there_is_no_interval_below_ten_episodes() -> None:
    values = np.random.default_rng(0).normal(size=10)

    assert episode_interval(EpisodeEstimate.of_mean(values[:9])) is None
    assert episode_interval(EpisodeEstimate.of_mean(values)) == studentised_interval(EpisodeEstimate.of_mean(values))
    with pytest.raises(DatasetError, match="at least 2 episodes"):
        t_interval(EpisodeEstimate.of_mean(values[:1]))


def test_resamples_whose_weights_are_all_zero_are_left_out() -> None:
    weights = np.zeros(10)
    weights[:2] = 1

    low, high, _ = percentile_interval(EpisodeEstimate.of_weighted_mean(np.arange(10), weights))

    assert (low, high) == (0, 1)
    with pytest.raises(DatasetError, match="zero or infinite"):
        percentile_interval(EpisodeEstimate.of_weighted_mean(np.arange(10), np.zeros(10)))


def test_simultaneous_bounds_are_lower_than_single_ones_and_hold_together() -> None:
    rng = np.random.default_rng(0)
    missed = 0
    for seed in range(200):
        candidates = [EpisodeEstimate.of_mean(rng.normal(size=50)) for _ in range(10)]
        bounds = simultaneous_lower_bounds(candidates, resamples=300, seed=seed)
        missed += max(bounds) > 0
    single = simultaneous_lower_bounds(candidates[:1])[0]

    assert bounds[0] < single < candidates[0].value
    # 5 % of 200, and three binomial standard deviations; single bounds would all hold in 0.95^10 = 60 % of cases.
    assert missed <= 20


def test_an_estimate_without_spread_does_not_disturb_the_bounds_of_others() -> None:
    spread = EpisodeEstimate.of_mean(np.random.default_rng(0).normal(size=50))

    bounds = simultaneous_lower_bounds([spread, EpisodeEstimate.of_mean([3.0] * 50)])

    assert bounds[1] == 3
    assert math.isfinite(bounds[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "least", "most"), [(studentised_interval, 0.915, 0.965), (percentile_interval, 0.875, 0.935)]
)
def test_intervals_of_lognormal_means_hold_as_often_as_known(
    method: Callable[..., Interval], least: float, most: float
) -> None:
    rng = np.random.default_rng(0)
    truth = math.exp(0.5)
    covered = 0
    for seed in range(1000):
        low, high, _ = method(EpisodeEstimate.of_mean(rng.lognormal(size=100)), seed=seed)
        covered += low <= truth <= high

    assert least <= covered / 1000 <= most
