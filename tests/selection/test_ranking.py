"""Ranking policies by estimates, against numbers worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_training.core.errors import DatasetError
from rl_training.selection.ranking import regret_at_k, spearman

TRUTH = [0, 0.5, 1, 0.8]
ESTIMATES = [0.2, 0.9, 0.1, 0.7]


def test_the_rank_correlation_of_four_policies_is_that_worked_out_by_hand() -> None:
    assert spearman(TRUTH, ESTIMATES) == pytest.approx(-0.4, abs=1e-12)
    assert spearman(TRUTH, np.exp(TRUTH)) == pytest.approx(1)
    # Equal values share their mean rank: 1.5, 1.5, 3 against 1, 2, 3.
    assert spearman([0, 0, 5], [1, 2, 3]) == pytest.approx(math.sqrt(3) / 2)


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
