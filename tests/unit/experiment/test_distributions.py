"""Probabilities and quantiles of Student's distribution, against tables, closed forms and SciPy."""

from __future__ import annotations

import math

import pytest

from rl_training.experiment.distributions import NORMAL, student_cdf, student_quantile


@pytest.mark.parametrize(
    ("p", "df", "expected"),
    [(0.975, 9, 2.262157163), (0.95, 4, 2.131846786), (0.975, 1, 12.706204736), (0.95, 9, 1.833112933), (0.5, 3, 0.0)],
)
def test_quantiles_are_those_of_printed_tables(p: float, df: float, expected: float) -> None:
    assert student_quantile(p, df) == pytest.approx(expected, abs=1e-9)
    assert student_quantile(1 - p, df) == pytest.approx(-expected, abs=1e-8)


@pytest.mark.parametrize("x", [-30.0, -2.0, -1e-3, 0.0, 0.5, 4.0])
def test_one_and_two_degrees_of_freedom_have_closed_forms(x: float) -> None:
    assert student_cdf(x, 1) == pytest.approx(0.5 + math.atan(x) / math.pi, abs=1e-13)
    assert student_cdf(x, 2) == pytest.approx(0.5 + x / (2 * math.sqrt(2 + x * x)), abs=1e-13)


def test_many_degrees_of_freedom_are_nearly_a_normal_distribution() -> None:
    assert student_cdf(1.5, math.inf) == NORMAL.cdf(1.5)
    assert student_cdf(1.5, 1e9) == pytest.approx(NORMAL.cdf(1.5), abs=1e-9)
    assert student_quantile(0.975, 1e9) == pytest.approx(NORMAL.inv_cdf(0.975), abs=1e-8)


@pytest.mark.parametrize("df", [0.7, 1, 3, 9, 39.9, 40.1, 99, 2500, 1e6])
def test_probabilities_and_quantiles_agree_with_scipy(df: float) -> None:
    student = pytest.importorskip("scipy.stats").t(df)

    for x in [-50.0, -8.0, -3.1, -1.0, -0.01, 0.0, 0.2, 1.7, 2.5, 12.0]:
        # Relative in the left tail, where p-values are.
        assert student_cdf(x, df) == pytest.approx(float(student.cdf(x)), rel=1e-9, abs=1e-300)
    for p in [1e-6, 0.01, 0.025, 0.3, 0.499, 0.7, 0.95, 0.999]:
        assert student_quantile(p, df) == pytest.approx(float(student.ppf(p)), rel=1e-9)


def test_infinite_values_have_all_or_nothing_below_them() -> None:
    assert student_cdf(-math.inf, 5) == 0
    assert student_cdf(math.inf, 5) == 1
    assert math.isnan(student_cdf(math.nan, 5))


@pytest.mark.parametrize(("p", "df"), [(0.0, 5), (1.0, 5), (0.5, 0), (0.9, -1), (0.9, math.nan)])
def test_impossible_probabilities_and_degrees_of_freedom_are_refused(p: float, df: float) -> None:
    with pytest.raises(ValueError, match=r"probability|degrees of freedom"):
        student_quantile(p, df)
