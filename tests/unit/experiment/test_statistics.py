"""What several seeds say together, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rl_training.experiment.statistics import bootstrap_interval, holm, interquartile_mean


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
    assert bootstrap_interval([3.5]) == (3.5, 3.5)


@pytest.mark.parametrize(
    ("confidence", "expected"),
    # Two runs of 0 and 1 resampled have the means 0, 1/2 and 1 with chances of 1/4, 1/2 and 1/4.
    [(0.95, (0.0, 1.0)), (0.6, (0.0, 1.0)), (0.4, (0.5, 0.5))],
)
def test_the_interval_is_made_of_quantiles_of_resampled_statistics(
    confidence: float, expected: tuple[float, float]
) -> None:
    assert bootstrap_interval([0.0, 1.0], statistic=np.mean, confidence=confidence) == expected


def test_the_interval_of_a_mean_agrees_with_its_standard_error() -> None:
    values = np.random.default_rng(1).normal(10, 2, size=100)

    low, high = bootstrap_interval(list(values), statistic=np.mean, resamples=4000)

    error = values.std() / 10
    assert low == pytest.approx(values.mean() - 1.96 * error, abs=0.1 * error)
    assert high == pytest.approx(values.mean() + 1.96 * error, abs=0.1 * error)


def test_the_interval_is_of_the_interquartile_mean_unless_told_otherwise() -> None:
    values = [0.0] * 12 + [1000.0]

    # One run in thirteen moves the mean, not the mean of the middle half.
    assert bootstrap_interval(values) == (0.0, 0.0)
    assert bootstrap_interval(values, statistic=np.mean)[1] > 0


def test_the_interval_repeats_itself() -> None:
    values = [1.0, 5.0, 2.0, 8.0, 3.0]

    assert bootstrap_interval(values) == bootstrap_interval(values)
    assert bootstrap_interval(values) != bootstrap_interval(values, seed=1, resamples=50)


def test_holm_multiplies_by_the_number_of_hypotheses_left() -> None:
    assert holm([0.004, 0.012, 0.03, 0.2, 0.6]) == pytest.approx([0.02, 0.048, 0.09, 0.4, 0.6], abs=1e-12)


def test_holm_keeps_the_order_of_the_input_and_never_lets_a_larger_p_value_pass_first() -> None:
    # 0.03 x 1 would pass where 0.02 x 2 = 0.04 did not come first.
    assert holm([0.03, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.9, 0.4, 0.8]) == pytest.approx([1.0, 1.0, 1.0])
    assert holm([0.2]) == pytest.approx([0.2])
    assert len(holm([])) == 0
