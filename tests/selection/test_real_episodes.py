"""Choosing among policies with a few real episodes."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rl_training.core.errors import ConfigError
from rl_training.selection.real_episodes import NormalSelection


def test_one_return_moves_the_prior_as_worked_out_by_hand() -> None:
    selection = NormalSelection([10.0, 0.0], 4.0, prior_variance=25)

    selection.observe(0, 20.0)

    assert selection.means[0] == pytest.approx(16.097561, abs=1e-6)
    assert selection.deviations[0] == pytest.approx(3.123475, abs=1e-6)
    assert selection.means[1] == pytest.approx(0)
    assert selection.deviations[1] == pytest.approx(5)


def test_the_prior_variance_is_that_of_the_estimates_and_at_least_that_of_returns() -> None:
    assert NormalSelection([10.0, 20.0], 4.0).prior_variance == pytest.approx(25)
    assert NormalSelection([10.0, 20.0], 6.0).prior_variance == pytest.approx(36)


def test_the_noise_is_pooled_within_candidates_and_with_the_log() -> None:
    selection = NormalSelection([0.0, 0.0, 0.0], 2.0)
    for value in (1.0, 3.0):
        selection.observe(0, value)
    for value in (101.0, 107.0, 104.0):
        selection.observe(1, value)

    # Four of the log with variance 4, squares 2 and 18 within candidates, 1 + 2 degrees of freedom.
    assert selection.noise_variance == pytest.approx((4 * 4 + 2 + 18) / (4 + 3))


def test_the_next_candidate_has_the_highest_upper_bound() -> None:
    selection = NormalSelection([1.0, 0.0, -20.0], 2.0, prior_variance=4, exploration=2.0)
    assert selection.next() == 0

    for _ in range(3):
        selection.observe(0, 1.0)

    # Candidate 0 has a deviation of about 1 now, candidate 1 still one of 2.
    assert selection.means[0] == pytest.approx(1)
    assert selection.next() == 1


def test_a_budget_below_the_number_of_candidates_is_enough() -> None:
    selection = NormalSelection(np.arange(50.0), 1.0)

    selection.observe(selection.next(), 60.0)

    assert selection.best() == 49
    assert selection.counts.sum() == 1


def test_without_real_episodes_the_prior_decides() -> None:
    selection = NormalSelection([-3.0, -1.0, -2.0], 1.0)

    assert selection.best() == 1
    assert not selection.is_decided()


@pytest.mark.parametrize("seed", range(20))
def test_an_untried_candidate_is_never_reported_as_best_where_all_returns_are_negative(seed: int) -> None:
    rng = np.random.default_rng(seed)
    # The prior expects far more than any candidate earns, so that untried ones look best.
    selection = NormalSelection.without_estimates(8, 0.0, 5.0)

    for _ in range(5):
        candidate = selection.next()
        selection.observe(candidate, rng.normal(-100 - candidate, 5))
        assert selection.counts[selection.best()] > 0


def test_selection_stops_when_no_other_candidate_may_well_be_better() -> None:
    selection = NormalSelection([0.0, 0.0], 1.0)
    for _ in range(20):
        selection.observe(0, 3.0)
    # The other was never tried: its mean may still be anything near 0 with a standard deviation of 1.
    assert selection.doubt() < 0.05
    assert selection.is_decided()

    wide = NormalSelection([0.0, 0.0], 1.0, prior_variance=9)
    for _ in range(20):
        wide.observe(0, 3.0)
    assert wide.doubt() == pytest.approx(0.16, abs=0.01)
    assert not wide.is_decided()


def test_a_candidate_with_a_wide_posterior_keeps_selection_going_even_if_it_is_not_second() -> None:
    selection = NormalSelection([0.0, 0.0, 0.0], 1.0, prior_variance=100)
    for _ in range(30):
        selection.observe(0, 10.0)
        selection.observe(1, 8.0)

    # The second best is settled; the third was never tried.
    assert selection.doubt() == pytest.approx(0.5 * math.erfc(1 / math.sqrt(2)), abs=0.01)
    assert not selection.is_decided()


def test_a_single_candidate_leaves_no_doubt() -> None:
    selection = NormalSelection([1.0], 1.0)

    assert selection.doubt() == 0
    assert selection.best() == 0


@pytest.mark.parametrize(
    ("means", "spread", "problem"),
    [
        ([], 1.0, "one finite prior mean"),
        ([1.0, math.nan], 1.0, "one finite prior mean"),
        ([1.0], 0.0, "above 0, got 0"),
    ],
)
def test_impossible_priors_are_refused(means: list[float], spread: float, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        NormalSelection(means, spread)


def test_impossible_returns_are_refused() -> None:
    selection = NormalSelection([1.0, 2.0], 1.0)

    with pytest.raises(ConfigError, match="from 0 to 1, got 2"):
        selection.observe(2, 0.0)
    with pytest.raises(ConfigError, match="candidate 1 must be a finite number"):
        selection.observe(1, math.nan)


@pytest.mark.parametrize(("exploration", "least", "most"), [(3.0, 0.0, 0.5), (1.0, 1.5, math.inf)])
def test_selection_without_estimates_finds_one_of_the_best_of_twenty_unless_it_explores_too_little(
    exploration: float, least: float, most: float
) -> None:
    rng = np.random.default_rng(0)
    regrets = []
    for _ in range(200):
        truth = rng.permutation(np.arange(20.0))
        selection = NormalSelection.without_estimates(20, logged_mean=9.5, spread=4.0)
        selection.exploration = exploration
        for _ in range(100):
            candidate = selection.next()
            selection.observe(candidate, rng.normal(truth[candidate], 4))
        regrets.append(19 - truth[selection.best()])

    assert least <= np.mean(regrets) < most
