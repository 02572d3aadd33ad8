"""What several seeds say together, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import mannwhitneyu

from rl_training.core.statistics import (
    bootstrap_improvement,
    bootstrap_interval,
    holm,
    improvement_over_tasks,
    interquartile_mean,
    rank_test,
    score_profile,
    student_cdf,
    student_quantile,
)


@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [(0.975, 9, 2.262157163), (0.95, 4, 2.131846786), (0.975, 1, 12.706204736), (0.05, 9, -1.833112933), (0.5, 3, 0.0)],
)
def test_quantiles_of_student_are_those_of_printed_tables(p: float, df: float, expected: float) -> None:
    assert student_quantile(p, df) == pytest.approx(expected, abs=1e-9)
    # With one and two degrees of freedom the distribution has a closed form.
    assert student_cdf(expected, 1) == pytest.approx(0.5 + math.atan(expected) / math.pi, rel=1e-9)
    assert student_cdf(expected, 2) == pytest.approx(0.5 + expected / (2 * math.sqrt(2 + expected**2)), rel=1e-9)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], 5.0),
        # Fewer than four values: none can be spared.
        ([1.0, 2.0, 6.0], 3.0),
        ([1.0, 2.0, 4.0, 100.0], 3.0),
        ([1, 2, 3, 4, 5, 6, 7, 8], 4.5),
        # A quarter of seven, rounded down, is one at each end.
        ([1, 2, 3, 4, 5, 6, 700], 4.0),
        ([8, 1, 7, 2, 6, 3, 5, 4], 4.5),
    ],
)
def test_the_interquartile_mean_leaves_out_a_quarter_at_each_end(values: list[float], expected: float) -> None:
    assert interquartile_mean(values) == pytest.approx(expected)


def test_the_interval_of_one_run_is_that_run() -> None:
    assert bootstrap_interval([[3.5]]) == (3.5, 3.5)


@pytest.mark.parametrize(
    ("confidence", "expected"),
    # Two runs of 0 and 1 resampled have the means 0, 1/2 and 1 with chances of 1/4, 1/2 and 1/4.
    [(0.95, (0.0, 1.0)), (0.6, (0.0, 1.0)), (0.4, (0.5, 0.5))],
)
def test_the_interval_is_made_of_quantiles_of_resampled_statistics(
    confidence: float, expected: tuple[float, float]
) -> None:
    assert bootstrap_interval([[0.0, 1.0]], statistic=np.mean, confidence=confidence) == expected


def test_the_interval_of_a_mean_agrees_with_its_standard_error() -> None:
    values = np.random.default_rng(1).normal(10, 2, size=100)

    low, high = bootstrap_interval([list(values)], statistic=np.mean, resamples=4000)

    error = values.std() / 10
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_the_interval_is_of_the_interquartile_mean_unless_told_otherwise() -> None:
    values = [0.0] * 12 + [1000.0]

    # One run in thirteen moves the mean, not the mean of the middle half.
    assert bootstrap_interval([values]) == (0.0, 0.0)
    assert bootstrap_interval([values], statistic=np.mean)[1] > 0


def test_the_interval_repeats_itself() -> None:
    values = [1.0, 5.0, 2.0, 8.0, 3.0]

    assert bootstrap_interval([values]) == bootstrap_interval([values])
    assert bootstrap_interval([values]) != bootstrap_interval([values], seed=1, resamples=50)


def test_holm_multiplies_by_the_number_of_hypotheses_left() -> None:
    assert holm([0.004, 0.012, 0.03, 0.2, 0.6]) == pytest.approx([0.02, 0.048, 0.09, 0.4, 0.6], abs=1e-12)


def test_holm_keeps_the_order_of_the_input_and_never_lets_a_larger_p_value_pass_first() -> None:
    # 0.03 x 1 would pass where 0.02 x 2 = 0.04 did not come first.
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.9, 0.4, 0.8]) == pytest.approx([1.0, 1.0, 1.0])
    assert holm([0.2]) == pytest.approx([0.2])
    assert len(holm([])) == 0


def test_a_profile_is_the_share_of_runs_above_each_threshold_and_equal_is_not_above() -> None:
    shares = score_profile([1.0, 2.0, 2.0, 5.0], [0.0, 1.0, 2.0, 4.9, 5.0]).mean(axis=0)
    assert shares.tolist() == [1.0, 0.75, 0.25, 0.25, 0.0]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ([2.0, 3.0], [0.0, 1.0], 1.0),
        ([0.0, 1.0], [2.0, 3.0], 0.0),
        ([1.0, 1.0], [1.0, 1.0], 0.5),
        # Of six pairs, three are won, one is equal, two are lost.
        ([1.0, 4.0], [1.0, 2.0, 3.0], 3.5 / 6),
    ],
)
def test_the_probability_of_improvement_counts_pairs_and_equal_ones_half(
    first: list[float], second: list[float], expected: float
) -> None:
    assert improvement_over_tasks([first], [second]) == pytest.approx(expected)
    assert improvement_over_tasks([second], [first]) == pytest.approx(1 - expected)


def test_the_interval_of_an_improvement_is_made_of_resampled_runs_of_both() -> None:
    # A run is drawn from (0, 1) and from 1/2 alone: the share of 1 among two draws is 0, 1/2 or 1.
    assert bootstrap_improvement([[0.0, 1.0]], [[0.5]]) == (0.0, 1.0)
    assert bootstrap_improvement([[0.0, 1.0]], [[0.5]], confidence=0.4) == (0.5, 0.5)
    assert bootstrap_improvement([[2.0, 3.0]], [[0.0, 1.0]]) == (1.0, 1.0)


@pytest.mark.parametrize("scores", [([3.0, 4, 5, 6, 7], [1.0, 2, 2.5, 3.5, 4.5]), ([1.0, 2, 3, 4], [5.0, 6, 7, 8])])
def test_the_test_of_ranks_is_exact(scores: tuple[list[float], list[float]]) -> None:
    first, second = scores
    not_better, not_worse = rank_test([first], [second])

    assert min(not_better, not_worse) == pytest.approx(mannwhitneyu(*scores, method="exact").pvalue)
    for alternative, found in (("greater", not_better), ("less", not_worse)):
        expected = mannwhitneyu(*scores, method="exact", alternative=alternative).pvalue
        assert found == pytest.approx(min(2 * expected, 1))


def test_scores_of_several_tasks_are_dealt_out_task_by_task() -> None:
    # One kind wins on both of two tasks: by chance that happens once in 20 times on each.
    assert rank_test([[4.0, 5, 6], [4.0, 5, 6]], [[1.0, 2, 3], [1.0, 2, 3]]) == pytest.approx((2 / 400, 1.0))
    assert rank_test([[4.0, 5, 6]], [[1.0, 2, 3]]) == pytest.approx((0.1, 1.0))
    # What one task says, the other takes back.
    assert rank_test([[4.0, 5], [1.0, 2]], [[1.0, 2], [4.0, 5]]) == (1.0, 1.0)


def test_of_many_ways_to_deal_scores_out_some_are_drawn() -> None:
    first, second = np.arange(12.0) + 12, np.arange(12.0)
    not_better, not_worse = rank_test([first], [second])

    assert 0 < not_better < 1e-4
    assert not_worse == 1.0
