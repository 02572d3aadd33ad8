"""Ranking policies by estimates, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_training.experiment.ranking import (
    average_ranks,
    expected_online_performance,
    regret_at_k,
    spearman,
    winners_curse,
)
from rl_training.types import DatasetError

TRUTH = [0, 0.5, 1, 0.8]
ESTIMATES = [0.2, 0.9, 0.1, 0.7]


def test_the_rank_correlation_of_four_policies_is_that_worked_out_by_hand() -> None:
    assert spearman(TRUTH, ESTIMATES) == pytest.approx(-0.4, abs=1e-12)
    assert spearman(TRUTH, np.exp(TRUTH)) == pytest.approx(1)


def test_equal_values_share_their_ranks() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(0)
    a, b = rng.integers(5, size=30), rng.integers(4, size=30)

    assert average_ranks([3, 1, 3, 2]).tolist() == [3.5, 1, 3.5, 2]
    assert average_ranks(a).tolist() == stats.rankdata(a).tolist()
    assert spearman(a, b) == pytest.approx(float(stats.spearmanr(a, b).statistic), abs=1e-12)


def test_there_is_no_rank_correlation_where_all_are_equal() -> None:
    assert math.isnan(spearman([1, 1, 1], [1, 2, 3]))


@pytest.mark.parametrize(("k", "expected"), [(1, 0.5), (2, 0.2), (3, 0.2), (4, 0.0)])
def test_regret_is_what_the_best_of_the_shortlist_lacks(k: int, expected: float) -> None:
    assert regret_at_k(TRUTH, ESTIMATES, k) == pytest.approx(expected, abs=1e-12)
    # A share of the range: units do not matter.
    assert regret_at_k(10 * np.array(TRUTH) - 7, ESTIMATES, k) == pytest.approx(expected, abs=1e-12)


def test_equal_policies_cause_no_regret() -> None:
    assert regret_at_k([2, 2], [0, 1], 1) == 0


def test_impossible_rankings_are_refused() -> None:
    with pytest.raises(DatasetError, match="from 1 to 4"):
        regret_at_k(TRUTH, ESTIMATES, 5)
    with pytest.raises(DatasetError, match=r"\(2,\) and \(3,\)"):
        spearman([1, 2], [1, 2, 3])


@pytest.mark.parametrize(("candidates", "expected"), [(1, 0), (2, 0.57), (5, 1.16), (10, 1.54), (20, 1.87), (50, 2.25)])
def test_the_best_of_equal_policies_is_overestimated(candidates: int, expected: float) -> None:
    assert winners_curse(candidates) == pytest.approx(expected, abs=0.01)


def test_the_largest_of_two_and_three_normal_values_has_a_closed_form() -> None:
    assert winners_curse(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-9)
    assert winners_curse(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-9)


@pytest.mark.parametrize(("budget", "expected"), [(1, 2), (2, 2.444444444), (3, 2.666666667)])
def test_trying_random_candidates_has_the_expected_best_worked_out_by_hand(budget: int, expected: float) -> None:
    assert expected_online_performance([3, 1, 2], budget) == pytest.approx(expected, abs=1e-9)
